"""Tables and figures by name: what the command line and the workflow ask for."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from troll.analysis import (
    aggregates,
    behaviour,
    figures,
    published_figures,
    sensitivity,
    tables,
    training_cost,
)
from troll.analysis.formats import write_table
from troll.analysis.published import SECTIONS, published_table
from troll.analysis.report import write_table_page
from troll.analysis.runs import read_items, read_runs
from troll.analysis.stand_ins import mark_stand_ins
from troll.analysis.style import write_figure
from troll.errors import UserError
from troll.files import atomic_path


@dataclass(frozen=True)
class Evidence:
    """What tables and figures are made from.

    Attributes:
        runs: the tidy table (`troll.analysis.runs`).
        items: the table of test problems.
        expected: coordinates of the planned runs.
        skipped: reason by task, for tasks that this machine cannot run.
        stand_ins: what there is in place of the paper's data set, by task.
    """

    runs: pd.DataFrame
    items: pd.DataFrame
    expected: Sequence[Mapping[str, object]] | None = None
    skipped: Mapping[str, str] | None = None
    stand_ins: Mapping[str, str] | None = None

    def main(self) -> pd.DataFrame:
        """The main table."""
        return tables.main_table(self.runs, self.items, expected=self.expected, skipped=self.skipped)


def _published(section: str) -> Callable[[Evidence], pd.DataFrame]:
    return lambda evidence: published_table(section, evidence.runs, evidence.items)


TABLES: Mapping[str, tuple[str, Callable[[Evidence], pd.DataFrame]]] = {
    "main": ("Test success and training behaviour", Evidence.main),
    "comparison": ("TROLL against PPO-clip", lambda evidence: tables.comparison_table(evidence.main())),
    "aggregate": (
        "Methods over all settings of a condition",
        lambda evidence: aggregates.aggregate_table(evidence.items),
    ),
    "test": ("Test success by task", lambda evidence: tables.test_table(evidence.runs)),
    "certificate": ("What the trust regions did", lambda evidence: tables.certificate_table(evidence.runs)),
    "ablation": (
        "Variants of each rule",
        lambda evidence: tables.ablation_table(
            evidence.runs, evidence.items, expected=evidence.expected, skipped=evidence.skipped
        ),
    ),
    "speed": ("Training speed", lambda evidence: behaviour.speed_table(evidence.runs)),
    "stability": ("Stability of training", lambda evidence: behaviour.stability_table(evidence.runs)),
    "training_cost": (
        "What training took",
        lambda evidence: training_cost.training_cost_table(evidence.runs),
    ),
    "power": (
        "Seeds needed to see a difference",
        lambda evidence: behaviour.power_table(evidence.runs, evidence.items),
    ),
    **{f"published_{name}": (section.title, _published(name)) for name, section in SECTIONS.items()},
}

FIGURES: Mapping[str, Callable[[Evidence], Figure]] = {
    "main": lambda evidence: figures.main_figure(evidence.runs),
    "final": lambda evidence: figures.final_figure(evidence.runs, evidence.items),
    "hours": lambda evidence: figures.hours_figure(evidence.runs),
    "ablation": lambda evidence: figures.ablation_figure(evidence.runs),
    "sensitivity": lambda evidence: sensitivity.sensitivity_figure(evidence.runs, evidence.items),
    "published_sizes": lambda evidence: published_figures.sizes_figure(evidence.runs),
    "published_estimators": lambda evidence: published_figures.estimators_figure(evidence.runs),
    "published_families": lambda evidence: published_figures.families_figure(evidence.runs),
    "published_code": lambda evidence: published_figures.code_figure(evidence.runs),
    "published_analysis": lambda evidence: published_figures.analysis_figure(evidence.runs, evidence.items),
}

TASK_FIGURES: Mapping[str, Callable[[Evidence, str], Figure]] = {
    "learning": lambda evidence, task: figures.task_figure(evidence.runs, task),
    "projection": lambda evidence, task: figures.projection_figure(evidence.runs, task),
}


def evidence(runs: Path, items: Path, **planned: Any) -> Evidence:
    """Reads the tidy tables.

    Raises:
        UserError: a file is missing or no such table.
    """
    return Evidence(read_runs(runs), read_items(items), **planned)


def _known(kind: str, name: str, valid: Mapping[str, Any]) -> None:
    if name not in valid:
        raise UserError(f"unknown {kind} {name!r}; valid: {', '.join(valid)}")


def table(name: str, given: Evidence) -> tuple[str, pd.DataFrame]:
    """Title and contents of a table; data sets that stand in for the paper's are marked."""
    title, function = TABLES[name]
    return title, mark_stand_ins(function(given), given.stand_ins or {})


def make_table(name: str, given: Evidence, stem: Path) -> None:
    """Writes ``<stem>.csv``, ``.md``, ``.tex`` and ``.html``.

    Raises:
        UserError: there is no table of this name.
    """
    _known("table", name, TABLES)
    title, frame = table(name, given)
    write_table(frame, stem)
    write_table_page(frame, stem.with_name(f"{stem.name}.html"), title)


def make_figure(name: str, given: Evidence, stem: Path, task: str | None = None) -> None:
    """Writes ``<stem>.pdf`` and ``<stem>.png``.

    Raises:
        UserError: there is no figure of this name, or it is one per task and no task is named.
    """
    _known("figure", name, {**FIGURES, **TASK_FIGURES})
    if name in TASK_FIGURES:
        if task is None:
            raise UserError(f"figure {name!r} is made for one task; name it with --task")
        write_figure(TASK_FIGURES[name](given, task), stem)
    else:
        write_figure(FIGURES[name](given), stem)


def make_report(config: str, targets: Sequence[str], out: Path) -> None:
    """Asks Snakemake for its report of finished targets.

    Args:
        config: the experiment as JSON.
        targets: the workflow's targets that the report shows.
        out: the page.

    Raises:
        UserError: Snakemake could not make it.
    """
    with tempfile.TemporaryDirectory() as directory, atomic_path(out) as temporary:
        configuration = Path(directory) / "experiment.json"
        configuration.write_text(config, encoding="utf-8")
        command = [sys.executable, "-m", "snakemake", "--cores", "1", "--nolock"]
        command += ["--configfile", str(configuration)]
        command += ["--report", str(temporary), "--", *targets]
        result = subprocess.run(command, check=False)
        if result.returncode or not temporary.stat().st_size:
            raise UserError(f"{out}: snakemake --report failed with status {result.returncode}")
