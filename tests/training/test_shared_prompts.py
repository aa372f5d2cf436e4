"""A prompt that is computed once for its group gives what separate rows give, in groups that stay whole."""

import dataclasses

import pytest
import torch
from refusals import refused
from trainer_cases import PROMPTS, digits, parameters
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from troll.experiment.settings import Training
from troll.training import head, shared_prompts
from troll.training.batches import loss_mask
from troll.training.head import add_sparse_lm_head
from troll.training.order import OrderedTrainer
from troll.training.shared_prompts import pack, prompt_groups, shared_parts_within, whole_groups
from troll.training.trainer import TrustRegionTrainer

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
# (tokens of the prompt, tokens of each of its responses); 0: empty, or masked because it was cut.
GROUPS = [(7, [5, 1, 6, 3]), (3, [4]), (9, [0, 2, 6, 0]), (1, [0]), (4, [3, 3])]


def rows(groups=GROUPS, seed=0):
    """Token ids, attention mask and loss mask of groups: padded prompts, responses with output of tools."""
    generator = torch.Generator().manual_seed(seed)
    widest = max(prompt for prompt, _ in groups)
    length = max(max(responses) for _, responses in groups)
    ids, attention = [], []
    for prompt, responses in groups:
        text = torch.randint(1, 97, (prompt,), generator=generator)
        for response in responses:
            row = torch.randint(1, 97, (widest + length,), generator=generator)  # padding is not zero, either
            row[widest - prompt : widest] = text
            place = torch.arange(widest + length)
            ids.append(row)
            attention.append(((place >= widest - prompt) & (place < widest + response)).long())
    ids, attention = torch.stack(ids), torch.stack(attention)
    mask = attention[:, -length:] * (torch.rand(len(ids), length, generator=generator) > 0.3)
    return ids, attention, mask


def models(family, attention="sdpa"):
    """The same random model twice, with the head for separate rows and for shared prompts.

    In float64, except for what transformers computes in float32: norms, rotations, and eager softmax, which
    makes a padded row of float64 not a number.
    """
    dtype = torch.float64 if attention == "sdpa" else torch.float32
    for share in (False, True):
        torch.manual_seed(1)
        config = FAMILIES[family](**SIZES, attn_implementation=attention)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)  # so that attention is far from uniform
        add_sparse_lm_head(model, 0.7, share_prompts=share)
        yield model


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_distributions_and_gradients_are_those_of_separate_rows(family, attention):
    ids, mask_2d, mask = rows()
    separate, shared = models(family, attention)
    positions = {  # from a prompt's first token, too, because rotations are rounded
        "position_ids": (mask_2d.cumsum(1) - 1).clamp(min=0)
    }
    scored, trained = [], []
    for model, more in ((separate, positions), (shared, {})):
        inputs = {"input_ids": ids, "attention_mask": mask_2d, "mask": mask, "sparse_lm_head": True, **more}
        with torch.no_grad():
            scored.append(model(**inputs, support_size=12, dropped_mass=1e-3))
        output = model(**inputs, support=scored[0].token_ids.long())
        weights = torch.sin(torch.arange(output.log_probs.numel(), dtype=torch.float64)).view(mask.shape)
        loss = (weights * (output.log_probs + output.entropy + output.tail_log_prob)).sum()
        loss = loss + output.support_log_probs.where(scored[0].token_ids >= 0, 0.0).square().sum()
        loss.backward()
        trained.append([loss, *(parameter.grad for parameter in model.parameters())])
    assert scored[0].log_probs[mask.bool()].min() < -5  # nothing trivial is compared
    for name in ("log_probs", "entropy", "token_ids", "support_log_probs", "tail_log_prob"):
        torch.testing.assert_close(scored[1][name], scored[0][name], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(trained[1], trained[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.detach().abs().max().item())


def test_a_pass_has_each_prompt_once_and_no_last_token():
    ids, attention, _ = rows()
    packed = pack(ids, attention, 6)
    assert prompt_groups(ids[:, :9], attention[:, :9]).tolist() == [0] * 4 + [1] + [2] * 4 + [3] + [4] * 2
    assert packed.input_ids.shape == (5, 7 + 4 + 0 + 5 + 2)
    # The third response of the first group: its second token continues the prompt, and sees nothing else.
    place = int(packed.places[2, 2])
    seen = packed.allowed[0, 0, place].nonzero().squeeze(1).tolist()
    assert seen == [*range(7), place - 1, place] and packed.position_ids[0, place] == 8
    assert packed.input_ids[0, seen].tolist() == [*ids[2, 2:9].tolist(), *ids[2, 9:11].tolist()]


def test_a_mistake_in_the_mask_is_found_before_training(monkeypatch):
    _, model = models("qwen3")
    ids, attention, mask = rows([(3, [4, 2, 5]), (7, [5, 1])])

    def siblings(*batch):
        found = pack(*batch)
        width = found.input_ids.shape[1]
        everything = torch.ones(width, width, dtype=torch.bool).tril().expand_as(found.allowed)
        return dataclasses.replace(found, allowed=everything)

    monkeypatch.setattr(shared_prompts, "pack", siblings)
    with refused("model_type 'qwen3'", "nats"):
        model(input_ids=ids, attention_mask=attention, mask=mask, sparse_lm_head=True)


def test_parts_are_of_whole_groups_and_count_a_prompt_once(make):
    ids, attention, mask = rows()
    batch = {
        "prompt_ids": ids[:, :9],
        "prompt_mask": attention[:, :9],
        "completion_ids": ids[:, 9:],
        "completion_mask": attention[:, 9:],
        "tool_mask": mask,
        "number": torch.arange(len(ids)),
    }
    accelerator = make(TrustRegionTrainer).accelerator
    for budget, expected in [(1, 5), (22, 4), (44, 2), (1000, 1)]:
        parts = shared_parts_within(batch, budget, accelerator)
        assert sorted(torch.cat([part["number"] for part in parts]).tolist()) == list(range(12))
        assert len(parts) == expected
        held = [prompt_groups(batch["prompt_ids"], batch["prompt_mask"])[part["number"]] for part in parts]
        assert sum(len(set(one.tolist())) for one in held) == 5, "a group is in two parts"


def test_groups_become_whole_in_an_order_as_random_as_that_of_the_rows():
    group = torch.tensor([2, 0, 1, 2, 1, 0, 2, 2, 0, 1, 0, 1])
    batch = {"group": group, "row": torch.arange(12), "name": list("abcdefghijkl"), "count": torch.tensor(7)}
    cut = [
        {key: value if key == "count" else value[start : start + 4] for key, value in batch.items()}
        for start in (0, 4, 8)
    ]
    parts = whole_groups(cut)
    assert [part["row"].tolist() for part in parts] == [[0, 3, 6, 7], [1, 5, 8, 10], [2, 4, 9, 11]]
    assert ["".join(part["name"]) for part in parts] == ["adgh", "bfik", "cejl"]
    assert all(part["count"] == 7 and "group" not in part for part in parts)


class Watched(TrustRegionTrainer):
    """Keeps the mini-batches, and the tokens that each pass of the backbone computes."""

    def _begin_step(self, *args):
        super()._begin_step(*args)
        vars(self).setdefault("seen", []).extend(self.step_inputs)


CASES = {
    "clip": {"trust_region": "clip"},
    "troll": {"trust_region": "troll", "estimator": "grpo"},
    "budget": {"trust_region": "troll", "micro_batch_tokens": 40},
    "reference": {"trust_region": "clip", "config": {"beta": 0.3}},
    "regulariser": {"regulariser": {"coefficient": 0.1}, "estimator": "grpo"},
    "cut": {"trust_region": "troll", "config": {"mask_truncated_completions": True}},
    "constant": {"trust_region": "troll", "tail": "constant"},
}
PLAIN = {
    "optim": "sgd",
    "learning_rate": 0.5,
    "per_device_train_batch_size": 8,
    "steps_per_generation": 2,
    "num_iterations": 2,
}


def separate_rows(backbone, ids, attention, length):
    states = backbone(input_ids=ids, attention_mask=attention, use_cache=False)
    return states.last_hidden_state[:, -length - 1 : -1]


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_separate_rows_in_the_same_order(make, guessing_base, monkeypatch, name):
    case = dict(CASES[name])
    base = guessing_base if name == "cut" else None  # some of its responses end
    config = PLAIN | case.pop("config", {})
    found = {}
    for kind in ("shared", "separate"):
        with monkeypatch.context() as patch:
            if kind == "separate":
                patch.setattr(head, "shared_states", separate_rows)
                patch.setattr("troll.training.trainer.share_in_sampling", lambda *_: None)
            tokens = []
            trainer = make(Watched, steps=8, config=config, base=base, share_prompts=True, **case)
            trainer.model.model.register_forward_pre_hook(
                lambda _, args, kwargs, to=tokens: to.append(kwargs["input_ids"].numel()), with_kwargs=True
            )
            trainer.train()
        rows = [row for row in trainer.state.log_history if "reward" in row or "kept_tokens" in row]
        found[kind] = parameters(trainer), sum(tokens), rows, trainer.seen
    (ours, fewer, logged, seen), (theirs, more, expected, _) = found["shared"], found["separate"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    assert fewer < 0.8 * more
    for row, other in zip(logged, expected, strict=True):
        same = {key for key in row if not any(part in key for part in ("time", "per_second", "epoch"))}
        assert {key: row[key] for key in same} == pytest.approx({key: other[key] for key in same}, abs=1e-3)
    for batch in seen:
        assert len(batch["prompt_ids"]) == 8 and loss_mask(batch).any()
        groups = prompt_groups(batch["prompt_ids"], batch["prompt_mask"])
        assert groups.bincount().tolist() in ([4, 4], [8])  # 8: twice the same prompt


def test_rows_are_shuffled_as_before_without_the_option(make):
    trainer = make(Watched, steps=2, config=PLAIN | {"num_iterations": 1})
    trainer.train()
    counts = [len(set(prompt_groups(b["prompt_ids"], b["prompt_mask"]).tolist())) for b in trainer.seen]
    assert max(counts) > 2
    assert "_prepare_inputs" in vars(OrderedTrainer)


@pytest.mark.parametrize("size", [1, 4])
def test_samples_are_the_same_with_prompts_computed_once(make, size):
    tokens = []
    config = {"num_generations": size} if size > 1 else {}
    trainer = make(TrustRegionTrainer, config=config, share_prompts=True)
    model, tokenizer = trainer.model, trainer.processing_class
    texts = [text for text in PROMPTS for _ in range(size)]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    samples, computed = [], []
    for generate in (type(model).generate.__get__(model), model.generate):
        tokens.clear()
        torch.manual_seed(3)
        samples.append(generate(**inputs, generation_config=trainer.generation_config))
        computed.append(sum(tokens))
    assert torch.equal(*samples)
    prompts = inputs["input_ids"].numel()
    saved = 0 if size == 1 else (prompts - len(texts)) * (1 - 1 / size)
    assert computed[0] - computed[1] == saved


def test_settings_without_whole_groups_are_one_line():
    settings = {"prompts_per_batch": 8, "responses_per_prompt": 4, "mini_batches": 16, "share_prompts": True}
    with pytest.raises(ValueError, match=r"share_prompts .*\b4 responses"):
        Training(**settings)
    assert Training(**settings | {"mini_batches": 4}).share_prompts
    assert "share_prompts" not in Training().model_dump()


def tiny(kind, **settings):
    config = kind(**SIZES | {"vocab_size": 400}, **settings)
    return {"model": AutoModelForCausalLM.from_config(config, dtype=torch.float32)}


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
REFUSED = {
    "groups": lambda: {"config": {"per_device_train_batch_size": 2, "steps_per_generation": 8}},
    "model_type 'mistral'": lambda: tiny(MistralConfig),
    "sliding": lambda: tiny(Qwen2Config, **WINDOW),
    "attention_dropout of 0.1": lambda: tiny(LlamaConfig, attention_dropout=0.1),
    "'flex_attention'": lambda: tiny(LlamaConfig, attn_implementation="flex_attention"),
    "'dynamic'": lambda: tiny(LlamaConfig, rope_parameters=DYNAMIC),
}


@pytest.mark.parametrize("fact", REFUSED)
def test_what_would_not_be_the_same_is_refused_in_one_line(make, fact):
    options = REFUSED[fact]()
    with refused("share_prompts", fact):
        make(TrustRegionTrainer, reward=digits, share_prompts=True, **options)
