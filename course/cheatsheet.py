"""The course on one sheet of paper, for one GPU; every number comes from `course`.

python -m course.cheatsheet "H100 SXM"    # writes cheatsheet_h100_sxm.svg and .pdf here
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from course import cost, diagnosis, roofline
from course.draw.picture import Picture
from course.draw.theme import GRID, INK, SOFT
from course.hardware import DTYPES, GB, GPUS, Gpu
from course.units import binary, decimal, seconds

A4 = (8.27, 11.69)  # inches
N, D, NUMBERS = 4096, 128, 10**8  # the worked attention; numbers of the worked element-wise kernels
CHAIN = ["bias", "gelu", "dropout", "residual"]

OPERATIONS = {  # what the table of kernels shows, FP16: (how it is counted, its cost)
    "add": (f"{NUMBERS // 10**6} million numbers", cost.elementwise(NUMBERS, inputs=2)),
    "bias, GELU, dropout, residual": ("four kernels", cost.chain(CHAIN, NUMBERS, fused=False)),
    "the same, fused": ("one kernel", cost.chain(CHAIN, NUMBERS, fused=True)),
    "matmul 1,024": ("square", cost.matmul(1024, 1024, 1024)),
    "matmul 8,192": ("square", cost.matmul(8192, 8192, 8192)),
    "attention, naive": (f"N = {N:,}, d = {D}", cost.attention(N, D, flow="naive")),
    "attention, ideal": ("each operand once", cost.attention(N, D, flow="ideal")),
    "decode, 16 GB of weights": ("one token", cost.decode_step(weight_bytes=16 * GB)),
}

LEVELS = {  # level: (its name on paper, its place in the school)
    "registers": ("registers", "desk"),
    "shared": ("shared memory", "shelf"),
    "l2": ("L2 cache", "cupboard"),
    "hbm": ("main memory", "library"),
}
ONLINE = (
    "m' = max(m, scores)      α = exp(m − m')      p = exp(scores − m')",
    "ℓ' = α ℓ + Σ p      o' = α o + p V      at the end: O = o / ℓ,  L = m + log ℓ",
    "two states merge the same way: rescale both to the larger m, then add",
    "backward: P = exp(S − L) again;  D = rowsum(dO ∘ O);  dS = P ∘ (dO Vᵀ − D)",
)


def machine(gpu: Gpu):
    """(headers, rows): for each data type its peak, its ridge and the batch at which decode works."""
    rows = [
        (
            dtype.upper(),
            decimal(peak, "FLOP/s"),
            f"{roofline.ridge(gpu, dtype):.0f}",
            f"{roofline.ridge(gpu, dtype) * DTYPES[dtype] / 2:.0f}",
        )
        for dtype, peak in gpu.peak.items()
    ]
    return (
        "data type",
        "peak, dense",
        "ridge, FLOP per byte",
        "critical batch, weights alone",
    ), rows


def levels(gpu: Gpu):
    """(headers, rows): the memory levels."""
    rows = [
        (
            *LEVELS[level.name],
            level.scope,
            decimal(level.capacity_bytes) if level.name == "hbm" else binary(level.capacity_bytes),
            decimal(level.bandwidth, "B/s") if level.bandwidth else "–",
            f"{level.latency}",
            level.managed_by,
        )
        for level in gpu.levels
    ]
    return (
        "level",
        "school",
        "seen by",
        "on the whole chip",
        "bandwidth",
        "cycles",
        "managed by",
    ), rows


def kernels(gpu: Gpu):
    """(headers, rows): known kernels, their intensity, least time and bound."""
    rows = [
        (
            name,
            how,
            decimal(one.bytes),
            f"{one.intensity:,.0f}" if one.intensity >= 100 else f"{one.intensity:.3g}",
            seconds(roofline.time(one, gpu)),
            roofline.bound(one, gpu),
        )
        for name, (how, one) in OPERATIONS.items()
    ]
    return ("kernel, FP16", "", "bytes", "FLOP per byte", "at least", "bound by"), rows


def rules(gpu: Gpu) -> list[str]:
    """Sentences with this GPU's numbers."""
    naive, ideal = (cost.attention(N, D, flow=flow) for flow in ("naive", "ideal"))
    token = cost.kv_cache_bytes(layers=32, kv_heads=8, head_dim=D)
    said = [
        f"A byte from memory costs as much time as {roofline.ridge(gpu):.0f} FLOPs in FP16: "
        f"{decimal(1e6)} take {seconds(1e6 / gpu.bandwidth)}.",
        f"A lone launch takes {seconds(diagnosis.lone_call())} (recorded on an H200); in that time "
        f"this memory moves {decimal(diagnosis.lone_call() * gpu.bandwidth)}.",
        f"Attention, N = {N:,}, d = {D}: {decimal(naive.bytes)} naive, {decimal(ideal.bytes)} ideal, "
        f"{naive.bytes / ideal.bytes:.0f} times fewer. Naive: about d/2 FLOP per byte; ideal: N/2.",
        f"KV cache of 32 layers, 8 heads of {D}, FP16: {binary(token)} per token, "
        f"{binary(8192 * token)} for 8,192 tokens.",
    ]
    if gpu.smem_per_block:
        tile = max(
            (
                b
                for b in (16, 32, 64, 128, 256, 512)
                if cost.tile_bytes(b, b, D) <= gpu.smem_per_block
            ),
        )
        said.append(
            f"A block may use {binary(gpu.smem_per_block)} of shared memory. One tile each of Q, K and V, "
            f"{tile} rows at d = {D}, takes {binary(cost.tile_bytes(tile, tile, D))}; registers run "
            "out sooner."
        )
    return said


def sheet(gpu: Gpu) -> Figure:
    """The page, A4."""
    figure = Figure(figsize=A4)
    FigureCanvasAgg(figure)
    page = _Page(figure)
    page.title(f"{gpu.name}: the course on one page", "Count bytes first. Then ask what binds.")
    sizes = [f"{gpu.sms} SMs"] if gpu.sms else []
    sizes += [f"{decimal(gpu.bandwidth, 'B/s')} of memory bandwidth"]
    sizes += [f"{decimal(gpu.hbm_bytes)} of memory"] if gpu.hbm_bytes else []
    page.head("The machine: " + ", ".join(sizes))
    page.table(*machine(gpu), (0.06, 0.22, 0.42, 0.66))
    if gpu.levels:
        page.head("Where data lives")
        page.table(*levels(gpu), (0.06, 0.2, 0.31, 0.46, 0.62, 0.74, 0.82))
    page.head("Time ≥ max(bytes ÷ bandwidth, FLOPs ÷ peak)")
    page.table(*kernels(gpu), (0.06, 0.34, 0.53, 0.63, 0.76, 0.86))
    page.head("Rules of thumb")
    page.lines(rules(gpu))
    page.head("Online softmax, for each row and block of keys")
    page.lines(ONLINE)
    page.head("My kernel is slow: which needs more than half of the measured time?")
    page.lines(f"{what}: {text}" for what, text in diagnosis.TRY.items())
    page.foot(f"Quoted: {gpu.source}. All else is computed by course.cost and course.roofline.")
    return figure


class _Page:
    """A cursor that goes down a page."""

    LINE, SIZE = 0.016, 8.6

    def __init__(self, figure):
        self.figure, self.y = figure, 0.955

    def write(self, x, text, **style):
        self.figure.text(x, self.y, text, **{"fontsize": self.SIZE, "va": "baseline"} | style)

    def title(self, text, below):
        self.write(0.06, text, fontsize=17, weight="bold")
        self.y -= 1.3 * self.LINE
        self.write(0.06, below, fontsize=10, color=SOFT)

    def head(self, text):
        self.y -= 2.1 * self.LINE
        self.write(0.06, text, fontsize=10.5, weight="bold")
        self.rule(-0.35, INK, 0.8)
        self.y -= 1.35 * self.LINE

    def rule(self, down, colour, width):
        y = self.y + down * self.LINE
        self.figure.add_artist(Line2D([0.06, 0.94], [y, y], color=colour, lw=width))

    def table(self, headers, rows, columns):
        for x, text in zip(columns, headers, strict=True):
            self.write(x, text, color=SOFT)
        for row in rows:
            self.rule(-0.32, GRID, 0.5)
            self.y -= self.LINE
            for x, text in zip(columns, row, strict=True):
                self.write(x, text)

    def lines(self, texts):
        for i, text in enumerate(texts):
            for j, line in enumerate(textwrap.wrap(text, 112)):
                self.y -= self.LINE * bool(i or j)
                self.write(0.06 + 0.015 * bool(j), line)

    def foot(self, text):
        self.y = 0.035
        for line in reversed(textwrap.wrap(text, 135)):
            self.write(0.06, line, fontsize=7, color=SOFT)
            self.y += 0.8 * self.LINE


def picture(name: str) -> Picture:
    """The sheet of a GPU of `GPUS`, to be shown in a notebook."""
    gpu = GPUS[name]
    tables = (
        "; ".join(", ".join(row) for row in make(gpu)[1]) for make in (machine, levels, kernels)
    )
    return Picture(sheet(gpu), f"{name} on one page. {'. '.join(tables)}. {' '.join(rules(gpu))}")


def save(name: str, folder: Path = Path()) -> list[Path]:
    """Write the sheet of a GPU of `GPUS` as SVG and PDF into a folder; returns the two paths."""
    figure = sheet(GPUS[name])
    stem = f"cheatsheet_{name.lower().replace(' ', '_')}"
    paths = [Path(folder) / f"{stem}.{kind}" for kind in ("svg", "pdf")]
    for path in paths:
        figure.savefig(path, metadata={"Date" if path.suffix == ".svg" else "CreationDate": None})
    return paths


if __name__ == "__main__":
    try:
        print("written:", *save(" ".join(sys.argv[1:]) or "H100 SXM"))
    except KeyError as unknown:
        sys.exit(unknown.args[0])
