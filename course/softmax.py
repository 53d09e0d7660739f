"""Safe and online softmax: the (m, l, o) state, its update, its merge.

For one row of scores s_j with values v_j, seen so far:

    m = max s_j        l = Σ exp(s_j − m)        o = Σ exp(s_j − m) v_j

so that o / l is the softmax-weighted sum of the values and m + log l is log Σ exp(s_j).
A masked score is −∞. A row with nothing to see has output 0 and lse −∞, never NaN.
Sums are kept in at least single precision. ValueError, in one line, for what is not real numbers
and for shapes that do not fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from course.cost import shown, whole

# A NaN that the inputs hold or cause comes out as NaN, and exp of far below 0 as 0: no warnings.
IEEE = np.errstate(invalid="ignore", under="ignore")


class State(NamedTuple):
    """What is known of each row so far. m, l: (...); o: (..., d), not yet divided by l."""

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray

    @classmethod
    def empty(cls, d: int, shape: tuple[int, ...] = (), dtype=np.float64) -> State:
        """The state before anything was seen: m = −∞, l = 0, o = 0. The identity of `merge`."""
        (d,), shape = whole(d=d), tuple(whole(shape=rows)[0] for rows in shape)
        if np.dtype(dtype).kind != "f":
            raise ValueError(f"A state keeps −∞, so its dtype is one of floats, not {dtype!r}.")
        return cls(
            np.full(shape, -np.inf, dtype), np.zeros(shape, dtype), np.zeros((*shape, d), dtype)
        )


@IEEE
def update(state: State, scores: np.ndarray, values: np.ndarray) -> State:
    """The state after one more block.

    scores: (..., block), with the rows of the state; values: (..., block, d), or (block, d) where
    all rows share them.
    """
    rows, d = _shape(state)
    scores, values = as_float(scores), as_float(values)
    block = scores.shape[-1:]
    if scores.ndim == 0 or values.shape[-2:] != (*block, d):
        raise ValueError(
            f"scores {scores.shape} and a state of width {d} need values (..., block, d), "
            f"and these are {values.shape}."
        )
    if scores.shape[:-1] != rows or not _spreads(values.shape[:-2], rows):
        raise ValueError(
            f"A state of rows {rows} needs scores (*rows, block) and values for the same rows, "
            f"and these are {scores.shape} and {values.shape}."
        )
    m = np.maximum(state.m, scores.max(axis=-1, initial=-np.inf))
    alpha = _exp(state.m, m)  # turns what was measured from the old maximum to the new one
    p = _exp(scores, m[..., None])
    l = alpha * state.l + p.sum(axis=-1)
    o = alpha[..., None] * state.o + weigh(p, values, seen=scores != -np.inf)
    return State(m, l, o)


@IEEE
def merge(a: State, b: State) -> State:
    """The state of two disjoint sets of keys, from the state of each. Associative, commutative.

    A finished result (output, lse) is the state State(m=lse, l=1, o=output).
    """
    if _shape(a) != _shape(b):
        raise ValueError(f"States of different shapes: o is {np.shape(a.o)} and {np.shape(b.o)}.")
    m = np.maximum(a.m, b.m)
    alpha, beta = _exp(a.m, m), _exp(b.m, m)
    o = alpha[..., None] * np.asarray(a.o) + beta[..., None] * np.asarray(b.o)
    return State(m, alpha * a.l + beta * b.l, o)


@IEEE
def finish(state: State) -> tuple[np.ndarray, np.ndarray]:
    """(output, lse): o / l of shape (..., d), and m + log l of shape (...), the natural logarithm."""
    _shape(state)
    l = np.where(np.equal(state.l, 0), 1, state.l)  # l is at least 1 once anything was seen
    return state.o / l[..., None], _lse(state.m, l)


@IEEE
def safe_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax with the maximum taken off first, so that exp cannot overflow.

    A slice that is all −∞ gives zeros. A slice that holds +∞ or NaN gives NaN, as in SciPy.
    """
    x = as_float(x)
    p = _exp(x, x.max(axis=axis, keepdims=True, initial=-np.inf))
    total = p.sum(axis=axis, keepdims=True)
    return p / np.where(total == 0, 1, total)


@IEEE
def logsumexp(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """log Σ exp(x) along an axis, with the maximum taken off first; −∞ where all of it is −∞.

    A slice that holds +∞ gives +∞, one that holds NaN gives NaN, as in SciPy.
    """
    x = as_float(x)
    m = x.max(axis=axis, keepdims=True, initial=-np.inf)
    l = _exp(x, m).sum(axis=axis)
    return _lse(np.squeeze(m, axis), np.where(l == 0, 1, l))


def weigh(p: np.ndarray, values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Σ_j p_j v_j over the keys that are seen: (..., block), (..., block, d) → (..., d).

    A plain product would let a NaN in a masked value through, since 0 · NaN is NaN.
    """
    finite = np.isfinite(values)
    total = _product(p, np.where(finite, values, 0))
    spoilt = ~finite.all(axis=-1)  # keys with a value that is not finite: rare, taken one by one
    for j in np.flatnonzero(spoilt.any(axis=tuple(range(spoilt.ndim - 1)))):
        v = np.where(finite[..., j, :], 0, values[..., j, :])
        total = total + p[..., j, None] * np.where(seen[..., j, None], v, 0)
    return total


def _product(p, values):
    if values.ndim == 2:
        return p @ values
    if values.shape[-3] == 1:  # rows of a tile that share their keys: one matrix product
        return p @ values[..., 0, :, :]
    return (p[..., None, :] @ values)[..., 0, :]


def _shape(state):
    """(rows, d) of a state, whose m and l then have the shape `rows`; one l may serve all of them."""
    if not isinstance(state, State):
        raise ValueError(f"A state is State(m, l, o), and this is {shown(state)}.")
    m, l, o = map(np.shape, state)
    if not o or m != o[:-1] or l not in ((), m):
        raise ValueError(
            f"A state has m (...), l (...) and o (..., d), and these are {m}, {l}, {o}."
        )
    return m, o[-1]


def _spreads(shape, rows):
    """Whether an array of this shape can serve these rows, and makes no more of them."""
    try:
        return np.broadcast_shapes(shape, rows) == rows
    except ValueError:
        return False


@np.errstate(over="ignore")  # x − m may leave the range of numbers: −∞ is then right
def _exp(x, m):
    """exp(x − m), where −∞ − (−∞), a masked score of a row with nothing seen, gives 0."""
    return np.exp(x - np.where(m == -np.inf, 0, m))


def _lse(m, l):
    return np.where(np.isinf(m), m, m + np.log(l))


def as_float(x) -> np.ndarray:
    """An array of at least single precision: half precision is for storage, not for sums."""
    try:
        array = np.asarray(x)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # BF16, on a GPU, with a gradient, ragged
        said = str(error).splitlines()[0]
        hint = " Pass x.float(): NumPy has no bfloat16." if "BFloat16" in said else ""
        raise ValueError(f"NumPy makes no array of this {type(x).__name__}: {said}{hint}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"Real numbers are needed, and these are {array.dtype}.")
    return array.astype(np.result_type(array.dtype, np.float32), copy=False)
