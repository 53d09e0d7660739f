"""Step through a row, block by block, and watch (m, ℓ, o) move. Also with a rule that is broken."""

import ipywidgets as widgets
import numpy as np

from course.draw.softmax import NOW, SEEN, blocks
from course.draw.theme import ACCENT, GRID, INK, PAPER, SOFT
from course.explore.explorer import Explorer
from course.softmax import safe_softmax

KEYS = 12
_random = np.random.default_rng(5).normal(0, 3, KEYS).round(1)
ROWS = {
    "worked example": np.array([1.0, 3.0, 4.0, 2.0]),
    "random": _random,
    "rising": np.arange(KEYS) - 6.0,
    "falling": 5.0 - np.arange(KEYS),
    "all equal": np.full(KEYS, 2.0),
    "one huge score": np.where(np.arange(KEYS) == 6, 1000.0, _random),
    "far below zero": _random - 900,
    "−∞ first": np.where(np.arange(KEYS) < 5, -np.inf, _random),
    "steep fall": np.repeat([800.0, 0.0, -800.0], 4),
}
RIGHT, NO_ALPHA, FROM_ZERO, OWN = "right", "no α", "m starts at 0", "block's own maximum"
RULES = (RIGHT, NO_ALPHA, FROM_ZERO, OWN)
LOW, HIGH = -9.0, 9.0  # of the score axis; what lies beyond is drawn at the edge and labelled


def compute(row, block, step, rule):
    """Every state up to `step`, and the terms that ℓ is the sum of, one for each key seen."""
    scores = ROWS[row]
    values = np.arange(1.0, len(scores) + 1)
    parts = blocks(len(scores), block)
    step = min(step, len(parts))
    m, alpha, history = (0.0 if rule == FROM_ZERO else -np.inf), 0.0, []
    terms = np.zeros(len(scores))  # as the rule has them, corrected by every α so far
    before = terms.copy()  # as they were before the last α
    with np.errstate(over="ignore", invalid="ignore"):  # what a broken rule does is shown as NaN
        for part in parts[:step]:
            peak = scores[part].max()
            new = peak if rule == OWN else max(m, peak)
            base = 0.0 if new == -np.inf else new
            alpha = 1.0 if rule == NO_ALPHA else np.exp(m - base)
            before = terms.copy()
            terms[: part.start] *= alpha
            terms[part] = np.exp(scores[part] - base)
            m_old, m = m, new
            history.append((m_old, m, alpha, terms.sum(), terms @ values))
    seen = parts[step - 1].stop if step else 0
    true_m = scores[:seen].max(initial=-np.inf)
    expected = np.zeros(len(scores))
    expected[:seen] = np.exp(scores[:seen] - (true_m if np.isfinite(true_m) else 0))
    return {
        "row": row, "rule": rule, "scores": scores, "values": values, "terms": terms,
        "before": before, "alpha": float(alpha), "expected": expected, "history": history, "step": step, "steps": len(parts),
        "now": parts[step - 1] if step else slice(0, 0), "m": m, "true_m": true_m,
        "outputs": [_divide(o, l) for *_, l, o in history],
        "want": float(safe_softmax(scores) @ values),
    }  # fmt: skip


def _divide(o, l):
    """o / l; NaN where nothing was counted, as an unguarded kernel would have it."""
    return float(o / l) if l != 0 and np.isfinite(l) else float("nan")


def number(x, digits=4):
    """A number short enough for a label: −∞, NaN, 1.1353, 6.7e+86."""
    if np.isnan(x):
        return "NaN"
    if np.isinf(x):
        return "∞" if x > 0 else "−∞"
    text = f"{x:.{digits}f}" if abs(x) < 1e5 else f"{x:.1e}"
    return text.replace("-", "−")


def _short(x):
    return number(x, 0 if float(x).is_integer() or abs(x) >= 100 else 1)


def draw(fig, data):
    """Scores above, the terms of ℓ below, the numbers at the right; returns what moves them."""
    fig.subplots_adjust(left=0.085, right=0.985, bottom=0.115, top=0.93, wspace=0.16, hspace=0.26)
    grid = fig.add_gridspec(2, 2, width_ratios=(2, 1))
    top, low, side = (fig.add_subplot(grid[place]) for place in ((0, 0), (1, 0), (slice(None), 1)))
    top.set(xlim=(-0.6, KEYS - 0.4), ylim=(LOW - 2.6, HIGH + 1), xticks=(), ylabel="score s")
    top.set_title("The row: seen (blue), this block (hatched), to come (grey)", fontsize=12.5)
    low.set(xlim=(-0.6, KEYS - 0.4), ylim=(0, 1.5), yticks=(0, 0.5, 1), ylabel="term of ℓ")
    low.set_title(
        "Terms $e^{s - m}$ of ℓ (dashed: before α; black: as they should be)", fontsize=12.5
    )
    low.set_xticks(range(KEYS), range(1, KEYS + 1))
    low.set_xlabel("key j (its value is v = j)")
    side.axis("off")
    top.axhline(0, color=SOFT, lw=0.8)
    x = np.arange(KEYS)
    bars = list(top.bar(x, np.zeros(KEYS), width=0.7, edgecolor=PAPER))
    names = [top.text(i, LOW - 0.4, "", ha="center", va="top", fontsize=11) for i in x]
    (peak,) = top.plot([], [], color=ACCENT, ls="--", lw=2)
    peak_name = top.text(KEYS - 0.3, 0, "", color=ACCENT, va="center", weight="bold")
    terms = list(low.bar(x, np.zeros(KEYS), width=0.7, edgecolor=PAPER))
    outlines = list(low.bar(x, np.zeros(KEYS), width=0.7, facecolor="none", edgecolor=INK, lw=1.5))
    ghosts = list(
        low.bar(x, np.zeros(KEYS), width=0.7, facecolor="none", edgecolor=ACCENT, ls="--", lw=1.5)
    )
    factor = low.text(-0.4, 1.45, "", color=ACCENT, va="top", weight="bold")
    paper = dict(facecolor=PAPER, edgecolor="none", pad=0.6)
    sizes = [low.text(i, 0, "", ha="center", va="bottom", fontsize=11, bbox=paper) for i in x]
    text = dict(va="top", transform=side.transAxes, linespacing=1.55)
    heading = side.text(0.14, 1.0, "", weight="bold", fontsize=15, **text)
    side.text(0.14, 0.885, "m\nα\nℓ\n\no\n\no/ℓ", fontsize=15, **text)
    lines = side.text(0.29, 0.885, "", fontsize=15, **text)
    verdict = side.text(0.14, 0.17, "", weight="bold", fontsize=14, **text)

    def move(data):
        count, now, m = len(data["scores"]), data["now"], data["m"]
        shrinks = rescaled(data)
        for i in range(KEYS):
            inside = i < count
            current, seen = now.start <= i < now.stop, i < now.stop
            face = NOW if current else SEEN if seen else GRID
            for bar in (bars[i], terms[i]):
                bar.set_facecolor(face)
                bar.set_hatch("//" if current else "")
            score = data["scores"][i] if inside else 0.0
            bars[i].set_height(np.clip(score, LOW, HIGH))
            names[i].set_text(_short(score) if inside else "")
            names[i].set_color(INK if seen else SOFT)
            term = data["terms"][i] if inside else 0.0
            shown = min(term, 1.25) if term == term else 0.0
            terms[i].set_height(shown)
            outlines[i].set_height(data["expected"][i] if inside else 0.0)
            ghosts[i].set_height(min(data["before"][i], 1.25) if inside else 0.0)
            ghosts[i].set_visible(shrinks and i < now.start)
            visible = seen and inside
            sizes[i].set_text(_term(term) if visible else "")
            lid = min(shown, 1.08)
            if ghosts[i].get_visible() and 0 < ghosts[i].get_height() - lid < 0.2:
                lid = ghosts[i].get_height()  # no number on a dashed line
            sizes[i].set_y(lid + 0.04)
        factor.set_text(f"old terms × α = {number(data['alpha'])}" if shrinks else "")
        peak.set_data([-0.6, KEYS], [np.clip(m, LOW, HIGH + 0.4)] * 2)
        peak.set_visible(bool(np.isfinite(m)))
        peak_name.set_text(f"m = {_short(m)}" if np.isfinite(m) else "")
        peak_name.set_y(np.clip(m, LOW, HIGH + 0.4))
        heading.set_text(f"{data['step']} of {data['steps']} blocks seen")
        lines.set_text(_numbers(data))
        good, words = judge(data)
        verdict.set_text(words)
        verdict.set_color(INK if good else ACCENT)
        return [*bars, *names, peak, peak_name, *terms, *outlines, *ghosts, factor, *sizes,
                heading, lines, verdict]  # fmt: skip

    return move


def rescaled(data):
    """Whether the last block changed the terms before it."""
    return bool(data["before"].any()) and np.isfinite(data["alpha"]) and data["alpha"] != 1


def _term(x):
    if not np.isfinite(x):
        return number(x)
    if x == 0:
        return "0"
    return f"{x:.2f}" if 0.005 <= x < 1000 else "≈0" if x < 1 else f"{x:.0e}"


def _numbers(data):
    if not data["history"]:
        return f"{_short(data['m'])}\n\n0\n\n0"
    m_old, m, alpha, l, o = data["history"][-1]
    l_old, o_old = data["history"][-2][3:] if data["step"] > 1 else (0.0, 0.0)
    output = number(data["outputs"][-1], 3) if np.isfinite(m) else "nothing yet"
    return (
        f"{_short(m_old)} → {_short(m)}\n{number(alpha)}\n{number(l_old)}\n→ {number(l)}\n"
        f"{number(o_old)}\n→ {number(o)}\n{output}"
    )


def judge(data):
    """(whether all is well, the verdict in words): the state, and at the end the output."""
    if not data["history"]:
        return True, "nothing seen yet"
    good = data["m"] == data["true_m"] or not data["history"]
    good = good and bool(np.allclose(data["terms"], data["expected"], rtol=1e-9, atol=0))
    done = data["step"] == data["steps"]
    if not done:
        return good, "the invariant holds" if good else "the invariant is broken"
    want, got = number(data["want"], 3), number(data["outputs"][-1], 3)
    if np.isclose(data["outputs"][-1], data["want"], rtol=1e-9):
        return True, f"output {got}: right" + ("" if good else "\n(m is not the maximum)")
    return False, f"output {got}:\nwrong, it is {want}"


def describe(data):
    """The state in words."""
    if not data["history"]:
        return f"Row “{data['row']}”, nothing seen: m = {_short(data['m'])}, ℓ = 0, o = 0."
    m_old, m, alpha, l, o = data["history"][-1]
    moved = (
        f"the maximum moves from {_short(m_old)} to {_short(m)}"
        if m != m_old
        else f"the maximum stays at {_short(m)}"
    )
    verdict = judge(data)[1].replace("\n", " ")
    return (
        f"Row “{data['row']}”, rule: {data['rule']}. Block {data['step']} of {data['steps']}: {moved}, "
        f"α = {number(alpha)}, ℓ = {number(l)}, o = {number(o)}. "
        f"{verdict[0].upper()}{verdict[1:]}."
    )


def steps(values):
    """How many blocks the row has."""
    return len(blocks(len(ROWS[values["row"]]), values["block"]))


def online(**initial):
    """The explorer, at other first values if given: `online(row="rising", step=3)`."""
    controls = {
        "row": widgets.Dropdown(options=list(ROWS), description="row"),
        "block": widgets.IntSlider(2, min=1, max=KEYS, description="block size"),
        "step": widgets.IntSlider(0, min=0, max=KEYS, description="blocks seen"),
        "rule": widgets.Dropdown(options=RULES, description="rule"),
    }
    return Explorer(
        compute, draw, describe, controls, "The online softmax, block by block",
        initial=initial, play="step", ends={"step": steps}, size=(10, 5),
    )  # fmt: skip
