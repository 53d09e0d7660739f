"""Figures of fusion: trips to memory, two kinds of fusion, and what was measured on a chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from course import cost
from course.cost import OPS, Cost, Op
from course.draw.static import static
from course.draw.theme import FLOWS, GRID, INK, LEVELS, PAPER, SOFT, FlowStyle
from course.hardware import Gpu
from course.tables import Table
from course.units import decimal, seconds

CHAIN = ("bias", "gelu", "stored dropout", "residual")  # what PyTorch runs: it stores the mask
FUSED = ("bias", "gelu", "dropout", "residual")  # in one kernel the mask comes from a seed
NAMES = {"gelu": "GELU", "relu": "ReLU", "stored dropout": "dropout"}
STYLES = {  # flow of `course.records.fusion` → its style and its name on a figure
    "eager": (FLOWS["naive"], "eager: four kernels"),
    "compiled": (FLOWS["tiled"], "compiled: torch.compile"),
    "hand-written": (FLOWS["flash"], "hand-written: one kernel"),
}
MINE = FLOWS["measured"]


def predicted(flow: str, n: int, itemsize: int = 2) -> Cost:
    """What each flow of the record should cost: 19n bytes for eager, 6n for the fused, in FP16."""
    eager = flow == "eager"
    return cost.chain(CHAIN if eager else FUSED, n, fused=not eager, itemsize=itemsize)


# --- trips ------------------------------------------------------------------------------------


def trips(ax, ops: Sequence[Op], itemsize: int = 2) -> str:
    """Every trip between HBM and the chip: each operation a kernel on the left, all in one right."""
    k = len(ops)
    right, wide = k + 0.35, 2.1
    ax.set(xlim=(-0.12, right + wide + 0.12), ylim=(-0.62, 2.75), xticks=(), yticks=())
    ax.axis("off")
    hbm = LEVELS["hbm"]
    ax.add_patch(Rectangle((-0.1, 2.05), right + wide + 0.2, 0.55, facecolor=hbm.colour))
    ax.text((right + wide) / 2, 2.32, "HBM", color=hbm.ink, weight="bold", ha="center", va="center")
    for i, op in enumerate(ops):
        _kernel(ax, i, 0.84, NAMES.get(op.name, op.name), FLOWS["naive"])
        _arrows(
            ax, i, 0.84, [itemsize] * (1 + op.reads), [itemsize] + [op.stored] * bool(op.stored)
        )
    fused = "\n".join(NAMES.get(op.name, op.name) for op in ops)
    _kernel(ax, right, wide, fused, FLOWS["flash"])
    kept = [op.stored for op in ops if op.stored]
    _arrows(ax, right, wide, [itemsize] * (1 + sum(op.reads for op in ops)), [itemsize, *kept])
    apart, one = (cost.chain(ops, 1, fused=fused, itemsize=itemsize).bytes for fused in (0, 1))
    said = (f"{_count(k)} kernels: {apart}n bytes", f"one kernel: {one}n bytes")
    for x, text, flow in ((k / 2, said[0], "naive"), (right + wide / 2, said[1], "flash")):
        ax.text(x, -0.32, text, color=FLOWS[flow].colour, weight="bold", ha="center", fontsize=15)
    names = ", ".join(NAMES.get(op.name, op.name) for op in ops)
    return (
        f"Trips between HBM and the chip for n elements of {itemsize} bytes: {names}. "
        f"As {said[0]}, since each kernel reads from HBM and writes back to it. "
        f"As {said[1]}, since what lies between the operations stays on the chip."
    )


def _count(k):
    return {2: "two", 3: "three", 4: "four", 5: "five"}.get(k, str(k))


def _kernel(ax, x, width, text, style: FlowStyle):
    ax.add_patch(FancyBboxPatch((x + 0.03, 0), width - 0.06, 1.0, facecolor=PAPER, lw=2.5,
                                boxstyle="round,pad=0,rounding_size=0.08",
                                edgecolor=style.colour))  # fmt: skip
    ax.text(x + width / 2, 0.5, text, ha="center", va="center", linespacing=1.15, fontsize=13)


def _arrows(ax, x, width, reads, writes):
    """Reads go down on the left, writes go up on the right; each labelled with its bytes."""
    every = [(size, "read") for size in reads] + [(size, "write") for size in writes]
    spots = x + width * (np.arange(len(every)) + 0.5) / len(every)
    for spot, (size, way) in zip(spots, every, strict=True):
        ends = ((spot, 1.06), (spot, 1.99))
        start, end = ends[::-1] if way == "read" else ends
        style = dict(arrowstyle="-|>", lw=2.2, shrinkA=0, shrinkB=0, mutation_scale=16,
                     color=LEVELS["hbm"].colour, linestyle="-" if way == "read" else (0, (3, 1.5)))  # fmt: skip
        ax.annotate("", end, start, arrowprops=style)
        ax.text(spot, 1.5, f"{size}n", ha="center", va="center", fontsize=12,
                bbox=dict(fc=PAPER, ec="none", pad=1.2))  # fmt: skip


@static("exact_trips", size=(10, 3.6))
def _(ax):
    return trips(ax, [OPS[name] for name in FUSED])


# --- two kinds --------------------------------------------------------------------------------


def two_kinds(axes) -> str:
    """Vertical fusion joins a chain; horizontal fusion joins siblings that read the same tensor."""
    for ax, title in zip(axes, ("Vertical: a chain", "Horizontal: siblings"), strict=True):
        ax.set(xlim=(-0.1, 5.1), ylim=(-0.2, 3.2), xticks=(), yticks=(), title=title)
        ax.axis("off")
    chain, siblings = axes
    box = dict(facecolor="none", edgecolor=FLOWS["flash"].colour, lw=2.5, linestyle=(0, (4, 2)),
               boxstyle="round,pad=0,rounding_size=0.12")  # fmt: skip
    chain.add_patch(FancyBboxPatch((0.85, 0.85), 3.3, 1.3, **box))
    names = ("bias", "GELU", "dropout")
    for i, name in enumerate(names):
        _step(chain, 0.95 + 1.08 * i, 1.5, name)
        if i:
            _link(chain, (0.72 + 1.08 * i + 0.13, 1.5), (0.95 + 1.08 * i, 1.5), SOFT)
    _tensor(chain, 0.25, 1.5, "x")
    _tensor(chain, 4.75, 1.5, "y")
    _link(chain, (0.5, 1.5), (0.9, 1.5))
    _link(chain, (4.1, 1.5), (4.5, 1.5))
    chain.text(2.5, 0.45, "what lies between stays on the chip", ha="center", fontsize=12)
    siblings.add_patch(FancyBboxPatch((1.55, 0.1), 1.5, 2.8, **box))
    _tensor(siblings, 0.25, 1.5, "x")
    for y, name in zip((2.4, 1.5, 0.6), "QKV", strict=True):
        _link(siblings, (0.5, 1.5), (1.7, y))
        _step(siblings, 1.75, y, f"x · W{name}", 1.1)
        _link(siblings, (2.85, y), (4.0, y))
        _tensor(siblings, 4.25, y, name)
    siblings.text(0.55, 2.75, "x is read\nonce", ha="center", va="center", fontsize=12)
    return (
        "Two kinds of fusion. Vertical: bias, GELU and dropout, one after the other, become one "
        "kernel, and what lies between them stays on the chip. Horizontal: three products of the "
        "same x, with the weights of Q, K and V, become one kernel, and x is read once."
    )


def _step(ax, x, y, text, width=0.9):
    ax.add_patch(Rectangle((x, y - 0.28), width, 0.56, facecolor=LEVELS["registers"].colour,
                           edgecolor=SOFT))  # fmt: skip
    ax.text(x + width / 2, y, text, ha="center", va="center", fontsize=12)


def _tensor(ax, x, y, text):
    hbm = LEVELS["hbm"]
    ax.add_patch(Rectangle((x - 0.25, y - 0.28), 0.5, 0.56, facecolor=hbm.colour))
    ax.text(x, y, text, color=hbm.ink, ha="center", va="center", weight="bold")


def _link(ax, start, end, colour=INK):
    style = dict(arrowstyle="-|>", lw=1.8, color=colour, shrinkA=0, shrinkB=0, mutation_scale=14)
    ax.annotate("", end, start, arrowprops=style)


@static("two_fusions", size=(10, 3.2), panels=(1, 2))
def _(axes):
    return two_kinds(axes)


# --- measured beside predicted ----------------------------------------------------------------


def times(ax, points: Iterable[dict], gpu: Gpu, mine: Iterable[dict] = ()) -> str:
    """Seconds on the GPU over n, and the prediction bytes ÷ bandwidth."""
    points = list(points)
    _axes(ax, points, "seconds on the GPU", seconds)
    _predictions(ax, points, lambda flow, n: predicted(flow, n).bytes / gpu.bandwidth)
    _measured(ax, points, mine, lambda p: p["seconds"])
    ax.legend(loc="lower right")
    said = []
    for end in (min, max):
        at = _at(points, end)
        n = at["eager"]["n"]
        rest = ", ".join(f"{flow} {seconds(p['seconds'])}" for flow, p in at.items())
        ideal = (seconds(predicted(f, n).bytes / gpu.bandwidth) for f in ("eager", "compiled"))
        said.append(f"at n = {n:,} {rest}, predicted {' and '.join(ideal)}")
    return (
        f"Seconds on the GPU over n for three flows, beside the prediction, bytes ÷ "
        f"{decimal(gpu.bandwidth, 'B/s')}: {'; '.join(said)}."
    )


def dram(ax, points: Iterable[dict], gpu: Gpu, mine: Iterable[dict] = ()) -> str:
    """Bytes per element that crossed to DRAM by the hardware's own counter, and the count."""
    points = [p for p in points if "dram_read" in p]
    mine = [p for p in mine if "dram_read" in p]
    _axes(ax, points, "DRAM bytes per element", lambda y: f"{y:g}n")
    ax.set(yscale="linear", ylim=(0, 22), yticks=range(0, 21, 4))
    _predictions(ax, points, lambda flow, n: predicted(flow, n).bytes / n)
    counted = lambda p: (p["dram_read"] + p["dram_written"]) / p["n"]  # noqa: E731
    if gpu.l2_bytes:
        edge = gpu.l2_bytes / 6  # one fused pass, 6 bytes an element, fills the L2
        ax.axvline(edge, color=LEVELS["l2"].colour, lw=2, ls=(0, (4, 3)))
        ax.text(0.9 * edge, 21.5, f"fits in the {gpu.name}'s L2", color=LEVELS["l2"].colour,
                ha="right", va="top", weight="bold")  # fmt: skip
    _measured(ax, points, mine, counted)
    for p in points:
        if counted(p) > 21:  # off the scale
            ax.text(4 * p["n"], 21.5, f"{counted(p):.0f}n at n = {p['n']:,}", va="top", weight="bold",
                    color=STYLES[p["flow"]][0].colour)  # fmt: skip
    ax.legend(loc="center", bbox_to_anchor=(0.33, 0.55))
    said = "; ".join(
        f"at n = {at['eager']['n']:,}: "
        + ", ".join(f"{flow} {counted(p):.1f}" for flow, p in at.items())
        for at in (_at(points, end) for end in (min, max))
    )
    return (
        f"DRAM bytes per element by hardware counter, over n; the count says 19 and 6. Seen {said}."
    )


def clocks(record: dict, n: int, gpu: Gpu) -> Table:
    """The chain at n elements: launches, what its bytes alone would take, and three clocks."""
    rows = []
    for flow in STYLES:
        (p,) = [p for p in record["points"] if (p["flow"], p["n"]) == (flow, n)]
        alone = predicted(flow, n).bytes / gpu.bandwidth
        times = map(seconds, (alone, p["graph"], p["seconds"], p["wall"]))
        rows.append([flow, p["launches"], *times])
    names = ("launches", "bytes ÷ bandwidth", "in a graph", "on the GPU", "from Python")
    return Table([f"n = {n:,}", *names], rows)


def softmax_times(record: dict) -> Table:
    """Seconds of a row softmax by the length of the row, in five kernels, PyTorch's one and ours."""
    times = {(p["flow"], p["cols"]): seconds(p["seconds"]) for p in record["softmax"]}
    flows = {"unfused": "five kernels", "torch": "PyTorch's one", "hand-written": "ours"}
    lengths = sorted({cols for _, cols in times})
    rows = [[f"{cols:,}", *(times[flow, cols] for flow in flows)] for cols in lengths]
    return Table(["row length", *flows.values()], rows)


def _axes(ax, points, what, words):
    low, high = (end(p["n"] for p in points) for end in (min, max))
    ax.set(xscale="log", yscale="log", xlim=(low / 2, high * 2), xlabel="elements n", ylabel=what)
    ax.set_xticks([10.0**k for k in range(3, 10)], [f"10{'⁰¹²³⁴⁵⁶⁷⁸⁹'[k]}" for k in range(3, 10)])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: words(y)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.grid(True, color=GRID)


def _predictions(ax, points, value):
    sizes = sorted({p["n"] for p in points})
    for flow, style, name in (
        ("eager", STYLES["eager"][0], "predicted, 19n bytes"),
        ("hand-written", STYLES["hand-written"][0], "predicted, 6n bytes"),
    ):
        ax.plot(sizes, [value(flow, n) for n in sizes], color=style.colour, lw=1.5, ls=(0, (1, 1)),
                label=name, zorder=2)  # fmt: skip


def _measured(ax, points, mine, value):
    for flow, (style, name) in STYLES.items():
        some = [p for p in points if p["flow"] == flow]
        ax.plot([p["n"] for p in some], [value(p) for p in some], label=name, **style.line)
        own = [p for p in mine if p["flow"] == flow]
        ax.plot([p["n"] for p in own], [value(p) for p in own], ls="none", marker=MINE.marker, ms=12,
                mfc=style.colour, mec=MINE.colour, mew=2,
                label=f"here: {name}" if own else None)  # fmt: skip


def _at(points, end):
    n = end(p["n"] for p in points)
    return {p["flow"]: p for p in points if p["n"] == n}
