"""Safe and online softmax: the (m, l, o) state, its update, its merge.

For one row of scores s_j with values v_j, seen so far:

    m = max s_j        l = Σ exp(s_j − m)        o = Σ exp(s_j − m) v_j

so that o / l is the softmax-weighted sum of the values and m + log l is log Σ exp(s_j).
A masked score is −∞. A row with nothing to see has output 0 and lse −∞, never NaN.
Sums are kept in at least single precision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class State(NamedTuple):
    """What is known of each row so far. m, l: (...); o: (..., d), not yet divided by l."""

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray

    @classmethod
    def empty(cls, d: int, shape: tuple[int, ...] = (), dtype=np.float64) -> State:
        """The state before anything was seen: m = −∞, l = 0, o = 0. The identity of `merge`."""
        return cls(
            np.full(shape, -np.inf, dtype), np.zeros(shape, dtype), np.zeros((*shape, d), dtype)
        )


def update(state: State, scores: np.ndarray, values: np.ndarray) -> State:
    """The state after one more block.

    scores: (..., block); values: (..., block, d), or (block, d) where all rows share them.
    """
    scores = _float(scores)
    m = np.maximum(state.m, scores.max(axis=-1, initial=-np.inf))
    alpha = _exp(state.m, m)  # turns what was measured from the old maximum to the new one
    p = _exp(scores, m[..., None])
    l = alpha * state.l + p.sum(axis=-1)
    o = alpha[..., None] * state.o + weigh(p, values, seen=scores != -np.inf)
    return State(m, l, o)


def merge(a: State, b: State) -> State:
    """The state of two disjoint sets of keys, from the state of each. Associative, commutative."""
    m = np.maximum(a.m, b.m)
    alpha, beta = _exp(a.m, m), _exp(b.m, m)
    return State(m, alpha * a.l + beta * b.l, alpha[..., None] * a.o + beta[..., None] * b.o)


def finish(state: State) -> tuple[np.ndarray, np.ndarray]:
    """(output, lse): o / l of shape (..., d), and m + log l of shape (...), the natural logarithm."""
    some = state.l != 0  # l is at least 1 once anything was seen
    l = np.where(some, state.l, 1)
    return state.o / l[..., None], np.where(some, state.m + np.log(l), -np.inf)


def safe_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax with the maximum taken off first, so that exp cannot overflow.

    A slice that is all −∞ gives zeros. A slice that holds +∞ or NaN gives NaN, as in SciPy.
    """
    x = _float(x)
    p = _exp(x, x.max(axis=axis, keepdims=True, initial=-np.inf))
    total = p.sum(axis=axis, keepdims=True)
    return p / np.where(total == 0, 1, total)


def logsumexp(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """log Σ exp(x) along an axis, with the maximum taken off first; −∞ where all of it is −∞."""
    x = _float(x)
    m = x.max(axis=axis, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore"):  # log 0 = −∞ is the right answer
        return np.squeeze(m, axis) + np.log(_exp(x, m).sum(axis=axis))


def weigh(p: np.ndarray, values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Σ_j p_j v_j over the keys that are seen: (..., block), (..., block, d) → (..., d).

    A plain product would let a NaN in a masked value through, since 0 · NaN is NaN.
    """
    values = np.asarray(values)
    finite = np.isfinite(values)
    total = _product(p, np.where(finite, values, 0))
    spoilt = ~finite.all(axis=-1)  # keys with a value that is not finite: rare, taken one by one
    for j in np.flatnonzero(spoilt.reshape(-1, spoilt.shape[-1]).any(axis=0)):
        v = np.where(finite[..., j, :], 0, values[..., j, :])
        total = total + np.where(seen[..., j, None], p[..., j, None] * v, 0)
    return total


def _product(p, values):
    if values.ndim == 2:
        return p @ values
    if values.shape[-3] == 1:  # rows of a tile that share their keys: one matrix product
        return p @ values[..., 0, :, :]
    return (p[..., None, :] @ values)[..., 0, :]


def _exp(x, m):
    """exp(x − m), where −∞ − (−∞), a masked score of a row with nothing seen, gives 0."""
    with np.errstate(invalid="ignore"):  # ∞ − ∞: a +∞ score makes its row NaN, on purpose
        return np.exp(x - np.where(m == -np.inf, 0, m))


def _float(x):
    """At least single precision: half precision is for storage, not for sums."""
    x = np.asarray(x)
    return x.astype(np.result_type(x.dtype, np.float32), copy=False)
