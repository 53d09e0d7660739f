"""Figures of attention on several GPUs: who works in which step, and the time line of wire and tile."""

from __future__ import annotations

from matplotlib.patches import Patch, Rectangle

from course.cost import LAYOUTS, ring_idle, ring_pairs
from course.draw.theme import ACCENT, FLOWS, INK, LEVELS, PAPER, SOFT

HEIGHTS = {"tile": (0.05, FLOWS["flash"].colour, ""), "wire": (-0.4, LEVELS["host"].colour, "\\\\")}


def steps(axes, processes: int, n: int | None = None) -> str:
    """Two panels, ring and zigzag: what each process has to do in each step of a causal pass.

    In full tiles, computed by `cost.ring_pairs`; without n for long sequences, where a diagonal tile
    is half of a full one.
    """
    n = n or 4096 * processes
    words = []
    for ax, layout in zip(axes, LAYOUTS, strict=True):
        table = ring_pairs(n, processes, layout, causal=True)
        full = (n / processes) ** 2
        ax.set(xlim=(-0.5, processes - 0.5), ylim=(processes - 0.5, -0.5))
        ax.set_xticks(range(processes))
        ax.set_yticks(range(processes), [f"process {i}" for i in range(processes)])
        ax.tick_params(length=0)
        for step, row in enumerate(table):
            for i, pairs in enumerate(row):
                share = pairs / full
                ax.add_patch(Rectangle((step - 0.42, i - 0.36), 0.84, 0.72, fc=PAPER, ec=SOFT))
                ax.add_patch(
                    Rectangle((step - 0.42, i - 0.36), 0.84 * share, 0.72,
                              fc=FLOWS["flash"].colour, ec=INK)
                )  # fmt: skip
                if share < 0.7:  # where the box is white; a full one says it by its colour
                    ax.text(step + 0.21, i, f"{share:.1g}", ha="center", va="center")
        idle = ring_idle(n, processes, layout, causal=True)
        ax.set_title(f"{layout}: {idle:.0%} of the time idle")
        ax.set_xlabel("step (full box: all keys seen)")
        words.append(f"{layout} {idle:.0%}")
    return (
        f"For {processes} processes, in full tiles, the work of each in each step of a causal pass. "
        f"Idle, where all wait for the slowest of a step: {', '.join(words)}."
    )


def time_line(ax, logs, names=None) -> str:
    """When each process computed a tile and when its wire was busy; measured, in milliseconds.

    logs: for each process what `course.ring.Wire.log` holds.
    """
    start = min(begin for log in logs for _, begin, _ in log)
    end = max(stop for log in logs for _, _, stop in log)
    ax.set(xlim=(0, 1e3 * (end - start)), ylim=(len(logs) - 0.4, -0.6), xlabel="milliseconds")
    ax.set_yticks(range(len(logs)), names or [f"process {i}" for i in range(len(logs))])
    waited = []
    for i, log in enumerate(logs):
        for what, begin, stop in log:
            if what in HEIGHTS:
                low, colour, hatch = HEIGHTS[what]
                ax.add_patch(
                    Rectangle((1e3 * (begin - start), i + low), 1e3 * (stop - begin), 0.33,
                              fc=colour, ec=INK, hatch=hatch)
                )  # fmt: skip
            elif 1e3 * (stop - begin) > 0.5:
                ax.plot([1e3 * (begin - start), 1e3 * (stop - start)], [i, i], color=ACCENT, ls=":")
        waited.append(sum(stop - begin for what, begin, stop in log if what == "wait"))
    ax.legend(
        handles=[
            Patch(fc=LEVELS["host"].colour, hatch="\\\\", ec=INK, label="keys and values travel"),
            Patch(fc=FLOWS["flash"].colour, ec=INK, label="a tile is computed"),
            *ax.plot([], [], color=ACCENT, ls=":", label="waits"),
        ],
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False,
    )  # fmt: skip
    shares = ", ".join(f"{1e3 * x:.0f}" for x in waited)
    return (
        f"Measured: {1e3 * (end - start):.0f} ms for {len(logs)} processes, of which each in turn "
        f"could only wait {shares} ms."
    )
