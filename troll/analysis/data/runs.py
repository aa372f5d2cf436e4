"""Run directories to one tidy table.

Everything that is shown about an experiment is a pure function of the two tables written here:
``runs`` (one row per run, metric and step) and ``items`` (one row per run and test problem).
Rows are sorted and hold no timestamps of their own, so the same directories give the same bytes.
"""

import hashlib
import itertools
import json
import math
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
from troll.analysis.data.suites import read_suites
from troll.analysis.data.tidy import (
    BASE,
    COORDINATES,
    ITEM_COLUMNS,
    PROVENANCE,
    RUN_COLUMNS,
    write_csv,
    write_parquet,
)
from troll.common.errors import UserError
from troll.common.files import read_json, read_jsonl, read_yaml

_ORDER = itemgetter("source", "metric", "step")
"""Order of a run's rows: values of one metric lie together, which makes the table small."""
_NOT_A_METRIC = {"step", "rollout_batch", "time"}


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
    settings = _read_mapping(path / "run.yaml")
    coordinates: dict[str, Any] = {}
    for name in COORDINATES:
        value = settings.get(name)
        if isinstance(value, dict):  # a resolved block, with the settings behind the name
            value = value.get("name")
        wanted = int if name == "seed" else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise UserError(f"{path / 'run.yaml'}: {name}: {value!r} is no {wanted.__name__}")
        coordinates[name] = value
    block = settings["trust_region"]
    rule = str(block.get("rule", block["name"])) if isinstance(block, dict) else block
    manifest, digests = _read_manifest(path / "manifest.json", required=True)
    if manifest.get("run_id") != coordinates["run_id"]:
        raise UserError(
            f"{path / 'manifest.json'}: run_id: {manifest.get('run_id')!r} is not the "
            f"{coordinates['run_id']!r} of run.yaml"
        )
    made_with = manifest.get("config", settings)
    if made_with != settings:
        known = made_with if isinstance(made_with, dict) else {}
        key = next((key for key in settings if settings[key] != known.get(key)), "a key is missing")
        raise UserError(
            f"{path / 'run.yaml'}: {key}: not what {path / 'manifest.json'} says that "
            "the run was made with; make it again"
        )
    rows = list(_metric_rows(path / "metrics.jsonl"))
    last = rows[-1]["step"]
    grades, items, data = _read_grades(path / "grades.json", last)
    blocks = {name: value for name, value in settings.items() if name not in ("seed", "seeds")}
    rows += _constant_rows(manifest, blocks, last)
    rows += grades
    rows.sort(key=_ORDER)
    return _Directory(path, coordinates, rule, digests | data, _provenance(manifest), rows, items)


def _provenance(manifest: Mapping[str, Any]) -> dict[str, str]:
    recorded = {name: manifest.get(name) or "" for name in PROVENANCE}
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in recorded.items()
    }


def _read_base(path: Path, experiment: str | None) -> _Directory:
    manifest, digests = _read_manifest(path / "manifest.json", required=False)
    digests.pop("data", None)  # of what the base model was made from; runs record the problems they read
    above = path.resolve().parts[-3:]
    if len(above) < 3 or above[0] != BASE:
        raise UserError(f"{path}: no run (without run.yaml) and no base model (not in {BASE}/<model>/<task>)")
    _, model, task = above
    config = manifest.get("config")
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
    grades, items, data = _read_grades(path / "grades.json", 0)
    rows = sorted(grades + list(_constant_rows(manifest, {}, 0)), key=_ORDER)
    return _Directory(path, coordinates, "", digests | data, _provenance(manifest), rows, items)


def _read_mapping(path: Path) -> dict[str, Any]:
    value = read_yaml(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a mapping, found {type(value).__name__}")
    return value


def _read_manifest(path: Path, *, required: bool) -> tuple[dict[str, Any], dict[str, str]]:
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("digests", {}), dict):
        raise UserError(f"{path}: expected a JSON object with an object `digests`")
    digests = {}
    for name in ("source", "environment", "data", "base_model"):
        value = manifest.get("digests", {}).get(name)
        if isinstance(value, str) and value:
            digests[name] = value
        elif required or value is not None:
            raise UserError(f"{path}: digests.{name}: {value!r} is no digest")
    return manifest, digests


def _metric_rows(path: Path) -> Iterator[dict[str, Any]]:
    """One row per step and number; steps have to grow, or a resumed run has written a step twice."""
    lines = read_jsonl(path)
    if not lines:
        raise UserError(f"{path}: empty, expected one line per optimiser step")
    previous = -1
    for number, line in enumerate(lines, start=1):
        step = line.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step <= previous:
            raise UserError(f"{path}:{number}: step: {step!r} is no integer above {max(previous, 0)}")
        previous = step
        time = line.get("time", {})
        if not isinstance(time, dict):
            raise UserError(f"{path}:{number}: time: {time!r} is no object")
        common = {
            "step": step,
            "rollout_batch": line.get("rollout_batch"),
            "wall_s": time.get("wall_s", math.nan),
        }
        values = {name: value for name, value in line.items() if name not in _NOT_A_METRIC}
        values |= {f"time/{name}": value for name, value in time.items() if name != "wall_s"}
        for name, value in values.items():
            if value is None:
                continue
            if not isinstance(value, int | float):
                raise UserError(f"{path}:{number}: {name}: {value!r} is no number")
            source = "validation" if name.startswith("validation_") else "train"
            yield common | {"metric": name, "value": float(value), "source": source}


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


def _read_grades(path: Path, step: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    """Rows of test metrics, counts per problem, and the digest of the test data."""
    grades = read_json(path)
    try:
        metrics = {name: float(value) for name, value in grades["metrics"].items()}
        problems = {
            task_id: (list(entry["passed"]), list(entry["status"]))
            for task_id, entry in grades["problems"].items()
        }
        data = str(grades["data_sha256"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: not a file of grades ({type(error).__name__}: {error})") from None
    items, statuses = [], []
    for task_id, (passed, status) in sorted(problems.items()):
        if len(passed) != len(status) or not passed:
            raise UserError(
                f"{path}: problems.{task_id}: {len(passed)} results and {len(status)} statuses, not one each"
            )
        # A failure of the machinery says nothing about the model, so it is left out, never counted as wrong.
        kept = [bool(p) for p, s in zip(passed, status, strict=True) if s != "infrastructure"]
        items.append({"task_id": task_id, "n": len(kept), "c": sum(kept)})
        statuses += status
    if not items:
        raise UserError(f"{path}: problems: empty, expected at least one problem")
    _check_pass_at_1(path, metrics, items, complete="infrastructure" not in statuses)
    shares = {f"status/{name}": statuses.count(name) / len(statuses) for name in sorted(set(statuses))}
    rows = [
        {"step": step, "metric": name, "value": value, "n_items": len(items), "source": "test"}
        for name, value in (metrics | shares).items()
    ]
    suites, others = read_suites(path.parent, step)
    return rows + suites, items, {"test_data": f"{data}{others}"}


def _check_pass_at_1(
    path: Path, metrics: Mapping[str, float], items: list[dict[str, Any]], *, complete: bool
) -> None:
    if not complete or "pass@1" not in metrics:
        return
    counted = sum(item["c"] / item["n"] for item in items) / len(items)
    if abs(counted - metrics["pass@1"]) > 1e-6:
        raise UserError(
            f"{path}: metrics.pass@1: {metrics['pass@1']:.6f}, but its problems give {counted:.6f}"
        )
