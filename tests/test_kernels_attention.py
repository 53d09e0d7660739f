"""Triton attention in the interpreter: right for every shape, mask, scale, stride and data type.

Case ids are those of the field cases. What needs a GPU or a large input is in gpu/.
"""

import itertools
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

if find_spec("triton") is None:
    pytest.skip("Triton has no wheel for this platform", allow_module_level=True)

import course.attention
from course import kernels
from course.kernels import attention, launch, naive, tiles
from course.kernels.autograd import VARIANTS, Attention

if not kernels.interpreted:
    pytest.skip("a GPU is here: gpu/test_attention_gpu.py covers it", allow_module_level=True)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HALF = [torch.float16, torch.bfloat16]


def random(*shape, dtype=torch.float32, seed=0, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (size * torch.randn(*shape, generator=generator)).to(dtype)


def qkv(b=1, h=1, n=40, d=32, *, n_kv=None, h_kv=None, dtype=torch.float32, size=1.0):
    kv = b, h_kv or h, n if n_kv is None else n_kv, d
    q = random(b, h, n, d, dtype=dtype, size=size)
    return q, *(random(*kv, dtype=dtype, seed=s, size=size) for s in (1, 2))


# --- shapes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "n, n_kv", [(1, 1), (5, 5), (63, 65), (65, 63), (129, 127), (1, 130), (140, 3)]
)
def test_ragged_lengths(n, n_kv, causal, dtype, assert_attention):  # A1, A2
    assert_attention(*qkv(1, 2, n, 24, n_kv=n_kv, dtype=dtype), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_the_result_does_not_depend_on_the_tile(causal):  # A1, A3, A10
    q, k, v = qkv(1, 2, 70, 16, n_kv=101)
    do, dlse = random(*q.shape, seed=5), random(*q.shape[:3], seed=6)
    options = {"causal": causal, "scale": 0.25}
    results = []
    for block_q, block_kv in ((16, 16), (16, 128), (32, 64), (64, 32), (128, 16)):
        tile = tiles.Tile(block_q, block_kv, 4, 1)
        o, rest, m, inv_l = launch.forward(q, k, v, **options, tile=tile)
        grads = launch.backward(
            q, k, v, o, rest, do, dlse, m, inv_l, **options, dkdv_tile=tile, dq_tile=tile
        )
        results.append((o, (m - inv_l.log2())[..., :70], *grads))
    for result in results[1:]:
        for x, y in zip(result, results[0], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 5, 17, 63, 127])
def test_padding_never_wins(n, assert_attention):  # A1: all real scores are below a padded zero
    q, k, v = qkv(1, 2, n, 16)
    assert_attention(-q.abs(), k.abs(), v)


def test_padding_and_rows_of_huge_negative_scores(assert_attention):
    # lse is about -1000 here: 2^(0 - lse) of a padded key is infinite, and must not reach dq.
    q, k, v = qkv(1, 1, 20, 16, n_kv=70)
    assert_attention(q.abs() * -40, k.abs() * 40 + 1, v)


def test_what_lies_past_the_end_never_leaks(assert_attention):  # A18
    q, k, v = (torch.full((1, 2, 96, 48), math.nan) for _ in range(3))
    inside = (slice(None), slice(None), slice(13, 83), slice(4, 44))
    for x, seed in ((q, 1), (k, 2), (v, 3)):
        x[inside] = random(1, 2, 70, 40, seed=seed)
    for causal in (False, True):
        assert_attention(q[inside], k[inside], v[inside], causal=causal)


@pytest.mark.parametrize("d", [1, 2, 31, 40, 80, 96, 128, 160, 256])
def test_head_dimensions(d, assert_attention):  # A8
    for dtype in DTYPES if d < 100 else [torch.float16]:
        assert_attention(*qkv(1, 1, 32, d, dtype=dtype), causal=True)


def test_every_dimension_counts():  # A9
    q = torch.zeros(1, 1, 2, 128)
    q[..., 100] = torch.tensor([8.0, -8.0])
    v = torch.zeros(1, 1, 2, 128)
    v[0, 0, 0, 7] = 1
    o = attention(q, q, v)[0, 0, :, 7]
    torch.testing.assert_close(o, torch.tensor([0.9999878, 1.2195e-5]), rtol=1e-3, atol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("h, h_kv", [(4, 2), (6, 1), (3, 3)])
def test_grouped_queries(h, h_kv, causal, assert_attention):  # A14
    for dtype in DTYPES:
        assert_attention(*qkv(2, h, 3, 8, n_kv=70, h_kv=h_kv, dtype=dtype), causal=causal)
    assert_attention(*qkv(1, h, 70, 8, n_kv=3, h_kv=h_kv), causal=causal)


@pytest.mark.parametrize("b, n, n_kv", [(0, 4, 4), (1, 0, 5), (1, 0, 0), (2, 3, 0)])
def test_nothing_to_attend_to(b, n, n_kv):  # A24
    q, k, v = (x.requires_grad_() for x in qkv(b, 2, n, 8, n_kv=n_kv))
    for causal in (False, True):
        o, lse = attention(q, k, v, causal=causal, return_lse=True)
        assert o.shape == q.shape and not o.any() and (lse == -math.inf).all()
        grads = torch.autograd.grad((o.sum(), lse[lse > -1].sum()), (q, k, v))
        for x, g in zip((q, k, v), grads, strict=True):
            assert g.shape == x.shape and not g.any()


def test_no_heads():
    q, k, v = qkv(2, 0, 3, 8, h_kv=0)
    assert attention(q, k, v).shape == (2, 0, 3, 8)


# --- masks ------------------------------------------------------------------------------------


def test_causal_is_bottom_right():  # A3
    q, k = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 5, 1)
    v = torch.arange(5.0).view(1, 1, 5, 1)
    assert attention(q, k, v, causal=True).flatten().tolist() == [1.5, 2.0]
    # More queries than keys: the first rows see nothing.
    o, lse = attention(v, k[..., :2, :], v[..., :2, :], causal=True, return_lse=True)
    torch.testing.assert_close(o.flatten(), torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5]))
    assert (
        (lse[0, 0, :3] == -math.inf).all()
        and lse[0, 0, 3] == 0
        and math.isclose(lse[0, 0, 4], math.log(2), rel_tol=1e-6)
    )


@pytest.mark.parametrize("n_kv", [1, 30, 64, 100])
def test_rows_that_see_no_key_get_nothing(n_kv, assert_attention):  # A5
    ours = assert_attention(*qkv(1, 2, 130, 16, n_kv=n_kv), causal=True)
    blind = slice(0, 130 - n_kv)
    for name in ("o", "dq"):
        assert not ours[name][:, :, blind].any()


def test_backward_is_causal_only_when_asked():  # A10
    q, k, v = (x.requires_grad_() for x in qkv(1, 1, 128, 64))
    do = torch.zeros(1, 1, 128, 64)
    do[..., 3, :] = 1
    for causal, sees_all in ((False, True), (True, False)):
        dk, dv = torch.autograd.grad(attention(q, k, v, causal=causal), (k, v), do)
        for g in (dk, dv):
            assert g[..., :4, :].any() and bool(g[..., 4:, :].any()) == sees_all


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "size, scale",
    [(1e-3, None), (4, None), (1, 0.5), (1, 1.3), (1, -0.35), (40, -0.35), (1, 0), (1, 1e-42)],
)
def test_scales(size, scale, causal, dtype, assert_attention):  # A20, A21
    assert_attention(*qkv(1, 1, 70, 20, dtype=dtype, size=size), causal=causal, scale=scale)


@pytest.mark.parametrize("size, d", [(40, 64), (256, 128)])
def test_scores_beyond_the_range_of_half(size, d, assert_attention):  # A17
    for dtype in DTYPES:
        q = torch.full((1, 1, 5, d), float(size), dtype=dtype)
        v = random(1, 1, 5, d, dtype=dtype)
        ours = assert_attention(q, q, v)
        torch.testing.assert_close(
            ours["o"].float(), v.float().mean(2, True).expand(1, 1, 5, d), rtol=1e-2, atol=2e-3
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2**-7, 1, 8, 128, 1024])
def test_rows_of_the_recomputed_p_sum_to_one(size, dtype):
    """Up to scores of 10⁷. With dO the identity, dV is P transposed, as backward recomputes it.

    q and k are whole numbers times a power of two, so that no order of summing changes a bit of S:
    forward takes Q Kᵀ, backward K Qᵀ, and NumPy sums the two differently on some processors.
    """
    d, n_kv = 32, 150
    whole = (x.mul(3).round().clamp(-9, 9) for x in qkv(1, 1, d, d, n_kv=n_kv))
    q, k, v = ((size * x).to(dtype).requires_grad_() for x in whole)
    for k_used in (k, k[..., :1, :].expand_as(k)):  # scores all different, and all equal
        o = attention(q, k_used.contiguous(), v, causal=True)
        (dv,) = torch.autograd.grad(o, v, torch.eye(d, dtype=dtype).expand(1, 1, d, d))
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(
            dv.double().sum(2).flatten(), torch.ones(d).double(), rtol=0, atol=max(rounding, 3e-6)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-4, 1e3])
def test_any_upstream_gradient(size, dtype, assert_attention):
    q, k, v = qkv(1, 2, 70, 16, dtype=dtype)
    assert_attention(q, k, v, do=random(*q.shape, seed=4, dtype=dtype, size=size))
    expanded = torch.tensor(size, dtype=dtype).expand(q.shape)  # what o.sum().backward() hands down
    assert_attention(q, k, v, do=expanded, dlse=torch.zeros(q.shape[:3]))


def test_values_of_any_size(assert_attention):  # D15: a check in absolute terms would pass zeros
    q, k, v = qkv(1, 1, 50, 16, dtype=torch.float16)
    assert_attention(q, k, v * 1e-3)
    with pytest.raises(AssertionError):
        assert_attention(
            q,
            k,
            v * 1e-3,
            run=lambda q, k, v, **o: (
                0 * naive.attention(q, k, v, causal=False),
                naive.attention(q, k, v, **o)[1].float(),
            ),
        )


def test_nan_and_infinity_are_not_hidden():  # A18: softmax(0, +∞) is NaN, not a tidy number
    q, k, v = qkv(1, 1, 4, 4)
    k[0, 0, 1] = math.inf
    assert attention(q, k, v).isnan().any()


@pytest.mark.parametrize("causal", [False, True])
def test_scores_of_minus_infinity(causal):  # B7: whole tiles of them before the first finite one
    q, k, v = qkv(1, 1, 150, 8, n_kv=200)
    q = q.abs() + 0.1
    hidden = torch.ones(200, dtype=torch.bool)
    hidden[[130, 199]] = False
    k[:, :, hidden] = -math.inf
    o, lse = attention(q, k, v, causal=causal, return_lse=True)
    exact, exact_lse = naive.attention(q, k, v, causal=causal, return_lse=True)
    sees = ~exact.isnan().any(-1)  # rows before key 130 see no finite score: NaN, no tidy number
    assert sees.all() != causal
    torch.testing.assert_close(o[sees], exact[sees])
    torch.testing.assert_close(lse[sees], exact_lse[sees])
    assert o[~sees].isnan().all() and (lse[~sees] == -math.inf).all()


def gradients(f, *tensors, loss, **options):
    inputs = [x.clone().requires_grad_() for x in tensors]
    total = loss(*f(*inputs, return_lse=True, **options))
    return torch.autograd.grad(total, inputs, allow_unused=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [63, 64, 70])
def test_a_key_of_minus_infinity_spoils_no_gradient_but_dq(n, dtype):
    """Rows past n are 0 in their tile, and 0 · −∞ is NaN: it must not reach dk and dv."""
    q, k, v = (x.to(dtype) for x in qkv(1, 1, n, 8, n_kv=5))
    q, k[:, :, 0] = q.abs() + 0.1, -math.inf
    for f in (naive.attention, attention):
        dq, dk, dv = gradients(f, q, k, v, loss=lambda o, lse: o.sum())
        assert dq.isnan().all()  # dS K is 0 · −∞
        assert dk.isfinite().all() and dv.isfinite().all()


def test_a_nan_slope_of_a_row_without_keys_stays_there():
    """lse² has slope −∞ · 0 where lse = −∞, though the loss leaves these rows out."""
    q, k, v = qkv(1, 2, 6, 8, n_kv=3)
    for f in (naive.attention, attention):
        loss = lambda o, lse: torch.where(lse > -math.inf, lse**2, 0.0).sum()  # noqa: E731
        dq, dk, _ = gradients(f, q, k, v, loss=loss, causal=True)
        assert dq.isfinite().all() and dk.isfinite().all()


def test_a_nan_upstream_of_a_row_stays_with_the_keys_that_it_sees():
    q, k, v = qkv(1, 1, 8, 8)
    do = random(1, 1, 8, 8)
    do[0, 0, 0, 0] = math.nan
    for f in (naive.attention, attention):
        dq, dk, _ = gradients(f, q, k, v, loss=lambda o, lse: (o * do).sum(), causal=True)
        assert dk[:, :, 1:].isfinite().all() and dq[:, :, 1:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size, mean, most", [(1, 0, (0.35, 0.35)), (2, 4, (0.3, 0.55))])
def test_half_types_lose_less_than_the_rule_allows(size, mean, most, dtype):
    """Error / (eps · truth) in the norm. Plain PyTorch loses units here, and twice that would let
    pass: P in BF16 (1.5), truncation (0.7), acc rounded a tile (0.45), D from the rounded o (2)."""
    q, k, v, do = (random(1, 2, 200, 24, seed=seed) for seed in range(4))
    q, k, v, do = (x.to(dtype) for x in (size * q, size * k, v + mean, do))
    dlse = random(1, 2, 200, seed=4)
    found = []
    for f, to in ((attention, dtype), (naive.attention, torch.float64)):
        inputs = [x.to(to).requires_grad_() for x in (q, k, v)]
        o, lse = f(*inputs, return_lse=True)
        total = (o * do.to(to)).sum() + (lse * dlse.to(lse.dtype)).sum()
        found.append([x.detach().double() for x in (o, lse, *torch.autograd.grad(total, inputs))])
    eps = torch.finfo(dtype).eps
    o, lse, *grads = ((x - y).norm() / y.norm() / eps for x, y in zip(*found, strict=True))
    assert lse < 0.01 and o < most[0] and max(grads) < most[1]


def test_scores_all_below_the_range_of_fp32():
    q, k, v = qkv(1, 1, 4, 4)
    assert attention(q.abs() + 1, -k.abs() - 1, v, scale=2e38).isnan().all()


def test_the_worked_example():
    """Scores 1, 3 | 4, 2 and values 1, 2, 3, 4, in tiles of two: 2.786, as in notebook 05."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([1.0, 3, 4, 2]).view(1, 1, 4, 1)
    v = torch.tensor([1.0, 2, 3, 4]).view(1, 1, 4, 1)
    o, lse = attention(q, k, v, scale=1, return_lse=True)
    assert round(o.item(), 3) == 2.786
    assert math.isclose(lse.item(), 4 + math.log(1.5530), abs_tol=1e-4)


def test_equal_to_the_numpy_loop():
    q, k, v = qkv(2, 4, 50, 24, n_kv=60, h_kv=2)
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    o_numpy, lse_numpy = course.attention.flash(*(x.numpy() for x in (q, k, v)), causal=True)
    torch.testing.assert_close(o, torch.from_numpy(o_numpy).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, torch.from_numpy(lse_numpy).float(), rtol=1e-5, atol=1e-6)


# --- strides, autograd ------------------------------------------------------------------------


def test_strides(assert_attention):  # A13
    q, k, v = qkv(1, 16, 62, 32, dtype=torch.float16)
    v = random(1, 62, 16 * 32, dtype=torch.float16).view(1, 62, 16, 32).transpose(1, 2)
    assert_attention(q, k, v, causal=True)
    last_first = random(1, 2, 24, 40).transpose(2, 3)  # d is not the fastest dimension
    assert_attention(last_first, random(1, 2, 40, 48)[..., ::2], random(1, 2, 41, 24)[:, :, 1:])
    one_for_all = random(1, 1, 40, 24).expand(2, 4, 40, 24)
    assert_attention(one_for_all, one_for_all, one_for_all)
    odd = random(1, 2, 40, 25)[..., 1:]  # neither the start nor a row at a multiple of 16 bytes
    assert_attention(odd, odd, odd)


def test_a_view_that_keeps_its_sign_apart():
    q, k, v = (torch.complex(x, x).conj().imag for x in qkv(1, 1, 5, 8))
    assert q.is_neg()
    assert torch.equal(attention(q, k, v), attention(*(x.clone() for x in (q, k, v))))


@pytest.mark.parametrize("tma", [True, False])
def test_rows_more_than_2_to_the_31_elements_apart(tma, tmp_path, monkeypatch):
    """Offsets are 64-bit, those of one row too. A sparse file stands in for 4 GB."""
    monkeypatch.setattr(launch, "has_tma", lambda x: tma)
    stride = 2**31 + 16
    file = np.memmap(tmp_path / "sparse", np.float16, "w+", shape=stride + 8)
    x = torch.from_numpy(np.asarray(file)).as_strided((1, 1, 2, 8), (stride, stride, stride, 1))
    x.copy_(random(1, 1, 2, 8, dtype=torch.float16))
    assert torch.equal(attention(x, x, x), attention(*[x.clone()] * 3))


def test_the_path_of_older_gpus_gives_the_same_bits(monkeypatch):
    for dtype, causal in zip(DTYPES, [False, True, True], strict=True):
        q, k, v = (x.requires_grad_() for x in qkv(1, 2, 70, 40, n_kv=90, h_kv=1, dtype=dtype))
        results = []
        for tma in (True, False):
            monkeypatch.setattr(launch, "has_tma", lambda x, tma=tma: tma)
            o = attention(q, k, v, causal=causal)
            results.append((o, *torch.autograd.grad(o, (q, k, v), random(*o.shape, dtype=dtype))))
        assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_the_same_bits_every_time():  # A23
    q, k, v = (x.requires_grad_() for x in qkv(1, 4, 70, 16, h_kv=2))
    runs = []
    for _ in range(2):
        o = attention(q, k, v, causal=True)
        runs.append((o, *torch.autograd.grad(o.sin().sum(), (q, k, v))))
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


def test_autograd_manners():  # A21, A22
    q, k, v = qkv(1, 1, 20, 16)
    v.requires_grad_()
    attention(q, k, v).sum().backward()
    assert q.grad is None and v.grad.shape == v.shape
    q.requires_grad_()
    (dq,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.sum().backward()
    only_lse = attention(q, k, v, return_lse=True)[1]
    (dq,) = torch.autograd.grad(only_lse.sum(), q)
    expected = naive.attention(q, k, v, return_lse=True)[1]
    torch.testing.assert_close(dq, torch.autograd.grad(expected.sum(), q)[0])


def test_no_second_derivative_through_the_gradient_of_lse():
    q, k, v = (x.requires_grad_() for x in qkv(1, 1, 20, 8))
    lse = attention(q, k, v, return_lse=True)[1]
    slope = torch.ones_like(lse).requires_grad_()
    (dq,) = torch.autograd.grad(lse, q, slope, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(dq.sum(), slope)


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_a_hook_stores_in_another_layout(dtype, tma, monkeypatch):
    """Hooks move what is kept, to the CPU for one; the padding of its rows may not survive."""
    monkeypatch.setattr(launch, "has_tma", lambda x: tma)
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 20, 5, n_kv=23, dtype=dtype))
    expected = torch.autograd.grad(attention(q, k, v).sin().sum(), (q, k, v))
    for move in (
        lambda x: x.clone(memory_format=torch.contiguous_format),
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.from_numpy(x.detach().numpy().copy()),
    ):
        with torch.autograd.graph.saved_tensors_hooks(move, lambda x: x):
            o = attention(q, k, v)
        got = torch.autograd.grad(o.sin().sum(), (q, k, v))
        assert all(map(torch.equal, got, expected))


def test_one_scale_whatever_type_it_comes_in():
    q, k, v = qkv(1, 1, 5, 8)
    expected = attention(q, k, v, scale=0.5)
    for scale in (np.float32(0.5), np.array(0.5), torch.tensor([0.5]), Fraction(1, 2)):
        assert torch.equal(attention(q, k, v, scale=scale), expected)


@pytest.mark.parametrize("which", range(4))
def test_what_is_changed_before_the_backward_pass_is_noticed(which):
    q, k, v = (x.requires_grad_() for x in qkv(1, 1, 5, 8))
    kept = [x * 1 for x in (q, k, v)]
    kept.append(attention(*kept))
    loss = kept[3].sum()
    kept[which].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_graph_walked_twice():
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 70, 8, n_kv=30, h_kv=1))
    loss = attention(q, k, v, causal=True).square().sum()
    first = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
    again = torch.autograd.grad(loss, (q, k, v))
    assert all(map(torch.equal, first, again))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_modes_of_pytorch():
    q, k, v = (x.requires_grad_() for x in qkv(1, 1, 20, 8))
    expected = attention(q, k, v)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            o = attention(q, k, v)
            assert torch.equal(o, expected) and not o.requires_grad
            o += 1  # nothing was saved: nobody minds
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(q, k, v), expected)
    (dq,) = torch.autograd.grad(expected.sum(), q)
    o = checkpoint(attention, q, k, v, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(o.sum(), q)[0], dq)
    alone = torch.compiler.disable(attention)
    compiled = torch.compile(lambda *x: 2 * alone(*x), backend="eager")
    assert torch.equal(compiled(q, k, v), 2 * expected)


def test_threads_do_not_meet_in_the_interpreter():
    """A slider's callback runs beside the cell: one global says which program runs."""
    inputs = [qkv(1, 2, n, 8) for n in (70, 20, 100)]
    expected = [attention(*x, causal=True) for x in inputs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda x: attention(*x, causal=True), inputs * 2))
    finally:
        sys.setswitchinterval(interval)
    assert all(map(torch.equal, found, expected * 2))


def test_gradcheck_of_the_composition():
    """A finite difference of the loss agrees with the gradient, in a random direction."""
    q, k, v = (x.double().float().requires_grad_() for x in qkv(1, 2, 20, 16))
    loss = lambda q, k, v: (attention(q, k, v, causal=True) ** 2).sum()  # noqa: E731
    grads = torch.autograd.grad(loss(q, k, v), (q, k, v))
    step = 1e-2
    for i, g in enumerate(grads):
        way = random(*g.shape, seed=9)
        plus, minus = ([q, k, v] for _ in range(2))
        plus[i], minus[i] = plus[i] + step * way, minus[i] - step * way
        slope = (loss(*plus) - loss(*minus)).item() / (2 * step)
        assert math.isclose(slope, (g * way).sum().item(), rel_tol=1e-2, abs_tol=1e-2)


# --- refusals ---------------------------------------------------------------------------------

Q = torch.zeros(1, 4, 3, 8)
REFUSED = [
    (lambda: attention(Q, Q.bfloat16(), Q), "differ in dtype"),
    (lambda: attention(Q.double(), Q.double(), Q.double()), "float64. Use float16, bfloat16"),
    (lambda: attention(Q.int(), Q.int(), Q.int()), "int32. Use"),
    (lambda: attention(Q, Q.to("meta"), Q.to("meta")), "differ in device"),
    (lambda: attention(*[Q.to("meta")] * 3), "on meta, and Triton runs on the CPU"),
    (lambda: attention(*[Q.to_sparse()] * 3), "sparse or nested"),
    (lambda: attention(*[torch.nested.nested_tensor([Q[0]])] * 3), "sparse or nested"),
    (lambda: attention(Q, Q[:, :3], Q[:, :3]), "4 query heads cannot share 3"),
    (lambda: attention(Q, Q[:, :0], Q[:, :0]), "cannot share 0"),
    (lambda: attention(Q[0], Q, Q), r"\(B, H, N, d\), not \(4, 3, 8\)"),
    (lambda: attention(Q.numpy(), Q, Q), "ndarray. Make it a tensor"),
    (lambda: attention(Q, [1.0], Q), "k is of type list"),
    (
        lambda: attention(Q, *[Q[:, :, :1].expand(1, 4, 2**31 - 1, 8)] * 2),
        "k has 2,147,483,647 rows",
    ),
    (lambda: attention(Q, Q, Q, causal=torch.ones(3, 3).bool()), "A mask of your own"),
    (lambda: attention(Q, Q, Q, causal="no"), "True or False"),
    (lambda: attention(Q, Q, Q, scale="0.5"), "scale is '0.5'. It must be one real number"),
    (lambda: attention(Q, Q, Q, scale=np.complex64(1 + 2j)), "must be one real number"),
    (lambda: attention(Q, Q, Q, scale=np.array("0.5")), "must be one real number"),
    (lambda: attention(Q, Q, Q, scale=torch.ones(2)), "one real number"),
    (lambda: attention(Q, Q, Q, scale=1j), "one real number"),
    (lambda: attention(Q, Q, Q, scale=10**400), "one real number"),
    (lambda: attention(Q, Q, Q, scale=torch.ones((), requires_grad=True)), "Pass scale.item()"),
    (lambda: attention(Q, Q, Q[:, :, :2]), "same shape"),
    (lambda: attention(Q, Q[..., :4], Q[..., :4]), "agree in batch and head"),
    (lambda: attention(Q, Q.expand(2, 4, 3, 8), Q.expand(2, 4, 3, 8)), "agree in batch"),
    (lambda: attention(*[torch.zeros(1, 1, 2, 257)] * 3), "257. The kernels take 1 to 256"),
    (lambda: attention(*[torch.zeros(1, 1, 2, 0)] * 3), "is 0"),
    (lambda: attention(Q, Q, Q, scale=math.nan), "scale is nan"),
    (lambda: attention(Q, Q, Q, scale=math.inf), "scale is inf"),
    (lambda: attention(Q, Q, Q, scale=-3e38), "below 2.3e38"),
    (lambda: attention(Q, Q, Q, variant="fastest"), "'fastest' is unknown"),
    (lambda: attention(Q, Q, Q, variant=["auto"]), r"\['auto'\] is unknown"),
]


@pytest.mark.parametrize("call, message", REFUSED)
def test_refused_in_one_line(call, message):  # A14, A24
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_the_grid_stays_within_cuda_limits():  # A16
    for b in (10922, 10923):
        assert launch.grid(16, 64, 6 * b) == (6 * b,)
    with pytest.raises(ValueError, match="Split the batch"):
        launch.grid(2**20, 1, 2**12)


@pytest.mark.parametrize("kernel", ["forward", "dkdv", "dq"])
def test_every_tile_is_one_a_gpu_takes(kernel):  # D11, D12
    for size, d, bytes_ in itertools.product(
        (65_536, 101_376, 232_448), (1, 64, 65, 128, 256), (2, 4)
    ):
        if (kernel, size, d, bytes_) != ("dkdv", 65_536, 256, 4):
            tile = tiles.choose(kernel, d=d, itemsize=bytes_, shared_memory=size)
            for block in tile[:2]:
                assert 16 <= block <= 128 and block & (block - 1) == 0
    with pytest.raises(ValueError, match="49,152 bytes"):
        tiles.choose(kernel, d=64, itemsize=2, shared_memory=49_152)
    with pytest.raises(ValueError, match="Use a smaller one"):
        tiles.choose("dkdv", d=256, itemsize=4, shared_memory=65_536)


def test_masked_loads_name_their_fill():  # D11
    import ast
    import inspect

    from course.kernels import backward, forward, tile

    for module in (backward, forward, tile):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "tl.load":
                keywords = {k.arg for k in call.keywords}
                assert keywords in (set(), {"mask", "other"})


# --- where there is no GPU, or no Triton ------------------------------------------------------


def python(code, **environment):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_interpreter_is_switched_on_before_triton_and_said_once():  # D10
    lines = python(
        "import sys, course.kernels as k; assert 'triton' not in sys.modules\n"
        "import course.kernels, torch, triton\n"
        "x = torch.ones(1, 1, 2, 4); k.attention(x, x, x); print(k.available, k.interpreted)"
    )
    assert lines == [kernels.note, "True True"] and "interpreter" in kernels.note


@pytest.mark.parametrize("late", ["", "import os; os.environ['TRITON_INTERPRET'] = '1'\n"])
def test_triton_imported_too_early_is_said(late):  # D10
    lines = python(
        f"import triton\n{late}import course.kernels as k; print(bool(k.available))\n"
        "try: k.attention(1, 2, 3)\nexcept RuntimeError as e: print(e)"
    )
    assert "Restart the kernel" in lines[0] and lines[1] == "False" and lines[2] == lines[0]


@pytest.mark.parametrize("chosen", ["", "1", "True", "0"])
def test_the_interpreter_chosen_by_hand(chosen):  # D10
    lines = python(
        "import course.kernels as k, torch; x = torch.ones(1, 1, 2, 4)\n"
        "try: print(k.attention(x, x, x).sum().item())\nexcept ValueError as e: print(e)",
        TRITON_INTERPRET=chosen,
    )
    if chosen == "0":
        assert len(lines) == 1 and "Move q, k, v to 'cuda', or set TRITON_INTERPRET=1" in lines[0]
    else:
        assert lines == [kernels.note, "8.0"]


NO_WHEEL = (
    "import importlib.util as u, sys; find = u.find_spec\n"
    "u.find_spec = lambda n, *a: None if n == 'triton' else find(n, *a)\n"
    "import course.kernels as k\n"
)


def test_no_triton_wheel_is_said_in_one_line():  # D13
    lines = python(NO_WHEEL + "print(k.available, 'torch' in sys.modules)")
    assert "no wheel" in lines[0] and lines[1:] == ["False False"]


def test_without_triton_a_block_that_needs_it_ends_in_one_line():  # D13
    lines = python(
        NO_WHEEL + "from course.kernels import tl, triton\n"
        "from course.kernels.report import report\n"
        "@triton.jit\ndef kernel(x, block: tl.constexpr): pass\n"
        "calls = lambda: kernel[(1,)](1, 2), lambda: k.attention(1, 2, 3), report\n"
        "for call in calls:\n"
        "    with k.needed:\n        print('before'); call(); print('after')\n"
        "@k.needed\ndef launch():\n    kernel[(1,)](1, 2)\n"
        "print(launch(), k.device)\n"
    )
    assert lines[1:7] == ["before", lines[0]] * 3 and lines[7:] == [lines[0], "None cpu"]


def test_without_triton_a_block_may_import_what_launches():
    lines = python(
        NO_WHEEL + "sys.modules['triton'] = None\n"
        "with k.needed:\n    from course.kernels import launch\n    print('after')\n"
    )
    assert lines == [lines[0]] * 2 and "no wheel" in lines[0]


def test_with_triton_a_block_that_needs_it_hides_nothing():
    with pytest.raises(RuntimeError, match="a fault"), kernels.needed:
        raise RuntimeError("a fault")
    assert kernels.device == "cpu"


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_variant_is_right(variant, assert_attention):
    options = {"causal": True, "variant": variant, "return_lse": True}
    q, k, v = (x.double().float().requires_grad_() for x in qkv(1, 4, 33, 24, n_kv=40, h_kv=2))
    o, lse = attention(q, k, v, **options)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted, wanted_lse = naive.attention(*exact, causal=True, return_lse=True)
    (o.square().sum() + lse.sum()).backward()
    (wanted.square().sum() + wanted_lse.sum()).backward()
    torch.testing.assert_close(o.double(), wanted, rtol=1e-5, atol=1e-5)
    for x, y in zip((q, k, v), exact, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=1e-4)


def test_the_variant_that_is_asked_for_runs_forward_and_backward(monkeypatch):
    ran = []

    def spy(way):
        return lambda *a, **options: ran.append(way) or getattr(launch, way)(*a, **options)

    other = SimpleNamespace(forward=spy("forward"), backward=spy("backward"))
    monkeypatch.setitem(VARIANTS, "other", other)
    for variant, wanted in (("readable", []), ("other", ["forward", "backward"])):
        q, k, v = (x.requires_grad_() for x in qkv(1, 1, 16, 16))
        attention(q, k, v, variant=variant).sum().backward()
        assert ran == wanted


def test_the_context_keeps_no_square_matrix():
    q, k, v = (x.requires_grad_() for x in qkv(1, 1, 128, 16))
    o = Attention.apply(q, k, v, False, 0.25, launch, False)
    kept = sum(x.numel() for x in o.grad_fn.saved_tensors if x is not None)
    assert kept == 4 * 128 * 16 + 2 * 128  # q, k, v, o; and two numbers a row
