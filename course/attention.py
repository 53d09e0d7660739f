"""Attention in NumPy: naive and tiled, forward and backward.

Shapes: q (..., H, N, d), k and v (..., H_kv, N_kv, d), where H is a multiple of H_kv: query head h
uses key head h // (H / H_kv). Without heads, plain (N, d) matrices. Causal aligns bottom-right:
query i sees key j when j ≤ i + (N_kv − N). A query that sees no key has output 0, lse −∞ and zero
gradients. What the mask hides has no effect, even where it is NaN. Results have the precision of
the inputs, and at least single precision. ValueError, in one line, for inputs that do not fit.
"""

from __future__ import annotations

import numpy as np

from course.cost import STATISTIC_BYTES, shown, true_or_false, whole
from course.hbm import Hbm
from course.softmax import (
    IEEE,
    State,
    as_float,
    finish,
    logsumexp,
    safe_softmax,
    update,
    weigh,
)


@IEEE
def naive(q, k, v, *, causal=False, scale=None):
    """Attention as it is written: S = QKᵀ·scale, P = softmax(S), O = PV, each N×N matrix in full.

    Returns o, shaped like q, and lse (..., H, N), the natural log Σ exp of each row of S.
    scale is 1/√d unless given.
    """
    x = _Heads(q, k, v, causal, scale)
    s = x.scores(x.q, x.k, slice(0, x.n), slice(0, x.n_kv))
    p = safe_softmax(s)
    o = weigh(p, x.v[..., None, :, :], seen=s != -np.inf)
    return o.reshape(np.shape(q)), logsumexp(s).reshape(np.shape(q)[:-1])


@IEEE
def flash(q, k, v, *, block_q=64, block_kv=64, causal=False, scale=None, hbm=None):
    """The same, block by block, with the online softmax: no N×N matrix anywhere.

    Returns (o, lse) as `naive` does. Every Q block walks over the K and V blocks that it can see.
    Give a `course.hbm.Hbm` to count the bytes this moves; lse, which inference does not keep, is
    not counted.
    """
    x, hbm = _Heads(q, k, v, causal, scale), _memory(hbm)
    o, lse = np.empty_like(x.q), np.empty_like(x.q[..., 0])
    for rows in _blocks(x.n, block_q):
        q_i = hbm.load("Q", x.q[..., rows, :])
        state = State.empty(x.d, q_i.shape[:-1], q_i.dtype)
        for cols in _blocks(x.n_kv, block_kv):
            if x.sees(rows, cols):
                k_j = hbm.load("K", x.k[..., cols, :], times=x.group)
                v_j = hbm.load("V", x.v[..., cols, :], times=x.group)
                s = x.scores(q_i, k_j, rows, cols)
                state = update(state, s, v_j[..., None, :, :])
        o_i, lse[..., rows] = finish(state)
        hbm.store("O", o[..., rows, :], o_i)
    return o.reshape(np.shape(q)), lse.reshape(np.shape(q)[:-1])


@IEEE
def naive_backward(q, k, v, o, lse, do, *, causal=False, scale=None):
    """Gradients (dq, dk, dv) for the upstream gradient `do`, with every N×N matrix in full.

    o and lse are what the forward pass returned; do is shaped like o.
    """
    x = _Heads(q, k, v, causal, scale)
    o, do, lse = x.as_q(o, "o"), x.as_q(do, "do"), x.as_lse(lse)
    delta = (do * o).sum(axis=-1)
    rows, cols = slice(0, x.n), slice(0, x.n_kv)
    p, ds, seen = _probabilities(x, x.q, x.k, x.v, lse, do, delta, rows, cols)
    dv = _over_queries(p, do, seen)
    dk = _over_queries(ds, x.q, seen) * x.scale
    dq = weigh(ds, x.k[..., None, :, :], seen) * x.scale
    return dq.reshape(np.shape(q)), dk.reshape(np.shape(k)), dv.reshape(np.shape(v))


@IEEE
def flash_backward(
    q, k, v, o, lse, do, *, block_q=64, block_kv=64, causal=False, scale=None, hbm=None
):
    """The same gradients block by block, with P computed again from lse and no N×N matrix kept.

    Three passes, each a kernel on a GPU: D by rows, then dK and dV by columns, then dQ by rows.
    """
    x, hbm = _Heads(q, k, v, causal, scale), _memory(hbm)
    o, do, lse = x.as_q(o, "o"), x.as_q(do, "do"), x.as_lse(lse)
    dq, dk, dv, delta = (np.empty_like(a) for a in (x.q, x.k, x.v, x.q[..., 0]))

    for rows in _blocks(x.n, block_q):
        o_i, do_i = hbm.load("O", o[..., rows, :]), hbm.load("dO", do[..., rows, :])
        hbm.store("D", delta[..., rows], (do_i * o_i).sum(axis=-1), itemsize=STATISTIC_BYTES)

    def load_rows(rows):
        return (
            hbm.load("Q", x.q[..., rows, :]),
            hbm.load("dO", do[..., rows, :]),
            hbm.load("lse", lse[..., rows], itemsize=STATISTIC_BYTES),
            hbm.load("D", delta[..., rows], itemsize=STATISTIC_BYTES),
        )

    for cols in _blocks(x.n_kv, block_kv):
        k_j, v_j = hbm.load("K", x.k[..., cols, :]), hbm.load("V", x.v[..., cols, :])
        dk_j, dv_j = np.zeros_like(k_j), np.zeros_like(v_j)
        for rows in _blocks(x.n, block_q):
            if x.sees(rows, cols):
                q_i, do_i, lse_i, delta_i = load_rows(rows)
                p, ds, seen = _probabilities(x, q_i, k_j, v_j, lse_i, do_i, delta_i, rows, cols)
                dv_j += _over_queries(p, do_i, seen)
                dk_j += _over_queries(ds, q_i, seen)
        hbm.store("dK", dk[..., cols, :], dk_j * x.scale)
        hbm.store("dV", dv[..., cols, :], dv_j)

    for rows in _blocks(x.n, block_q):
        q_i, do_i, lse_i, delta_i = load_rows(rows)
        dq_i = np.zeros_like(q_i)
        for cols in _blocks(x.n_kv, block_kv):
            if x.sees(rows, cols):
                k_j = hbm.load("K", x.k[..., cols, :], times=x.group)
                v_j = hbm.load("V", x.v[..., cols, :], times=x.group)
                _, ds, seen = _probabilities(x, q_i, k_j, v_j, lse_i, do_i, delta_i, rows, cols)
                dq_i += weigh(ds, k_j[..., None, :, :], seen)
        hbm.store("dQ", dq[..., rows, :], dq_i * x.scale)
    return dq.reshape(np.shape(q)), dk.reshape(np.shape(k)), dv.reshape(np.shape(v))


def _probabilities(x, q, k, v, lse, do, delta, rows, cols):
    """P = exp(S − lse), computed again, dS = P ∘ (dOVᵀ − D), and what is seen, of one tile."""
    s = x.scores(q, k, rows, cols)
    seen = s != -np.inf
    p = np.exp(np.where(seen, s - lse[..., None], -np.inf))
    dp = do @ v.swapaxes(-1, -2)
    return p, np.where(seen, p * (dp - delta[..., None]), 0), seen


def _over_queries(p, a, seen):
    """pᵀ a of one tile, summed over the query heads that share a key head."""
    each = weigh(p.swapaxes(-1, -2), a[..., None, :, :], seen.swapaxes(-1, -2))
    return each.sum(axis=-3, keepdims=True)


def _memory(hbm):
    """The counted memory that was given, or a new one."""
    if not isinstance(hbm, Hbm | None):
        raise ValueError(f"hbm must be a course.hbm.Hbm, and is {shown(hbm)}.")
    return Hbm() if hbm is None else hbm


def _blocks(n, size):
    """Slices of `size` rows that cover n; the last may be shorter."""
    (size,) = whole(1, block=size)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


class _Heads:
    """The checked inputs, with q as (..., H_kv, group, N, d) and k, v as (..., H_kv, 1, N_kv, d)."""

    def __init__(self, q, k, v, causal, scale):
        q, k, v = as_float(q), as_float(k), as_float(v)
        self.q_shape = q.shape
        self.group = _check(q, k, v)
        self.n, self.d, self.n_kv = *q.shape[-2:], k.shape[-2]
        (self.causal,) = true_or_false(causal=causal)
        self.scale = self.d**-0.5 if scale is None else _finite(scale)
        dtype = np.result_type(q, k, v)
        self.q = self._split(q, self.group).astype(dtype)
        self.k, self.v = (self._split(a, 1).astype(dtype) for a in (k, v))

    @staticmethod
    def _split(a, group):
        heads = a[None] if a.ndim == 2 else a
        return heads.reshape(*heads.shape[:-3], heads.shape[-3] // group, group, *heads.shape[-2:])

    def as_q(self, a, name):
        a = as_float(a)
        if a.shape != self.q_shape:
            raise ValueError(
                f"{name} has shape {a.shape}; it must be shaped like q, {self.q_shape}."
            )
        return self._split(a, self.group).astype(self.q.dtype)

    def as_lse(self, lse):
        lse = as_float(lse)
        if lse.shape != self.q_shape[:-1]:
            raise ValueError(
                f"lse has shape {lse.shape}; it must be q's without d, {self.q_shape[:-1]}."
            )
        return lse.reshape(self.q.shape[:-1]).astype(self.q.dtype)

    def seen(self, rows, cols):
        """Which (query, key) pairs of a tile are visible, a matrix of booleans."""
        i = np.arange(rows.start, rows.stop)[:, None] + (self.n_kv - self.n)
        j = np.arange(cols.start, cols.stop)[None, :]
        return j <= i if self.causal else np.ones((i.size, j.size), bool)

    def sees(self, rows, cols):
        """Whether any pair of the tile is visible: the last query and the first key decide."""
        return not self.causal or cols.start <= rows.stop - 1 + (self.n_kv - self.n)

    def scores(self, q, k, rows, cols):
        """S of one tile, masked scores −∞."""
        return np.where(self.seen(rows, cols), q @ k.swapaxes(-1, -2) * self.scale, -np.inf)


def _finite(scale):
    try:
        kind = getattr(getattr(scale, "dtype", None), "kind", "f")
        # float() would read a text, and of NumPy's complex numbers take the real part
        real = kind in "biuf" and not isinstance(scale, str | bytes)
        number = float(scale) if real else np.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = np.nan
    if not np.isfinite(number):
        raise ValueError(f"scale must be a finite number, and is {shown(scale)}.")
    return number


def _check(q, k, v):
    """Query heads a key head, or one line that says what does not fit."""
    if not 2 <= q.ndim == k.ndim == v.ndim:
        raise ValueError(
            f"q, k and v need the same number of axes, 2 or more: {q.ndim}, {k.ndim}, {v.ndim}."
        )
    if k.shape != v.shape:
        raise ValueError(f"k and v must have the same shape: {k.shape} and {v.shape}.")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(
            f"q and k need the same width d, 1 or more: {q.shape[-1]} and {k.shape[-1]}."
        )
    if q.shape[:-3] != k.shape[:-3]:
        raise ValueError(f"Batch axes differ: {q.shape[:-3]} for q and {k.shape[:-3]} for k.")
    if q.ndim == 2:
        return 1
    heads, kv_heads = q.shape[-3], k.shape[-3]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"Query heads ({heads}) must be a multiple of key heads ({kv_heads}), one at least."
        )
    return heads // kv_heads
