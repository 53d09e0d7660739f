"""The forward kernel's tile: what it takes of an SM, and the speed recorded with it on an H200."""

import functools

import ipywidgets as widgets
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from course import kernels, records
from course.draw.theme import ACCENT, FLOWS, GRID, INK, LEVELS, PAPER, SOFT
from course.explore.explorer import Explorer
from course.hardware import KiB
from course.kernels.report import REGISTERS, SM, occupancy, report
from course.units import binary

ARCH = 90
THREADS, _, SHARED, SHARED_A_BLOCK, RESERVED = SM[ARCH]
TILE = ("block_q", "block_kv", "num_warps", "num_stages")
SUPPLIES = {"registers": LEVELS["registers"], "shared memory": LEVELS["shared"], "threads": None}


@functools.cache
def swept() -> dict:
    """(d, causal, block_q, block_kv, warps, stages) → what was recorded with that tile."""
    points = records.load("h200")["tile_sweep"]["points"]
    return {
        (p["d"], p["causal"], *(p[name] for name in TILE)): p
        for p in points
        if p["kernel"] == "forward" and p["maxnreg"] is None
    }


def compiled(d, block_q, block_kv, warps, stages) -> tuple:
    """What a tile takes on an H200: (registers per thread, spilled bytes, shared memory, blocks per SM,
    what limits them), FP16 without a mask. By the compiler; where there is no Triton, as recorded.
    """
    if kernels.available:
        tile = dict(block_q=block_q, block_kv=block_kv, num_warps=warps, num_stages=stages)
        r = report("forward", d=d, arch=ARCH, **tile)
        return r.registers, r.spilled_bytes, binary(r.shared_bytes), r.blocks_per_sm, r.limited_by
    p = swept()[d, False, block_q, block_kv, warps, stages]
    fits = occupancy(p["registers"], p["shared_bytes"], warps, ARCH)
    return p["registers"], p["spilled_bytes"], binary(p["shared_bytes"]), *fits


def budget(d, block_q, block_kv, stages) -> tuple[str, int]:
    """(what lies in shared memory, its bytes in FP16), as the compiler lays it out for sm_90.

    Hopper's tensor-core instruction, wgmma, takes 64 rows. For fewer the compiler takes the older
    mma, which finds Q in registers and P in shared memory, and has one slot less.
    """
    q, kv = 2 * block_q * d, 2 * block_kv * d
    if block_q < 64:
        ahead = "K" if stages == 1 else "(stages − 1) · (K + V)"
        return f"P + {ahead}", 2 * block_q * block_kv + (2 * (stages - 1) or 1) * kv
    if stages == 1:  # V comes when K has been used, and takes its room
        return "Q + K", q + kv
    return "Q + stages · (K + V)", q + 2 * stages * kv


def values(place: int) -> list:
    """What was swept, in one place of the key."""
    return sorted({key[place] for key in swept()})


def compute(d, causal, block_q, block_kv, warps, stages):
    """What one tile takes of an SM, and the recorded FLOP/s of all tiles with these warps and stages."""
    speeds = {}
    for rows in values(2):
        for keys in values(3):
            p = swept().get((d, causal, rows, keys, warps, stages))
            speeds[rows, keys] = p and {"flops": p["flops"], "spilled": p["spilled_bytes"]}
    data = {
        "d": d, "causal": causal, "block_q": block_q, "block_kv": block_kv, "warps": warps,
        "stages": stages, "speeds": speeds, "point": None,
        "budget": budget(d, block_q, block_kv, stages),
    }  # fmt: skip
    p = swept().get((d, causal, block_q, block_kv, warps, stages))
    if p:
        blocks, limit = occupancy(p["registers"], p["shared_bytes"], warps, ARCH)
        a_thread = -(-p["registers"] // 8) * 8
        shares = {
            "registers": a_thread * 32 * warps / REGISTERS,
            "shared memory": (p["shared_bytes"] + RESERVED) / SHARED,
            "threads": 32 * warps / THREADS,
        }
        best = max(q["flops"] for key, q in swept().items() if key[:2] == (d, causal))
        data |= {"point": p, "blocks": blocks, "limit": limit, "shares": shares, "best": best}
    return data


def draw(fig, data):
    """Left: the three supplies of an SM, filled block by block. Right: the recorded speeds."""
    left = fig.add_axes((0.14, 0.35, 0.28, 0.5))
    right = fig.add_axes((0.645, 0.14, 0.335, 0.71))
    left.set(xlim=(0, 100), ylim=(2.6, -0.6), xlabel="% of one SM")
    left.set_yticks(range(3), SUPPLIES)
    left.spines["left"].set_visible(False)
    left.tick_params(left=False)
    title = fig.text(0.28, 0.91, "", ha="center", weight="bold", fontsize=15)
    bars = {}
    for i, (name, level) in enumerate(SUPPLIES.items()):
        left.add_patch(Rectangle((0, i - 0.3), 100, 0.6, facecolor=PAPER, edgecolor=GRID))
        colour, hatch = (level.colour, level.hatch) if level else ("#c9c9c9", "..")
        bar = Rectangle((0, i - 0.3), 0, 0.6, facecolor=colour, hatch=hatch, edgecolor=SOFT, lw=0)
        bars[name] = left.add_patch(bar)
    cuts = left.add_collection(LineCollection([], colors=INK, linewidths=1.6))
    names = [left.text(102, i, "", va="center") for i in range(3)]
    facts = fig.text(0.02, 0.03, "", va="bottom", linespacing=1.5)

    rows, keys = values(2), values(3)
    right.set(xlim=(-0.5, len(keys) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    right.set_xticks(range(len(keys)), keys)
    right.set_yticks(range(len(rows)), rows)
    right.set_xlabel("B_c, keys of a K and V tile")
    right.set_ylabel("B_r, queries of a Q tile")
    right.tick_params(left=False, bottom=False)
    for side in ("left", "bottom"):
        right.spines[side].set_visible(False)
    fig.text(0.8125, 0.91, "TFLOP/s recorded on an H200", ha="center", weight="bold", fontsize=15)
    cells, texts = {}, {}
    top = max(p["flops"] for p in swept().values())
    for i, b in enumerate(rows):
        for j, c in enumerate(keys):
            cell = Rectangle((j - 0.47, i - 0.46), 0.94, 0.92, edgecolor="none")
            cells[b, c] = right.add_patch(cell)
            texts[b, c] = right.text(j, i, "", ha="center", va="center", linespacing=1.4)
    frame = right.add_patch(Rectangle((0, 0), 0.94, 0.92, fill=False, edgecolor=ACCENT, lw=4))

    def move(data):
        point, (tiles, size) = data["point"], data["budget"]
        lines = []
        for i, (name, bar) in enumerate(bars.items()):
            share = 100 * data["shares"][name] if point else 0
            count = data["blocks"] if point else 0
            bar.set_width(share * count)
            lines += [[(share * k, i - 0.3), (share * k, i + 0.3)] for k in range(1, count + 1)]
            names[i].set_text(f"{share:.0f}% per block" if point else "")
        cuts.set_segments(lines)
        if point:
            title.set_text(f"{_count(data['blocks'])} on an SM, limited by {data['limit']}")
            said = f"{point['spilled_bytes']} bytes" if point["spilled_bytes"] else "none"
            facts.set_text(
                f"{point['registers']} of 255 registers per thread, spilled: {said}\n"
                f"{point['shared_bytes'] / KiB:.0f} KiB of shared memory; {tiles} = {size / KiB:.0f} KiB"
            )
        else:
            title.set_text("does not start")
            facts.set_text(
                f"{tiles} = {size / KiB:.0f} KiB of shared memory,\n"
                f"and a block may use {SHARED_A_BLOCK / KiB:.0f} KiB"
            )
        for cell, found in data["speeds"].items():
            if found is None:
                cells[cell].set_facecolor(PAPER)
                texts[cell].set_text("does not\nstart")
                texts[cell].set_color(INK)
                continue
            part = found["flops"] / top
            cells[cell].set_facecolor(_blend(part))
            spills = f"\nspills {found['spilled']} B" if found["spilled"] else ""
            texts[cell].set_text(f"{found['flops'] / 1e12:.0f}{spills}")
            texts[cell].set_color(PAPER if _strength(part) > 0.8 else INK)
        i, j = rows.index(data["block_q"]), keys.index(data["block_kv"])
        frame.set_xy((j - 0.47, i - 0.46))
        return [*bars.values(), cuts, *names, title, facts, *cells.values(), *texts.values(), frame]

    return move


def _count(blocks):
    return "1 block" if blocks == 1 else f"{blocks} blocks"


def _strength(part):
    return max(0.05, part**2.5)


def _blend(part):
    """From near white to the fused flow's blue: the faster, the darker."""
    blue = (int(FLOWS["flash"].colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(1 - _strength(part) * (1 - c) for c in blue)


def describe(data):
    """What the tile takes, what limits it, and the speed that was recorded."""
    where = (
        f"At d = {data['d']}, {'causal' if data['causal'] else 'full'}, tile {data['block_q']} × "
        f"{data['block_kv']}, {data['warps']} warps, {data['stages']} "
        f"{'stage' if data['stages'] == 1 else 'stages'}"
    )
    point = data["point"]
    if not point:
        return (
            f"{where}: it does not start, for it needs too much shared memory. Take a smaller tile."
        )
    spilled = point["spilled_bytes"]
    return (
        f"{where}: {point['registers']} registers per thread, "
        f"{f'{spilled} bytes spilled' if spilled else 'nothing spilled'}, "
        f"{point['shared_bytes'] / KiB:.0f} KiB of shared memory for {data['budget'][0]}. "
        f"{_count(data['blocks'])} on an SM, "
        f"limited by {data['limit']}. Recorded at N = 4,096 on an H200: {point['flops'] / 1e12:.0f} "
        f"TFLOP/s, {point['flops'] / data['best']:.0%} of the best tile for this d and mask."
    )


def forward_tiles(**initial):
    """The explorer, at other first values if given: `forward_tiles(d=64, block_q=64)`."""
    first = {"d": 128, "block_q": 128, "block_kv": 64, "warps": 4, "stages": 2}
    places = {"d": 0, "block_q": 2, "block_kv": 3, "warps": 4, "stages": 5}
    said = {"block_q": "B_r (Q rows)", "block_kv": "B_c (K, V rows)"}
    controls = {
        name: widgets.SelectionSlider(
            options=values(place), value=first[name], description=said.get(name, name)
        )
        for name, place in places.items()
    }
    mask = widgets.Dropdown(options=[("full", False), ("causal", True)], description="mask")
    controls = {"d": controls.pop("d"), "causal": mask, **controls}
    return Explorer(
        compute, draw, describe, controls, "A tile of the forward kernel on one SM of an H200",
        initial=initial, size=(11, 4.6),
    )  # fmt: skip
