"""Figures of the tiled forward pass: its loop, its on-chip budget, its bytes, its growth."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, GRID, INK, LEVELS, PAPER, SOFT
from course.hardware import GPUS, KiB
from course.units import binary, decimal

PARTS = ("Q", "K", "V")  # what a tile keeps in shared memory, and how each part is filled
FILLS = dict(zip(PARTS, (("#cfb0dd", "//"), ("#f0c987", ".."), ("#a8d5c2", "\\\\")), strict=True))


def budget(block_q: int, block_kv: int, d: int, itemsize: int = 2) -> dict[str, int]:
    """Bytes of shared memory by tile: {"Q": …, "K": …, "V": …}."""
    q, k = block_q * d * itemsize, block_kv * d * itemsize
    return {"Q": q, "K": k, "V": k}


def loop(ax, row: int = 1, col: int = 2, count: tuple[int, int] = (4, 6)) -> str:
    """One moment of the tiled loop: which tiles are on the chip, and the score tile they make."""
    rows, cols = count
    ax.set(xlim=(-2.1, cols + 5.3), ylim=(rows + 0.9, -3.4))
    ax.axis("off")

    def box(x, y, w, h, here, hatch=""):
        face = LEVELS["shared"].colour if here else PAPER
        ax.add_patch(
            Rectangle((x, y), w, h, facecolor=face, edgecolor=SOFT, hatch=hatch * here, lw=1.2)
        )

    for i in range(rows):
        box(-1.6, i, 0.9, 1, i == row, "//")
        box(cols + 0.5, i, 0.9, 1, False)
        for j in range(cols):
            box(j, i, 1, 1, False)
    for j in range(cols):
        box(j, -1.25, 1, 0.75, j == col, "//")
        box(j, -2.25, 1, 0.75, j == col, "//")
    done = FLOWS["flash"]
    ax.add_patch(Rectangle((0, row), col, 1, facecolor=GRID, edgecolor=SOFT, hatch="xx"))
    ax.add_patch(Rectangle((col, row), 1, 1, facecolor=done.colour, edgecolor=INK, lw=2))
    ax.add_patch(Rectangle((cols + 0.5, row), 0.9, 1, facecolor=LEVELS["registers"].colour,
                           edgecolor=INK, lw=2))  # fmt: skip
    ax.text(col + 0.5, row + 0.5, "s", ha="center", va="center", color=PAPER, weight="bold")
    ax.text(cols + 0.95, row + 0.5, "o", ha="center", va="center", weight="bold")
    for x, y, name in (
        (-1.15, -0.3, "Q"),
        (cols + 0.95, -0.3, "O"),
        (-0.3, -0.88, "Kᵀ"),
        (-0.3, -1.88, "V"),
    ):
        ax.text(x, y, name, ha="center", va="center", weight="bold", fontsize=15)
    ax.annotate("", (cols, -2.6), (0, -2.6), arrowprops=dict(arrowstyle="-|>", lw=2, color=ACCENT))
    ax.text(cols / 2, -2.75, "inner loop: K and V tiles stream past", ha="center", color=ACCENT)
    ax.annotate(
        "", (-1.85, rows), (-1.85, 0), arrowprops=dict(arrowstyle="-|>", lw=2, color=ACCENT)
    )
    ax.text(-1.75, rows + 0.55, "outer loop: one Q tile at a time", color=ACCENT)
    ax.text(cols + 1.75, row + 0.5, "m, ℓ, o of the Q tile:\nkept on the chip", va="center")
    ax.text(cols + 1.75, row - 1.9, "hatched: the tiles\nof Q, K, V on the chip", va="center")
    ax.text(
        cols + 1.75, row + 2.3, "crossed: score tiles that\nwere used and thrown away", va="center"
    )
    return (
        "One moment of the tiled loop: one tile each of Q, K and V is on the chip; their score tile s "
        "updates m, ℓ and o of the Q tile and is thrown away. The N×N matrix never exists in HBM."
    )


@static("tiled_loop", size=(11, 5.4))
def _(ax):
    return loop(ax)


def sram(ax, block_q: int, block_kv: int, d: int, limit: int, itemsize: int = 2) -> str:
    """Shared memory that the tiles take, out of `limit` bytes."""
    left, said = 0, []
    for name, size in budget(block_q, block_kv, d, itemsize).items():
        colour, hatch = FILLS[name]
        rows = block_q if name == "Q" else block_kv
        ax.barh(0, size / KiB, left=left / KiB, height=0.5, facecolor=colour, hatch=hatch,
                edgecolor=INK, label=f"{name} tile {rows}×{d}: {binary(size)}")  # fmt: skip
        ax.text((left + size / 2) / KiB, 0.3, name, ha="center", va="bottom", weight="bold")
        said.append(f"{name} {binary(size)}")
        left += size
    ax.axvline(limit / KiB, color=ACCENT, ls="--")
    ax.text(
        limit / KiB - 2, -0.55, f"an SM has {binary(limit)}", color=ACCENT, ha="right", va="bottom"
    )
    ax.text((left + limit) / 2 / KiB, 0, f"free: {binary(limit - left)}", ha="center", va="center")
    ax.set(
        xlim=(0, 1.04 * limit / KiB), ylim=(-0.6, 1.2), yticks=(), xticks=range(0, limit // KiB, 50), xlabel="shared memory, KiB",
        title=f"The tiles take {binary(left)}",
    )  # fmt: skip
    ax.spines["left"].set_visible(False)
    ax.legend(loc="upper right", bbox_to_anchor=(0.93, 1), ncols=3, handlelength=1.2)
    return f"Shared memory of one tile set: {', '.join(said)}, {binary(left)} of {binary(limit)}."


@static("tile_budget", size=(10, 3.4))
def _(ax):
    return sram(ax, 128, 64, 128, GPUS["H100 SXM"].smem_per_sm)


def vary(n: int, d: int) -> dict[str, dict[int, tuple[int, int, int]]]:
    """What `bytes_against` varies, one thing at a time: {name: {value: (n, block_q, block_kv)}}.

    M, the numbers on the chip, makes four equal tiles: block_q = block_kv = M / 4d.
    """
    sizes = (16, 32, 64, 128, 256)
    return {
        "B_r, rows of a Q tile": {b: (n, b, 64) for b in sizes},
        "B_c, rows of a K and V tile": {b: (n, 64, b) for b in sizes},
        "M, numbers on the chip": {4 * d * b: (n, b, b) for b in sizes[1:]},
        "N": {x: (x, 64, 64) for x in (n // 4, n // 2, n, 2 * n)},
    }


def bytes_against(axes, counted: dict, predicted: dict) -> str:
    """Counted bytes against block_q, block_kv, M and N, a panel each, with the prediction.

    Both map the name of what varies to {value: bytes}; `predicted` may hold more values.
    """
    said = []
    panels = list(np.ravel(axes))
    most = max(max(points.values()) for points in predicted.values())
    least = min(min(points.values()) for points in predicted.values())
    for ax, name in zip(panels, counted, strict=True):
        line, points = predicted[name], counted[name]
        ax.plot(
            list(line), list(line.values()), color=FLOWS["tiled"].colour, ls="--", label="formula"
        )
        ax.plot(list(points), list(points.values()), color=INK, ls="", marker="s", label="counted")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(list(points), [f"{x}" for x in points])
        powers = [10.0**p for p in range(5, 12) if least / 2 <= 10**p <= 2 * most]
        ax.set_yticks(powers, [decimal(p) for p in powers])
        ax.set(xlabel=name, ylim=(least / 2, 2 * most))
        ax.grid(True, which="major", axis="y")
        ax.minorticks_off()
        first, *_, last = points.values()
        said.append(f"{name}: {decimal(first)} to {decimal(last)}")
    panels[0].set_ylabel("bytes moved")
    panels[0].legend()
    return f"Bytes counted and predicted agree at every point. From left to right in {'; '.join(said)}."
