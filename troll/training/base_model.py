"""Base models: the testbed's, trained from scratch on flawed demonstrations, and pretrained ones.

The testbed's have the Qwen3 architecture and are saved like any hub model, loadable by transformers, lm-eval
and vLLM.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from troll.common.digests import digest_of_json, facts_of
from troll.common.errors import UserError
from troll.common.files import read_json, write_json
from troll.common.hub import Snapshot, chat_template, link, snapshot
from troll.common.models import load_model
from troll.common.numerics import last_change
from troll.common.processor import arithmetic
from troll.common.progress import clock, say
from troll.experiment.model_settings import FromScratch
from troll.experiment.run_config import BaseConfig, HubModelOfRun, ScratchModelOfRun, WheelModelOfRun
from troll.tasks.registry import get_task
from troll.tasks.types import Demonstration
from troll.training.manifest import digest_of_path, hardware, manifest_of, uncommitted_source, versions
from troll.training.outputs import fresh_directory, save_model
from troll.training.prompts import load_policy_tokenizer
from troll.training.shared_place import Taken, take_or_make
from troll.training.supervised import rows_of, train_supervised
from troll.training.tokenizer import load_tokenizer
from troll.training.wheel_model import wheel_snapshot

_NAMES = ("name", "hub", "base_seed")
"""What of a model from scratch changes its weights by way of the seeds alone, or not at all."""
_DECIDING = ("system", "capability", "blas", "threads", "gpus")
"""What of the machine decides, beside the processor, how sums are rounded."""
_OF_THE_TRAINING = ("wall_s", "peak_gib", "final_loss")
_MADE_BY = ("git_commit", "numerics", "hardware")


def new_model(settings: FromScratch, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights from ``seed``; the tokenizer gives the ids of end and padding."""
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
    """Trains a base model into ``out``: checkpoint/ and, last, manifest.json; refuses a model of the hub."""
    task, seeds = get_task(config.task.name), config.seeds
    model = _from_scratch(config)
    supervised = model.supervised
    tokenizer = load_tokenizer(tokenizer_path)
    count = supervised.steps * supervised.batch_size
    demonstrations = task.demonstrate(count, seeds.data, config.task.settings)
    network = new_model(model, tokenizer, seeds.model)
    learnt = train_supervised(
        network,
        tokenizer,
        rows_of(tokenizer, demonstrations),
        supervised,
        seed=seeds.model,
        out=out / "trainer",
        run_id=config.run_id,
    )
    save_model(network, tokenizer, out / "checkpoint")
    write_json(
        out / "manifest.json",
        manifest_of(config, wall_s=learnt["wall_s"], data={"tokenizer": tokenizer_path})
        | {"final_loss": learnt["final_loss"], "checkpoint": facts_of(out / "checkpoint")},
    )
    shutil.rmtree(out / "trainer", ignore_errors=True)


def shared_base_model(config: BaseConfig, tokenizer_path: Path, out: Path) -> None:
    """Puts a base model where runs look for it: taken from the shared place, or trained and kept there.

    A manifest says in ``made_by`` which training the weights were taken from; its ``wall_s``, ``peak_gib``
    and ``final_loss`` are then those of that training. Rehearsals have base models of their own. ``out`` gets
    checkpoint/ and, last, manifest.json.
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
    """Everything that can change a base model's weights, as JSON has it; refuses a model of the hub.

    The experiment's name is not among it, nor are the numbers of problems: demonstrations are drawn without
    them.
    """
    return {
        "model": _from_scratch(config).model_dump(exclude=set(_NAMES)),
        "task": {"name": config.task.name, "settings": config.task.settings},
        "seeds": config.seeds.model_dump(),
        "tokenizer": digest_of_path(tokenizer_path),
        **_circumstances(),
    }


def _circumstances() -> dict[str, Any]:
    """What of source, packages and machine can change the weights that a training gives."""
    machine = hardware()
    return {
        "numerics": last_change(""),
        "uncommitted_source": uncommitted_source(),
        "versions": versions(),
        "machine": arithmetic() | {name: machine[name] for name in _DECIDING},
    }


def link_base_model(config: BaseConfig, out: Path) -> None:
    """Links a pretrained model, with its manifest, to ``out``, where runs look for their base model.

    The link leads to the hub's cache, a mirror, or the shared place, where a package's model is kept.
    Without a shared place, a package's model is made here. Refuses files that the lock file does not know.
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
        raise UserError(f"{config.run_id}: is made from scratch; `troll job base-model` makes it")


def origin(config: BaseConfig, model: Snapshot) -> dict[str, Any]:
    """What a manifest says of where a pretrained model is from."""
    if isinstance(config.model, HubModelOfRun):
        return {"hub": {**model.provenance, "chat_template_of": config.model.hub.chat_template_of}}
    return {"wheel": dict(model.provenance)}


def pretrained_base_model(config: BaseConfig, out: Path) -> None:
    """Puts a pretrained model where runs look for it: linked, or trained on demonstrations first.

    What was trained is kept in the shared place, and taken from there where all that decides is the same: see
    `shared_base_model`. Refuses a task without demonstrations.
    """
    if isinstance(config.model, ScratchModelOfRun) or config.model.supervised is None:
        link_base_model(config, out)
        return
    supervised, task = config.model.supervised, config.task
    count = supervised.steps * supervised.batch_size
    shown = get_task(task.name).demonstrate(count, config.seeds.data, task.settings)
    with pretrained(config, out) as (model, template, _):

        def make() -> dict[str, Any]:
            learnt = _learn(config, model, template, shown, out, digest_of_json(identity))
            return manifest_of(config, wall_s=learnt["wall_s"], data={}) | learnt

        identity = {
            "pretrained": model.provenance["files"],
            "chat_template": template,
            "supervised": supervised.model_dump(),
            "demonstrations": digest_of_json([[item.prompt, item.completion] for item in shown]),
            "seed": config.seeds.model,
            **_circumstances(),
        }
        manifest, taken = _made_or_taken(config, f"{task.name}-supervised", identity, out, make)
    manifest |= origin(config, model)
    write_json(out / "manifest.json", manifest | {"checkpoint": facts_of(out / "checkpoint")})
    if taken is not None:
        say(f"[base] {config.run_id}: taken from {taken.entry}, trained in {clock(taken.made['wall_s'])}")


def _made_or_taken(
    config: BaseConfig, name: str, identity: Mapping[str, Any], out: Path, make: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], Taken | None]:
    """The manifest of supervised steps that were made now, or of ones that were taken, which says whose."""
    if config.rehearsal:
        return make(), None
    made: dict[str, Any] = {}

    def remember() -> dict[str, Any]:
        made.update(make())
        return made

    taken = take_or_make(name, identity, out / "checkpoint", remember)
    if taken is None:
        return made, None
    before = taken.made
    manifest = manifest_of(config, wall_s=before["wall_s"], data={})
    manifest |= {key: before[key] for key in (*_OF_THE_TRAINING, "last_loss")}
    manifest |= {key: before[key] for key in ("skipped_steps",) if key in before}
    return manifest | {"made_by": {key: before[key] for key in _MADE_BY}}, taken


def _learn(
    config: BaseConfig,
    model: Snapshot,
    template: str | None,
    shown: Sequence[Demonstration],
    out: Path,
    identity: str,
) -> dict[str, float]:
    """Trains a pretrained model, and saves it in ``out / "checkpoint"``."""
    assert not isinstance(config.model, ScratchModelOfRun) and config.model.supervised is not None
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".supervised.") as name:
        start = Path(name, "start")
        start.mkdir()
        link(model, start, template)
        tokenizer = load_policy_tokenizer(start)
        network = load_model(start, dtype=torch.float32)
        rows = rows_of(tokenizer, shown, network.generation_config)
        learnt = train_supervised(
            network,
            tokenizer,
            rows,
            config.model.supervised,
            seed=config.seeds.model,
            out=out / "trainer",
            run_id=config.run_id,
            pretrained=True,
            identity=identity,
        )
        save_model(network, tokenizer, out / "checkpoint")
    shutil.rmtree(out / "trainer", ignore_errors=True)
    return learnt


def _from_scratch(config: BaseConfig) -> ScratchModelOfRun:
    if not isinstance(config.model, ScratchModelOfRun):
        kind = "a model of the hub" if isinstance(config.model, HubModelOfRun) else "a model from a wheel"
        raise UserError(f"{config.run_id}: is {kind}; `troll job hub-model` links it")
    return config.model
