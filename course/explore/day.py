"""Slider of notebook 01: a day at school, minute by minute, naive beside fused."""

import ipywidgets as widgets
import numpy as np
from matplotlib.patches import Rectangle

from course import draw as _theme  # noqa: F401 - sets fonts and colours once
from course import school as model
from course.draw.school import COUNTER, PAGE, STREET, STUDENT
from course.draw.theme import FLOWS, INK, LEVELS, PAPER, SOFT
from course.explore.explorer import Explorer
from course.explore.school import count

MOMENTS = 48  # of the naive day, however long it is
SHELF = 5  # pages: as many as the homework has, so a fused class needs no tiles
MOST_STEPS = 6
LANES = {"naive": "naive", "fused": "tiled"}  # the lane → how its visits go


def compute(moment, steps):
    """Where both classes are at this moment, and what they have done so far."""
    told = {lane: model.visits(steps, SHELF, SHELF, how) for lane, how in LANES.items()}
    ends = {lane: model.path(visits)[-1][0] for lane, visits in told.items()}
    now = ends["naive"] * (moment / MOMENTS)  # exactly the end at the last one
    lanes = {lane: _lane(visits, now) for lane, visits in told.items()}
    return {"now": now, "end": ends["naive"], "steps": steps, "lanes": lanes}


def _lane(visits, now):
    path = np.array(model.path(visits))
    minutes, places = path.T
    # Each visit is five stretches: queue, walk, work, walk, queue. A step counts once the work is over.
    over = np.searchsorted(minutes[1:], now, side="right")
    visit, stretch = divmod(int(over), 5)
    done = visits[: visit + (stretch >= 3)]
    home = visit >= len(visits)
    return {
        "path": path,
        "place": float(np.interp(now, minutes, places)),
        "doing": "done" if home else ("at the counter", "walking", "at work", "walking", "at the counter")[stretch],
        "carries": not home and stretch in (1, 3),
        "crossings": 2 * visit + (stretch > 1) + (stretch > 3),  # of each page: all go together
        "all_crossings": 2 * len(visits),
        "page_steps": sum(v.pages * v.steps for v in done),
        "all_page_steps": sum(v.pages * v.steps for v in visits),
        "end": float(minutes[-1]),
    }  # fmt: skip


def draw(fig, data):
    """Left: a lane for each class, with classroom, street and library. Right: place against time."""
    fig.subplots_adjust(left=0.01, right=0.985, bottom=0.03, top=0.97, wspace=0.02)
    ax, right = fig.subplots(1, 2, width_ratios=(1.75, 1))
    ax.set(xlim=(0, 10), ylim=(0, 8))
    ax.axis("off")
    lanes = {"naive": _scene(ax, "naive", 4.1), "fused": _scene(ax, "fused", 0.1)}
    paths = _diagram(right)
    (now,) = right.plot([1.2, -0.12], [0, 0], color=INK, linewidth=1.5)
    ticks = [right.text(1.28, i / 4, "", ha="right", va="center", fontsize=11) for i in range(5)]

    def move(data):
        changed = [now, *ticks]
        quarter = int(data["end"] / 4)  # round minutes: the work adds less than one to the end
        for i, tick in enumerate(ticks):
            tick.set_text(f"{quarter * i} min")
            tick.set_y(quarter * i / data["end"])
        at = data["now"] / data["end"]
        now.set_ydata([at, at])
        for name, lane in data["lanes"].items():
            changed += lanes[name](lane)
            minutes, places = lane["path"].T
            x = places + {"naive": 0.02, "fused": -0.02}[name]  # side by side where they coincide
            whole, walked, dot = paths[name]
            whole.set_data(x, minutes / data["end"])
            past = minutes < data["now"]
            here = x[-1] if past.all() else np.interp(data["now"], minutes, x)
            until = min(data["now"], minutes[-1])
            walked.set_data([*x[past], here], np.array([*minutes[past], until]) / data["end"])
            dot.set_data([here], [until / data["end"]])
            changed += [whole, walked, dot]
        return changed

    return move


def _scene(ax, flow, y):
    """One lane from y to y + 3.8; returns the function that moves it."""
    style = FLOWS[{"naive": "naive", "fused": "flash"}[flow]]
    shelf, library = LEVELS["shared"], LEVELS["hbm"]
    ax.add_patch(Rectangle((0.1, y + 0.2), 3.3, 2.55, facecolor=PAPER, edgecolor=style.colour,
                           linewidth=2.5))  # fmt: skip
    ax.add_patch(Rectangle((3.4, y), 4.5, 2.95, facecolor=STREET, linewidth=0))
    ax.plot([5.65, 5.65], [y + 0.05, y + 2.9], color=PAPER, linewidth=3, dashes=(3, 2))
    ax.add_patch(Rectangle((7.9, y + 0.2), 2.0, 2.55, facecolor=library.colour, linewidth=0))
    ax.text(8.9, y + 2.3, "library", ha="center", va="center", color=library.ink, fontsize=12)
    ax.add_patch(Rectangle((8.1, y + 0.3), 1.6, 0.5, facecolor=COUNTER, linewidth=0))
    ax.text(8.9, y + 0.54, "counter", ha="center", va="center", fontsize=11)
    ax.text(5.65, y + 2.6, "the street", ha="center", va="center", fontsize=11, bbox=dict(
        facecolor=STREET, edgecolor="none", pad=2))  # fmt: skip
    ax.add_patch(Rectangle((0.3, y + 0.35), 1.5, 0.62, facecolor=shelf.colour, hatch=shelf.hatch,
                           edgecolor=PAPER, linewidth=0))  # fmt: skip
    ax.text(1.95, y + 0.66, "the shelf", fontsize=11, va="center")
    ax.text(0.1, y + 3.32, flow, color=style.colour, fontsize=15, fontweight="bold", va="center")
    steps = ax.text(0.3, y + 2.35, "", fontsize=12, va="center")
    words = ax.text(9.9, y + 3.32, "", fontsize=12, va="center", ha="right")
    seats = [0.5 + 0.38 * i for i in range(8)], [y + 1.55] * 8
    ax.plot(*seats, **_person(26, PAPER, SOFT))  # they wait
    (working,) = ax.plot(*seats, **_person(26, style.colour, PAPER))
    (books,) = ax.plot([0.55, 0.8, 1.05, 1.3, 1.55], [y + 0.66] * 5, **_paper(13))
    (student,) = ax.plot([5], [y + 1.25], **_person(44, style.colour, PAPER))
    (page,) = ax.plot([5], [y + 1.05], **_paper(17))

    def move(lane):
        x = 8.9 - 6.3 * lane["place"]
        student.set_xdata([x])
        page.set_xdata([x + 0.45])
        page.set_visible(lane["carries"])
        for artist in (books, working):
            artist.set_visible(lane["doing"] == "at work")
        student.set_visible(lane["doing"] != "at work")  # then one of the class
        steps.set_text(_class(lane))
        words.set_text(f"{_doing(lane)}, {lane['crossings']} of {lane['all_crossings']} crossings")
        return [working, student, page, books, steps, words]

    return move


def _class(lane):
    state = {"done": "is free", "at work": "works"}.get(lane["doing"], "waits")
    return f"{state}, {lane['page_steps'] / lane['all_page_steps']:.0%} done"


def _doing(lane):
    return f"done at minute {lane['end']:.1f}" if lane["doing"] == "done" else lane["doing"]


def _person(size, colour, edge):
    return dict(marker=STUDENT, markersize=size, markerfacecolor=colour, markeredgecolor=edge,
                markeredgewidth=1.2, linestyle="")  # fmt: skip


def _paper(size):
    return dict(marker=PAGE, markersize=size, markerfacecolor=PAPER, markeredgecolor=INK,
                linestyle="")  # fmt: skip


def _diagram(ax):
    """Place across, time downwards: the walks of both classes as lines."""
    ax.set(xlim=(1.75, -0.12), ylim=(1.02, -0.08))
    ax.axis("off")
    ax.add_patch(Rectangle((0.08, 0), 0.84, 1, facecolor=STREET, linewidth=0))
    ax.text(1, -0.03, "class", ha="center", va="bottom", fontsize=12)
    ax.text(0, -0.03, "library", ha="center", va="bottom", fontsize=12)
    paths = {}
    for flow, key in (("naive", "naive"), ("fused", "flash")):
        style = FLOWS[key]
        (whole,) = ax.plot([0], [0], color=style.colour, linewidth=1.2, alpha=0.6)
        (walked,) = ax.plot([0], [0], color=style.colour, linestyle=style.dash)
        (dot,) = ax.plot([0], [0], color=style.colour, marker=style.marker, markersize=10,
                         markeredgecolor=SOFT)  # fmt: skip
        paths[flow] = whole, walked, dot
    return paths


def describe(data):
    """What both classes have done by now."""
    lanes = data["lanes"]
    said = [
        f"{name.capitalize()}: {_doing(lane)}; each page made {lane['crossings']} of "
        f"{lane['all_crossings']} crossings; the class {_class(lane)}."
        for name, lane in lanes.items()
    ]
    return (
        f"Minute {data['now']:.1f} of {data['end']:.1f}; a homework of {count(data['steps'], 'step')} "
        f"on {SHELF} pages. {' '.join(said)}"
    )


def day(**initial):
    """The explorer, at other first values if given: `day(moment=0)`."""
    controls = {
        "moment": widgets.IntSlider(16, min=0, max=MOMENTS, description="time"),
        "steps": widgets.IntSlider(4, min=1, max=MOST_STEPS, description="steps"),
    }
    title = "A day at school: a naive and a fused class with the same homework"
    return Explorer(compute, draw, describe, controls, title, initial=initial, play="moment",
                    size=(10, 5))  # fmt: skip
