"""The one style of all figures: colours, line styles, sizes and files that do not change from run to run."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from troll.analysis.runs import BASE
from troll.analysis.summaries import method_order
from troll.files import atomic_path

# Okabe-Ito hues, darkened or lightened so that neighbours differ in lightness too and survive a grey print.
_COLOURS = {BASE: "#6b6b6b", "clip": "#e8710a", "troll": "#0b4f8a"}
_FURTHER = ("#56b4e9", "#cc79a7", "#009e73", "#b8860b", "#882255", "#000000")
_DASHES = {"clip": (0, (4, 1.6)), "troll": "solid"}
_FURTHER_DASHES = ((0, (6, 1.5, 1.2, 1.5)), (0, (1.2, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlepad": 5,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,
    "svg.hashsalt": "troll",
    "svg.fonttype": "none",
    "axes.formatter.use_mathtext": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draws with this style, whatever the user's own settings, and leaves those as they were."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


class Look:
    """Colours, dashes and markers of methods; clip dashed and troll solid, as in the paper."""

    def __init__(self, trust_regions: Iterable[str]):
        """Assigns looks in the order of ``method_order``, whatever order the names come in."""
        self.methods = sorted(set(trust_regions) - {BASE}, key=method_order)
        self._of: dict[str, dict[str, Any]] = {BASE: {"color": _COLOURS[BASE], "linestyle": ":"}}
        further = 0
        for index, name in enumerate(self.methods):
            if name in _COLOURS:
                look: dict[str, Any] = {"color": _COLOURS[name], "linestyle": _DASHES[name]}
            else:
                look = {
                    "color": _FURTHER[further % len(_FURTHER)],
                    "linestyle": _FURTHER_DASHES[further % len(_FURTHER_DASHES)],
                }
                further += 1
            self._of[name] = look | {"marker": MARKERS[index % len(MARKERS)]}

    def line(self, trust_region: str) -> dict[str, Any]:
        """Keywords for a line: colour and dashes."""
        look = self._of[trust_region]
        return {"color": look["color"], "linestyle": look["linestyle"]}

    def colour(self, trust_region: str) -> str:
        """The colour of a method."""
        return str(self._of[trust_region]["color"])

    def marker(self, trust_region: str) -> str:
        """The marker of a method."""
        return str(self._of[trust_region]["marker"])


def legend(
    figure: Figure,
    look: Look,
    *,
    base: bool = False,
    marked: bool = False,
    published: bool = False,
    y: float = 1.0,
    columns: int = 6,
) -> None:
    """One legend for the whole figure, above the panels.

    Args:
        figure: the figure.
        look: its methods, as thick lines that show the dashes.
        base: whether the base model is shown.
        marked: whether lines have markers.
        published: whether published end values are shown, as short thick lines.
        y: lower edge in the figure's height.
        columns: most entries in a line.
    """
    names = [*look.methods, *([BASE] if base else [])]
    handles = [mpl.lines.Line2D([], [], linewidth=2, **look.line(name)) for name in names]
    for name, handle in zip(names, handles, strict=True):
        if marked and name != BASE:
            handle.set(marker=look.marker(name), markersize=4.5)
    labels = ["base model" if name == BASE else name for name in names]
    if published:
        handles.append(mpl.lines.Line2D([], [], linewidth=4, color="#9a9a9a"))
        labels.append("published end value")
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, y),
        ncols=min(len(labels), columns),
        handlelength=3.2,
        columnspacing=2.2,
    )


def empty(axes: Axes, text: str = "not run") -> None:
    """Says in a panel why it is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#777777")
    # Ticks are hidden, not removed: the axes may be shared with panels that need them.
    axes.tick_params(which="both", left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.grid(False)


def _reduce_colours(path: Path) -> None:
    """Rewrites a PNG with a palette: a figure has few colours, and results are kept in git."""
    with Image.open(path) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, format="PNG", optimize=True)


def write_figure(figure: Figure, stem: Path) -> list[Path]:
    """Writes ``<stem>.pdf`` and ``<stem>.png`` without dates, so that the same data give the same bytes."""
    paths = []
    for suffix, metadata in ((".pdf", {"CreationDate": None}), (".png", {"Software": None})):
        path = stem.with_name(stem.name + suffix)
        with styled(), atomic_path(path) as temporary:
            figure.savefig(
                temporary, format=suffix[1:], metadata=metadata, bbox_inches="tight", pad_inches=0.06
            )
            if suffix == ".png":
                _reduce_colours(temporary)
        paths.append(path)
    return paths
