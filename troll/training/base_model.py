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

from troll.common.adapters import adapter_files, digest_of_tensors, merge_adapter
from troll.common.digests import digest_of_json, facts_of
from troll.common.errors import UserError
from troll.common.files import fresh_directory, write_json
from troll.common.hub import Snapshot, chat_template, link, snapshot
from troll.common.models import in_bfloat16, load_model
from troll.common.numerics import last_change
from troll.common.processor import arithmetic
from troll.common.progress import clock, say
from troll.experiment.model_settings import Adapter, FromScratch, SupervisedSteps
from troll.experiment.run_config import (
    BaseConfig,
    Pretrained,
    ScratchModelOfRun,
)
from troll.tasks.registry import get_task
from troll.tasks.types import Demonstration
from troll.training.manifest import digest_of_path, hardware, manifest_of, uncommitted_source, versions
from troll.training.model_cache import cached, take_or_make
from troll.training.outputs import save_model
from troll.training.precision import precision_of
from troll.training.prompts import load_policy_tokenizer
from troll.training.supervised import Row, rows_of, train_supervised
from troll.training.tokenizer import load_tokenizer
from troll.training.wheel_model import wheel_snapshot

_NAMES = ("name", "hub", "base_seed")
"""Keys of a model from scratch that are not part of the cache identity."""
_DECIDING = ("system", "capability", "blas", "threads", "gpus")
"""Facts of the machine that affect rounding, beside the processor."""
_OF_THE_TRAINING = ("wall_s", "peak_gib", "final_loss", "last_loss", "skipped_steps")
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


def train_base_model(config: BaseConfig, tokenizer_path: Path, out: Path) -> dict[str, Any]:
    """Trains a base model into ``out``: checkpoint/ and, last, manifest.json; refuses a model of the hub.

    Returns what the manifest says.
    """
    model, tokenizer = _from_scratch(config), load_tokenizer(tokenizer_path)
    rows = rows_of(tokenizer, _demonstrations(config, model.supervised))
    network = new_model(model, tokenizer, config.seeds.model)
    data = {"tokenizer": tokenizer_path}
    return _supervise(config, network, tokenizer, rows, model.supervised, out, data, {}, None)


def shared_base_model(config: BaseConfig, tokenizer_path: Path, out: Path) -> None:
    """Puts a base model where runs look for it: taken from the model cache, or trained and kept there.

    A manifest says in ``made_by`` which training the weights were taken from; its ``wall_s``, ``peak_gib``
    and ``final_loss`` are then those of that training. Rehearsals have base models of their own. ``out`` gets
    checkpoint/ and, last, manifest.json.
    """

    def make() -> dict[str, Any]:
        return train_base_model(config, tokenizer_path, out)

    identity, data = identity_of(config, tokenizer_path), {"tokenizer": tokenizer_path}
    _take_or_make(config, config.task.name, identity, out, make, data, {})


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
        **circumstances(),
    }


def circumstances() -> dict[str, Any]:
    """Returns the facts of source, packages and machine that can change trained weights."""
    machine = hardware()
    return {
        "numerics": last_change(""),
        "uncommitted_source": uncommitted_source(),
        "versions": versions(),
        "machine": arithmetic() | {name: machine[name] for name in _DECIDING},
    }


def link_base_model(config: BaseConfig, out: Path) -> None:
    """Links a pretrained model, with its manifest, to ``out``, where runs look for their base model.

    The link leads to the hub's cache, a mirror, or the model cache, where a package's model is kept.
    Without a model cache, a package's model is made here. Refuses files that the lock file does not know.
    """
    with scratch_in(out) as scratch, fresh_directory(out / "checkpoint") as directory:
        model, template = pretrained(config, scratch)
        measured = precision_of(model.files)
        link(model, directory, template)
        for path in list(directory.iterdir()):
            if (made := path.resolve()).is_relative_to(scratch):
                made.replace(path)
    manifest = manifest_of(config, wall_s=0.0, data={}) | origin(config, model) | measured
    write_json(out / "manifest.json", manifest | {"checkpoint": facts_of(out / "checkpoint")})


@contextmanager
def scratch_in(out: Path) -> Iterator[Path]:
    """A temporary directory inside ``out``, for the files of a model for which there is no model cache."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".pretrained.") as directory:
        yield Path(directory).resolve()


def pretrained(config: BaseConfig, scratch: Path) -> tuple[Snapshot, str | None]:
    """Returns the files of a pretrained model, and another model's chat template if that replaces its own.

    Args:
        config: the base model.
        scratch: see `scratch_in`.

    Raises:
        UserError: the model is made from scratch, cannot be downloaded, or is not the one in the lock file.
    """
    model = config.model
    if isinstance(model, ScratchModelOfRun):
        raise UserError(f"{config.run_id}: is made from scratch; `troll job base-model` makes it")
    other = model.hub.chat_template_of if model.hub is not None else None
    files = adapted(pretrained_source(model, scratch), model.adapter, scratch)
    return files, chat_template(other) if other is not None else None


def pretrained_source(model: Pretrained, scratch: Path) -> Snapshot:
    """Returns the files of a model of the hub or from a wheel; see `pretrained`."""
    if model.wheel is not None:
        return wheel_snapshot(model.wheel, scratch)
    assert model.hub is not None
    return snapshot(model.hub.id)


def adapted(model: Snapshot, adapter: Adapter | None, scratch: Path) -> Snapshot:
    """Returns the files of a model with an adapter merged into its weights; without an adapter, the model.

    The model cache keeps the merged weights; without a cache they are in ``scratch``.

    Raises:
        UserError: the adapter cannot be merged, or the merged weights are not those that the experiment file
            names.
    """
    if adapter is None:
        return model
    directory = Path(adapter.directory)
    identity = {
        "model": model.provenance["files"],
        "adapter": {name: digest_of_path(directory / name) for name in adapter_files(directory)},
        "merged": adapter.sha256,
    }

    def make(out: Path) -> dict[str, Any]:
        for name, path in model.files.items():
            if not name.endswith(".safetensors"):
                shutil.copyfile(path, out / name)
        say(f"[base] {model.id}: merges {directory}")
        merge_adapter(directory, model.files, out)
        found = digest_of_tensors(out.glob("*.safetensors"))
        if found != adapter.sha256:
            raise UserError(
                f"{directory}: merged into {model.id} it gives weights with sha256 {found}, but the "
                f"experiment file says {adapter.sha256}; the adapter belongs to other weights"
            )
        return {"files": facts_of(out)}

    entry = cached(f"adapted-{directory.parent.name}-{directory.name}", identity, make)
    files = scratch / "adapted" if entry is None else entry.files
    if entry is None:
        files.mkdir()
    made = make(files) if entry is None else entry.made
    provenance = {**model.provenance, "files": made["files"], "adapter": identity["adapter"]}
    return Snapshot(model.id, {name: (files / name).resolve() for name in made["files"]}, provenance)


def origin(config: BaseConfig, model: Snapshot) -> dict[str, Any]:
    """Returns the manifest entry of a pretrained model's source."""
    if config.model.hub is not None:
        return {"hub": {**model.provenance, "chat_template_of": config.model.hub.chat_template_of}}
    return {"wheel": dict(model.provenance)}


def pretrained_base_model(config: BaseConfig, out: Path) -> None:
    """Puts a pretrained model where runs look for it: linked, or trained on demonstrations first.

    What was trained is kept in the model cache, and taken from there where all that decides is the same: see
    `shared_base_model`. Refuses a task without demonstrations.
    """
    if isinstance(config.model, ScratchModelOfRun) or config.model.supervised is None:
        link_base_model(config, out)
        return
    supervised, name = config.model.supervised, f"{config.task.name}-supervised"
    shown = _demonstrations(config, supervised)
    with scratch_in(out) as scratch:
        model, template = pretrained(config, scratch)
        identity = {
            "pretrained": model.provenance["files"],
            "chat_template": template,
            "supervised": supervised.model_dump(),
            "demonstrations": digest_of_json([[item.prompt, item.completion] for item in shown]),
            "seed": config.seeds.model,
            **config.model_dump(include={"thinking"}),
            **circumstances(),
        }
        source = origin(config, model) | precision_of(model.files)
        if in_bfloat16(source):
            identity["bfloat16"] = True

        def make() -> dict[str, Any]:
            start = scratch / "start"
            start.mkdir()
            link(model, start, template)
            tokenizer, network = load_policy_tokenizer(start), load_model(start, dtype=torch.float32)
            rows = rows_of(tokenizer, shown, network.generation_config, config.thinking)
            key = digest_of_json(identity)
            return _supervise(config, network, tokenizer, rows, supervised, out, {}, source, key)

        _take_or_make(config, name, identity, out, make, {}, source)


def _demonstrations(config: BaseConfig, supervised: SupervisedSteps) -> Sequence[Demonstration]:
    count = supervised.steps * supervised.batch_size
    return get_task(config.task.name).demonstrate(count, config.seeds.data, config.task.settings)


def _supervise(
    config: BaseConfig,
    network: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    supervised: SupervisedSteps,
    out: Path,
    data: Mapping[str, Path],
    source: Mapping[str, Any],
    identity: str | None,
) -> dict[str, Any]:
    """Trains a model, from scratch without an ``identity``; writes checkpoint/ and, last, manifest.json."""
    learnt = train_supervised(
        network,
        tokenizer,
        rows,
        supervised,
        seed=config.seeds.model,
        out=out / "trainer",
        run_id=config.run_id,
        pretrained=identity is not None,
        identity=identity or "",
        bfloat16=in_bfloat16(source),
    )
    save_model(network, tokenizer, out / "checkpoint")
    said = learnt if identity is not None else {"final_loss": learnt["final_loss"]}
    manifest = manifest_of(config, wall_s=learnt["wall_s"], data=data) | said | dict(source)
    manifest["checkpoint"] = facts_of(out / "checkpoint")
    write_json(out / "manifest.json", manifest)
    shutil.rmtree(out / "trainer", ignore_errors=True)
    return manifest


def _take_or_make(
    config: BaseConfig,
    name: str,
    identity: Mapping[str, Any],
    out: Path,
    make: Callable[[], dict[str, Any]],
    data: Mapping[str, Path],
    source: Mapping[str, Any],
) -> None:
    """Has `_supervise` make a model, or takes one from the model cache; its manifest says whose."""
    if config.rehearsal:
        make()
        return
    taken = take_or_make(name, identity, out / "checkpoint", make)
    if taken is None:
        return
    made = taken.made
    manifest = manifest_of(config, wall_s=made["wall_s"], data=data)
    manifest |= {key: made[key] for key in _OF_THE_TRAINING if key in made}
    manifest |= {"made_by": {key: made[key] for key in _MADE_BY}, **source}
    write_json(out / "manifest.json", manifest | {"checkpoint": facts_of(out / "checkpoint")})
    say(f"[base] {config.run_id}: taken from {taken.path}, trained in {clock(made['wall_s'])}")


def _from_scratch(config: BaseConfig) -> ScratchModelOfRun:
    if not isinstance(config.model, ScratchModelOfRun):
        kind = "a model of the hub" if config.model.hub is not None else "a model from a wheel"
        raise UserError(f"{config.run_id}: is {kind}; `troll job hub-model` links it")
    return config.model
