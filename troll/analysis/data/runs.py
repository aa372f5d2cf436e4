"""Run directories to one tidy table.

Everything that is shown about an experiment is a pure function of the two tables written here:
``runs`` (one row per run, metric and step) and ``items`` (one row per run and test problem).
Rows are sorted and hold no timestamps of their own, so the same directories give the same bytes.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.archive import RESTORED
from troll.analysis.data.equal_sources import changed_in, oldest_equal
from troll.analysis.data.provenance import CHANGED_SOURCE, DIGESTS, check_digests
from troll.analysis.data.run_files import COORDINATES, RunFiles, read_base_files, read_run_files
from troll.analysis.data.tidy import (
    BASE,
    ITEM_COLUMNS,
    PROVENANCE,
    RUN_COLUMNS,
    write_csv,
    write_parquet,
)
from troll.common.errors import UserError

_ORDER = itemgetter("source", "metric", "step")
"""Order of a run's rows: values of one metric lie together, which makes the table small."""


@dataclass(frozen=True)
class Collected:
    """The two tables of one experiment.

    Attributes:
        runs: columns ``RUN_COLUMNS``. ``rule`` is that of the trust region, whatever its name. ``source`` is
            train, validation, test or manifest. In rows of the base model ``seed`` is missing, and ``rule``,
            ``estimator`` and ``condition`` are empty.
        items: columns ``ITEM_COLUMNS``: ``c`` of ``n`` graded samples of problem ``task_id`` passed.
    """

    runs: pd.DataFrame
    items: pd.DataFrame


@dataclass(frozen=True)
class _Directory:
    """One directory's coordinates, its trust region's rule, digests and rows without coordinates."""

    path: Path
    coordinates: dict[str, Any]
    rule: str
    digests: dict[str, str]
    provenance: dict[str, str]
    rows: list[dict[str, Any]]
    items: list[dict[str, Any]]

    @property
    def restored_on(self) -> str:
        """The machine of a run from the archive; empty for one that was made here."""
        return self.provenance["hardware"] if (self.path / RESTORED).exists() else ""

    @property
    def made_from(self) -> dict[str, str]:
        """The digests, one source standing for all that give the same numbers.

        A rule whose numbers changed in between fits to the others whichever of these sources it is from; its
        own runs all have to be from one.
        """
        source = self.digests.get("source", "")
        changed = {CHANGED_SOURCE: source} if changed_in(source, self.rule) else {}
        return self.digests | ({"source": oldest_equal(source)} if source else {}) | changed


def collect(
    run_dirs: Sequence[Path],
    out_parquet: Path,
    out_csv: Path | None = None,
    *,
    base_dirs: Sequence[Path] = (),
    out_items: Path | None = None,
    allow_mixed: bool = False,
) -> Collected:
    """Writes the tidy tables of an experiment.

    Args:
        run_dirs: directories of finished runs (``run.yaml``, ``metrics.jsonl``, ``manifest.json``,
            ``grades.json``).
        out_parquet: where the table of metrics goes.
        out_csv: also as CSV, digests cut to 12 characters; compressed when the name ends in ``.gz``.
        base_dirs: directories ``<experiment>/base/<model>/<task>`` of graded base models.
        out_items: where the table of test problems goes; by default ``<out_parquet stem>_items.parquet``.
        allow_mixed: admit rows whose digests disagree, with ``mixed`` set on those that differ from the
            most frequent digest.

    Raises:
        UserError: a file is missing or broken, a run is there twice, or digests disagree.
    """
    collected = read_directories(run_dirs, base_dirs, allow_mixed=allow_mixed)
    write_parquet(collected.runs, out_parquet, RUN_COLUMNS)
    items_path = out_items or out_parquet.with_name(f"{out_parquet.stem}_items.parquet")
    write_parquet(collected.items, items_path, ITEM_COLUMNS)
    if out_csv is not None:
        write_csv(collected.runs, out_csv)
    return collected


def read_directories(
    run_dirs: Sequence[Path], base_dirs: Sequence[Path] = (), *, allow_mixed: bool = False
) -> Collected:
    """Reads finished directories into the tidy tables without writing anything; arguments as ``collect``."""
    if not run_dirs and not base_dirs:
        raise UserError("no run directories to collect: name at least one finished run")
    directories = [_read_run(path) for path in run_dirs]
    experiments = sorted({d.coordinates["experiment"] for d in directories})
    fallback = experiments[0] if len(experiments) == 1 else None
    directories += [_read_base(path, fallback) for path in base_dirs]
    directories.sort(key=lambda d: tuple((v is None, v) for v in d.coordinates.values()))
    for first, second in itertools.pairwise(directories):
        if first.coordinates == second.coordinates:
            raise UserError(
                f"{first.path} and {second.path}: both hold run {first.coordinates['run_id']} "
                f"of experiment {first.coordinates['experiment']}; pass one of them"
            )
    mixed = check_digests(
        [(d.coordinates | {"restored_on": d.restored_on}, d.made_from) for d in directories],
        allow_mixed=allow_mixed,
    )  # one flag per directory
    constants = []
    for directory, is_mixed in zip(directories, mixed, strict=True):
        digests = {f"digest_{name}": directory.digests.get(name, "") for name in DIGESTS}
        known = directory.coordinates | {"rule": directory.rule}
        constants.append(known | digests | directory.provenance | {"mixed": is_mixed})
    return Collected(
        _frame([d.rows for d in directories], constants, RUN_COLUMNS),
        _frame([d.items for d in directories], constants, ITEM_COLUMNS),
    )


def _frame(
    rows: list[list[dict[str, Any]]], constants: list[dict[str, Any]], columns: Mapping[str, str]
) -> pd.DataFrame:
    """Joins each directory's rows with what is the same for all of them."""
    owner = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    flat = list(itertools.chain.from_iterable(rows))
    data = {}
    for name, dtype in columns.items():
        if name in constants[0]:
            data[name] = pd.Series([c[name] for c in constants], dtype=dtype).take(owner)
        else:
            data[name] = pd.Series([row.get(name) for row in flat], dtype=dtype)
    return pd.DataFrame({name: column.reset_index(drop=True) for name, column in data.items()})


def _read_run(path: Path) -> _Directory:
    files = read_run_files(path)
    block = files.settings["trust_region"]
    rule = str(block.get("rule", block["name"])) if isinstance(block, dict) else block
    blocks = {name: value for name, value in files.settings.items() if name not in ("seed", "seeds")}
    return _directory(path, files, files.coordinates, rule, blocks)


def _directory(
    path: Path, files: RunFiles, coordinates: dict[str, Any], rule: str, settings: Mapping[str, Any]
) -> _Directory:
    try:
        constants = list(_constant_rows(files.manifest, settings, files.last_step))
    except OverflowError:
        raise UserError(f"{path / 'manifest.json'}: holds a number that is too large for a table") from None
    rows = sorted(files.metrics + constants + files.grades.rows, key=_ORDER)
    digests = files.digests | {"test_data": files.grades.test_data}
    return _Directory(path, coordinates, rule, digests, _provenance(files.manifest), rows, files.grades.items)


def _provenance(manifest: Mapping[str, Any]) -> dict[str, str]:
    recorded = {name: manifest.get(name) or "" for name in PROVENANCE}
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in recorded.items()
    }


def _read_base(path: Path, experiment: str | None) -> _Directory:
    above = path.resolve().parts[-3:]
    if len(above) < 3 or above[0] != BASE:
        raise UserError(f"{path}: no run (without run.yaml) and no base model (not in {BASE}/<model>/<task>)")
    files = read_base_files(path)
    files.digests.pop("data", None)  # of what it was made from; runs record the problems they read
    _, model, task = above
    config = files.manifest.get("config")
    named = config.get("experiment") if isinstance(config, dict) else None
    coordinates: dict[str, Any] = dict.fromkeys(COORDINATES, "")
    coordinates |= {
        "experiment": experiment or named or path.resolve().parts[-4],
        "run_id": f"{BASE}/{model}/{task}",
        "model": model,
        "task": task,
        "trust_region": BASE,
        "seed": None,
    }
    return _directory(path, files, coordinates, "", {})


def _constant_rows(
    manifest: Mapping[str, Any], settings: Mapping[str, Any], step: int
) -> Iterator[dict[str, Any]]:
    """Numbers of a run as a whole: those of its manifest, its constraint check and its settings."""
    named = {name: value for name, value in manifest.items() if isinstance(value, int | float)}
    gpus = (manifest.get("hardware") or {}).get("gpus")
    named |= {"gpus": len(gpus)} if isinstance(gpus, list) else {}
    named |= dict(_numbers(manifest.get("constraint_check"), "constraint_check"))
    named |= dict(_numbers(settings, "setting"))
    named |= dict(_choices(settings, "setting"))
    for name, value in named.items():
        yield {"step": step, "metric": name, "value": float(value), "source": "manifest"}


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}/{key}")
    elif isinstance(value, int | float):
        yield name, float(value)


def _choices(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Settings inside of blocks that are no numbers, each as a number that only equal settings share.

    Names are left out: they are coordinates. So is what stands outside of blocks.
    """
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _choices(inner, f"{name}/{key}")
        elif not isinstance(inner, int | float) and key != "name" and name != "setting":
            digest = hashlib.sha256(json.dumps(inner, sort_keys=True, default=str).encode()).hexdigest()
            yield f"{name}/{key}", float(int(digest[:12], 16))  # 48 bits: exact as a float
