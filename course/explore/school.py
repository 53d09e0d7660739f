"""Slider of notebook 01: steps, pages, shelf → walks, crossings, minutes of each flow."""

import ipywidgets as widgets
import numpy as np

from course import draw as _theme  # noqa: F401 - sets fonts and colours once
from course import school as model
from course.draw.school import FLOW_KEY
from course.draw.theme import FLOWS, SOFT
from course.explore.explorer import Explorer
from course.hardware import GPUS, MB
from course.units import seconds

MOST_STEPS, MOST_PAGES = 8, 60
PAGES = np.arange(1, MOST_PAGES + 1)
PAGE_BYTES = MB  # what a page stands for, where a day is told as time on an H100


def compute(steps, pages, shelf):
    """The day of each flow, and its minutes for every number of pages."""
    return {
        "steps": steps,
        "pages": pages,
        "shelf": shelf,
        "days": {flow: model.day(steps, pages, shelf, flow) for flow in model.FLOWS},
        "curves": {
            flow: [model.day(steps, int(n), shelf, flow).minutes for n in PAGES]
            for flow in model.FLOWS
        },
    }


def draw(fig, data):
    """Left: each flow's day as a share of the naive one. Right: minutes against pages."""
    fig.subplots_adjust(left=0.085, right=0.985, bottom=0.135, top=0.9, wspace=0.26)
    left, right = fig.subplots(1, 2, width_ratios=(1.25, 1))
    bars = {flow: _bar(left, 2 - i, flow) for i, flow in enumerate(model.FLOWS)}
    left.set(xlim=(0, 1), ylim=(-0.6, 2.75), xlabel="share of the naive day")
    left.set_yticks([2, 1, 0], model.FLOWS)
    left.xaxis.set_major_formatter("{x:.0%}")
    left.set_title("On the street (dark), at the counter (pale)", loc="left")

    lowest = model.day(1, 1, 1, "tiled").minutes
    longest = model.day(MOST_STEPS, MOST_PAGES, 1, "naive").minutes
    right.set(xlim=(0, MOST_PAGES + 3), yscale="log", ylim=(lowest / 1.5, longest * 1.5),
              xlabel="pages of homework")  # fmt: skip
    right.minorticks_off()
    ticks = {10: "10 min", 60: "1 h", 600: "10 h", 6000: "100 h"}
    right.set_yticks(list(ticks), ticks.values())
    right.grid(axis="y")
    right.set_title("Length of the day", loc="left")
    curves, points = {}, {}
    for flow in model.FLOWS:
        style = FLOWS[FLOW_KEY[flow]]
        (curves[flow],) = right.plot(PAGES, PAGES, color=style.colour, linestyle=style.dash)
        (points[flow],) = right.plot([1], [1], color=style.colour, marker=style.marker,
                                     markersize=11, linestyle="", label=flow)  # fmt: skip
    edge = right.axvline(1, color=SOFT, linewidth=1, linestyle=":")
    full = right.text(1, longest * 0.8, "", fontsize=11, color=SOFT, va="top")
    right.legend(loc="lower right")  # no day is so short: no curve gets there

    def move(data):
        most = data["days"]["naive"].minutes
        changed = []
        for flow, day in data["days"].items():
            walk, queue, words = bars[flow]
            walk.set_width(day.walking / most)
            queue.set_x(day.walking / most)
            queue.set_width(day.queueing / most)
            words.set_text(_line(day))
            curves[flow].set_ydata(data["curves"][flow])
            points[flow].set_data([data["pages"]], [day.minutes])
            changed += [walk, queue, words, curves[flow], points[flow]]
        at = data["shelf"]
        edge.set_xdata([at, at])
        full.set_text("shelf full " if at > MOST_PAGES / 2 else " shelf full")
        full.set(x=at, ha="right" if at > MOST_PAGES / 2 else "left")
        return [*changed, edge, full]

    return move


def _bar(ax, y, flow):
    style = FLOWS[FLOW_KEY[flow]]
    (walk,) = ax.barh(y, 0.5, 0.42, color=style.colour)
    (queue,) = ax.barh(y, 0.5, 0.42, left=0.5, color=style.colour, alpha=0.35)
    words = ax.text(0.005, y + 0.27, "", fontsize=12, va="bottom")
    return walk, queue, words


def _line(day):
    return f"{day.walks} walks, {day.crossings} crossings, {clock(day.minutes)}"


def clock(minutes):
    """95.2 → '1 h 35 min'."""
    hours, rest = divmod(round(minutes), 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"


def count(n, word):
    """'1 page', '2 pages'."""
    return f"{n} {word}" + "s" * (n != 1)


def describe(data):
    """The three days in words, and the same bytes on a real machine."""
    days, gpu = data["days"], GPUS["H100 SXM"]
    naive, fused, tiled = (days[flow] for flow in model.FLOWS)
    over = max(data["pages"] - data["shelf"], 0)
    fits = "the homework fits on the shelf, so this is the tiled day"
    if over:
        fits = (
            f"too much for the shelf, {count(over, 'page')} too many, which go back at every step"
        )
    moved = [seconds(day.crossings * PAGE_BYTES / gpu.bandwidth) for day in (naive, fused, tiled)]
    return (
        f"{count(data['steps'], 'step')} on {count(data['pages'], 'page')}, a shelf for "
        f"{data['shelf']}. Naive: "
        f"{_line(naive)}. Fused: {_line(fused)}; {fits}. Tiled: {_line(tiled)}. The work itself "
        f"takes {60 * naive.working:.0f} s in each. Were a page {PAGE_BYTES // MB} MB on an "
        f"{gpu.name}, these crossings would take {moved[0]}, {moved[1]} and {moved[2]}."
    )


def school(**initial):
    """The explorer, at other first values if given: `school(pages=40)`."""
    controls = {
        "steps": widgets.IntSlider(4, min=1, max=MOST_STEPS, description="steps"),
        "pages": widgets.IntSlider(20, min=1, max=MOST_PAGES, description="pages"),
        "shelf": widgets.IntSlider(12, min=1, max=MOST_PAGES, description="shelf, in pages"),
    }
    title = "Walks, crossings and minutes of a homework"
    return Explorer(compute, draw, describe, controls, title, initial=initial)
