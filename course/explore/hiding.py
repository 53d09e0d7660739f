"""Slider of notebook 01: rows of students in a room → who waits, who works, and what the counter delivers."""

from __future__ import annotations

import ipywidgets as widgets
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from course.draw.theme import INK, LEVELS, PAPER, SOFT
from course.explore.explorer import Explorer
from course.hardware import GPUS, THREADS_PER_SM
from course.units import decimal, seconds

GPU = GPUS["H100 SXM"]
LATENCY = GPU.levels[-1].latency / GPU.clock  # seconds from asking to having
ROW = 32  # threads
MOST_ROWS = THREADS_PER_SM // ROW
BYTES = (2, 4, 8, 16)  # that a thread may ask for at once; 16 is the most of one load instruction
ROWS = np.arange(1, MOST_ROWS + 1)
SHOWN = 3 * LATENCY
WAITS = "#dcdcdc"


def delivered(rows, each):
    """Bytes/s from HBM to the whole GPU: what is on its way in each latency, or all there is."""
    return np.minimum(rows * ROW * each * GPU.sms / LATENCY, GPU.bandwidth)


def compute(rows, each):
    """When the counter serves each row, in seconds; each thread of a row has asked for `each` bytes.

    A row that got its bytes works on them at once and asks again. The work itself is so short that
    it is done within the time that the counter takes for the next row.
    """
    serving = ROW * each * GPU.sms / GPU.bandwidth  # the counter serves all rooms alike
    period = max(LATENCY, rows * serving)  # from one service of a row to its next
    starts = np.arange(0, SHOWN, period)[:, None] + serving * np.arange(rows)  # (times, rows)
    return {
        "rows": rows,
        "each": each,
        "serving": serving,
        "starts": starts,
        "on_the_way": rows * ROW * each * GPU.sms,
        "busy": rows * serving / period,
        "delivered": float(delivered(rows, each)),
        "curve": delivered(ROWS, each),
    }


def draw(fig, data):
    """Left: a line for each row and one for the counter, over time. Right: bytes/s over rows."""
    ax = fig.add_axes((0.085, 0.12, 0.52, 0.79), xlim=(0, SHOWN), ylim=(MOST_ROWS + 9, -1))
    ax.set_yticks([0.5, 15.5, 31.5, 47.5, 63.5], ["row 1", "16", "32", "48", "64"])
    ax.set_xticks([i * LATENCY for i in range(4)], [seconds(i * LATENCY) for i in range(4)])
    ax.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    title = ax.set_title("", loc="left")
    waits = ax.add_patch(Rectangle((0, 0), SHOWN, 1, facecolor=WAITS, linewidth=0))
    ax.add_patch(Rectangle((0, 67), SHOWN, 5, facecolor=PAPER, edgecolor=SOFT, linewidth=1))
    ax.text(-0.012, 69.5, "counter", va="center", ha="right", fontsize=12,
            transform=ax.get_yaxis_transform())  # fmt: skip
    works = ax.add_collection(PolyCollection([], facecolor=INK, linewidth=0), autolim=False)
    serves = ax.add_collection(
        PolyCollection([], facecolor=LEVELS["hbm"].colour, linewidth=0), autolim=False
    )

    right = fig.add_axes((0.7, 0.12, 0.285, 0.79), xlim=(0, MOST_ROWS + 1), ylim=(0, 3.9e12))
    right.set(xlabel="rows in each room", title="The counter delivers")
    right.set_xticks(range(0, MOST_ROWS + 1, 16))
    right.set_yticks([0, 1e12, 2e12, 3e12, GPU.bandwidth],
                     ["0", "1 TB/s", "2 TB/s", "3 TB/s", "3.35"])  # fmt: skip
    right.axhline(GPU.bandwidth, color=LEVELS["hbm"].colour, linestyle=":", linewidth=1.5)
    for each in BYTES:
        line = delivered(ROWS, each)
        right.plot(ROWS, line, color=SOFT, linewidth=0.8)
        right.text(ROWS[line.argmax()], line.max() + 6e10, f"{each} B", ha="center", fontsize=11)
    (curve,) = right.plot(ROWS, data["curve"], color=LEVELS["hbm"].colour)
    (here,) = right.plot([1], [1], "o", color=INK, markersize=10)
    words = right.text(MOST_ROWS, 1e11, "", ha="right", va="bottom", fontsize=12, linespacing=1.4)

    def move(data):
        rows, serving, starts = data["rows"], data["serving"], data["starts"]
        title.set_text(f"{rows} of {MOST_ROWS} rows in the room: grey waits, black works")
        waits.set_height(rows)
        works.set_verts([
            _box(start, start + serving, row, row + 1)
            for times in starts for row, start in enumerate(times) if start < SHOWN
        ])  # fmt: skip
        serves.set_verts([
            _box(first, first + rows * serving, 67, 72) for first in starts[:, 0]
        ])  # fmt: skip
        curve.set_ydata(data["curve"])
        here.set_data([rows], [data["delivered"]])
        words.set_text(
            f"on the way:\n{decimal(data['on_the_way'])}\ncounter busy: {100 * data['busy']:.3g}%"
        )
        return [title, waits, works, serves, curve, here, words]

    return move


def _box(left, right, top, bottom):
    right = min(right, SHOWN)
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def describe(data):
    """What is on its way against what must be, and what comes of it."""
    needed = GPU.bandwidth * LATENCY
    state = f"The counter is busy {100 * data['busy']:.3g}% of the time"
    if data["busy"] == 1:
        state = "The counter is never idle"
    return (
        f"{data['rows']} rows in each of {GPU.sms} rooms, every student waiting for {data['each']} "
        f"bytes: {decimal(data['on_the_way'])} on the way. It takes {decimal(needed)}, which is "
        f"{decimal(GPU.bandwidth, 'B/s')} × {seconds(LATENCY)}. {state}: {decimal(data['delivered'], 'B/s')}."
    )


def hiding(**initial):
    """The explorer, at other first values if given: `hiding(rows=64)`."""
    controls = {
        "rows": widgets.IntSlider(8, min=1, max=MOST_ROWS, description="rows in the room"),
        "each": widgets.SelectionSlider(options=BYTES, value=4, description="bytes per student"),
    }
    title = "Hiding the latency: rows of students that wait and work"
    return Explorer(compute, draw, describe, controls, title, initial=initial)
