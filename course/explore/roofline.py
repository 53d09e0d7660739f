"""The roofline of a chip with one operation on it: its point, its bound, its time, what would help."""

from __future__ import annotations

import textwrap
from functools import cache

import ipywidgets as widgets
import numpy as np
from matplotlib.patches import Rectangle

from course import cost, hardware, records
from course import roofline as model
from course.draw import roofline as picture
from course.draw.theme import ACCENT, FLOWS, INK, PAPER, SOFT
from course.explore.explorer import Explorer
from course.records import memory
from course.units import decimal, seconds

HEAD = 128  # attention splits the width into heads of this width


def _elements(flops, inputs=1):
    return lambda rows, width, size: cost.elementwise(
        rows * width, inputs=inputs, flops_per_element=flops, itemsize=size
    )


def _attention(flow):
    def counted(rows, width, size):
        heads, d = _heads(width)
        return cost.attention(rows, d, flow=flow, heads=heads, itemsize=size)

    return counted


def _heads(width):
    return max(1, width // HEAD), min(width, HEAD)


def _shape(operation, rows, width):
    """(m, n, k) of a matmul; a decoded layer has 12·width² weights, as in a GPT block."""
    return (rows, width, width) if operation == "matmul" else (rows, 12 * width, width)


OPERATIONS = {  # name: its cost from rows, width and bytes per element
    "add": _elements(1, inputs=2),
    "ReLU": _elements(1),
    "dropout": _elements(2),
    "softmax": _elements(5),
    "layer norm": _elements(8),
    "matmul": lambda rows, width, size: cost.matmul(*_shape("matmul", rows, width), itemsize=size),
    "decode": lambda rows, width, size: cost.matmul(*_shape("decode", rows, width), itemsize=size),
    "attention, naive": _attention("naive"),
    "attention, fused": _attention("flash"),
}


@cache
def measured() -> tuple[float, float]:
    """On the H200: seconds of the shortest lone call, all of it overhead; bytes/s of the L2."""
    record = records.load("h200")["memory"]
    return min(point["seconds"] for point in record["roofline"]), memory.l2_bandwidth(record)[1]


def compute(gpu, dtype, operation, rows, width):
    """Cost, times, regime and remedies of one operation on one chip."""
    size, chip = hardware.DTYPES[dtype], hardware.GPUS[gpu]
    counted = OPERATIONS[operation](rows, width, size)
    call, l2 = measured()
    data = {
        "gpu": chip,
        "dtype": dtype,
        "operation": operation,
        "rows": rows,
        "width": width,
        "cost": counted,
        "overhead": call,
        "l2": l2 if gpu == "H200" else None,
        "memory_time": model.memory_time(counted, chip),
        "supported": dtype in chip.peak,
    }
    if not data["supported"]:
        return data
    data |= {
        "compute_time": model.compute_time(counted, chip, dtype),
        "rate": model.attainable(counted.intensity, chip, dtype),
        "ridge": model.ridge(chip, dtype),
        "bound": model.bound(counted, chip, dtype),
        "time": model.time(counted, chip, dtype),
    }
    data["regime"] = "overhead" if call > data["time"] else data["bound"]
    return data | {"help": remedies(data)}


def remedies(data) -> list[str]:
    """What would make it faster, the best first."""
    operation = data["operation"]
    if data["regime"] == "overhead":
        return ["Fewer, larger calls: fuse, or batch.", "On a GPU, replay them as a CUDA graph."]
    if data["bound"] == "compute":
        peak = data["gpu"].peak
        faster = [dtype for dtype in peak if peak[dtype] > peak[data["dtype"]]]
        better = "Keep the units fed: good tiles, overlap."
        return [
            f"A data type with a higher peak: {', '.join(faster)}." if faster else better,
            "Fewer bytes gain nothing now.",
        ]
    smaller = "Fewer bytes per element: a smaller data type."
    if operation in ("matmul", "decode"):
        return [_rows_needed(data), smaller]
    if operation == "attention, naive":
        return ["Fuse and tile, so that S and P never go to memory: “attention, fused”.", smaller]
    if operation == "attention, fused":
        return ["A longer sequence: each key read then serves more queries.", smaller]
    return ["Fuse it with its neighbours: one trip to memory for all.", smaller]


def _rows_needed(data):
    """Rows m at which a matmul reaches the ridge: 2mnk = ridge · itemsize · (mk + kn + mn)."""
    _, n, k = _shape(data["operation"], 1, data["width"])
    ridge = data["ridge"] * hardware.DTYPES[data["dtype"]]
    spare = 2 * n * k - ridge * (n + k)
    if spare <= 0:
        return "More width: at this one no number of rows reaches the ridge."
    what = "rows" if data["operation"] == "matmul" else "sequences"
    return f"Batch: {np.ceil(ridge * n * k / spare):,.0f} {what} would reach the ridge."


LEFT, RIGHT = 0.05, 6e4  # FLOP/byte
BOTTOM = LEFT * min(gpu.bandwidth for gpu in hardware.GPUS.values())
TOP = 20 * max(max(gpu.peak.values()) for gpu in hardware.GPUS.values())


def draw(fig, data):
    """The roof with the point on the left; on the right the times, and what would help most.

    What never changes is drawn once: every word that moves costs a millisecond.
    """
    ax = fig.add_axes((0.128, 0.14, 0.502, 0.78))
    side = fig.add_axes((0.65, 0.02, 0.345, 0.96), xlim=(0, 1), ylim=(0, 1))
    side.axis("off")
    picture.axes(ax, (LEFT, RIGHT), (BOTTOM, TOP))
    ax.set_ylabel("")  # the title says it
    title = ax.set_title("", loc="left")
    sides = dict(transform=ax.transAxes, fontsize=12, style="italic", va="top")
    ax.text(0.01, 0.985, "waiting", color=picture.MEMORY, **sides)
    ax.text(0.99, 0.985, "working", color=INK, ha="right", **sides)
    roof = picture.Roof(ax)
    (point,) = ax.plot([], [], ms=14, mec=PAPER, mew=1.5, zorder=5)
    missing = ax.text(0.5, 0.5, "", transform=ax.transAxes, ha="center", fontsize=14,
                      color=ACCENT, weight="bold", zorder=5)  # fmt: skip

    verdict = side.text(0, 0.955, "", fontsize=15, weight="bold", va="top")
    place = side.text(0, 0.865, "", fontsize=12, va="top")
    side.text(0, 0.74, "the longest of three:", fontsize=12, color=SOFT, va="bottom")
    sums, bars = [], []
    fills = ((picture.MEMORY, ""), (SOFT, "//"), (INK, "xxx"))
    for y, (colour, hatch) in zip((0.665, 0.52, 0.375), fills, strict=True):
        sums.append(side.text(0, y, "", fontsize=12, va="bottom"))
        bars.append(Rectangle((0, y - 0.055), 0, 0.045, fc=colour, hatch=hatch, ec=PAPER, lw=0))
        side.add_patch(bars[-1])
    side.text(0, 0.24, "What would help", fontsize=13, weight="bold", va="top")
    advice = side.text(0, 0.165, "", fontsize=12, va="top", linespacing=1.3)

    def move(data):
        there = data["supported"]
        shown = [*roof.artists, point, place]
        for artist in (*shown, sums[1], bars[1]):
            artist.set_visible(there)
        title.set_text(f"Attainable rate, {data['gpu'].name}, {data['dtype']}")
        missing.set_text("" if there else textwrap.fill(_refusal(data), 34))
        if there:
            x, y = data["cost"].intensity, data["rate"]
            point.set_data([x], [y])
            point.set(color=_colour(data), marker="o" if data["bound"] == "memory" else "s")
            place.set_text(f"{picture.number(x)} FLOP/byte, {decimal(y, 'FLOP/s')}")
            roof.move(data["gpu"], data["dtype"], points=[x], l2=data["l2"])
            roof.ridge_name.set_text(f"ridge {picture.number(data['ridge'])}")
            peak = data["gpu"].peak[
                data["dtype"]
            ]  # its name stands above the roof, clear of the point
            roof.flat_name.set(x=0.9 * RIGHT, y=1.6 * peak, ha="right", va="bottom")
        _put_times(data, sums, bars)
        verdict.set_text(_verdict(data))
        best = data["help"][0] if there else "Choose a data type that this chip has."
        advice.set_text(textwrap.fill(best, 40))
        return [title, *shown, missing, verdict, *sums, *bars, advice]

    return move


def _put_times(data, sums, bars):
    """The three times, each as a bar: the longest fills the row."""
    gpu, counted = data["gpu"], data["cost"]
    times = [data["memory_time"], data.get("compute_time", 0), data["overhead"]]
    peak = decimal(gpu.peak.get(data["dtype"], 0), "FLOP/s")
    texts = [
        f"{decimal(counted.bytes)} ÷ {decimal(gpu.bandwidth, 'B/s')} {_equals(times[0])}",
        f"{decimal(counted.flops, 'FLOP')} ÷ {peak} {_equals(times[1])}",
        f"a lone call (an H200): {seconds(times[2])}",
    ]
    for text, bar, said, time in zip(sums, bars, texts, times, strict=True):
        text.set_text(said)
        bar.set_width(max(time / max(times), 0.004))


def _equals(time):
    """A nanosecond is about two beats of a chip's clock: a shorter time is no more than a bound."""
    return f"= {seconds(time)}" if time >= 1e-9 else "< 1 ns"


def _takes(time):
    return seconds(time) if time >= 1e-9 else "less than 1 ns"


def _colour(data):
    flow = {"attention, naive": "naive", "attention, fused": "flash"}.get(data["operation"])
    return FLOWS[flow].colour if flow else ACCENT


def _refusal(data):
    has = ", ".join(data["gpu"].peak)
    name = data["gpu"].name
    return f"{name[0].upper()}{name[1:]} has no peak rate for {data['dtype']}. It has {has}."


def _verdict(data):
    if not data["supported"]:
        return "No such arithmetic here"
    waits = {
        "memory": "waiting for memory",
        "compute": "working",
        "overhead": "waiting to be started",
    }
    return f"{seconds(max(data['time'], data['overhead']))}: {waits[data['regime']]}"


def _sizes(data):
    rows, width = data["rows"], data["width"]
    if data["operation"].startswith("attention"):
        heads, d = _heads(width)
        return f"N = {rows:,}, {heads} head{'s' * (heads > 1)} of {d}"
    if data["operation"] == "matmul":
        return f"M = {rows:,}, N = K = {width:,}"
    if data["operation"] == "decode":
        return f"one layer {width:,} wide, {rows:,} sequence{'s' * (rows > 1)} at once"
    return f"{rows:,} × {width:,} elements"


def describe(data):
    """Point, ridge, times, bound and remedies in words."""
    what = f"{data['operation']} ({_sizes(data)})"
    if not data["supported"]:
        return f"{_refusal(data)} Choose one of these to see {what}."
    text = (
        f"On the {data['gpu'].name} in {data['dtype']}, {what} does "
        f"{picture.number(data['cost'].intensity)} FLOP per byte; the ridge is at "
        f"{picture.number(data['ridge'])}. Moving the bytes takes {_takes(data['memory_time'])}, "
        f"the arithmetic {_takes(data['compute_time'])}: {data['bound']}-bound."
    )
    if data["bound"] == "memory":
        busy = 100 * data["compute_time"] / data["memory_time"]
        text += f" The arithmetic units work {busy:.2g}% of that time."
    if data["regime"] == "overhead":
        text += f" But a lone call takes {seconds(data['overhead'])}: overhead decides."
    if data["l2"]:
        text += (
            f" Its L2 gives {decimal(data['l2'], 'B/s')}, so what it serves has a ridge at "
            f"{picture.number(data['gpu'].peak[data['dtype']] / data['l2'])}."
        )
    hbm, held = data["gpu"].hbm_bytes, _held(data)
    if hbm and held > hbm:
        text += f" It needs {decimal(held)} of memory, and there are {decimal(hbm)}."
    return f"{text} What would help: {' '.join(data['help'])}"


def _held(data):
    """Bytes in memory at once: every operand, once; S and P are each written and read again."""
    again = 0
    if data["operation"] == "attention, naive":
        again = 2 * _heads(data["width"])[0] * data["rows"] ** 2 * hardware.DTYPES[data["dtype"]]
    return data["cost"].bytes - again


def roofline(**initial):
    """The explorer, at other first values if given: `roofline(gpu="H200", operation="decode")`."""
    slider, menu = widgets.SelectionSlider, widgets.Dropdown

    def powers(low, high):
        return [(f"{2**p:,}", 2**p) for p in range(low, high + 1)]

    controls = {
        "gpu": menu(options=list(hardware.GPUS), value="H100 SXM", description="chip"),
        "dtype": menu(options=list(hardware.DTYPES), value="fp16", description="data type"),
        "operation": menu(options=list(OPERATIONS), value="matmul", description="operation"),
        "rows": slider(options=powers(0, 15), value=4096, description="rows, tokens"),
        "width": slider(options=powers(4, 14), value=4096, description="width"),
    }
    title = "A roofline with one operation on it"
    return Explorer(compute, draw, describe, controls, title, initial=initial, size=(10, 4.6))
