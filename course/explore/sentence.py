"""Attention on a sentence: P as a heat map, and one query's row of S, of P and of O."""

from __future__ import annotations

from functools import cache

import ipywidgets as widgets
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from course import letters
from course.draw.theme import FLOWS, INK, PAPER, SOFT
from course.explore.explorer import Explorer

SENTENCES = ("Twinkle, twinkle, little bat!", "Will you, won't you, will you")  # of one length
N = len(SENTENCES[0])
SQUARE = FLOWS["naive"].colour  # as S and P have in every figure
HEAT = LinearSegmentedColormap.from_list("heat", [PAPER, SQUARE, "#5a2800"])
SIGNED, MOST = (
    colormaps["PRGn"],
    1.4,
)  # colours of numbers below and above 0, and the largest of them in V
SCORES = (-13, 11)  # the axis of S


def compute(sentence, query):
    """Q, K, V, S, P and O of a sentence, and the place of the query, counted from 0."""
    q, k, v = letters.rows(sentence)
    s = q @ k.T / np.sqrt(letters.D)
    s[np.triu_indices(N, 1)] = -np.inf  # no letter sees a later one
    p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    return {"text": sentence, "at": query - 1, "q": q, "k": k, "v": v, "s": s, "p": p, "o": p @ v}


def draw(fig, data):
    """Left the square P; right, under the same letters, a row of S, the row of P, V and the output."""
    square = fig.add_axes((0.03, 0.035, 0.4, 0.84), xlim=(0, N), ylim=(N, 0), xticks=(), yticks=())
    square.set_title(f"P: N × N, here {N} × {N}; the darker, the more", loc="left", pad=24,
                     fontsize=13)  # fmt: skip
    sharp = dict(aspect="auto", interpolation="nearest")
    heat = square.imshow(_painted(data["p"], HEAT), extent=(0, N, N, 0), **sharp)
    square.text(0.97, 0.94, "empty: letters that come\nlater are hidden", color=SOFT, fontsize=12,
                transform=square.transAxes, ha="right", va="top")  # fmt: skip
    row = square.add_patch(Rectangle((0, 0), N, 1, fill=False, ec=INK, lw=2.2, clip_on=False))

    left, width = 0.48, 0.43
    panel = dict(xlim=(0, N), xticks=())
    scores = fig.add_axes((left, 0.68, width, 0.195), ylim=SCORES, yticks=[-10, 0, 10], **panel)
    weights = fig.add_axes((left, 0.41, width, 0.175), ylim=(0, 1), yticks=[0, 1], **panel)
    values = fig.add_axes((left, 0.235, width, 0.09), yticks=(), **panel)
    shares = fig.add_axes((left, 0.035, width, 0.09), yticks=(), **panel)
    output = fig.add_axes((0.95, 0.035, 0.02, 0.09), xticks=(), yticks=())
    named = dict(loc="left", fontsize=13)
    scores.set_title("the query's row of S: a score per key", pad=24, **named)
    scores.axhline(0, color=SOFT, lw=0.8)
    weights.set_title("softmax → its row of P: adds up to 1", **named)
    values.set_title(f"V on its side: {letters.D} numbers per letter, N × d", **named)
    shares.set_title("each value times its weight; added up →", **named)
    output.set_title("O", fontsize=13)

    edges = np.arange(N + 1)
    bars = {
        name: ax.stairs(np.zeros(N), edges, fill=True, color=SQUARE, baseline=0)
        for name, ax in (("s", scores), ("p", weights))
    }
    most = weights.text(0, 0, "", fontsize=12, va="top", weight="bold")
    blank = np.zeros((1, 1, 4))
    images = {
        name: ax.imshow(blank, extent=(0, n, letters.D, 0), **sharp)
        for name, ax, n in (("v", values, N), ("share", shares, N), ("o", output, 1))
    }
    frames = [ax.axvspan(0, 1, fc="none", ec=INK, lw=1.6, clip_on=False, zorder=4)
              for ax in (scores, weights)]  # fmt: skip
    names = {
        where: fig.add_artist(PathPatch(Path([(0, 0)]), fc=INK, lw=0, clip_on=False,
                                        transform=fig.dpi_scale_trans))
        for where in ("rows", "columns", "keys")
    }  # fmt: skip
    places = {"rows": _beside(fig, square), "columns": _above(fig, square),
              "keys": _above(fig, scores)}  # fmt: skip

    def move(data):
        at, s, p, v = data["at"], data["s"], data["p"], data["v"]
        for where, patch in names.items():
            patch.set_path(_spelled(data["text"], places[where]))
        heat.set_data(_painted(np.where(np.isinf(s), np.nan, p), HEAT))
        row.set_y(at)
        for frame in frames:
            frame.set_x(at)
        bars["s"].set_data(np.where(np.isfinite(s[at]), s[at], 0))
        bars["p"].set_data(p[at])
        best = int(p[at].argmax())
        late = best > 0.8 * N
        most.set(text=f"{p[at, best]:.0%}", x=best - 0.3 if late else best + 1.3,
                 y=max(p[at, best], 0.25), ha="right" if late else "left")  # fmt: skip
        for name, numbers in (("v", v), ("share", p[at, :, None] * v), ("o", data["o"][at, None])):
            images[name].set_data(_painted(0.5 + numbers.T / (2 * MOST), SIGNED))
        return [heat, row, *names.values(), *bars.values(), most, *frames, *images.values()]

    return move


def _above(fig, ax):
    """Where letters stand above the columns of an Axes: inches from the corner of the figure."""
    box, (wide, high) = ax.get_position(), fig.get_size_inches()
    xs = box.x0 + box.width * (np.arange(N) + 0.5) / N
    return tuple((x * wide, box.y1 * high + 0.06) for x in xs)


def _beside(fig, ax):
    """Where letters stand to the left of its rows."""
    box, (wide, high) = ax.get_position(), fig.get_size_inches()
    ys = box.y1 - box.height * (np.arange(N) + 0.5) / N
    return tuple((box.x0 * wide - 0.12, y * high - 0.045) for y in ys)


def _painted(shares, colours):
    """RGBA of numbers from 0 to 1, see-through where there is none: painted here, it moves faster."""
    return colours(np.ma.masked_invalid(shares), bytes=True)


@cache
def _spelled(text, places):
    """The outlines of a text, a letter centred on each place. One path moves faster than 29 texts."""
    font, paths = FontProperties(family="DejaVu Sans"), []
    for letter, (x, y) in zip(text.replace(" ", "␣"), places, strict=True):
        glyph = TextPath((0, 0), letter, size=12 / 72, prop=font)
        box = glyph.get_extents()
        there = glyph.vertices + np.array([x - (box.x0 + box.x1) / 2, y])
        paths.append(Path(there, glyph.codes))
    return Path.make_compound_path(*paths)


def describe(data):
    """Where the query looks, and what the tables measure, in words."""
    text, at, p = data["text"], data["at"], data["p"][data["at"]]
    order = p.argsort()[::-1]
    looks = " and ".join(
        f"{p[j]:.0%} to “{text[j]}” in place {j + 1}".replace("“ ”", "a space")
        for j in sorted(order[: 1 if p[order[0]] > 0.5 else 2])
    )
    return (
        f"Query {at + 1}, the end of “{text[: at + 1]}”, gives {looks}. Its {at + 1} weights add up "
        f"to {p.sum():.2f}. S and P are {N} × {N}; Q, K, V and O are {N} × {letters.D}."
    )


def sentence(**initial):
    """The explorer, at other first values if given: `sentence(query=20)`."""
    controls = {
        "sentence": widgets.Dropdown(options=SENTENCES, description="sentence"),
        "query": widgets.IntSlider(12, min=1, max=N, description="query, letter"),
    }
    title = "Attention on a sentence: weights, one row of S and of P, values and output"
    return Explorer(compute, draw, describe, controls, title, initial=initial, play="query",
                    size=(11, 5.2))  # fmt: skip
