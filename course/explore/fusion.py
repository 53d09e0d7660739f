"""A chain of element-wise operations before and after fusion: bytes, time with launches, intensity."""

from __future__ import annotations

from functools import cache

import ipywidgets as widgets
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from course import cost, records
from course import roofline as model
from course.cost import OPS, Op
from course.draw import roofline as picture
from course.draw.labels import text_size
from course.draw.theme import FLOWS, GRID, INK, PAPER, SOFT
from course.explore.explorer import Explorer
from course.hardware import GPUS
from course.units import decimal, seconds

CHAINS = {
    "bias, GELU, dropout, residual": [OPS[x] for x in ("bias", "gelu", "dropout", "residual")],
    "the same, mask stored": [OPS[x] for x in ("bias", "gelu", "stored dropout", "residual")],
    "four plain steps": [Op()] * 4,
    "bias, GELU, dropout (quiz)": [OPS[x] for x in ("bias", "gelu", "dropout")],
    "(a + b), ReLU, times c": [Op("add", reads=1), OPS["relu"], Op("times", reads=1)],
    "bias, GELU": [OPS["bias"], OPS["gelu"]],
    "ten plain steps": [Op()] * 10,
}
TYPES = {"FP32": 4, "FP16 or BF16": 2, "FP8": 1}
FLOW = {"separate": FLOWS["naive"], "fused": FLOWS["flash"]}
LAUNCHES = {"in a CUDA graph": "graph", "from Python": "wall"}  # how, and its field in the record
WAIT = dict(fc=GRID, ec=SOFT, hatch="//", lw=1)


@cache
def launch(how: str) -> dict[str, float]:
    """Seconds per kernel of the smallest chains recorded on the H200: all of it is launch.

    "separate" is one of eager's four kernels. "fused" is the hand-written one, which from Python is
    asked for through the longer way of Triton.
    """
    points = records.load("h200")["fusion"]["points"]
    found = {}
    for flow, recorded in (("separate", "eager"), ("fused", "hand-written")):
        smallest = min((p for p in points if p["flow"] == recorded), key=lambda p: p["n"])
        found[flow] = smallest[LAUNCHES[how]] / smallest["launches"]
    return found


def compute(gpu, chain, elements, dtype, launched):
    """Costs, kernels and times of a chain, "separate" and "fused".

    A kernel takes the longest of its bytes ÷ bandwidth, its FLOPs ÷ peak and its launch.
    """
    ops, size, chip = CHAINS[chain], TYPES[dtype], GPUS[gpu]
    kernels = {
        "separate": [cost.chain([op], elements, fused=False, itemsize=size) for op in ops],
        "fused": [cost.chain(ops, elements, fused=True, itemsize=size)],
    }
    data = {"gpu": gpu, "chain": chain, "elements": elements, "dtype": dtype}
    data |= {"launched": launched, "launch": launch(launched)}
    for flow, costs in kernels.items():
        moving = [model.time(one, chip) for one in costs]
        taken = [max(time, data["launch"][flow]) for time in moving]
        total = sum(costs, cost.Cost())
        data[flow] = {"cost": total, "shares": [one.bytes / total.bytes for one in costs],
                      "moving": moving, "taken": taken, "time": sum(taken),
                      "rate": model.attainable(total.intensity, chip)}  # fmt: skip
    a, b = data["separate"], data["fused"]
    data["fewer"] = a["cost"].bytes / b["cost"].bytes
    data["faster"] = a["time"] / b["time"]
    data["waiting"] = sum(t < data["launch"][f] for f in FLOW for t in data[f]["moving"])
    return data


LEFT, RIGHT, BOTTOM, TOP = 2e-3, 2e3, 1e8, 1e16  # FLOP/byte, FLOP/s


def draw(fig, data):
    """Left: bytes and time as bars, before and after. Right: the point moving on the roofline."""
    side = fig.add_axes((0.015, 0.02, 0.5, 0.96), xlim=(0, 1), ylim=(0, 1))
    side.axis("off")
    heads = [side.text(0, y, "", fontsize=14, weight="bold", va="bottom") for y in (0.905, 0.43)]
    rows = {
        (what, flow): _row(side, y, FLOW[flow])
        for what, flow, y in (("bytes", "separate", 0.8), ("bytes", "fused", 0.635),
                              ("time", "separate", 0.325), ("time", "fused", 0.16))
    }  # fmt: skip
    side.add_patch(Rectangle((0, 0.005), 0.03, 0.045, **WAIT))
    waiting = side.text(0.045, 0.027, "", fontsize=12, va="center")

    ax = fig.add_axes((0.645, 0.145, 0.345, 0.75))
    picture.axes(ax, (LEFT, RIGHT), (BOTTOM, TOP))
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="")
    title = ax.set_title("", loc="left", fontsize=13)
    (slope,) = ax.plot([], [], color=picture.MEMORY, lw=3.5)
    (flat,) = ax.plot([], [], color=INK, lw=3.5)
    (ridge,) = ax.plot([], [], color=SOFT, ls=(0, (4, 3)), lw=1.3)
    dots = {flow: ax.plot([], [], style.marker, color=style.colour, ms=12, mec=PAPER, zorder=5)[0]
            for flow, style in FLOW.items()}  # fmt: skip
    names = {flow: ax.text(1, 1, "", fontsize=12, weight="bold", color=style.colour, zorder=5)
             for flow, style in FLOW.items()}  # fmt: skip

    def move(data):
        chip = GPUS[data["gpu"]]
        edge, peak = model.ridge(chip), chip.peak_for("fp16")
        title.set_text(f"{data['gpu']}: {decimal(chip.bandwidth, 'B/s')}, ridge {edge:.0f}")
        slope.set_data([LEFT, edge], [LEFT * chip.bandwidth, peak])
        flat.set_data([edge, RIGHT], [peak, peak])
        ridge.set_data([edge, edge], [BOTTOM, peak])
        waiting.set_text(f"waiting for a launch (recorded, H200): {_launches(data)}")
        heads[0].set_text(f"Bytes moved: {data['fewer']:.3g} times fewer")
        heads[1].set_text(_gain(data))
        most, whole = max(data[f]["time"] for f in FLOW), data["separate"]["cost"].bytes
        changed = []
        for flow in FLOW:
            one, x = data[flow], data[flow]["cost"].intensity
            dots[flow].set_data([x], [one["rate"]])
            names[flow].set_text(f"{flow}\n{picture.number(x)}")
            _put(ax, names[flow], x, one["rate"], left=flow == "separate")
            share = [part * one["cost"].bytes / whole for part in one["shares"]]
            changed += _bars(rows["bytes", flow], share, share,
                             f"{_kernels(one)}, {decimal(one['cost'].bytes)}")  # fmt: skip
            changed += _bars(rows["time", flow], [t / most for t in one["taken"]],
                             [t / most for t in one["moving"]],
                             f"{_kernels(one)}, {seconds(one['time'])}")  # fmt: skip
        return [title, slope, flat, ridge, *dots.values(), *names.values(), waiting, *heads,
                *changed]  # fmt: skip

    return move


def _row(side, y, style):
    """Bars of one row: what is waited for, what moves, and the words above them."""
    wait = side.add_collection(PolyCollection([], **WAIT))
    full = side.add_collection(PolyCollection([], fc=style.colour, ec=PAPER, lw=1.5))
    return y, wait, full, side.text(0, y + 0.01, "", fontsize=12, color=style.colour)


def _bars(row, taken, moving, words):
    """One bar a kernel, side by side: its whole time, and within it that of moving the bytes."""
    y, wait, full, text = row
    starts = [sum(taken[:i]) for i in range(len(taken))]
    wait.set_verts([_box(x, y, w) for x, w, m in zip(starts, taken, moving, strict=True) if w > m])
    full.set_verts([_box(x, y, w) for x, w in zip(starts, moving, strict=True)])
    text.set_text(words)
    return [wait, full, text]


def _box(x, y, width, height=0.075):
    return [(x, y - height), (x + width, y - height), (x + width, y), (x, y)]


def _kernels(one):
    return f"{len(one['taken'])} kernel" + "s" * (len(one["taken"]) > 1)


def _gain(data):
    every = len(data["separate"]["taken"]) + 1
    what = {0: "memory decides", every: "launches decide"}.get(data["waiting"], "both count")
    faster = data["faster"]
    gain = f"{faster:.3g} times faster" if faster >= 1 else f"{1 / faster:.3g} times slower"
    return f"Time: {gain} ({what})"


def _launches(data):
    return f"{seconds(data['launch']['separate'])} each, fused {seconds(data['launch']['fused'])}"


def _put(ax, text, x, y, left):
    """Left above the point before, right below the point after: off the roof on both sides."""
    width, height = text_size(text.get_text(), 12, "bold")
    shift = (-width - 4, 7) if left else (10, -height)
    text.set_position(picture.shift(ax, x, y, *shift))


def describe(data):
    """Bytes, times and intensities before and after, and what the time is spent on."""
    a, b = data["separate"], data["fused"]
    text = (
        f"{data['elements']:,} elements of {data['dtype']}, {data['chain']}, on {data['gpu']}: "
        f"separate kernels move {decimal(a['cost'].bytes)}, one kernel {decimal(b['cost'].bytes)}. "
        f"Intensity goes from {picture.number(a['cost'].intensity)} to "
        f"{picture.number(b['cost'].intensity)} FLOP per byte. "
        f"Time: {seconds(a['time'])} against {seconds(b['time'])}. "
    )
    if not data["waiting"]:
        return text + "Moving bytes takes all of it, so fewer bytes are less time."
    launched = f"than its launch takes ({_launches(data)})"
    if data["waiting"] == len(a["taken"]) + 1:
        return text + f"Every kernel moves its bytes in less {launched}: launches decide."
    return text + f"Not every kernel moves its bytes in less {launched}: both count."


def fusion(**initial):
    """The explorer, at other first values if given: `fusion(gpu="H200", elements=10**8)`."""
    sizes = [(f"{size:,}", size) for e in range(3, 10) for size in (10**e, 3 * 10**e)][:-1]
    controls = {
        "gpu": widgets.Dropdown(options=list(GPUS), value="H200", description="GPU"),
        "chain": widgets.Dropdown(options=list(CHAINS), description="chain"),
        "elements": widgets.SelectionSlider(options=sizes, value=10**7, description="elements n"),
        "launched": widgets.Dropdown(options=list(LAUNCHES), description="launched"),
        "dtype": widgets.Dropdown(options=list(TYPES), value="FP16 or BF16", description="type"),
    }
    title = "A chain of operations before and after fusion"
    return Explorer(compute, draw, describe, controls, title, initial=initial)
