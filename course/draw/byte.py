"""The opening picture: one byte on its way to a chip, and what the chip could do meanwhile."""

from __future__ import annotations

from matplotlib.patches import FancyArrowPatch, Rectangle

from course.draw.static import static
from course.draw.theme import FLOWS, INK, LEVELS, PAPER, SOFT

COLUMNS = 32  # of dots in the chip


def one_byte(ax, operations: float | None = None) -> str:
    """A byte and a dot for each of the `operations`; without their number, a question."""
    ax.set(xlim=(0, 10), ylim=(0, 3.2))
    ax.axis("off")
    memory = LEVELS["hbm"]
    ax.add_patch(Rectangle((0.05, 0.3), 1.5, 2.6, facecolor=memory.colour, linewidth=0))
    ax.text(0.8, 1.6, "main\nmemory", ha="center", va="center", color=memory.ink, fontsize=14)
    ax.add_patch(FancyArrowPatch((1.65, 1.3), (3.35, 1.3), arrowstyle="-|>", mutation_scale=20,
                                 color=INK, linewidth=2))  # fmt: skip
    ax.add_patch(Rectangle((2.25, 1.5), 0.4, 0.4, facecolor=memory.colour, linewidth=0))
    ax.text(2.45, 2.15, "one byte", ha="center", va="center", fontsize=14)
    ax.add_patch(Rectangle((3.45, 0.3), 6.5, 2.6, facecolor=PAPER, edgecolor=INK, linewidth=2))
    ax.text(3.6, 2.62, "the chip", va="center", fontsize=14)
    if operations is None:
        ax.text(6.7, 1.45, "?", ha="center", va="center", fontsize=60, color=SOFT)
        ax.text(9.8, 2.62, "operations meanwhile", ha="right", va="center", fontsize=14)
        return "One byte arrives at a chip. How many operations could the chip do meanwhile?"
    count = round(operations)
    ax.text(9.8, 2.62, f"{count} operations meanwhile", ha="right", va="center", fontsize=14,
            fontweight="bold")  # fmt: skip
    spots = [divmod(i, COLUMNS) for i in range(count)]
    ax.plot([3.68 + 0.194 * column for _, column in spots], [2.28 - 0.194 * row for row, _ in spots],
            "o", markersize=8, markeredgewidth=0, color=FLOWS["flash"].colour)  # fmt: skip
    return f"While one byte arrives at a chip, it could do {count} operations, each drawn as a dot."


static("one_byte", size=(10, 3.2))(one_byte)
