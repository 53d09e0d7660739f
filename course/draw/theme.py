"""One look for every figure: fonts legible from the back of a room, one colour a level and a flow.

The colours hold for the common kinds of colour blindness, and never stand alone: levels also differ
by hatch and by lightness (the darker, the further from the arithmetic), flows by marker and dash.
Figures stand on solid white, so they read the same in light and in dark JupyterLab.
"""

from __future__ import annotations

from typing import NamedTuple

import matplotlib as mpl

INK, SOFT, GRID, PAPER = "#1a1a1a", "#5c5c5c", "#d9d9d9", "#ffffff"
ACCENT = "#b3261e"  # for the one thing to look at


class LevelStyle(NamedTuple):
    """How a memory level is filled."""

    colour: str
    hatch: str
    ink: str  # of text on top of it


class FlowStyle(NamedTuple):
    """How a flow of attention (or a chain: naive is unfused, flash is fused) is drawn."""

    colour: str
    marker: str
    dash: str | tuple
    hatch: str
    label: str

    @property
    def line(self) -> dict:
        """Keyword arguments for `Axes.plot`."""
        return dict(color=self.colour, marker=self.marker, linestyle=self.dash)

    @property
    def bar(self) -> dict:
        """Keyword arguments for `Axes.bar`."""
        return dict(facecolor=self.colour, hatch=self.hatch, edgecolor=PAPER)


LEVELS = {
    "registers": LevelStyle("#efe3f5", "", INK),
    "shared": LevelStyle("#cfb0dd", "//", INK),
    "l2": LevelStyle("#8a58a6", "..", PAPER),
    "hbm": LevelStyle("#4b1d6b", "", PAPER),
    "host": LevelStyle("#a6a6a6", "\\\\", INK),
    "nvme": LevelStyle("#595959", "xx", PAPER),
}
FLOWS = {
    "naive": FlowStyle("#d55e00", "o", "-", "//", "naive"),
    "tiled": FlowStyle("#009e73", "s", "--", "..", "tiled"),
    "flash": FlowStyle("#0072b2", "D", "-.", "", "fused"),
    "measured": FlowStyle("#1a1a1a", "^", ":", "xx", "measured"),
}

SIZE = (10, 4.5)  # inches: as wide as a notebook's column at DPI
DPI = 100

# The first ships with matplotlib, so a picture is the same everywhere. An SVG is set by the reader's
# browser: Verdana, which Windows and macOS have, is as wide to a few per cent.
FAMILIES = ["DejaVu Sans", "Verdana"]
FONTS = ", ".join([*map(repr, FAMILIES), "sans-serif"])

_LOOK = {
    "font.size": 13,
    "font.family": "sans-serif",
    "font.sans-serif": FAMILIES,
    "axes.titlesize": 15,
    "axes.titleweight": "bold",
    "axes.labelsize": 13,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "legend.framealpha": 0.95,
    "legend.edgecolor": GRID,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.5,
    "lines.markersize": 8,
    "hatch.linewidth": 0.8,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "figure.dpi": DPI,
    "figure.figsize": SIZE,
    "text.hinting": "none",  # a third faster to draw, which every move of a slider pays for
    "svg.hashsalt": "flash-course",  # element ids that do not change from run to run
    "svg.fonttype": "none",  # text stays text
}


def apply() -> None:
    """Set the look for every figure from here on. Importing `course.draw` does it once.

    It starts from matplotlib's defaults: a matplotlibrc of the reader's own, with LaTeX or sketched
    lines, would change the pictures or stop them.
    """
    mpl.rcdefaults()
    mpl.rcParams.update(_LOOK)
