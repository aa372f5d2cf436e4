"""Checks released tables that are made from data beside them instead of from a tidy table.

These are the duel's board, made from its trials and fresh seeds; costs and the GPU check, from measurements;
the graders' audit, from its report; and approximation errors.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from runpy import run_path
from typing import Any

import pandas as pd

from troll.analysis.leaderboard.protocol import read_protocol
from troll.analysis.render.formats import write_table
from troll.analysis.render.style import write_figure
from troll.analysis.report.check import same
from troll.common.errors import UserError
from troll.common.files import atomic_path, read_json, write_text
from troll.operations.leaderboard import make_board


def check_measurements(directory: Path, *, write: bool = False) -> list[Path]:
    """Makes the tables and figures below a directory again from their data and compares them.

    Returns the files compared; with ``write``, the files that differed, after replacing them.

    Raises:
        UserError: if files differ and ``write`` is false.
    """
    compared, different = [], []
    with tempfile.TemporaryDirectory() as name:
        for number, (data, make) in enumerate(_data_below(directory)):
            fresh = Path(name, str(number))
            fresh.mkdir()
            make(data, fresh)
            for path in sorted(fresh.iterdir()):
                released = data.parent / path.name
                compared.append(released)
                if same(released, path):
                    continue
                different.append(released)
                if write:
                    with atomic_path(released) as temporary:
                        shutil.copyfile(path, temporary)
    if write:
        return different
    if different:
        names = ", ".join(str(path.relative_to(directory)) for path in different)
        raise UserError(
            f"{directory}: {names}: not what the data beside them give; "
            f"`troll release check {directory} --write` updates them"
        )
    return compared


def has_measurements(directory: Path) -> bool:
    """Whether a directory has files that `check_measurements` compares."""
    return next(_data_below(directory), None) is not None


def _data_below(directory: Path) -> Iterator[tuple[Path, Callable[[Path, Path], None]]]:
    for path in sorted(directory.rglob("*")):
        if path.name in _MAKERS and not {"runs", "base"} & set(path.relative_to(directory).parts):
            yield path, _MAKERS[path.name]


def _board(data: Path, out: Path) -> None:
    protocol, results = read_protocol(data), data.parents[1]
    final = [results / f"{protocol.name}-{task}" for task in protocol.experiment["tasks"]]
    make_board(data, [results / name for name in protocol.tuning_experiments], final, out)


def _audit(data: Path, out: Path) -> None:
    _script("graders/audit_tables.py")["write_audit"](read_json(data), out / "audit")


def _cost(data: Path, out: Path) -> None:
    write_table(_script("benchmarks/cost_tables.py")["cost_table"](read_json(data)), out / "cost")


def _step_cost(data: Path, out: Path) -> None:
    annotate = _script("benchmarks/cost_tables.py")["annotate_steps"]
    write_table(annotate(pd.read_csv(data), _notes(data)[0]), out / "cost_step")


def _approximation(data: Path, out: Path) -> None:
    script, errors = _script("benchmarks/approximation_figure.py"), pd.read_csv(data)
    write_table(script["annotate"](errors, _notes(data)[0]), out / "approximation")
    write_figure(script["approximation_figure"](errors), out / "approximation")


def _gpu(data: Path, out: Path) -> None:
    write_text(out / "README.md", _script("benchmarks/page_of_gpu.py")["page"](read_json(data)))


def _script(name: str) -> dict[str, Any]:
    """Returns the globals of a workflow script that is not in the package."""
    path = Path("workflow", name)
    if not path.exists():
        raise UserError(f"{path} is not here; run this in the root of a checkout")
    return run_path(str(path))


def _notes(data: Path) -> list[str]:
    """Returns the notes below a released table, which state how its numbers were measured."""
    path = data.with_suffix(".md")
    try:
        paragraphs = path.read_text().split("\n\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; it must state how {data.name} was measured") from None
    return [text.strip() for text in paragraphs[1:]]


_MAKERS: Mapping[str, Callable[[Path, Path], None]] = {
    "protocol.yaml": _board,
    "audit.json": _audit,
    "cost.json": _cost,
    "cost_step.csv": _step_cost,
    "approximation.csv": _approximation,
    "gpu_check.json": _gpu,
}
"""Functions that make the files beside a data file again, by the data file's name."""
