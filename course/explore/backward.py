"""The bargain of the backward pass: store P, or compute it again → memory, bytes asked, FLOPs."""

import ipywidgets as widgets

from course import cost
from course.draw.backward import TITLES
from course.draw.theme import ACCENT, FLOWS, INK, SOFT
from course.explore.explorer import Explorer
from course.hardware import GPUS
from course.units import decimal

WAYS = ("naive", "tiled", "flash")  # P stored; P again in two kernels; in one
ITEMSIZE, SUM = 2, 4  # bytes: FP16; an FP32 part of dQ
CARD = GPUS["H100 SXM"]


def asked(way, n, d, block):
    """Bytes that one head's programs ask for, each with a tile of `block` rows of its result.

    One definition for all: what a program needs it loads itself, a tile at a time, and nothing is
    taken from a cache. block divides n.
    """
    tiles, tensor, square, row = (
        n // block,
        ITEMSIZE * n * d,
        ITEMSIZE * n * n,
        cost.STATISTIC_BYTES * n,
    )
    delta = 2 * tensor + row  # O and dO read, D written
    if way == "tiled":
        spent = cost.attention(n, d, flow="tiled", backward=True, block_q=block, block_kv=block)
        return spent.bytes
    if (
        way == "flash"
    ):  # keys stay, queries go past; each tile adds its part to dQ, then it is rounded
        columns = 2 * tensor + tiles * (2 * tensor + 2 * row) + 2 * tensor
        return delta + columns + tiles * SUM * n * d + SUM * n * d + tensor
    passes = 7 * square  # P twice, dP and dS there and back, dS once more
    operands = (
        tiles * 5 * tensor + tiles * row
    )  # dO for dV; dO, V for dP; D for dS; K for dQ; Q for dK
    return delta + passes + operands + 3 * tensor


def compute(n, d, block, heads):
    """For each way: what is kept between the passes, the bytes asked and the FLOPs, all heads."""
    operands = 4 * n * d * ITEMSIZE  # Q, K, V, O
    ways = {}
    for way in WAYS:
        extra = n * n * ITEMSIZE if way == "naive" else n * cost.STATISTIC_BYTES
        tile = dict(block_q=block, block_kv=block) if way == "tiled" else {}
        ways[way] = {
            "kept": heads * (operands + extra),
            "asked": heads * asked(way, n, d, block),
            "flops": cost.attention(n, d, flow=way, heads=heads, backward=True, **tile).flops,
        }
    return {"n": n, "d": d, "block": block, "heads": heads, "ways": ways}


PANELS = (  # key, title, how a number is written
    ("kept", "Kept until backward", decimal),
    ("asked", "Bytes asked", decimal),
    ("flops", "Arithmetic", lambda x: decimal(x, "FLOP")),
)


def draw(fig, data):
    """Three panels, three bars each, to one linear scale in each panel: the longest fills it."""
    bars, ends = {}, {}
    for i, (key, title, _) in enumerate(PANELS):
        ax = fig.add_axes((0.185 + 0.272 * i, 0.09, 0.262, 0.78))
        ax.set(xlim=(0, 1.02), ylim=(2.75, -0.5), xticks=(), yticks=())
        ax.spines["bottom"].set_visible(False)
        ax.set_title(title, fontsize=14, loc="left")
        for y, way in enumerate(WAYS):
            bars[key, way] = ax.barh(y, 0, 0.42, **FLOWS[way].bar)[0]
            ends[key, way] = ax.text(0.012, y + 0.25, "", va="top", fontsize=12.5)
    for y, way in enumerate(WAYS):
        fig.axes[0].text(
            -0.03, y, TITLES[way].replace(", ", ",\n"), ha="right", va="center", fontsize=13
        )
    fig.text(0.99, 0.02, "in each panel, lengths are to scale", ha="right", color=SOFT, fontsize=12)

    def move(data):
        for key, _, unit in PANELS:
            values = {way: data["ways"][way][key] for way in WAYS}
            for way, value in values.items():
                bars[key, way].set_width(value / max(values.values()))
                ratio = "" if way == "naive" else f"   {_times(value / values['naive'])}"
                lost = key == "kept" and value > CARD.hbm_bytes
                room = f", over {decimal(CARD.hbm_bytes)}" if lost else ""
                ends[key, way].set_text(unit(value) + room + ratio)
                ends[key, way].set_color(ACCENT if lost else INK)
        return [*bars.values(), *ends.values()]

    return move


def _times(ratio):
    return f"{ratio:.2f}×" if ratio > 0.1 else f"1/{1 / ratio:,.0f}"


def describe(data):
    """The bargain in words."""
    store, two, one = (data["ways"][way] for way in WAYS)
    fits = "fits" if store["kept"] <= CARD.hbm_bytes else "does not fit"
    return (
        f"One layer, N = {data['n']:,}, d = {data['d']}, tiles of {data['block']} rows, heads × batch "
        f"{data['heads']}, FP16. Kept until backward: {decimal(store['kept'])} with P stored, which "
        f"{fits} on an H100 with its {decimal(CARD.hbm_bytes)}; {decimal(one['kept'])} without. Asked: "
        f"{decimal(store['asked'])} with P stored, {decimal(two['asked'])} in two kernels, "
        f"{decimal(one['asked'])} in one. Arithmetic against P stored: {two['flops'] / store['flops']:g} "
        f"times in two kernels, {one['flops'] / store['flops']:g} times in one."
    )


def backward(**initial):
    """The explorer, at other first values if given: `backward(n=8192, block=64)`."""
    lengths = [(f"{2**p:,}", 2**p) for p in range(9, 18)]
    controls = {
        "n": widgets.SelectionSlider(options=lengths, value=4096, description="N"),
        "d": widgets.SelectionSlider(options=(32, 64, 128, 256), value=128, description="d"),
        "block": widgets.SelectionSlider(
            options=(16, 32, 64, 128, 256), value=128, description="rows per tile"
        ),
        "heads": widgets.SelectionSlider(
            options=[2**p for p in range(11)], value=16, description="heads × batch"
        ),
    }
    return Explorer(
        compute, draw, describe, controls, "The bargain: store P, or compute it again",
        initial=initial, size=(11, 4.2),
    )  # fmt: skip
