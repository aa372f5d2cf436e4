"""Supervised training on demonstrations: what makes a base model, from random or from pretrained weights."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from troll.common.errors import UserError
from troll.common.files import read_json, write_json
from troll.common.gpus import without_cudnn_attention
from troll.common.progress import say
from troll.common.seeding import derive_seed
from troll.experiment.model_settings import SupervisedSteps
from troll.tasks.prompts import as_chat, encode, end_ids, wants_chat
from troll.tasks.types import Demonstration
from troll.training.callbacks import ProgressCallback
from troll.training.checkpoints import CheckpointCallback, expect_tied_weights, step_of
from troll.training.pretraining import IGNORED

Row = dict[str, list[int]]

_BETA2 = 0.99  # few steps: a shorter memory than AdamW's 0.999
# Tokens, padding included, that a pretrained model learns from at a time: they decide what memory it takes.
_TOKENS_ON_CPU, _TOKENS_ON_GPU = 1024, 16384
_LAST = 10
_SKIPPED_IN_A_ROW = 3
_CHECKPOINTS = 6
"""Checkpoints on the way of a pretrained model, whose steps take seconds each."""


class SkipNonFiniteGradients(TrainerCallback):
    """Leaves out optimiser steps with a NaN or infinite gradient, which would make every weight NaN.

    verl's actor leaves such a step out, too. The schedule of the learning rate moves on. Each checkpoint
    keeps how many were left out, and the seconds of training so far, which the Trainer's own files lack.
    """

    FILE = "supervised.json"

    def __init__(self, run_id: str) -> None:
        self._run_id, self._begun = run_id, time.monotonic()
        self._in_a_row = self.skipped = 0
        self.earlier_s = 0.0

    def resume(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint of an earlier process."""
        earlier = read_json(checkpoint / self.FILE)
        self.earlier_s, self.skipped = earlier["wall_s"], earlier["skipped_steps"]

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Drops gradients that are not finite; refuses the third such step in a row."""
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        if all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self.skipped += 1
        step = state.global_step + 1
        if self._in_a_row >= _SKIPPED_IN_A_ROW:
            first = step - self._in_a_row + 1
            raise UserError(
                f"{self._run_id}: the gradients of supervised steps {first} to {step} are not finite; "
                "lower supervised.learning_rate, or raise supervised.batch_size"
            )
        say(f"[train] {self._run_id}: supervised step {step}: skipped, its gradient is not finite")
        model.zero_grad(set_to_none=True)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Adds its file to the checkpoint."""
        directory = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        wall_s = self.earlier_s + time.monotonic() - self._begun
        write_json(directory / self.FILE, {"wall_s": wall_s, "skipped_steps": self.skipped})


def rows_of(
    tokenizer: Any,
    demonstrations: Sequence[Demonstration],
    generation_config: Any = None,
    thinking: str = "off",
) -> list[Row]:
    """Token ids with labels on completion and end only; prompt and completion split as in sampling.

    With a chat template, prompts are chats as in rollouts and evaluation; the model's ``generation_config``
    may name the end of a turn. For ``thinking`` see `troll.tasks.prompts.template_arguments`.
    """
    prompts = encode(tokenizer, [item.prompt for item in demonstrations], thinking=thinking)
    completions = tokenizer([item.completion for item in demonstrations], add_special_tokens=False).input_ids
    end = end_of_response(tokenizer, generation_config)
    rows = []
    for prompt, completion in zip(prompts, completions, strict=True):
        answer = [*completion, end]
        rows.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
    return rows


def end_of_response(tokenizer: Any, generation_config: Any = None) -> int:
    """The token that ends a response: in a chat the one that its template writes, if sampling ends there.

    A base model's tokenizer may end texts at another token than the template of its chats ends a turn.
    """
    if not wants_chat(tokenizer, "auto"):
        return int(tokenizer.eos_token_id)
    words = "Yes."
    turns = [*as_chat("Is it?"), {"role": "assistant", "content": words}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, enable_thinking=False)
    after = tokenizer(text.rpartition(words)[2], add_special_tokens=False).input_ids
    ends = end_ids(tokenizer, generation_config) if generation_config else [tokenizer.eos_token_id]
    return int(after[0] if after and after[0] in ends else tokenizer.eos_token_id)


def micro_batches(rows: Sequence[Row], batch_size: int, tokens: int) -> int:
    """Into how many equal parts a batch is cut, so that none has more than ``tokens``, padding included."""
    longest = max(len(row["input_ids"]) for row in rows)
    parts = (count for count in range(1, batch_size + 1) if batch_size % count == 0)
    return next((count for count in parts if batch_size // count * longest <= tokens), batch_size)


def train_supervised(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[Row],
    settings: SupervisedSteps,
    *,
    seed: int,
    out: Path,
    run_id: str,
    pretrained: bool = False,
    identity: str = "",
    bfloat16: bool = False,
) -> dict[str, float]:
    """Trains a model with float32 weights in place, on `rows_of` demonstrations.

    A pretrained model learns as reinforcement learning does: in bfloat16 with checkpointed gradients on a
    GPU, in float32 on a CPU, or there too in bfloat16 if ``bfloat16`` is set. Its batches are cut so that
    memory stays bounded, and its interrupted training resumes from the newest checkpoint in ``out`` that has
    the same ``identity``, a digest of all that decides the weights. The learning rate rises for a twentieth
    of the steps and then falls as a cosine.

    Returns:
        ``wall_s``: seconds; ``final_loss``: mean of all steps, nats per token; ``last_loss``: of the last 10
        that were logged; ``skipped_steps``: those left out because of their gradient, if there are any.
    """
    on_gpu = torch.cuda.is_available()
    without_cudnn_attention()
    parts, cached = 1, getattr(model.config, "use_cache", None)
    if pretrained:
        parts = micro_batches(rows, settings.batch_size, _TOKENS_ON_GPU if on_gpu else _TOKENS_ON_CPU)
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size // parts,
        gradient_accumulation_steps=parts,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta2=_BETA2,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, settings.steps // 20),
        max_grad_norm=1.0,
        seed=seed,
        data_seed=derive_seed(stream="base-order", seed=seed) % 2**32,
        logging_steps=1 if pretrained else 10,  # a step of a large model takes seconds
        save_strategy="steps" if pretrained else "no",
        save_steps=max(1, settings.steps // _CHECKPOINTS),
        report_to="none",
        disable_tqdm=True,
        use_cpu=not on_gpu,
        dataloader_pin_memory=False,
        bf16=pretrained and (on_gpu or bfloat16),
        gradient_checkpointing=pretrained and on_gpu,
    )
    # Of several GPUs the Trainer would take all, with a batch each.
    arguments._n_gpu = min(1, arguments.n_gpu)
    skip, checkpoints = SkipNonFiniteGradients(run_id), CheckpointCallback(identity, keep=1)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=list(rows),
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
        callbacks=[ProgressCallback(run_id, measure="loss", label="loss"), skip, checkpoints],
    )
    newest = checkpoints.newest(out) if pretrained else None
    if newest is not None:
        say(f"[train] {run_id}: resumes after step {step_of(newest)}")
        skip.resume(newest)
        expect_tied_weights(model)
    result = trainer.train(resume_from_checkpoint=str(newest) if newest is not None else None)
    if pretrained:
        model.config.use_cache = cached  # the Trainer switches it off, and what is saved would say so
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    mean_loss, last = result.metrics["train_loss"], losses[-_LAST:]
    if newest is not None:  # transformers sums the losses of this attempt alone
        mean_loss = sum(losses) / len(losses)
    return {
        "wall_s": skip.earlier_s + result.metrics["train_runtime"],
        "final_loss": mean_loss,
        "last_loss": sum(last) / len(last) if last else mean_loss,
        **({"skipped_steps": skip.skipped} if skip.skipped else {}),
    }
