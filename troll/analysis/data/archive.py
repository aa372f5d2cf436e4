"""Finished runs as rows of tables: a run that is in them is not made again.

Only if the experiment file says ``archive: true``. A run is appended to the table of its rule in
``results/<experiment>/tidy`` when it ends, so that a lost machine costs only the runs in progress. Runs in
``results/released/<experiment>/tidy`` count too: collecting copies them to the table `FROM_RELEASE`. A run
counts if its key is the planned one and no later version of the numbers changes its rule.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from troll.analysis.data.runs import read_directories
from troll.analysis.data.tidy import (
    BASE,
    TIDY,
    Tidy,
    on_disk,
    read_table_file,
    read_tidy,
    table_file,
    table_files,
    write_table_file,
)
from troll.common.errors import UserError
from troll.common.files import only_writer
from troll.common.numerics import changed_since

_FINISHED = ("manifest.json", "grades.json")
_IDENTITY = ("run_id", "key", "numerics", "rule")
FROM_RELEASE = "+released"
"""Name of the table with rows that were copied from the release; no rule's table can have it."""


@dataclass(frozen=True)
class ArchivedRun:
    """What the tables say of a run, or of a base model."""

    key: str  # of `troll.experiment.keys.key_of`
    numerics: int  # the version of the numbers that it was made with
    rule: str  # of its trust region; empty for a base model

    def counts_as(self, key: str) -> bool:
        """Returns whether running the key again today would give the same numbers."""
        return self.key == key and not changed_since(self.numerics, self.rule)


def table_of_rule(rule: str) -> str:
    """Returns the name of the table with the runs of a rule; base models, which have none, have one too."""
    # A file whose name begins with a dot is being written.
    return re.sub(r"[^\w.-]+", "-", rule).strip(".-") or BASE


def archived_runs(results: Path) -> dict[str, ArchivedRun]:
    """Returns runs and base models in an experiment's tables by run id, without those of `FROM_RELEASE`."""
    runs: dict[str, ArchivedRun] = {}
    for path in _own_table_files(results):
        rows = read_table_file(path, _IDENTITY).drop_duplicates()
        for run_id, key, numerics, rule in rows[[*_IDENTITY]].itertuples(index=False):
            runs[str(run_id)] = ArchivedRun(str(key), int(numerics), str(rule))
    return runs


def _own_table_files(results: Path) -> list[Path]:
    """Returns the tables of runs that were appended in ``results``, as opposed to copied from the release."""
    return [path for name, path in table_files(results).items() if name != FROM_RELEASE]


def append_run(directory: Path, results: Path, key: str) -> None:
    """Adds a finished run, or a graded base model, to the tables; one of the same name is replaced.

    Processes wait for one another, and each file is replaced atomically. If this is killed while it replaces
    a run, that run may be missing; all others are intact.
    """
    if missing := [name for name in _FINISHED if not (directory / name).is_file()]:
        raise UserError(f"{directory / missing[0]}: missing; only finished runs that are graded can be kept")
    of_run = (directory / "run.yaml").exists()
    tidy = read_directories(*(([directory], []) if of_run else ([], [directory])))
    rows = on_disk(tidy)
    rows["key"] = rows["key"].cat.rename_categories([key])
    run_id, rule = str(rows["run_id"].iloc[0]), str(rows["rule"].iloc[0])
    path = table_file(results, table_of_rule(rule))
    with only_writer(results / TIDY):
        for left in (results / TIDY).glob(".*.parquet"):  # by a process that was killed
            left.unlink()
        for other in table_files(results).values():
            if other != path:
                _remove({run_id}, other)
        before = [read_table_file(path)] if path.exists() else []
        write_table_file(path, [*(frame[frame["run_id"] != run_id] for frame in before), rows])


def _remove(run_ids: set[str], path: Path) -> None:
    """Removes runs from a table that is no longer theirs."""
    if run_ids.isdisjoint(read_table_file(path, ["run_id"])["run_id"]):
        return
    frame = read_table_file(path)
    kept = frame[~frame["run_id"].isin(run_ids)]
    if kept.empty:
        path.unlink()
    else:
        write_table_file(path, [kept])


def collect_planned(
    results: Path, keys: Mapping[str, str], directories: Mapping[str, Path], released: Path | None = None
) -> Tidy:
    """Returns the tables of the planned runs and base models.

    Finished directories that the tables in ``results`` lack are appended first; what has neither is copied
    from the tables of the same experiment in ``released``.
    """
    if not keys:
        raise UserError(f"{results}: no runs are planned; name them in the plan's keys")
    known = archived_runs(released) if released else {}
    archived, from_release = archived_runs(results), set[str]()
    needed = []
    for name, key in keys.items():
        if name in archived and archived[name].counts_as(key):
            continue
        if name in known and known[name].counts_as(key) and name not in directories:
            from_release.add(name)
        else:
            needed.append(name)
    if absent := [run_id for run_id in needed if run_id not in directories]:  # before the first is appended
        raise UserError(
            f"{results / TIDY}: has no run {absent[0]} as it is planned, and none was made here "
            f"({len(absent)} of {len(keys)} are missing); run the workflow again"
        )
    for run_id in needed:
        append_run(directories[run_id], results, keys[run_id])
    now = archived_runs(results)
    for run_id, key in keys.items():
        # A directory may be as old as the row that it replaces.
        if run_id not in from_release and not now[run_id].counts_as(key):
            raise UserError(
                f"{directories[run_id]}: made with numerics version {now[run_id].numerics}, and a later "
                "version changes its numbers; remove the directory, and run the workflow again"
            )
    _copy_released(from_release, keys, released, results)
    with only_writer(results / TIDY):  # another group of the experiment may be copying runs that both have
        return read_tidy(results).of_runs(keys)


def _copy_released(run_ids: set[str], planned: Collection[str], released: Path | None, results: Path) -> None:
    """Copies the rows of these runs, out of the planned ones, from the released tables to `FROM_RELEASE`."""
    path = table_file(results, FROM_RELEASE)
    with only_writer(results / TIDY):
        if path.exists():  # with runs that another group of the experiment has copied
            _remove(set(planned), path)
        if not run_ids or released is None:
            return
        for own in _own_table_files(results):  # rows of an earlier plan, which the release replaces
            _remove(run_ids, own)
        frames = [read_table_file(path) for path in table_files(released).values()]
        copied = [frame[frame["run_id"].isin(run_ids)] for frame in frames]
        write_table_file(path, [*copied, *([read_table_file(path)] if path.exists() else [])])
