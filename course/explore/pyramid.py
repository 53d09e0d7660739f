"""Slider of notebook 01: the memory levels of a chosen GPU as a pyramid, on a log scale."""

import math

import ipywidgets as widgets
from matplotlib.patches import Polygon, Rectangle

from course import draw as _theme  # noqa: F401 - sets fonts and colours once
from course.draw.theme import INK, LEVELS, PAPER, SOFT
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
SMALLEST, LARGEST = 1, 12  # powers of ten of bytes: the tip and the foot of the pyramid


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
    """A bar a level, its width the logarithm of its bytes; words left and right of it."""
    fig.subplots_adjust(left=0, right=1, bottom=0.02, top=0.99)
    ax = fig.subplots()
    ax.set(xlim=(-10.2, 10.2), ylim=(-0.62, 4.55))
    ax.axis("off")
    title = ax.text(0, 4.28, "", ha="center", va="center", fontsize=15, fontweight="bold")
    for i, head in ((-9.9, "in the school"), (5.9, "speed, distance")):
        ax.text(i, 4.28, head, va="center", fontsize=11, color=SOFT)
    rows = [_row(ax, 3.5 - 1.05 * i, level["name"]) for i, level in enumerate(data["levels"])]
    for power, name in ((3, "1 kB"), (6, "1 MB"), (9, "1 GB"), (12, "1 TB")):
        x = _half(10**power)
        ax.plot([x, x, -x, -x], [-0.1, -0.2, -0.2, -0.1], color=SOFT, linewidth=1)
        ax.text(x, -0.24, name, ha="center", va="top", fontsize=11, color=SOFT)
    ax.text(
        -0.2, -0.24, "width: bytes, on a log scale", ha="right", va="top", fontsize=11, color=SOFT
    )

    def move(data):
        share = next(text for text, key in SHARES.items() if key == data["share"])
        title.set_text(f"{data['gpu']}: {share}")
        changed = [title]
        for row, level in zip(rows, data["levels"], strict=True):
            changed += row(level)
        return changed

    return move


def _half(size):
    """Half the width of a level of so many bytes."""
    return 5.6 * (math.log10(size) - SMALLEST) / (LARGEST - SMALLEST)


def _row(ax, y, name):
    style = LEVELS[name]
    bar = Rectangle((-1, y - 0.4), 2, 0.8, facecolor=style.colour, hatch=style.hatch,
                    edgecolor=PAPER, linewidth=0)  # fmt: skip
    frame = Polygon([(0, 0)] * 4, fill=False, edgecolor=INK, linewidth=1)
    ax.add_patch(bar)
    ax.add_patch(frame)
    size = ax.text(0, y, "", ha="center", va="center", fontsize=12.5)
    school = ax.text(-9.9, y, "", va="center", fontsize=12, linespacing=1.3)
    speed = ax.text(5.9, y, "", va="center", fontsize=12, linespacing=1.3)

    def move(level):
        half = _half(level["bytes"])
        bar.set(x=-half, width=2 * half)
        frame.set_xy([(-half, y - 0.4), (half, y - 0.4), (half, y + 0.4), (-half, y + 0.4)])
        size.set_text(f"{NAMES[name]}\n{_bytes(level)}")
        size.set_color(style.ink)
        size.set_bbox(dict(facecolor=style.colour, edgecolor="none", pad=1))
        school.set_text(f"{level['analogy']}\nfor {level['who']}")
        speed.set_text("\n".join(_speed(level)))
        return [bar, frame, size, school, speed]

    return move


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
