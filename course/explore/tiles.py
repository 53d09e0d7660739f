"""The tile explorer: N, d, the tile and the chip → shared memory, bytes, place on the roofline."""

import ipywidgets as widgets

from course import cost, roofline
from course.draw import roofline as roof_pictures
from course.draw.theme import ACCENT, FLOWS, INK, PAPER, SOFT
from course.draw.tiles import FILLS, budget
from course.explore.explorer import Explorer
from course.hardware import GPUS, KiB
from course.units import binary, decimal

CHIPS = ("H100 SXM", "H200", "A100 80GB", "B200", "RTX 4090", "T4")
ROWS = (16, 32, 64, 128, 256)
FLOWS_SHOWN = ("naive", "tiled", "flash")
ITEMSIZE = 2  # FP16


def compute(n, d, block_q, block_kv, sram, gpu):
    """Shared memory by tile, and bytes, intensity, time and bound of each flow. sram in KiB."""
    chip = GPUS[gpu]
    flows = {}
    for flow in FLOWS_SHOWN:
        tile = dict(block_q=block_q, block_kv=block_kv) if flow == "tiled" else {}
        spent = cost.attention(n, d, flow=flow, **tile)
        flows[flow] = {
            "bytes": spent.bytes,
            "intensity": spent.intensity,
            "rate": roofline.attainable(spent.intensity, chip),
            "time": roofline.time(spent, chip),
            "bound": roofline.bound(spent, chip),
        }
    parts = budget(block_q, block_kv, d, ITEMSIZE)
    return {
        "n": n, "d": d, "block_q": block_q, "block_kv": block_kv, "gpu": chip, "flows": flows,
        "parts": parts, "used": sum(parts.values()), "limit": sram * KiB,
        "paper": cost.paper_tiles(sram * KiB, d),
    }  # fmt: skip


def fits(data):
    """Whether the three tiles fit into the shared memory chosen."""
    return data["used"] <= data["limit"]


def draw(fig, data):
    """Three panels: what fills the chip, what crosses to HBM, where it is on the roofline."""
    left, middle, right = (
        fig.add_axes(box)
        for box in (
            (0.075, 0.135, 0.105, 0.77),
            (0.275, 0.135, 0.2, 0.77),
            (0.585, 0.135, 0.4, 0.77),
        )
    )
    left.set(xlim=(-0.5, 0.5), ylim=(0, 520), xticks=(), ylabel="KiB of shared memory")
    left.set_title("On the chip", fontsize=13)
    stack = {
        name: left.bar(0, 1, width=0.9, facecolor=colour, hatch=hatch, edgecolor=INK)[0]
        for name, (colour, hatch) in FILLS.items()
    }
    names = {name: left.text(0.56, 0, "", va="center", fontsize=12) for name in stack}
    (limit,) = left.plot([], [], color=ACCENT, ls="--")
    verdict = left.text(0, 515, "", ha="center", va="top", fontsize=12, weight="bold")

    middle.set(xlim=(-0.6, 2.6), ylim=(3e4, 3e13), yscale="log")
    middle.set_xticks(range(3), [FLOWS[flow].label for flow in FLOWS_SHOWN])
    middle.set_yticks([10**p for p in (6, 9, 12)], ["1 MB", "1 GB", "1 TB"])
    middle.grid(True, axis="y")
    middle.minorticks_off()
    middle.set_xlabel("÷ and ×: against naive")
    middle.set_title("Bytes asked of HBM", fontsize=13)
    dots = [
        middle.plot([i], [1e6], ls="", marker=FLOWS[flow].marker, ms=12, mec=INK,
                    color=FLOWS[flow].colour, zorder=4)[0]
        for i, flow in enumerate(FLOWS_SHOWN)
    ]  # fmt: skip
    paper = dict(facecolor=PAPER, edgecolor="none", pad=1)
    tops = [
        middle.text(i, 1e6, "", ha="center", va="bottom", fontsize=11, linespacing=1.3, bbox=paper)
        for i in range(3)
    ]

    roof_pictures.axes(right, (1, 3e5), (1e11, 2e16))
    right.set_title("On the roofline", fontsize=13)
    right.set_ylabel("")
    roof = roof_pictures.Roof(right)
    points = {
        flow: right.plot([1], [1], ls="", marker=FLOWS[flow].marker, ms=12, mec=INK,
                         color=FLOWS[flow].colour, label=FLOWS[flow].label, zorder=4)[0]
        for flow in FLOWS_SHOWN
    }  # fmt: skip
    right.legend(loc="upper left", ncols=3, columnspacing=1, handletextpad=0.1, borderpad=0.3)
    note = right.text(0.98, 0.2, "", transform=right.transAxes, ha="right", va="bottom", color=SOFT)

    def move(data):
        low, spot = 0.0, -12.0
        for name, size in data["parts"].items():
            bar, height = stack[name], size / KiB
            bar.set(y=low, height=height)
            spot = max(low + height / 2, spot + 26)  # names keep apart, however thin the tiles
            names[name].set_y(spot)
            names[name].set_text(f"{name} {height:.0f}")
            low += height
        room = data["limit"] / KiB
        limit.set_data([-0.5, 0.5], [room, room])
        verdict.set_text(f"{low:.0f} of {room:.0f}\n" + ("fits" if fits(data) else "too large"))
        verdict.set_color(INK if fits(data) else ACCENT)
        naive = data["flows"]["naive"]["bytes"]
        for dot, top, flow in zip(dots, tops, FLOWS_SHOWN, strict=True):
            size = data["flows"][flow]["bytes"]
            dot.set_ydata([size])
            dot.set_alpha(1 if flow != "tiled" or fits(data) else 0.25)
            top.set_y(2.2 * size)
            ratio = f"\n÷ {naive / size:.3g}" if size < naive else f"\n× {size / naive:.3g}"
            top.set_text(decimal(size) + (ratio if flow != "naive" else ""))
        for flow, point in points.items():
            point.set_data([data["flows"][flow]["intensity"]], [data["flows"][flow]["rate"]])
        points["tiled"].set_alpha(1 if fits(data) else 0.25)
        note.set_text(f"tiled: {data['flows']['tiled']['intensity']:.0f} FLOP/byte")
        intensities = [data["flows"][flow]["intensity"] for flow in FLOWS_SHOWN]
        moved = roof.move(data["gpu"], points=intensities)
        return [*moved, *stack.values(), *names.values(), limit, verdict,
                *dots, *tops, *points.values(), note]  # fmt: skip

    return move


def describe(data):
    """The three panels in words."""
    tiled, naive = data["flows"]["tiled"], data["flows"]["naive"]
    parts = ", ".join(f"{name} {binary(size)}" for name, size in data["parts"].items())
    room = "it fits" if fits(data) else "it does not fit: take fewer rows"
    return (
        f"Tiles of {data['block_q']} and {data['block_kv']} rows at d = {data['d']}: {parts}, together "
        f"{binary(data['used'])} of {binary(data['limit'])}, so {room}. N = {data['n']:,}: the tiled "
        f"flow asks for {decimal(tiled['bytes'])}, the naive one for {decimal(naive['bytes'])}, at the "
        f"least {decimal(data['flows']['flash']['bytes'])} must move. Tiled is at "
        f"{tiled['intensity']:.0f} FLOP/byte, {tiled['bound']}-bound on the {data['gpu'].name} if no "
        f"cache helps. The paper's block sizes for this M: B_r = {data['paper'][0]}, "
        f"B_c = {data['paper'][1]}."
    )


def tiles(**initial):
    """The explorer, at other first values if given: `tiles(n=8192, block_q=64)`."""
    lengths = [(f"{2**p:,}", 2**p) for p in range(9, 18)]
    controls = {
        "n": widgets.SelectionSlider(options=lengths, value=4096, description="N"),
        "d": widgets.SelectionSlider(options=(32, 64, 128, 256), value=128, description="d"),
        "block_q": widgets.SelectionSlider(options=ROWS, value=128, description="B_r (Q rows)"),
        "block_kv": widgets.SelectionSlider(options=ROWS, value=64, description="B_c (K, V rows)"),
        "sram": widgets.IntSlider(227, min=16, max=256, description="M (KiB)"),
        "gpu": widgets.Dropdown(options=CHIPS, description="roof of"),
    }
    return Explorer(
        compute, draw, describe, controls, "Tiles: what fits, what crosses, what it is bound by",
        initial=initial, size=(11, 4.5),
    )  # fmt: skip
