"""The serving explorer: model, formats, GPU, batch, context → memory by part, time of a token."""

from dataclasses import replace

import ipywidgets as widgets

from course import roofline
from course.draw.theme import ACCENT, FLOWS, INK, LEVELS, SOFT
from course.explore.explorer import Explorer
from course.hardware import GB, GPUS
from course.serving import CACHE_FORMATS, FORMATS, MODELS, step
from course.serving import memory as memory_of
from course.units import decimal, seconds

CHIPS = ("H100 SXM", "H200", "A100 80GB", "B200", "RTX 4090", "T4")
OWN = "my own device"
PARTS = {"weights": LEVELS["hbm"], "cache": LEVELS["shared"]}


def device(name, bandwidth, memory):
    """A GPU of the table, or the reader's own: GB/s and GB typed in, its arithmetic that of a T4.

    A phone's maker prints neither; what an operating system or a measurement says may stand here.
    """
    if name != OWN:
        return GPUS[name]
    return replace(GPUS["T4"], name=OWN, bandwidth=bandwidth * GB, hbm_bytes=round(memory * GB))


def compute(model, form, cache, gpu, batch, context, bandwidth, memory):
    """Memory by part, the time of a step by what takes it, tokens/s of all and of one sequence."""
    chip, chosen = device(gpu, bandwidth, memory), MODELS[model]
    spent = step(chosen, batch=batch, context=context, form=form, cache=cache)
    weights = step(chosen, batch=batch, form=form).read
    time = roofline.time(spent, chip, "fp16")
    return {
        "model": chosen, "form": form, "gpu": chip, "batch": batch, "context": context,
        "parts": memory_of(chosen, chip, batch=batch, context=context, form=form, cache=cache),
        "times": {
            "weights": weights / chip.bandwidth,
            "cache": (spent.read - weights) / chip.bandwidth,
            "compute": spent.flops / chip.peak_for("fp16"),
        },
        "time": time, "rate": batch / time, "intensity": spent.intensity,
        "bound": roofline.bound(spent, chip, "fp16"),
    }  # fmt: skip


def full(data):
    """Whether weights and cache take more than the device has."""
    return data["parts"]["free"] < 0


def draw(fig, data):
    """Two pictures: what fills the memory, and what the time of a token goes into."""
    left, right = fig.add_axes((0.115, 0.6, 0.86, 0.27)), fig.add_axes((0.115, 0.14, 0.86, 0.27))
    left.set(xlim=(0, 1.6), ylim=(-0.5, 0.5), yticks=())
    left.set_xticks([0, 0.5, 1, 1.5], ["0", "½", "full", "1½"])
    left.set_title("Memory of the device", fontsize=13, loc="left")
    right.set(xlim=(0, 1.6), ylim=(-0.6, 1.6))
    right.set_yticks([1, 0], ["bytes", "FLOPs"])
    right.set_xticks([0, 0.5, 1, 1.5], ["0", "½", "a token", "1½"])
    right.set_title("Time of one step: the longer of the two", fontsize=13, loc="left")
    (limit,) = left.plot([1, 1], [-0.5, 0.5], color=ACCENT, ls="--")
    stores = {
        part: left.barh(0, 0.1, height=0.8, facecolor=style.colour, hatch=style.hatch, edgecolor=INK,
                        label=part)[0]
        for part, style in PARTS.items()
    }  # fmt: skip
    legend = left.legend(
        loc="upper right", ncols=2, fontsize=11, bbox_to_anchor=(1, 1.32), frameon=False
    )
    verdict = left.text(0.98, 0.58, "", ha="right", va="bottom", color=ACCENT, weight="bold")
    walks = {
        part: right.barh(
            1, 0.1, height=0.7, facecolor=style.colour, hatch=style.hatch, edgecolor=INK
        )[0]
        for part, style in PARTS.items()
    }
    work = right.barh(0, 0.1, height=0.7, **FLOWS["flash"].bar | {"edgecolor": INK})[0]
    said = [right.text(1, y, "", va="center", fontsize=12) for y in (1, 0)]
    rate = right.text(1.6, 1.66, "", ha="right", va="bottom", fontsize=12, weight="bold")

    def move(data):
        size, start = data["gpu"].hbm_bytes, 0.0
        for part, bar in stores.items():
            share = data["parts"][part] / size
            bar.set(x=min(start, 1.6), width=max(min(share, 1.6 - start), 0))
            start += share
        verdict.set_text("full: it does not fit" if full(data) else "")
        times, start = data["times"], 0.0
        for part, bar in walks.items():
            bar.set(x=start, width=times[part] / data["time"])
            start += times[part] / data["time"]
        work.set_width(times["compute"] / data["time"])
        for text, taken in zip(
            said, (times["weights"] + times["cache"], times["compute"]), strict=True
        ):
            text.set_x(taken / data["time"] + 0.02)
            text.set_text(seconds(taken))
        rate.set_text(f"{data['rate']:,.0f} tokens/s in all, {1 / data['time']:,.0f} for each")
        rate.set_color(SOFT if full(data) else INK)
        return [limit, *stores.values(), verdict, *walks.values(), work, *said, rate, legend]

    return move


def describe(data):
    """Both pictures in words."""
    parts, gpu = data["parts"], data["gpu"]
    fits = (
        f"Together they pass its {decimal(gpu.hbm_bytes)}: it does not fit, and the times below are "
        "what it would take if it did."
        if full(data)
        else f"{decimal(parts['free'])} of {decimal(gpu.hbm_bytes)} stay free."
    )
    waits = "the memory" if data["bound"] == "memory" else "the arithmetic"
    return (
        f"{data['model'].name} in {data['form']} on {gpu.name}: weights {decimal(parts['weights'])}, "
        f"cache {decimal(parts['cache'])} for {data['batch']:,} × {data['context']:,} tokens. {fits} "
        f"A step takes {seconds(data['time'])} at the least and waits for {waits} "
        f"({data['intensity']:.3g} FLOP/byte): {data['rate']:,.0f} tokens/s in all, "
        f"{1 / data['time']:,.0f} for each sequence."
    )


def serving(**initial):
    """The explorer, at other first values if given: `serving(model="Llama 3.1 70B", batch=8)`."""
    controls = {
        "model": widgets.Dropdown(options=list(MODELS), value="Llama 3.1 8B", description="model"),
        "form": widgets.Dropdown(options=list(FORMATS), description="weights in"),
        "cache": widgets.Dropdown(options=list(CACHE_FORMATS), description="cache in"),
        "gpu": widgets.Dropdown(options=[*CHIPS, OWN], description="device"),
        "batch": widgets.SelectionSlider(options=[2**e for e in range(11)], description="batch"),
        "context": widgets.SelectionSlider(
            options=[0, *(2**e for e in range(9, 18))], value=8192, description="context"
        ),
        "bandwidth": widgets.FloatLogSlider(60, min=1, max=4, step=0.01, description="mine: GB/s"),
        "memory": widgets.FloatLogSlider(8, min=0, max=3, step=0.01, description="mine: GB"),
    }
    return Explorer(
        compute, draw, describe, controls, "Serving: what fills the memory, what a token waits for",
        initial=initial, size=(10, 4.2),
    )  # fmt: skip
