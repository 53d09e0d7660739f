"""Two lanes: while the chip works on one tile, the next is on its way. A sum becomes a maximum."""

from __future__ import annotations

import ipywidgets as widgets
from matplotlib.collections import PolyCollection

from course.draw.theme import ACCENT, LEVELS, PAPER, SOFT
from course.explore.explorer import Explorer
from course.units import seconds

LOAD = 30e-6  # seconds; an H100 moves 100 MB in that time
LONGEST = 60e-6  # of the arithmetic
NUMBERED = 6  # so many tiles still have room for their numbers


def schedule(load: float, work: float, tiles: int) -> tuple[list, list]:
    """When each tile is loaded and worked on: two lists of (start, end).

    There is room for two tiles: one is worked on while the next is loaded into the place of the
    one before. `load` and `work` are the times of all tiles together.
    """
    loads, works = [], []
    for tile in range(tiles):
        room = works[tile - 2][1] if tile >= 2 else 0
        start = max(room, loads[-1][1] if loads else 0)
        loads.append((start, start + load / tiles))
        start = max(loads[-1][1], works[-1][1] if works else 0)
        works.append((start, start + work / tiles))
    return loads, works


def compute(tiles, work):
    """The schedule of both ways, and when each ends; `work` in µs, the rest in seconds."""
    work = work * 1e-6
    loads, works = schedule(LOAD, work, tiles)
    step = (LOAD + work) / tiles
    apart = [(i * step, i * step + LOAD / tiles, (i + 1) * step) for i in range(tiles)]
    return {
        "tiles": tiles,
        "work": work,
        "apart": ([(a, b) for a, b, _ in apart], [(b, c) for _, b, c in apart]),
        "lanes": (loads, works),
        "sum": LOAD + work,
        "longer": max(LOAD, work),
        "end": works[-1][1],
    }


ROWS = {"one after the other": 2.5, "bytes": 1, "arithmetic": 0}
HEIGHT = 0.75


def draw(fig, data):
    """Above the one lane of notebook 01, below the two lanes of a GPU, on one scale."""
    ax = fig.add_axes((0.19, 0.13, 0.8, 0.85), xlim=(0, 1.32 * (LOAD + LONGEST)), ylim=(-0.6, 3.1))
    ax.set_yticks(list(ROWS.values()), ROWS)
    ticks = [i * 20e-6 for i in range(1, 6)]
    ax.set_xticks([0, *ticks], ["0", *map(seconds, ticks)])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    (limit,) = ax.plot([0, 0], [-0.6, 2], color=ACCENT, lw=1.8, ls=(0, (4, 3)), zorder=1)
    limit_name = ax.text(0, 1.72, "", color=ACCENT, fontsize=12, va="center")
    ends = [ax.text(0, y, "", fontsize=13, weight="bold", va="center") for y in (2.5, 0)]
    hbm = LEVELS["hbm"].colour
    paint = dict(edgecolor=PAPER, lw=1.5, zorder=2)
    bars = [  # loads, then work, of either way
        [PolyCollection([], facecolor=colour, **paint) for colour in (hbm, SOFT)] for _ in range(2)
    ]
    for bar in (*bars[0], *bars[1]):
        ax.add_collection(bar, autolim=False)
    numbers = [
        ax.text(0, 0, "", fontsize=11, color=PAPER, weight="bold", ha="center", va="center")
        for _ in range(2 * NUMBERED)
    ]

    def move(data):
        for spans, pair, rows in (
            (data["apart"], bars[0], (ROWS["one after the other"],) * 2),
            (data["lanes"], bars[1], (ROWS["bytes"], ROWS["arithmetic"])),
        ):
            for each, bar, y in zip(spans, pair, rows, strict=True):
                bar.set_verts([_box(a, b, y) for a, b in each])
        _number(data, numbers)
        limit.set_xdata([data["longer"]] * 2)
        limit_name.set_text(f"the longer of the two: {seconds(data['longer'])}")
        limit_name.set_x(data["longer"] + 1e-6)
        for text, end, name in zip(
            ends, (data["sum"], data["end"]), (", the sum", ""), strict=True
        ):
            text.set_text(f"{seconds(end)}{name}")
            text.set_x(end + 1.5e-6)
        return [limit, limit_name, *bars[0], *bars[1], *numbers, *ends]

    return move


def _box(start, end, y):
    low, high = y - HEIGHT / 2, y + HEIGHT / 2
    return [(start, low), (end, low), (end, high), (start, high)]


def _number(data, texts):
    """The number of each tile in both lanes, where few tiles leave room for it."""
    spans = [(*span, y) for y, lane in zip((1, 0), data["lanes"], strict=True) for span in lane]
    few = data["tiles"] <= NUMBERED
    for i, text in enumerate(texts):
        seen = few and i < len(spans)
        text.set_visible(seen)
        if seen:
            start, end, y = spans[i]
            text.set(text=str(i % data["tiles"] + 1), x=(start + end) / 2, y=y)


def describe(data):
    """Both ends, and how far the two lanes are from the longer of their times."""
    more = data["end"] / data["longer"] - 1
    tiles = f"{data['tiles']} tile{'s' * (data['tiles'] > 1)}"
    return (
        f"Bytes {seconds(LOAD)}, arithmetic {seconds(data['work'])}, in {tiles}. One after the other: "
        f"{seconds(data['sum'])}. In two lanes, each tile loaded while the one before is worked on: "
        f"{seconds(data['end'])}, {more:.0%} more than the longer of the two."
    )


def lanes(**initial):
    """The explorer, at other first values if given: `lanes(tiles=16, work=45)`."""
    controls = {
        "tiles": widgets.IntSlider(4, min=1, max=32, description="tiles"),
        "work": widgets.IntSlider(15, min=5, max=round(LONGEST * 1e6), step=5,
                                  description="arithmetic, µs"),
    }  # fmt: skip
    title = "A kernel in one lane and in two: its bytes, its arithmetic"
    return Explorer(compute, draw, describe, controls, title, initial=initial, size=(10, 3.4))
