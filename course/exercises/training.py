"""Exercises of notebook 08: the backward kernels, sums and their order, shared heads, training."""

import numpy as np

from course import attention, kernels
from course.exercises import Exercise, Question
from course.exercises._kernel import bugs, changed
from course.exercises._room import GUARD, empty, one_writer, results, tensor
from course.exercises.forward import _UNSEEN as UNSEEN
from course.exercises.forward import _same_on_a_gpu as same_on_a_gpu
from course.kernels import notebook, notebook_backward, triton

# --- questions on the way ---------------------------------------------------------------------

atomics = Question(
    "What atomics cost",
    difficulty=2,
    task="All programs add their part of dQ with atomic additions. The result is right. What is lost?",
    choices={
        "a": "the last bits may differ from run to run",
        "b": "some parts may be overwritten",
        "c": "nothing: addition is commutative",
        "d": "the gradient is biased towards the last program",
    },
    answer="a",
    wrong={
        "b": "That is what atomic prevents: each addition is done whole.",
        "c": "Commutative, a + b = b + a, holds in floating point. (a + b) + c = a + (b + c) does not.",
        "d": "Rounding depends on the order, but has no favourite.",
    },
    explanation="Programs finish in an order that nobody fixes, and floating-point sums depend on their "
    "order. Besides, the parts must be FP32, and they cross to memory once a tile.",
)
second = Question(
    "A gradient of a gradient",
    difficulty=3,
    task="A loss contains the size of a gradient (a gradient penalty), so it must be differentiated "
    "twice. A hand-written backward returns plain numbers, with no graph behind them. What would happen "
    "without a check?",
    choices={
        "a": "PyTorch derives the second derivative by itself",
        "b": "the penalty counts as a constant: it trains nothing, and nobody is told",
        "c": "the training stops with an error",
        "d": "the first gradients become wrong",
    },
    answer="b",
    wrong={
        "a": "Only through operations that autograd has recorded. A kernel is none of them.",
        "c": "That is what we want, and what has to be written.",
        "d": "They stay right. It is what stands on them that breaks.",
    },
    explanation="That is the worst kind of fault. So the first gradients carry a node whose only task is to "
    "refuse.",
)
training_p = Question(
    "P in training",
    difficulty=2,
    minutes=3,
    task="8 layers, 8 heads, N = 16,384, 2 sequences in a batch, P in BF16: how many GB (10⁹) does naive "
    "attention keep for P?",
    answer=8 * 8 * 2 * 16384**2 * 2 / 1e9,
    unit="GB",
    wrong={
        4.295: "That is one layer... of one sequence: 8 heads. There are 8 layers and 2 sequences.",
        8.59: "That is one layer.",
        0.537: "That is one head.",
    },
    explanation="16,384² · 2 bytes = 0.537 GB a head, times 8 heads, 8 layers, 2 sequences = 68.7 GB.",
)

group = Question(
    "Who shares this head?",
    difficulty=2,
    task="32 query heads, 8 K/V heads, numbered from 0. Which query heads add to dK of K/V head 3?",
    choices={
        "a": "3, 11, 19 and 27",
        "b": "12, 13, 14 and 15",
        "c": "3 alone",
        "d": "all 32",
    },
    answer="b",
    wrong={
        "a": "That is h % 8. Neighbours share a head: query head h reads K/V head h // 4.",
        "c": "Then three quarters of the gradient are lost: four query heads read this head.",
        "d": "A query head reads one K/V head only.",
    },
    explanation="h // 4 = 3 for h = 12, 13, 14, 15. A number that is used four times gets the sum of four "
    "gradients.",
)

# --- D ----------------------------------------------------------------------------------------


def row_delta(o, do):
    """D = rowsum(dO ∘ O) in FP32: o, do (..., N, d) in FP16 → (..., N)."""
    return (o.astype(np.float32) * do.astype(np.float32)).sum(-1)


def _outputs(rng):
    for shape, scale in (((5, 8), 1), ((2, 3, 6, 16), 1), ((4, 64), 300), ((3, 2000), 1)):
        o, do = rng.standard_normal((2, *shape)) * scale + 1
        yield o.astype(np.float16), do.astype(np.float16)


delta = Exercise(
    "D, in the right precision",
    difficulty=2,
    minutes=6,
    task="Write my_delta(o, do): o and do are FP16, shape (..., N, d). Return D, shape (..., N), in FP32, "
    "correct to FP32's precision, also where the products do not fit into FP16.",
    answer=row_delta,
    cases=_outputs,
    reference=lambda o, do: (o.astype(float) * do.astype(float)).sum(-1),
    rtol=1e-5,
    hints=(
        "Multiply number by number, and sum along the last axis.",
        "FP16 ends at 65,504. When must the numbers become FP32?",
    ),
    wrong=[
        (
            lambda o, do: (o * do).sum(-1).astype(np.float32),
            "Products and sum are in FP16, and only the result is turned: turn o and do first.",
        ),
        (
            lambda o, do: (o * do).sum(-1, dtype=np.float32),
            "The sum is in FP32, the products are not: turn o and do before they are multiplied.",
        ),
        (
            lambda o, do: row_delta(o, do)[..., None],
            "The last axis is to go: one number a row, shape (..., N).",
        ),
        (
            lambda o, do: (o.astype(np.float32) * do.astype(np.float32)).sum(-2),
            "The sum runs over the rows. D belongs to a row, so it sums over d.",
        ),
        (
            lambda o, do: (o.astype(np.float32) * do.astype(np.float32)).mean(-1),
            "The mean instead of the sum: it is d times too small.",
        ),
        (
            lambda o, do: (do.astype(np.float32) ** 2).sum(-1),
            "O is not used: D is the product of dO and O.",
        ),
    ],
)

# --- shared heads -----------------------------------------------------------------------------


def sum_over_group(dk, kv_heads):
    """dK of shared heads: dk (B, H, N, d), one a query head → (B, kv_heads, N, d)."""
    b, heads, n, d = dk.shape
    return dk.reshape(b, kv_heads, heads // kv_heads, n, d).sum(2)


def _heads(rng):
    for b, heads, kv_heads, n in ((2, 4, 2, 3), (1, 6, 2, 5), (3, 8, 4, 2), (2, 6, 3, 4)):
        yield rng.standard_normal((b, heads, n, 4)) + 1, kv_heads


sum_over_group = Exercise(
    "The gradient of a shared head",
    difficulty=2,
    minutes=8,
    task="H query heads share kv_heads K/V heads: query head h reads K/V head h // (H / kv_heads). Write "
    "sum_over_group(dk, kv_heads): dk (B, H, N, d) has what each query head gives, return dK, shape "
    "(B, kv_heads, N, d).",
    answer=sum_over_group,
    cases=_heads,
    hints=(
        "A number that is used several times gets the sum of the gradients of its uses.",
        "Neighbours share: heads 0, 1, … H / kv_heads − 1 belong to K/V head 0.",
        "reshape(B, kv_heads, group, N, d) puts the group on an axis of its own.",
    ),
    wrong=[
        (
            lambda dk, h: dk.reshape(len(dk), h, -1, *dk.shape[2:]).mean(2),
            "The mean instead of the sum: the gradient of a shared head is as large as all of its uses.",
        ),
        (
            lambda dk, h: dk.reshape(len(dk), -1, h, *dk.shape[2:]).sum(1),
            "The heads are dealt like cards: h % kv_heads. Neighbours share a head: h // group.",
        ),
        (
            lambda dk, h: dk[:, :: dk.shape[1] // h],
            "Only the first query head of each group counts. The others read the same keys.",
        ),
        (lambda dk, h: dk[:, :h], "The first heads were kept and all others dropped."),
        (
            lambda dk, h: np.repeat(dk.sum(1, keepdims=True), h, 1),
            "Every K/V head gets the sum over all query heads, not over its own group.",
        ),
        (
            lambda dk, h: dk.reshape(len(dk), h, -1, *dk.shape[2:]).max(2),
            "The largest of the group was taken. Gradients of several uses add up.",
        ),
    ],
)

# --- the kernels ------------------------------------------------------------------------------

ROOM = 16_384  # as far as a tile without a mask may reach: the interpreter writes where it is told
BLOCK = 16


def stand_in(item, attempt):
    """The attempt, where it passes the check of this exercise; else the course's own, and a line."""
    if item.verdict(attempt, 0)[0] == "right":
        return attempt
    print(f"{item.answer.fn.__name__} is not right yet: the course's own stands in.")
    return item.answer


class Overwritten(Exception):
    """A kernel wrote into one of its inputs."""


def _case(rng, heads, n, n_kv, d, causal=False, low=0.0, coarse=False, dtype=np.float32):
    """q, k, v, do of a type, lse and D in FP32, and the mask; `low` is added to all scores.

    coarse: in eighths and halves, of which FP32 makes exact sums. Where all scores are low, or a row
    sees one key, so that its gradient is 0, right kernels would differ by no more than rounding.
    """
    q, do = rng.standard_normal((2, heads, n, d)) + 0.2
    k, v = rng.standard_normal((2, heads, n_kv, d)) + 0.2
    if coarse:
        q, k, v, do = (np.round(x * unit) / unit for x, unit in ((q, 8), (k, 8), (v, 2), (do, 2)))
    q[..., 0], k[..., 0] = low * d**0.5, 1.0
    q, k, v, do = (x.astype(dtype) for x in (q, k, v, do))
    o, lse = attention.naive(*(x.astype(float) for x in (q, k, v)), causal=causal)
    return q, k, v, do, lse.astype(np.float32), (do * o).sum(-1).astype(np.float32), causal


def _launch(kernel, results_like, q, k, v, do, lse, delta, causal):
    """(what lies behind each result, the results) of a kernel on NumPy arrays, as NumPy arrays.

    results_like: 0 for a result with the shape of q, 1 for two of the shape of k.
    """
    same_on_a_gpu(kernel)
    if not hasattr(kernel, "__getitem__"):
        raise TypeError("this is no kernel: is @triton.jit missing above it?")
    heads, n, d = q.shape
    like = (k, v) if results_like else (q,)
    programs = triton.cdiv(like[0].shape[1], BLOCK) * heads

    def run(kernel, *first):
        import torch

        given = [
            tensor(x, ROOM, kernels.device).to(getattr(torch, str(x.dtype)))
            for x in (q, k, v, do, lse, delta)
        ]
        before = [x.clone() for x in given]
        outs = [empty(x.shape, ROOM, kernels.device).to(given[0].dtype) for x in like]
        kernel[(programs,)](
            *first, *given, *outs, d**-0.5, n, k.shape[1], d,
            causal=causal, block_q=BLOCK, block_kv=BLOCK, block_d=max(16, triton.next_power_of_2(d)),
        )  # fmt: skip
        for a, b in zip(before, given, strict=True):
            if not torch.equal(a.nan_to_num(), b.nan_to_num()):
                raise Overwritten("it writes into one of its inputs")
        return results(ROOM, *((out, x.shape) for out, x in zip(outs, like, strict=True)))

    return one_writer(kernel, run, programs, BLOCK) if heads > 1 else run(kernel)


def _exact(q, k, v, do, lse, delta, causal):
    """dq, dk, dv in FP64."""
    q, k, v, do = (x.astype(float) for x in (q, k, v, do))
    o, lse = attention.naive(q, k, v, causal=causal)
    return attention.naive_backward(q, k, v, o, lse, do, causal=causal)


def _dq_cases(rng):
    """Friendly first; then what breaks a kernel that is nearly right. Small: the interpreter is slow."""
    yield _case(rng, 1, 16, 32, 16)
    yield _case(rng, 2, 10, 21, 10)  # two heads, ragged, and d is padded
    yield _case(rng, 1, 10, 20, 16, low=-100.0, coarse=True)  # a padded key's 0 is far above them
    yield _case(rng, 1, 20, 36, 16, causal=True)
    yield _case(rng, 1, 20, 10, 16, causal=True, coarse=True)  # the first rows see no key
    yield _case(rng, 1, 16, 16, 16, dtype=np.float16)


P_AND_DS, DQ = notebook_backward.p_and_ds, notebook_backward.dq_kernel
LOAD, STORE = notebook.load_tile, notebook.store_tile
IEEE = ", input_precision='ieee')"


def _with_p_and_ds(kernel, *edits):
    return changed(kernel, p_and_ds=changed(P_AND_DS, *edits))


def _normalised(kernel):
    """P of each tile made to sum to one."""
    dp = f"dp = tl.dot(do, v.T{IEEE}"
    return _with_p_and_ds(
        kernel, (dp, f"p = p / tl.maximum(tl.sum(p, 1), 1e-30)[:, None]\n    {dp}")
    )


OFFSETS = "(head * n * d, head * n_kv * d, head * n)"
dq = Exercise(
    "dQ, from a blank page",
    difficulty=4,
    minutes=20,
    task="Write a Triton kernel dq_kernel(q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, scale, n, "
    "n_kv, d, causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr). "
    "q, do and dq are (heads, n, d), k and v (heads, n_kv, d), of one type; lse and delta (heads, n), FP32. "
    "None has gaps. There is a program for each Q tile of each head, all along axis 0. Causal: query i sees "
    "key j when j ≤ i + n_kv − n. load_tile, store_tile and p_and_ds may be used.",
    answer=DQ,
    cases=_dq_cases,
    call=lambda kernel, *args: _launch(kernel, 0, *args),
    reference=lambda *args: (np.full(ROOM, GUARD), _exact(*args)[0]),
    hints=(
        "tiles = tl.cdiv(n, block_q): the tile is program_id % tiles, the head program_id // tiles.",
        "Head by head: q, do and dq start at head · n · d, k and v at head · n_kv · d, lse and delta at "
        "head · n.",
        "Load q and do once. Then for each tile of keys: k, v, ds, and dq += tl.dot(ds.to(k.dtype), k, …).",
        "After the loop store dq · scale. Causal: no row of the tile sees a key from i + block_q + n_kv − n "
        "on.",
    ),
    wrong=[
        (
            changed(DQ, ("dq * scale", "dq")),
            "The scale is missing at the end: dQ = dS K · scale. It was in S, and the chain rule brings it "
            "back.",
        ),
        (
            _with_p_and_ds(DQ, (f"k.T{IEEE} * scale", f"k.T{IEEE}")),
            "S is not scaled, so P is not the P of the forward pass.",
        ),
        (_with_p_and_ds(DQ, ("(dp - delta[:, None])", "dp")), "D was not subtracted from dP."),
        (
            _normalised(DQ),
            "P was made to sum to 1 within each tile. A tile is a part of the row: exp(s − lse) is right "
            "as it is.",
        ),
        (
            changed(DQ, (OFFSETS, "(head * n * d, head * n * d, head * n)")),
            "A head of k and v has n_kv rows, not n: heads after the first read the wrong keys.",
        ),
        (
            changed(DQ, (OFFSETS, "(head * n * d, head * n_kv * d, head * n_kv)")),
            "lse and delta have n numbers per head, not n_kv.",
        ),
        (
            changed(DQ, (OFFSETS, "(head * n * d, head * n_kv * d, head * 0)")),
            "lse and delta of head 0 were used for every head.",
        ),
        (
            changed(DQ, ("end = n_kv\n", "end = n\n")),
            "Without a mask the loop over the keys ends at n, the number of queries. There are n_kv keys.",
        ),
        (
            changed(DQ, ("range(0, end,", "range(0, end // block_kv * block_kv,")),
            "The last tile of keys is left out where it is not full.",
        ),
        (
            changed(DQ, ("range(0, end,", "range(0, block_kv,")),
            "Only the first tile of keys is read.",
        ),
        (
            changed(DQ, ("dq += ", "dq = ")),
            "Each tile of keys overwrites what came before: dq += …",
        ),
        (
            _with_p_and_ds(DQ, ("column[None, :] < n_kv)", "column[None, :] < n_kv + block_kv)")),
            "A key past n_kv has score 0, and exp(0 − lse) overflows where lse is far below 0. Its P must "
            "be picked away with tl.where.",
        ),
        (
            _with_p_and_ds(changed(DQ, ("if causal:", "if False:")), ("if causal:", "if False:")),
            "The causal mask is ignored.",
        ),
        (
            _with_p_and_ds(DQ, ("if causal:", "if False:")),
            "The causal loop ends where it should, but within a tile hidden keys still count.",
        ),
        (
            _with_p_and_ds(DQ, ("if causal:", "if True:")),
            "It is causal though nobody asked: look at the flag.",
        ),
        (
            _with_p_and_ds(DQ, ("row[:, None] + (n_kv - n)", "row[:, None]")),
            "The mask aligns top left: query i sees key j when j ≤ i + n_kv − n.",
        ),
        (
            changed(DQ, ("i + block_q + n_kv - n", "i + block_q")),
            "The causal loop ends as if the mask began top left. The last row of the tile sees keys up to "
            "i + block_q − 1 + n_kv − n.",
        ),
        (
            changed(DQ, ("i + block_q + n_kv - n", "i + n_kv - n")),
            "The causal loop ends where the first row of the tile does. The last row sees more.",
        ),
        (
            _with_p_and_ds(
                DQ,
                (
                    "tl.where(seen, tl.exp(s - lse[:, None]), 0.0)",
                    "seen * tl.exp(s - lse[:, None])",
                ),
            ),
            "A row that sees no key has lse = −∞, and 0 · exp(∞) is NaN. Pick with tl.where(seen, …, 0.0).",
        ),
        (
            _with_p_and_ds(DQ, ("tl.exp(", "tl.exp2(")),
            "exp2 is 2^x: s − lse must be multiplied by log₂ e first.",
        ),
        (
            changed(DQ, (f"tl.dot(ds.to(k.dtype), k{IEEE}", f"tl.dot(ds.to(v.dtype), v{IEEE}")),
            "dS multiplies K, not V: S was made of q and k.",
        ),
        (
            changed(DQ, ("_, ds = p_and_ds", "ds, _ = p_and_ds")),
            "P multiplies K here. It is dS that flows back to Q.",
        ),
        (
            changed(DQ, store_tile=changed(STORE, (", x, mask=inside", ", x"))),
            "The store needs a mask: rows past n, and columns past d, are not ours.",
        ),
        (
            changed(DQ, store_tile=changed(STORE, ("row[:, None] < n", "row[:, None] <= n"))),
            "Row n does not exist: it is the first of the next head.",
        ),
        (
            changed(DQ, ("ds.to(k.dtype)", "ds")),
            "dS is FP32, and K may be FP16: tl.dot wants one type. Turn dS with ds.to(k.dtype).",
        ),
        *UNSEEN[1:],
    ],
)

# --- a broken kernel --------------------------------------------------------------------------


def _dkdv_cases(rng):
    """Each of the three bugs shows in one of the first three cases only."""
    yield _case(rng, 1, 16, 16, 16)
    yield _case(rng, 2, 20, 10, 10)
    yield _case(rng, 1, 16, 32, 16, causal=True)
    yield _case(rng, 1, 20, 10, 16, causal=True, coarse=True)  # the first rows see no key
    yield _case(rng, 1, 16, 16, 16, dtype=np.float16)


DKDV = notebook_backward.dkdv_kernel
BUGS = {  # name: (right, broken)
    "scale": ("dk * scale", "dk"),
    "rows": (OFFSETS, "(head * n * d, head * n_kv * d, head * n_kv)"),
    "first": ("tl.maximum(j - (n_kv - n), 0) // block_q * block_q", "j // block_q * block_q"),
}
CLUES = {
    "scale": (
        "one head and no mask",
        "dV is right, and dK is wrong by the same factor everywhere. Which factor of the chain rule is "
        "missing?",
    ),
    "rows": (
        "two heads, N = 20 and N_kv = 10",
        "head 0 is right, and head 1 is wrong. Whose lse and D does it read?",
    ),
    "first": (
        "a causal mask, N = 16 and N_kv = 32",
        "keys from 16 on get no gradient at all. Which is the first query that sees key j?",
    ),
}
dkdv = Exercise(
    "Three bugs in dK and dV",
    difficulty=4,
    minutes=15,
    task="dkdv_kernel gives a dV that is right on a friendly input, and has three bugs. Find them and mend "
    "them. Arguments as those of dq_kernel, with dk_ptr and dv_ptr in place of dq_ptr, and a program for each "
    "K/V tile of each head.",
    answer=DKDV,
    cases=_dkdv_cases,
    call=lambda kernel, *args: _launch(kernel, 1, *args),
    reference=lambda *args: (*[np.full(ROOM, GUARD)] * 2, *_exact(*args)[1:]),
    hints=(
        "Compare it line by line with `dkdv_columns` of notebook 07: each line has its place.",
        "In the interpreter a kernel is Python: print(first) works, and so does breakpoint().",
        "One bug is in what is stored, one in an address, one in where the loop begins.",
    ),
    wrong=[
        *bugs(DKDV, BUGS, CLUES),
        (
            changed(DKDV, ("(dv_ptr + keys, dv,", "(dv_ptr + keys, dv * scale,")),
            "dV has no scale: P V was not scaled.",
        ),
        (
            changed(DKDV, ("tl.dot(ds.T.to(q.dtype)", "tl.dot(p.T.to(q.dtype)")),
            "dK is summed with P. It is dS that flows back to K.",
        ),
        (_with_p_and_ds(DKDV, ("(dp - delta[:, None])", "dp")), "D was not subtracted from dP."),
        (
            changed(
                DKDV, ("j - (n_kv - n), 0) // block_q * block_q", "j - (n_kv - n), 0) + block_q")
            ),
            "The loop begins too late: the first query that sees key j is j − (n_kv − n).",
        ),
        (
            changed(DKDV, store_tile=changed(STORE, ("row[:, None] < n", "row[:, None] <= n"))),
            "Row n_kv does not exist: it is the first of the next head.",
        ),
        *UNSEEN[1:],
    ],
)
