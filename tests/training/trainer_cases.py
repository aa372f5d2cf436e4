"""What tests of the trainer share: prompts, a reward that varies, TRL's trainer with our seeds."""

import dataclasses

import torch
from trl import GRPOConfig, GRPOTrainer

from troll.common.seeding import derive_seed
from troll.training.config import TrustRegionConfig
from troll.training.trainer import TrustRegionTrainer

CLIP = {"trust_region": "clip"}
PROMPTS = ["Start with 3. Add 4.", "Begin with 5. Subtract 2. Add 3.", "Take the number 9.", "Start with 1."]


def digits(completions, **_):
    """A reward that varies within a group: the share of digits and full stops in the text."""
    return [sum(c in "0123456789." for c in text) / max(len(text), 1) for text in completions]


def completion_text(completion):
    """The text of a completion; TRL passes messages if the prompt is a chat."""
    return completion if isinstance(completion, str) else completion[0]["content"]


class SeededGRPOTrainer(GRPOTrainer):
    """TRL's trainer with our seeding of rollouts, and nothing else changed."""

    def _prepare_inputs(self, batch):
        every = self.args.steps_per_generation * self.num_iterations
        if self.model.training and self._step % every == 0:
            seed = derive_seed(stream="rollout", batch=self._step // every, seed=self.args.seed, process=0)
            torch.manual_seed(seed % 2**63)
        return super()._prepare_inputs(batch)


def configured(kind, model, reward, arguments, ours, **rest):
    """A trainer of either kind; of ``ours``, options go to our configuration and the rest to the trainer."""
    if not issubclass(kind, TrustRegionTrainer):
        return kind(model, reward, args=GRPOConfig(**arguments), **rest, **ours)
    names = {field.name for field in dataclasses.fields(TrustRegionConfig)}
    options = {name: value for name, value in ours.items() if name in names}
    others = {name: value for name, value in ours.items() if name not in names}
    return kind(model, reward, args=TrustRegionConfig(**arguments | options), **rest, **others)


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def logged(trainer, name):
    """The values of a metric in the log of training, without those of validation."""
    return [row[name] for row in trainer.state.log_history if name in row and "loss" in row]


def trained(make, kind=TrustRegionTrainer, **options):
    """A trainer that has trained."""
    torch.manual_seed(0)  # adapters start at random
    trainer = make(kind, **options)
    trainer.start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    return trainer


def both(make, rule=CLIP, theirs=SeededGRPOTrainer, ours=TrustRegionTrainer, **options):
    """TRL's trainer and ours, trained with the same options; a rule is for ours alone."""
    return trained(make, theirs, **options), trained(make, ours, **options, **rule)


def response_logits(model, batch):
    """The logits of a model at the response tokens of a batch, [B, T, V]."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention, position_ids=positions).logits
    return logits[:, -batch["completion_ids"].shape[1] - 1 : -1]


def moved(trainer):
    """The largest change of a parameter since the start of training."""
    parameters = dict(trainer.model.named_parameters())
    return max((parameters[name] - start).abs().max().item() for name, start in trainer.start.items())


def words(text):
    return set(text.split())


BY_TRL = words("""
    bf16 cache_implementation chat_template_kwargs disable_dropout ds3_gather_for_generation
    generation_batch_size gradient_checkpointing learning_rate log_completions log_completions_hub_repo
    log_multimodal log_unique_prompts logging_steps lr_scheduler_kwargs mask_truncated_completions
    max_completion_length max_tool_calling_iterations model_init_kwargs num_completions_to_print
    num_generations num_generations_eval pad_to_multiple_of ref_model_mixup_alpha ref_model_sync_steps
    remove_unused_columns reward_weights shuffle_dataset steps_per_generation sync_ref_model
    torch_empty_cache_steps transformers_continuous_batching_config trust_remote_code
    use_transformers_continuous_batching use_transformers_paged use_vllm vllm_enable_sleep_mode
    vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_mode vllm_max_model_length vllm_mode
    vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
    vllm_tensor_parallel_size
""")
"""Options that TRL's code implements, which is not replaced here."""
BY_US = words("""
    beta cast_lm_head_to_fp32 entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
    num_iterations off_policy_mask_threshold router_aux_loss_coef temperature top_entropy_quantile
    use_adaptive_entropy use_bias_correction_kl vllm_importance_sampling_correction
""")
"""Options that the loss here implements as in TRL, for every trust region."""
CONDITIONAL = words("""
    generation_kwargs importance_sampling_level loss_type min_p multi_objective_aggregation repetition_penalty
    scale_rewards top_k top_p use_liger_kernel vllm_structured_outputs_regex
""")
"""Options that are only valid under a condition, see `troll.training.trl_options.check_options`."""
SAMPLES_ALIKE = words("""
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind
    bos_token_id cache_config cache_implementation compile_config continuous_batching_config
    decoder_start_token_id disable_compile early_stopping eos_token_id is_assistant length_penalty low_memory
    max_cache_len max_length max_matching_ngram_size max_new_tokens max_time num_assistant_tokens
    num_assistant_tokens_schedule num_return_sequences output_attentions output_hidden_states output_logits
    output_scores pad_token_id prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values
    renormalize_logits return_dict_in_generate speculation_type stop_strings target_lookbehind
    transformers_version use_cache use_mtp
""")
"""Fields of `GenerationConfig` that leave the sampling distribution as it is."""
