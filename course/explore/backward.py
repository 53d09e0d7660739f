"""The bargain of the backward pass: store P or compute it again → memory, bytes, FLOPs, time."""

import ipywidgets as widgets

from course import cost, roofline
from course.draw.backward import TITLES
from course.draw.theme import ACCENT, FLOWS, INK, PAPER, SOFT
from course.explore.explorer import Explorer
from course.hardware import GPUS
from course.units import decimal, seconds

CHIPS = ("H100 SXM", "H200", "A100 80GB", "B200", "RTX 4090", "T4")
WAYS = ("naive", "flash", "tiled")
ITEMSIZE, BLOCK = 2, 128  # FP16; rows of a tile


def compute(n, d, heads, gpu):
    """For each way: what is kept between the passes, and the cost and time of the backward pass."""
    chip = GPUS[gpu]
    operands = 4 * heads * n * d * ITEMSIZE  # Q, K, V, O
    ways = {}
    for way in WAYS:
        tile = dict(block_q=BLOCK, block_kv=BLOCK) if way == "tiled" else {}
        spent = cost.attention(n, d, flow=way, heads=heads, backward=True, **tile)
        extra = heads * (n * n * ITEMSIZE if way == "naive" else n * cost.STATISTIC_BYTES)
        ways[way] = {
            "kept": operands + extra,
            "bytes": spent.bytes,
            "flops": spent.flops,
            "time": roofline.time(spent, chip),
            "bound": roofline.bound(spent, chip),
        }
    return {"n": n, "d": d, "heads": heads, "gpu": chip, "ways": ways}


PANELS = (  # key, title, limits of the logarithmic axis, how a number is written
    ("kept", "Kept until backward", (2e4, 5e15), decimal),
    ("bytes", "Bytes asked", (4e4, 1e16), decimal),
    ("flops", "Arithmetic", (1e7, 3e18), lambda x: decimal(x, "FLOP")),
    ("time", "Time at the least", (1e-8, 1e5), seconds),
)


def draw(fig, data):
    """Four panels, three bars each: P stored, P again in one kernel, P again in two."""
    bars, tops, axes = {}, {}, {}
    for i, (key, title, limits, _) in enumerate(PANELS):
        ax = axes[key] = fig.add_axes((0.012 + 0.2495 * i, 0.2, 0.228, 0.68))
        ax.set(xlim=(-0.6, 2.6), yscale="log", ylim=limits, yticks=(), xticks=())
        ax.minorticks_off()
        ax.set_title(title, fontsize=14)
        for x, way in enumerate(WAYS):
            bars[key, way] = ax.bar(x, 1, 0.86, bottom=limits[0], **FLOWS[way].bar)[0]
            tops[key, way] = ax.text(
                x, 1, "", ha="center", va="bottom", fontsize=12, linespacing=1.1,
                bbox=dict(facecolor=PAPER, edgecolor="none", pad=1),
            )  # fmt: skip
    (limit,) = axes["kept"].plot([], [], color=ACCENT, ls="--", lw=1.8)
    room = axes["kept"].text(
        0.5,
        0.99,
        "",
        transform=axes["kept"].transAxes,
        color=ACCENT,
        fontsize=12,
        ha="center",
        va="top",
    )
    fig.text(0.985, 0.06, "logarithmic scales", ha="right", color=SOFT, fontsize=12)
    fig.legend(
        [bars["kept", way] for way in WAYS], [TITLES[way] for way in WAYS],
        loc="lower left", ncols=3, frameon=False, fontsize=13, bbox_to_anchor=(0.005, 0.015),
    )  # fmt: skip

    def move(data):
        for key, _, (low, _), unit in PANELS:
            for way in WAYS:
                value = data["ways"][way][key]
                bars[key, way].set_height(value - low)
                words = unit(value)
                if key == "time":
                    words += "\n" + data["ways"][way]["bound"]
                elif key == "flops":
                    words = words.replace(" ", "\n")
                tops[key, way].set_y(1.3 * value)
                tops[key, way].set_text(words)
                lost = key == "kept" and value > data["gpu"].hbm_bytes
                tops[key, way].set_color(ACCENT if lost else INK)
        capacity = data["gpu"].hbm_bytes
        limit.set_data([-0.6, 2.6], [capacity, capacity])
        room.set_text(f"- - -  {data['gpu'].name}: {decimal(capacity)}")
        return [*bars.values(), limit, *tops.values(), room]

    return move


def describe(data):
    """The bargain in words."""
    store, one, two = (data["ways"][way] for way in WAYS)
    fits, all_fit = (w["kept"] <= data["gpu"].hbm_bytes for w in (store, one))
    cached = ", if no cache helps" if two["bound"] == "memory" else ""
    return (
        f"One layer, N = {data['n']:,}, d = {data['d']}, heads × batch {data['heads']}, FP16, on the "
        f"{data['gpu'].name}. Kept until backward: {decimal(store['kept'])} with P stored "
        f"({_fits(fits)}), {decimal(one['kept'])} without ({_fits(all_fit)}). Arithmetic: "
        f"{one['flops'] / store['flops']:g} times as much in one kernel, "
        f"{two['flops'] / store['flops']:g} times in two. Time at the least: {seconds(store['time'])} "
        f"with P stored ({store['bound']}-bound), {seconds(one['time'])} in one kernel "
        f"({one['bound']}-bound), {seconds(two['time'])} in two ({two['bound']}-bound{cached})."
    )


def _fits(it_does):
    return "fits" if it_does else "does not fit"


def backward(**initial):
    """The explorer, at other first values if given: `backward(n=8192, heads=32)`."""
    lengths = [(f"{2**p:,}", 2**p) for p in range(9, 18)]
    controls = {
        "n": widgets.SelectionSlider(options=lengths, value=4096, description="N"),
        "d": widgets.SelectionSlider(options=(32, 64, 128, 256), value=128, description="d"),
        "heads": widgets.SelectionSlider(
            options=[2**p for p in range(11)], value=16, description="heads × batch"
        ),
        "gpu": widgets.Dropdown(options=CHIPS, description="GPU"),
    }
    return Explorer(
        compute, draw, describe, controls, "The bargain: store P, or compute it again",
        initial=initial, size=(11, 4.3),
    )  # fmt: skip
