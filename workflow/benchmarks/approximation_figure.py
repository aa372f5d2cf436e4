"""Table and figure of the errors of sparse distributions that `approximation.py` measures."""

import math
from collections.abc import Iterator

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from troll.analysis.render.formats import Style, percent, whole
from troll.analysis.render.style import MARKERS, styled

_STYLES = {
    "keep": Style("K", whole),
    "dropped_mass": Style("Dropped mass, at most"),
    "kept": Style("Tokens kept"),
    "tail": Style("Mass dropped"),
    "kl_error": Style("KL error"),
    "kl_error_max": Style("largest"),
    "kl_bound_ratio": Style("over its bound"),
    "log_prob_error": Style("Log-prob error"),
    "log_prob_error_max": Style("largest"),
    "gradient_cosine": Style("Cosine of gradients"),
    "gradient_cosine_min": Style("least"),
    "gradient_norm": Style("Norm of gradient, times dense"),
    "outside": Style("Outside (%)", percent),
    "disagree": Style("Projected by one alone (%)", percent),
}
_SHADES = mpl.colormaps["cividis"]
"""Ordered by lightness: distinguishable for colour-blind readers and in greyscale."""
_PANELS = (
    ("kl_error", "error of KL to old policy (nats)"),
    ("log_prob_error", "error of projected log-probs"),
    ("gradient_error", "1 \N{MINUS SIGN} cosine of policy gradients"),
)


@styled()
def approximation_figure(errors: pd.DataFrame) -> Figure:
    """Draws three panels of errors over K, with a line per dropped mass and logarithmic axes."""
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    panels = figure.subplots(1, len(_PANELS))
    for axes, (name, label) in zip(panels, _PANELS, strict=True):
        masses: list[float] = sorted(errors["dropped_mass"].unique().tolist(), reverse=True)
        for place, (marker, mass) in enumerate(zip(_markers(), masses, strict=False)):
            line = errors[errors["dropped_mass"] == mass].sort_values("keep")
            values = 1.0 - line["gradient_cosine"] if name == "gradient_error" else line[name]
            # Smaller values are float64 rounding errors.
            share = place / max(len(masses) - 1, 1)
            axes.plot(
                line["keep"],
                values.clip(lower=1e-14),
                marker=marker,
                # Later lines are darker and smaller, so that coinciding markers are all visible.
                color=_SHADES(0.92 * (1 - share)),
                markersize=6.5 - 4 * share,
                linewidth=3 - 2.2 * share,
                label=_power(mass),
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel("kept tokens K, at most")
        axes.set_ylabel(label)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, title="dropped mass", loc="outside upper center", ncols=len(labels))
    return figure


def _power(mass: float) -> str:
    exponent = math.log10(mass) if mass > 0 else math.nan
    return f"$10^{{{exponent:.0f}}}$" if exponent.is_integer() else f"{mass:g}"


def _markers() -> Iterator[str]:
    while True:
        yield from MARKERS


def annotate(errors: pd.DataFrame, conditions: str) -> pd.DataFrame:
    """Adds headings and a note on the measurement's conditions to the table."""
    errors.attrs |= {"styles": _STYLES, "notes": [conditions]}
    return errors
