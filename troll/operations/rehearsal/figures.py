"""Checks that all figures of the planned runs can be drawn, with made-up numbers, and are not too large."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from troll.analysis.data.reduction import by_batch
from troll.analysis.data.results import Results
from troll.analysis.data.tidy import ITEM_COLUMNS, RUN_COLUMNS
from troll.analysis.metrics import METRICS
from troll.analysis.render.style import MOST_PIXELS
from troll.analysis.report.make import make_figure
from troll.experiment.experiment import Experiment, Run
from troll.operations.outputs import figures_of
from troll.operations.rehearsal.report import Check, State, failures_or_ok

_METRICS = tuple(name for name, metric in METRICS.items() if metric.label)
"""Metrics that figures show."""
_STEPS, _PROBLEMS = (1, 2, 3), 5
SECONDS = 30.0
"""Seconds in which a figure of the whole plan should be drawn."""


def made_up(experiment: Experiment, planned: Sequence[Run]) -> Results:
    """Makes up results for runs of an experiment."""
    rows = by_batch(
        {"step": step, "rollout_batch": step, "wall_s": 60.0 * step, "source": "train"}
        | {"metric": metric, "value": 0.1 * step}
        for step in _STEPS
        for metric in _METRICS
    )
    runs, items, expected = [], [], []
    for run in planned:
        place = vars(run) | {"experiment": experiment.experiment, "run_id": run.run_id}
        place |= {"rule": experiment.trust_regions[run.trust_region].rule}
        expected.append({key: place[key] for key in (*vars(run), "rule")})
        runs += [place | row for row in rows]
        items += [place | {"task_id": str(index), "n": 4, "c": index % 5} for index in range(_PROBLEMS)]
    return Results(
        _filled(pd.DataFrame(runs), RUN_COLUMNS), _filled(pd.DataFrame(items), ITEM_COLUMNS), expected
    )


def _filled(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Adds the missing columns of a tidy table, with empty values."""
    empty: dict[str, Any] = {"category": "", "bool": False, "Int64": None, "float64": float("nan")}
    missing = {name: empty[kind] for name, kind in columns.items() if name not in frame.columns}
    return frame.assign(**missing)[list(columns)].astype(dict(columns))


def check_figures(experiment: Experiment, planned: Sequence[Run]) -> list[Check]:
    """Draws every figure of the planned runs, and checks its size and drawing time."""
    begun, results = time.process_time(), made_up(experiment, planned)
    drawn: dict[Check, int] = {}  # with the figure's height
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # else Pillow refuses huge images
    try:
        with tempfile.TemporaryDirectory() as directory:
            for entry, task, stem in figures_of(experiment, planned):
                started = time.process_time()
                make_figure(entry.name, results, Path(directory, stem), task or None)
                seconds = time.process_time() - started
                with Image.open(Path(directory, f"{stem}.png")) as image:
                    width, height = image.size
                size = f"{width:,} x {height:,} pixels in {seconds:.0f} s"
                large = max(width, height) > MOST_PIXELS
                # The time depends on the machine too, so it is only worth a note.
                state: State = "failed" if large else "note" if seconds > SECONDS else "ok"
                size += f"; at most {MOST_PIXELS:,} pixels and {SECONDS:.0f} s" if state != "ok" else ""
                drawn[Check("figures", state, size, f"figures.{stem}")] = height
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    seconds = time.process_time() - begun
    largest = max(drawn, key=drawn.__getitem__).found if drawn else "none"
    summary = f"{len(drawn)} figures of {len(planned)} planned runs in {seconds:.0f} s, the largest {largest}"
    return failures_or_ok("figures", [check for check in drawn if check.state != "ok"], summary)
