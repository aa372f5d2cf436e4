"""The page with the results of `gpu_check.py`."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from troll.analysis.render.formats import Style, percent, significant, to_markdown, whole

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


def page(report: Mapping[str, Any]) -> str:
    """Makes the page in Markdown from ``gpu_check.json``."""
    about, limits, rows = report["about"], report["limits"], pd.DataFrame(report["rows"])
    sizes = about["sizes"]
    libraries = ", ".join(f"{name} {about[name] or 'not installed'}" for name in _LIBRARIES)
    parts = [
        f"# One {about['card'] or 'CPU (a dry run)'}",
        f"Measured on {about['date']} at commit `{(about['commit'] or 'unknown')[:7]}` ({libraries}) in "
        f"{about['seconds']:.0f} seconds by `python3 workflow/benchmarks/gpu_check.py`; "
        "`troll release check results/released/gpu --write` makes this page from `gpu_check.json`.",
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
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _reading(value: float, limit: float | None) -> str:
    if limit is None or math.isnan(limit):
        return ""
    return "met" if value <= limit else "missed"


def _checked(row: Mapping[Any, Any]) -> str:
    """Returns the failed check of a row, its errors by name, and where the host waited."""
    parts = [f"**failed**: {row['failed']}"] if isinstance(row.get("failed"), str) else []
    # In a frame, missing keys are NaN; values that are not finite are stored as text.
    errors, waits = (row[key] if isinstance(row.get(key), dict) else {} for key in ("errors", "waits_at"))
    parts += [
        f"{name} {value if isinstance(value, str) else significant(value)}"
        for name, (value, _) in errors.items()
    ]
    parts += [f"waits at {place} ({count})" for place, count in waits.items()]
    return ", ".join(parts)
