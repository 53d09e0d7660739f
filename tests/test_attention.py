"""Attention in NumPy, forward and backward, against loops in FP64 and torch's FP64 autograd."""

from math import exp, fsum, inf, log, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.attention import flash, flash_backward, naive, naive_backward
from course.measure import peak_memory

PAIRS = [(naive, naive_backward), (flash, flash_backward)]
IDS = ["naive", "flash"]
FORWARD = pytest.mark.parametrize("forward", [naive, flash], ids=IDS)
BOTH = pytest.mark.parametrize(("forward", "backward"), PAIRS, ids=IDS)


def inputs(*, n=9, n_kv=None, d=8, heads=None, kv_heads=None, batch=(), seed=0, dtype=np.float64):
    """q, k, v and do; plain matrices without heads."""
    rng = np.random.default_rng(seed)
    n_kv = n if n_kv is None else n_kv
    kv_heads = heads if kv_heads is None else kv_heads
    q_shape = (*batch, *([heads] if heads else []), n, d)
    k_shape = (*batch, *([kv_heads] if kv_heads else []), n_kv, d)
    return tuple(rng.normal(size=s).astype(dtype) for s in (q_shape, k_shape, k_shape, q_shape))


def loops(q, k, v, causal=False, scale=None):
    """(o, lse) of one head by the definition, one query and one key after the other."""
    (n, d), n_kv = q.shape, len(k)
    scale = d**-0.5 if scale is None else scale
    o, lse = np.zeros((n, d)), np.full(n, -inf)
    for i in range(n):
        keys = [j for j in range(n_kv) if not causal or j <= i + n_kv - n]
        if keys:
            s = {j: scale * fsum(q[i] * k[j]) for j in keys}
            m = max(s.values())
            p = {j: exp(s[j] - m) for j in keys}
            l = fsum(p.values())
            o[i] = [fsum(p[j] * v[j, c] for j in keys) / l for c in range(d)]
            lse[i] = m + log(l)
    return o, lse


def autograd(q, k, v, do, causal=False, scale=None, dtype=torch.float64):
    """(o, lse, dq, dk, dv) by torch, from the plain formula with an explicit mask."""
    q, k, v = (torch.tensor(np.asarray(x)).to(dtype).requires_grad_() for x in (q, k, v))
    k_all, v_all = k, v
    if q.ndim > 2:
        group = q.shape[-3] // k.shape[-3]
        k_all, v_all = (x.repeat_interleave(group, dim=-3) for x in (k, v))
    n, n_kv = q.shape[-2], k.shape[-2]
    seen = torch.ones(n, n_kv, dtype=torch.bool)
    if causal:
        seen = seen.tril(n_kv - n)
    some = seen.any(-1, keepdim=True)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = (q @ k_all.mT * scale).masked_fill(~seen, -inf)
    lse = torch.logsumexp(s, -1)
    p = torch.softmax(s.masked_fill(~some, 0), -1) * some
    o = p @ v_all
    grads = torch.autograd.grad(o, (q, k, v), torch.tensor(np.asarray(do)).to(dtype))
    return [x.detach().double().numpy() for x in (o, lse, *grads)]


def everything(forward, backward, q, k, v, do, blocks=(64, 64), **options):
    """(o, lse, dq, dk, dv) by the course."""
    if forward is flash:
        options |= dict(zip(("block_q", "block_kv"), blocks, strict=True))
    o, lse = forward(q, k, v, **options)
    return o, lse, *backward(q, k, v, o, lse, do, **options)


def assert_close(results, expected, rtol=1e-11, atol=1e-12):
    for name, x, y in zip(("o", "lse", "dq", "dk", "dv"), results, expected, strict=False):
        assert x.shape == y.shape, name
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=name)


# Against independent references


@FORWARD
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "n_kv"), [(1, 1), (5, 5), (3, 8), (8, 3), (1, 7)])
def test_forward_is_the_definition(forward, causal, n, n_kv):
    q, k, v, _ = inputs(n=n, n_kv=n_kv, d=3)
    assert_close(forward(q, k, v, causal=causal), loops(q, k, v, causal))


@st.composite
def problems(draw):
    kv_heads = draw(st.integers(1, 2))
    return dict(
        n=draw(st.integers(0, 12)),
        n_kv=draw(st.integers(0, 12)),
        d=draw(st.integers(1, 9)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        batch=draw(st.sampled_from([(), (2,), (0,), (2, 3)])),
        seed=draw(st.integers(0, 999)),
    )


@settings(max_examples=100, deadline=None)
@given(
    problems(),
    st.booleans(),
    st.sampled_from([None, 0.5, 1.3, -0.7, 0, 30.0]),
    st.tuples(st.integers(1, 14), st.integers(1, 14)),
)
def test_any_problem_and_any_blocks_match_autograd(problem, causal, scale, blocks):
    q, k, v, do = inputs(**problem)
    expected = autograd(q, k, v, do, causal, scale)
    for pair in PAIRS:
        results = everything(*pair, q, k, v, do, blocks, causal=causal, scale=scale)
        assert_close(results, expected, rtol=1e-9, atol=1e-11)


@BOTH
@pytest.mark.parametrize("causal", [False, True])
def test_no_error_above_twice_that_of_torch_in_single_precision(forward, backward, causal):
    q, k, v, do = inputs(n=150, n_kv=170, d=64, heads=4, kv_heads=2, dtype=np.float32)
    exact = autograd(q, k, v, do, causal)
    plain = autograd(q, k, v, do, causal, dtype=torch.float32)
    ours = everything(forward, backward, q, k, v, do, causal=causal)
    for x, theirs, truth in zip(ours, plain, exact, strict=True):
        assert x.dtype == np.float32
        assert np.linalg.norm(x - truth) <= 2 * np.linalg.norm(theirs - truth)


# The field's cases


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_a1_lengths_and_blocks_do_not_have_to_fit(block):
    for n in (1, 5, 8, 17, 63, 65, 127, 129):
        q, k, v, _ = inputs(n=n, d=16, heads=2, seed=n)
        q, k = -abs(q), abs(k)  # all scores negative: a padded key, of score 0, would win
        assert_close(flash(q, k, v, block_q=block, block_kv=block), naive(q, k, v))
        assert_close(flash(q, k, v, block_q=block, block_kv=16), naive(q, k, v))
    q, k, v, do = inputs(n=8, d=128, heads=40, batch=(1,))
    results = everything(flash, flash_backward, q, k, v, do, (block, block))
    assert_close(results, autograd(q, k, v, do))


@FORWARD
def test_a1_leak_probe(forward):
    q, k, v, _ = inputs(n=5, d=4, seed=1)
    assert_close(forward(-abs(q), abs(k), v), loops(-abs(q), abs(k), v))


@BOTH
def test_a2_one_query_on_a_longer_cache(forward, backward):
    q, k, v, do = inputs(n=1, n_kv=20, d=128, heads=32, batch=(4,))
    results = everything(forward, backward, q, k, v, do)
    assert results[0].shape == (4, 32, 1, 128)
    assert_close(results, autograd(q, k, v, do))
    assert_close(results, everything(forward, backward, q, k, v, do, causal=True))


@FORWARD
def test_a3_causal_aligns_bottom_right(forward):
    q, k, v = np.zeros((2, 1)), np.zeros((5, 1)), np.arange(5.0)[:, None]
    o, lse = forward(q, k, v, causal=True)
    np.testing.assert_allclose(o[:, 0], [1.5, 2.0], rtol=1e-15)
    np.testing.assert_allclose(lse, np.log([4, 5]), rtol=1e-15)


@BOTH
@pytest.mark.parametrize("blocks", [(64, 64), (2, 2), (1, 3), (3, 1)])
def test_a5_rows_that_see_no_key(forward, backward, blocks):
    q, k, v, do = inputs(n=10, n_kv=4, d=8, heads=2)
    results = everything(forward, backward, q, k, v, do, blocks, causal=True)
    o, lse, dq, *_ = results
    assert (o[:, :6] == 0).all() and (lse[:, :6] == -inf).all() and (dq[:, :6] == 0).all()
    assert_close(results, autograd(q, k, v, do, causal=True))
    assert all(np.isfinite(x).all() for x in results[2:])


@BOTH
@pytest.mark.parametrize("d", [31, 40, 80, 96, 160, 192, 256])
def test_a8_any_width(forward, backward, d):
    q, k, v, do = inputs(n=32, d=d)
    assert_close(everything(forward, backward, q, k, v, do), autograd(q, k, v, do))


@FORWARD
def test_a9_every_dimension_counts(forward):
    q = np.zeros((2, 128))
    q[:, 100] = 8, -8
    p, _ = forward(q, q, np.eye(2, 128))
    np.testing.assert_allclose(p[:, :2], [[0.99999, 1.2e-5], [1.2e-5, 0.99999]], atol=5e-6)


@BOTH
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [0.5, 1.3, None])
def test_a10_a21_backward_knows_the_options_of_forward(forward, backward, causal, scale):
    q, k, v, do = inputs(n=128, d=64)
    results = everything(forward, backward, q, k, v, do, (48, 32), causal=causal, scale=scale)
    assert_close(results, autograd(q, k, v, do, causal, scale))


@BOTH
def test_a14_query_heads_in_a_row_share_a_key_head(forward, backward):
    q, k, v, do = inputs(n=3, d=8, heads=4, kv_heads=2)
    results = everything(forward, backward, q, k, v, do)
    each = [everything(forward, backward, q[h], k[h // 2], v[h // 2], do[h]) for h in range(4)]
    o, lse, dq, dk, dv = (np.stack(x) for x in zip(*each, strict=True))
    dk, dv = (x.reshape(2, 2, 3, 8).sum(axis=1) for x in (dk, dv))
    assert_close(results, (o, lse, dq, dk, dv))


@BOTH
@pytest.mark.parametrize(("value", "d"), [(40, 64), (256, 128)])
def test_a17_products_beyond_the_range_of_half_precision(forward, backward, value, d):
    q = np.full((6, d), value, np.float16)
    v = np.arange(6 * d).reshape(6, d).astype(np.float16)
    o, lse, *grads = everything(forward, backward, q, q, v, np.ones_like(q), (4, 2))
    np.testing.assert_allclose(o, np.broadcast_to(v.mean(0, dtype=np.float64), o.shape), rtol=1e-6)
    np.testing.assert_allclose(lse, value**2 * d**0.5 + log(6), rtol=1e-6)
    assert all(np.isfinite(x).all() for x in grads)


@BOTH
@pytest.mark.parametrize("poison", [nan, inf, -inf])
@pytest.mark.parametrize("blocks", [(64, 64), (2, 2), (1, 5)])
def test_a18_what_the_mask_hides_has_no_effect(forward, backward, poison, blocks):
    """The last key is seen by the last query alone, and the first queries see no key at all."""
    clean = inputs(n=8, n_kv=5, d=4, heads=2)
    o, lse, dq, dk, dv = everything(forward, backward, *clean, blocks, causal=True)

    q, k, v, do = (x.copy() for x in clean)
    k[:, -1] = v[:, -1] = poison
    bad = everything(forward, backward, q, k, v, do, blocks, causal=True)
    for x, y in zip(bad[:3], (o, lse, dq), strict=True):
        np.testing.assert_array_equal(x[:, :-1], y[:, :-1])

    q, k, v, do = (x.copy() for x in clean)
    q[:, :3] = do[:, :3] = poison
    bad = everything(forward, backward, q, k, v, do, blocks, causal=True)
    for x, y in zip(bad, (o, lse, dq, dk, dv), strict=True):
        np.testing.assert_array_equal(x, y)

    q, k, v, do = (x.copy() for x in clean)
    q[:, 3] = do[:, 3] = poison  # sees key 0 alone
    bad = everything(forward, backward, q, k, v, do, blocks, causal=True)
    for x, y in zip(bad[3:], (dk, dv), strict=True):
        np.testing.assert_allclose(x[:, 1:], y[:, 1:], rtol=1e-13)


@FORWARD
def test_a18_a_nan_that_is_seen_is_not_tidied_up(forward):
    q, k, v, _ = inputs(n=4, d=4)
    k[2] = nan
    o, lse = forward(q, k, v, causal=True)
    assert np.isnan(o[2:]).all() and np.isnan(lse[2:]).all() and np.isfinite(o[:2]).all()


@BOTH
def test_a20_a_negative_scale(forward, backward):
    q, k, v, do = inputs(n=4, d=8)
    q, k = 40 * q, 40 * k
    results = everything(forward, backward, q, k, v, do, (2, 2), scale=-0.35)
    assert all(np.isfinite(x).all() for x in results)
    assert_close(results, autograd(q, k, v, do, scale=-0.35), atol=1e-9)


@pytest.mark.parametrize("forward_backward", PAIRS, ids=IDS)
def test_a23_run_after_run_gives_the_same_bits(forward_backward):
    q, k, v, do = inputs(n=70, d=16, heads=2, dtype=np.float32)
    one, two = (everything(*forward_backward, q, k, v, do, (16, 16)) for _ in range(2))
    for x, y in zip(one, two, strict=True):
        np.testing.assert_array_equal(x, y)


@BOTH
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("q_shape", "k_shape"),
    [
        ((0, 2, 4, 8), (0, 2, 4, 8)),
        ((1, 2, 0, 8), (1, 2, 0, 8)),
        ((1, 2, 3, 8), (1, 2, 0, 8)),
        ((0, 8), (4, 8)),
        ((4, 8), (0, 8)),
    ],
)
def test_a24_empty_tensors(forward, backward, causal, q_shape, k_shape):
    q, k = np.ones(q_shape), np.ones(k_shape)
    o, lse, dq, dk, dv = everything(forward, backward, q, k, k, q, causal=causal)
    assert (o.shape, lse.shape, dq.shape) == (q_shape, q_shape[:-1], q_shape)
    assert dk.shape == dv.shape == k_shape
    assert not o.any() and not dq.any() and not dk.any() and not dv.any()
    assert (lse == -inf).all()


@FORWARD
@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        (("f2", "f2", "f2"), "f4"),
        (("f4", "f2", "f4"), "f4"),
        (("f2", "f8", "f2"), "f8"),
        (("i4", "i4", "i4"), "f8"),
        (("?", "?", "?"), "f4"),
    ],
)
def test_a24_mixed_and_low_precision(forward, dtypes, result):
    q, k, v = ((4 * x).astype(t) for x, t in zip(inputs(n=7, d=4), dtypes, strict=False))
    o, lse = forward(q, k, v, scale=np.float64(0.3))
    assert o.dtype == lse.dtype == result
    expected = loops(*(x.astype(float) for x in (q, k, v)), scale=0.3)
    assert_close((o, lse), expected, rtol=1e-5, atol=1e-5)


# How arrays come


@BOTH
def test_a13_views_lists_and_read_only_arrays(forward, backward):
    clean = inputs(n=6, n_kv=6, d=4, heads=2)
    expected = everything(forward, backward, *clean)
    turned = [np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2) for x in clean]
    strided = [np.repeat(x, 2, axis=-1)[..., ::2] for x in clean]
    assert not turned[0].flags.c_contiguous and not strided[0].flags.c_contiguous
    for arrays in (turned, strided, [x[::-1].copy()[::-1] for x in clean]):
        for x in arrays:
            x.flags.writeable = False
        assert_close(everything(forward, backward, *arrays), expected)
    assert_close(everything(forward, backward, *(x.tolist() for x in clean)), expected)


@BOTH
def test_inputs_are_left_alone(forward, backward):
    arrays = inputs(n=6, d=4, heads=2)
    o, lse = forward(*arrays[:3], causal=True)
    given_in = (*arrays, o, lse)
    before = [x.copy() for x in given_in]
    q, k, v, do = arrays
    results = backward(q, k, v, o, lse, do, causal=True)
    for x, y in zip(given_in, before, strict=True):
        np.testing.assert_array_equal(x, y)
        assert not any(np.shares_memory(x, result) for result in results)


def test_flash_keeps_no_n_by_n_matrix():
    n, d = 1024, 4
    q, k, v, do = inputs(n=n, d=d, dtype=np.float32)
    o, lse = flash(q, k, v)
    for flow, least, most in (("naive", n * n * 4, inf), ("flash", 0, n * n * 4 / 4)):
        forward, backward = dict(zip(IDS, PAIRS, strict=True))[flow]
        for call in (
            lambda f=forward: f(q, k, v),
            lambda b=backward: b(q, k, v, o, lse, do),
        ):
            assert least <= peak_memory(call) < most


# Refusals, each in one line

Q = np.ones((2, 4, 5, 8))


@FORWARD
@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (Q, Q[:, :3], Q[:, :3], "Query heads (4) must be a multiple of key heads (3)"),
        (Q[:, :2], Q, Q, "Query heads (2) must be a multiple of key heads (4)"),
        (Q[:, :0], Q[:, :0], Q[:, :0], "one at least"),
        (Q, Q[:1], Q[:1], "Batch axes differ"),
        (Q, Q[..., :7], Q[..., :7], "same width d, 1 or more: 8 and 7"),
        (Q[..., :0], Q[..., :0], Q[..., :0], "same width d, 1 or more: 0 and 0"),
        (Q, Q, Q[..., :7], "k and v must have the same shape"),
        (Q, Q[:, :, :3], Q, "k and v must have the same shape"),
        (Q, Q[0], Q[0], "same number of axes"),
        (Q[0, 0, 0], Q[0, 0, 0], Q[0, 0, 0], "2 or more: 1, 1, 1"),
        (1, 2, 3, "2 or more: 0, 0, 0"),
        ("q", "k", "v", "Real numbers are needed"),
        (Q * 1j, Q, Q, "Real numbers are needed"),
        (Q, Q.astype(str), Q, "Real numbers are needed"),
        (Q, Q, Q.astype(object), "Real numbers are needed"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(forward, q, k, v, message):
    with pytest.raises(ValueError) as error:
        forward(q, k, v)
    assert message in str(error.value) and "\n" not in str(error.value)


@FORWARD
@pytest.mark.parametrize("scale", [nan, inf, "wide", 1j, [0.1, 0.2]])
def test_a_scale_that_is_no_number_is_refused(forward, scale):
    with pytest.raises(ValueError, match=r"^scale must be a finite number"):
        forward(Q, Q, Q, scale=scale)


@pytest.mark.parametrize("block", [0, -1, 2.5, "64", None, nan])
@pytest.mark.parametrize("name", ["block_q", "block_kv"])
def test_a_block_that_is_no_size_is_refused(name, block):
    o, lse = flash(Q, Q, Q)
    message = "^block must be a whole number, 1 or more"
    with pytest.raises(ValueError, match=message):
        flash(Q, Q, Q, **{name: block})
    with pytest.raises(ValueError, match=message):
        flash_backward(Q, Q, Q, o, lse, Q, **{name: block})


@pytest.mark.parametrize("backward", [naive_backward, flash_backward], ids=IDS)
def test_what_the_backward_pass_is_given_must_fit(backward):
    o, lse = naive(Q, Q, Q)
    for bad, message in [
        ((o[:1], lse, Q), "o has shape"),
        ((o, lse, Q[..., :1]), "do has shape"),
        ((o, lse[..., None], Q), "lse has shape"),
        ((o, lse, Q * 1j), "Real numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            backward(Q, Q, Q, *bad)
