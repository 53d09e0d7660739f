"""Notebook 10: the bytes of a token and of a cache, a split cache and its merge, pages, 4 bits."""

from dataclasses import dataclass

import numpy as np

from course import kernels
from course import softmax as online
from course.exercises import Exercise, Question
from course.exercises._room import GUARD, edited, empty, one_writer, results, tensor
from course.kernels import tl, triton

# --- questions on the way ---------------------------------------------------------------------

token_rate = Question(
    "Tokens per second, at most",
    minutes=1,
    task="8·10⁹ weights of 2 bytes, an H100 with 3.35 TB/s, one sequence. Each token needs every weight "
    "once. How many tokens per second, at most?",
    answer=209.4,
    unit="tokens/s",
    factor=1.02,
    wrong={
        418.75: "That is one byte per weight. In FP16 a weight has two: 16 GB.",
        61837: "That is the peak, 989 TFLOP/s, over 2 FLOP for each weight. Do the bytes arrive in time?",
        4.776: "That is the time of one token in ms. How many of them fit into a second?",
        0.2094: "GB over TB: 16 GB are 0.016 TB.",
    },
    explanation="16 GB / 3.35 TB/s = 4.78 ms per token, and 1 s / 4.78 ms = 209. It is a ceiling: "
    "cache, launches and all that is not a weight come on top.",
)
prompt_time = Question(
    "A prompt of 256 tokens",
    task="The same model and GPU now read a prompt of 256 tokens, all known at once. The time at the "
    "least, beside that of one token?",
    choices={
        "a": "256 times as long",
        "b": "about 16 times as long: tokens go through in groups of 16",
        "c": "about as long: the weights are read once for all of them",
        "d": "shorter: a prompt needs no cache",
    },
    answer="c",
    wrong={
        "a": "That is so when they are written one by one. Here all 256 are known when a weight arrives.",
        "b": "What limits a group? Until arithmetic takes longer than the one read, nothing does.",
        "d": "It writes the cache, and the weights must be read all the same.",
    },
    explanation="One read of the weights serves all 256 tokens. The arithmetic, 2 FLOP for each weight "
    "and token, is still shorter than that read: 256 is below the ridge of 295.",
)
cache_or_weights = Question(
    "What does the step read?",
    task="64 sequences of 8,192 tokens each, Llama 3.1 8B in bf16; the keys and values of one token take "
    "131,072 bytes. What does a decode step read more of?",
    choices={
        "a": "weights: every sequence needs all of them",
        "b": "caches: about four times as much",
        "c": "as much of both",
        "d": "weights: a cache is written, not read",
    },
    answer="b",
    wrong={
        "a": "One read of the weights serves all 64 sequences. A cache serves its own sequence only.",
        "c": "Count: 16 GB of weights, and 64 · 8,192 · 131,072 bytes.",
        "d": "Every new token looks at all keys and values of its sequence: they are read in each step.",
    },
    explanation="64 · 8,192 · 131,072 bytes are 64 GiB, beside 16 GB of weights. Batching shares the "
    "weights. It does not share the caches.",
)
idle = Question(
    "How many SMs work?",
    task="One sequence, one new token, 64 query heads in 8 groups: the 8 heads of a group share their "
    "keys. One program for each group of heads, on an H200 with 132 SMs. How many SMs have nothing to do?",
    answer=124,
    factor=1.001,
    wrong={
        68: "That is one program for each query head. Then each key is loaded eight times, once a head.",
        0: "Eight programs cannot occupy 132 SMs.",
        131: "Each of the 8 groups has its own keys, so 8 programs can run side by side.",
        8: "These are the SMs that work. How many do not?",
    },
    explanation="8 programs occupy 8 SMs and 124 wait. With 128k tokens in the cache, each of the 8 walks "
    "over 64 MiB, alone.",
)
which_critical = Question(
    "Quantise, and batch",
    difficulty=3,
    task="Weights go from bf16 to int4 and are unpacked on the chip; products stay bf16. What becomes of "
    "the critical batch, 295 on an H100?",
    choices={
        "a": "it stays: the GPU is the same",
        "b": "it becomes about four times larger",
        "c": "it becomes about four times smaller",
        "d": "there is none any more",
    },
    answer="c",
    wrong={
        "a": "The ridge stays. But how many FLOPs does each byte of weights now get from one sequence?",
        "b": "Fewer bytes are read sooner. So does the arithmetic become the longer of the two earlier or "
        "later?",
        "d": "Arithmetic grows with the batch, the read of the weights does not: they meet somewhere.",
    },
    explanation="A quarter of the bytes takes a quarter of the time to read, and the arithmetic stays. So "
    "the two are equal at a quarter of the batch, about 76 with the scales. Four bits gain most "
    "at small batches.",
)
guesses = Question(
    "Guess four tokens",
    difficulty=2,
    task="A small model proposes 4 tokens. The large one checks all in one step and keeps them up to the "
    "first wrong one, whose right token it knows itself. Each is right with probability 0.8, if those "
    "before it are. How many tokens does a step yield on average?",
    answer=3.3616,
    factor=1.01,
    wrong={
        5: "That is the luckiest case: 4 right ones and the step's own.",
        3.2: "That is 4 · 0.8. But the second counts only if the first was right too.",
        4.2: "That is 1 + 4 · 0.8. But the second counts only if the first was right too.",
        2.3616: "The step itself always yields one token more.",
        1.4096: "0.8⁴ is the chance that all four are right. Fewer count as well.",
    },
    explanation="1 + 0.8 + 0.8² + 0.8³ + 0.8⁴ = 3.36, for one read of the weights.",
)
what_for = Question(
    "Fewer bytes, or sooner?",
    difficulty=2,
    task="An engine reports 1.3 times the tokens/s of another: same model, format, GPU, at batch 1. It says "
    "its matrix products run on faster tensor-core code. Do you believe the reason?",
    choices={
        "a": "yes: a language model is mostly matrix products",
        "b": "no: at batch 1 a step waits for bytes, so look for bytes or for gaps between kernels",
        "c": "no: tensor cores cannot multiply a matrix by a vector",
        "d": "yes, if it counts prefill",
    },
    answer="b",
    wrong={
        "a": "It is. What do they wait for at batch 1?",
        "c": "They can, with most of their rows empty. It would just not matter.",
        "d": "A prompt would indeed be read sooner. But these are tokens written at batch 1.",
    },
    explanation="At batch 1 arithmetic takes a hundredth of the time of the bytes. A gain of 1.3 comes from "
    "fewer bytes, or from launches and gaps between kernels.",
)

# --- the bytes of a cache -----------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What a configuration file says of a cache, and some numbers that do not matter for it."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    windowed: int = 0
    window: int | None = None
    latent: tuple[int, int] | None = None


PLAIN = (
    Shape(4096, 32, 32, 32, 128),  # Llama 2 7B
    Shape(2560, 36, 32, 8, 128),  # Qwen3 4B: head_dim is not hidden / heads
    Shape(8192, 80, 64, 8, 128),  # Llama 3.1 70B
    Shape(2880, 24, 64, 8, 64),  # gpt-oss-20b, its windows aside
    Shape(4096, 32, 32, 8, 128),  # Llama 3.1 8B
)


def kv_bytes(model, tokens):
    """Bytes of K and V of one sequence, in bf16."""
    numbers = 2 * model.layers * model.kv_heads * model.head_dim
    return 2 * numbers * tokens


def _plain(rng):
    for shape in PLAIN:
        yield shape, int(rng.integers(1000, 100_000))


kv_bytes = Exercise(
    "Bytes of a cache",
    difficulty=2,
    minutes=5,
    task="Write kv_bytes(model, tokens): the bytes of one sequence's cache in bf16. Each layer keeps a key "
    "and a value of head_dim numbers for each K/V head and token. model.layers, .heads, .kv_heads, "
    ".head_dim and .hidden are as in its configuration file; not all of them matter.",
    answer=kv_bytes,
    cases=_plain,
    hints=(
        "How many numbers does one layer keep for one token? A key and a value for each K/V head.",
        "Times the layers, times the tokens, times 2 bytes for a bf16 number.",
    ),
    wrong=[
        (lambda m, t: 2 * m.layers * m.kv_heads * m.head_dim * t,
         "A factor of 2 is missing: a key *and* a value, *and* two bytes for each number."),
        (lambda m, t: 4 * m.layers * m.heads * m.head_dim * t,
         "Query heads keep nothing. Several of them share one K/V head: use kv_heads."),
        (lambda m, t: 4 * m.layers * m.kv_heads * (m.hidden // m.heads) * t,
         "head_dim is not always hidden / heads. Take the model's own head_dim."),
        (lambda m, t: 4 * m.layers * m.hidden * t,
         "hidden is the width of all query heads together, at best. The cache has kv_heads · head_dim."),
        (lambda m, t: 4 * m.layers * (m.heads // m.kv_heads) * m.head_dim * t,
         "heads / kv_heads is how many query heads share a K/V head, not how many K/V heads there are."),
        (lambda m, t: 4 * m.kv_heads * m.head_dim * t,
         "That is one layer. Every layer has a cache of its own."),
        (lambda m, t: 4 * m.layers * m.head_dim * t,
         "That is one head. Every K/V head has keys and values of its own."),
        (lambda m, t: 4 * m.layers * m.kv_heads * m.head_dim,
         "That is one token. The cache keeps all of them."),
        (lambda m, t: 8 * m.layers * m.kv_heads * m.head_dim * t,
         "Twice too much: bf16 has 2 bytes, not 4."),
        (lambda m, t: 16 * m.layers * m.kv_heads * m.head_dim * t * 2,
         "Eight times too much: bits where bytes are asked for?"),
        (lambda m, t: 4 * m.layers * m.kv_heads * m.head_dim * t * t,
         "A cache grows with tokens, not with their square: it keeps keys and values, not scores."),
    ],
)  # fmt: skip


def cache_bytes(model, tokens):
    """Bytes of one sequence's cache in bf16: whole layers, windowed layers, or latent ones."""
    if model.latent:
        return 2 * model.layers * sum(model.latent) * tokens
    near = min(tokens, model.window or tokens)
    kept = (model.layers - model.windowed) * tokens + model.windowed * near
    return 2 * 2 * model.kv_heads * model.head_dim * kept


def _mixed(rng):
    v3 = Shape(7168, 61, 128, 128, 128, latent=(512, 64))  # DeepSeek-V3
    oss = Shape(2880, 36, 64, 8, 64, windowed=18, window=128)  # gpt-oss-120b
    gemma = Shape(5376, 62, 32, 16, 128, windowed=52, window=1024)  # Gemma 3 27B
    for shape in (PLAIN[4], v3, oss, gemma):
        yield shape, int(rng.integers(2000, 131_072))
    yield gemma, int(rng.integers(1, 1024))  # short: the window is not full
    yield oss, 128


def _cache_bytes(model, tokens, *, all_layers=False, no_window=False, cut=True, factor=1, parts=sum,
                 plain_latent=False, spread=False):  # fmt: skip
    """`cache_bytes` with one thing broken."""
    if model.latent and not plain_latent:
        return 2 * factor * model.layers * parts(model.latent) * tokens
    windowed = (
        0 if no_window else model.layers * bool(model.window) if all_layers else model.windowed
    )
    near = min(tokens, model.window or tokens) if cut else model.window or tokens
    if spread:
        near = tokens // 2
    kept = (model.layers - windowed) * tokens + windowed * near
    return 4 * model.kv_heads * model.head_dim * kept


mixed_cache = Exercise(
    "Windows and latents",
    difficulty=3,
    minutes=8,
    task="Write cache_bytes(model, tokens), in bf16, for newer models too. In model.windowed of its layers "
    "only the last model.window tokens are kept (window is None where there are no such layers). "
    "Where model.latent is given as (shared, rotary), a layer keeps these numbers for a token, "
    "once for all heads, and no K or V.",
    answer=cache_bytes,
    cases=_mixed,
    hints=(
        "Three kinds of layers: whole, windowed and latent. How many tokens does each keep?",
        "A windowed layer keeps min(tokens, window) tokens.",
        "A latent layer keeps shared + rotary numbers a token, with no factor 2: keys and values are both "
        "made from them.",
    ),
    wrong=[
        (lambda m, t: _cache_bytes(m, t, no_window=True),
         "Windowed layers forget: they keep the last `window` tokens only."),
        (lambda m, t: _cache_bytes(m, t, all_layers=True),
         "Only model.windowed of the layers have the window. The others keep all tokens."),
        (lambda m, t: _cache_bytes(m, t, cut=False),
         "A sequence shorter than the window keeps only the tokens it has."),
        (lambda m, t: _cache_bytes(m, t, factor=2),
         "A latent is kept once: keys and values are both made from it, so no factor 2 for K and V."),
        (lambda m, t: _cache_bytes(m, t, parts=lambda latent: latent[0]),
         "The rotary numbers are kept beside the shared ones."),
        (lambda m, t: _cache_bytes(m, t, parts=lambda latent: 2 * latent[0]),
         "The latent is no key and value: 2 · shared counts it twice and leaves the rotary numbers out."),
        (lambda m, t: _cache_bytes(m, t, plain_latent=True),
         "A model with latents keeps no K and V: kv_heads does not count there."),
        (lambda m, t: _cache_bytes(m, t, parts=lambda latent: m.heads * sum(latent)),
         "One latent serves all heads of a layer."),
        (lambda m, t: _cache_bytes(m, t, spread=True),
         "A window is a number of tokens, not a share of them."),
    ],
)  # fmt: skip

# --- split and merge ----------------------------------------------------------------------------


def split_decode(q, k, v, splits):
    """softmax(q kᵀ / √d) v for one query q (d,), its keys cut into pieces: k, v (N, d) → (d,)."""
    d = len(q)
    whole = online.State.empty(d)
    for keys, values in zip(np.array_split(k, splits), np.array_split(v, splits), strict=True):
        part = online.update(online.State.empty(d), keys @ q / np.sqrt(d), values)
        whole = online.merge(whole, part)
    return online.finish(whole)[0]


class OneProgram(Exception):
    """All keys went through one state: nothing was split."""


def _run_split(attempt, q, k, v, splits):
    """The attempt's output, and what it asked `course.softmax` for."""
    most, merges = [0], [0]
    update, merge = online.update, online.merge

    def watched(state, scores, values):
        most[0] = max(most[0], np.shape(scores)[-1])
        if np.isfinite(np.max(state.m)) and most[0]:
            raise OneProgram(
                "a state was taken on from one piece to the next: pieces run side by side"
            )
        return update(state, scores, values)

    def counted(a, b):
        merges[0] += 1
        return merge(a, b)

    online.update, online.merge = watched, counted
    try:
        o = attempt(q, k, v, splits)
    finally:
        online.update, online.merge = update, merge
    enough = most[0] <= -(-len(k) // splits) and merges[0] >= min(splits, len(k)) - 1
    return o, "in pieces" if enough else f"pieces of up to {most[0]} keys, {merges[0]} merges"


def _caches(rng):
    """(q, k, v, splits): pieces of unequal length, more pieces than keys, hostile scores."""
    d = int(rng.integers(3, 7))
    for n, splits, size in ((12, 3, 1.0), (13, 4, 2.0), (5, 8, 1.0), (9, 1, 1.0), (30, 7, 40.0)):
        q, k = size * rng.standard_normal(d), size * rng.standard_normal((n, d))
        k = k[np.argsort(k @ q)]  # the largest scores come last: every piece has its own maximum
        yield q, k, rng.standard_normal((n, d)) + 1, splits


def _pieces(q, k, v, splits):
    for keys, values in zip(np.array_split(k, splits), np.array_split(v, splits), strict=True):
        yield online.update(online.State.empty(len(q)), keys @ q / np.sqrt(len(q)), values)


def _mean(q, k, v, splits):
    parts = [online.finish(part) for part in _pieces(q, k, v, splits)]
    return np.mean([online.merge(online.State.empty(len(q)), online.State(lse, 1.0, o)).o
                    for o, lse in parts], axis=0)  # fmt: skip


def _no_factor(q, k, v, splits):
    parts = [online.merge(online.State.empty(len(q)), part) for part in _pieces(q, k, v, splits)]
    return sum(part.o for part in parts) / sum(part.l for part in parts)


def _fold(parts, d):
    whole = online.State.empty(d)
    for part in parts:
        whole = online.merge(whole, part)
    return whole


def _chunked(q, k, v, splits, chunk, scale=None):
    """Pieces of `chunk` keys; what is left over is left out."""
    scale = len(q) ** -0.5 if scale is None else scale
    parts = [
        online.update(
            online.State.empty(len(q)), k[at : at + chunk] @ q * scale, v[at : at + chunk]
        )
        for at in range(0, splits * chunk, chunk)
    ]
    return online.finish(_fold(parts, len(q)))[0]


def _not_split(q, k, v, splits):
    return online.finish(online.update(online.State.empty(len(q)), k @ q / len(q) ** 0.5, v))[0]


split_decode = Exercise(
    "Split the keys, merge the states",
    difficulty=3,
    minutes=7,
    task="Write split_decode(q, k, v, splits): one query q (d,) over a cache k, v (N, d), with scale 1/√d; "
    "returns o (d,). Cut the keys into `splits` pieces; np.array_split does it. Each piece starts "
    "from online.State.empty(d) and takes one online.update(state, scores, values). Then online.merge "
    "joins the states, and online.finish(state) gives (o, lse).",
    answer=split_decode,
    cases=_caches,
    call=_run_split,
    hints=(
        "for keys, values in zip(np.array_split(k, splits), np.array_split(v, splits)): one state each.",
        "The scores of a piece are keys @ q / np.sqrt(d).",
        "whole = online.State.empty(d) has seen nothing. Merge each piece's state into it.",
    ),
    wrong=[
        (_mean, "The mean of finished pieces. A piece with larger scores counts for more: merge states."),
        (_no_factor, "Sums were added as they are. Each piece measured from its own maximum: merge knows."),
        (lambda q, k, v, s: _chunked(q, k, v, s, max(1, len(k) // s)),
         "The last keys are left out where N is no multiple of splits."),
        (lambda q, k, v, s: online.finish(_fold(_pieces(q * len(q) ** 0.5, k, v, s), len(q)))[0],
         "The scale is missing: scores are k · q / √d."),
        (lambda q, k, v, s: online.finish(_fold(_pieces(q / len(q) ** 0.5, k, v, s), len(q)))[0],
         "The scale is 1/√d, not 1/d."),
        (_not_split, "Nothing was split: all keys went through one update."),
        (lambda q, k, v, s: _fold(_pieces(q, k, v, s), len(q)).o,
         "The output is o divided by ℓ: online.finish does it, after the last merge."),
        (lambda q, k, v, s: online.finish(_fold([*_pieces(q, k, v, s)][-1:], len(q)))[0],
         "Only the last piece is in the result."),
        (lambda q, k, v, s: online.finish(_fold([*_pieces(q, k, v, s), *_pieces(q, k, v, s)][1:], len(q)))[0],
         "Pieces are merged more than once, so their keys count twice."),
        (lambda q, k, v, s: online.finish(_fold(_pieces(q, k, v, s), len(q)))[1],
         "online.finish returns two: the output and lse. The output is the first."),
    ],
)  # fmt: skip


@triton.jit
def merge_kernel(m_ptr, l_ptr, o_ptr, out_ptr, splits, S: tl.constexpr, D: tl.constexpr):
    """One row from the states of its splits."""
    row = tl.program_id(0)
    split, column = tl.arange(0, S), tl.arange(0, D)
    exists = split < splits
    at = row * splits + split
    m_part = tl.load(m_ptr + at, mask=exists, other=-float("inf"))
    l_part = tl.load(l_ptr + at, mask=exists, other=0.0)
    o_part = tl.load(o_ptr + at[:, None] * D + column[None, :], mask=exists[:, None], other=0.0)
    m = tl.max(m_part, 0)
    alpha = tl.exp(m_part - m)
    l = tl.sum(alpha * l_part, 0)
    o = tl.sum(alpha[:, None] * o_part, 0)
    tl.store(out_ptr + row * D + column, o / l)


def _states(rng):
    """(m, l, o): (rows, splits), (rows, splits), (rows, splits, d); an unseen piece, hostile scores."""
    for rows, splits, d, size, shift in (
        (3, 4, 16, 3.0, 0.0),
        (2, 5, 32, 3.0, 0.0),
        (4, 1, 16, 1.0, 0.0),
        (2, 11, 16, 90.0, 0.0),
        (2, 5, 16, 3.0, -1000.0),  # exp of these is 0
    ):
        m = size * rng.standard_normal((rows, splits)) + shift
        l = rng.uniform(1, 9, (rows, splits))
        o = l[..., None] * rng.standard_normal((rows, splits, d))
        if splits > 3:  # a piece past the end of a short sequence has seen nothing
            m[0, -1], l[0, -1], o[0, -1] = -np.inf, 0, 0
        yield tuple(x.astype(np.float32) for x in (m, l, o))


def _launch_merge(kernel, m, l, o):
    """(what lies behind out, out)."""
    (rows, splits, d), room, device = o.shape, 256, kernels.device
    size = triton.next_power_of_2(splits)

    def run(kernel, *first):
        out = empty((rows, d), room, device)
        inputs = (tensor(x, 4096, device) for x in (m, l, o))
        kernel[(rows,)](*first, *inputs, out, splits, S=size, D=d)
        return results(room, (out, (rows, d)))

    return one_writer(kernel, run, rows, 1)


def _exact_merge(m, l, o):
    m, l, o = (x.astype(np.float64) for x in (m, l, o))
    alpha = np.exp(m - m.max(1, keepdims=True))
    return np.full(256, GUARD), (alpha[..., None] * o).sum(1) / (alpha * l).sum(1)[:, None]


triton_merge = Exercise(
    "The merge, in Triton",
    difficulty=3,
    minutes=6,
    task="Complete merge_kernel: row r has `splits` states, m and l at [r, split] and o at [r, split, "
    "column], o not yet divided by l. Store the row of the output. A split that has seen nothing is "
    "(−∞, 0, 0). Lanes past `splits` must not count.",
    answer=merge_kernel,
    cases=_states,
    call=_launch_merge,
    reference=_exact_merge,
    hints=(
        "m is the largest of all m_part: tl.max(m_part, 0).",
        "alpha = tl.exp(m_part − m) is one factor for each split, and 0 for a lane with m_part = −∞.",
        "Both sums use it: tl.sum(alpha * l_part, 0) and tl.sum(alpha[:, None] * o_part, 0).",
    ),
    wrong=[
        (edited(merge_kernel, ("tl.exp(m_part - m)", "tl.where(exists, 1.0, 0.0)")),
         "The states are added as they are. Each is measured from its own m: multiply by exp(m_part − m)."),
        (edited(merge_kernel, ("l = tl.sum(alpha * l_part, 0)", "l = tl.sum(l_part, 0)")),
         "o is corrected and ℓ is not. Both were measured from the split's own m."),
        (edited(merge_kernel, ("alpha[:, None] * o_part", "o_part")),
         "ℓ is corrected and o is not. Both were measured from the split's own m."),
        (edited(merge_kernel, ("tl.exp(m_part - m)", "tl.exp(m - m_part)")),
         "The exponent is turned round: exp(m_part − m) is at most 1."),
        (edited(merge_kernel, ("tl.exp(m_part - m)", "tl.exp2(m_part - m)")),
         "These m are natural, as in notebook 05: use exp, not exp2."),
        (edited(merge_kernel, ("o / l", "o")), "The output is o divided by ℓ."),
        (edited(merge_kernel, ("tl.exp(m_part - m)", "tl.exp(m_part)")),
         "exp of a score itself overflows or vanishes. Take the largest m off first."),
        (edited(merge_kernel, ("out_ptr + row * D", "out_ptr")),
         "Every program stores to row 0: the output of row r begins at r · D."),
        (edited(merge_kernel, ("o / l", "o / tl.sum(alpha, 0)")),
         "The weights of the splits are not counts: divide by ℓ, the sum of alpha · l_part."),
        (edited(merge_kernel, ("other=-float(\"inf\")", "other=0.0")),
         "Lanes past `splits` hold m = 0, and win where all scores lie far below. Fill them with −∞."),
    ],
)  # fmt: skip

# --- pages and bits -----------------------------------------------------------------------------


def slack(lengths, page):
    """Places that are taken and hold no token, where each sequence takes whole pages."""
    return sum(-(-n // page) * page - n for n in lengths)


def _lengths(rng):
    for page in (16, 128, 7):
        some = [int(n) for n in rng.integers(1, 500, 9)]
        yield some, page
        yield [page, 3 * page, page + 1, *some[:2]], page  # full pages, and one more
    yield [0, 5, 32], 16  # a sequence that has no token yet


slack = Exercise(
    "Places that stay empty",
    difficulty=2,
    minutes=3,
    task="Write slack(lengths, page): sequences of these lengths lie in pages of `page` tokens, and no two "
    "share a page. How many places are taken and hold no token?",
    answer=slack,
    cases=_lengths,
    hints=(
        "A sequence of n tokens takes n / page pages, rounded up.",
        "−(−n // page) rounds up in integers. Times page, minus n, summed over the sequences.",
    ),
    wrong=[
        (lambda n, p: sum((x // p + 1) * p - x for x in n),
         "A sequence that just fills its pages takes no page more."),
        (lambda n, p: -(-sum(n) // p) * p - sum(n),
         "No two sequences share a page: round up each one, not their sum."),
        (lambda n, p: len(n) * p / 2, "Half a page each is the mean. Count the real ones."),
        (lambda n, p: sum(-(-x // p) for x in n), "These are the pages taken. Which of their places are empty?"),
        (lambda n, p: sum(-(-x // p) * p for x in n), "These are all places taken. Take off the tokens."),
        (lambda n, p: sum(x % p for x in n), "n % page tokens lie in the last page: the rest of it is empty."),
        (lambda n, p: len(n) * max(n) - sum(n),
         "That is one piece for each sequence, as long as the longest. Pages are there to avoid it."),
    ],
)  # fmt: skip


def unpack(packed, scales, group):
    """The numbers of one row of 4-bit weights: bytes (columns / 2,), a scale for each group."""
    pairs = packed.reshape(-1, group // 2)
    numbers = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(int) - 8
    return (numbers * scales[:, None]).ravel()


def _packed(rng):
    for groups, group in ((3, 8), (1, 4), (5, 16)):
        packed = rng.integers(0, 256, groups * group // 2).astype(np.uint8)
        packed[:2] = 0xF1, 0x2E  # numbers of either sign in both halves
        yield packed, rng.uniform(0.5, 3, groups) * 2.0 ** np.arange(groups), group


def _unpack(packed, scales, group, *, offset=8, order="halves", swap=False, one=False, last=False):
    """`unpack` with one thing broken."""
    pairs = packed.reshape(-1, group // 2)
    low, high = (pairs & 15).astype(int) - offset, (pairs >> 4).astype(int) - offset
    low, high = (high, low) if swap else (low, high)
    numbers = np.concatenate([low, high], 1) if order == "halves" else np.stack([low, high], 2)
    numbers = numbers.reshape(len(scales), group)
    scales = scales[:1] if one else scales[::-1] if last else scales
    return (numbers * scales[:, None]).ravel()


def _bytes_only(packed, scales, group):
    return (packed.reshape(len(scales), -1).astype(int) * scales[:, None]).ravel()


def _wrapped(packed, scales, group):
    pairs = packed.reshape(-1, group // 2)
    numbers = np.concatenate([pairs & 15, pairs >> 4], axis=1) - np.uint8(8)
    return (numbers * scales[:, None]).ravel()


def _twos(packed, scales, group):
    pairs = packed.reshape(-1, group // 2)
    numbers = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(int)
    return (np.where(numbers > 7, numbers - 16, numbers) * scales[:, None]).ravel()


unpack = Exercise(
    "Two weights from a byte",
    difficulty=3,
    minutes=8,
    task="Write unpack(packed, scales, group): one row of 4-bit weights as numbers. packed (columns / 2,) "
    "is uint8: the low half of a group's byte i is number i of the group, the high half number i + "
    "group / 2; each is stored plus 8. scales has one number for each group of `group` columns. "
    "Returns (columns,).",
    answer=unpack,
    cases=_packed,
    hints=(
        "byte & 15 is the low half, byte >> 4 the high half. reshape(-1, group // 2) makes a row a group.",
        "Convert to int before you take off 8: uint8 has no numbers below 0.",
        "np.concatenate([low, high], axis=1) is a group in its order; times scales[:, None]; then ravel().",
    ),
    wrong=[
        (lambda *a: _unpack(*a, offset=0), "The numbers were stored plus 8: take it off."),
        (_wrapped, "uint8 has no numbers below 0: 3 − 8 became 251. Convert to int first."),
        (lambda *a: _unpack(*a, order="pairs"),
         "Low and high half are not neighbours: the high half stands group / 2 columns further."),
        (lambda *a: _unpack(*a, swap=True), "Low and high half are exchanged."),
        (lambda *a: _unpack(*a, one=True), "Each group has a scale of its own."),
        (lambda *a: _unpack(*a, last=True), "The scales go with the groups in their order."),
        (_bytes_only, "A byte holds two numbers: take it apart with & 15 and >> 4."),
        (_twos, "The four bits are no two's complement: 0 to 15 stand for −8 to 7."),
        (lambda *a: _unpack(*a, offset=7), "8 was added to each number, not 7."),
    ],
)  # fmt: skip


def largest_batch(memory, weights, cache):
    """How many sequences fit beside the weights."""
    return max(0, (memory - weights) // cache)


def _memories(rng):
    for memory in (80e9, 141e9, 24e9):
        yield int(memory), int(rng.integers(8e9, 17e9)), int(rng.integers(1e8, 2e9))
    yield int(24e9), int(30e9), int(1e9)  # the weights alone do not fit
    yield int(24e9), int(23e9), int(2e9)
    yield 20 * 10**9, 16 * 10**9, 10**9  # the last one just fits


largest_batch = Exercise(
    "How many sequences fit?",
    difficulty=2,
    minutes=4,
    task="Write largest_batch(memory, weights, cache): how many sequences fit, where the GPU has `memory` "
    "bytes, the weights take `weights` and each sequence's full cache `cache`. All are integers.",
    answer=largest_batch,
    cases=_memories,
    hints=("What is left beside the weights is shared out.", "Half a sequence is none; nor is −3."),
    wrong=[
        (lambda m, w, c: m // c, "The weights must lie there as well."),
        (lambda m, w, c: (m - w) // c, "Where the weights alone do not fit, no sequence does: not −6."),
        (lambda m, w, c: max(0, (m - w) / c), "A part of a sequence is none: round down."),
        (lambda m, w, c: max(0, -(-(m - w) // c)), "Rounded up, the last one does not fit."),
        (lambda m, w, c: max(0, m // (w + c)),
         "All sequences share one copy of the weights."),
        (lambda m, w, c: max(0, (m - w - 1) // c), "A cache that just fills the rest fits."),
    ],
)  # fmt: skip

# --- questions afterwards -----------------------------------------------------------------------

compute_or_memory = Question(
    "Is decoding compute-bound or memory-bound?",
    difficulty=2,
    task="Someone asks: is LLM decoding compute-bound or memory-bound?",
    choices={
        "a": "memory-bound, always",
        "b": "memory-bound at small batches; with enough sequences the weights' products become "
        "compute-bound, while attention over the caches stays memory-bound",
        "c": "compute-bound: billions of multiplications a token",
        "d": "memory-bound in FP16, compute-bound in 4 bits",
    },
    answer="b",
    wrong={
        "a": "One read of the weights can serve many sequences. What does that do to FLOPs per byte?",
        "c": "Billions, and at least as many bytes. Which of the two takes longer?",
        "d": "Four bits make the read four times shorter. At batch 1 it is still the longer by far.",
    },
    explanation="Weights: 2 FLOP per weight and sequence, so the batch moves it to the right. A cache is "
    "read by its own sequence alone, so batching leaves attention where it is.",
)
engine_first = Question(
    "What first?",
    difficulty=1,
    task="A server decodes at batch 4 on an H100 and 40 GB are free. Requests wait in line. What first?",
    choices={
        "a": "a faster kernel for the feed-forward layers",
        "b": "a larger batch, as far as the caches fit",
        "c": "a GPU with more TFLOP/s",
        "d": "longer prompts",
    },
    answer="b",
    wrong={
        "a": "They wait for their weights. Faster arithmetic waits as well.",
        "c": "At batch 4 a hundredth of the peak is used.",
        "d": "They cost time and cache, and serve nobody who waits.",
    },
    explanation="The weights are read anyway: more sequences get their tokens from the same read. How many "
    "fit is a question of cache, so give it a budget.",
)
edge_first = Question(
    "On a phone",
    difficulty=1,
    task="An assistant with 3·10⁹ weights shall run on a phone with 8 GB for everything. What first?",
    choices={
        "a": "weights in 4 bits",
        "b": "fused kernels",
        "c": "a larger batch",
        "d": "speculative decoding with a second model",
    },
    answer="a",
    wrong={
        "b": "They help, and save bytes of activations. Which bytes are the most, at one sequence?",
        "c": "There is one user.",
        "d": "It needs room for a second model, where the first one hardly fits.",
    },
    explanation="In bf16 the weights take 6 of 8 GB, beside system and apps; in 4 bits about 1.5. And each "
    "token reads a quarter of the bytes: it comes sooner, and the battery pays for fewer trips.",
)
neighbours = Question(
    "Neighbours",
    difficulty=2,
    task="Alone on the GPU, a decode step takes 5 ms. In production another container runs on the same "
    "GPU, time-sliced or by MPS, and copies large tensors. What becomes of the 5 ms?",
    choices={
        "a": "nothing: each has its own SMs",
        "b": "nothing: each has its own part of the memory",
        "c": "it grows: bandwidth and L2 are shared, and decode lives on bandwidth",
        "d": "it shrinks: the other keeps the L2 warm",
    },
    answer="c",
    wrong={
        "a": "SMs are not what decode waits for. All of them read through one memory.",
        "b": "Room is set apart, the road to it is not.",
        "d": "It fills the L2 with its own data.",
    },
    explanation="Memory *room* can be set apart by many means, bandwidth by few: MIG cuts SMs, L2 and "
    "memory channels into slices.",
)
own_ceiling = Question(
    "7B on an A10",
    difficulty=1,
    task="An A10 reads 600 GB/s. 7·10⁹ weights of 2 bytes, one sequence. How many ms does a token take, "
    "at the least?",
    answer=7e9 * 2 / 600e9 * 1e3,
    unit="ms",
    wrong={
        42.86: "That is tokens per second. How long is one?",
        11.67: "A weight has two bytes here.",
    },
    explanation="14 GB / 600 GB/s = 23.3 ms.",
)
blog_table = Question(
    "A table with one wrong row",
    difficulty=2,
    minutes=3,
    task="A page lists caches at 131,072 tokens in FP16: Llama 3 8B 16 GB, Llama 3 70B 160 GB. The 70B has "
    "80 layers and 8 K/V heads of 128. What should its row say, in GiB?",
    answer=40,
    unit="GiB",
    factor=1.01,
    wrong={
        160: "That is the page's. 2 · 80 · 8 · 128 numbers of 2 bytes, times the tokens?",
        320: "That is with all 64 query heads. Only the 8 K/V heads keep something.",
        42.95: "Right in GB, 10⁹ bytes. In GiB?",
    },
    explanation="327,680 bytes a token, times 131,072: 40 GiB. The 8B row, 16 GiB, is right: an error in "
    "one row of a table stays unseen if only another row is checked.",
)
