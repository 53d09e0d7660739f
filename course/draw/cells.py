"""One bit of DRAM beside one bit of SRAM: why one is big and the other is fast."""

from __future__ import annotations

from matplotlib.patches import Circle, FancyArrowPatch, Polygon, Rectangle

from course.draw.static import static
from course.draw.theme import ACCENT, INK, LEVELS, PAPER, SOFT

WIRE = dict(color=INK, linewidth=1.8, solid_capstyle="round", zorder=2)


def cells(axes) -> str:
    """Left a DRAM cell with its refresh, right an SRAM cell of six transistors."""
    for ax in axes:
        ax.set(xlim=(0, 5), ylim=(0.1, 4.75), xticks=(), yticks=())
        ax.axis("off")
    _dram(axes[0])
    _sram(axes[1])
    return (
        "Two memory cells. DRAM keeps a bit as charge in a capacitor behind one transistor; the "
        "charge leaks, and reading empties it, so a sense amplifier must write it back: refresh. "
        "SRAM keeps a bit in two inverters that feed each other, four transistors, with two more "
        "as doors: six in all, and no refresh."
    )


def _dram(ax):
    ax.set_title("DRAM: a transistor and a capacitor", loc="left")
    _word_line(ax, 0.4, 4.6)
    ax.plot([0.9, 0.9], [3.6, 0.95], **WIRE)
    ax.text(0.78, 3.3, "bit line", rotation=90, ha="right", va="center", fontsize=11)
    _transistor(ax, 1.9, 3.0, left=0.9, right=3.3)
    ax.text(2.28, 3.42, "the door", fontsize=11, va="center")
    ax.plot([3.3, 3.3], [3.0, 2.35], **WIRE)
    style = LEVELS["hbm"]
    ax.add_patch(Rectangle((2.8, 1.35), 1.0, 0.62, facecolor=style.colour, linewidth=0))
    ax.plot([2.8, 2.8, 3.8, 3.8], [2.35, 1.35, 1.35, 2.35], **WIRE)
    ax.plot([2.8, 3.8], [2.35, 2.35], color=INK, linewidth=1, linestyle=":")
    ax.text(3.3, 1.66, "charge", ha="center", va="center", fontsize=11, color=style.ink)
    ax.text(3.95, 2.55, "capacitor:\nfull is 1,\nempty is 0", va="center", fontsize=11)
    _arrow(ax, (3.85, 1.5), (4.6, 1.05), "arc3,rad=-0.3", SOFT)
    ax.text(4.95, 0.83, "leaks", ha="right", va="center", fontsize=11, color=SOFT)
    ax.add_patch(Rectangle((0.3, 0.45), 1.45, 0.62, facecolor=PAPER, edgecolor=INK, linewidth=1.8,
                           zorder=3))  # fmt: skip
    ax.text(1.02, 0.76, "sense\namplifier", ha="center", va="center", fontsize=11, zorder=4)
    _arrow(ax, (1.8, 0.76), (3.3, 1.3), "arc3,rad=0.35", ACCENT)
    ax.text(1.95, 0.35, "refresh: read it, write it back", va="center", fontsize=11, color=ACCENT)


def _sram(ax):
    ax.set_title("SRAM: six transistors", loc="left")
    _word_line(ax, 0.4, 4.6)
    for x, name, side in ((0.45, "bit line", -1), (4.55, "its opposite", 1)):
        ax.plot([x, x], [3.6, 0.95], **WIRE)
        ax.text(x + 0.12 * side, 2.3, name, rotation=90, va="center", fontsize=11,
                ha="right" if side < 0 else "left")  # fmt: skip
    _transistor(ax, 1.0, 3.0, left=0.45, right=1.6)
    _transistor(ax, 4.0, 3.0, left=3.4, right=4.55)
    # Two inverters, each the other's input: left node x = 1.6, right node x = 3.4.
    ax.plot([1.6, 1.6], [3.0, 1.5], **WIRE)
    ax.plot([3.4, 3.4], [3.0, 1.5], **WIRE)
    _inverter(ax, 2.5, 2.55, 1)
    _inverter(ax, 2.5, 1.5, -1)
    for x in (1.6, 3.4):
        ax.add_patch(Circle((x, 2.55), 0.05, color=INK, zorder=3))
    ax.text(1.0, 2.62, "a door", ha="center", va="center", fontsize=11)
    ax.text(4.0, 2.62, "a door", ha="center", va="center", fontsize=11)
    ax.text(2.5, 0.75, "two inverters of two transistors each:\neach holds the other in place",
            ha="center", va="center", fontsize=11)  # fmt: skip


def _word_line(ax, left, right):
    ax.plot([left, right], [4.05, 4.05], **WIRE)
    ax.text(right, 4.3, "word line: opens the doors of a row", ha="right", va="center", fontsize=11)


def _transistor(ax, x, y, left, right):
    """A switch between two wires at height y; its gate hangs from the word line."""
    ax.plot([left, x - 0.28, x - 0.28], [y, y, y + 0.14], **WIRE)
    ax.plot([x + 0.28, x + 0.28, right], [y + 0.14, y, y], **WIRE)
    ax.plot([x - 0.36, x + 0.36], [y + 0.14, y + 0.14], **WIRE)
    ax.plot([x - 0.28, x + 0.28], [y + 0.27, y + 0.27], **WIRE)
    ax.plot([x, x], [y + 0.27, 4.05], **WIRE)
    ax.add_patch(Circle((x, 4.05), 0.05, color=INK, zorder=3))


def _inverter(ax, x, y, way):
    style = LEVELS["shared"]
    ax.plot([1.6, 3.4], [y, y], **WIRE)
    base, tip = x - 0.4 * way, x + 0.3 * way
    ax.add_patch(Polygon([(base, y + 0.36), (base, y - 0.36), (tip, y)], facecolor=style.colour,
                         edgecolor=INK, linewidth=1.8, zorder=3))  # fmt: skip
    ax.add_patch(Circle((tip + 0.09 * way, y), 0.08, facecolor=PAPER, edgecolor=INK, linewidth=1.8,
                        zorder=3))  # fmt: skip


def _arrow(ax, start, end, bend, colour):
    ax.add_patch(FancyArrowPatch(start, end, connectionstyle=bend, arrowstyle="-|>", color=colour,
                                 linewidth=1.8, mutation_scale=15, zorder=5))  # fmt: skip


static("cells", size=(10, 4.9), panels=(1, 2))(cells)
