"""The common style of all figures (colours, line styles, sizes), and reproducible figure files."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

from troll.analysis.data.summaries import method_order
from troll.analysis.data.tidy import BASE
from troll.common.errors import check_known
from troll.common.files import atomic_path

# Okabe-Ito hues, darkened or lightened so that neighbours also differ in lightness, for greyscale prints.
_COLOURS = {BASE: "#6b6b6b", "clip": "#e8710a", "troll": "#0b4f8a"}
_FURTHER = ("#56b4e9", "#cc79a7", "#009e73", "#b8860b", "#882255", "#000000")
_DASHES: Mapping[str, Any] = {"clip": (0, (4, 1.6)), "troll": "solid"}
# Variants of one setting share a hue, from light to dark; settings have different hues.
_HUES = (
    ("#8fd3b6", "#2f9e77", "#0b5d41", "#04301f"),
    ("#cdb4e6", "#8e5bbf", "#542788", "#2d0a52"),
    ("#e3c27a", "#b8860b", "#7a5600", "#3f2c00"),
    ("#f2a7c3", "#cc4c86", "#8a1e52", "#4a0d2b"),
)
_DOSE = re.compile(r"^(.+?)\d+(?:\.\d+)?(?:e-?\d+)?$")
_FURTHER_DASHES = ((0, (6, 1.5, 1.2, 1.5)), (0, (1.2, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""Formats of figures, with the metadata that keeps dates and versions out of the files."""
MOST_PIXELS = 4000
"""Maximum width and height of a PNG: larger images open badly or are rejected as a decompression bomb."""
_WIDTH, _AREA = 1800, 2_700_000  # of a PNG in pixels: pages show about 1100, and results are kept in git
_OFTEN = 1 / 2000  # colours with at least this share of the pixels are kept
_EDGES = 32  # number of colours for all other pixels
_BYTES = np.array([1 << 16, 1 << 8, 1], np.int32)
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
    "svg.fonttype": "path",  # outlines do not depend on installed fonts
    "axes.formatter.use_mathtext": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """Applies this style instead of the user's settings, which are restored afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def dose_families(names: Sequence[str]) -> dict[str, list[str]]:
    """Methods whose names differ only in a trailing number, by their common prefix."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if (match := _DOSE.match(name)) is not None:
            groups.setdefault(match[1], []).append(name)
    return {family: members for family, members in groups.items() if len(members) > 1}


class MethodStyles:
    """Colours, dashes and markers of methods; clip is dashed and troll solid, as in the paper."""

    def __init__(self, trust_regions: Iterable[str]):
        """Assigns styles in the order of ``method_order``, regardless of the order of the names."""
        self.methods = sorted(set(trust_regions) - {BASE}, key=method_order)
        self._of: dict[str, dict[str, Any]] = {BASE: {"color": _COLOURS[BASE], "linestyle": ":"}}
        further = 0
        doses = {name: family for family, names in dose_families(self.methods).items() for name in names}
        families = list(dict.fromkeys(doses.values()))
        for index, name in enumerate(self.methods):
            if name in _COLOURS:
                colour, dashes = _COLOURS[name], _DASHES[name]
            elif name in doses and families.index(doses[name]) < len(_HUES):
                members = [other for other in self.methods if doses.get(other) == doses[name]]
                shade, hues = members.index(name), _HUES[families.index(doses[name])]
                colour = hues[min(shade, len(hues) - 1)]
                dashes = _FURTHER_DASHES[shade % len(_FURTHER_DASHES)]
            else:
                colour = _FURTHER[further % len(_FURTHER)]
                dashes = _FURTHER_DASHES[further % len(_FURTHER_DASHES)]
                further += 1
            marker = MARKERS[index % len(MARKERS)]
            self._of[name] = {"color": colour, "linestyle": dashes, "marker": marker}

    def line(self, trust_region: str) -> dict[str, Any]:
        """Keyword arguments of a line: colour and dashes."""
        styles = self._of[trust_region]
        return {"color": styles["color"], "linestyle": styles["linestyle"]}

    def colour(self, trust_region: str) -> str:
        """Returns the colour of a method."""
        return str(self._of[trust_region]["color"])

    def marker(self, trust_region: str) -> str:
        """Returns the marker of a method."""
        return str(self._of[trust_region]["marker"])

    def mark(self, trust_region: str, linewidth: float) -> Line2D:
        """Returns a legend handle for a marker with its interval."""
        colour, marker = self.colour(trust_region), self.marker(trust_region)
        return Line2D([], [], color=colour, marker=marker, markersize=4.5, linewidth=linewidth)


def legend(
    figure: Figure,
    styles: MethodStyles,
    *,
    base: bool = False,
    marked: bool = False,
    seeds: bool = False,
    columns: int = 6,
) -> None:
    """Adds a legend for the whole figure above the panels."""
    names = [*styles.methods, *([BASE] if base else [])]
    handles: list[Any] = _handles(styles, names)
    for name, handle in zip(names, handles, strict=True):
        if marked and name != BASE:
            handle.set(marker=styles.marker(name), markersize=4.5)
    labels = ["base model" if name == BASE else name for name in names]
    if seeds:
        grey = "#9a9a9a"
        handles += [Line2D([], [], linewidth=0.7, color=grey), Patch(color=grey, alpha=0.35)]
        labels += ["one seed", "all seeds, least to largest"]
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=min(len(labels), columns),
        handlelength=3.2,
        columnspacing=2.2,
    )


def _handles(styles: MethodStyles, names: Sequence[str]) -> list[Line2D]:
    return [Line2D([], [], linewidth=2, **styles.line(name)) for name in names]


def legend_right_of(axes: Axes, styles: MethodStyles, names: Sequence[str]) -> None:
    """Adds a legend of some methods to the right of a panel."""
    handles = _handles(styles, names)
    axes.legend(handles, names, loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=3.2)


def empty(axes: Axes, text: str = "not run") -> None:
    """Writes the reason why a panel is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#777777")
    # Ticks are hidden, not removed, because other panels may share the axes.
    axes.tick_params(which="both", left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.grid(False)


def _reduce_colours(path: Path) -> None:
    """Rewrites a PNG with a palette: frequent colours are kept, rare ones (of edges) are approximated."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    packed = np.asarray(image).astype(np.int32) @ _BYTES
    colours, inverse, counts = np.unique(packed, return_inverse=True, return_counts=True)
    frequent = colours[counts >= _OFTEN * packed.size][: 256 - _EDGES]
    octree = image.quantize(_EDGES, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    edges = np.asarray(octree.getpalette(), np.int32).reshape(-1, 3)[:_EDGES]
    palette = np.concatenate([_unpacked(frequent), edges])
    nearest, least = np.zeros(len(colours), np.uint8), np.full(len(colours), np.inf)
    for index, colour in enumerate(palette):
        distance = ((_unpacked(colours) - colour) ** 2).sum(axis=-1)
        nearest[distance < least] = index
        least = np.minimum(least, distance)
    reduced = Image.fromarray(nearest[inverse].reshape(packed.shape))
    reduced.putpalette(palette.astype(np.uint8).tobytes())
    reduced.save(path, format="PNG", optimize=True)


def _unpacked(colours: np.ndarray) -> np.ndarray:
    return colours[:, None] // _BYTES % 256


def _resolution(width: float, height: float) -> float:
    """Dots per inch that keep a PNG of this size in inches within the limits."""
    limits = (_WIDTH / width, (_AREA / (width * height)) ** 0.5, (MOST_PIXELS - 2) / max(width, height))
    return min(float(mpl.rcParams["savefig.dpi"]), *limits)


def _frame(figure: Figure) -> dict[str, Any]:
    """Bounding box and resolution for saving a figure, within the limits of a PNG."""
    width, height = figure.get_size_inches()
    if _resolution(1.1 * width, 1.1 * height) == mpl.rcParams["savefig.dpi"]:
        return {"dpi": mpl.rcParams["savefig.dpi"], "bbox_inches": "tight", "pad_inches": 0.06}
    if figure.get_layout_engine() is not None:  # only once, as the layout of a hundred panels takes seconds
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # "none" would leave a placeholder, for which saving draws again
    box = figure.get_tightbbox().padded(0.06)  # including legends above the panels
    return {"dpi": _resolution(box.width, box.height), "bbox_inches": box}


def write_figure(figure: Figure, stem: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Writes a figure without dates: the same data give the same bytes. Returns the paths."""
    check_known("format", formats, FORMATS)
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]
    with styled():
        frame = _frame(figure)
        for name, path in zip(formats, paths, strict=True):
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format=name, metadata=FORMATS[name], **frame)
                if name == "png":
                    _reduce_colours(temporary)
    return paths
