"""Collects runs and base models into the tidy tables of their experiment."""

from collections.abc import Sequence
from pathlib import Path

from troll.analysis.data import archive as archived
from troll.analysis.data import runs as tables
from troll.analysis.data.results import Plan, rehearsed, write_plan
from troll.analysis.render.substitutes import find_substitutes


def collect(
    places: Sequence[Path],
    out: Path,
    planned: Plan,
    archive: Path | None,
    ledger: Sequence[str],
    *,
    released: Path | None = None,
    allow_mixed: bool = False,
) -> int:
    """Writes the tidy tables and, if ``planned`` lists runs, the plan; returns the number of runs.

    ``archive`` is results/<experiment>, with tables of finished runs; ``released`` is its release, whose runs
    need not be made again. ``ledger`` are the claims files that the experiment names. ``allow_mixed`` admits
    runs made in a different environment or from other data.
    """
    trained = {path: (path / "run.yaml").exists() for path in places}
    runs, bases = ([path for path in places if trained[path] == wanted] for wanted in (True, False))
    if archive is None:
        tidy = tables.read_directories(runs, bases, keys=planned.keys)
    else:
        names = {"/".join(path.parts[-6:] if trained[path] else path.parts[-3:]): path for path in places}
        tidy = archived.collect_planned(archive, planned.keys, names, released)
    tidy = tables.checked(tidy, by_place=archive is not None, allow_mixed=allow_mixed)
    if archive != out:
        tables.write_whole(tidy, out)
    if planned.expected is not None:
        found = {
            "substitutes": find_substitutes(places),
            "mixed": sorted(set(tidy.runs.loc[tidy.runs["mixed"], "run_id"].astype(str))),
            "claims": list(ledger),
            "rehearsal": rehearsed(places),
        }
        write_plan(out, planned.model_copy(update=found))
    return int(tidy.runs["run_id"].nunique())
