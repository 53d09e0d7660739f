"""Figures of the forward kernel: a tile's addresses, causal tiles, its clocks, its ladder, speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.patches import Rectangle

from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, GRID, INK, PAPER, SOFT, FlowStyle
from course.tables import Table
from course.units import decimal

STYLES = {  # flow of `course.records.attention_speed` → its style
    "ours": FLOWS["flash"]._replace(dash="-", label="library kernel"),
    "naive": FLOWS["naive"],
    "cuDNN": FlowStyle(INK, "v", "--", "", "cuDNN"),
    "FA-2": FlowStyle("#5c5c5c", "P", "-.", "", "FA-2"),
    "mem-efficient": FlowStyle("#8c8c8c", "X", ":", "", "mem-efficient"),
}
MINE = "measured here"

# --- the addresses of a tile ------------------------------------------------------------------


def addresses(axes, rows: int = 3, d: int = 6, first: int = 2, n: int = 4) -> str:
    """A tile's addresses: a column of row starts plus a row of columns, and its mask."""
    row = np.arange(first, first + rows)
    column = np.arange(d)
    panels = (
        (axes[0], row[:, None] * d, "row[:, None] * d"),
        (axes[1], column[None, :], "column[None, :]"),
        (axes[2], row[:, None] * d + column[None, :], "their sum: the addresses"),
    )
    for ax, block, title in panels:
        if sign := {axes[1]: "+", axes[2]: "="}.get(ax):
            ax.text(-0.25, rows / 2, sign, ha="right", va="center", fontsize=22, weight="bold")
        high, wide = block.shape
        ax.set(xlim=(-0.25, d + 0.05), ylim=(rows + 0.15, -0.15), xticks=(), yticks=())
        ax.set_title(title, fontsize=13, fontfamily="monospace" if "[" in title else None)
        ax.axis("off")
        top = (rows - high) / 2
        left = (d - wide) / 2
        for (i, j), value in np.ndenumerate(block):
            outside = ax is axes[2] and row[i] >= n
            ax.add_patch(Rectangle((left + j, top + i), 1, 1, edgecolor=SOFT, lw=1.2,
                                   facecolor=GRID if outside else PAPER,
                                   hatch="xx" if outside else ""))  # fmt: skip
            ax.text(left + j + 0.5, top + i + 0.5, str(value), ha="center", va="center",
                    bbox=dict(facecolor=PAPER, edgecolor="none", pad=1))  # fmt: skip
    return (
        f"The addresses of a tile of {rows} rows and {d} columns that starts at row {first}: the row "
        f"starts {', '.join(map(str, row * d))} as a column, plus 0 to {d - 1} as a row. Row "
        f"{n} does not exist in a tensor of {n} rows, so its addresses are masked."
    )


@static("tile_addresses", size=(11, 2.5), panels=(1, 3))
def _(axes):
    return addresses(axes)


# --- causal tiles -----------------------------------------------------------------------------

FULL, MASKED, SKIPPED = "full", "masked", "skipped"
_FILL = {FULL: (FLOWS["flash"].colour, ""), MASKED: ("#9fc8e6", "//"), SKIPPED: (PAPER, "")}


def kind(i: int, j: int, n: int, n_kv: int, block_q: int, block_kv: int) -> str:
    """What the causal mask makes of the score tile of Q tile i and K tile j."""
    first, last = i * block_q, min((i + 1) * block_q, n) - 1  # the query rows of the tile
    if j * block_kv > last + n_kv - n:
        return SKIPPED
    whole = min((j + 1) * block_kv, n_kv) == (j + 1) * block_kv
    return FULL if whole and (j + 1) * block_kv - 1 <= first + n_kv - n else MASKED


def tile_counts(n: int, n_kv: int, block_q: int, block_kv: int) -> dict[str, int]:
    """How many score tiles are computed plain, computed with a mask, and never touched."""
    kinds = [
        kind(i, j, n, n_kv, block_q, block_kv)
        for i in range(-(-n // block_q))
        for j in range(-(-n_kv // block_kv))
    ]
    return {name: kinds.count(name) for name in (FULL, MASKED, SKIPPED)}


def causal_tiles(ax, n: int, n_kv: int, block_q: int, block_kv: int) -> str:
    """The score matrix in tiles: which are plain, which need a mask, which are never touched."""
    for i in range(-(-n // block_q)):
        for j in range(-(-n_kv // block_kv)):
            colour, hatch = _FILL[kind(i, j, n, n_kv, block_q, block_kv)]
            high, wide = min(block_q, n - i * block_q), min(block_kv, n_kv - j * block_kv)
            ax.add_patch(Rectangle((j * block_kv, i * block_q), wide, high, facecolor=colour,
                                   hatch=hatch, edgecolor=SOFT, lw=1))  # fmt: skip
    edge = np.clip(np.arange(n) + n_kv - n + 1, 0, n_kv)
    ax.step(np.append(edge, edge[-1]), np.arange(n + 1), where="post", color=ACCENT)
    ax.set(xlim=(0, n_kv), ylim=(n, 0), xlabel="key j", ylabel="query i", aspect="equal")
    ax.set_xticks(range(0, n_kv + 1, block_kv))
    ax.set_yticks(range(0, n + 1, block_q))
    counts = tile_counts(n, n_kv, block_q, block_kv)
    ax.set_title(f"N = {n}, N_kv = {n_kv}")
    return (
        f"N = {n}, N_kv = {n_kv}, tiles of {block_q}×{block_kv}: {counts[FULL]} are computed without "
        f"a mask, {counts[MASKED]} on the diagonal or the edge with one, {counts[SKIPPED]} are skipped."
    )


@static("causal_tiles", size=(11, 4.6), panels=(1, 2))
def _(axes):
    words = [causal_tiles(axes[0], 96, 96, 16, 16), causal_tiles(axes[1], 64, 104, 16, 16)]
    for name, (colour, hatch) in _FILL.items():
        label = {FULL: "plain", MASKED: "with a mask", SKIPPED: "skipped"}[name]
        axes[1].fill_between([], [], facecolor=colour, hatch=hatch, edgecolor=SOFT, label=label)
    axes[1].plot([], [], color=ACCENT, lw=2.5, label="last key a query sees")
    axes[1].figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return " ".join(words)


# --- the clocks of a tile ---------------------------------------------------------------------

TENSOR_FLOPS = 4096  # dense FP16 FLOP a clock and SM: 989.4e12 / 132 SMs / 1.83 GHz
EXP_A_CLOCK = 16  # of the special function units of an SM
LANES = 128  # FP32 instructions a clock and SM
SCORE_INSTRUCTIONS = 4  # compare for the maximum, multiply-subtract, add to l, convert to FP16


def tile_clocks(block_q: int, block_kv: int, d: int) -> dict[str, float]:
    """Clocks of one SM for one score tile, each unit at its peak on an H100 or H200."""
    scores = block_q * block_kv
    return {
        "QKᵀ": 2 * scores * d / TENSOR_FLOPS,
        "exp2": scores / EXP_A_CLOCK,
        "other": (SCORE_INSTRUCTIONS * scores + block_q * d) / LANES,  # and o times alpha
        "PV": 2 * scores * d / TENSOR_FLOPS,
    }


_PARTS = {  # part → colour, hatch: matmuls in the fused flow's blue, the rest apart
    "QKᵀ": (FLOWS["flash"].colour, ""),
    "exp2": ("#f0c987", "//"),
    "other": ("#e3e3e3", ".."),
    "PV": ("#56a5d8", "\\\\"),
}


def clocks(ax, tiles: Sequence[tuple[int, int, int]]) -> str:
    """The parts of one score tile after each other, and the share that is matmul."""
    said, longest = [], max(sum(tile_clocks(*tile).values()) for tile in tiles)
    for i, (block_q, block_kv, d) in enumerate(tiles):
        left, parts = 0.0, tile_clocks(block_q, block_kv, d)
        for name, size in parts.items():
            colour, hatch = _PARTS[name]
            ax.barh(i, size, left=left, height=0.55, facecolor=colour, hatch=hatch, edgecolor=INK)
            ax.text(left + size / 2, i, f"{name}\n{size:.0f}", ha="center", va="center",
                    bbox=dict(facecolor=PAPER, edgecolor="none", pad=1.5))  # fmt: skip
            left += size
        share = (parts["QKᵀ"] + parts["PV"]) / left
        ax.text(left + 15, i, f"{share:.0%} matmul", va="center", weight="bold")
        said.append(f"d = {d}: {left:.0f} clocks, {share:.0%} of them matmul")
    ax.set_yticks(range(len(said)), [f"d = {d}" for _, _, d in tiles])
    ax.set(xlabel="clocks of one SM, each unit at its peak")
    ax.set_xlim(0, 1.2 * longest)
    ax.set_xticks(range(0, round(1.2 * longest), 500))
    ax.set_title(f"One {block_q} × {block_kv} tile, one step after the other")
    ax.invert_yaxis()
    ax.spines["left"].set_visible(False)
    ax.tick_params(left=False)
    return "; ".join(said) + "."


def matmul_share(block_q: int, block_kv: int, d: int) -> float:
    """Part of `tile_clocks` in which the tensor cores work, if nothing overlaps."""
    parts = tile_clocks(block_q, block_kv, d)
    return (parts["QKᵀ"] + parts["PV"]) / sum(parts.values())


@static("tile_clocks", size=(11, 3.6))
def _(ax):
    return clocks(ax, [(64, 128, 128), (64, 128, 64)])


# --- measured ---------------------------------------------------------------------------------


def cells(points: Iterable[dict], dtype: str) -> dict[tuple[int, bool], dict[str, dict]]:
    """(d, causal) → flow → N → the forward pass, for one data type of the record."""
    found: dict = {}
    for p in points:
        if p["dtype"] == dtype:
            flows = found.setdefault((p["d"], p["causal"]), {})
            flows.setdefault(p["flow"], {})[p["n"]] = p["forward"]
    return dict(sorted(found.items()))


def speeds(axes, points: Iterable[dict], dtype: str = "fp16", mine: Iterable[dict] = ()) -> str:
    """FLOP/s of the forward pass over N, a panel for each d and mask; `mine` as the points."""
    mine, said = cells(mine, dtype), []
    panels = cells(points, dtype)
    top = max(
        q["flops"] for flows in panels.values() for line in flows.values() for q in line.values()
    )
    for ax, ((d, causal), flows) in zip(np.ravel(axes), panels.items(), strict=True):
        for flow, style in STYLES.items():
            line = flows.get(flow, {})
            ax.plot(
                list(line),
                [q["flops"] / 1e12 for q in line.values()],
                label=style.label,
                **style.line,
            )
        own = mine.get((d, causal), {}).get("ours", {})
        if own:
            ax.plot(list(own), [q["flops"] / 1e12 for q in own.values()], color=ACCENT, marker="*", ls="", ms=14,
                    label=MINE)  # fmt: skip
        ns = sorted({n for line in flows.values() for n in line})
        ax.set_xscale("log", base=2)
        ax.set_xticks(ns, [f"{n:,}" for n in ns], fontsize=11)
        ax.minorticks_off()
        ax.set(ylim=(0, 1.08 * top / 1e12))
        ax.set_title(f"d = {d}, {'causal' if causal else 'full'}", fontsize=13)
        ax.grid(True, axis="y")
        last = max(flows["ours"])
        said.append(
            f"d = {d}, {'causal' if causal else 'full'}, N = {last:,}: library kernel "
            f"{flows['ours'][last]['flops'] / 1e12:.0f}, cuDNN {flows['cuDNN'][last]['flops'] / 1e12:.0f}"
        )
    axes = np.atleast_2d(axes)
    for ax in axes[:, 0]:
        ax.set_ylabel("TFLOP/s")
    for ax in axes[-1]:
        ax.set_xlabel("N")
    if layout := axes[0, 0].figure.get_layout_engine():
        layout.set(h_pad=0.12)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return f"TFLOP/s of the forward pass, {dtype}. {'; '.join(said)}."


def shares(points: Iterable[dict], dtypes=("fp16", "bf16"), lengths=(512, 4096, 16_384)) -> Table:
    """The library kernel's TFLOP/s at some lengths, and its share of cuDNN's, by type, d and mask."""
    rows = []
    for dtype in dtypes:
        for (d, causal), flows in cells(points, dtype).items():
            ours = [flows["ours"][n] for n in lengths]
            parts = (f"{p['flops'] / 1e12:.0f} ({p['of_cudnn']:.0%})" for p in ours)
            naive = flows["ours"][4096]["flops"] / flows["naive"][4096]["flops"]
            rows.append((dtype, d, "causal" if causal else "full", *parts, f"{naive:.1f}×"))
    headers = [f"N = {n:,}" for n in lengths]
    return Table(("type", "d", "mask", *headers, "naive, 4,096"), rows)


# --- the ladder -------------------------------------------------------------------------------


def rungs(section: dict, n: int) -> dict[tuple[int, bool], dict[str, dict]]:
    """(d, causal) → rung, and "cuDNN", → its point with the gain over the rung before, at one N."""
    found: dict = {}
    for p in section["points"]:
        if p["n"] == n:
            line = found.setdefault((p["d"], p["causal"]), {})
            before = line.get(list(line)[-1]) if line and p["rung"] in section["rungs"] else None
            line[p["rung"]] = p | {"gain": p["flops"] / before["flops"] if before else None}
    return found


def ladder(axes, section: dict, d: int = 128, n: int = 4096, mine: dict | None = None) -> str:
    """FLOP/s rung by rung, a panel for each mask; `mine`, {(rung, causal): FLOP/s}, as stars."""
    found, names = rungs(section, n), list(section["rungs"])
    lines = {causal: found[d, causal] for causal in (False, True)}
    top = max(p["flops"] for line in lines.values() for p in line.values()) / 1e12
    said = []
    for ax, (causal, line) in zip(axes, lines.items(), strict=True):
        for i, name in enumerate(names):
            if name not in line:
                ax.text(0.01 * top, i, "none in the table", va="center", color=SOFT)
                continue
            speed, gain = line[name]["flops"] / 1e12, line[name]["gain"]
            ends = [speed * line[name]["seconds"] / line[name][end] for end in ("high", "low")]
            ax.barh(i, speed, height=0.62, **FLOWS["flash"].bar)
            ax.plot(ends, [i, i], color=INK, lw=1.5, marker="|", ms=8)
            ax.text(
                1.04 * top, i, f"{speed:.0f}" + (f"   ×{gain:.2f}" if gain else ""), va="center"
            )
        for (rung, masked), flops in (mine or {}).items():
            if masked == causal:
                ax.plot(flops / 1e12, names.index(rung), color=ACCENT, marker="*", ls="", ms=14,
                        label=MINE)  # fmt: skip
        ax.axvline(line["cuDNN"]["flops"] / 1e12, label="cuDNN", color=INK, ls="--", lw=2)
        labels = [name if name == names[0] else f"+ {name}" for name in names]
        ax.set_yticks(range(len(names)), labels if ax is axes[0] else [])
        ax.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.3 * top), xlabel="TFLOP/s")
        mask = "causal" if causal else "full"
        ax.set_title(f"d = {d}, {mask}, N = {n:,}", fontsize=13)
        ax.spines["left"].set_visible(False)
        ax.tick_params(left=False)
        speeds = (f"{name} {p['flops'] / 1e12:.0f}" for name, p in line.items())
        said.append(f"{mask}: {', '.join(speeds)}")
    handles = {h.get_label(): h for ax in axes for h in ax.get_legend_handles_labels()[0]}
    axes[0].figure.legend(handles.values(), handles, loc="outside lower center", ncols=2)
    return f"TFLOP/s rung by rung, d = {d}, N = {n:,}. {'; '.join(said)}."


def climbed(section: dict, n: int = 4096) -> Table:
    """TFLOP/s of each rung, with its gain, for each d and mask; registers and blocks at d = 128."""
    found, rows = rungs(section, n), []
    for name in (*section["rungs"], "cuDNN"):
        row = []
        for p in (line.get(name) for line in found.values()):
            gain = f" ×{p['gain']:.2f}" if p and p["gain"] else ""
            row.append(f"{p['flops'] / 1e12:.0f}{gain}" if p else "–")
        for what in ("registers", "blocks"):
            full, causal = (found[128, causal][name].get(what) for causal in (False, True))
            row.append(f"{full}, {causal}" if full else "–")
        rows.append((name, *row))
    headers = [f"d = {d}, {'causal' if causal else 'full'}" for d, causal in found]
    return Table(("rung", *headers, "registers*", "blocks per SM*"), rows)


def memory(ax, points: Iterable[dict], d: int = 128, dtype: str = "fp16") -> str:
    """Peak memory of a forward pass beyond its inputs, over N, at a fixed number of tokens."""
    flows, said, lines = cells(points, dtype)[d, False], [], {}
    for flow, style in STYLES.items():
        sizes = [q["peak_bytes"] for q in flows[flow].values()]
        alike = lines.setdefault(tuple(f"{size:.2g}" for size in sizes), (style, sizes, []))
        alike[2].append(style.label)
    for style, sizes, names in lines.values():  # lines that would hide each other are drawn once
        label, ns = ", ".join(names), sorted(flows["ours"])[: len(sizes)]
        ax.plot(ns, sizes, label=label, **style.line)
        said.append(f"{label} {decimal(sizes[0])} to {decimal(sizes[-1])} (N = {ns[-1]:,})")
    ns = sorted(flows["ours"])
    ax.set_xscale("log", base=2)
    ax.set_xticks(ns, [f"{n:,}" for n in ns])
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ticks = [10.0**p for p in range(6, 13) if low / 3 <= 10**p <= high * 3]
    ax.set_yticks(ticks, [decimal(t) for t in ticks])
    ax.minorticks_off()
    ax.set(xlabel="N", ylabel="peak, beyond the inputs")
    ax.grid(True, axis="y")
    ax.legend(loc="upper left")
    return f"Peak memory of the forward pass, d = {d}, {dtype}: {'; '.join(said)}."
