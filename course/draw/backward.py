"""Figures of the backward pass: its graph, the Jacobian, owners of sums, what is kept, training."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from course import cost
from course.draw.kernels import STYLES as LIBRARIES
from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, GRID, INK, LEVELS, PAPER, SOFT, FlowStyle
from course.hardware import GPUS
from course.tables import Table
from course.units import decimal, seconds

STYLES = {  # flow of `course.records.training` → its style
    "naive": FLOWS["naive"],
    "SDPA": FlowStyle(INK, "v", ":", "", "PyTorch's SDPA"),
    "notebook": FlowStyle("#cc79a7", "s", "--", "xx", "notebook kernels"),
    "ours": FLOWS["flash"]._replace(dash="-", label="library kernels"),
}
AGAIN = ("#f0c987", "..")  # fill of what is computed again

# --- what needs what --------------------------------------------------------------------------


def graph(ax, answer: bool = True) -> str:
    """Forward from left to right, gradients from right to left; with `answer`, what is kept."""
    ax.set(xlim=(-0.9, 10.9), ylim=(-3.1, 2.6) if answer else (-2.1, 2.1))
    ax.axis("off")
    kept, again = (LEVELS["shared"].colour, ""), AGAIN
    boxes = {  # name: (x, y, fill, hatch)
        "Q": (0, 1.5, *kept), "K": (0, -0.2, *kept), "V": (5.2, -1.6, *kept),
        "S": (2.7, 0.65, *again), "P": (5.2, 0.65, *again), "O": (8, 0, *kept),
        "L": (5.2, 2.2, *kept),
    }  # fmt: skip
    if not answer:
        boxes = {name: (x, y, PAPER, "") for name, (x, y, *_) in boxes.items() if name != "L"}
    for name, (x, y, fill, hatch) in boxes.items():
        ax.add_patch(Rectangle((x - 0.45, y - 0.35), 0.9, 0.7, facecolor=fill, edgecolor=INK,
                               hatch=hatch, lw=1.5, zorder=2))  # fmt: skip
        ax.text(x, y, name, ha="center", va="center", weight="bold", fontsize=16, zorder=3,
                bbox=dict(facecolor=fill, edgecolor="none", pad=1.5))  # fmt: skip
    steps = (  # from, to, gradient that comes back, where its name stands
        ("Q", "S", "dQ", (1.2, 0.75)), ("K", "S", "dK", (1.5, -0.25)), ("S", "P", "dS", (3.95, 0.15)),
        ("P", "O", "dP", (6.35, -0.05)), ("V", "O", "dV", (6.9, -1.25)),
    )  # fmt: skip
    for a, b, name, spot in steps:
        start, end = np.array(boxes[a][:2]), np.array(boxes[b][:2])
        way = (end - start) / np.hypot(*(end - start))
        side = 0.1 * np.array([-way[1], way[0]])
        gap = 0.55 if way[1] == 0 else 0.68
        ax.annotate("", end - gap * way + side, start + gap * way + side,
                    arrowprops=dict(arrowstyle="-|>", color=INK, lw=1.6))  # fmt: skip
        ax.annotate("", start + gap * way - side, end - gap * way - side,
                    arrowprops=dict(arrowstyle="-|>", color=ACCENT, lw=2.2))  # fmt: skip
        ax.text(*spot, name, ha="center", va="center", color=ACCENT, fontsize=14)
    ax.annotate(
        "", (8.55, -0.1), (10, -0.1), arrowprops=dict(arrowstyle="-|>", color=ACCENT, lw=2.2)
    )
    ax.annotate("", (10, 0.1), (8.55, 0.1), arrowprops=dict(arrowstyle="-|>", color=INK, lw=1.6))
    ax.text(9.9, 0.3, "next layer", ha="center", va="bottom")
    ax.text(9.9, -0.3, "dO", ha="center", va="top", color=ACCENT, fontsize=14)
    words = (
        "Attention as a graph: Q and K make S, S makes P, P and V make O. Gradients flow back the same "
        "way: dO gives dV and dP, dP gives dS, dS gives dQ and dK."
    )
    if not answer:
        return words
    ax.annotate("", (4.65, 2.05), (3.25, 1.05),
                arrowprops=dict(arrowstyle="-|>", color=INK, lw=1.6))  # fmt: skip
    ax.text(5.75, 2.2, "log-sum-exp of each row of S", va="center", fontsize=13)
    legend = (
        ("kept from forward to backward", *kept),
        ("thrown away, computed again", *again),
    )
    for i, (text, fill, hatch) in enumerate(legend):
        ax.add_patch(Rectangle((-0.45 + 5 * i, -2.95), 0.5, 0.4, facecolor=fill, hatch=hatch,
                               edgecolor=INK))  # fmt: skip
        ax.text(0.2 + 5 * i, -2.75, text, va="center")
    return (
        f"{words} Kept between the passes are Q, K, V, O and one number L per row of S; S and P are "
        "computed again."
    )


@static("backward_graph", size=(11, 3.7))
def _(ax):
    return graph(ax, answer=False)


@static("backward_kept", size=(11, 5))
def _(ax):
    return graph(ax)


# --- the softmax Jacobian ---------------------------------------------------------------------


def jacobian(axes, scores=(1.0, 3.0, 4.0, 2.0), nudge: float = 0.5, which: int = 1) -> str:
    """Left: the slopes ∂p_j/∂s_k of one row. Right: what happens when one score rises."""
    s = np.asarray(scores)
    p = _softmax(s)
    slopes = np.diag(p) - np.outer(p, p)
    left, right = axes
    top = np.abs(slopes).max()
    left.imshow(slopes, cmap="PuOr_r", vmin=-1.6 * top, vmax=1.6 * top)
    for (j, k), value in np.ndenumerate(slopes):
        left.text(k, j, _signed(value), ha="center", va="center", fontsize=14)
    numbers = range(1, len(s) + 1)
    left.set_xticks(range(len(s)), [f"$s_{k}$" for k in numbers], fontsize=14)
    left.set_yticks(range(len(s)), [f"$p_{j}$" for j in numbers], fontsize=14)
    left.tick_params(length=0)
    left.set(xlabel="when this score rises", ylabel="this weight changes by")
    left.set_title("The Jacobian of one row")
    moved = s.copy()
    moved[which] += nudge
    after, x = _softmax(moved), np.arange(len(s))
    right.bar(x - 0.2, p, 0.38, color=GRID, edgecolor=INK, label="before")
    right.bar(x + 0.2, after, 0.38, color=FLOWS["flash"].colour, hatch="//", edgecolor=PAPER,
              label=f"$s_{which + 1}$ raised by {nudge:g}")  # fmt: skip
    for at, (a, b) in enumerate(zip(p, after, strict=True)):
        right.text(at, max(a, b) + 0.01, _signed(b - a), ha="center", va="bottom", fontsize=12)
    right.set_xticks(x, [f"$p_{j}$" for j in numbers], fontsize=14)
    right.set(ylim=(0, 0.8), title="One rises, the others pay", ylabel="weight")
    right.legend(loc="upper left")
    return (
        f"Left, the Jacobian of the softmax at the scores {', '.join(f'{x:g}' for x in s)}: "
        f"{slopes.diagonal().min():.3f} to {slopes.max():.3f} on the diagonal, negative elsewhere, each "
        f"column sums to 0. Right, score {which + 1} rises by {nudge:g}: its weight grows by "
        f"{after[which] - p[which]:.3f}, all others shrink."
    )


def _signed(x):
    return f"{x:+.3f}".replace("-", "−")


def _softmax(s):
    p = np.exp(s - s.max())
    return p / p.sum()


@static("softmax_jacobian", size=(11, 4.8), panels=(1, 2))
def _(axes):
    return jacobian(axes)


# --- who owns which sum -----------------------------------------------------------------------


def owners(axes, rows: int = 5, cols: int = 6, row: int = 2, col: int = 3) -> str:
    """Left: one program owns a column of tiles. Right: one program owns a row of tiles."""
    for ax, by_columns in zip(axes, (True, False), strict=True):
        ax.set(
            xlim=(-2.4, cols + 1.9), ylim=(rows + 1.9, -2.6), xticks=(), yticks=(), aspect="equal"
        )
        ax.axis("off")
        for i in range(rows):
            for j in range(cols):
                mine = j == col if by_columns else i == row
                ax.add_patch(Rectangle((j, i), 1, 1, edgecolor=SOFT, lw=1.2, hatch=".." * mine,
                                       facecolor=AGAIN[0] if mine else PAPER))  # fmt: skip
        stay, pass_by = LEVELS["shared"].colour, PAPER
        for i in range(rows):
            here = not by_columns and i == row
            ax.add_patch(Rectangle((-1.35, i), 0.9, 1, edgecolor=INK if here else SOFT,
                                   facecolor=stay if here else pass_by, lw=1.2))  # fmt: skip
        for j in range(cols):
            here = by_columns and j == col
            ax.add_patch(Rectangle((j, -1.35), 1, 0.9, edgecolor=INK if here else SOFT,
                                   facecolor=stay if here else pass_by, lw=1.2))  # fmt: skip
        ax.text(-0.9, -0.55, "Q, dO", ha="right", va="center", weight="bold")
        ax.text(cols + 0.15, -0.9, "K, V", ha="left", va="center", weight="bold")
        arrow = dict(arrowstyle="-|>", color=ACCENT, lw=2.5, mutation_scale=20)
        if by_columns:
            ax.annotate("", (col + 0.5, rows + 0.75), (col + 0.5, 0.1), arrowprops=arrow)
            ax.text(col + 0.5, rows + 1.3, "dK, dV of this tile", ha="center", va="center",
                    color=ACCENT, weight="bold")  # fmt: skip
            ax.set_title("sum over queries: one owner per column")
        else:
            ax.annotate("", (cols + 0.6, row + 0.5), (0.1, row + 0.5), arrowprops=arrow)
            ax.text(cols + 0.7, row + 0.5, "dQ", ha="left", va="center", color=ACCENT,
                    weight="bold")  # fmt: skip
            ax.set_title("sum over keys: one owner per row")
    return (
        "Two grids of score tiles. Left: a program keeps one tile of K and V, walks down its column past "
        "all tiles of Q and dO, and owns dK and dV of that tile. Right: a program keeps one tile of Q "
        "and dO, walks along its row past all tiles of K and V, and owns dQ."
    )


@static("backward_owners", size=(12, 5), panels=(1, 2))
def _(axes):
    return owners(axes)


# --- matrix products --------------------------------------------------------------------------

WAYS = {  # flow of course.cost: its matrix products backward, N²d·2 FLOP each
    "naive": ("dV", "dP", "dQ", "dK"),
    "flash": ("S", "dV", "dP", "dQ", "dK"),
    "tiled": ("S", "dP", "dV", "dK", "S", "dP", "dQ"),
}
TITLES = {
    "naive": "P stored",
    "flash": "P again, one kernel",
    "tiled": "P again, two kernels",
}


def products(ax) -> str:
    """The matrix products of the backward pass, one box each."""
    said = []
    for y, (flow, names) in enumerate({"forward": ("S", "O"), **WAYS}.items()):
        done = set()
        for x, name in enumerate(names):
            extra = flow != "forward" and (name == "S" or name in done)
            done.add(name)
            fill, hatch = AGAIN if extra else (GRID if flow == "forward" else PAPER, "")
            ax.add_patch(Rectangle((x + 0.04, -y - 0.38), 0.92, 0.76, facecolor=fill, hatch=hatch,
                                   edgecolor=INK))  # fmt: skip
            ax.text(x + 0.5, -y, name, ha="center", va="center", weight="bold",
                    bbox=dict(facecolor=fill, edgecolor="none", pad=1.5))  # fmt: skip
        ratio = (
            f"{len(names)}" if flow == "forward" else f"{len(names)}, {len(names) / 2:g}× forward"
        )
        ax.text(len(names) + 0.15, -y, ratio, va="center")
        said.append(f"{TITLES.get(flow, flow)}: {len(names)} ({', '.join(names)})")
    ax.set(xlim=(0, 9.2), ylim=(-3.6, 0.9), xticks=(), title="Matrix products, 2N²d FLOP each")
    ax.set_yticks(range(0, -4, -1), ["forward", *TITLES.values()])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return f"Matrix products. {'; '.join(said)}. Dotted: computed once more than with P stored."


@static("backward_products", size=(10, 3.8))
def _(ax):
    return products(ax)


# --- the sum of a recomputed row --------------------------------------------------------------


def row_sums(ax, sums: dict, largest) -> str:
    """Sum of a row of P recomputed from L, against the largest score, for each way to keep L."""
    looks = ((SOFT, "s", "--"), (INK, "o", "-"))
    for (name, values), (colour, marker, dash) in zip(sums.items(), looks, strict=True):
        ax.plot(largest, values, color=colour, marker=marker, ls=dash, label=name)
    ax.set(xscale="log", xlabel="largest score of the row", ylabel="sum of the row of P")
    ax.axhline(1, color=ACCENT, lw=1)
    ax.minorticks_off()
    ax.grid(True)
    ax.legend(loc="upper left")
    ends = "; ".join(f"{name} {values[-1]:.3f}" for name, values in sums.items())
    return f"A row of P must sum to 1. At the largest scores ({largest[-1]:.0e}) it is: {ends}."


# --- one layer, store against recompute, and training -----------------------------------------


def layer(axes, points) -> str:
    """Recorded: bytes kept between the passes, and the time of both passes, against N."""
    kept, timed = axes
    said = []
    for style, mine in _flows(points):
        held = [p for p in mine if "kept_bytes" in p]
        done = [p for p in mine if "backward" in p]
        kept.plot([p["n"] for p in held], [p["kept_bytes"] for p in held], label=style.label,
                  **style.line)  # fmt: skip
        both = [p["forward"] + p["backward"] for p in done]
        timed.plot([p["n"] for p in done], both, label=style.label, **style.line)
        last = done[-1]
        said.append(
            f"{style.label}: {decimal(last['kept_bytes'])} kept at N = {last['n']:,}, "
            f"{seconds(both[-1])}"
        )
        lost = [p["n"] for p in mine if p.get("out_of_memory")]
        if lost:
            said[-1] += f", and no memory for the backward pass at N = {min(lost):,}"
    _n_axis(kept, points)
    _n_axis(timed, points)
    kept.set(title="Kept between the passes")
    kept.legend()
    timed.set(title="Forward and backward")
    _log_ticks(kept, decimal)
    _log_ticks(timed, seconds)
    if lost := [p["n"] for p in points if p.get("out_of_memory")]:
        top = timed.get_ylim()[1]
        timed.set_ylim(top=2.5 * top)
        _out_of_memory(timed, min(lost), 1.4 * top)
    return f"One attention layer, against N. {'; '.join(said)}."


def _flows(points):
    """(style, its points) of each flow that was recorded."""
    for flow, style in STYLES.items():
        if mine := [p for p in points if p["flow"] == flow]:
            yield style, mine


def speeds(axes, points, dtype: str = "fp16", causal: bool = False) -> str:
    """Recorded: FLOP/s of the backward pass over N for each library, a panel for each d."""
    said = []
    mine = [p for p in points if p["dtype"] == dtype and p["causal"] == causal]
    top = max(p["backward"]["flops"] for p in mine) / 1e12
    for ax, d in zip(axes, sorted({p["d"] for p in mine}), strict=True):
        for flow, style in LIBRARIES.items():
            line = [p for p in mine if (p["flow"], p["d"]) == (flow, d)]
            rates = [p["backward"]["flops"] / 1e12 for p in line]
            ax.plot([p["n"] for p in line], rates, label=style.label, **style.line)
            if flow in ("ours", "cuDNN"):
                said.append(f"d = {d}, {style.label} {rates[-1]:.0f} at N = {line[-1]['n']:,}")
        n = sorted({p["n"] for p in mine})
        ax.set_xscale("log", base=2)
        ax.set_xticks(n, [f"{x:,}" for x in n], fontsize=11)
        ax.minorticks_off()
        ax.set(ylim=(0, 1.08 * top), xlabel="N", title=f"d = {d}")
        ax.grid(True, axis="y")
    axes[0].set_ylabel("TFLOP/s, backward")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return f"TFLOP/s of the backward pass, {dtype}, {'causal' if causal else 'no mask'}. {'; '.join(said)}."


def losses(axes, curves: dict, off: dict | None = None) -> str:
    """Left: loss curves on top of each other. Right: each minus the first one, enlarged.

    Keys are flows, perhaps with more after a comma: "naive", "ours, BF16".
    off: the differences, where they were recorded with more digits than the curves.
    """
    left, right = axes
    first, *others = curves
    off = off or {name: np.subtract(curves[name], curves[first]) for name in others}
    widths = {"naive": 4.5, "SDPA": 2.5, "notebook": 3, "ours": 1.3}
    for name, values in curves.items():
        style, label = _curve(name)
        look = dict(color=style.colour, ls=style.dash)
        width = widths[name.split(",")[0]]
        if name == first:
            left.plot(values, color=SOFT, lw=7, label=label)
        else:
            left.plot(values, **look, lw=width, label=label)
            right.plot(off[name], **look, lw=1.8)
    left.set(xlabel="step", ylabel="loss (nats per character)", title="Loss")
    right.set(xlabel="step", title=f"Loss minus that of {_curve(first)[1]}")
    for ax in axes:
        ax.grid(True)
    left.legend()
    far = "; ".join(
        f"{_curve(name)[1]} by {np.abs(off[name]).max():.1g} at most" for name in others
    )
    start, end = curves[first][0], curves[first][-1]
    return f"The loss falls from {start:.2f} to {end:.2f}. From {_curve(first)[1]} differ: {far}."


def _curve(name):
    """The style of a curve and its label: "ours, BF16" → "library kernels, BF16"."""
    flow, comma, rest = name.partition(",")
    return STYLES[flow], STYLES[flow].label + comma + rest


def training(axes, points, capacity: int = GPUS["H200"].hbm_bytes) -> str:
    """Recorded: peak memory of a training step and tokens per second, against N."""
    memory, speed = axes
    said = []
    for style, mine in _flows(points):
        done = [p for p in mine if "peak_bytes" in p]
        lost = [p["n"] for p in mine if p.get("out_of_memory")]
        n = [p["n"] for p in done]
        memory.plot(n, [p["peak_bytes"] / 1e9 for p in done], label=style.label, **style.line)
        speed.plot(n, [p["tokens_per_second"] / 1e3 for p in done], label=style.label, **style.line)
        said.append(
            f"{style.label} at N = {n[-1]:,}: {decimal(done[-1]['peak_bytes'])}, "
            f"{done[-1]['tokens_per_second']:,.0f} tokens/s"
        )
        for x in lost[:1]:
            _out_of_memory(memory, x, capacity / 1e9)
            said[-1] += f", at N = {x:,} out of memory"
    memory.axhline(capacity / 1e9, color=ACCENT, ls="--", lw=1.5)
    memory.set(ylim=(0, 1.4 * capacity / 1e9), ylabel="GB", title="Peak memory of a step")
    speed.set_ylim(bottom=0)
    speed.set(ylabel="thousand tokens per second", title="Speed")
    for ax in axes:
        _n_axis(ax, points)
    memory.legend(loc="center left")
    return f"Training against N. {'; '.join(said)}."


def training_table(points) -> Table:
    """Peak memory of a training step and tokens per second, against N."""
    by = {(p["flow"], p["n"]): p for p in points}
    flows = [flow for flow in STYLES if any(flow == f for f, _ in by)]
    held = [flow for flow in flows if flow in ("naive", "notebook")]
    rows = []
    for n in sorted({n for _, n in by}):
        done = {f: by[f, n] for f in flows if "peak_bytes" in by.get((f, n), ())}
        memory = [decimal(done[f]["peak_bytes"]) if f in done else "out of memory" for f in held]
        speed = [f"{done[f]['tokens_per_second']:,.0f}" if f in done else "–" for f in flows]
        rows.append((f"{n:,}", *memory, *speed))
    heads = [f"{STYLES[f].label}, peak" for f in held]
    return Table(("N", *heads, *(f"{STYLES[f].label}, tokens/s" for f in flows)), rows)


def layer_table(points, n: int, heads: int = 16, d: int = 128) -> Table:
    """One attention layer at one N: what is kept, times, FLOP/s of the backward pass as five products."""
    flops = cost.attention(n, d, flow="flash", heads=heads, backward=True).flops
    rows = []
    for style, mine in _flows(points):
        p = next(p for p in mine if p["n"] == n)
        rate = f"{flops / p['backward'] / 1e12:.0f}"
        times = seconds(p["forward"]), seconds(p["backward"])
        rows.append((style.label, decimal(p["kept_bytes"]), *times, rate))
    return Table(("attention", "kept", "forward", "backward", "backward, TFLOP/s"), rows)


def waits(points, n: int) -> Table:
    """A training step at one N: until Python has queued it, and the GPU's own work."""
    rows = [
        (
            style.label,
            seconds(p["host_seconds"]),
            seconds(p["gpu_seconds"]),
            f"{p['tokens_per_second']:,.0f}",
        )
        for style, mine in _flows(points)
        for p in mine
        if p["n"] == n and "host_seconds" in p
    ]
    return Table(("attention", "Python queues it in", "the GPU works for", "tokens/s"), rows)


def _out_of_memory(ax, n, y):
    """A cross where naive attention would go on."""
    ax.plot(n, y, marker="X", ms=14, color=STYLES["naive"].colour, ls="", clip_on=False)
    ax.annotate("out of memory", (n, y), (-12, 2), ha="right", va="bottom", color=ACCENT,
                textcoords="offset points")  # fmt: skip


def _n_axis(ax, points):
    n = sorted({p["n"] for p in points})
    ax.set_xscale("log", base=2)
    ax.set_xticks(n, [f"{x // 1024}k" for x in n])
    ax.minorticks_off()
    ax.set(xlabel="N", xlim=(n[0] / 1.2, 1.2 * n[-1]))
    ax.grid(True)


def _log_ticks(ax, unit):
    ax.set_yscale("log")
    low, high = np.log10(ax.get_ylim())
    powers = 10.0 ** np.arange(np.ceil(low), np.floor(high) + 1)
    ax.set_yticks(powers, [unit(p) for p in powers])
    ax.minorticks_off()
