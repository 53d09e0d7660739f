"""The ring explorer: N, d, heads, processes, link → is the wire hidden behind the tile, who waits."""

import ipywidgets as widgets

from course import cost, roofline
from course.draw.theme import ACCENT, FLOWS, INK, LEVELS
from course.explore.explorer import Explorer
from course.hardware import GPUS, LINKS
from course.units import decimal, seconds

CHIPS = ("H100 SXM", "A100 80GB", "B200")
BARS = ("tile", "half", "wire")  # every key seen; causal zigzag; K and V


def compute(n, d, heads, group, processes, gpu, link):
    """One step of a forward pass in FP16: tile and message in seconds, and the shares of idle time."""
    chip, wire = GPUS[gpu], LINKS[link]
    kv_heads = max(heads // group, 1)
    rows = n // processes
    tile = cost.attention(rows, d, flow="ideal", heads=heads, kv_heads=kv_heads)
    message = 2 * rows * kv_heads * d * 2 if processes > 1 else 0
    times = {
        "tile": tile.flops / chip.peak_for("fp16"),
        "half": tile.flops / 2 / chip.peak_for("fp16"),
        "wire": message / wire.bandwidth,
    }
    return {
        "n": n, "processes": processes, "rows": rows, "gpu": chip, "link": wire, "message": message,
        "times": times, "needed": roofline.link_ridge(chip, wire) * kv_heads / heads,
        "hidden": {name: times["wire"] <= times[name] for name in ("tile", "half")},
        "idle": {x: cost.ring_idle(n, processes, x, causal=True) for x in cost.LAYOUTS},
    }  # fmt: skip


def draw(fig, data):
    """Left the times of one step, on one linear axis; right the idle shares of a causal ring."""
    left, right = fig.add_axes((0.19, 0.16, 0.42, 0.68)), fig.add_axes((0.73, 0.16, 0.25, 0.68))
    left.set(xlim=(0, 1.42), ylim=(-0.6, 2.6), xticks=())
    left.set_yticks([2, 1, 0], ["tile, full", "tile, causal\n(zigzag)", "K and V\non the wire"])
    left.set_title("One step: two things at once", fontsize=13, loc="left")
    right.set(xlim=(0, 70), ylim=(-0.6, 1.6), xlabel="idle, % of the time")
    right.set_yticks([1, 0], ["ring", "zigzag"])
    right.set_title("Causal: who waits", fontsize=13, loc="left")
    work, link = FLOWS["flash"], LEVELS["host"]
    bars = {
        name: left.barh(
            2 - i, 0.1, height=0.62, edgecolor=INK,
            facecolor=link.colour if name == "wire" else work.colour,
            hatch=link.hatch if name == "wire" else "",
        )[0]
        for i, name in enumerate(BARS)
    }  # fmt: skip
    said = {name: left.text(1, 2 - i, "", va="center") for i, name in enumerate(BARS)}
    idle = {
        name: right.barh(1 - i, 1, height=0.5, facecolor=ACCENT, hatch="//" * i, edgecolor=INK)[0]
        for i, name in enumerate(cost.LAYOUTS)
    }
    shares = [right.text(1, 1 - i, "", va="center") for i in range(2)]

    def move(data):
        longest = max(data["times"].values())
        for name, bar in bars.items():
            share = data["times"][name] / longest
            bar.set_width(share)
            said[name].set_x(share + 0.02)
            said[name].set_text(seconds(data["times"][name]))
        for text, (name, bar) in zip(shares, idle.items(), strict=True):
            percent = 100 * data["idle"][name]
            bar.set_width(percent)
            text.set_x(percent + 1.5)
            text.set_text(f"{percent:.0f} %")
        return [*bars.values(), *said.values(), *idle.values(), *shares]

    return move


def describe(data):
    """Both pictures in words."""
    if data["processes"] == 1:
        return "One GPU holds it all: nothing travels, nobody waits."
    hidden = {
        (True, True): "The wire is hidden behind the tile, causal or not",
        (True, False): "The wire is hidden behind a full tile, and not behind a causal one",
        (False, False): "The wire takes longer than the tile: every step waits for it",
    }[data["hidden"]["tile"], data["hidden"]["half"]]
    return (
        f"{data['n']:,} tokens on {data['processes']} × {data['gpu'].name}: each step sends "
        f"{decimal(data['message'])} in {seconds(data['times']['wire'])} by {data['link'].name} and "
        f"computes at the peak for {seconds(data['times']['tile'])}. {hidden}: {data['rows']:,} tokens "
        f"are at home, and {data['needed']:,.0f} are needed, twice as many if causal. A causal ring "
        f"idles {data['idle']['ring']:.0%} of its time, zigzag {data['idle']['zigzag']:.0%}."
    )


def ring(**initial):
    """The explorer, at other first values if given: `ring(link="PCIe 5.0 ×16", processes=4)`."""

    def powers(description, least, most, value):
        options = [2**e for e in range(least, most + 1)]
        return widgets.SelectionSlider(options=options, value=value, description=description)

    controls = {
        "n": powers("tokens N", 11, 21, 65536),
        "d": widgets.SelectionSlider(options=[64, 128, 256], value=128, description="d"),
        "heads": powers("heads", 0, 7, 32),
        "group": widgets.SelectionSlider(
            options=[1, 2, 4, 8], value=1, description="heads per K/V"
        ),
        "processes": powers("GPUs", 0, 6, 8),
        "gpu": widgets.Dropdown(options=list(CHIPS), description="GPU"),
        "link": widgets.Dropdown(options=list(LINKS), value="NVLink 4", description="link"),
    }
    return Explorer(
        compute, draw, describe, controls, "The ring: is the wire hidden, and who waits",
        initial=initial, size=(10, 3.6),
    )  # fmt: skip
