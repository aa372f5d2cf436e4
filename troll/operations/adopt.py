"""Makes a release of local results: copies them from ``results/NAME`` to ``results/released/NAME``."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from troll.analysis.claims.packaged import claim_files
from troll.analysis.data.archive import table_of_rule
from troll.analysis.data.provenance import check_clean
from troll.analysis.data.results import PLAN, read_results
from troll.analysis.data.tidy import (
    BASE,
    TIDY,
    WHOLE,
    read_table_file,
    read_tidy,
    table_file,
    table_files,
    write_table_file,
)
from troll.analysis.report.check import check_results
from troll.common.checkout import DIRTY, commit_of, is_committed
from troll.common.errors import UserError
from troll.experiment.directories import FINISHED, RELEASED, RESULTS, released_directory
from troll.operations.released import check_measurements, has_measurements

_BOARD = "protocol.yaml"
_MEASURED = ("cost", "approximation")
"""Directories of measurements, which a release keeps if they were not made again."""
_FILES = {"tables": "*.csv", "figures": "*.png"}


def adopt(name: str, *, finished: bool = False) -> str:
    """Replaces the release of an experiment or a board by the local results; returns a summary.

    Of an experiment with ``archive: true`` that is not finished, only the rows of its finished runs are
    copied; with ``finished``, also the tables, figures and verdicts that `troll status --page` made of them,
    and the whole plan. The new directory is checked before it replaces the old one.

    Raises:
        UserError: there are no such results; the source or the release has uncommitted changes; runs come
            from a rehearsal or from uncommitted source; or tables differ from what the data give.
    """
    local = RESULTS / name / FINISHED if finished else RESULTS / name
    released = released_directory(RESULTS / name)
    if Path(name).name != name or name == RELEASED:
        raise UserError(f"adopt: {name}: must be the name of a directory in {RESULTS}, such as testbed")
    if not any((local / file).exists() for file in (TIDY, _BOARD)):
        make = "make them by `troll status FILE --page`" if finished else "make the results first"
        raise UserError(f"adopt: {local}: has neither {TIDY}/ nor {_BOARD}; {make}")
    _check_committed(released)
    released.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=released.parent) as temporary:
        fresh = Path(temporary, name)
        fresh.mkdir()
        if (local / _BOARD).exists():
            for path in sorted(local.iterdir()):
                if path.suffix in (".csv", ".md", ".png") or path.name == _BOARD:
                    shutil.copyfile(path, fresh / path.name)
        else:
            _copy_experiment(local, released, fresh)
        if (fresh / PLAN).exists() or (fresh / _BOARD).exists():
            summary = _check(fresh, released.parent)
        else:
            check_clean(read_tidy(fresh).runs, released)
            count = len(_run_ids(fresh))
            summary = f"{count} finished runs and base models of an unfinished experiment, without tables"
        _replace(released, fresh)
    return f"{released}: {summary}; to publish it, commit it after `make readme` and `make check-results`"


def _check_committed(released: Path) -> None:
    commit = commit_of()
    if commit is None:
        raise UserError("adopt: this is not a git checkout, so a release could not be traced to its source")
    if commit.endswith(DIRTY):
        raise UserError("adopt: the source has uncommitted changes; commit or stash them first (git status)")
    if released.exists() and not is_committed([released.absolute()]):
        raise UserError(f"adopt: {released} has uncommitted changes; commit them or restore it first")


def _copy_experiment(local: Path, released: Path, fresh: Path) -> None:
    for path in _kept_files(local, released):
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local / path if (local / path).exists() else released / path, target)
    own = table_files(local)
    if [*own] == [WHOLE]:
        (fresh / TIDY).mkdir()
        shutil.copyfile(own[WHOLE], table_file(fresh, WHOLE))
        return
    frames = [read_table_file(path) for path in own.values()]
    if not (local / PLAN).exists():
        if (released / PLAN).exists():
            raise UserError(f"adopt: {local}: is not finished, but {released} is; finish it first")
        here = _run_ids(local)
        others = [read_table_file(path) for path in table_files(released).values()]
        frames += [frame[~frame["run_id"].isin(here)] for frame in others]
    for name in sorted({table_of_rule(rule) for frame in frames for rule in frame["rule"].unique()}):
        rows = [frame[frame["rule"].astype(str).map(table_of_rule) == name] for frame in frames]
        write_table_file(table_file(fresh, name), rows)


def _run_ids(directory: Path) -> set[str]:
    """Names of the runs and base models in the tidy tables."""
    return {
        str(run_id)
        for path in table_files(directory).values()
        for run_id in read_table_file(path, ["run_id"])["run_id"].unique()
    }


def _kept_files(local: Path, released: Path) -> Iterator[Path]:
    """Paths, relative to the directory, of an experiment's tracked files besides the tidy tables."""
    if not (local / PLAN).exists():
        return
    for directory, pattern in _FILES.items():
        yield from (path.relative_to(local) for path in sorted((local / directory).glob(pattern)))
    for path in sorted([*local.glob("claims.*"), local / PLAN]):
        yield path.relative_to(local)
    for measured in _MEASURED:
        place = local if (local / measured).exists() else released
        files = (path for path in sorted((place / measured).rglob("*")) if path.is_file())
        yield from (path.relative_to(place) for path in files)
    place = local if (local / "difficulty.md").exists() else released
    if (place / "difficulty.md").exists():
        yield Path("difficulty.md")


def _check(fresh: Path, parent: Path) -> str:
    """Recomputes what the release shows from its data, and writes its page, whose links name its files."""
    if (fresh / _BOARD).exists():
        return f"{len(list(fresh.iterdir()))} files of a board, which `make check-results` recomputes"
    results = read_results(fresh)
    if results.rehearsal:
        raise UserError(f"adopt: {fresh.name}: its runs are those of a rehearsal, whose numbers mean nothing")
    check_clean(results.runs, parent / fresh.name)
    claims = claim_files(None, results.claims)
    check_results(fresh, results=results, claims=claims, write=True)
    compared = check_results(fresh, results=results, claims=claims)
    compared += check_measurements(fresh) if has_measurements(fresh) else []
    trained = results.runs[results.runs["trust_region"] != BASE]
    return f"{trained['run_id'].nunique():,} runs, {len(compared)} files"


def _replace(released: Path, fresh: Path) -> None:
    """Renames the new directory to its place; the old one, which git has, is removed afterwards."""
    old = fresh.parent / f"{fresh.name}.old"
    if released.exists():
        released.rename(old)
    fresh.rename(released)
