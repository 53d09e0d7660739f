"""The map of ideas: which thought leads to which, and the notebook that teaches it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from matplotlib.patches import FancyBboxPatch

from course.draw.static import static
from course.draw.theme import FLOWS, INK, PAPER, SOFT

FAINT = "#9a9a9a"
# What a node is: fill, edge, dash. A trouble has the naive flow's colour, a cure the fused one's.
KINDS = {
    "trouble": ("#fdeee3", FLOWS["naive"].colour, (0, (5, 2))),
    "tool": ("#f2f2f2", SOFT, "-"),
    "cure": ("#e3f0f9", FLOWS["flash"].colour, "-"),
    "generation": (PAPER, INK, "-"),
    "lesson": (INK, INK, "-"),
    "planned": (PAPER, FAINT, ":"),
}


class Idea(NamedTuple):
    """One node: its words, the notebook that teaches it, the middle of its box."""

    name: str
    gist: str
    notebook: str
    kind: str
    x: float
    y: float


WIDTH, HEIGHT = 2.14, 0.9
IDEAS = {
    "wall": Idea("Memory wall", "arithmetic outran\nthe bytes it needs", "01", "trouble", 1.2, 4.75),
    "roofline": Idea("Roofline", "waiting for bytes,\nor working?", "02", "tool", 1.2, 3.66),
    "fusion": Idea("Kernel fusion", "skip the trips of what\nnobody keeps", "03", "cure", 3.7, 4.75),
    "attention": Idea("Attention waits", "an N×N matrix\ntravels to and fro", "04", "trouble", 3.7, 3.66),
    "tiling": Idea("Tiling", "a block at a time,\nsmall enough to stay", "05", "cure", 6.3, 4.75),
    "online": Idea("Online softmax", "a running sum,\ncorrected as it goes", "05", "cure", 6.3, 3.66),
    "again": Idea("Recomputation", "work twice rather\nthan fetch", "07", "cure", 6.3, 2.57),
    "training": Idea("Training", "your own kernels\ntrain a model", "08", "tool", 6.3, 0.95),
    "fa2": Idea("FlashAttention-2", "no unit left idle", "09", "generation", 8.85, 4.75),
    "fa3": Idea("FlashAttention-3", "copy while computing", "09", "generation", 8.85, 3.66),
    "fa4": Idea("FlashAttention-4", "spare the slow exp unit", "09", "generation", 8.85, 2.57),
    "lesson": Idea("Co-design", "fit the algorithm\nto its memory", "09", "lesson", 8.85, 0.95),
    "serving": Idea("Serving, phones", "one token at a time", "10", "trouble", 1.2, 2.3),
    "beyond": Idea("Beyond one GPU", "keys and values\ngo round a ring", "11", "cure", 3.7, 2.3),
    "guide": Idea("Field guide", "my kernel is slow:\nwhat now?", "12", "tool", 1.2, 0.95),
}  # fmt: skip
ARROWS = (
    ("wall", "roofline"), ("wall", "fusion"), ("roofline", "fusion"), ("roofline", "attention"),
    ("fusion", "tiling"), ("attention", "tiling"), ("attention", "online"), ("attention", "again"),
    ("again", "training"), ("tiling", "fa2"), ("fa2", "fa3"), ("fa3", "fa4"), ("fa4", "lesson"),
    ("roofline", "serving"), ("attention", "beyond"), ("serving", "guide"),
)  # fmt: skip
FLASH = ("tiling", "online", "again")  # together: FlashAttention, which is built in notebook 06
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def planned(notebook: str) -> bool:
    """Whether the notebook of this number is still to be written."""
    return not any(NOTEBOOKS.glob(f"{notebook}_*.ipynb"))


def ideas(ax) -> str:
    """The whole series as one graph; the numbers on the boxes are notebooks."""
    ax.set(xlim=(0, 10), ylim=(0.3, 5.75))
    ax.axis("off")
    _group(ax)
    for start, end in ARROWS:
        _arrow(ax, IDEAS[start], IDEAS[end])
    for idea in IDEAS.values():
        _box(ax, idea)
    names = {
        key: f"{idea.name} ({idea.notebook}{', planned' * planned(idea.notebook)})"
        for key, idea in IDEAS.items()
    }
    return (
        f"A graph of the course's ideas, each with its notebook. {names['wall']} and "
        f"{names['roofline']} lead to {names['fusion']} and {names['attention']}. From these comes "
        f"FlashAttention (06): {names['tiling']}, {names['online']}, {names['again']}; then "
        f"{names['training']}. {names['fa2']}, {names['fa3']} and {names['fa4']} follow, and the lesson: "
        f"{names['lesson']}. Aside stand {names['serving']}, {names['beyond']} and {names['guide']}."
    )


def _box(ax, idea):
    later = planned(idea.notebook)
    fill, edge, dash = KINDS["planned" if later else idea.kind]
    corner = idea.x - WIDTH / 2, idea.y - HEIGHT / 2
    style = "round,pad=0,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, facecolor=fill,
                                edgecolor=edge, linestyle=dash, linewidth=1.8, zorder=3))  # fmt: skip
    ink = SOFT if later else PAPER if idea.kind == "lesson" else INK
    lines = idea.gist.count("\n") + 1
    ax.text(idea.x, idea.y + 0.075 * lines + 0.06, idea.name, ha="center", va="center", color=ink,
            fontsize=12.5, fontweight="bold", zorder=4)  # fmt: skip
    ax.text(idea.x, idea.y - 0.14, idea.gist, ha="center", va="center", color=ink, fontsize=10,
            linespacing=1.05, zorder=4)  # fmt: skip
    _badge(ax, corner[0] + 0.02, corner[1] + HEIGHT - 0.02, idea.notebook, FAINT if later else INK)


def _badge(ax, x, y, notebook, colour=INK):
    circle = dict(boxstyle="circle,pad=0.22", facecolor=colour, edgecolor=PAPER)
    ax.text(x, y, notebook, ha="center", va="center", color=PAPER, fontsize=10, fontweight="bold",
            zorder=5, bbox=circle)  # fmt: skip


def _group(ax):
    xs, ys = zip(*((IDEAS[key].x, IDEAS[key].y) for key in FLASH), strict=True)
    left, bottom = min(xs) - WIDTH / 2 - 0.14, min(ys) - HEIGHT / 2 - 0.14
    ax.add_patch(FancyBboxPatch(
        (left, bottom), WIDTH + 0.28, max(ys) - min(ys) + HEIGHT + 0.54, facecolor="#f3f8fc",
        boxstyle="round,pad=0,rounding_size=0.15", edgecolor=FLOWS["flash"].colour, linewidth=1,
        zorder=1))  # fmt: skip
    ax.text(left + WIDTH / 2 + 0.14, max(ys) + HEIGHT / 2 + 0.2, "FlashAttention", ha="center",
            va="center", fontsize=12.5, fontweight="bold", color=FLOWS["flash"].colour)  # fmt: skip
    _badge(ax, left + 0.02, max(ys) + HEIGHT / 2 + 0.38, "06")


def _arrow(ax, start, end):
    """From the edge of one box to the edge of the other: sideways if they stand in other columns."""
    dx, dy = end.x - start.x, end.y - start.y
    if abs(dx) > WIDTH:
        side = 1 if dx > 0 else -1
        lean = 0.25 * ((dy > 0) - (dy < 0))  # arrows to other rows stay clear of the level one
        tail = start.x + side * WIDTH / 2, start.y + lean
        head = end.x - side * WIDTH / 2, end.y - lean / 4
    else:
        side = 1 if dy > 0 else -1
        tail = start.x, start.y + side * HEIGHT / 2
        head = start.x, end.y - side * HEIGHT / 2
    colour = FAINT if planned(end.notebook) else INK
    arrow = dict(
        arrowstyle="-|>", color=colour, linewidth=1.4, shrinkA=1, shrinkB=1, mutation_scale=13
    )
    ax.annotate("", head, tail, arrowprops=arrow, zorder=2)


static("ideas", size=(10, 5.7))(ideas)
