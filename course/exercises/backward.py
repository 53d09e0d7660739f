"""Exercises of notebook 07: products and softmax backward, D, a tile of dS, dQ by tiles, the bargain."""

import numpy as np

from course import attention
from course.exercises import Exercise, Question
from course.exercises._watched import Watched, gather

# --- questions on the way ---------------------------------------------------------------------

kept_p = Question(
    "P, kept for the backward pass",
    difficulty=2,
    minutes=3,
    task="A model has 32 layers of 32 heads, N = 8,192, P in FP16. How many GiB does P take, all layers "
    "together, for one sequence?",
    answer=128,
    unit="GiB",
    wrong={
        0.125: "That is one head of one layer.",
        4: "That is one layer, or one head of all layers. Every layer keeps its own P, until the "
        "gradient comes back to it.",
        0.015625: "P is N × N, not N × d.",
    },
    explanation="8,192² · 2 bytes = 128 MiB a head, times 32 heads and 32 layers = 128 GiB. An H100 has "
    "80 GB.",
)
product_rule = Question(
    "Which product is dK?",
    difficulty=2,
    task="A = B C gives dB = dA Cᵀ and dC = Bᵀ dA. S = Q Kᵀ · scale. What is dK?",
    choices={
        "a": "dS Q · scale",
        "b": "dSᵀ Q · scale",
        "c": "Qᵀ dS · scale",
        "d": "dSᵀ K · scale",
    },
    answer="b",
    wrong={
        "a": "Row j of dK belongs to key j, so the sum must run over the queries: the rows of dS.",
        "c": "That is the gradient of Kᵀ, shape d × N. Turn it over.",
        "d": "That does not depend on Q at all. What multiplies K in S?",
    },
    explanation="C = Kᵀ, so the gradient of Kᵀ is Qᵀ dS · scale. Transposed: dK = dSᵀ Q · scale, N_kv × d "
    "like K.",
)
jacobian_entry = Question(
    "One entry of the Jacobian",
    difficulty=2,
    task="In the worked row p₂ = 0.2369 and p₃ = 0.6439. By how much does p₂ change when s₃ rises, a unit "
    "of s₃?",
    answer=-0.2369 * 0.6439,
    wrong={
        0.2369
        * 0.6439: "The size is right. But when s₃ rises, p₂ must fall: the weights sum to 1.",
        0.2369 * (1 - 0.2369): "That is the diagonal: what p₂ does when s₂ rises.",
        0.6439 * (1 - 0.6439): "That is what p₃ does when s₃ rises.",
        -0.6439: "The slope of log p₂. Times p₂, it is the slope of p₂.",
    },
    explanation="∂p₂/∂s₃ = −p₂ p₃ = −0.2369 · 0.6439 = −0.1525.",
)
jacobian_bytes = Question(
    "All Jacobians of one head",
    difficulty=2,
    task="Each row of P has an N × N Jacobian of its own. N = 4,096, FP16: how many GiB for one head?",
    answer=128,
    unit="GiB",
    wrong={
        0.03125: "That is one row. There are 4,096 rows.",
        0.0625: "That is one row, with 4 bytes a number. There are 4,096 rows.",
        256: "That is 4 bytes a number. FP16 has 2.",
    },
    explanation="N rows of N² numbers: 4,096³ · 2 bytes = 128 GiB. Nobody builds them.",
)
delta_why = Question(
    "Why D from O?",
    difficulty=2,
    task="D is the sum of a row of P ∘ dP, and it is also the sum of a row of dO ∘ O. Why does the tiled "
    "backward use the second form?",
    choices={
        "a": "it is more exact",
        "b": "a tile holds a piece of a row of P, so the first form needs a sweep of its own over all keys",
        "c": "P is no longer known in the backward pass",
        "d": "dP is larger than dO",
    },
    answer="b",
    wrong={
        "a": "In real arithmetic they are equal, and in floating point neither wins always.",
        "c": "It is computed again, tile by tile. What is missing is the whole row at once.",
        "d": "So it is, but the sum could be formed tile by tile. What would that cost?",
    },
    explanation="dS of the first tile already needs D of the whole row. From O, a row of d numbers, it is "
    "one cheap pass: no N × N matrix is touched.",
)
lse_ratio = Question(
    "P against L",
    minutes=1,
    task="N = 8,192. A row of P takes 2 bytes per number, L takes 4 bytes per row. How many times smaller is "
    "L?",
    answer=4096,
    wrong={
        8192: "In numbers, yes. In bytes L has 4 for each row, P has 2 for each number.",
        16384: "The other way round: L's number is the larger one.",
        2048: "Twice as much: 8,192 · 2 bytes against 4.",
        1 / 4096: "Turned over: how many times smaller, not which part of it.",
    },
    explanation="8,192 · 2 / 4 = 4,096.",
)
flops = Question(
    "FLOPs of training",
    difficulty=3,
    minutes=5,
    task="Batch 64, 16 heads, N = 1,024, d = 64, no mask. Forward and backward together, with P computed "
    "again in one kernel: how many GFLOP in the matrix products?",
    answer=962.1,
    unit="GFLOP",
    wrong={
        824.6: "That is with P stored: 2 + 4 products. Computing S again is one more.",
        274.9: "That is the forward pass alone.",
        687.2: "That is the backward pass alone.",
        1237: "That is with two kernels: S and dP are computed twice, 2 + 7 products.",
        481.0: "A multiply-add is 2 FLOP.",
    },
    explanation="A product is 2 · 64 · 16 · 1,024² · 64 = 137.4 GFLOP. 2 forward and 5 backward make "
    "7 · 137.4 = 962.1.",
)
faster_anyway = Question(
    "More FLOPs, less time",
    difficulty=2,
    task="Computing P again adds arithmetic. Why can the backward pass be faster all the same?",
    choices={
        "a": "because exp is cheaper than a division",
        "b": "because fewer FLOPs are done in total",
        "c": "because with P stored the arithmetic units wait for memory most of the time",
        "d": "because L makes the recomputed P less exact, hence cheaper",
    },
    answer="c",
    wrong={
        "a": "Either way there is one exp or none a score. Look at the bytes.",
        "b": "More are done: 5 or 7 products instead of 4.",
        "d": "P from L is as exact as P itself. Look at the bytes.",
    },
    explanation="Seven passes over N × N matrices take longer than the products. The extra products run on "
    "units that were idle, and the passes are gone. Where arithmetic is the bottleneck already, "
    "computing again costs what it costs.",
)
owner = Question(
    "Who can sum dQ?",
    difficulty=2,
    task="Each program owns one tile of keys and walks over all queries. It can sum dK and dV of its keys "
    "by itself. And dQ?",
    choices={
        "a": "also: it sees all queries",
        "b": "no: a row of dQ is a sum over all keys, and each program has only some of them",
        "c": "no: Q is not loaded",
        "d": "also, if the tiles are square",
    },
    answer="b",
    wrong={
        "a": "It sees all queries, but of each query only its own keys.",
        "c": "Q is loaded, for S and for dK. What does a row of dQ sum over?",
        "d": "The shape of the tile does not change what is summed over.",
    },
    explanation="dQ_i = Σ_j dS_ij K_j. The sum over j is spread over all programs. Either they add into "
    "shared memory cells (atomics), or parts are stored and summed later, or a second kernel with the "
    "loops swapped owns dQ.",
)
# --- through a product ------------------------------------------------------------------------


def back_to_p(v, do):
    """dP of O = P V: v (N_kv, d), do (N, d) → (N, N_kv)."""
    return do @ v.T


def _values(rng):
    for n, n_kv, d in ((4, 4, 4), (3, 6, 2), (6, 3, 5), (1, 4, 3)):
        yield rng.standard_normal((n_kv, d)) + 1, rng.standard_normal((n, d)) + 1


back_to_p = Exercise(
    "Back to P",
    difficulty=1,
    minutes=4,
    task="O = P V. Write back_to_p(v, do): v (N_kv, d) and do (N, d), the gradient of O. Return dP, shape "
    "(N, N_kv), as one matrix product.",
    answer=back_to_p,
    cases=_values,
    hints=(
        "A nudge to P_ij moves O_ic by V_jc, in every column c.",
        "So dP_ij is the sum over c of dO_ic V_jc: row i of dO times row j of V.",
    ),
    wrong=[
        (
            lambda v, do: v @ do.T,
            "Turned over: dP has the shape of P, a row per query and a column per key.",
        ),
        (
            lambda v, do: do @ v,
            "This sums over the columns of dO and the *rows* of V. Both sums run over c: turn V over.",
        ),
        (lambda v, do: do.T @ v, "This sums over queries. A nudge to P_ij reaches query i only."),
        (
            lambda v, do: do[:, None] * v,
            "The moves in the columns stand side by side. The loss feels their sum: add over c.",
        ),
        (
            lambda v, do: do.sum(1)[:, None] * v.sum(1),
            "A product of two sums. It is the sum of products: multiply column by column first.",
        ),
        (
            lambda v, do: do @ v.T / v.shape[1],
            "The mean over the columns. Each column counts in full.",
        ),
    ],
)

# --- by hand ----------------------------------------------------------------------------------

_S, _V = np.array([1.0, 3.0, 4.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])
_P = np.exp(_S - 4) / np.exp(_S - 4).sum()


def _worked(p=_P, d=None, weigh=True, sign=1.0):
    d = float(p @ _V) if d is None else d
    return d, *(float(sign * (x if weigh else 1) * (v - d)) for x, v in zip(p, _V, strict=True))


by_hand = Exercise(
    "The worked example, backwards",
    difficulty=2,
    minutes=8,
    task="Scores 1, 3, 4, 2 and values 1, 2, 3, 4 gave the weights 0.0321, 0.2369, 0.6439, 0.0871 and the "
    "output 2.786. The loss is the output itself, so dO = 1. Work out D and ds₁ to ds₄: five numbers, "
    "with three digits after the point.",
    answer=_worked(),
    rtol=7e-3,
    hints=(
        "dp_j = dO · v_j. With dO = 1 these are the values themselves.",
        "D = Σ_j p_j dp_j, four products. Have you met the sum before?",
        "ds_j = p_j (dp_j − D). Check: the four must sum to 0. Why?",
    ),
    wrong=[
        (
            (float(_P @ _V), *(float(x) for x in _P * _V)),
            "D was not subtracted: ds_j = p_j (dp_j − D).",
        ),
        (_worked(d=2.5), "D is the mean of dp weighted by p, not the plain mean."),
        (_worked(weigh=False), "dp_j − D is still to be multiplied by p_j."),
        (_worked(sign=-1.0), "The sign is turned round: scores with a value above D must gain."),
        (
            (float(_P @ _V), *(float(x) for x in _P * (1 - _P) * _V)),
            "Only the diagonal of the Jacobian was used. Each score also moves all other weights.",
        ),
        (
            _worked(p=_P * np.exp(_S - 4).sum()),
            "The weights are not divided by ℓ = 1.553: they must sum to 1.",
        ),
    ],
)

# --- softmax backward -------------------------------------------------------------------------


def softmax_backward(p, dp):
    """ds of every row: p and dp (..., N) → (..., N)."""
    return p * (dp - (p * dp).sum(-1, keepdims=True))


def _weights(rng):
    # No row is all on one key: its ds would be nothing but rounding, in any order of the sums.
    for shape, scale in (((4, 7), 1.0), ((2, 3, 5), 2.0), ((3, 9), 2.0), ((6, 6), 1.0)):
        s = scale * rng.standard_normal(shape)
        s[..., 0, :2] = rng.uniform(-1, 1, (*shape[:-2], 2))
        s[..., 0, 2:] = -np.inf  # a row that sees two keys
        p = np.exp(s - s.max(-1, keepdims=True))
        yield p / p.sum(-1, keepdims=True), 10 * rng.standard_normal(shape) + 100


softmax_backward = Exercise(
    "Back through the softmax",
    difficulty=2,
    minutes=8,
    task="Write softmax_backward(p, dp): p and dp have shape (..., N), each row of p is a softmax. Return "
    "ds, the gradient of the scores, in one line and without an N × N Jacobian.",
    answer=softmax_backward,
    cases=_weights,
    hints=(
        "ds_k = Σ_j dp_j ∂p_j/∂s_k, with p_k(1 − p_k) on the diagonal and −p_j p_k elsewhere.",
        "Take p_k out: what is left is dp_k minus one number a row.",
        "That number is Σ_j p_j dp_j. keepdims=True lines it up with the row.",
    ),
    wrong=[
        (
            lambda p, dp: p * (1 - p) * dp,
            "Only the diagonal of the Jacobian: the other weights move too when a score rises.",
        ),
        (lambda p, dp: p * dp, "The common part was not subtracted: a row of ds must sum to 0."),
        (
            lambda p, dp: p * (dp - dp.mean(-1, keepdims=True)),
            "The mean of dp must be weighted by p.",
        ),
        (
            lambda p, dp: p * (dp - dp.sum(-1, keepdims=True)),
            "The sum of dp must be weighted by p: each term is p_j dp_j.",
        ),
        (
            lambda p, dp: p * (dp - (p * dp).sum()),
            "One sum over everything. Each row has a sum of its own.",
        ),
        (
            lambda p, dp: p * (dp - (p * dp).sum(-2, keepdims=True)),
            "The sum runs down the columns. A softmax runs along a row.",
        ),
        (
            lambda p, dp: dp - (p * dp).sum(-1, keepdims=True),
            "The factor p in front is missing: a key with weight 0 has no gradient.",
        ),
        (
            lambda p, dp: p * ((p * dp).sum(-1, keepdims=True) - dp),
            "The sign is turned round.",
        ),
    ],
)

# --- one tile ---------------------------------------------------------------------------------


def tile_gradient(q, k, v, do, lse, delta, scale, seen):
    """(p, ds) of one tile: q, do (rows, d), k, v (cols, d), lse, delta (rows,), seen (rows, cols)."""
    s = q @ k.T * scale
    p = np.where(seen, np.exp(s - lse[:, None]), 0.0)
    ds = p * (do @ v.T - delta[:, None])
    return p, ds


def _tiles(rng):
    """A tile that is a part of a longer row; a mask; rows that see nothing; large scores."""
    d = 4
    for rows, cols, n_kv, size, first, last in (
        (3, 5, 12, 1.0, 0, 6),  # row i sees the keys up to i + last
        (6, 4, 9, 8.0, 5, 3),
        (5, 7, 7, 1.0, 0, -2),
        (4, 6, 11, 1000.0, 2, 8),
    ):
        q, do = rng.standard_normal((2, rows, d))
        k, v = rng.standard_normal((2, n_kv, d))
        k *= size
        seen = np.arange(n_kv)[None, :] <= np.arange(rows)[:, None] + last
        m, l = np.full(rows, -np.inf), np.ones(rows)
        for i in np.flatnonzero(seen.any(1)):
            s = (q[i] @ k[seen[i]].T) * 0.7
            m[i], l[i] = s.max(), np.exp(s - s.max()).sum()
        part = slice(first, first + cols)
        delta = rng.standard_normal(rows) + 1
        yield q, k[part], v[part], do, m + np.log(l), delta, 0.7, seen[:, part]


def _tile(q, k, v, do, lse, delta, scale, seen, mask=True, minus=True, own=False):
    """`tile_gradient` with one thing broken."""
    s = q @ k.T * scale
    p = np.exp(s - lse[:, None])
    if mask:
        p = np.where(seen, p, 0.0)
    if own:
        p = p / np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return p, p * (do @ v.T - (delta[:, None] if minus else 0.0))


def _hidden_by_a_product(q, k, v, do, lse, delta, scale, seen):
    p = seen * np.exp(q @ k.T * scale - lse[:, None])
    return p, p * (do @ v.T - delta[:, None])


def _large_negative(q, k, v, do, lse, delta, scale, seen):
    p = np.exp(np.where(seen, q @ k.T * scale, -1e30) - lse[:, None])
    return p, p * (do @ v.T - delta[:, None])


def _own_delta(q, k, v, do, lse, delta, scale, seen):
    p, dp = np.where(seen, np.exp(q @ k.T * scale - lse[:, None]), 0.0), do @ v.T
    return p, p * (dp - (p * dp).sum(-1, keepdims=True))


def _divided(q, k, v, do, lse, delta, scale, seen):
    p = np.where(seen, np.exp(q @ k.T * scale) / np.exp(lse)[:, None], 0.0)
    return p, p * (do @ v.T - delta[:, None])


tile_gradient = Exercise(
    "P and dS of one tile",
    difficulty=3,
    minutes=12,
    task="Write tile_gradient(q, k, v, do, lse, delta, scale, seen) for one tile: q and do (rows, d), k and "
    "v (cols, d), lse and delta (rows,), seen (rows, cols) of booleans. Return (p, ds). The tile is only "
    "a part of its rows; scores may be large; a row that sees no key at all has lse = −∞, and its p and "
    "ds are 0.",
    answer=tile_gradient,
    cases=_tiles,
    hints=(
        "p = exp(s − lse), with lse[:, None] to line it up. No maximum, no sum: lse knows both.",
        "np.where(seen, …, 0.0) picks; a product with seen does not: 0 · ∞ is NaN.",
        "dp = do vᵀ, and ds = p (dp − delta). The scale of dq and dk comes later.",
    ),
    wrong=[
        (
            lambda *a: _tile(*a[:6], 1.0, a[7]),
            "The scale is missing: s = q · k · scale, as in the forward pass.",
        ),
        (
            lambda *a: _tile(*a, own=True),
            "Each row of the tile was made to sum to 1. The tile is only a part of the row: its weights "
            "sum to less.",
        ),
        (
            lambda *a: _tile(*a, mask=False),
            "What must not be seen is seen: p is not 0 where `seen` is False.",
        ),
        (
            lambda *a: _tile(*a, minus=False),
            "delta was not subtracted from dp.",
        ),
        (
            _hidden_by_a_product,
            "A row that sees no key has lse = −∞. Then seen * exp(∞) is 0 · ∞, and a hidden score of −∞ "
            "gives exp(−∞ − (−∞)): both are NaN. Pick last: np.where(seen, exp(…), 0.0).",
        ),
        (
            _large_negative,
            "A hidden score of −1e30 less lse = −∞ is +∞: a row that sees no key gets infinite weights. "
            "Pick last: np.where(seen, exp(…), 0.0).",
        ),
        (
            _own_delta,
            "D was summed over this tile. It is the sum over the whole row, and comes as delta.",
        ),
        (
            lambda *a: _tile(*a[:6], a[0].shape[1] ** -0.5, a[7]),
            "The scale was taken as 1/√d. It is an argument: use the one that comes in.",
        ),
        (
            lambda *a: tile_gradient.answer(*a)[::-1],
            "p and ds have changed places: return (p, ds).",
        ),
        (
            _divided,
            "exp(s) / exp(lse) overflows where exp(s − lse) does not. Subtract first.",
        ),
        (
            lambda *a: (lambda p, ds: (p, ds * a[6]))(*tile_gradient.answer(*a)),
            "ds was multiplied by the scale. That factor belongs to dq = ds k · scale and to dk, once.",
        ),
    ],
)

# --- dQ, tile by tile -------------------------------------------------------------------------


def tiled_dq(q, k, v, do, lse, delta, block_q, block_kv, hbm):
    """dQ with scale 1/√d, a Q tile at a time: q, do (N, d), k, v (N_kv, d), lse, delta (N,)."""
    dq, scale = np.empty_like(q), q.shape[1] ** -0.5
    for i in range(0, len(q), block_q):
        rows = slice(i, i + block_q)
        q_i, do_i = hbm.load("Q", q[rows]), hbm.load("dO", do[rows])
        lse_i = hbm.load("lse", lse[rows], itemsize=4)
        delta_i = hbm.load("D", delta[rows], itemsize=4)
        dq_i = np.zeros_like(q_i)
        for j in range(0, len(k), block_kv):
            k_j, v_j = hbm.load("K", k[j : j + block_kv]), hbm.load("V", v[j : j + block_kv])
            p = np.exp(q_i @ k_j.T * scale - lse_i[:, None])
            ds = p * (do_i @ v_j.T - delta_i[:, None])
            dq_i += ds @ k_j
        hbm.store("dQ", dq[rows], dq_i * scale)
    return dq


def _backwards(rng):
    for n, n_kv, d, block_q, block_kv, shift in (
        (10, 13, 4, 4, 3, 0),  # both ragged
        (9, 5, 3, 4, 8, 0),  # fewer keys than a tile, fewer than queries
        (6, 8, 5, 3, 4, 3000),  # large scores: exp overflows unless lse is taken off
        (1, 7, 4, 4, 2, 0),  # a single query
    ):
        q, do = rng.standard_normal((2, n, d))
        k, v = rng.standard_normal((2, n_kv, d)) + 0.5
        if shift:
            q[:, 0], k[:, 0] = 1, shift
        o, lse = attention.naive(q, k, v)
        yield q, k, v, do, lse, (o * do).sum(-1), block_q, block_kv


def _run_dq(attempt, *args):
    """dQ, the bytes that were moved by name, and the largest tile."""
    *tensors, block_q, block_kv = args
    hbm = Watched()
    dq = attempt(*map(hbm.lend, tensors), block_q, block_kv, hbm)
    read = [f"{count} bytes of {name} read" for name, count in sorted(hbm.read_by_name.items())]
    written = [f"{count} bytes of {name} written" for name, count in hbm.written_by_name.items()]
    return dq, *read, *written, f"{hbm.largest} numbers in the largest tile"


def _dq(
    q, k, v, do, lse, delta, block_q, block_kv, hbm,
    stop=lambda n, n_kv, b: n_kv, scale_s=None, scale_dq=None, minus=True, own=False, shared=False,
    again=False, assign=False, itemsize=4, count_v=True, whole=False, store="once",
):  # fmt: skip
    """`tiled_dq` with one thing broken."""
    dq, scale = np.zeros_like(q), q.shape[1] ** -0.5
    scale_s, scale_dq = (
        scale if scale_s is None else scale_s,
        scale if scale_dq is None else scale_dq,
    )
    total = np.zeros_like(q[:block_q])
    block_kv = len(k) if whole else block_kv
    for i in range(0, len(q), block_q):
        rows = slice(i, i + block_q)
        q_i, do_i = hbm.load("Q", q[rows]), hbm.load("dO", do[rows])
        lse_i = hbm.load("lse", lse[rows], itemsize=itemsize)
        delta_i = hbm.load("D", delta[rows], itemsize=itemsize)
        total = total[: len(q_i)] if shared else np.zeros_like(q_i)
        for j in range(0, stop(len(q), len(k), block_kv), block_kv):
            if again and j:
                hbm.load("Q", q[rows]), hbm.load("dO", do[rows])
            k_j, v_j = hbm.load("K", k[j : j + block_kv]), v[j : j + block_kv]
            if count_v:
                v_j = hbm.load("V", v_j)
            p = np.exp(q_i @ k_j.T * scale_s - lse_i[:, None])
            if own:
                p = p / p.sum(-1, keepdims=True)
            part = (p * (do_i @ v_j.T - delta_i[:, None] * minus)) @ k_j
            total = part if assign else total + part
            if store == "each":
                hbm.store("dQ", dq[rows], total * scale_dq)
        if store == "once":
            hbm.store("dQ", dq[rows], total * scale_dq)
        elif store == "past":
            dq[rows] = total * scale_dq
    return dq


def _gathered(q, k, v, do, lse, delta, block_q, block_kv, hbm):
    """All tiles of K and V are kept, for one product over whole rows."""
    dq = np.empty_like(q)
    for i in range(0, len(q), block_q):
        rows = slice(i, i + block_q)
        q_i, do_i = hbm.load("Q", q[rows]), hbm.load("dO", do[rows])
        sums = (hbm.load(name, x[rows], itemsize=4) for name, x in (("lse", lse), ("D", delta)))
        hbm.store("dQ", dq[rows], _whole(q_i, *gather(hbm, k, v, block_kv), do_i, *sums))
    return dq


def _whole(q, k, v, do, lse, delta, *_):
    scale = q.shape[1] ** -0.5
    p = np.exp(q @ k.T * scale - lse[:, None])
    return p * (do @ v.T - delta[:, None]) @ k * scale


tiled_dq = Exercise(
    "dQ, tile by tile",
    difficulty=4,
    minutes=15,
    task="Write tiled_dq(q, k, v, do, lse, delta, block_q, block_kv, hbm) with q and do (N, d), k and v "
    "(N_kv, d), lse and delta (N,), scale 1/√d. Take tiles with hbm.load(name, tile), names Q, dO, K, V, "
    "lse, D; give back dQ with hbm.store('dQ', dq[rows], value), and return dq. lse and D are FP32: load "
    "them with itemsize=4. N and N_kv differ and are no multiples of the blocks. One tile of Q, dO, lse "
    "and D stays while all K and V tiles go past; the bytes are checked too.",
    answer=tiled_dq,
    cases=_backwards,
    call=_run_dq,
    hints=(
        "Outer loop over Q tiles: load Q, dO, lse and D once, start dq_i at 0.",
        "Inner loop over K and V tiles: p = exp(s − lse), dp = dO Vᵀ, ds = p (dp − D), dq_i += ds K.",
        "Store dq_i · scale after the inner loop. Slices stop at the end by themselves.",
    ),
    wrong=[
        (
            lambda *a: _dq(*a, stop=lambda n, n_kv, b: max(n_kv // b, 1) * b),
            "The last K and V tile is left out when it is shorter than the others.",
        ),
        (
            lambda *a: _dq(*a, stop=lambda n, n_kv, b: min(n, n_kv)),
            "The inner loop runs over the length of q. Keys have a length of their own.",
        ),
        (
            lambda *a: _dq(*a, scale_dq=1.0),
            "dQ = dS K · scale: the scale is missing at the end. It was in S, and the chain rule brings it "
            "back.",
        ),
        (
            lambda *a: _dq(*a, scale_s=1.0),
            "The scale is missing in S, so P is not the P of the forward pass.",
        ),
        (
            lambda *a: _dq(*a, minus=False),
            "D was not subtracted from dP.",
        ),
        (
            lambda *a: _dq(*a, own=True),
            "P was normalised within each tile. A tile is a part of the row: exp(s − lse) is right as it "
            "is.",
        ),
        (
            lambda *a: _dq(*a, shared=True),
            "The sum of one Q tile is carried into the next. Start dq_i at 0 for each.",
        ),
        (
            lambda *a: _dq(*a, assign=True),
            "Each K tile overwrites what the ones before it gave: dq_i += …",
        ),
        (
            lambda *a: _dq(*a, again=True),
            "Q and dO are loaded again for every K tile. Load them once, before the inner loop.",
        ),
        (
            lambda *a: _dq(*a, itemsize=2),
            "The bytes of lse and D are half of what they should be: both are FP32, itemsize=4.",
        ),
        (
            _gathered,
            "All tiles of K and V are kept until the last has come: for long rows they do not fit. A tile "
            "is gone once two more of its kind were loaded.",
        ),
        (
            lambda *a: _dq(*a, whole=True),
            "All of K and V is loaded at once: for long rows it does not fit. Take tiles of block_kv rows.",
        ),
        (
            lambda *a: _dq(*a, count_v=False),
            "V did not come through hbm.load, so its bytes were not counted.",
        ),
        (
            lambda *a: _dq(*a, store="past"),
            "dQ was written past the counter: hbm.store('dQ', dq[rows], value).",
        ),
        (
            lambda *a: _dq(*a, store="each"),
            "dQ is stored after every K tile. It is complete after the inner loop: store it once.",
        ),
        (
            _whole,
            "The numbers are right, but nothing went through hbm, and S was made whole: take tiles.",
        ),
    ],
)

# --- FLOPs ------------------------------------------------------------------------------------


def count_flops(n, n_kv, d, heads, products, causal):
    """FLOPs of so many matrix products over the visible pairs."""
    pairs = sum(max(0, min(n_kv, i + n_kv - n + 1)) if causal else n_kv for i in range(n))
    return products * 2 * d * heads * pairs


def _sizes(rng):
    for n, n_kv, causal in (
        (64, 64, False),
        (64, 64, True),
        (5, 12, True),
        (12, 5, True),
        (7, 9, False),
    ):
        for products in (2, 5):
            yield n, n_kv, int(rng.integers(1, 9)), int(rng.integers(2, 5)), products, causal


count_flops = Exercise(
    "Count the FLOPs",
    difficulty=3,
    minutes=10,
    task="Write count_flops(n, n_kv, d, heads, products, causal): the FLOPs of `products` matrix products "
    "(2 forward, 4, 5 or 7 backward) over all pairs of query and key that are visible. Causal: query i "
    "sees key j when j ≤ i + (n_kv − n). Exact integers.",
    answer=count_flops,
    cases=_sizes,
    hints=(
        "One pair of query and key costs 2d FLOP in each product.",
        "Without a mask there are n · n_kv pairs.",
        "Causal: query i sees i + (n_kv − n) + 1 keys, but never fewer than 0 and never more than n_kv.",
    ),
    wrong=[
        (
            lambda n, n_kv, d, h, p, c: count_flops.answer(n, n_kv, d, h, p, c) // 2,
            "A multiply-add is 2 FLOP.",
        ),
        (
            lambda n, n_kv, d, h, p, c: p * 2 * d * h * n * n_kv,
            "The mask is not counted: hidden pairs cost nothing in a good kernel.",
        ),
        (
            lambda n, n_kv, d, h, p, c: p * 2 * d * h * n * n_kv // (2 if c else 1),
            "Causal is not quite half: the diagonal belongs to it, and n and n_kv may differ.",
        ),
        (
            lambda n, n_kv, d, h, p, c: p * 2 * d * h * (
                sum(min(n_kv, i + 1) for i in range(n)) if c else n * n_kv
            ),
            "This aligns the diagonal at the top left. Here it ends at the bottom right: j ≤ i + n_kv − n.",
        ),
        (
            lambda n, n_kv, d, h, p, c: p * 2 * d * h * (
                sum(i + n_kv - n + 1 for i in range(n)) if c else n * n_kv
            ),
            "With more queries than keys, the first rows see no key: their count must not be negative.",
        ),
        (
            lambda n, n_kv, d, h, p, c: p * 2 * d * h * (
                sum(max(0, min(n_kv, i + n_kv - n)) for i in range(n)) if c else n * n_kv
            ),
            "The diagonal is missing: j = i + n_kv − n is visible, so query i sees one key more.",
        ),
        (
            lambda n, n_kv, d, h, p, c: count_flops.answer(n, n_kv, d, 1, p, c),
            "The heads are missing.",
        ),
    ],
)  # fmt: skip
