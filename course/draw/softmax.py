"""Figures of the online softmax: its range, its sweeps, its state, its merge, its precision."""

from __future__ import annotations

import numpy as np

from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, GRID, INK, LEVELS, PAPER, SOFT
from course.softmax import State, finish, merge, update

SCORES, VALUES = (1.0, 3.0, 4.0, 2.0), (1.0, 2.0, 3.0, 4.0)  # the worked example, in blocks of two
SEEN, NOW = FLOWS["flash"].colour, FLOWS["tiled"].colour


def blocks(n: int, size: int) -> list[slice]:
    """Slices of `size` that cover n; the last may be shorter."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def states(scores, values, size: int) -> list[State]:
    """The state before the first block and after each: one row, one number as its value."""
    state = State.empty(1)
    after = [state]
    for block in blocks(len(scores), size):
        values_in = np.asarray(values, float)[block, None]
        after.append(state := update(state, np.asarray(scores, float)[block], values_in))
    return after


def limits(ax, dtypes=("float16", "float32")) -> str:
    """Where exp leaves the range of each NumPy data type, on a logarithmic scale."""
    x = np.array([-25.0, 100.0])
    ax.plot(x, x / np.log(10), color=SEEN)
    ax.axvspan(x[0], 0, color=GRID, alpha=0.6, lw=0)
    ax.text(
        -24, 31, "maximum\ntaken off:\nno score\nabove 0,\nexp in (0, 1]", va="top", fontsize=12
    )
    said = []
    for dtype, dash in zip(dtypes, (":", "--"), strict=True):
        largest = float(np.finfo(dtype).max)
        score = np.log(largest)
        ax.plot([x[0], score, score], [np.log10(largest)] * 2 + [-12], dash, color=ACCENT, lw=1.8)
        ax.plot(score, np.log10(largest), "o", color=ACCENT)
        name, end = dtype.replace("float", "FP"), f"{largest:,.0f}"
        if largest > 1e6:
            digits, power = f"{largest:.1e}".split("e+")
            end = rf"{digits} × $10^{{{int(power)}}}$"
        ax.annotate(f"{name} ends at {end},\nat score {score:.1f}", (score, np.log10(largest)),
                    xytext=(12, -14) if score < 50 else (-12, -80), textcoords="offset points",
                    va="top", ha="left" if score < 50 else "right")  # fmt: skip
        said.append(f"{name} for scores above {score:.1f}")
    ax.set(
        xlim=x, ylim=(-12, 43), xticks=range(-20, 101, 20), xlabel="score s", ylabel="$e^s$",
        title="exp leaves the range of a number very soon",
    )  # fmt: skip
    ax.set_yticks(range(-10, 41, 10), [f"$10^{{{p}}}$" if p else "1" for p in range(-10, 41, 10)])
    return f"exp overflows {' and '.join(said)}; for scores of 0 or less it stays between 0 and 1."


@static("softmax_limits")
def _(ax):
    return limits(ax)


SWEEPS = {
    "plain softmax": ("read: sum", "read, write: output"),
    "safe softmax": ("read: maximum", "read: sum", "read, write: output"),
    "online softmax": ("read: maximum, sum", "read, write: output"),
    "online, with values": ("read: maximum,\nsum, output",),
}
"""How often each way goes over the row. One that has V at hand writes no P at all."""


def sweeps(ax, ways=SWEEPS) -> str:
    """How often each way of taking a softmax goes over its row."""
    said = []
    for y, (name, parts) in enumerate(ways.items()):
        for x, part in enumerate(parts):
            ax.barh(-y, 0.94, left=x + 0.03, height=0.66, facecolor=GRID)
            ax.text(x + 0.5, -y, part.replace(": ", ":\n"), ha="center", va="center", fontsize=12,
                    linespacing=1.1)  # fmt: skip
        accesses = sum(1 + ("write" in part) for part in parts)
        ax.text(
            3.08, -y, f"{accesses} access{'es' if accesses > 1 else ''}\nper element", va="center"
        )
        said.append(f"{name} {len(parts)}")
    ax.set(
        xlim=(0, 3.7), ylim=(0.5 - len(ways), 0.5), xticks=(0.5, 1.5, 2.5),
        xticklabels=("1st sweep", "2nd sweep", "3rd sweep"),
        title="How often does each go over the row?",
    )  # fmt: skip
    ax.set_yticks([-y for y in range(len(ways))], list(ways))
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return f"Sweeps over the row: {', '.join(said)}."


@static("softmax_sweeps")
def _(ax):
    return sweeps(ax)


def worked_example(ax, scores=SCORES, values=VALUES, size=2) -> str:
    """The state (m, ℓ, o) after each block, with what each block brings and the α between them."""
    after = states(scores, values, size)
    ax.set(xlim=(0, 10), ylim=(0, 5.2))
    ax.axis("off")
    shelf = LEVELS["registers"]
    step = 10 / (len(after) + 1)
    said = []
    for t, state in enumerate(after):
        x = step * (t + 0.5)
        m, l, o = state.m, state.l, state.o[0]
        text = "m = −∞\nℓ = 0\no = 0" if t == 0 else f"m = {m:.0f}\nℓ = {l:.4f}\no = {o:.4f}"
        ax.text(x, 1.05, text, ha="center", va="center", fontsize=14, linespacing=1.5,
                bbox=dict(boxstyle="round,pad=0.5", facecolor=shelf.colour, edgecolor=INK))  # fmt: skip
        if t == 0:
            ax.text(x, 2.3, "nothing seen", ha="center", color=SOFT)
            continue
        block = blocks(len(scores), size)[t - 1]
        s, v = np.asarray(scores)[block], np.asarray(values)[block]
        numbers = ", ".join(f"{a:.0f}" for a in s), ", ".join(f"{a:.0f}" for a in v)
        terms = " + ".join(f"$e^{{{a:.0f}-{m:.0f}}}$" for a in s)
        ax.text(x, 4.35, f"block {t}\nscores {numbers[0]}\nvalues {numbers[1]}", ha="center",
                va="center", linespacing=1.4,
                bbox=dict(boxstyle="square,pad=0.5", facecolor=PAPER, edgecolor=SEEN, lw=2))  # fmt: skip
        ax.text(x, 2.75, f"adds {terms}\n= {np.exp(s - m).sum():.4f}", ha="center", va="center")
        ax.annotate("", (x, 1.85), (x, 2.35), arrowprops=dict(arrowstyle="-|>", color=SEEN, lw=2))
        alpha = np.exp(after[t - 1].m - m)
        ax.annotate(
            "", (x - 0.78, 1.05), (x - step + 0.78, 1.05),
            arrowprops=dict(arrowstyle="-|>", color=ACCENT, lw=2),
        )  # fmt: skip
        ax.text(x - step / 2, 1.2, f"× α\n{alpha:.4f}", ha="center", va="bottom", color=ACCENT)
        said.append(f"after block {t}, m = {m:.0f}, ℓ = {l:.4f}, o = {o:.4f} (α = {alpha:.4f})")
    out = finish(after[-1])[0][0]
    x = step * (len(after) + 0.5)
    ax.annotate(
        "", (x - 0.85, 1.05), (x - step + 0.78, 1.05),
        arrowprops=dict(arrowstyle="-|>", color=INK, lw=2),
    )  # fmt: skip
    ax.text(x - step / 2 - 0.02, 1.2, "o / ℓ", ha="center", va="bottom")
    ax.text(x, 1.05, f"output\n{out:.3f}", ha="center", va="center", fontsize=16, weight="bold",
            linespacing=1.5, bbox=dict(boxstyle="round,pad=0.5", facecolor=PAPER, edgecolor=INK, lw=2))  # fmt: skip
    text = f"The worked example: {'; '.join(said)}; the output is {out:.3f}."
    return text


@static("online_worked_example", size=(11, 4.6))
def _(ax):
    return worked_example(ax)


def rescale(axes, scores=SCORES, size=2) -> str:
    """Two bar charts: the terms of ℓ after the first block, and after the second one's α."""
    scores = np.asarray(scores, float)
    first, m_old, m = scores[:size], scores[:size].max(), scores[: 2 * size].max()
    alpha = np.exp(m_old - m)
    charts = (
        (f"after block 1: measured from m = {m_old:.0f}", np.exp(first - m_old)),
        (f"times α: measured from m = {m:.0f}", alpha * np.exp(first - m_old)),
    )
    x = np.arange(size)
    for ax, (title, terms) in zip(axes, charts, strict=True):
        ax.bar(x, terms, color=SEEN, width=0.6)
        ax.set(ylim=(0, 1.4), xlim=(-0.6, size - 0.3), yticks=(0, 0.5, 1), title=title)
        ax.set_xticks(x, [f"s = {s:.0f}" for s in first])
        ax.title.set_fontsize(13)
        ax.text(0.02, 0.96, f"ℓ = {terms.sum():.4f}", va="top", weight="bold",
                transform=ax.transAxes)  # fmt: skip
    before, after = (terms for _, terms in charts)
    for i, term in enumerate(before):
        axes[0].text(i, term + 0.02, f"{term:.4f}", ha="center", va="bottom", fontsize=12)
    axes[1].bar(x, before, width=0.6, facecolor="none", edgecolor=ACCENT, ls="--", lw=1.5)
    for i, term in enumerate(after):
        axes[1].text(i + 0.33, term, f"{term:.4f}", va="center", fontsize=12)
        axes[1].text(i, before[i] + 0.02, f"× {alpha:.4f}", ha="center", va="bottom", fontsize=12,
                     color=ACCENT)  # fmt: skip
    axes[0].set_ylabel("term $e^{s - m}$ of ℓ")
    return (
        f"The terms of the running sum: when the maximum moves from {m_old:.0f} to {m:.0f}, every old "
        f"term shrinks by the same factor {alpha:.4f}, and so does their sum: ℓ goes from "
        f"{before.sum():.4f} to {after.sum():.4f}."
    )


@static("online_rescale", size=(10, 4), panels=(1, 2))
def _(axes):
    return rescale(axes)


def merges(axes, scores, size: int = 2) -> str:
    """Two ways to merge the same four blocks: one after the other, and in pairs."""
    scores = np.asarray(scores, float)
    leaves = [
        update(State.empty(1), scores[block], np.zeros((size, 1)))
        for block in blocks(len(scores), size)
    ]

    def node(ax, x, y, state, colour):
        ax.text(x, y, f"m = {state.m:.0f}\nℓ = {state.l:.4f}", ha="center", va="center",
                linespacing=1.4, fontsize=12,
                bbox=dict(boxstyle="round,pad=0.4", facecolor=colour, edgecolor=INK))  # fmt: skip
        return x, y, state

    def join(ax, a, b, x, y, last):
        for child in (a, b):
            ax.plot([child[0], x], [child[1], y], color=SOFT, lw=1.5, zorder=0)
        state = merge(a[2], b[2])
        return node(
            ax, x, y, state, LEVELS["shared"].colour if last else LEVELS["registers"].colour
        )

    roots = []
    for ax, title in zip(axes, ("one after the other", "in pairs, from the far end"), strict=True):
        ax.axis("off")
        ax.set(xlim=(-0.6, 3.6), ylim=(-0.75, 3.5), xticks=(), yticks=(), title=title)
        row = [node(ax, i, 0, leaf, PAPER) for i, leaf in enumerate(leaves)]
        for i, block in enumerate(blocks(len(scores), size)):
            numbers = ", ".join(f"{s:.0f}" for s in scores[block]).replace("-", "−")
            ax.text(i, -0.45, f"scores\n{numbers}", ha="center", va="top", fontsize=12, color=SOFT)
        if ax is axes[0]:
            root = row[0]
            for i, leaf in enumerate(row[1:], 1):
                root = join(ax, root, leaf, 0.5 + 0.5 * i, i, last=i == 3)
        else:
            right = join(ax, row[3], row[2], 2.5, 1.5, last=False)
            root = join(
                ax, right, join(ax, row[1], row[0], 0.5, 1.5, last=False), 1.5, 3, last=True
            )
        roots.append(root[2])
    return (
        "Two merge trees over the same four blocks; both end at "
        + " and ".join(f"m = {r.m:.0f}, ℓ = {r.l:.4f}" for r in roots) + "."
    )  # fmt: skip


@static("online_merge", size=(12, 5.2), panels=(1, 2))
def _(axes):
    return merges(axes, (2, 3, 5, 2, 4, 0, -1, 2))


def running_sums(ax, sums: dict) -> str:
    """A running sum of ones in several data types; `sums`: name → its value after 0, 1, 2… terms."""
    looks = (
        dict(color=INK, ls="-", lw=6, alpha=0.25),
        dict(color=SEEN, ls="-."),
        dict(color=ACCENT, ls=":"),
    )
    said = []
    for (name, l), look in zip(sums.items(), looks, strict=True):
        ax.plot(np.arange(len(l)), l, **look)
        y = float(l[-1])
        ax.annotate(f"{name}: {y:.0f}", (len(l) - 1, y), xytext=(-4, 8), textcoords="offset points",
                    ha="right", color=look["color"], weight="bold")  # fmt: skip
        said.append(f"{name} {y:.0f}")
    n = len(l) - 1
    ax.set(
        xlabel="terms added (each is $e^0$ = 1)", ylabel="running sum ℓ", xlim=(0, n),
        ylim=(0, 1.12 * n), title="A running sum that stops growing",
    )  # fmt: skip
    return f"After adding {n} ones, the running sum is: {', '.join(said)}."
