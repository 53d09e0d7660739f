"""The roofline of a chip with one operation on it: its point, its bound, its time, what would help."""

from __future__ import annotations

import textwrap
from functools import cache

import ipywidgets as widgets
import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from course import cost, hardware, records
from course import roofline as model
from course.draw import roofline as picture
from course.draw.labels import text_size
from course.draw.theme import ACCENT, FLOWS, INK, PAPER, SOFT
from course.explore.explorer import Explorer
from course.units import decimal, seconds

HERE = "this machine"
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


OPERATIONS = {  # name: its cost from rows, width and bytes an element
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
LANDMARKS = {  # small grey points that stay, to find one's way by
    "add": ("add", 1, 1),
    "decode": ("decode", 1, 4096),
    "naive attention": ("attention, naive", 4096, HEAD),
    "matmul 8192": ("matmul", 8192, 8192),
}


@cache
def launch() -> float:
    """Seconds of the shortest kernel recorded on the H200: so small that it is all overhead."""
    return min(point["seconds"] for point in records.load("h200")["memory"]["roofline"])


def compute(gpu, dtype, operation, rows, width, *, gpus=hardware.GPUS, overhead=None):
    """Cost, times, regime and remedies of one operation on one chip of `gpus`.

    `overhead` are the seconds that a call takes on `gpus["this machine"]`; elsewhere it is `launch`.
    """
    size, chip = hardware.DTYPES[dtype], gpus[gpu]
    counted = OPERATIONS[operation](rows, width, size)
    marks = {name: OPERATIONS[op](*sizes, size) for name, (op, *sizes) in LANDMARKS.items()}
    data = {
        "gpu": chip,
        "name": gpu,
        "dtype": dtype,
        "operation": operation,
        "rows": rows,
        "width": width,
        "cost": counted,
        "landmarks": {name: mark.intensity for name, mark in marks.items()},
        "overhead": overhead if gpu == HERE and overhead else launch(),
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
    data["regime"] = "overhead" if data["overhead"] > data["time"] else data["bound"]
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
    smaller = "Fewer bytes an element: a smaller data type."
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


LEFT, RIGHT = 0.04, 4e5  # FLOP/byte
HALO = [withStroke(linewidth=3, foreground=PAPER)]  # keeps a text legible on a line that moves


def draw(fig, data, *, gpus=hardware.GPUS):
    """The roof with the point on the left; on the right the times, and what would help most."""
    ax = fig.add_axes((0.128, 0.14, 0.502, 0.78))
    side = fig.add_axes((0.65, 0.02, 0.345, 0.96), xlim=(0, 1), ylim=(0, 1))
    side.axis("off")
    bottom = LEFT / 20 * min(gpu.bandwidth for gpu in gpus.values())
    top = 500 * max(max(gpu.peak.values()) for gpu in gpus.values())  # room for three lines and one
    picture.axes(ax, (LEFT, RIGHT), (bottom, top))
    ax.set_ylabel("")  # the title says it
    title = ax.set_title("", loc="left")
    waits = ax.text(0.01, 0.985, "", transform=ax.transAxes, fontsize=12, style="italic", va="top",
                    color=picture.MEMORY)  # fmt: skip
    works = ax.text(0.99, 0.985, "working", transform=ax.transAxes, fontsize=12, style="italic",
                    ha="right", va="top", color=INK)  # fmt: skip

    roof = picture.Roof(ax)
    marks = [ax.plot([], [], "o", ms=6, mfc=PAPER, mec=SOFT, zorder=3)[0] for _ in LANDMARKS]
    mark_names = [
        ax.text(1, 1, name, fontsize=10, color=SOFT, va="top", zorder=3) for name in LANDMARKS
    ]
    for text in (roof.ridge_name, roof.flat_name, *mark_names):
        text.set_path_effects(HALO)
    (stem,) = ax.plot([], [], color=ACCENT, lw=1.2, ls=":", zorder=1)
    (lead,) = ax.plot([], [], color=ACCENT, lw=1.2, zorder=3)
    (point,) = ax.plot([], [], ms=14, mec=PAPER, mew=1.5, zorder=5)
    name = ax.text(1, 1, "", fontsize=12, weight="bold", ha="right", va="bottom", zorder=5)
    missing = ax.text(0.5, 0.5, "", transform=ax.transAxes, ha="center", fontsize=14,
                      color=ACCENT, weight="bold", zorder=5)  # fmt: skip

    verdict = side.text(0, 0.955, "", fontsize=15, weight="bold", va="top")
    side.text(0, 0.80, "the longest of three:", fontsize=12, color=SOFT, va="bottom")
    sums, bars = [], []
    fills = ((picture.MEMORY, ""), (INK, ""), (SOFT, "//"))
    for y, (colour, hatch) in zip((0.71, 0.55, 0.39), fills, strict=True):
        sums.append(side.text(0, y, "", fontsize=12, va="bottom"))
        bars.append(Rectangle((0, y - 0.055), 0, 0.045, fc=colour, hatch=hatch, ec=PAPER, lw=0))
        side.add_patch(bars[-1])
    side.text(0, 0.24, "What would help", fontsize=13, weight="bold", va="top")
    advice = side.text(0, 0.165, "", fontsize=12, va="top", linespacing=1.3)

    def move(data):
        there = data["supported"]
        shown = [waits, works, *roof.artists, *marks, *mark_names, stem, lead, point, name]
        for artist in (*shown, sums[1], bars[1]):
            artist.set_visible(there)
        title.set_text(f"Attainable rate, {data['name']}, {data['dtype']}")
        missing.set_text("" if there else textwrap.fill(_refusal(data), 34))
        if there:
            x, y = data["cost"].intensity, data["rate"]
            point.set_data([x], [y])
            point.set(color=_colour(data), marker="o" if data["bound"] == "memory" else "s")
            stem.set_data([x, x], [bottom, y])
            name.set_text(
                f"{data['operation']}\n{picture.number(x)} FLOP/byte\n{decimal(y, 'FLOP/s')}"
            )
            _put_name(ax, name, lead, x, y, data["ridge"])
            flat = [at for at in data["landmarks"].values() if at > data["ridge"]]
            roof.move(data["gpu"], data["dtype"], points=[x, *flat])
            _put_marks(ax, data, marks, mark_names)
            waits.set_text(_fitting(ax, data["ridge"], "waiting for memory", "waiting"))
        _put_times(data, sums, bars)
        verdict.set_text(_verdict(data))
        best = data["help"][0] if there else "Choose a data type that this chip has."
        advice.set_text(textwrap.fill(best, 40))
        return [title, *shown, missing, verdict, *sums, *bars, advice]

    return move


def _fitting(ax, ridge, *texts):
    """The first of the texts that fits left of the ridge, or the last."""
    left, right = picture.to_points(ax, [(LEFT, 1), (ridge, 1)])[:, 0]
    return next((t for t in texts if text_size(t, 12)[0] < right - left - 10), texts[-1])


def _put_marks(ax, data, marks, names):
    for mark, name, x in zip(marks, names, data["landmarks"].values(), strict=True):
        y = model.attainable(x, data["gpu"], data["dtype"])
        mark.set_data([x], [y])
        right, up = (7, -4) if x < data["ridge"] else (6, -25)  # there, under the peak's name
        name.set_position(picture.shift(ax, x, y, right, up))


def _put_name(ax, name, lead, x, y, ridge):
    """Left of the point and above it, inside the axes, clear of the roof and of the name on its slope.

    Where that is far from the point, a line leads to it.
    """
    width = text_size(name.get_text(), 12, "bold")[0]
    here, low, high, top = (
        picture.to_points(ax, [(at, y)])[0][0] for at in (x, LEFT, RIGHT, ridge)
    )
    right = here + (4 if x < ridge else width / 2)
    right = min(max(right, low + 6 + width), high - 4)
    overhang = max(0, min(right, top) - here) * np.tan(np.radians(picture.slope_angle(ax)))
    up = overhang + (10 if overhang < 8 else 22)
    name.set_position(picture.shift(ax, x, y, right - here, up))
    lead.set_data([x, x], [y, picture.shift(ax, x, y, 0, up)[1] if overhang > 8 else y])


def _put_times(data, sums, bars):
    """The three times, each as a bar: the longest fills the row."""
    gpu, counted = data["gpu"], data["cost"]
    times = [data["memory_time"], data.get("compute_time", 0), data["overhead"]]
    peak = decimal(gpu.peak.get(data["dtype"], 0), "FLOP/s")
    call = "a call here" if data["name"] == HERE else "a launch (H200)"
    texts = [
        f"{decimal(counted.bytes)} ÷ {decimal(gpu.bandwidth, 'B/s')} {_equals(times[0])}",
        f"{decimal(counted.flops, 'FLOP')} ÷ {peak} {_equals(times[1])}",
        f"{call}: {seconds(times[2])}",
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
    name = data["name"][0].upper() + data["name"][1:]
    return f"{name} has no peak rate for {data['dtype']}. It has {has}."


def _verdict(data):
    if not data["supported"]:
        return "No such arithmetic here"
    waits = {
        "memory": "waiting for memory",
        "compute": "working",
        "overhead": "waiting for a call" if data["name"] == HERE else "waiting for a launch",
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
    chip = data["name"] if data["name"] == HERE else f"the {data['name']}"
    text = (
        f"On {chip} in {data['dtype']}, {what} does "
        f"{picture.number(data['cost'].intensity)} FLOP per byte; the ridge is at "
        f"{picture.number(data['ridge'])}. Moving the bytes takes {_takes(data['memory_time'])}, "
        f"the arithmetic {_takes(data['compute_time'])}: {data['bound']}-bound."
    )
    if data["bound"] == "memory":
        busy = 100 * data["compute_time"] / data["memory_time"]
        text += f" The arithmetic units work {busy:.2g}% of that time."
    if data["regime"] == "overhead":
        text += f" But a call alone takes {seconds(data['overhead'])}: overhead decides."
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


def roofline(here: hardware.Gpu | None = None, overhead: float | None = None, **initial):
    """The explorer; of `here` instead of the known GPUs, where a call takes `overhead` seconds.

    Other first values: `roofline(gpu="H200", operation="attention, naive", width=128)`.
    """
    gpus = {HERE: here} if here else hardware.GPUS
    slider, menu = widgets.SelectionSlider, widgets.Dropdown

    def powers(low, high):
        return [(f"{2**p:,}", 2**p) for p in range(low, high + 1)]

    controls = {
        "gpu": menu(options=list(gpus), value=HERE if here else "H100 SXM", description="chip"),
        "dtype": menu(
            options=list(hardware.DTYPES),
            value=next(iter(here.peak)) if here else "fp16",
            description="data type",
        ),
        "operation": menu(options=list(OPERATIONS), value="matmul", description="operation"),
        "rows": slider(options=powers(0, 17), value=4096, description="rows, tokens"),
        "width": slider(options=powers(4, 14), value=4096, description="width"),
    }
    return Explorer(
        lambda **values: compute(**values, gpus=gpus, overhead=overhead),
        lambda fig, data: draw(fig, data, gpus=gpus),
        describe,
        controls,
        "A roofline with one operation on it",
        initial=initial,
        size=(10, 4.6),
    )
