"""Released tables that come from no tidy table: made again from the data beside them, and compared.

The leaderboard from the runs of its trials and of its fresh seeds, costs and the check of a GPU from their
measurements, the graders' audit from its report, approximation errors from their numbers.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from troll.common.errors import UserError
from troll.common.files import atomic_path

if TYPE_CHECKING:
    import pandas as pd


def check_measurements(directory: Path, *, write: bool = False) -> list[Path]:
    """Makes the tables and figures below a directory again from their data and compares them."""
    from troll.analysis.report.check import same

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
    from troll.analysis.leaderboard.protocol import read_protocol
    from troll.operations.leaderboard import make_board

    protocol = read_protocol(data)
    results = data.parents[1]
    final = [results / f"{protocol.name}-{task}" for task in protocol.experiment["tasks"]]
    make_board(data, [results / name for name in protocol.tuning_experiments], final, out)


def _audit(data: Path, out: Path) -> None:
    from troll.analysis.tables.audit import write_audit
    from troll.common.files import read_json

    write_audit(read_json(data), out / "audit")


def _cost(data: Path, out: Path) -> None:
    from troll.analysis.render.formats import write_table
    from troll.analysis.tables.cost import cost_table
    from troll.common.files import read_json

    write_table(cost_table(read_json(data)), out / "cost")


def _step_cost(data: Path, out: Path) -> None:
    from troll.analysis.render.formats import write_table
    from troll.analysis.tables.cost import annotate_steps

    write_table(annotate_steps(_numbers(data), _notes(data)[0]), out / "cost_step")


def _approximation(data: Path, out: Path) -> None:
    from troll.analysis.figures.approximation import annotate, approximation_figure
    from troll.analysis.render.formats import write_table
    from troll.analysis.render.style import write_figure

    errors = _numbers(data)
    write_table(annotate(errors, _notes(data)[0]), out / "approximation")
    write_figure(approximation_figure(errors), out / "approximation")


def _gpu(data: Path, out: Path) -> None:
    """The page of what `workflow/benchmarks/gpu_check.py` measured."""
    import pandas as pd

    from troll.analysis.render.formats import Style, percent, to_markdown, whole
    from troll.common.files import read_json, write_text

    report = read_json(data)
    about, limits, rows = report["about"], report["limits"], pd.DataFrame(report["rows"])
    sizes = about["sizes"]
    libraries = ", ".join(f"{name} {about[name] or 'not installed'}" for name in _LIBRARIES)
    parts = [
        f"# One {about['card'] or 'CPU (a dry run)'}",
        f"Measured on {about['date']} at commit `{(about['commit'] or 'unknown')[:7]}` ({libraries}) in "
        f"{about['seconds']:.0f} seconds by `python3 workflow/benchmarks/gpu_check.py`; "
        "`troll release check results/gpu --write` makes this page from `gpu_check.json`.",
        f"N = {sizes['tokens']:,} tokens, D = {sizes['width']:,}, V = {sizes['vocab']:,}; whole steps are "
        f"those of a random {sizes['shape']} model. One token in ten lies outside its ball. The backend "
        f"`{sizes['fast']}` is what the package takes by itself, `torch` is plain PyTorch. Times are medians "
        "with their range, of rows that took turns; memory is the peak above the inputs, gradients included. "
        "Launches are kernels, copies and fills of one call; waits are those of the host for the device.",
    ]
    if limits:
        parts.append(
            f"Limits are the needed products at {limits['tflops']:.0f} TFLOP/s or the needed bytes at "
            f"{limits['terabytes_per_s']:.2f} TB/s, both measured here by a large product and a large copy; "
            f"a small launch takes {limits['launch_us']:.1f} microseconds."
        )
    if report["goals"]:
        goals = pd.DataFrame(report["goals"])
        goals["reading"] = [
            _reading(value, limit) for value, limit in zip(goals["value"], goals["limit"], strict=True)
        ]
        goals.attrs["headings"] = {
            "goal": "Goal",
            "value": "Measured",
            "limit": "At most",
            "reading": "Reading",
        }
        parts.append("## Goals\n\n" + to_markdown(goals))
    for section, group in rows.groupby("section", sort=False):
        table = pd.DataFrame({"name": group["name"], "backend": group["backend"]})
        for column in _GPU_COLUMNS:
            if column in group and pd.to_numeric(group[column]).notna().any():
                table[column] = pd.to_numeric(group[column])
        checked = [_checked(row) for row in group.to_dict("records")]
        if any(checked):
            table["errors"] = checked
        table.attrs["headings"] = _GPU_COLUMNS | {
            "name": "Measured",
            "backend": "Backend",
            "errors": "Errors and waits",
        }
        counts = {name: Style(_GPU_COLUMNS[name], whole) for name in ("peak_mib", "launches", "waits")}
        table.attrs["styles"] = counts | {"projected_share": Style(_GPU_COLUMNS["projected_share"], percent)}
        parts.append(f"## {section}\n\n" + to_markdown(table))
    if report["skipped"]:
        parts.append(f"No time was left for: {', '.join(report['skipped'])}.")
    write_text(out / "README.md", "\n\n".join(part.strip() for part in parts) + "\n")


_LIBRARIES = ("torch", "triton", "transformers", "trl")
_GPU_COLUMNS = {
    "ms": "ms [range]",
    "ms_low": "",
    "ms_high": "",
    "limit_ms": "Limit (ms)",
    "ratio": "Times limit",
    "peak_mib": "Peak memory (MiB)",
    "launches": "Launches",
    "waits": "Waits",
    "projected_share": "Projected (%)",
}


def _reading(value: float, limit: float | None) -> str:
    if limit is None or math.isnan(limit):
        return ""
    return "met" if value <= limit else "missed"


def _checked(row: Mapping[Any, Any]) -> str:
    """What failed in a row, its errors by name, and where the host waited."""
    from troll.analysis.render.formats import significant

    parts = [f"**failed**: {row['failed']}"] if isinstance(row.get("failed"), str) else []
    # A frame has NaN where a row has no such key; what is not finite is written as text.
    errors, waits = (row[key] if isinstance(row.get(key), dict) else {} for key in ("errors", "waits_at"))
    parts += [
        f"{name} {value if isinstance(value, str) else significant(value)}"
        for name, (value, _) in errors.items()
    ]
    parts += [f"waits at {place} ({count})" for place, count in waits.items()]
    return ", ".join(parts)


def _numbers(data: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_csv(data)


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
