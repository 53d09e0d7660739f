"""The static figures, which notebooks and README embed: figures/NAME.svg, drawn from `course` data.

A figure module registers what it draws:

    @static("four_passes", size=(10, 4.5))
    def _(ax):
        return four_passes(ax, cost.attention(4096, 128, flow="naive"))

The file is the same, byte for byte, whenever it is drawn, and a test says so.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from course.draw.theme import SIZE


class Static(NamedTuple):
    """A figure that is kept as a file: how to draw it, and its size in inches."""

    draw: Callable
    size: tuple[float, float]
    panels: tuple[int, int]


STATIC: dict[str, Static] = {}


def static(
    name: str, size: tuple[float, float] = SIZE, panels: tuple[int, int] = (1, 1)
) -> Callable:
    """Register the decorated `draw(ax) -> words` as figures/NAME.svg."""

    def register(draw):
        STATIC[name] = Static(draw, size, panels)
        return draw

    return register


def save(name: str, folder: Path) -> Path:
    """Draw one static figure into `folder`; its words become the description inside the SVG."""
    draw, size, panels = STATIC[name]
    figure = Figure(figsize=size, layout="constrained")
    words = draw(figure.subplots(*panels))
    path = Path(folder) / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None, "Description": words})
    return path


def load_all() -> None:
    """Import every figure module, so that each registers its static figures."""
    import course.draw

    for module in pkgutil.iter_modules(course.draw.__path__):
        if module.name != "__main__":
            importlib.import_module(f"course.draw.{module.name}")
