"""Softmax, safe and online, against SciPy, hand-computed figures and the definition in FP64."""

from math import exp, fsum, inf, log, nan

import numpy as np
import pytest
import scipy.special
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course.softmax import State, finish, logsumexp, merge, safe_softmax, update

PUBLISHED = [2, 3, 5, 2, 4, 0, -1, 2]  # B1
ROUNDING = 8 * np.finfo(float).eps  # of eight terms, in the order that suits the processor


def run(scores, values, sizes=None, dtype=np.float64):
    """The state after blocks of these sizes; all in one block without."""
    scores, values = np.asarray(scores, dtype), np.asarray(values, dtype)
    state, start = State.empty(values.shape[-1], dtype=dtype), 0
    for size in [len(scores)] if sizes is None else sizes:
        block = slice(start, start + size)
        state, start = update(state, scores[block], values[block]), start + size
    assert start == len(scores)
    return state


def reference(scores, values):
    """(output, lse) by SciPy; a row with nothing to see, where it gives NaN, is (0, −∞)."""
    scores, values = np.asarray(scores, float), np.asarray(values, float)
    if scores.size == 0 or np.all(scores == -inf):
        return np.zeros(values.shape[-1]), -inf
    return scipy.special.softmax(scores) @ values, scipy.special.logsumexp(scores)


# The field's cases


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("sizes", [[1] * 8, [8], [3, 3, 2], [5, 3], [1, 7], [0, 4, 0, 4]])
def test_b1_published_statistics_for_any_split_and_order(sizes, order):
    x = PUBLISHED[::order]
    state = run(x, np.ones((8, 1)), sizes)
    assert state.m == 5
    assert state.l == pytest.approx(1.6617926286873987, abs=ROUNDING)
    output, lse = finish(state)
    assert output == pytest.approx(1, abs=ROUNDING)
    assert f"{lse:.6f} {lse / log(2):.6f}" == "5.507897 7.946216"
    assert logsumexp(x) == pytest.approx(lse, abs=ROUNDING)


def test_b1_second_probe():
    x = [1000.0, 2000, 3000]
    np.testing.assert_array_equal(safe_softmax(x), [0, 0, 1])
    np.testing.assert_array_equal(finish(run(x, np.eye(3), [1, 1, 1]))[0], [0, 0, 1])


@pytest.mark.parametrize(
    ("scores", "dtype", "weights"),
    [
        ([-800, -801, -802], np.float64, [0.66524, 0.24473, 0.09003]),
        ([-110, -111], np.float32, [0.73106, 0.26894]),
        ([-2000, -2001], np.float64, [0.73106, 0.26894]),
    ],
)
def test_b2_the_running_maximum_starts_at_minus_infinity(scores, dtype, weights):
    state = run(scores, np.eye(len(scores)), [1] * len(scores), dtype)
    assert state.m == scores[0] and state.l >= 1
    np.testing.assert_allclose(finish(state)[0], weights, atol=5e-6)
    np.testing.assert_allclose(safe_softmax(np.asarray(scores, dtype)), weights, atol=5e-6)


@pytest.mark.parametrize("swap", [False, True])
def test_b4_merging_two_finished_results(swap):
    a, b = State(m=log(3), l=1.0, o=[1.0]), State(m=0.0, l=1.0, o=[5.0])
    output, lse = finish(merge(b, a) if swap else merge(a, b))
    assert output == pytest.approx(2.0)
    assert lse == pytest.approx(log(4))


def test_b6_the_maximum_is_of_all_blocks_not_of_this_one():
    values = np.float32([[1], [2], [3], [4]])
    output, _ = finish(run([100, 99, -100, -101], values, [2, 2], np.float32))
    assert output == pytest.approx(1.2689414, abs=3e-7)  # two steps of FP32


@pytest.mark.parametrize("place", [0, 50_000, 99_999])
def test_b7_slices_of_minus_infinity_before_the_only_score(place):
    scores = np.full(100_000, -inf)
    scores[place] = 10
    weights = safe_softmax(scores)
    assert weights[place] == weights.sum() == 1
    assert logsumexp(scores) == 10  # so the loss, lse − score, is 0
    output, lse = finish(run(scores, np.arange(100_000.0)[:, None], [1000] * 100))
    assert (output, lse) == (place, 10)


@pytest.mark.parametrize("sizes", [[64], [16] * 4, [1] * 64])
def test_b8_scores_below_any_sentinel(sizes):
    scores = np.full(64, -245_000.0)
    scores[0] = -240_000
    scores /= 128**0.5
    values = np.random.default_rng(0).normal(size=(64, 3))
    np.testing.assert_allclose(finish(run(scores, values, sizes))[0], values[0], rtol=1e-15)


def test_a18_plus_infinity_and_nan_are_not_tidied_up():
    for row in ([0, inf], [inf, inf], [0, nan], [inf, nan], [-inf, nan]):
        assert np.isnan(safe_softmax(row)).all()
        assert np.isnan(finish(run(row, np.ones((2, 1)), [1, 1]))[0]).all()
        expected = scipy.special.logsumexp(row)
        assert np.array_equal(logsumexp(row), expected, equal_nan=True)
        for sizes in ([2], [1, 1]):
            lse = finish(run(row, np.ones((2, 1)), sizes))[1]
            assert np.array_equal(lse, expected, equal_nan=True)


@pytest.mark.parametrize("poison", [nan, inf, -inf])
def test_a18_a_masked_value_has_no_effect(poison):
    values = [[1.0, 2], [poison, poison], [3, 4]]
    output, lse = finish(run([0, -inf, 0], values, [2, 1]))
    np.testing.assert_array_equal(output, [2, 3])
    assert lse == pytest.approx(log(2))


def test_a18_a_nan_in_a_value_that_is_seen_stays_in_its_place():
    output, _ = finish(run([0, 0], [[1.0, nan], [3, 4]]))
    np.testing.assert_array_equal(output, [2, nan])


def test_a19_a_bias_is_on_the_natural_scale():
    scores = np.zeros(2) + np.array([0, log(3)])
    np.testing.assert_allclose(safe_softmax(scores), [0.25, 0.75])
    np.testing.assert_allclose(finish(run(scores, np.eye(2), [1, 1]))[0], [0.25, 0.75])


# Any split, any order

SCORE = (
    st.floats(-1e300, 1e300)
    | st.floats(-30, 30)
    | st.sampled_from([-inf, 0.0, 5e-324, -1e-310, 1e300, -1e300, 7.0])
)


@st.composite
def rows(draw):
    scores = draw(st.lists(SCORE, min_size=0, max_size=12))
    values = draw(
        st.lists(st.floats(-9, 9), min_size=2 * len(scores), max_size=2 * len(scores)),
    )
    return np.array(scores, float), np.array(values, float).reshape(-1, 2)


@settings(deadline=None, max_examples=300)
@given(row=rows(), data=st.data())
@example(row=(np.array([-inf] * 3), np.ones((3, 2))), data=None)
@example(row=(np.array([1e300, -1e300, 0.0]), np.eye(3)[:, :2]), data=None)
@example(row=(np.array([7.0] * 5), np.arange(10.0).reshape(5, 2)), data=None)
def test_any_split_and_any_order_of_merges_give_what_scipy_gives(row, data):
    scores, values = row
    order, cuts = np.arange(len(scores)), [1] * len(scores)
    if data is not None:
        order = np.array(data.draw(st.permutations(range(len(scores)))), int)
        ends = data.draw(st.lists(st.integers(0, len(scores)), max_size=4).map(sorted))
        cuts = np.diff([0, *ends, len(scores)])
    output, lse = reference(scores, values)
    online = run(scores[order], values[order], cuts)
    pieces = [run(scores[p], values[p]) for p in np.split(order, np.cumsum(cuts)[:-1])]
    while len(pieces) > 1:  # any tree
        i = 0 if data is None else data.draw(st.integers(0, len(pieces) - 2))
        pieces[i : i + 2] = [merge(pieces[i], pieces[i + 1])]
    for state in (online, pieces[0] if pieces else State.empty(2)):
        got, got_lse = finish(state)
        np.testing.assert_allclose(got, output, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(got_lse, lse, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(logsumexp(scores), lse, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(safe_softmax(scores) @ values, output, rtol=1e-12, atol=1e-13)


def assert_same(a, b, rtol):
    for name, x, y in zip(a._fields, a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-13 if rtol else 0, err_msg=name)


@settings(deadline=None)
@given(rows(), rows(), rows())
def test_merge_is_associative_and_commutative_and_has_an_identity(a, b, c):
    a, b, c = (run(*row) for row in (a, b, c))
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)), rtol=1e-13)
    assert_same(merge(a, b), merge(b, a), rtol=0)
    assert_same(merge(a, State.empty(2)), a, rtol=0)
    assert_same(merge(State.empty(2), a), a, rtol=0)


@settings(deadline=None)
@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=9),
    st.integers(-(2**45), 2**45),
    st.integers(1, 9),
)
def test_a_shift_of_all_scores_changes_no_weight(scores, shift, block):
    scores, values = np.array(scores, float), np.arange(len(scores) * 2.0).reshape(-1, 2)
    sizes = [min(block, len(scores) - at) for at in range(0, len(scores), block)]
    here, there = run(scores, values, sizes), run(scores + shift, values, sizes)
    np.testing.assert_array_equal(here.l, there.l)  # small integers: every difference is exact
    np.testing.assert_array_equal(here.o, there.o)
    assert there.m == here.m + shift
    np.testing.assert_array_equal(safe_softmax(scores), safe_softmax(scores + shift))


def test_the_state_is_its_definition_after_every_block():
    rng = np.random.default_rng(1)
    scores, values = 30 * rng.normal(size=23), rng.normal(size=(23, 4))
    state, seen = State.empty(4), 0
    for size in (5, 1, 0, 10, 7):
        state = update(state, scores[seen : seen + size], values[seen : seen + size])
        seen += size
        m = max(scores[:seen])
        assert state.m == m
        assert state.l == pytest.approx(fsum(exp(s - m) for s in scores[:seen]), rel=1e-14)
        o = [fsum(exp(scores[j] - m) * values[j, i] for j in range(seen)) for i in range(4)]
        np.testing.assert_allclose(state.o, o, rtol=1e-13)


# Shapes, types, extremes


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 3)])
@pytest.mark.parametrize("shared", [True, False])
def test_batches_of_rows_with_shared_or_own_values(shape, shared):
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(*shape, 10))
    scores[rng.random(scores.shape) < 0.3] = -inf
    values = rng.normal(size=(10, 4) if shared else (*shape, 10, 4))
    state = State.empty(4, shape)
    for start in range(0, 10, 4):  # ragged: 4, 4, 2
        block = slice(start, start + 4)
        state = update(state, scores[..., block], values[..., block, :])
    output, lse = finish(state)
    assert state.m.shape == state.l.shape == lse.shape == shape
    assert state.o.shape == output.shape == (*shape, 4)
    full = np.broadcast_to(values, (*shape, 10, 4))
    for row in np.ndindex(shape):
        expected, expected_lse = reference(scores[row], full[row])
        np.testing.assert_allclose(output[row], expected, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(lse[row], expected_lse, rtol=1e-13)


def test_rows_of_a_tile_share_the_values_of_their_batch():
    rng = np.random.default_rng(3)
    scores, values = rng.normal(size=(5, 6, 10)), rng.normal(size=(5, 1, 10, 4))
    output, _ = finish(update(State.empty(4, (5, 6)), scores, values))
    np.testing.assert_allclose(output, scipy.special.softmax(scores, -1) @ values[:, 0])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_axes_as_in_scipy(axis):
    x = 100 * np.random.default_rng(4).normal(size=(3, 4, 5))
    np.testing.assert_allclose(safe_softmax(x, axis), scipy.special.softmax(x, axis), rtol=1e-13)
    np.testing.assert_allclose(logsumexp(x, axis), scipy.special.logsumexp(x, axis), rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_as_far_apart_as_numbers_go(dtype):
    x = np.array([np.finfo(dtype).max, np.finfo(dtype).min])
    np.testing.assert_array_equal(safe_softmax(x), [1, 0])
    np.testing.assert_array_equal(logsumexp(x), x[0])
    state = run(x[::-1], np.eye(2), [1, 1], x.dtype)
    np.testing.assert_array_equal(finish(state)[0], [0, 1])


@pytest.mark.parametrize("errors", [dict(all="raise"), dict(all="warn")])
def test_the_callers_numpy_settings_do_not_matter(errors):
    rows = ([0.0, -2000.0], [-inf, -inf], [0.0, inf], [nan, 1.0], [-1.7e308, 1.7e308])
    with np.errstate(**errors):
        for row in rows:
            safe_softmax(row), logsumexp(row), finish(run(row, [[1.0], [-inf]], [1, 1]))
            merge(run(row, np.ones((2, 1))), run(row, np.ones((2, 1))))


def test_half_precision_is_summed_in_single():
    rng = np.random.default_rng(5)
    scores = (5 * rng.normal(size=4096)).astype(np.float16)
    values = rng.normal(size=(4096, 2)).astype(np.float16)
    state = State.empty(2, dtype=np.float32)
    for start in range(0, 4096, 100):
        state = update(state, scores[start : start + 100], values[start : start + 100])
    output, lse = finish(state)
    expected, expected_lse = reference(scores, values)
    assert output.dtype == safe_softmax(scores).dtype == logsumexp(scores).dtype == np.float32
    np.testing.assert_allclose(output, expected, atol=1e-6)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-6)


def test_65504_the_largest_half_does_not_overflow():
    x = np.float16([65504, 65504, -65504])
    np.testing.assert_array_equal(safe_softmax(x), np.float32([0.5, 0.5, 0]))


def test_inputs_may_be_lists_integers_views_or_read_only_and_are_left_alone():
    scores, values = np.arange(20)[::2], np.arange(40.0).reshape(2, 20).T[::2]
    for a in (scores, values):
        a.flags.writeable = False
    expected, expected_lse = reference(scores, values)
    before = State.empty(2)
    for s, v in ((scores, values), (scores.tolist(), values.tolist())):
        output, lse = finish(update(before, s, v))
        np.testing.assert_allclose(output, expected)
        np.testing.assert_allclose(lse, expected_lse)
    assert_same(before, State.empty(2), rtol=0)
    x = np.float64([1, 2])
    safe_softmax(x), logsumexp(x)
    np.testing.assert_array_equal(x, [1, 2])


def test_nothing_at_all():
    assert safe_softmax([]).shape == (0,)
    assert safe_softmax(np.zeros((2, 0))).shape == (2, 0)
    assert logsumexp([]) == -inf
    np.testing.assert_array_equal(safe_softmax([-inf, -inf]), [0, 0])
    output, lse = finish(State.empty(3, (2,)))
    np.testing.assert_array_equal(output, np.zeros((2, 3)))
    np.testing.assert_array_equal(lse, [-inf, -inf])


# Refusals


@pytest.mark.parametrize(
    ("scores", "values"),
    [
        (np.zeros(2), np.zeros((2, 1))),  # would spread silently over the width
        (np.zeros(2), np.zeros((1, 3))),
        (np.zeros(2), np.zeros(2)),
        (np.zeros(2), np.zeros((3, 2))),
        (np.zeros(()), np.zeros((1, 3))),
    ],
)
def test_values_that_do_not_fit_are_refused(scores, values):
    with pytest.raises(ValueError, match=r"need values \(\.\.\., block, d\)"):
        update(State.empty(3), scores, values)


@pytest.mark.parametrize("other", [State.empty(1), State.empty(3, (2,)), State.empty(3, (1,))])
def test_states_of_different_shapes_are_refused(other):
    with pytest.raises(ValueError, match="different shapes"):
        merge(State.empty(3), other)


@pytest.mark.parametrize("x", [["a", "b"], [1j], [None]])
def test_what_is_no_real_number_is_refused(x):
    for f in (safe_softmax, logsumexp):
        with pytest.raises(ValueError, match="Real numbers are needed"):
            f(x)
