"""Slider of notebook 01: the memory levels of a chosen GPU on a log axis. Are they a pyramid?"""

import math

import ipywidgets as widgets

from course import draw as _theme  # noqa: F401 - sets fonts and colours once
from course.draw.theme import ACCENT, INK, LEVELS, SOFT
from course.explore.explorer import Explorer
from course.hardware import GPUS, THREAD_REGISTER_BYTES
from course.units import binary, decimal

WITH_LEVELS = [name for name, gpu in GPUS.items() if gpu.levels]
SHARES = {
    "what one user of it may hold": "one",
    "what one classroom can reach": "sm",
    "all there is": "all",
}
NAMES = {
    "registers": "registers",
    "shared": "shared memory",
    "l2": "L2 cache",
    "hbm": "main memory",
}


def compute(gpu, share):
    """Each level's bytes, from the top down."""
    chosen = GPUS[gpu]
    levels = [
        {
            "name": level.name,
            "analogy": level.analogy.split(" in ")[0].split(" across ")[0],
            "bandwidth": level.bandwidth,
            "cycles": level.latency,
            **_share(chosen, level, share),
        }
        for level in chosen.levels
    ]
    return {"gpu": gpu, "share": share, "levels": levels}


def _share(gpu, level, share):
    """The bytes of a level that count, and who has them."""
    inside = level.name in ("registers", "shared")  # of each classroom
    if share == "one" and inside:
        few = {"registers": THREAD_REGISTER_BYTES, "shared": gpu.smem_per_block}
        return {"bytes": few[level.name], "who": level.scope}
    if share == "sm" and inside:
        return {"bytes": level.capacity_bytes // gpu.sms, "who": "one SM"}
    return {"bytes": level.capacity_bytes, "who": "the whole GPU"}


def draw(fig, data):
    """A dot a level on a log axis of bytes, with its ratio to the level above; words at the sides."""
    ax = fig.add_axes((0.23, 0.16, 0.55, 0.69), xscale="log", xlim=(100, 2e12), ylim=(-0.6, 3.5))
    ax.set_yticks([])
    ax.set_xticks([1e3, 1e6, 1e9, 1e12], ["1 kB", "1 MB", "1 GB", "1 TB"])
    ax.minorticks_off()
    ax.set_xlabel("bytes, and how many times those of the level above", fontsize=11, color=SOFT)
    ax.grid(axis="x")
    ax.spines["left"].set_visible(False)
    title = fig.text(0.505, 0.94, "", ha="center", va="center", fontsize=15, fontweight="bold")
    ax.text(1.04, 3.5, "distance, bandwidth", fontsize=11, color=SOFT, transform=_across(ax))
    rows = [_row(ax, 3 - i, level) for i, level in enumerate(data["levels"])]

    def move(data):
        share = next(text for text, key in SHARES.items() if key == data["share"])
        title.set_text(f"{data['gpu']}: {share}")
        changed = [title]
        above = None
        for row, level in zip(rows, data["levels"], strict=True):
            changed += row(level, above)
            above = level["bytes"]
        return changed

    return move


def _across(ax):
    """x as a share of the width of the axes, y as data."""
    return ax.get_yaxis_transform()


def _row(ax, y, level):
    style, across = LEVELS[level["name"]], _across(ax)
    ax.text(-0.38, y + 0.14, NAMES[level["name"]], fontsize=13, va="center", transform=across)
    ax.text(
        -0.38, y - 0.19, level["analogy"], fontsize=11, va="center", color=SOFT, transform=across
    )
    (dot,) = ax.plot([], [], "o", markersize=17, markerfacecolor=style.colour, markeredgecolor=INK)
    size = ax.text(1, y, "", va="center", fontsize=12)
    speed = ax.text(1.04, y, "", va="center", fontsize=12, transform=across, linespacing=1.3)

    def move(level, above):
        dot.set_data([level["bytes"]], [y])
        words, ratio = f"{_bytes(level)} for {level['who']}", above and level["bytes"] / above
        size.set_text(f"{words}, {_ratio(ratio)}" if ratio else words)
        size.set_color(ACCENT if ratio and ratio < 1 else INK)
        right = level["bytes"] < 1e7  # of the dot there is room
        size.set(x=level["bytes"] * (2.5 if right else 0.4), ha="left" if right else "right")
        speed.set_text("\n".join(_speed(level)))
        return [dot, size, speed]

    return move


def _ratio(times):
    """Of a level to the one above: two digits below ten, else whole numbers."""
    return f"{times:.2g}×" if times < 10 else f"{times:,.0f}×"


def _bytes(level):
    """Main memory is sold in powers of ten, what is on the chip is built in powers of two."""
    return (decimal if level["name"] == "hbm" else binary)(level["bytes"])


def _speed(level):
    cycles = "at once" if level["cycles"] == 1 else f"some {level['cycles']:.0f} cycles"
    together = " together" if level["name"] == "shared" else ""
    rate = level["bandwidth"] and decimal(level["bandwidth"], "B/s") + together
    return [cycles, rate] if rate else [cycles]


def describe(data):
    """The levels from the top down, in words."""
    said = "; ".join(
        f"{NAMES[level['name']]} {_bytes(level)} for {level['who']}, {', '.join(_speed(level))}"
        for level in data["levels"]
    )
    sizes = [level["bytes"] for level in data["levels"]]
    powers = math.log10(sizes[-1] / sizes[0])
    shape = f"From top to foot the size grows by {powers:.1f} powers of ten."
    if sizes != sorted(sizes):
        shape += " No pyramid at the top: the chip has more registers than shared memory."
    return f"{data['gpu']}: {said}. {shape}"


def pyramid(**initial):
    """The explorer, at other first values if given: `pyramid(gpu="T4")`."""
    controls = {
        "gpu": widgets.Dropdown(options=WITH_LEVELS, value="H100 SXM", description="GPU"),
        "share": widgets.Dropdown(options=SHARES, value="one", description="count"),
    }
    title = "The memory levels of a GPU, from the smallest to the largest"
    return Explorer(compute, draw, describe, controls, title, initial=initial)
