"""Triton attention on a real GPU: large, ragged, strided, huge and tiny; case ids as in the field."""

import itertools
import math
from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available() or find_spec("triton") is None:
    pytest.skip("needs a CUDA GPU and Triton", allow_module_level=True)

from course.kernels import attention, launch, naive

pytestmark = pytest.mark.gpu
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def free_memory():
    yield
    torch.cuda.empty_cache()


def random(*shape, dtype=torch.float16, seed=0, size=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (size * torch.randn(*shape, generator=generator, device="cuda")).to(dtype)


def qkv(b=1, h=2, n=512, d=64, *, n_kv=None, h_kv=None, dtype=torch.float16, size=1.0):
    kv = b, h_kv or h, n if n_kv is None else n_kv, d
    q = random(b, h, n, d, dtype=dtype, size=size)
    return q, *(random(*kv, dtype=dtype, seed=s, size=size) for s in (1, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128, 256, 40, 1, 31, 96, 160])
def test_head_dimensions(d, causal, dtype, assert_attention):  # A8
    assert_attention(*qkv(1, 2, 1000, d, n_kv=777, h_kv=1, dtype=dtype), causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "b, h, h_kv, n, n_kv",
    [
        (1, 1, 1, 1, 1),
        (4, 32, 8, 1, 20),  # A2: decode
        (1, 40, 40, 8, 8),  # A1
        (3, 4, 2, 127, 129),
        (1, 2, 2, 129, 127),
        (1, 2, 1, 2049, 4095),
        (2, 8, 1, 1500, 1500),  # A14
        (1, 3, 3, 700, 64),  # A5: most rows see no key
    ],
)
def test_lengths_and_groups(b, h, h_kv, n, n_kv, causal, dtype, assert_attention):
    assert_attention(*qkv(b, h, n, 128, n_kv=n_kv, h_kv=h_kv, dtype=dtype), causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "size, scale", [(1e-3, None), (4, None), (1, 1.3), (40, -0.35), (1, 0), (1, 1e-42), (30, 0.5)]
)
def test_scales(size, scale, dtype, assert_attention):  # A20, A21
    for causal in (False, True):
        q, k, v = qkv(1, 2, 700, 64, dtype=dtype, size=size)
        assert_attention(q, k, v, causal=causal, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_beyond_the_range_of_half(dtype, assert_attention):  # A17
    for size, d in ((40, 64), (256, 128)):
        q = torch.full((1, 1, 300, d), float(size), dtype=dtype, device="cuda")
        assert_attention(q, q, random(1, 1, 300, d, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-2, 1, 10, 100, 1000])
def test_rows_of_the_recomputed_p_sum_to_one(size, dtype):
    for d in (64, 128):
        q, k, v = (x.requires_grad_() for x in qkv(1, 1, d, d, n_kv=600, dtype=dtype, size=size))
        for k_used in (k, k[..., :1, :].expand_as(k)):
            o = attention(q, k_used, v)
            identity = torch.eye(d, dtype=dtype, device="cuda").expand(1, 1, d, d)
            (dv,) = torch.autograd.grad(o, v, identity)
            sums = dv.double().sum(2).flatten()
            rounding = max(torch.finfo(dtype).eps, 1e-5)
            torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=rounding)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_of_minus_infinity(dtype):  # B7: whole tiles of them before the first finite one
    q, k, v = qkv(1, 1, 700, 64, dtype=dtype)
    k[:, :, :500] = -math.inf
    q = q.abs() + 0.1
    o, lse = attention(q, k, v, return_lse=True)
    seen = q, k[:, :, 500:], v[:, :, 500:]
    exact, exact_lse = naive.attention(*(x.double() for x in seen), return_lse=True)
    error, plain = ((x - exact).norm() for x in (o, naive.attention(*seen)))
    assert error <= 2 * plain
    torch.testing.assert_close(lse, exact_lse.float())
    none, _ = attention(q, k[:, :, :500], v[:, :, :500], return_lse=True)
    assert none.isnan().all()
    leaves = [x.requires_grad_() for x in (q, k, v)]  # rows past N = 700 are 0, and 0 · −∞ is NaN
    _, dk, dv = torch.autograd.grad(attention(*leaves).sum(), leaves)
    assert dk.isfinite().all() and dv.isfinite().all()


def test_a_nan_stays_with_the_rows_and_keys_it_belongs_to():
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 700, 64, n_kv=300))
    o, lse = attention(q, k, v, causal=True, return_lse=True)  # the first 400 rows see no key
    total = torch.where(lse > -math.inf, lse**2, 0.0).sum()  # and their slope is −∞ · 0
    assert all(x.isfinite().all() for x in torch.autograd.grad(total, (q, k), retain_graph=True))
    do = torch.ones_like(o)
    do[:, :, 450] = math.nan
    dq, dk, _ = torch.autograd.grad(o, (q, k, v), do)
    assert dq[:, :, 450].isnan().all() and dk[:, :, 51:].isfinite().all()
    assert dq[:, :, :450].isfinite().all() and dq[:, :, 451:].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_upstream_gradient(dtype, assert_attention):
    q, k, v = qkv(1, 2, 700, 64, dtype=dtype)
    for size in (1e-4, 1e3):
        assert_attention(q, k, v, do=random(*q.shape, seed=4, dtype=dtype, size=size))
    one = torch.ones((), dtype=dtype, device="cuda").expand(q.shape)
    assert_attention(q, k, v, do=one, dlse=torch.zeros(q.shape[:3], device="cuda"))


def test_padding_never_wins(assert_attention):  # A1
    for n in (5, 129, 1000):
        q, k, v = qkv(1, 2, n, 64)
        assert_attention(-q.abs(), k.abs(), v)
        assert_attention(q.abs() * -40, k.abs() * 40 + 1, v)


def test_what_lies_past_the_end_never_leaks(assert_attention):  # A18
    q, k, v = (torch.full((2, 2, 800, 80), math.nan, device="cuda").half() for _ in range(3))
    inside = (slice(None), slice(None), slice(13, 713), slice(8, 72))
    for x, seed in ((q, 1), (k, 2), (v, 3)):
        x[inside] = random(2, 2, 700, 64, seed=seed)
    for causal in (False, True):
        assert_attention(q[inside], k[inside], v[inside], causal=causal)


def test_strides(assert_attention):  # A13
    q, k, _ = qkv(1, 16, 62, 128)
    v = random(1, 62, 16 * 128).view(1, 62, 16, 128).transpose(1, 2)
    assert_attention(q, k, v, causal=True)
    last_first = random(1, 2, 64, 500).transpose(2, 3)
    assert_attention(last_first, random(1, 2, 500, 128)[..., ::2], random(1, 2, 501, 64)[:, :, 1:])
    cut = random(1, 4, 256, 256)[:, :, :, :-128]
    assert_attention(cut, cut, cut, causal=True)
    odd = random(1, 2, 300, 65)[..., 1:]
    assert_attention(odd, odd, odd)
    one_for_all = random(1, 1, 300, 64).expand(2, 4, 300, 64)
    assert_attention(one_for_all, one_for_all, one_for_all)


@pytest.mark.parametrize("d", [1, 8, 40, 64])
def test_the_path_of_older_gpus(d, monkeypatch, assert_attention):
    """Addresses instead of the copy engine, as before Hopper."""
    monkeypatch.setattr(launch, "has_tma", lambda x: False)
    for dtype, n in itertools.product(DTYPES, (1, 300)):
        assert_attention(*qkv(1, 4, n, d, n_kv=200, h_kv=2, dtype=dtype), causal=True)


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_one(dtype, tma, monkeypatch, assert_attention):
    """Triton compiles an argument of 1 as a constant: sizes and strides, by both paths."""
    if not tma:
        monkeypatch.setattr(launch, "has_tma", lambda x: False)
    assert_attention(*qkv(1, 1, 1, 1, dtype=dtype))


@pytest.mark.parametrize("b", [10922, 10923])
def test_more_heads_than_the_grid_has_rows(b, assert_attention):  # A16
    assert_attention(*qkv(b, 6, 16, 16))


def test_offsets_beyond_32_bits():
    """q and o hold 2³¹ + elements: the last head is compared with the same head alone."""
    q = torch.empty(1, 1025, 16384, 128, dtype=torch.float16, device="cuda")
    assert q.numel() > 2**31
    q[:, -1] = random(1, 16384, 128, seed=1)
    k, v = q[:, -1:, :64].clone(), random(1, 1, 64, 128, seed=2)
    q[:, 0] = 0
    o = attention(q[:, 1024:].expand(1, 1, 16384, 128), k, v)
    whole = attention(q, k, v)
    assert torch.equal(whole[:, -1:], o)
    torch.testing.assert_close(whole[0, 0], v.mean(2)[0].expand(16384, 128), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("tma", [True, False])
def test_rows_more_than_2_to_the_31_elements_apart(tma, monkeypatch):
    """One row's offset is 64-bit too, by the copy engine (where there is one) and by addresses."""
    if not tma:
        monkeypatch.setattr(launch, "has_tma", lambda x: False)
    stride = 2**31 + 16
    x = torch.empty(stride + 8, dtype=torch.float16, device="cuda")
    x = x.as_strided((1, 1, 2, 8), (stride, stride, stride, 1))
    x.copy_(random(1, 1, 2, 8))
    assert torch.equal(attention(x, x, x), attention(*[x.clone()] * 3))


def test_the_same_bits_every_time():  # A23
    q, k, v = (x.requires_grad_() for x in qkv(2, 8, 2048, 128, h_kv=2))
    do = random(*q.shape, seed=4)
    runs = []
    for _ in range(3):
        o = attention(q, k, v, causal=True)
        runs.append((o, *torch.autograd.grad(o, (q, k, v), do)))
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
def test_the_one_pass_that_was_measured_is_right(d, causal):
    from course.records import one_pass

    q, k, v = qkv(2, 3, 1024, d)
    do, options = random(*q.shape, seed=4), {"causal": causal, "scale": d**-0.5}
    o, rest, m, inv_l = launch.forward(q, k, v, **options, keep_rest=True)
    two = launch.backward(q, k, v, o, rest, do, None, m, inv_l, **options)
    for tile in one_pass.TILES[d]:
        one = one_pass.backward(q, k, v, o, rest, do, m, inv_l, **options, tile=tile)
        for x, y in zip(one, two, strict=True):
            assert (x - y).norm() < 1e-3 * y.norm()


def test_memory_grows_with_n():
    def peak(n):
        q, k, v = (x.requires_grad_() for x in qkv(1, 4, n, 64))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attention(q, k, v).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(1024)
    assert peak(16384) < 20 * peak(1024)
    assert peak(16384) < 4 * 16384**2 / 8  # one head's S alone would be 512 MiB in FP16


def test_nothing_to_attend_to_and_mixed_devices():  # A24
    for b, n, n_kv in ((0, 4, 4), (1, 0, 5), (2, 3, 0)):
        q, k, v = (x.requires_grad_() for x in qkv(b, 2, n, 8, n_kv=n_kv))
        o = attention(q, k, v, causal=True)
        grads = torch.autograd.grad(o.sum(), (q, k, v))
        assert not o.any() and not any(g.any() for g in grads)
    q, k, v = qkv()
    with pytest.raises(ValueError, match="differ in device"):
        attention(q, k.cpu(), v.cpu())
    with pytest.raises(ValueError, match="Move q, k, v to 'cuda'"):
        attention(q.cpu(), k.cpu(), v.cpu())


def test_the_worked_example():
    q = torch.ones(1, 1, 1, 1, device="cuda")
    k = torch.tensor([1.0, 3, 4, 2], device="cuda").view(1, 1, 4, 1)
    v = torch.tensor([1.0, 2, 3, 4], device="cuda").view(1, 1, 4, 1)
    o, lse = attention(q, k, v, scale=1, return_lse=True)
    assert round(o.item(), 3) == 2.786
    assert math.isclose(lse.item(), 4 + math.log(1.5530), abs_tol=1e-4)


def test_equal_to_cudnn_at_full_size():
    """No FP64 at N = 8192 in all heads: two independent halves agree to their rounding."""
    import torch.nn.functional as F

    for d, causal in itertools.product((64, 128), (False, True)):
        q, k, v = (x.requires_grad_() for x in qkv(2, 8, 8192, d))
        do = random(*q.shape, seed=4)
        ours, theirs = (
            attention(q, k, v, causal=causal),
            F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        )
        for x, y in zip(
            (ours, *torch.autograd.grad(ours, (q, k, v), do)),
            (theirs, *torch.autograd.grad(theirs, (q, k, v), do)),
            strict=True,
        ):
            assert (x - y).norm() < 2e-3 * y.norm()


def test_the_same_under_a_stream():
    """Launches join the current stream, as PyTorch's own do."""
    q, k, v = qkv()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        q2 = q * 2
        o = attention(q2, k, v)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(o, attention(q * 2, k, v))
