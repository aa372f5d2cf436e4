"""Conversion of run directories to the tidy tables, from which all results of an experiment are computed."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.provenance import DIGESTS, check_digests
from troll.analysis.data.reduction import by_batch, digest_of_log
from troll.analysis.data.run_files import COORDINATES, RunFiles, read_base_files, read_run_files
from troll.analysis.data.settings import OF_THE_RUN
from troll.analysis.data.tidy import (
    BASE,
    ITEM_COLUMNS,
    PROVENANCE,
    RUN_COLUMNS,
    WHOLE,
    Tidy,
    on_disk,
    table_file,
    table_files,
    write_csv,
    write_table_file,
)
from troll.common.errors import UserError

_ORDER = itemgetter("source", "metric", "step")
"""Sort key of a run's rows; keeping the values of a metric together makes the table compress well."""
_BLOCKS = ("model", "task", "trust_region", "estimator", "condition", "training")
"""Blocks of a run's configuration that the column ``settings`` holds, without their names."""


@dataclass(frozen=True)
class _Directory:
    """The contents of one directory."""

    path: Path
    coordinates: dict[str, Any]
    constants: dict[str, Any]  # further columns that are constant over its rows
    prompts: Mapping[str, str]  # digests of the token ids of prompts by use; none in older directories
    rows: list[dict[str, Any]]  # the other columns
    items: list[dict[str, Any]]


def write_whole(tidy: Tidy, out: Path) -> None:
    """Writes the tables of an experiment as a single part, and as CSV."""
    write_table_file(table_file(out, WHOLE), [on_disk(tidy)])
    for name, path in table_files(out).items():
        if name != WHOLE:
            path.unlink()
    write_csv(tidy.runs, out / "runs.csv.gz")


def checked(tidy: Tidy, *, by_place: bool = False, allow_mixed: bool = False) -> Tidy:
    """Returns the tables with ``mixed`` set by `check_digests`, which rejects different provenance."""
    columns = [*COORDINATES, "rule", "numerics", "hardware", *(f"digest_{name}" for name in DIGESTS)]
    runs = tidy.runs[columns].drop_duplicates("run_id").astype(dict.fromkeys(columns, object))
    runs["place"] = runs["hardware"] + " " + runs["digest_environment"] if by_place else ""
    return marked(tidy, list(runs.loc[check_digests(runs, allow_mixed=allow_mixed), "run_id"]))


def marked(tidy: Tidy, mixed: Sequence[str]) -> Tidy:
    """Returns the tables with ``mixed`` set for exactly these run ids."""
    return Tidy(*(frame.assign(mixed=frame["run_id"].isin(mixed)) for frame in (tidy.runs, tidy.items)))


def read_directories(
    run_dirs: Sequence[Path], base_dirs: Sequence[Path] = (), *, keys: Mapping[str, str] | None = None
) -> Tidy:
    """Reads directories of finished runs and base models; ``keys`` are the plan's keys by run id."""
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
    _check_prompts(directories)
    constants = [
        d.coordinates | d.constants | {"key": (keys or {}).get(d.coordinates["run_id"], ""), "mixed": False}
        for d in directories
    ]
    return Tidy(
        _frame([d.rows for d in directories], constants, RUN_COLUMNS),
        _frame([d.items for d in directories], constants, ITEM_COLUMNS),
    )


def _check_prompts(directories: Sequence[_Directory]) -> None:
    """Refuses runs of a model on a task that read other prompts than the rest, as token ids."""
    first: dict[tuple[str, ...], tuple[str, Path]] = {}
    for directory in directories:
        for use, digest in directory.prompts.items():
            where = (*(str(directory.coordinates[name]) for name in ("experiment", "model", "task")), use)
            other, path = first.setdefault(where, (digest, directory.path))
            if other != digest:
                raise UserError(
                    f"{path} and {directory.path}: the same {use} problems had prompts of other token ids, "
                    "so tokenizer or chat template differ; run one of them again"
                )


def _frame(
    rows: list[list[dict[str, Any]]], constants: list[dict[str, Any]], columns: Mapping[str, str]
) -> pd.DataFrame:
    """Joins each directory's rows with its constant columns."""
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
    return _directory(path, files, files.coordinates, rule)


def _directory(path: Path, files: RunFiles, coordinates: dict[str, Any], rule: str) -> _Directory:
    try:
        manifest = list(_manifest_rows(files.manifest, files.last_step))
    except OverflowError:
        raise UserError(f"{path / 'manifest.json'}: holds a number that is too large for a table") from None
    rows = sorted(by_batch(files.metrics) + manifest + files.grades.rows, key=_ORDER)
    digests = files.digests | {"test_data": files.grades.test_data}
    constants: dict[str, Any] = {"rule": rule, "numerics": files.numerics}
    constants |= {f"digest_{name}": digests.get(name, "") for name in DIGESTS}
    constants["digest_log"] = digest_of_log(files.metrics) if files.metrics else ""
    recorded = {name: files.manifest.get(name) or "" for name in PROVENANCE if name != "settings"}
    recorded["settings"] = _settings(files.settings) or ""
    constants |= {name: value if isinstance(value, str) else _json(value) for name, value in recorded.items()}
    rendered = {"training": files.manifest.get("digests", {}).get("prompts"), "test": files.grades.prompts}
    prompts = {use: digest for use, digest in rendered.items() if digest}
    return _Directory(path, coordinates, constants, prompts, rows, files.grades.items)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what defines a run: its blocks without their names, which are among the coordinates."""
    blocks = {name: config[name] for name in _BLOCKS if isinstance(config.get(name), dict)}
    named = {
        name: {key: value for key, value in block.items() if key not in ("name", "setting")}
        for name, block in blocks.items()
    }
    return named | {name: config[name] for name in OF_THE_RUN if config.get(name)}


def _read_base(path: Path, experiment: str | None) -> _Directory:
    above = path.resolve().parts[-3:]
    if len(above) < 3 or above[0] != BASE:
        raise UserError(
            f"{path}: neither a run (no run.yaml) nor a base model (not in {BASE}/<model>/<task>)"
        )
    files = read_base_files(path)
    files.digests.pop("data", None)  # its training data; runs record the problems that they read
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
    return _directory(path, files, coordinates, "")


def _manifest_rows(manifest: Mapping[str, Any], step: int) -> Iterator[dict[str, Any]]:
    """Yields rows of the numbers in a run's manifest, including its constraint check."""
    named = {
        name: value
        for name, value in manifest.items()
        if isinstance(value, int | float) and name != "numerics"
    }
    gpus = (manifest.get("hardware") or {}).get("gpus")
    named |= {"gpus": len(gpus)} if isinstance(gpus, list) else {}
    named |= dict(_numbers(manifest.get("constraint_check"), "constraint_check"))
    for name, value in named.items():
        yield {"step": step, "metric": name, "value": float(value), "source": "manifest"}


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}/{key}")
    elif isinstance(value, int | float):
        yield name, float(value)
