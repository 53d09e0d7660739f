"""Memory levels as measured and as quoted: the staircase of a machine, the ladder beyond a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from course.draw.static import static
from course.draw.theme import FLOWS, INK, LEVELS, PAPER
from course.hardware import GB, LADDER, Level
from course.units import binary, decimal, seconds

# From main memory upwards, what a level of any machine is painted like.
PAINT = ("hbm", "l2", "shared", "registers")
NAMES = {"registers": "registers", "shared": "shared memory", "l2": "L2", "hbm": "HBM",
         "host": "host memory", "nvme": "disk"}  # fmt: skip


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


def ladder(ax, size: float = GB) -> str:
    """Time to move `size` bytes out of each level that has a bandwidth, against HBM's."""
    levels = [level for level in LADDER if level.bandwidth]
    hbm = next(level.bandwidth for level in levels if level.name == "hbm")
    times = [size / level.bandwidth for level in levels]
    for i, (level, time) in enumerate(zip(levels, times, strict=True)):
        style = LEVELS[level.name]
        ax.barh(-i, time, 0.62, facecolor=style.colour, hatch=style.hatch, edgecolor=PAPER)
        ax.barh(-i, time, 0.62, fill=False, edgecolor=INK, linewidth=1)
        ratio = hbm / level.bandwidth
        relative = (
            "1×, the measure" if ratio == 1 else f"{ratio:.2g}×" if ratio < 1 else f"{ratio:.0f}×"
        )
        ax.text(time * 1.25, -i, f"{seconds(time)}   {relative}", va="center", fontsize=12)
    ax.set(xscale="log", xlim=(times[0] / 8, times[-1] * 20), ylim=(0.6 - len(levels), 0.5))
    ax.set_yticks([-i for i in range(len(levels))], [_where(level) for level in levels])
    ax.set_xticks(
        [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1], ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"]
    )
    ax.minorticks_off()
    ax.set_xlabel(f"time to move {decimal(size)}, at the quoted bandwidth")
    said = ", ".join(
        f"{NAMES[level.name]} {seconds(time)}" for level, time in zip(levels, times, strict=True)
    )
    return f"Time to move {decimal(size)} from each level of an H100 and beyond: {said}."


def _where(level):
    return f"{NAMES[level.name]}, {decimal(level.bandwidth, 'B/s')}"


static("ladder", size=(10, 3.4))(ladder)
