"""Memory levels as measured and as quoted: the staircase of a machine, the ladder beyond a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from course.draw.static import static
from course.draw.theme import FLOWS, INK, LEVELS, PAPER
from course.hardware import LADDER, Gpu, Level
from course.tables import Table
from course.units import binary, decimal

# From main memory upwards, what a level of any machine is painted like.
PAINT = ("hbm", "l2", "shared", "registers")
MINUTE = 60
NAMES = {"registers": "registers", "shared": "shared memory", "l2": "L2", "hbm": "HBM",
         "host": "host memory", "nvme": "disk"}  # fmt: skip


def capacities(gpu: Gpu) -> Table:
    """The levels of a GPU: their place in the school, users, capacity, distance, who manages them."""
    rows = []
    for level in gpu.levels:
        rooms = gpu.sms if level.name in ("registers", "shared") else 1
        size = (decimal if level.name == "hbm" else binary)(level.capacity_bytes // rooms)
        size += " per SM" if rooms > 1 else ""
        facts = level.analogy, level.scope, size, level.latency, level.managed_by
        rows.append((NAMES[level.name], *facts))
    return Table(
        ("level", "in the school", "used by", "capacity", "cycles away", "managed by"), rows
    )


def stairs(points: Sequence[dict], levels: Sequence[Level]) -> list[dict]:
    """For each level that the staircase reached, the bandwidth of one point that is surely on it.

    points: {"bytes", "bandwidth"} of `course.measure.staircase`; levels from small to large. A
    working set is in the smallest level that holds all of it. The point is the largest one that
    leaves a third of a cache free; for the last level, main memory, it is the largest of all.
    """
    steps, low = [], 0
    for i, level in enumerate(levels):
        last = i == len(levels) - 1
        high = float("inf") if last else level.capacity_bytes
        on = [point for point in points if low < point["bytes"] <= high]
        if on:
            sure = [point for point in on if last or point["bytes"] <= high * 2 / 3] or on
            paint = PAINT[min(len(levels) - 1 - i, len(PAINT) - 1)]
            bandwidth = sure[-1]["bandwidth"]
            steps.append(dict(level=level, low=low, high=high, bandwidth=bandwidth, paint=paint))
        low = high
    return steps


def staircase(ax, points: Sequence[dict], levels: Sequence[Level], title: str = "") -> str:
    """Copy bandwidth against working-set size, over bands that say which level holds it.

    points: {"bytes", "bandwidth", "low", "high"} of `course.measure.staircase`; levels: their
    capacities, small to large, the last one main memory.
    """
    sizes = [point["bytes"] for point in points]
    rates = [point["bandwidth"] for point in points]
    steps = stairs(points, levels)
    left, right = sizes[0] / 3, sizes[-1] * 2
    bottom, top = min(rates) / 2.2, max(rates) * 6
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top),
           xlabel="working set: source and destination together", ylabel="copy bandwidth")  # fmt: skip
    for i, step in enumerate(steps):
        style = LEVELS[step["paint"]]
        start, end = max(step["low"], left), min(step["high"], right)
        ax.axvspan(start, end, facecolor=style.colour, alpha=0.25, linewidth=0, zorder=0)
        ax.axvline(end, color=style.colour, linewidth=1, zorder=0)
        words = f"{step['level'].name.upper()}\n{decimal(step['bandwidth'], 'B/s', 2)}"
        height = top / 1.15 if i % 2 == 0 else top / 2.4  # neighbours may be narrow
        ax.text((start * end) ** 0.5, height, words, ha="center", va="top", fontsize=11)
    style = FLOWS["measured"]
    ax.fill_between(sizes, [p["low"] for p in points], [p["high"] for p in points], color=INK,
                    alpha=0.2, linewidth=0)  # fmt: skip
    ax.plot(sizes, rates, **style.line)
    ax.set_xticks(sizes[::4], [binary(size) for size in sizes[::4]])
    ticks = [n * 10.0**p for p in range(8, 15) for n in (1, 2, 5) if bottom < n * 10.0**p < top / 5]
    ax.set_yticks(ticks, [decimal(tick, "B/s") for tick in ticks])
    ax.minorticks_off()
    ax.set_title(title, loc="left", fontsize=13)
    said = ", ".join(
        f"{step['level'].name.upper()} {decimal(step['bandwidth'], 'B/s', 2)}" for step in steps
    )
    return (
        f"{title or 'Copy bandwidth'}: bandwidth against working set, from {binary(sizes[0])} to "
        f"{binary(sizes[-1])}. By level: {said}. The fastest copy is {max(rates) / rates[-1]:.1f} "
        f"times as fast as the largest."
    )


def ladder(ax) -> str:
    """What each level takes to hand over what HBM does in a second: a square a second, a line a minute."""
    levels = [level for level in LADDER if level.bandwidth]
    hbm = next(level.bandwidth for level in levels if level.name == "hbm")
    times = [hbm / level.bandwidth for level in levels]
    line = 0  # lines of squares, downwards
    for level, time in zip(levels, times, strict=True):
        first, left = line, time
        while left > 0:
            colour = LEVELS[level.name].colour
            ax.barh(line, min(left, MINUTE), 0.9, facecolor=colour,
                    edgecolor=INK if time < 1 else colour, linewidth=0.8)  # fmt: skip
            left, line = left - MINUTE, line + 1
        words = f"{NAMES[level.name]}, {decimal(level.bandwidth, 'B/s')}"
        ax.text(-1, first, words, ha="right", va="center", fontsize=12)
        ax.text(MINUTE + 1, first, _told(time), va="center", fontsize=12, fontweight="bold")
        line += 0.45
    ax.set(xlim=(0, MINUTE), ylim=(line - 0.6, -0.7), yticks=())
    ax.vlines(range(1, MINUTE), -0.6, line - 0.6, color=PAPER, linewidth=1.5)
    ax.set_xticks(range(0, MINUTE + 1, 10), [f"{second} s" for second in range(0, MINUTE + 1, 10)])
    ax.set_xlabel("a mark is a second, a line is a minute")
    ax.spines["left"].set_visible(False)
    said = ", ".join(
        f"{NAMES[level.name]} {_told(time)}" for level, time in zip(levels, times, strict=True)
    )
    return f"If HBM took a second, so long would each level take: {said}."


def _told(time):
    """Seconds, and minutes too where they are many."""
    return f"{time:.2g} s" if time < MINUTE else f"{time:.0f} s, {time / MINUTE:.0f} min"


static("ladder", size=(10, 4))(ladder)
