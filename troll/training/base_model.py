"""Base models: the testbed's, trained from scratch on flawed demonstrations, and pretrained ones.

The testbed's have the Qwen3 architecture and are saved like any hub model, loadable by transformers, lm-eval
and vLLM.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Trainer,
    TrainingArguments,
)

from troll.common.digests import facts_of
from troll.common.errors import UserError
from troll.common.files import read_json, write_json
from troll.common.hub import Snapshot, chat_template, link, snapshot
from troll.common.numerics import last_change
from troll.common.processor import arithmetic
from troll.common.progress import clock, say
from troll.common.seeding import derive_seed
from troll.experiment.run_config import BaseConfig, HubModelOfRun, ScratchModelOfRun, WheelModelOfRun
from troll.experiment.settings import FromScratch
from troll.tasks.registry import get_task
from troll.tasks.types import Demonstration
from troll.training.callbacks import ProgressCallback
from troll.training.manifest import digest_of_path, hardware, manifest_of, uncommitted_source, versions
from troll.training.outputs import fresh_directory, save_model
from troll.training.pretraining import IGNORED
from troll.training.shared_place import take_or_make
from troll.training.tokenizer import load_tokenizer
from troll.training.wheel_model import wheel_snapshot

_BETA2 = 0.99  # few steps: a shorter memory than AdamW's 0.999
_NAMES = ("name", "hub", "base_seed")
"""What of a model from scratch changes its weights by way of the seeds alone, or not at all."""
_DECIDING = ("system", "capability", "blas", "threads", "gpus")
"""What of the machine decides, beside the processor, how sums are rounded."""
_OF_THE_TRAINING = ("wall_s", "peak_gib", "final_loss")
_MADE_BY = ("git_commit", "numerics", "hardware")


def encode(
    tokenizer: PreTrainedTokenizerFast, demonstrations: Sequence[Demonstration]
) -> list[dict[str, list[int]]]:
    """Token ids with labels on completion and end only; prompt and completion split as in sampling."""
    prompts = tokenizer([item.prompt for item in demonstrations], add_special_tokens=False).input_ids
    completions = tokenizer([item.completion for item in demonstrations], add_special_tokens=False).input_ids
    rows = []
    for prompt, completion in zip(prompts, completions, strict=True):
        answer = [*completion, tokenizer.eos_token_id]
        rows.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
    return rows


def new_model(settings: FromScratch, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights.

    Args:
        settings: see `troll.experiment.settings.FromScratch`.
        tokenizer: gives the ids of end and padding.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=settings.vocabulary,
        hidden_size=settings.width,
        intermediate_size=3 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        head_dim=settings.head_width,
        max_position_embeddings=settings.context,
        initializer_range=settings.initializer_range,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    # Transformers' defaults cut the distribution (top_k = 50); a policy is sampled from whole.
    model.generation_config.update(do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    return model


def train_base_model(config: BaseConfig, tokenizer_path: Path, out: Path) -> None:
    """Trains a base model and saves it with its manifest.

    Args:
        config: what `troll.experiment.experiment.resolve_base` gives.
        tokenizer_path: the experiment's tokenizer.
        out: directory; gets checkpoint/ and, last, manifest.json.

    Raises:
        UserError: it is a model of the hub.
    """
    task, seeds = get_task(config.task.name), config.seeds
    model = _from_scratch(config)
    supervised = model.supervised
    tokenizer = load_tokenizer(tokenizer_path)
    count = supervised.steps * supervised.batch_size
    demonstrations = task.demonstrate(count, seeds.data, config.task.settings)
    arguments = TrainingArguments(
        output_dir=str(out / "trainer"),
        max_steps=supervised.steps,
        per_device_train_batch_size=supervised.batch_size,
        learning_rate=supervised.learning_rate,
        weight_decay=supervised.weight_decay,
        adam_beta2=_BETA2,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, supervised.steps // 20),
        max_grad_norm=1.0,
        seed=seeds.model,
        data_seed=derive_seed(stream="base-order", seed=seeds.model) % 2**32,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=new_model(model, tokenizer, seeds.model),
        args=arguments,
        train_dataset=encode(tokenizer, demonstrations),
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
        callbacks=[ProgressCallback(config.run_id, measure="loss", label="loss")],
    )
    result = trainer.train()
    save_model(trainer.model, tokenizer, out / "checkpoint")
    write_json(
        out / "manifest.json",
        manifest_of(config, wall_s=result.metrics["train_runtime"], data={"tokenizer": tokenizer_path})
        | {"final_loss": result.metrics["train_loss"], "checkpoint": facts_of(out / "checkpoint")},
    )
    shutil.rmtree(out / "trainer", ignore_errors=True)


def shared_base_model(config: BaseConfig, tokenizer_path: Path, out: Path) -> None:
    """Puts a base model where runs look for it: taken from the shared place, or trained and kept there.

    A manifest says in ``made_by`` which training the weights were taken from; its ``wall_s``, ``peak_gib``
    and ``final_loss`` are then those of that training. Rehearsals have base models of their own.

    Args:
        config: what `troll.experiment.experiment.resolve_base` gives.
        tokenizer_path: the experiment's tokenizer.
        out: directory; gets checkpoint/ and, last, manifest.json.

    Raises:
        UserError: it is a model of the hub, or see `troll.training.shared_place.shared_place`.
    """

    def make() -> dict[str, Any]:
        train_base_model(config, tokenizer_path, out)
        return dict(read_json(out / "manifest.json"))

    if config.rehearsal:
        make()
        return
    identity = identity_of(config, tokenizer_path)
    taken = take_or_make(config.task.name, identity, out / "checkpoint", make)
    if taken is None:
        return
    made = taken.made
    manifest = manifest_of(config, wall_s=made["wall_s"], data={"tokenizer": tokenizer_path})
    manifest |= {name: made[name] for name in _OF_THE_TRAINING}
    manifest |= {"checkpoint": facts_of(out / "checkpoint")}
    write_json(out / "manifest.json", manifest | {"made_by": {name: made[name] for name in _MADE_BY}})
    say(f"[base] {config.run_id}: taken from {taken.entry}, trained in {clock(made['wall_s'])}")


def identity_of(config: BaseConfig, tokenizer_path: Path) -> Mapping[str, Any]:
    """Everything that can change a base model's weights, as JSON has it.

    The experiment's name is not among it, nor are the numbers of problems: demonstrations are drawn without
    them.

    Args:
        config: of a model from scratch.
        tokenizer_path: the experiment's tokenizer.

    Raises:
        UserError: it is a model of the hub.
    """
    machine = hardware()
    return {
        "model": _from_scratch(config).model_dump(exclude=set(_NAMES)),
        "task": {"name": config.task.name, "settings": config.task.settings},
        "seeds": config.seeds.model_dump(),
        "tokenizer": digest_of_path(tokenizer_path),
        "numerics": last_change(""),
        "uncommitted_source": uncommitted_source(),
        "versions": versions(),
        "machine": arithmetic() | {name: machine[name] for name in _DECIDING},
    }


def link_base_model(config: BaseConfig, out: Path) -> None:
    """Puts a pretrained model where runs look for their base model, with its manifest.

    It is linked: to the hub's cache or a mirror, or to the shared place, where a package's model is kept.
    Without a shared place, a package's model is made here.

    Args:
        config: what `troll.experiment.experiment.resolve_base` gives.
        out: directory; gets checkpoint/ and, last, manifest.json.

    Raises:
        UserError: the model cannot be had, or is not what the lock file says.
    """
    with (
        pretrained(config, out) as (model, template, stays),
        fresh_directory(out / "checkpoint") as directory,
    ):
        if stays:
            link(model, directory, template)
        else:
            for name, path in model.files.items():
                shutil.move(path, directory / name)
    manifest = manifest_of(config, wall_s=0.0, data={}) | origin(config, model)
    write_json(out / "manifest.json", manifest | {"checkpoint": facts_of(out / "checkpoint")})


@contextmanager
def pretrained(config: BaseConfig, beside: Path) -> Iterator[tuple[Snapshot, str | None, bool]]:
    """The files of a pretrained model.

    Args:
        config: of the base model.
        beside: see `troll.training.wheel_model.wheel_snapshot`.

    Yields:
        The files, another model's chat template that takes the place of its own, and whether the files stay
        where they are.

    Raises:
        UserError: it is made from scratch, or cannot be had, or is not what the lock file says.
    """
    model = config.model
    if isinstance(model, WheelModelOfRun):
        with wheel_snapshot(model.wheel, beside) as (files, stays):
            yield files, None, stays
    elif isinstance(model, HubModelOfRun):
        other = model.hub.chat_template_of
        template = chat_template(other) if other is not None else None
        yield snapshot(model.hub.id), template, True
    else:
        raise UserError(f"{config.run_id}: is made from scratch; `troll base-model` makes it")


def origin(config: BaseConfig, model: Snapshot) -> dict[str, Any]:
    """What a manifest says of where a pretrained model is from."""
    if isinstance(config.model, HubModelOfRun):
        return {"hub": {**model.provenance, "chat_template_of": config.model.hub.chat_template_of}}
    return {"wheel": dict(model.provenance)}


def _from_scratch(config: BaseConfig) -> ScratchModelOfRun:
    if not isinstance(config.model, ScratchModelOfRun):
        kind = "a model of the hub" if isinstance(config.model, HubModelOfRun) else "a model from a wheel"
        raise UserError(f"{config.run_id}: is {kind}; `troll hub-model` links it")
    return config.model
