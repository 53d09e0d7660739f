"""Figures of notebook 12: lanes in banks, and an overlap that the compiler undid."""

from __future__ import annotations

from course import banks
from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, GRID, INK, PAPER, SOFT
from course.tables import Table
from course.units import decimal

ACCESSES = {  # title: the words that the 32 lanes of a warp ask for
    "column 5, rows of 32 words": banks.column(5),
    "padded: rows of 33 words": banks.column(5, width=33),
    "swizzled: place c XOR row": banks.swizzled(5),
}


def conflicts(axes) -> str:
    """Which bank each lane asks, for a column of a tile stored in three ways."""
    said = []
    for ax, (title, words) in zip(axes, ACCESSES.items(), strict=True):
        took = banks.turns(words)
        colour = ACCENT if took > 1 else FLOWS["flash"].colour
        asked = [word % banks.BANKS for word in words]
        ax.plot(asked, range(banks.LANES), "s", ms=5, color=colour)
        ax.set(xlim=(-1, banks.BANKS), ylim=(banks.LANES, -1), xticks=(0, 31), yticks=(0, 31))
        ax.set_title(title, fontsize=13)
        ax.set_xlabel(f"bank\n{took} turn{'s' * (took > 1)}")
        ax.grid(color=GRID)
        said.append(f"{title}: {took} turn{'s' * (took > 1)}")
    axes[0].set_ylabel("lane")
    return f"The banks that 32 lanes ask. {'; '.join(said)}."


@static("bank_conflicts", size=(11, 4.2), panels=(1, 3))
def _(axes):
    return conflicts(axes)


def same_tile(section: dict) -> Table:
    """What tiles of 128 × 128 at d = 128 take with four warps and with eight, from a tile sweep."""
    rows = [
        [p["num_warps"], p["registers"], p["spilled_bytes"], decimal(p["flops"], "FLOP/s")]
        for p in section["points"]
        if (p["kernel"], p["d"], p["causal"]) == ("forward", 128, False)
        and (p["block_q"], p["block_kv"], p["num_stages"]) == (128, 128, 2)
    ]
    return Table(["warps", "registers", "bytes spilled per thread", "measured"], rows)


# One step of the loop at d = 128 without a mask, in the order of the machine code. Compiled for
# sm_90 by Triton 3.7.1, read by course.kernels.hopper_report; a test compiles it again.
ORDERS = {
    "as the compiler put it": ("product", "wait 1", "wait 0", "exp2"),
    "with a pin": ("product", "wait 1", "exp2", "wait 0"),
}
_SAYS = {
    "product": "start QKᵀ of the next\ntile, PV of this one",
    "wait 1": "wait for QKᵀ",
    "wait 0": "wait for PV",
    "exp2": "66 × exp2: softmax\nof the next tile",
}


def undone(ax) -> str:
    """The order of one step of a loop, twice, and while which instructions PV still runs."""
    for row, (name, order) in enumerate(ORDERS.items()):
        for i, what in enumerate(order):
            hot = what == "exp2"
            box = dict(boxstyle="square,pad=0.4", fc="#f0c987" if hot else PAPER, ec=INK)
            ax.text(i + 0.5, row, _SAYS[what], ha="center", va="center", fontsize=12, bbox=box)
        end = order.index("wait 0") + 0.95
        ax.annotate("", (end, row + 0.36), (0.95, row + 0.36),
                    arrowprops=dict(arrowstyle="|-|", color=FLOWS["flash"].colour, lw=2))  # fmt: skip
        ax.text((0.95 + end) / 2, row + 0.4, "PV runs on the tensor cores", ha="center", va="top",
                fontsize=12, color=FLOWS["flash"].colour)  # fmt: skip
        ax.text(-0.05, row, name, ha="right", va="center", weight="bold")
    ax.text(4, -0.42, "time →", ha="right", color=SOFT)
    ax.set(xlim=(-0.9, 4.05), ylim=(1.65, -0.5))
    ax.axis("off")
    return (
        "Two orders of one step. As the compiler put it, the exponentials stand after the wait for PV, "
        "so nothing runs beside them. With a pin they stand before it, while PV runs."
    )


@static("undone_overlap", size=(11, 3.6))
def _(ax):
    return undone(ax)
