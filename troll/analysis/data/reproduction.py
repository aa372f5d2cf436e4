"""Do runs repeat other runs of the same names, number for number?

A run is seeded throughout, so that on the same kind of machine its numbers are the same to the last bit.
Another processor or library rounds otherwise; training amplifies that, and then means have to be compared.
"""

import subprocess
import tempfile
from pathlib import Path

import pandas as pd

from troll.analysis.data.tidy import read_runs
from troll.common.errors import UserError

_MEASURED = ("train", "validation", "test")
_SERIES = ["run_id", "source", "metric"]
_KEY = [*_SERIES, "step"]
_DIGESTS = ("source", "environment", "data", "base_model", "test_data")
_SETTING = ["trust_region", "estimator", "condition", "task", "model"]


def released_runs(results: Path, revision: str = "HEAD") -> pd.DataFrame:
    """The tidy table of an experiment as git has it, whatever a run has written over it since.

    Args:
        results: results/<experiment> of a git checkout.
        revision: a commit, branch or tag.

    Raises:
        UserError: no git, no checkout, or no such table in it.
    """
    path = results / "runs.parquet"
    command = ["git", "-C", str(results), "show", f"{revision}:./{path.name}"]
    try:
        shown = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip()
        raise UserError(f"{path}: not in git at {revision} ({why}); name a directory: --reference") from None
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / path.name
        copy.write_bytes(shown)
        return read_runs(copy)


def compare_runs(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Compares the runs that both tables have; times are left out.

    Args:
        ours: a tidy table.
        theirs: the tidy table of the reference.

    Returns:
        A row for each run: its coordinates, ``settings`` (names of settings that differ), ``numbers`` (how
        many were compared), ``different`` (how many of them differ), where they first do (``step``,
        ``metric``, ``here``, ``there``; the smallest step), ``pass@1`` and ``reference`` (on the test
        problems), and ``digests`` (what the runs were made from that differs).
    """
    settings = _settings(ours).merge(_settings(theirs), on=["run_id", "metric"], suffixes=("", "_there"))
    changed = settings[settings["value"] != settings["value_there"]]
    here, there = _measured(ours), _measured(theirs)
    # What only one version logs is no difference; a step that only one of them has is.
    logged = here[_SERIES].drop_duplicates().merge(there[_SERIES].drop_duplicates())
    both = here.merge(there, on=_KEY, how="outer", suffixes=("", "_there"), indicator="side").merge(logged)
    equal = (both["value"] == both["value_there"]) | (both["value"].isna() & both["value_there"].isna())
    equal &= both["side"] == "both"
    both = both.assign(different=~equal)
    rows = []
    for run_id, numbers in both.groupby("run_id", sort=True):
        ran, other = (frame[frame["run_id"] == run_id].iloc[0] for frame in (ours, theirs))
        first = numbers[numbers["different"]].sort_values(["step", "metric"]).head(1)
        final = numbers[(numbers["source"] == "test") & (numbers["metric"] == "pass@1")]
        rows.append(
            {
                **{name: ran[name] for name in ["run_id", *_SETTING]},
                "settings": sorted(
                    name.removeprefix("setting/")
                    for name in changed.loc[changed["run_id"] == run_id, "metric"]
                ),
                "numbers": len(numbers),
                "different": int(numbers["different"].sum()),
                **_first(first),
                "pass@1": final["value"].mean(),
                "reference": final["value_there"].mean(),
                "digests": [name for name in _DIGESTS if ran[f"digest_{name}"] != other[f"digest_{name}"]],
            }
        )
    return pd.DataFrame(rows)


def describe(compared: pd.DataFrame, ours: int, theirs: int, *, every: bool = True) -> list[str]:
    """What `compare_runs` found, in lines for people.

    Args:
        compared: its result.
        ours: runs in our table.
        theirs: runs in the reference.
        every: say of every run that differs where it first does.
    """
    lines = [f"{len(compared)} runs in both, of {ours} here and {theirs} in the reference"]
    if compared.empty:
        return lines
    other = compared[compared["settings"].map(len) > 0]
    alike = compared.drop(other.index)
    for name in sorted({name for names in other["settings"] for name in names}):
        count = sum(name in names for names in other["settings"])
        lines.append(f"{count} of them not compared: their {name} differs")
    same = alike[alike["different"] == 0]
    if len(alike):
        lines.append(
            f"{len(same)} of {len(alike)} equal the reference number for number "
            f"({same['numbers'].sum():,} numbers of training, validation and test)"
        )
    apart = alike.drop(same.index)
    for row in apart.to_dict("records") if every else ():
        where = f"step {int(row['step'])}, " if pd.notna(row["step"]) else ""
        lines.append(
            f"  {row['run_id']}: first differs at {where}{row['metric']}, {row['here']:.9g} here and "
            f"{row['there']:.9g} there; ends at {100 * row['pass@1']:.1f} and {100 * row['reference']:.1f} %"
        )
    if len(apart):
        lines += _means(alike)
        causes = sorted({name for names in apart["digests"] for name in names})
        lines.append(f"made from other {', '.join(causes)}" if causes else "made from the same code and data")
    return lines


def _means(alike: pd.DataFrame) -> list[str]:
    lines = ["mean pass@1 of each setting, here and in the reference:"]
    for _, rows in alike.groupby(_SETTING, sort=True, observed=True):
        here, there = (_mean(100 * rows[name]) for name in ("pass@1", "reference"))
        lines.append(f"  {' / '.join(str(rows[name].iloc[0]) for name in _SETTING)}: {here} and {there} %")
    return lines


def _mean(values: pd.Series) -> str:
    return f"{values.mean():.1f}" + (f" ± {values.std():.1f}" if len(values) > 1 else "")


def _first(row: pd.DataFrame) -> dict[str, object]:
    if row.empty:
        return {"step": None, "metric": None, "here": None, "there": None}
    first = row.iloc[0]
    names = {"step": "step", "metric": "metric", "here": "value", "there": "value_there"}
    return {name: first[column] for name, column in names.items()}


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    measured = runs["source"].isin(_MEASURED) & ~runs["metric"].str.startswith("time/")
    return runs.loc[measured, [*_KEY, "value"]]


def _settings(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.loc[runs["metric"].str.startswith("setting/"), ["run_id", "metric", "value"]]
