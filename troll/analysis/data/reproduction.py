"""Reproduction: comparison of runs with reference runs of the same names, number by number.

Runs are fully seeded: on the same kind of machine their numbers are equal to the last bit. Another processor
or library rounds differently and training amplifies this; then only means can be compared.
"""

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.data.settings import differing, settings_by
from troll.analysis.data.tidy import BASE, TIDY, Tidy, read_tidy
from troll.common.errors import UserError
from troll.experiment.directories import released_directory

_MEASURED = ("train", "validation", "test")
_SERIES = ["run_id", "source", "metric"]
_KEY = [*_SERIES, "step"]
_DIGESTS = ("digest_environment", "digest_data", "digest_base_model", "digest_test_data", "numerics")
_SETTING = ["trust_region", "estimator", "condition", "task", "model"]
_ITEM = ["run_id", "task_id"]


def read_released(results: Path, revision: str | None = None) -> Tidy:
    """Returns the released tidy tables of ``results/<experiment>``: those here, or those of a commit or tag.

    Releases up to version 0.3.0 have them in ``results/<experiment>`` itself.
    """
    released = released_directory(results)
    if revision is None:
        if not (released / TIDY).exists():
            raise UserError(f"{released / TIDY}: no such release; name other results: --reference DIRECTORY")
        return read_tidy(released)
    why = ""
    for directory in (released, results):
        path = (directory / TIDY).relative_to(results.parent)
        command = ["git", "-C", str(results.parent), "archive", "--format=tar", revision, str(path)]
        try:
            archive = subprocess.run(command, capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            why = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip()
            continue
        with tempfile.TemporaryDirectory() as name, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(name, filter="data")
            return read_tidy(Path(name, path).parent)
    raise UserError(f"{released / TIDY}: not in git at {revision} ({why}); name a directory: --reference")


def compare_runs(ours: Tidy, theirs: Tidy) -> pd.DataFrame:
    """Compares the runs that both tables have, except for times.

    Returns:
        A row for each run: its coordinates; ``settings`` (names of settings that differ); ``numbers`` (how
        many were compared: values per batch, metrics on test problems, and problems); ``different`` (how many
        of them differ; at least one if the logs of all optimiser steps do); ``step``, ``metric``, ``here``
        and ``there`` of the first difference (at the smallest step); ``pass@1`` and ``reference`` (on the
        test problems); and ``digests`` (names of the provenance digests that differ).
    """
    here, reference = _measured(ours.runs), _measured(theirs.runs)
    # A metric that only one side logs is ignored; a step that only one side has counts as different.
    logged = here[_SERIES].drop_duplicates().merge(reference[_SERIES].drop_duplicates())
    both = here.merge(reference, on=_KEY, how="outer", suffixes=("", "_there"), indicator="side").merge(
        logged
    )
    equal = (both["value"] == both["value_there"]) | (both["value"].isna() & both["value_there"].isna())
    equal &= both["side"] == "both"
    both = both.assign(different=~equal)
    problems = _problems(ours.items, theirs.items)
    settings = dict(settings_by(theirs.runs, ["run_id"]))
    changed = {
        str(run_id): differing(recorded, settings[(run_id,)])
        for (run_id,), recorded in settings_by(ours.runs, ["run_id"])
        if (run_id,) in settings
    }
    firsts, others = (tidy.runs.drop_duplicates("run_id").set_index("run_id") for tidy in (ours, theirs))
    same_metrics = _same_metrics(here, reference)
    rows = []
    for run_id, numbers in both.groupby("run_id", sort=True, observed=True):
        ran, other = firsts.loc[run_id], others.loc[run_id]
        first = numbers[numbers["different"]].sort_values(["step", "metric"]).head(1)
        final = numbers[(numbers["source"] == "test") & (numbers["metric"] == "pass@1")]
        count, wrong = problems.get(str(run_id), (0, 0))
        different = int(numbers["different"].sum()) + wrong
        logs = {ran["digest_log"], other["digest_log"]} - {""}
        rows.append(
            {
                "run_id": run_id,
                **{name: ran[name] for name in _SETTING},
                "settings": changed.get(str(run_id), []),
                "numbers": len(numbers) + count,
                "different": max(different, int(len(logs) > 1 and str(run_id) in same_metrics)),
                **_first(first),
                "pass@1": final["value"].mean(),
                "reference": final["value_there"].mean(),
                "digests": [name.removeprefix("digest_") for name in _DIGESTS if ran[name] != other[name]],
            }
        )
    return pd.DataFrame(rows)


def _problems(ours: pd.DataFrame, theirs: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Returns how many test problems of each run were compared, and how many have other grades."""
    first, second = (frame[[*_ITEM, "n", "c"]].astype(dict.fromkeys(_ITEM, str)) for frame in (ours, theirs))
    both = first.merge(second, on=_ITEM, suffixes=("", "_there"))
    both["wrong"] = (both["n"] != both["n_there"]) | (both["c"] != both["c_there"])
    by_run = both.groupby("run_id", sort=False)["wrong"]
    return {str(run_id): (len(wrong), int(wrong.sum())) for run_id, wrong in by_run}


def _same_metrics(here: pd.DataFrame, there: pd.DataFrame) -> set[str]:
    """Returns the runs that log the same metrics on both sides, so that log digests compare."""
    logged = (frame[frame["source"] != "test"] for frame in (here, there))
    names = [frame.groupby("run_id", observed=True)["metric"].agg(frozenset) for frame in logged]
    return {str(run_id) for run_id, metric_names in names[0].items() if names[1].get(run_id) == metric_names}


def equality(compared: pd.DataFrame, ours: Tidy, theirs: Tidy) -> list[str]:
    """Returns how many runs equal the reference bit for bit, as a line; none if none compares."""
    if compared.empty:
        return []
    trained = compared[(compared["trust_region"] != BASE) & (compared["settings"].map(len) == 0)]
    if trained.empty:
        return []
    equal = int((trained["different"] == 0).sum())
    line = f"{equal} of {len(trained)} runs equal the release to the last bit"
    runs = (tidy.runs[tidy.runs["run_id"].isin(trained["run_id"])] for tidy in (ours, theirs))
    first, second = map(_processors, runs)
    if equal or first.keys() & second.keys():
        return [line]
    names, others = (", ".join(sorted(set(names.values()))) for names in (first, second))
    return [f"{line}: they ran on {names}, the release on {others}, which rounds otherwise"]


def _processors(runs: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Returns names of processors by vendor and instruction set, which determine rounding."""
    names = {}
    for record in (json.loads(text) for text in runs["hardware"].astype(str).unique() if text):
        name = str(record.get("processor"))
        names[str(record.get("vendor", name)), str(record.get("capability"))] = name
    return names


def describe(compared: pd.DataFrame, ours: int, theirs: int, *, every: bool = True) -> list[str]:
    """Returns the result of `compare_runs` as lines of text."""
    lines = [f"{len(compared)} runs in both, of {ours} here and {theirs} in the reference"]
    if compared.empty:
        return lines
    other = compared[compared["settings"].map(len) > 0]
    comparable = compared.drop(other.index)
    for name in sorted({name for names in other["settings"] for name in names}):
        count = sum(name in names for names in other["settings"])
        lines.append(f"{count} of them not compared: their {name} differs")
    equal = comparable[comparable["different"] == 0]
    if len(comparable):
        lines.append(
            f"{len(equal)} of {len(comparable)} equal the reference number for number "
            f"({equal['numbers'].sum():,} numbers of training, validation and test)"
        )
    different = comparable.drop(equal.index)
    for row in different.to_dict("records") if every else ():
        lines.append(
            f"  {row['run_id']}: {_where(row)}; "
            f"ends at {100 * row['pass@1']:.1f} and {100 * row['reference']:.1f} %"
        )
    if len(different):
        lines += _means(comparable)
        causes = sorted({name for names in different["digests"] for name in names})
        lines.append(f"made from other {', '.join(causes)}" if causes else "made from the same code and data")
    return lines


def _where(row: Mapping[Hashable, Any]) -> str:
    """Returns where a run first differs; means over batches can hide differences in steps or problems."""
    if pd.isna(row["metric"]):
        return "differs in single optimiser steps or test problems alone"
    step = f"step {int(row['step'])}, " if pd.notna(row["step"]) else ""
    return f"first differs at {step}{row['metric']}, {row['here']:.9g} here and {row['there']:.9g} there"


def _means(comparable: pd.DataFrame) -> list[str]:
    lines = ["mean pass@1 of each setting, here and in the reference:"]
    for _, rows in comparable.groupby(_SETTING, sort=True, observed=True):
        ours, reference = (_mean(100 * rows[name]) for name in ("pass@1", "reference"))
        lines.append(
            f"  {' / '.join(str(rows[name].iloc[0]) for name in _SETTING)}: {ours} and {reference} %"
        )
    return lines


def _mean(values: pd.Series) -> str:
    return f"{values.mean():.1f}" + (f" ± {values.std():.1f}" if len(values) > 1 else "")


def _first(row: pd.DataFrame) -> dict[str, object]:
    names = {"step": "step", "metric": "metric", "here": "value", "there": "value_there"}
    return {name: None if row.empty else row.iloc[0][column] for name, column in names.items()}


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    measured = runs["source"].isin(_MEASURED) & ~runs["metric"].str.startswith("time/")
    rows = runs.loc[measured, [*_KEY, "value"]]
    return rows.astype(dict.fromkeys(_SERIES, str))
