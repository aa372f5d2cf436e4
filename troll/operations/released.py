"""Released tables that come from no tidy table: made again from the data beside them, and compared.

The leaderboard from the runs of its trials and of its fresh seeds, costs and the check of a GPU from their
measurements, the graders' audit from its report, approximation errors from their numbers.
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
    """Makes the tables and figures below a directory again from their data and compares them."""
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
            f"`troll release check {directory} --write` makes them again"
        )
    return compared


def has_measurements(directory: Path) -> bool:
    """Whether anything in a directory is made from measurements, or is the leaderboard."""
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
    """What a script of the workflow defines: it made the measurements, and is not in the package."""
    path = Path("workflow", name)
    if not path.exists():
        raise UserError(f"{path} is not here; run this in the root of a checkout")
    return run_path(str(path))


def _notes(data: Path) -> list[str]:
    """The sentences below a released table: under which conditions its numbers were measured."""
    path = data.with_suffix(".md")
    try:
        paragraphs = path.read_text().split("\n\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; it says how {data.name} was measured") from None
    return [text.strip() for text in paragraphs[1:]]


_MAKERS: Mapping[str, Callable[[Path, Path], None]] = {
    "protocol.yaml": _board,
    "audit.json": _audit,
    "cost.json": _cost,
    "cost_step.csv": _step_cost,
    "approximation.csv": _approximation,
    "gpu_check.json": _gpu,
}
"""What makes the files beside a file of data again, by its name."""
