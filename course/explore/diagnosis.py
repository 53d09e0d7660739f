"""The diagnosis to walk: bytes, FLOPs, time, launches, GPU → what binds, what to try, what it gains."""

import textwrap

import ipywidgets as widgets

from course import diagnosis as rule
from course.cost import Cost
from course.draw.theme import ACCENT, FLOWS, INK, PAPER, SOFT
from course.explore.explorer import Explorer
from course.hardware import GPUS
from course.units import decimal, seconds

STEPS = (  # a question, and what it finds if the answer is yes
    ("Less time than the count allows?", "the count"),
    ("Launches: over half?", "launches"),
    ("Bytes ÷ bandwidth: over half?", "memory"),
    ("FLOPs ÷ peak: over half?", "compute"),
    ("None of them", "something else"),
)
FILLS = {"launches": (SOFT, "//"), "memory": (FLOWS["naive"].colour, ""), "compute": (INK, "xxx")}
FULL = 1.2  # of the measured time, where a bar is cut


def compute(gpu, log_bytes, log_flops, log_seconds, launches):
    """The diagnosis of one run; the sliders give powers of ten."""
    cost = Cost(round(10**log_flops), round(10**log_bytes))
    found = rule.diagnose(cost, 10**log_seconds, GPUS[gpu], launches=launches)
    return {"gpu": gpu, "cost": cost, "launches": launches, "found": found}


def draw(fig, data):
    """On the left the questions with the answer reached; on the right the shares of the time."""
    flow = fig.add_axes((0.01, 0.02, 0.37, 0.9), xlim=(0, 1), ylim=(5, -0.2))
    flow.axis("off")
    for y in range(len(STEPS) - 1):
        flow.text(0.06, y + 0.93, "no ↓", va="center", fontsize=12, color=SOFT)
    ax = fig.add_axes((0.49, 0.45, 0.49, 0.43), xlim=(0, FULL), ylim=(2.5, -0.5))
    ax.set_yticks(range(3), FILLS)
    ax.set_xticks((0, 0.5, 1), ("0", "half", "measured time"))
    ax.axvline(0.5, color=ACCENT, lw=1.5, ls="--")
    ax.axvline(1, color=INK, lw=1.5)
    boxes = []
    for y, (question, _) in enumerate(STEPS):
        style = dict(boxstyle="square,pad=0.45", fc=PAPER, ec=SOFT)
        boxes.append(flow.text(0.02, y + 0.4, question, va="center", fontsize=13, bbox=style))
    bars = [
        ax.barh(i, 0, 0.6, color=c, hatch=h, ec=PAPER)[0] for i, (c, h) in enumerate(FILLS.values())
    ]
    ends = [ax.text(0.02, i, "", va="center", fontsize=12,
                    bbox=dict(fc=PAPER, ec="none", pad=1)) for i in range(3)]  # fmt: skip
    title = ax.set_title("", loc="left")
    verdict = fig.text(0.42, 0.27, "", fontsize=15, weight="bold", va="top")
    advice = fig.text(0.42, 0.19, "", fontsize=12.5, va="top", linespacing=1.3)

    def move(data):
        found = data["found"]
        reached = [what for _, what in STEPS].index(found.binds)
        for y, box in enumerate(boxes):
            box.set_color(INK if y <= reached else SOFT)
            box.set_weight("bold" if y == reached else "normal")
            box.get_bbox_patch().set(edgecolor=ACCENT if y == reached else SOFT,
                                     linewidth=3 if y == reached else 1)  # fmt: skip
        for bar, end, time in zip(bars, ends, found.needed.values(), strict=True):
            bar.set_width(min(time / found.seconds, FULL))
            end.set_text(_share(time, found.seconds))
        title.set_text(f"{data['gpu']}: {seconds(found.seconds)} measured")
        verdict.set_text(_verdict(found))
        advice.set_text(textwrap.fill(found.first, 60))
        return [*boxes, *bars, *ends, title, verdict, advice]

    return move


def _share(time, whole):
    share = time / whole
    said = f"{share:.0%}" if share < 10 else "over 10 times the measured"
    return f"{_told(time)}, {said}"


def _told(time):
    return seconds(time) if time >= 1e-9 else "under 1 ns"


def _verdict(found):
    gain = f": at most {_times(found.gain)} to gain" if found.gain else ""
    return f"{found.binds[0].upper()}{found.binds[1:]}{gain}"


def _times(gain):
    return f"{gain:,.0f} times" if gain >= 100 else f"{gain:.2g} times"


def describe(data):
    """The same in words."""
    found, cost = data["found"], data["cost"]
    shares = ", ".join(f"{what} {_share(t, found.seconds)}" for what, t in found.needed.items())
    n = data["launches"]
    return (
        f"{decimal(cost.bytes)} and {decimal(cost.flops, 'FLOP')} in {n} launch{'es' * (n > 1)} took "
        f"{seconds(found.seconds)} on the {data['gpu']}. Needed at least: {shares}. "
        f"{_verdict(found)}. {found.first}"
    )


def diagnosis(**initial):
    """The explorer, at other first values if given: `diagnosis(log_bytes=8.8, log_seconds=-3.7)`."""

    def tens(least, most, unit, value):
        options = [(unit(10 ** (p / 4)), p / 4) for p in range(4 * least, 4 * most + 1)]
        return dict(options=options, value=value)

    controls = {
        "gpu": widgets.Dropdown(options=list(GPUS), value="H200", description="GPU"),
        "log_bytes": widgets.SelectionSlider(**tens(3, 12, decimal, 9), description="bytes"),
        "log_flops": widgets.SelectionSlider(
            **tens(3, 15, lambda x: decimal(x, "FLOP"), 9), description="FLOPs"
        ),
        "log_seconds": widgets.SelectionSlider(
            **tens(-6, 0, seconds, -3.5), description="measured time"
        ),
        "launches": widgets.SelectionSlider(
            options=(1, 3, 10, 30, 100, 300, 1000), value=1, description="launches"
        ),
    }
    title = "My kernel is slow: what binds?"
    return Explorer(compute, draw, describe, controls, title, initial=initial, size=(11, 4.4))
