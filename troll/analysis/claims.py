"""The ledger: a verdict on every claim, from the runs there are.

A claim compares a method with a baseline in one number of a run. Each setting (model, task, condition,
estimator) where both have runs gives a paired interval of the difference. The verdict over all settings:

- supported: the 95 % interval lies on the claimed side of the margin in every setting. All have to hold at
  once (an intersection-union test), so looking at many settings needs no correction.
- contradicted: in some setting the interval lies wholly on the other side of the margin, at level
  1 - 0.05 / number of settings (Bonferroni), for one exception is enough.
- inconclusive: neither, or fewer seeds in some setting than the claim asks for.
- not run: no setting has runs of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from troll.analysis.runs import BASE
from troll.analysis.statistics import Array, Interval, paired_difference
from troll.analysis.summaries import Cell, cells, difference, per_run
from troll.errors import UserError
from troll.files import read_yaml
from troll.seeding import derive_seed

Verdict = Literal["supported", "contradicted", "inconclusive", "not run"]
VERDICTS: tuple[Verdict, ...] = ("supported", "contradicted", "inconclusive", "not run")
_LEVEL = 0.95


class Where(BaseModel):
    """Where a claim applies: shell patterns for each coordinate; a coordinate left out means everywhere."""

    model_config = ConfigDict(extra="forbid")

    experiment: list[str] = Field(default=["*"], description="patterns of experiment names")
    model: list[str] = Field(default=["*"], description="patterns of model names")
    task: list[str] = Field(default=["*"], description="patterns of task names")
    condition: list[str] = Field(default=["*"], description="patterns of condition names")
    estimator: list[str] = Field(default=["*"], description="patterns of estimator names")

    def holds(self, experiment: str, cell: Cell) -> bool:
        """Whether a setting is one that the claim speaks of."""
        names = {"experiment": experiment, "model": cell.model, "task": cell.task}
        names |= {"condition": cell.condition, "estimator": cell.estimator}
        return all(
            any(fnmatchcase(name, pattern) for pattern in getattr(self, key)) for key, name in names.items()
        )


class Claim(BaseModel):
    """One entry of a claims file."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="short and unique")
    sentence: str = Field(min_length=1, description="the claim in our own words")
    place: str = Field(min_length=1, description="where it is made")
    method: str = Field(description="trust region that the claim is about, or a pattern of names")
    baseline: str | float = Field(
        description="trust region that it is compared with (base is the base model), or a number"
    )
    metric: str = Field(
        description="pass@k, or a column of the table of runs: kl, entropy, drop, hours, mean/<logged metric>"
    )
    direction: Literal["higher", "lower", "equivalent"]
    margin: float = Field(
        default=0.0, ge=0, description="how much higher or lower; for equivalent, how close"
    )
    relative: bool = Field(default=False, description="compare (method - baseline) / baseline")
    least_seeds: int = Field(default=3, ge=2, description="below this many paired seeds: inconclusive")
    where: Where = Where()
    note: str = ""


@dataclass(frozen=True)
class Evidence:
    """One setting's paired difference."""

    setting: str
    interval: Interval
    seeds: int


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict and what it rests on."""

    claim: Claim
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    reason: str


def read_claims(paths: Sequence[Path]) -> list[Claim]:
    """Reads claims files (YAML lists); a user's own files come after the project's.

    Raises:
        UserError: a file is missing or broken, a field is wrong (named), or an id comes twice.
    """
    claims: dict[str, Claim] = {}
    for path in paths:
        entries = read_yaml(path)
        if not isinstance(entries, list):
            raise UserError(f"{path}: expected a list of claims, found {type(entries).__name__}")
        for index, entry in enumerate(entries):
            try:
                claim = Claim.model_validate(entry)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                name = entry.get("id", index) if isinstance(entry, dict) else index
                field = ".".join(map(str, first["loc"])) or "claim"
                raise UserError(f"{path}: claim {name}: {field}: {first['msg']}") from None
            if claim.id in claims:
                raise UserError(f"{path}: claim {claim.id} comes twice; give it another id")
            claims[claim.id] = claim
    return list(claims.values())


def judge(claims: Sequence[Claim], runs: pd.DataFrame, items: pd.DataFrame) -> list[Judged]:
    """The verdict on every claim, from the tables of one or several experiments."""
    known = set()
    if len(runs):
        known = {str(name) for name in runs["experiment"]}
    summaries = {name: per_run(runs[runs["experiment"] == name]) for name in sorted(known)}
    parts = {name: items[items["experiment"] == name] for name in sorted(known)}
    return [_judge(claim, summaries, parts) for claim in claims]


def _judge(claim: Claim, summaries: Mapping[str, pd.DataFrame], parts: Mapping[str, pd.DataFrame]) -> Judged:
    pairs = [
        (experiment, cell)
        for experiment, summary in summaries.items()
        for cell in cells(summary)
        if fnmatchcase(cell.trust_region, claim.method) and claim.where.holds(experiment, cell)
    ]
    strict = 1 - (1 - _LEVEL) / max(len(pairs), 1)
    evidence, exceptions = [], []
    for experiment, cell in pairs:
        found, sharp = (
            _interval(claim, summaries[experiment], parts[experiment], cell, level)
            for level in (_LEVEL, strict)
        )
        if found is None or sharp is None:
            continue
        names = [experiment, cell.model, cell.task, cell.condition, cell.estimator]
        names += [cell.trust_region] if cell.trust_region != claim.method else []
        evidence.append(Evidence(" / ".join(names), found, found.seeds))
        exceptions.append(_against(claim, sharp))
    if not evidence:
        return Judged(
            claim, "not run", (), f"no runs of {claim.method} and {claim.baseline} where the claim applies"
        )
    short = [one for one in evidence if one.seeds < claim.least_seeds]
    if short:
        least = min(one.seeds for one in short)
        reason = f"{least} seed{'' if least == 1 else 's'} in {_of(len(short), len(evidence))}, "
        reason += f"the claim asks for {claim.least_seeds}"
        return Judged(claim, "inconclusive", tuple(evidence), reason)
    held = sum(_for(claim, one.interval) for one in evidence)
    against = sum(exceptions)
    reason = f"holds in {'all ' if held == len(evidence) > 1 else ''}{_of(held, len(evidence))}"
    reason += f", shown wrong in {against}" if against else ""
    verdict: Verdict = "inconclusive"
    if against:
        verdict = "contradicted"
    elif held == len(evidence):
        verdict = "supported"
    return Judged(claim, verdict, tuple(evidence), reason)


def _of(held: int, settings: int) -> str:
    if held == settings:
        return f"{settings} setting{'' if settings == 1 else 's'}"
    return f"{held or 'none'} of {settings} setting{'' if settings == 1 else 's'}"


def _for(claim: Claim, interval: Interval) -> bool:
    if claim.direction == "higher":
        return interval.low > claim.margin
    if claim.direction == "lower":
        return interval.high < -claim.margin
    return -claim.margin <= interval.low and interval.high <= claim.margin


def _against(claim: Claim, interval: Interval) -> bool:
    if claim.direction == "higher":
        return interval.high < claim.margin
    if claim.direction == "lower":
        return interval.low > -claim.margin
    return interval.low > claim.margin or interval.high < -claim.margin


def _interval(
    claim: Claim, summary: pd.DataFrame, items: pd.DataFrame, cell: Cell, level: float
) -> Interval | None:
    if not isinstance(claim.baseline, str):
        if claim.metric not in summary:
            return None
        values = cell.of(summary)[claim.metric].dropna().to_numpy(dtype=float)
        return _over_seeds(claim, cell, values - claim.baseline, claim.baseline, level)
    baseline = cell.base() if claim.baseline == BASE else cell.method(claim.baseline)
    metric, _, k = claim.metric.partition("@")
    if metric == "pass" and k.isdigit() and not claim.relative:
        return difference(items, cell, baseline, int(k), level)
    if claim.metric not in summary:
        return None
    first, second = (part.of(summary).set_index("seed")[claim.metric].dropna() for part in (cell, baseline))
    seeds = first.index.intersection(second.index)
    before = second[seeds].to_numpy(dtype=float)
    return _over_seeds(claim, cell, first[seeds].to_numpy(dtype=float) - before, before, level)


def _over_seeds(
    claim: Claim, cell: Cell, change: Array, before: Array | float, level: float
) -> Interval | None:
    if not change.size:
        return None
    if claim.relative:
        change = change / before
    names: dict[str, str | int] = {f"cell {key}": str(value) for key, value in asdict(cell).items()}
    stream = derive_seed(purpose="claim", claim=claim.id, **names)
    scores = change[:, None]
    return paired_difference(scores, np.zeros_like(scores), rng=np.random.default_rng(stream), level=level)
