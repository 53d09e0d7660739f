"""The bytes counted while attention runs are the bytes that `cost.attention` says, exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course import attention, cost
from course.exercises import softmax as ex
from course.exercises._watched import Watched
from course.hbm import Hbm


def inputs(n, n_kv, d, heads, kv_heads, batch):
    rng = np.random.default_rng(0)
    q, do = rng.normal(size=(2, batch, heads, n, d))
    k, v = rng.normal(size=(2, batch, kv_heads, n_kv, d))
    return q, k, v, do


@st.composite
def problems(draw):
    kv_heads = draw(st.integers(1, 3))
    return dict(
        n=draw(st.integers(0, 20)),
        n_kv=draw(st.integers(0, 20)),
        d=draw(st.integers(1, 4)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        batch=draw(st.integers(0, 2)),
    )


@settings(max_examples=300, deadline=None)
@given(
    problems(), st.booleans(), st.sampled_from([1, 2, 4]), st.integers(1, 25), st.integers(1, 25)
)
def test_counted_bytes_equal_the_formula(problem, causal, itemsize, block_q, block_kv):
    q, k, v, do = inputs(**problem)
    blocks = dict(block_q=block_q, block_kv=block_kv)
    forward, backward = Hbm(itemsize), Hbm(itemsize)
    o, lse = attention.flash(q, k, v, causal=causal, hbm=forward, **blocks)
    attention.flash_backward(q, k, v, o, lse, do, causal=causal, hbm=backward, **blocks)
    for hbm, is_backward in ((forward, False), (backward, True)):
        expected = cost.attention(
            **problem, **blocks, flow="tiled", causal=causal, itemsize=itemsize,
            backward=is_backward,
        )  # fmt: skip
        assert (hbm.read, hbm.written) == (expected.read, expected.written)
        assert hbm.bytes == expected.bytes


def test_the_default_blocks_are_the_same_on_both_sides():
    q, k, v, do = inputs(n=130, n_kv=200, d=2, heads=2, kv_heads=1, batch=1)
    forward, backward = Hbm(), Hbm()
    o, lse = attention.flash(q, k, v, causal=True, hbm=forward)
    attention.flash_backward(q, k, v, o, lse, do, causal=True, hbm=backward)
    problem = dict(n_kv=200, heads=2, kv_heads=1, causal=True)
    assert forward.bytes == cost.attention(130, 2, flow="tiled", **problem).bytes
    assert backward.bytes == cost.attention(130, 2, flow="tiled", backward=True, **problem).bytes


def test_forward_by_name():
    """Two query heads on one K and V of 10 rows, in blocks of 4 queries and 3 keys, by hand."""
    q, k, v, _ = inputs(n=8, n_kv=10, d=5, heads=2, kv_heads=1, batch=1)
    hbm = Hbm(itemsize=2)
    attention.flash(q, k, v, block_q=4, block_kv=3, hbm=hbm)
    row = 5 * 2
    assert hbm.read_by_name == {
        "Q": 2 * 8 * row,
        "K": 2 * 2 * 10 * row,  # heads · Q blocks · keys
        "V": 2 * 2 * 10 * row,
    }
    assert hbm.written_by_name == {"O": 2 * 8 * row}


def test_causal_forward_by_name():
    """Queries 0–3 see up to key 5, so the blocks 0–2 and 3–5; queries 4–7 see all ten keys."""
    q, k, v, _ = inputs(n=8, n_kv=10, d=5, heads=1, kv_heads=1, batch=1)
    hbm = Hbm(itemsize=2)
    attention.flash(q, k, v, block_q=4, block_kv=3, causal=True, hbm=hbm)
    assert hbm.read_by_name["K"] == hbm.read_by_name["V"] == (6 + 10) * 5 * 2


def test_backward_by_name():
    q, k, v, do = inputs(n=8, n_kv=10, d=5, heads=2, kv_heads=1, batch=1)
    o, lse = attention.naive(q, k, v)
    hbm = Hbm(itemsize=2)
    attention.flash_backward(q, k, v, o, lse, do, block_q=4, block_kv=3, hbm=hbm)
    row, heads, k_blocks, q_blocks = 5 * 2, 2, 4, 2
    queries = heads * 8
    assert hbm.read_by_name == {
        "O": queries * row,
        "dO": (1 + k_blocks + 1) * queries * row,  # D, then once a K block, then for dQ
        "Q": (k_blocks + 1) * queries * row,
        "lse": (k_blocks + 1) * queries * 4,
        "D": (k_blocks + 1) * queries * 4,
        "K": (1 + heads * q_blocks) * 10 * row,
        "V": (1 + heads * q_blocks) * 10 * row,
    }
    assert hbm.written_by_name == {
        "D": queries * 4,
        "dK": 10 * row,
        "dV": 10 * row,
        "dQ": queries * row,
    }


def test_counting_changes_no_result():
    q, k, v, _ = inputs(n=9, n_kv=7, d=3, heads=2, kv_heads=2, batch=2)
    plain, counted = attention.flash(q, k, v), attention.flash(q, k, v, hbm=Hbm())
    np.testing.assert_array_equal(plain[0], counted[0])
    np.testing.assert_array_equal(plain[1], counted[1])


def test_one_memory_adds_up_what_several_runs_move():
    q, k, v, _ = inputs(n=9, n_kv=7, d=3, heads=1, kv_heads=1, batch=1)
    hbm = Hbm()
    attention.flash(q, k, v, hbm=hbm)
    once = hbm.bytes
    attention.flash(q, k, v, hbm=hbm)
    assert hbm.bytes == 2 * once > 0


def test_load_and_store():
    hbm, memory = Hbm(itemsize=2), np.arange(6.0).reshape(2, 3)
    tile = hbm.load("A", memory[:, :2], times=3)
    hbm.store("B", memory[0], tile[0, 1])
    hbm.load("lse", memory[0], itemsize=4)
    np.testing.assert_array_equal(memory, [[1, 1, 1], [3, 4, 5]])
    assert hbm.read_by_name == {"A": 4 * 3 * 2, "lse": 3 * 4}
    assert (hbm.read, hbm.written, hbm.bytes) == (36, 6, 42)


def scaled_in_place(q, k, v, block_q, block_kv, hbm):
    """The tiled loop, with the scale put into each K tile in place: right, whatever else it does."""
    o = np.empty_like(q)
    for i in range(0, len(q), block_q):
        q_i = hbm.load("Q", q[i : i + block_q])
        m, l, acc = np.full((len(q_i), 1), -np.inf), 0.0, 0.0
        for j in range(0, len(k), block_kv):
            k_j, v_j = hbm.load("K", k[j : j + block_kv]), hbm.load("V", v[j : j + block_kv])
            k_j *= q.shape[1] ** -0.5
            s = q_i @ k_j.T
            m_old, m = m, np.maximum(m, s.max(axis=1, keepdims=True))
            s -= m
            np.exp(s, out=s)
            l = np.exp(m_old - m) * l + s.sum(axis=1, keepdims=True)
            acc = np.exp(m_old - m) * acc + s @ v_j
        hbm.store("O", o[i : i + block_q], acc / l)
    return o


def test_e10_what_is_done_to_a_tile_does_not_reach_main_memory():
    """Right in the check's memory, so right in the course's."""
    assert ex.tiled.verdict(scaled_in_place, 0)[0] == "right"
    q, k, v = np.random.default_rng(0).normal(size=(3, 11, 4))
    before = [a.copy() for a in (q, k, v)]
    o = scaled_in_place(q, k, v, 4, 3, Hbm())
    np.testing.assert_allclose(o, attention.naive(q, k, v)[0], rtol=1e-13)
    for a, b in zip((q, k, v), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("memory", [Hbm, Watched])
@pytest.mark.parametrize("view", [np.s_[:], np.s_[1:3], np.s_[:, ::2], np.s_[2], np.s_[1, 2]])
def test_e10_both_memories_give_copies(memory, view):
    hbm, x = memory(), np.arange(12.0).reshape(4, 3)
    outside = hbm.lend(x) if memory is Watched else x
    tile = np.asarray(hbm.load("A", outside[view]))
    assert not np.shares_memory(tile, x) and not np.shares_memory(tile, outside)
    assert hbm.read == 2 * x[view].size
    if tile.ndim:  # a single number is no view of memory
        np.testing.assert_array_equal(tile, x[view])
        tile[...] = -1
    np.testing.assert_array_equal(x, np.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize("itemsize", [0, -2, 0.5, "fp16", None, float("nan")])
def test_an_itemsize_that_is_none_is_refused(itemsize):
    with pytest.raises(ValueError, match=r"^itemsize must be a whole number, 1 or more"):
        Hbm(itemsize)
