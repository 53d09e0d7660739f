"""Step through the tiled loop: what is on the chip, what m, ℓ and o are, what has crossed to HBM."""

import functools

import ipywidgets as widgets
import numpy as np
from matplotlib.patches import Rectangle

from course import attention, cost
from course.draw.theme import FLOWS, GRID, INK, LEVELS, PAPER, SOFT
from course.explore.explorer import Explorer
from course.explore.online import number
from course.hbm import Hbm
from course.softmax import State, update

# Query 1 meets the scores 1, 3 | 4, 2 of the worked example first, with the values 1, 2, 3, 4.
Q = np.array([[1.0, 0.5, 0.0, 2.0, -2.0, -1.0, 3.0, -0.5]]).T
K = np.array([[1.0, 3.0, 4.0, 2.0, 0.0, 2.0, -1.0, 1.0]]).T
V = np.arange(1.0, 9)[:, None]
N, D = Q.shape
SIZES = (1, 2, 4, 8)
TENSORS = ("Q", "K", "V", "O")
NAIVE = cost.attention(N, D, flow="naive").bytes


class Log(Hbm):
    """A counted memory that notes each tile that passes, and the bytes counted by then."""

    def __init__(self):
        super().__init__()
        self.passed = []

    def load(self, name, tile, **options):
        """As `Hbm.load`."""
        tile = super().load(name, tile, **options)
        self._note(name, tile)
        return tile

    def store(self, name, tile, value, **options):
        """As `Hbm.store`."""
        super().store(name, tile, value, **options)
        self._note(name, value)

    def _note(self, name, tile):
        counted = self.read_by_name + self.written_by_name
        self.passed.append((name, tile.reshape(-1, D), {t: counted[t] for t in TENSORS}))


@functools.cache
def trace(block_q, block_kv):
    """Every step of `course.attention.flash`: a Q tile comes, K and V tiles go past it, O is stored.

    The bytes are those that its counted memory has by then; m, ℓ, o are `course.softmax.update` of
    the tiles that came.
    """
    log, nothing = Log(), slice(0, 0)
    attention.flash(Q, K, V, block_q=block_q, block_kv=block_kv, hbm=log)
    step = {"does": "start", "rows": nothing, "cols": nothing, "alpha": (), "out": (),
            "state": State.empty(D, (0,)), "counted": dict.fromkeys(TENSORS, 0)}  # fmt: skip
    steps = [step]
    for name, tile, counted in log.passed:
        if name == "K":
            k = tile  # V comes right behind it
            continue
        step = step | {"does": name, "counted": counted, "alpha": ()}
        if name == "Q":
            q, start = tile, step["rows"].stop
            step["rows"], step["cols"] = slice(start, start + len(q)), nothing
            step["state"] = State.empty(D, (len(q),))
        elif name == "V":
            before, start = step["state"], step["cols"].stop
            step["cols"] = slice(start, start + len(tile))
            step["state"] = update(before, q @ k.T * D**-0.5, tile)
            step["alpha"] = np.exp(before.m - step["state"].m)
        else:
            step["out"] = (*step["out"], *tile[:, 0])
        steps.append(step)
    return steps


def last(values):
    """The number of the last step."""
    return len(trace(values["block_q"], values["block_kv"])) - 1


def compute(block_q, block_kv, step):
    """One moment of the loop, and the bytes when it has ended."""
    steps = trace(block_q, block_kv)
    step = min(step, len(steps) - 1)
    return steps[step] | {
        "block_q": block_q, "block_kv": block_kv, "step": step, "steps": len(steps) - 1,
        "scores": Q @ K.T * D**-0.5, "in_all": steps[-1]["counted"],
    }  # fmt: skip


def happens(data):
    """What this step does, in words."""
    rows, cols = _rows(data["rows"]), _rows(data["cols"])
    i, j = data["rows"].start // data["block_q"] + 1, data["cols"].start // data["block_kv"] + 1
    return {
        "start": "all is in HBM",
        "Q": f"load Q {rows}; m = −∞, ℓ = 0, o = 0",
        "V": f"load K and V {cols}, tile ({i}, {j}): s, then m, ℓ, o",
        "O": f"divide o by ℓ, store O {rows}",
    }[data["does"]]


def _rows(part):
    """The rows of a slice as a reader counts them: 3, or 3 to 4."""
    first, last = part.start + 1, part.stop
    return f"{first}" if first == last else f"{first} to {last}"


def draw(fig, data):
    """Left the matrices with the tiles on the chip, right m, ℓ, o of each row and the bytes."""
    left = fig.add_axes((0.005, 0.015, 0.6, 0.9), xlim=(-2.2, N + 3.1), ylim=(N + 0.1, -3.05))
    side = fig.add_axes((0.63, 0.45, 0.365, 0.465), xlim=(0, 1), ylim=(1, 0))
    low = fig.add_axes((0.67, 0.06, 0.26, 0.25))
    heading = fig.text(0.015, 0.955, "", weight="bold", fontsize=14, va="center")
    left.axis("off")
    side.axis("off")

    def cell(x, y, width=1.0, ink=INK):
        left.add_patch(Rectangle((x, y), width, 1, facecolor="none", edgecolor=GRID))
        return left.text(
            x + width / 2, y + 0.5, "", ha="center", va="center", fontsize=12, color=ink
        )

    texts = {
        "Q": [cell(-1.7, i) for i in range(N)],
        "K": [cell(i, -1.5) for i in range(N)],
        "V": [cell(i, -2.8) for i in range(N)],
        "O": [cell(N + 0.7, i, 1.9) for i in range(N)],
    }
    scores = [[cell(j, i, ink=PAPER) for j in range(N)] for i in range(N)]
    names = {
        "Q": (-1.2, -0.4),
        "Kᵀ": (-0.4, -1),
        "Vᵀ": (-0.4, -2.3),
        "S": (-0.35, 0.5),
        "O": (N + 1.65, -0.4),
    }
    for name, at in names.items():
        left.text(*at, name, ha="center", va="center", weight="bold", fontsize=15)
    for name, values in {"Q": Q, "K": K, "V": V}.items():
        for text, value in zip(texts[name], values[:, 0], strict=True):
            text.set_text(_short(value))

    def patch(colour, edge=INK):
        return left.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, edgecolor=edge, lw=2))

    above, before = patch(GRID, "none"), patch(GRID, "none")
    tiles = {name: patch(LEVELS["shared"].colour) for name in "QKV"}
    tiles |= {"S": patch(FLOWS["flash"].colour), "O": patch(PAPER)}
    side.legend(
        [tiles["Q"], tiles["S"], above], ["on the shelf", "scores, now", "used, thrown away"],
        loc="upper center", bbox_to_anchor=(0.48, 0.06), ncols=3, fontsize=11, handlelength=0.9,
        handletextpad=0.4, columnspacing=0.8, frameon=False,
    )  # fmt: skip

    side.set_title("On the chip, for each row of the Q tile", fontsize=13)
    places = {"row": 0.1, "m": 0.3, "α": 0.52, "ℓ": 0.74, "o": 0.98}
    for name, x in places.items():
        side.text(x, 0.02, name, ha="right", va="top", weight="bold")
    columns = {
        name: side.text(x, 0.13, "", ha="right", va="top", linespacing=1.25, fontsize=12)
        for name, x in places.items()
    }
    low.set(xlim=(0, 2 * N * N), ylim=(3.5, -0.5), xticks=range(0, 2 * N * N + 1, 32))
    low.set_yticks(range(4), TENSORS)
    low.tick_params(axis="y", length=0)
    title = low.set_title("", fontsize=13)
    ends = low.barh(range(4), 0, height=0.7, facecolor="none", edgecolor=SOFT, ls="--")
    bars = low.barh(range(4), 0, height=0.7, facecolor=LEVELS["hbm"].colour)
    sizes = [low.text(0, i, "", va="center", fontsize=12) for i in range(4)]

    def move(data):
        rows, cols, state = data["rows"], data["cols"], data["state"]
        done = data["does"] == "O"
        if done:  # the last tiles of K and V have gone
            cols = slice(N, N)
        tall, wide = rows.stop - rows.start, cols.stop - cols.start
        heading.set_text(f"Step {data['step']} of {data['steps']}: {happens(data)}")
        above.set_bounds(0, 0, N, rows.start)
        before.set_bounds(0, rows.start, cols.start, tall)
        tiles["Q"].set_bounds(-1.7, rows.start, 1, tall)
        tiles["K"].set_bounds(cols.start, -1.5, wide, 1)
        tiles["V"].set_bounds(cols.start, -2.8, wide, 1)
        tiles["S"].set_bounds(cols.start, rows.start, wide, tall)
        tiles["O"].set_bounds(N + 0.7, rows.start, 1.9 * done, tall)
        for part in (above, before, *tiles.values()):
            part.set_visible(part.get_width() * part.get_height() > 0)
        for i in range(N):
            held, passing = rows.start <= i < rows.stop, cols.start <= i < cols.stop
            texts["Q"][i].set_color(INK if held else SOFT)
            texts["K"][i].set_color(INK if passing else SOFT)
            texts["V"][i].set_color(INK if passing else SOFT)
            texts["O"][i].set_text(number(data["out"][i], 3) if i < len(data["out"]) else "")
            for j in range(N):
                now = held and cols.start <= j < cols.stop
                scores[i][j].set_text(_short(data["scores"][i, j]) if now else "")
        said = {
            "row": range(rows.start + 1, rows.stop + 1),
            "m": map(_short, state.m),
            "α": map(number, data["alpha"]),
            "ℓ": map(number, state.l),
            "o": map(number, state.o[:, 0]),
        }
        for name, column in columns.items():
            column.set_text("\n".join(map(str, said[name])))
        for name, bar, end, size in zip(TENSORS, bars, ends, sizes, strict=True):
            bar.set_width(data["counted"][name])
            end.set_width(data["in_all"][name])
            size.set_text(f"{data['counted'][name]}")
            size.set_x(data["in_all"][name] + 2)
        title.set_text(f"{crossed(data)} bytes have crossed")
        return [heading, above, before, *tiles.values(), *columns.values(), *ends, *bars, *sizes,
                title, *(text for group in (*texts.values(), *scores) for text in group)]  # fmt: skip

    return move


def _short(x):
    return number(x, 0 if float(x).is_integer() else 1)


def crossed(data):
    """The bytes so far and in all: "20 of 160"."""
    return f"{sum(data['counted'].values())} of {sum(data['in_all'].values())}"


def describe(data):
    """The step in words."""
    counted = ", ".join(f"{name} {size}" for name, size in data["counted"].items())
    row = ""
    if data["does"] in ("V", "O"):
        m, l, o = (float(np.ravel(part)[0]) for part in data["state"])
        row = f" Row {data['rows'].start + 1}: m = {_short(m)}, ℓ = {number(l)}, o = {number(o)}."
    return (
        f"N = {N}, d = {D}, B_r = {data['block_q']}, B_c = {data['block_kv']}. "
        f"Step {data['step']} of {data['steps']}: {happens(data)}.{row} {crossed(data)} bytes have "
        f"crossed ({counted}). Naive attention would move {NAIVE}."
    )


def stepper(**initial):
    """The explorer, at other first values if given: `stepper(block_q=4, step=3)`."""
    controls = {
        "block_q": widgets.SelectionSlider(options=SIZES, value=2, description="B_r (Q rows)"),
        "block_kv": widgets.SelectionSlider(options=SIZES, value=2, description="B_c (K, V rows)"),
        "step": widgets.IntSlider(0, min=0, max=24, description="step"),
    }
    return Explorer(
        compute, draw, describe, controls, "The tiled loop, step by step",
        initial=initial, play="step", ends={"step": last}, size=(11, 5),
    )  # fmt: skip
