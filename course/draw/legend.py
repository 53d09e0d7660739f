"""The legend of the whole course: one colour and one second cue for each memory level and flow."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from course.draw.static import static
from course.draw.theme import FLOWS, LEVELS, PAPER, SOFT

LEVEL_WORDS = {
    "registers": "registers: the desk",
    "shared": "shared memory: the shelf",
    "l2": "L2 cache: the corridor cupboard",
    "hbm": "HBM: the library",
    "host": "host memory: the city archive",
    "nvme": "disk: an archive in another town",
}
FLOW_WORDS = {
    "naive": "naive: a trip for every step",
    "tiled": "tiled: a block at a time",
    "flash": "fused: fetched once, stored once",
    "measured": "measured, not computed",
}


def legend(axes) -> str:
    """Left: the memory levels, near to far. Right: the flows, as lines and as bars."""
    left, right = axes
    for ax, title in ((left, "Memory levels"), (right, "Flows")):
        ax.set(xlim=(0, 10), ylim=(-0.15, 6.1), xticks=(), yticks=())
        ax.set_title(title, loc="left")
        ax.axis("off")
    for i, (name, words) in enumerate(LEVEL_WORDS.items()):
        style, y = LEVELS[name], 5 - i
        left.add_patch(Rectangle((0, y + 0.1), 2.2, 0.8, facecolor=style.colour, hatch=style.hatch,
                                 edgecolor=PAPER, linewidth=0))  # fmt: skip
        left.add_patch(Rectangle((0, y + 0.1), 2.2, 0.8, fill=False, edgecolor=SOFT, linewidth=1))
        left.text(2.6, y + 0.5, words, va="center", fontsize=12.5)
    for i, (name, words) in enumerate(FLOW_WORDS.items()):
        style, y = FLOWS[name], 4.55 - 1.35 * i
        right.plot([0.25, 1.05, 1.85], [y + 0.5] * 3, **style.line)
        right.add_patch(Rectangle((2.3, y + 0.05), 0.9, 0.9, linewidth=0, **style.bar))
        right.text(3.6, y + 0.5, words, va="center", fontsize=12.5)
    return (
        "The colours of every figure. Memory levels grow darker with distance: "
        + ", ".join(LEVEL_WORDS.values())
        + ". Flows differ in colour, marker, dash and hatch: "
        + "; ".join(FLOW_WORDS.values())
        + "."
    )


static("legend", size=(10, 3.4), panels=(1, 2))(legend)
