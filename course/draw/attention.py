"""Figures of attention's bytes: its matrices, its three kernels in time, what it holds, what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from course import cost
from course import roofline as model
from course.cost import STATISTIC_BYTES, Cost
from course.draw import roofline
from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, INK, LEVELS, PAPER, SOFT
from course.hardware import DTYPES, GPUS, Gpu
from course.units import decimal, seconds

HBM = LEVELS["hbm"]
NAIVE, FUSED, MEASURED = FLOWS["naive"], FLOWS["flash"], FLOWS["measured"]
STEPS = ("S = QKᵀ", "P = softmax(S)", "O = PV")  # the kernels of naive attention, in order
SOFTMAX_FLOPS = 5  # an element: maximum, minus, exp, sum, divide


def steps(n: int, d: int, *, heads: int = 1, batch: int = 1, itemsize: int = 2) -> dict[str, Cost]:
    """The three kernels of naive attention, by name; their bytes are those of flow="naive"."""
    each = (
        cost.matmul(n, n, d, itemsize=itemsize),
        cost.elementwise(n * n, flops_per_element=SOFTMAX_FLOPS, itemsize=itemsize),
        cost.matmul(n, d, n, itemsize=itemsize),
    )
    return {name: heads * batch * one for name, one in zip(STEPS, each, strict=True)}


def work_time(name: str, one: Cost, gpu: Gpu, dtype: str = "fp16") -> float:
    """Seconds of arithmetic in one kernel. A softmax runs outside the matrix units, in FP32."""
    ordinary = gpu.peak.get("fp32") if name == STEPS[1] else None
    return one.flops / (ordinary or gpu.peak_for(dtype))


def held(n: int, d: int, *, flow: str, heads: int = 1, batch: int = 1, itemsize: int = 2) -> int:
    """Bytes in HBM at once: Q, K, V and O; for "naive" S and P as well, for "flash" lse."""
    row = 4 * d * itemsize + (2 * n * itemsize if flow == "naive" else STATISTIC_BYTES)
    return batch * heads * n * row


# --- what attention computes ------------------------------------------------------------------


def shapes(ax, n: int = 8, d: int = 2) -> str:
    """The matrices of one head, drawn to scale: thin ones at both ends, two squares between."""
    ax.set(xlim=(-0.6, 3.9 * n + 4.6 * d), ylim=(n + 2.4, -d - 2.6), aspect="equal")
    ax.axis("off")
    names = dict(ha="center", va="center", weight="bold", fontsize=17)

    def box(x, y, w, h, name, colour, hatch="", ink=INK):
        ax.add_patch(Rectangle((x, y), w, h, fc=colour, ec=INK, lw=1.5, hatch=hatch))
        ax.text(x + w / 2, y + h / 2, name, color=ink, **names)

    def caption(x, text, y=n + 0.5):
        ax.text(x, y, text, ha="center", va="top", fontsize=13, linespacing=1.25)

    def arrow(x, text):
        ax.annotate("", (x + 2.6, n / 2), (x + 0.4, n / 2),
                    arrowprops=dict(arrowstyle="-|>", lw=2.5, color=INK, mutation_scale=20))  # fmt: skip
        ax.text(x + 1.5, n / 2 - 0.5, text, ha="center", va="bottom", fontsize=13)

    thin, square = LEVELS["shared"].colour, NAIVE.colour
    x = 0
    box(x, 0, d, n, "Q", thin)
    caption(x + d / 2, "queries\nN × d")
    x += d + 0.6
    box(x, -d - 0.6, n, d, "Kᵀ", thin)
    ax.text(x + n / 2, -d - 0.9, "keys, d × N", ha="center", va="bottom", fontsize=13)
    box(x, 0, n, n, "S", square, ink=PAPER)
    caption(x + n / 2, "scores: how well does\nquery i fit key j?  N × N")
    x += n
    arrow(x, "softmax")
    x += 3
    box(x, 0, n, n, "P", square, ink=PAPER)
    caption(x + n / 2, "weights: each row\nadds up to 1.  N × N")
    x += n + 0.6
    box(x, 0, d, n, "V", thin)
    caption(x + d / 2, "values\nN × d")
    x += d
    arrow(x, "P V")
    x += 3
    box(x, 0, d, n, "O", thin)
    caption(x + d / 2, "output\nN × d")
    ax.set_xlim(-1.2, x + d + 1.2)
    return (
        "The matrices of one head, drawn to scale for N four times as large as d: Q and K transposed "
        "make S, N by N; its softmax is P, N by N; P and V make the output O. Q, K, V and O are thin, "
        "S and P are large squares."
    )


@static("attention_shapes", size=(11, 4.6))
def _(ax):
    return shapes(ax)


# --- the time line ----------------------------------------------------------------------------


def timeline(
    ax, n: int, d: int, gpu: Gpu, *, heads: int = 1, batch: int = 1, dtype: str = "fp16"
) -> str:
    """Naive attention above HBM, fused attention below it, on one axis of time.

    The width of a kernel is its time, the width of an arrow its bytes; the black bar inside is the
    part of the time that the arithmetic needs.
    """
    size = dict(heads=heads, batch=batch, itemsize=DTYPES[dtype])
    kernels = steps(n, d, **size)
    fused = cost.attention(n, d, flow="flash", **size)
    times = {name: max(model.memory_time(one, gpu), work_time(name, one, gpu, dtype))
             for name, one in kernels.items()}  # fmt: skip
    total, short = sum(times.values()), model.time(fused, gpu, dtype)
    ax.set(xlim=(-0.005 * total, 1.035 * max(total, short)), ylim=(-1.55, 5.35))
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ticks = [x for x in ax.get_xticks() if 0 <= x <= ax.get_xlim()[1]]
    ax.set_xticks(ticks, [seconds(x) if x else "0" for x in ticks])
    ax.set_title(f"{gpu.name}, N = {n:,}, d = {d}, {dtype}{_many(heads, batch)}", loc="left")
    ax.text(1, 1.015, "black: the arithmetic", transform=ax.transAxes, ha="right", va="bottom")

    ax.add_patch(Rectangle((0, 1.55), total, 0.5, fc=HBM.colour))
    ax.text(total / 2, 1.8, f"HBM: {decimal(gpu.bandwidth, 'B/s')}", color=HBM.ink, ha="center",
            va="center", weight="bold")  # fmt: skip
    operand = fused.written  # Q, K, V and O are of one size
    square = kernels[STEPS[1]].written
    trips = (
        [("Q", operand, 0), ("K", operand, 0), ("S", square, 1)],
        [("S", square, 0), ("P", square, 1)],
        [("P", square, 0), ("V", operand, 0), ("O", operand, 1)],
    )
    left = 0.0
    for (name, one), arrows in zip(kernels.items(), trips, strict=True):
        width = times[name]
        _kernel(ax, left, width, 3.75, f"{name}\n{decimal(one.bytes)}, {seconds(width)}",
                work_time(name, one, gpu, dtype), NAIVE)  # fmt: skip
        for i, (what, moved, up) in enumerate(arrows):
            x = left + width * (i + 0.5) / len(arrows)
            _trip(
                ax, x, (3.7, 2.1) if up else (2.1, 3.7), moved / square, f"{what}\n{decimal(moved)}"
            )
        left += width
    _kernel(ax, 0, short, -0.85, f"fused\n{seconds(short)}",
            model.compute_time(fused, gpu, dtype), FUSED)  # fmt: skip
    for i, what in enumerate("QKVO"):
        x = short * (i + 0.5) / 4
        _trip(ax, x, (0.55, 1.5) if what == "O" else (1.5, 0.55), operand / square, what)
    said = (
        f"Fused: one kernel, Q, K, V in and O out,\n{decimal(fused.bytes)} in all. "
        "Its time is arithmetic (black), not bytes."
    )
    if model.bound(fused, gpu, dtype) == "memory":
        said = f"Fused: one kernel, {decimal(fused.bytes)} in all."
    if short < total / 2:
        ax.text(short + 0.03 * total, 0.1, said, va="center", color=FUSED.colour, fontsize=13,
                linespacing=1.4)  # fmt: skip
    parts = ", ".join(f"{name} {decimal(one.bytes)} in {seconds(times[name])}"
                      for name, one in kernels.items())  # fmt: skip
    moved = sum(kernels.values(), Cost()).bytes
    return (
        f"Time line on the {gpu.name} for N = {n:,}, d = {d}, {dtype}{_many(heads, batch)}. Naive, "
        f"three kernels one after the other: {parts}; together {decimal(moved)}, {seconds(total)}. "
        f"Fused, one kernel: {decimal(fused.bytes)}, {seconds(short)}."
    )


def _many(heads, batch):
    return (f", {heads} heads" if heads > 1 else "") + (f", batch {batch}" if batch > 1 else "")


def _kernel(ax, left, width, low, text, work, style):
    """A box as wide as the kernel is long, with the arithmetic as a bar inside."""
    ax.add_patch(Rectangle((left, low), width, 1.4, fc=PAPER, ec=style.colour, lw=2.5))
    ax.add_patch(Rectangle((left, low), min(work, width), 0.22, fc=INK, lw=0))
    ax.text(left + width / 2, low + 0.82, text, ha="center", va="center", linespacing=1.3)


def _trip(ax, x, ends, share, text):
    """An arrow to or from HBM, as thick as its bytes, with its name on it."""
    tail = max(1.6, 20 * share)
    shape = f"simple,tail_width={tail},head_width={tail + 9},head_length=11"
    ax.annotate("", (x, ends[1]), (x, ends[0]),
                arrowprops=dict(arrowstyle=shape, fc=HBM.colour, ec="none", mutation_scale=1,
                                shrinkA=0, shrinkB=0))  # fmt: skip
    ax.text(x, sum(ends) / 2, text, ha="center", va="center", fontsize=12, linespacing=1.1,
            bbox=dict(fc=PAPER, ec="none", pad=1.2))  # fmt: skip


@static("attention_timeline", size=(11, 5.2))
def _(ax):
    return timeline(ax, 4096, 128, GPUS["H100 SXM"])


# --- intensity --------------------------------------------------------------------------------


def intensity(ax, ns: Sequence[int], gpu: Gpu, *, dtype: str = "fp16") -> str:
    """Arithmetic intensity over d: naive is at most d/2 in FP16, fused is N/2 whatever d."""
    ds, size = np.array([2**p for p in range(4, 11)]), DTYPES[dtype]
    ridge, said = model.ridge(gpu, dtype), []
    ax.axhspan(0.1, ridge, color=HBM.colour, alpha=0.07, lw=0)
    ax.axhline(ridge, color=SOFT, ls=(0, (4, 3)), lw=1.5)
    ax.text(16.5, 0.92 * ridge, f"ridge of the {gpu.name}: {ridge:.0f}. Below it: waiting for memory",
            va="top", color=HBM.colour)  # fmt: skip
    ax.text(70, 22, f"naive: at most {2 / size:g} · d / 2,\nwhatever N".replace("1 · ", ""),
            color=NAIVE.colour, weight="bold", va="top")  # fmt: skip
    ends = []
    for n in ns:
        at = {flow: [cost.attention(n, int(d), flow=flow, itemsize=size).intensity for d in ds]
              for flow in ("naive", "flash")}  # fmt: skip
        for flow, style in (("naive", NAIVE), ("flash", FUSED)):
            ax.plot(ds, at[flow], **style.line, clip_on=False)
            ends.append((ds[-1], at[flow][-1], f"{style.label}, N = {n:,}", style.colour))
        here = list(ds).index(128)
        said.append(f"N = {n:,}: naive {at['naive'][here]:.3g}, fused {at['flash'][here]:,.0f}")
    ax.set(xscale="log", yscale="log", xlim=(15, 1024), ylim=(5, 1e4), xlabel="width of a head, d",
           ylabel="FLOP per byte")  # fmt: skip
    ax.set_xticks(ds, [f"{d}" for d in ds])
    ax.set_yticks([10, 100, 1000, 10000], ["10", "100", "1,000", "10,000"])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.grid(True)
    _name_ends(ax, ends)
    return (
        f"Arithmetic intensity over d, in {dtype}. Naive rises with d, fused does not depend on it. "
        f"At d = 128: {'; '.join(said)}; the ridge of the {gpu.name} is at {ridge:.0f}."
    )


def _name_ends(ax, ends: Iterable[tuple[float, float, str, str]], apart: float = 16) -> None:
    """Write (x, y, name, colour) to the right of the axes, at least `apart` points from each other."""
    ax.figure.draw_without_rendering()  # settles how high the axes are
    spots = sorted((ax.transData.transform(end[:2])[1] * 72 / ax.figure.dpi, end) for end in ends)
    heights = np.array([height for height, _ in spots])
    for _ in range(50):  # push neighbours apart until nobody is too near
        short = np.clip(apart - np.diff(heights), 0, None) / 2
        heights[:-1] -= short
        heights[1:] += short
    for height, (at, (x, y, name, colour)) in zip(heights, spots, strict=True):
        ax.annotate(name, (x, y), (12, height - at), textcoords="offset points", va="center",
                    color=colour, fontsize=12, annotation_clip=False)  # fmt: skip


# --- measured beside predicted ----------------------------------------------------------------

FLOWS_RECORDED = {  # flow of `course.records.attention_bytes` → style, name, flow of course.cost
    "naive": (NAIVE, "naive: three kernels", "naive"),
    "flash": (FUSED._replace(marker="P", dash="-."), "fused: FlashAttention-2", "flash"),
    "cudnn": (FUSED._replace(marker="v", dash="--"), "fused: cuDNN", "flash"),
}
_MARKS = {"flash": dict(ms=14), "cudnn": dict(ms=8, mfc=PAPER)}  # where one lies on the other


def peak_bytes(flow: str, n: int, section: dict) -> int:
    """Predicted bytes above the inputs: S, P and O for "naive", O and lse for the fused ones."""
    size = dict(heads=section["heads"], flow="naive" if flow == "naive" else "flash")
    inputs = 3 * section["heads"] * n * section["d"] * 2
    return held(n, section["d"], **size) - inputs


def memory(ax, section: dict, gpu: Gpu, mine: Iterable[dict] = ()) -> str:
    """Peak memory above the inputs over N, as measured, beside S + P + O and O + lse."""
    ax.set_ylim(2e6, 2e13)
    ax.set_title("Most memory held at once, beside the inputs", loc="left")
    predict = lambda flow, n: peak_bytes(flow, n, section)  # noqa: E731
    words = _measured(ax, section, mine, "peak_bytes", predict, decimal)
    ns = _recorded_lengths(section)
    ax.axhline(gpu.hbm_bytes, color=HBM.colour, lw=1.5)
    ax.text(ns[0], 1.15 * gpu.hbm_bytes, f"HBM of the {gpu.name}: {decimal(gpu.hbm_bytes)}",
            color=HBM.colour, va="bottom")  # fmt: skip
    lost = _lost(section, "naive")
    ax.plot(lost, [predict("naive", n) for n in lost], "x", color=ACCENT, ms=13, mew=3)
    if lost:
        ax.annotate("out of memory", (lost[0], predict("naive", lost[0])), (-12, 12), ha="right",
                    textcoords="offset points", color=ACCENT, weight="bold")  # fmt: skip
    return f"Peak memory over N, {section['heads']} heads, measured. {words}"


def times(ax, section: dict, gpu: Gpu, mine: Iterable[dict] = ()) -> str:
    """Seconds of a call over N, as measured, beside the roofline's least time."""

    def predict(flow, n):
        size = dict(heads=section["heads"], flow=FLOWS_RECORDED[flow][2])
        return model.time(cost.attention(n, section["d"], **size), gpu)

    ax.set_title("Time of one call", loc="left")
    words = _measured(ax, section, mine, "seconds", predict, seconds)
    last = [p for p in section["points"] if p["flow"] == "naive" and "seconds" in p][-1]
    if _lost(section, "naive"):
        ax.annotate("beyond:\nout of memory", (last["n"], last["seconds"]), (6, 14), ha="right",
                    textcoords="offset points", color=ACCENT, weight="bold")  # fmt: skip
    return f"Time over N, {section['heads']} heads, measured. {words}"


def _measured(ax, section, mine, key, predict, words):
    """A curve a flow and its prediction, dotted, each named at its end; the words for them."""
    ns, ends, said = _recorded_lengths(section), [], []
    for flow, (style, name, counted) in FLOWS_RECORDED.items():
        good = [p for p in section["points"] if p["flow"] == flow and key in p]
        x, y = [p["n"] for p in good], [p[key] for p in good]
        ax.plot(x, y, **style.line, **_MARKS.get(flow, {}))
        if x[-1] < ns[-1]:
            ax.annotate(name, (x[2], y[2]), (-12, 8), textcoords="offset points", ha="right",
                        color=style.colour, weight="bold")  # fmt: skip
        else:
            ends.append((x[-1], y[-1], name, style.colour))
        if flow == counted:  # cuDNN's is that of "flash"
            least = [predict(flow, n) for n in ns]
            ax.plot(ns, least, color=style.colour, lw=1.5, ls=(0, (1, 1)), zorder=1)
            ends.append((ns[-1], least[-1], f"{style.label}, predicted", style.colour))
        own = [p for p in mine if p["flow"] == flow and key in p]
        ax.plot([p["n"] for p in own], [p[key] for p in own], ls="none", marker=MEASURED.marker,
                ms=12, mfc=style.colour, mec=MEASURED.colour, mew=2,
                label=f"here: {name}" if own else None)  # fmt: skip
        said.append(f"{name}: {words(y[0])} at N = {x[0]:,} to {words(y[-1])} at {x[-1]:,}.")
        if lost := _lost(section, flow):
            said.append(f"It ran out of memory at N = {' and '.join(f'{n:,}' for n in lost)}.")
    _lengths(ax, ns)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: words(y)))
    ax.grid(True)
    if mine:
        ax.legend(loc="lower right")
    _name_ends(ax, ends)
    return " ".join(said)


def _lengths(ax, ns):
    ax.set(xscale="log", yscale="log", xlabel="length of the sequence, N")
    ax.set_xticks(ns[::2], [f"{n:,}" for n in ns[::2]])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())


def _recorded_lengths(section):
    return sorted({p["n"] for p in section["points"]})


def _lost(section, flow):
    """The lengths at which a flow ran out of memory."""
    return [p["n"] for p in section["points"] if p["flow"] == flow and p.get("out_of_memory")]


def dram(axes, section: dict, gpu: Gpu) -> str:
    """DRAM bytes of each naive kernel, counted on paper and by the hardware, a panel each case.

    The unit is one pass over S, so that all panels share one axis.
    """
    axes, said = np.ravel(axes), []
    for ax, case in zip(axes, cases(section, "naive"), strict=True):
        counts = steps(case["n"], section["d"], heads=case["heads"]).values()
        square = 2 * case["heads"] * case["n"] ** 2
        for x, (one, kernel) in enumerate(zip(counts, case["kernels"], strict=True)):
            for shift, parts, style in (
                (-0.21, (one.read, one.written), NAIVE),
                (0.21, (kernel["read"], kernel["written"]), MEASURED),
            ):
                read, written = (part / square for part in parts)
                ax.bar(x + shift, read, 0.38, fc=style.colour, ec=PAPER)
                ax.bar(x + shift, written, 0.38, bottom=read, **_WRITTEN, fc=style.colour)
        total = {"count": sum(one.bytes for one in counts), "counter": moved(case)}
        ax.set_title(f"{_heads(case)}, N = {case['n']:,}\nS and P fill "
                     f"{2 * square / gpu.l2_bytes:.2f} L2\ncount {decimal(total['count'])}, counter {decimal(total['counter'])}",
                     fontsize=13)  # fmt: skip
        ax.set_xticks(range(3), ["S = QKᵀ", "softmax", "O = PV"])
        ax.set_ylim(0, 2.2)
        ax.set_yticks([0, 1, 2], ["0", "1 pass", "2 passes"] if ax is axes[0] else [""] * 3)
        ax.grid(True, axis="y")
        said.append(f"{_heads(case)}, N = {case['n']:,}: {decimal(total['counter'])} by the counter, "
                    f"{decimal(total['count'])} by the count")  # fmt: skip
    for style, name in ((NAIVE, "count"), (MEASURED, "counter")):
        axes[0].bar(0, 0, fc=style.colour, label=f"{name}: read")
        axes[0].bar(0, 0, fc=style.colour, label=f"{name}: written", **_WRITTEN)
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                          frameon=False)  # fmt: skip
    return f"Bytes between DRAM and the chip, by kernel. {'. '.join(said)}."


_WRITTEN = dict(hatch="///", ec=PAPER, alpha=0.55)  # beside what was read, in full colour


def cases(section: dict, flow: str, caches: str = "kept") -> list[dict]:
    """The recorded counter runs of a flow, from the smallest S to the largest."""
    some = [run for run in section["dram"] if (run["flow"], run["caches"]) == (flow, caches)]
    return sorted(some, key=lambda run: run["heads"] * run["n"] ** 2)


def moved(case: dict) -> int:
    """Bytes that all kernels of a counter run read from DRAM and wrote to it."""
    return sum(kernel["read"] + kernel["written"] for kernel in case["kernels"])


def _heads(case):
    return f"{case['heads']} head" + "s" * (case["heads"] > 1)


def amounts(ax, rows: dict[str, tuple[int, str]]) -> str:
    """Horizontal bars of bytes: {what: (bytes, flow)}, with a word on each."""
    for y, (size, flow) in enumerate(rows.values()):
        ax.barh(-y, size, 0.66, **FLOWS[flow].bar)
        ax.text(size, -y, f"  {decimal(size)}", va="center", weight="bold")
    ax.set_yticks([-y for y in range(len(rows))], rows)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, 1.14 * max(size for size, _ in rows.values())), xticks=[])
    ax.spines[["bottom"]].set_visible(False)
    return f"{', '.join(f'{what}: {decimal(size)}' for what, (size, _) in rows.items())}."


def two_roofs(ax, gpu: Gpu, l2: float, n: int = 4096, d: int = 128, blocks=(64, 128, 256)) -> str:
    """A fused kernel under two roofs: FLOPs per byte from HBM, and per byte asked of the L2.

    l2: bytes/s of the L2. blocks: rows of Q that share a walk over K and V.
    """
    peak, ideal = gpu.peak_for("fp16"), cost.attention(n, d, flow="flash").intensity
    asked = {b: cost.attention(n, d, flow="tiled", block_q=b).intensity for b in blocks}
    naive = cost.attention(n, d, flow="naive").intensity
    roofline.axes(ax, (8, 8e3), (5e13, 2e15), steps=(1, 2, 5))
    ax.set(ylabel="", xlabel="FLOP per byte: from HBM, or asked of the L2")
    ax.set_title(f"{gpu.name}, N = {n:,}, d = {d}, fp16", loc="left")
    ax.figure.draw_without_rendering()  # settles where the axes lie
    roof = roofline.Roof(ax)
    roof.move(gpu, points=[naive, ideal, *asked.values()], l2=l2)
    roof.waiting.set_visible(False)  # there are two ridges
    roof.ridge.set_visible(False)
    roof.ridge_name.set_text("")
    said = [f"naive, per byte from HBM: {naive:.0f}", f"fused, per byte from HBM: {ideal:,.0f}"]
    spots = [(naive, naive * gpu.bandwidth, said[0], NAIVE, (12, -4)),
             (ideal, peak, said[1], FUSED, (0, 38))]  # fmt: skip
    for block, x in asked.items():
        said.append(f"fused, per byte asked, {block} rows of Q: {x:.0f}")
        working = x * l2 > peak
        spots.append((x, min(peak, x * l2), said[-1].removeprefix("fused, per byte "),
                      FLOWS["tiled"], (6, 18) if working else (-12, 6)))  # fmt: skip
    for x, y, words, style, (right, up) in spots:
        ax.plot(x, y, style.marker, color=style.colour, ms=12, mec=PAPER, zorder=5)
        side = "left" if right > 0 else "right" if right < 0 else "center"
        ax.annotate(words, (x, y), (right, up), textcoords="offset points", ha=side, va="center",
                    color=style.colour, weight="bold", fontsize=12)  # fmt: skip
    return (
        f"Two roofs of the {gpu.name}: HBM with {decimal(gpu.bandwidth, 'B/s')} and a ridge at "
        f"{peak / gpu.bandwidth:.0f} FLOP per byte, the L2 with {decimal(l2, 'B/s')} and a ridge at "
        f"{peak / l2:.0f}. {'; '.join(said)}."
    )
