"""Attention's bytes: the three kernels on a time line, memory full or not, the place on the roofline."""

from __future__ import annotations

import ipywidgets as widgets
from matplotlib.patches import Rectangle

from course import cost
from course import roofline as model
from course.draw import roofline as picture
from course.draw.attention import held, steps, work_time
from course.draw.theme import ACCENT, FLOWS, INK, LEVELS, PAPER
from course.explore.explorer import Explorer
from course.hardware import DTYPES, GPUS
from course.units import decimal, seconds

FLOW = {"naive": FLOWS["naive"], "flash": FLOWS["flash"]}
TYPES = ("fp32", "fp16", "bf16", "fp8")
HBM = LEVELS["hbm"].colour
SHORT = ("S = QKᵀ", "softmax", "O = PV")
NARROW = 0.12  # of the time line: a kernel shorter than this has no room for words
LEAST = 1e4  # bytes, where the axis of memory begins
ROOM = 1e7  # bytes: to the left of a dot from here on there is room for its number


def compute(gpu, dtype, n, d, heads, batch):
    """Kernels with bytes and times, bytes held, intensity and bound, "naive" and "flash".

    Where the chip has no arithmetic in `dtype`, times are those of the bytes alone.
    """
    chip, size = GPUS[gpu], dict(heads=heads, batch=batch, itemsize=DTYPES[dtype])
    can = dtype in chip.peak
    flows = {}
    for flow in FLOW:
        total = cost.attention(n, d, flow=flow, **size)
        kernels = steps(n, d, **size) if flow == "naive" else {"fused": total}
        moving = [model.memory_time(one, chip) for one in kernels.values()]
        working = [work_time(*item, chip, dtype) if can else 0.0 for item in kernels.items()]
        flows[flow] = {
            "kernels": list(kernels),
            "bytes": [one.bytes for one in kernels.values()],
            "moving": moving,
            "working": working,
            "times": list(map(max, moving, working)),
            "total": total.bytes,
            "intensity": total.intensity,
            "held": held(n, d, flow=flow, **size),
        }
        if can:
            flows[flow]["rate"] = model.attainable(total.intensity, chip, dtype)
            flows[flow]["bound"] = model.bound(total, chip, dtype)
    return {"gpu": chip, "dtype": dtype, "n": n, "d": d, "heads": heads, "batch": batch,
            "can": can, "flows": flows}  # fmt: skip


def full(data, flow):
    """Whether the matrices of a flow are more than the chip's memory; None where it is unknown."""
    room = data["gpu"].hbm_bytes
    return room and data["flows"][flow]["held"] > room


def draw(fig, data):
    """Left: the time line above the memory. Right: the two points on the roofline.

    What never changes is drawn once: every word that moves costs a millisecond.
    """
    line = fig.add_axes((0.075, 0.47, 0.527, 0.45), xlim=(-0.005, 1.005), ylim=(-0.05, 2.1))
    line.spines[:].set_visible(False)
    line.set(xticks=[], yticks=[1.51, 0.46], yticklabels=["naive", "fused"])
    line.tick_params(axis="y", length=0)
    line.set_title("Time (full width: the naive time)", loc="left", fontsize=14)
    head = line.text(1, 2.14, "", ha="right", va="bottom", fontsize=12)
    rows = {
        "naive": [_kernel(line, 1.05, FLOW["naive"]) for _ in range(3)],
        "flash": [_kernel(line, 0.0, FLOW["flash"])],
    }
    fused = line.text(0, 0.45, "", va="center", fontsize=12, linespacing=1.3)

    room = fig.add_axes((0.075, 0.13, 0.527, 0.225), xlim=(LEAST, 3e15), ylim=(-0.6, 1.6))
    room.set_xscale("log")
    room.minorticks_off()
    room.set_xticks([1e6, 1e9, 1e12, 1e15], ["1 MB", "1 GB", "1 TB", "1 PB"])
    room.set_yticks([1, 0], ["naive", "fused"])
    room.tick_params(axis="y", length=0)
    room.grid(True, axis="x")
    room.set_title("Held in memory", loc="left", fontsize=14)
    ratio = room.text(1, 1.07, "", transform=room.transAxes, ha="right", va="bottom", fontsize=12)
    held_dots = {
        flow: room.plot([1], [y], FLOW[flow].marker, color=FLOW[flow].colour, ms=13, mec=PAPER)[0]
        for flow, y in zip(FLOW, (1, 0), strict=True)
    }
    (limit,) = room.plot([1, 1], [-0.6, 1.6], color=HBM, lw=2.5)
    has = room.text(1, 1.66, "", color=HBM, ha="center", va="bottom", fontsize=12)
    ends = {
        flow: room.text(1, y, "", va="center", fontsize=12, bbox=dict(fc=PAPER, ec="none", pad=1.5))
        for flow, y in zip(FLOW, (1, 0), strict=True)
    }

    ax = fig.add_axes((0.668, 0.13, 0.322, 0.79))
    picture.axes(ax, (1, 3e5), (1e11, 2e16))
    ax.set(xlabel="FLOP per byte", ylabel="")
    ax.set_xticks([1, 100, 10_000], ["1", "100", "10,000"])
    ax.set_yticks([1e12, 1e13, 1e14, 1e15, 1e16], ["1 T", "10 T", "100 T", "1 P", "10 P"])
    ax.set_title("Roofline, FLOP/s", loc="left", fontsize=14)
    roof = picture.Roof(ax)
    dots = {flow: ax.plot([], [], style.marker, color=style.colour, ms=12, mec=PAPER, zorder=5)[0]
            for flow, style in FLOW.items()}  # fmt: skip
    word = dict(transform=ax.transAxes, ha="right", weight="bold", fontsize=12)
    places = {"naive": 0.17, "flash": 0.1}
    for flow, y in places.items():
        ax.text(0.735, y, f"{FLOW[flow].label}:", color=FLOW[flow].colour, **word)
    labels = {flow: ax.text(0.97, y, "", color=FLOW[flow].colour, **word)
              for flow, y in places.items()}  # fmt: skip
    missing = ax.text(
        0.5, 0.5, "", transform=ax.transAxes, ha="center", color=ACCENT, weight="bold"
    )

    def move(data):
        flows, chip = data["flows"], data["gpu"]
        whole = sum(flows["naive"]["times"])
        head.set_text(f"naive: {seconds(whole)} in all" + ("" if data["can"] else ", bytes alone"))
        changed = []
        for flow, boxes in rows.items():
            left, one = 0.0, flows[flow]
            for i, box in enumerate(boxes):
                width = one["times"][i] / whole
                text = f"{SHORT[i]}\n{decimal(one['bytes'][i])}\n{seconds(one['times'][i])}"
                words = text if flow == "naive" and width > NARROW else ""
                _place(box, left, width, one["working"][i] / whole, words)
                left += width
                changed += box
        fused.set_text(f"{decimal(flows['flash']['total'])}\n{seconds(flows['flash']['times'][0])}")
        inside = left > 0.85
        fused.set(x=left / 2 if inside else left + 0.015, ha="center" if inside else "left")

        times = flows["naive"]["held"] / flows["flash"]["held"]
        ratio.set_text(f"ratio {picture.number(times)}")
        for flow, dot in held_dots.items():
            size, over = flows[flow]["held"], full(data, flow)
            dot.set_xdata([size])
            ends[flow].set_text(decimal(size) + (": does not fit" if over else ""))
            ends[flow].set(x=1.3 * LEAST if size > ROOM else 2 * max(size, LEAST),
                           color=ACCENT if over else INK, weight="bold" if over else "normal")  # fmt: skip
        for artist in (limit, has):
            artist.set_visible(bool(chip.hbm_bytes))
        if chip.hbm_bytes:
            limit.set_xdata([chip.hbm_bytes] * 2)
            has.set(x=chip.hbm_bytes, text=f"GPU: {decimal(chip.hbm_bytes)}")

        missing.set_text("" if data["can"] else f"no {data['dtype']}\narithmetic here")
        for artist in (*roof.artists, *dots.values()):
            artist.set_visible(data["can"])
        for flow, label in labels.items():
            label.set_text(picture.number(flows[flow]["intensity"]))
        if data["can"]:
            for flow, dot in dots.items():
                dot.set_data([flows[flow]["intensity"]], [flows[flow]["rate"]])
            roof.move(chip, data["dtype"], points=[flows[flow]["intensity"] for flow in FLOW])
            ridge = model.ridge(chip, data["dtype"])
            roof.ridge_name.set_text(f"ridge: {picture.number(ridge)}")
        return [head, *changed, fused, ratio, limit, has, *held_dots.values(), *ends.values(),
                *roof.artists, *dots.values(), *labels.values(), missing]  # fmt: skip

    return move


def _kernel(ax, low, style):
    """A kernel of the time line: its box, its arithmetic in black, its words."""
    box = ax.add_patch(Rectangle((0, low), 0, 0.92, fc=PAPER, ec=style.colour, lw=2.5))
    work = ax.add_patch(Rectangle((0, low), 0, 0.13, fc=INK, lw=0))
    text = ax.text(0, low + 0.53, "", ha="center", va="center", fontsize=12, linespacing=1.25)
    return box, work, text


def _place(kernel, left, width, work, words):
    box, bar, text = kernel
    box.set_x(left)
    box.set_width(width)
    bar.set_x(left)
    bar.set_width(min(work, width))
    text.set_x(left + width / 2)
    text.set_text(words)


def describe(data):
    """Traffic and time by kernel, memory, and the bounds, in words."""
    naive, flash, chip = data["flows"]["naive"], data["flows"]["flash"], data["gpu"]
    parts = ", ".join(f"{name} {decimal(size)} in {seconds(time)}" for name, size, time
                      in zip(naive["kernels"], naive["bytes"], naive["times"], strict=True))  # fmt: skip
    slow, fast = (sum(flow["times"]) for flow in (naive, flash))
    text = (
        f"N = {data['n']:,}, d = {data['d']}, heads: {data['heads']}, batch: {data['batch']}, "
        f"{data['dtype']} on the {chip.name}. Naive: {parts}; together {decimal(naive['total'])}, "
        f"{seconds(slow)}. Fused: {decimal(flash['total'])}, {seconds(fast)}, {slow / fast:.1f} times "
        "faster"
    )
    if data["can"]:
        text += (
            f". Intensity of the whole: naive {picture.number(naive['intensity'])}, "
            f"{naive['bound']}-bound; fused {picture.number(flash['intensity'])}, "
            f"{flash['bound']}-bound. "
        )
    else:
        text += f", by the bytes alone: {chip.name} has no {data['dtype']} arithmetic. "
    text += f"Naive holds {decimal(naive['held'])}, fused {decimal(flash['held'])}"
    if not chip.hbm_bytes:
        return text + "; the size of the memory is not given."
    states = {(False, False): "both fit", (True, False): "naive does not fit",
              (True, True): "neither fits"}  # fmt: skip
    return (
        f"{text}; {states[full(data, 'naive'), full(data, 'flash')]} in {decimal(chip.hbm_bytes)}."
    )


def attention_bytes(**initial):
    """The explorer, at other first values if given: `attention_bytes(gpu="H200", n=8192, heads=8)`."""
    slider, menu = widgets.SelectionSlider, widgets.Dropdown

    def powers(low, high):
        return [(f"{2**p:,}", 2**p) for p in range(low, high + 1)]

    controls = {
        "gpu": menu(options=list(GPUS), value="H100 SXM", description="GPU"),
        "dtype": menu(options=TYPES, value="fp16", description="data type"),
        "n": slider(options=powers(9, 17), value=4096, description="length N"),
        "d": slider(options=powers(4, 8), value=128, description="width d"),
        "heads": slider(options=powers(0, 7), value=1, description="heads"),
        "batch": slider(options=powers(0, 6), value=1, description="batch"),
    }
    title = "Attention's bytes: time line, memory, roofline"
    return Explorer(compute, draw, describe, controls, title, initial=initial, size=(11, 5))
