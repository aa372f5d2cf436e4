"""The first comparison that `make results` shows: one seed, from a base model included in the source."""

from pathlib import Path

import pandas as pd

from troll.analysis.data.results import read_results
from troll.analysis.data.summaries import BASELINE
from troll.analysis.data.tidy import BASE
from troll.analysis.render.formats import percent
from troll.common.digests import damage
from troll.common.files import read_json

MODELS = Path("workflow/first-look")
EXPERIMENT = Path("workflow/config/first-look.yaml")
_MODEL = MODELS / "troll/tiny-chains"
_RESULTS = Path("results/first-look")


def reason_against(experiment: Path) -> str | None:
    """Returns why an experiment gets no first comparison; None if it should get one.

    Only the testbed experiment does, whose base model is included in the source. The reason is empty where
    the user need not be told.
    """
    if experiment.resolve() != Path("workflow/config/testbed.yaml").resolve() or not EXPERIMENT.exists():
        return ""
    if (_RESULTS / "page.html").exists() or any(Path("results/testbed/runs").glob("*")):
        return ""
    wrong = damage(_MODEL, read_json(MODELS / "manifest.json")["checkpoint"])
    return None if wrong is None else f"no first comparison: {_MODEL}: {wrong}; git checkout -- {MODELS}"


def outcome() -> str:
    """Returns the two runs' results as one line of text."""
    runs = read_results(_RESULTS).runs
    ended = runs[(runs["metric"] == "pass@1") & (runs["source"] == "test")]
    solved = pd.Series(ended["value"].to_numpy(), index=ended["trust_region"].astype(str))
    return (
        f"first comparison (chains, stale rollouts, one seed): TROLL solves {percent(solved['troll'])} % of "
        f"the test problems, clip {percent(solved[BASELINE])} %, the base model {percent(solved[BASE])} %; "
        f"curves: {_RESULTS / 'page.html'}"
    )
