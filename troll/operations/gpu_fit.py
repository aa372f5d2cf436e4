"""Whether an experiment's runs fit the memory of the GPUs at hand, by the estimate."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from troll.common.errors import UserError
from troll.common.files import read_yaml
from troll.experiment.budget import billions_of, uses_critic
from troll.experiment.experiment import Experiment, Run
from troll.experiment.gpu_memory import (
    Memory,
    fits,
    helpful_keys,
    least_card,
    memory_of,
    never_fits,
    states_of,
    usable,
)
from troll.experiment.model_shapes import ModelShape, shape_of, typical_shape
from troll.experiment.settings import Training
from troll.operations.versions import tool

PROFILE = Path("workflow/profiles/slurm")
_MIB = 1024
_SUPPOSED = 80.0  # GiB, where no card is known


@dataclass(frozen=True)
class Card:
    """The kind of GPU that runs will use."""

    gib: float  # nominal
    source: str  # where it is stated, in words


@dataclass(frozen=True)
class Setting:
    """Runs of one model with the same settings as far as memory is concerned, and the largest of them."""

    model: str
    shape: ModelShape
    training: Training
    critic: bool
    run: Run
    known: bool  # whether its sizes are those of its configuration

    def memory(self, card: float) -> Memory:
        """Estimates the memory of one of its GPUs."""
        return memory_of(self.shape, self.training, card, critic=self.critic)


def known_card(experiment: Experiment, profile: Path = PROFILE) -> Card | None:
    """Returns the GPUs of the experiment file, of the profile, or else of this machine; None if unknown.

    A profile passes ``gpu_memory`` to the experiment by Snakemake's ``config``. The GPUs of a machine with
    SLURM do not count, because jobs run on others.
    """
    if experiment.gpu_memory is not None:
        return Card(experiment.gpu_memory, "gpu_memory")
    file = profile / "config.yaml"
    settings = read_yaml(file, "profile") if file.exists() else None
    config = settings.get("config") if isinstance(settings, dict) else None
    for item in config if isinstance(config, list) else []:
        name, _, value = str(item).partition("=")
        if name == "gpu_memory":
            with suppress(ValueError):
                if 0 < (gib := float(value)) < math.inf:
                    return Card(gib, str(file))
            raise UserError(f"{file}: config: gpu_memory is {value!r}, must be GiB of a GPU, such as 80")
    if tool(("sbatch", "--version")):
        return None
    seen = tool(("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"))
    return Card(float(seen) / _MIB, "this machine") if seen and seen.isdecimal() else None


def settings_of(experiment: Experiment, runs: Sequence[Run]) -> list[Setting]:
    """Returns, for each model with GPUs, number of GPUs, and presence of a critic, the run that needs most.

    Runs of models of unknown size are left out; where only the number of parameters is known, sizes are
    `typical_shape`'s.
    """
    largest: dict[tuple[str, int, bool], Setting] = {}
    for run in {run.group_id: run for run in runs}.values():
        source = experiment.models[run.model].pretrained
        training, shape, billions = experiment.training_of(run), shape_of(source), billions_of(source)
        known = shape is not None
        shape = shape or (typical_shape(billions) if billions else None)
        if shape is None or not training.gpus:
            continue
        critic = uses_critic(experiment, run, training)
        setting = Setting(run.model, shape, training, critic, run, known)
        key = (run.model, training.gpus, setting.critic)
        before = largest.get(key)
        if before is None or _order(setting) > _order(before):
            largest[key] = setting
    return list(largest.values())


def _order(setting: Setting) -> tuple[bool, float]:
    memory = setting.memory(_SUPPOSED)
    return bool(memory.problem), memory.needed


def memory_lines(experiment: Experiment, runs: Sequence[Run], card: Card | None) -> list[str]:
    """Returns a table of models against the memory that they need, as lines of text; empty without GPUs."""
    settings = settings_of(experiment, runs)
    if not settings:
        return []
    gib = card.gib if card else _SUPPOSED
    where = f"{gib:.0f} GiB ({card.source})" if card else f"{gib:.0f} GiB, supposed: gpu_memory is not set"
    lines = [
        f"memory of a GPU, estimated in GiB, on cards of {where}:",
        f"  {'model':<30}{'GPUs':>5}{'needs':>7}{'has':>6}{'fits from':>11}  largest part",
    ]
    for setting in settings:
        memory, training = setting.memory(gib), setting.training
        least = least_card(setting.shape, training, critic=setting.critic)
        name = setting.model + (" + critic" if setting.critic else "")
        row = f"  {name:<30}{training.gpus:>5}{memory.needed:>7.1f}{usable(gib):>6.1f}{least or '-':>11}"
        row += f"  {memory.largest}, {memory.phase[memory.largest]:.1f}"
        lines.append(row + ("" if fits(memory, gib) else f"; DOES NOT FIT: {_remedy(setting, memory)}"))
    if guessed := dict.fromkeys(setting.model for setting in settings if not setting.known):
        lines.append(f"  only `billions` is known (troll fetch gets config.json): {', '.join(guessed)}")
    return lines


def tight(experiment: Experiment, runs: Sequence[Run], card: Card) -> list[str]:
    """Returns a line for each kind of run that does not fit, by the estimate."""
    return [
        _words(setting, card)
        for setting in settings_of(experiment, runs)
        if not fits(setting.memory(card.gib), card.gib)
    ]


def refuse_impossible(experiment: Experiment, runs: Sequence[Run], source: object) -> None:
    """Raises a `UserError` if runs cannot fit: what they always hold is more than the known cards have."""
    settings = settings_of(experiment, runs)
    card = known_card(experiment) if settings else None
    for setting in settings if card else ():
        if card and never_fits(setting.memory(card.gib), card.gib):
            states = states_of(setting.memory(card.gib))
            raise UserError(
                f"{source}: {setting.run.group_id} cannot fit: weights, AdamW's moments and gradients take "
                f"{states:.0f} GiB on each of {setting.training.gpus} GPUs, and cards of {card.gib:.0f} GiB "
                f"({card.source}) have {usable(card.gib):.0f}; more gpus or a smaller model would"
            )


def _words(setting: Setting, card: Card) -> str:
    memory = setting.memory(card.gib)
    need = f"needs about {memory.needed:.0f} GiB on each of {setting.training.gpus} GPUs"
    part = f"{memory.largest}: {memory.phase[memory.largest]:.0f}"
    has = f"cards of {card.gib:.0f} GiB ({card.source}) have {usable(card.gib):.0f}"
    if memory.problem and memory.needed <= usable(card.gib):
        return f"{setting.run.group_id}: {memory.problem}; {_remedy(setting, memory)}"
    return f"{setting.run.group_id} {need} ({part}), and {has}; {_remedy(setting, memory)}"


def _remedy(setting: Setting, memory: Memory) -> str:
    return f"what helps: {helpful_keys(memory, setting.training)}"
