"""The static figures, which notebooks and README embed: figures/NAME.svg, drawn from `course` data.

A figure module registers what it draws:

    @static("four_passes", size=(10, 4.5))
    def _(ax):
        return four_passes(ax, cost.attention(4096, 128, flow="naive"))

The file is the same, byte for byte, whenever it is drawn, and a test says so. Its text is text, not
outlines: it can be searched and copied, and the reader's machine has a font of these widths.
"""

from __future__ import annotations

import html
import importlib
import io
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from course.draw.theme import FONTS, SIZE


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
    drawn = io.StringIO()
    figure.savefig(
        drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    path = Path(folder) / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_speaking(drawn.getvalue(), name, words), encoding="utf-8", newline="\n")
    return path


def _speaking(svg, name, words):
    """The SVG as one picture with a name, the first sentence of its words, and a description."""
    title = words.split(". ")[0].rstrip(".")
    said = (
        f' role="img" aria-labelledby="{name}-title" aria-describedby="{name}-words">\n'
        f' <title id="{name}-title">{html.escape(title, quote=False)}</title>\n'
        f' <desc id="{name}-words">{html.escape(words, quote=False)}</desc>'
    )
    svg = re.sub(r"(?<=<svg)([^>]*)>", lambda m: m[1] + said, svg, count=1)
    # a formula names the one font that it was set in, without one to fall back on
    return re.sub(r"font-family: 'DejaVu Sans'(?=[;\"])", f"font-family: {FONTS}", svg)


def load_all() -> None:
    """Import every figure module, so that each registers its static figures."""
    import course.draw

    for module in pkgutil.iter_modules(course.draw.__path__):
        if module.name != "__main__":
            importlib.import_module(f"course.draw.{module.name}")
