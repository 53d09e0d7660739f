"""Show a figure in a notebook, with its description in words for those who cannot see it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable

from matplotlib.figure import Figure

from course.draw.theme import DPI, SIZE


class Picture:
    """A drawn figure and the sentence that says what it shows."""

    def __init__(self, figure: Figure, words: str):
        self.figure, self.words = figure, words

    def _repr_html_(self) -> str:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=2 * DPI, metadata={"Software": None})
        data = base64.b64encode(buffer.getvalue()).decode()
        width = round(self.figure.get_figwidth() * DPI)
        # JupyterLab shows the first line of a collapsed output. The words may be the answer.
        return (
            "<!-- picture -->\n"
            f'<img alt="{html.escape(self.words)}" style="max-width: 100%" width="{width}" '
            f'src="data:image/png;base64,{data}">'
        )

    def __repr__(self) -> str:
        return self.words


def show(
    draw: Callable[..., str],
    *data,
    size: tuple[float, float] = SIZE,
    panels: tuple[int, int] = (1, 1),
    **options,
) -> Picture:
    """Draw `draw(ax, *data, **options)` on a new figure of `size` inches.

    Every figure function of `course.draw` takes the Axes first (an array of them where it needs
    several `panels`, rows × columns) and returns its description in words, which becomes the text
    alternative of the picture.
    """
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    return Picture(figure, draw(figure.subplots(*panels), *data, **options))
