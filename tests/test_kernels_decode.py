"""`decode` and the split-KV kernels in Triton's interpreter: splits, pages, lengths, refusals."""

import math

import pytest
import torch

from course import kernels

if not kernels.interpreted:
    pytest.skip(kernels.reason or "on a GPU: see tests/gpu", allow_module_level=True)

from course.kernels import naive, split_kv, tiles
from tests.rounding import of_scores

SMALL = tiles.Tile(16, 32, 4, 1), 2
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random(*shape, seed, dtype=torch.float32, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (size * torch.randn(*shape, generator=generator)).to(dtype)


def qkv(b, h, h_kv, n, n_kv, d, dtype=torch.float32, size=1.0):
    q = random(b, h, n, d, seed=0, dtype=dtype, size=size)
    return q, *(random(b, h_kv, n_kv, d, seed=s, dtype=dtype, size=size) for s in (1, 2))


def exact(q, k, v, causal, scale=None):
    q, k, v = (x.double() for x in (q, k, v))
    return naive.attention(q, k, v, causal=causal, scale=scale, return_lse=True)


def close(x, exact, plain=None, bound=1e-5):
    """D15: within twice plain PyTorch's error in this type, `bound`, and one unit for storing it."""
    error = (x.double() - exact).abs().max()
    allowed = 2 * (plain.double() - exact).abs().max() if plain is not None else 0
    allowed += bound
    allowed += torch.finfo(x.dtype).eps * exact.abs().max()
    assert x.isfinite().all() and error <= allowed, (error, allowed)


def split_in(q, k, v, *, splits, causal=False, **options):
    scale = q.shape[3] ** -0.5
    o, m, l = split_kv.forward(
        q, k, v, causal=causal, scale=scale, how=SMALL, split=splits, **options
    )
    return o, m.double() * math.log(2) + l.double().log()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    "shape", [(1, 4, 2, 1, 130, 32), (2, 4, 1, 4, 99, 64), (1, 1, 1, 33, 65, 31)]
)  # fmt: skip
def test_every_split_gives_plain_attention(shape, splits, causal, dtype):  # A1, A2, A3, A8, A14
    q, k, v = qkv(*shape, dtype=dtype, size=2.0)
    o, lse = split_in(q, k, v, splits=splits, causal=causal)
    right, right_lse = exact(q, k, v, causal)
    close(o, right, naive.attention(q, k, v, causal=causal), of_scores(q, k, v))
    assert torch.allclose(lse, right_lse, atol=2e-2 if dtype != torch.float32 else 1e-5)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_query_without_keys_gets_nothing(splits):  # A5
    q, k, v = qkv(1, 4, 2, 6, 3, 16)
    o, lse = split_in(q, k, v, splits=splits, causal=True)
    assert (o[:, :, :3] == 0).all() and (lse[:, :, :3] == -math.inf).all()
    right, right_lse = exact(q, k, v, True)
    close(o, right)
    assert torch.equal(lse == -math.inf, right_lse == -math.inf)


def test_splits_full_of_minus_infinity_before_the_only_finite_score():  # B7
    q, k, v = qkv(1, 1, 1, 1, 160, 16)
    q[:], k[:] = 1.0, -math.inf
    k[0, 0, 100] = 0.5
    o, lse = split_in(q, k, v, splits=5)
    assert torch.equal(o[0, 0, 0], v[0, 0, 100]) and lse.item() == pytest.approx(16 * 0.5 / 4)


@pytest.mark.parametrize("size", [10.0, 100.0, 1e4])
def test_scores_far_apart_between_splits(size):  # B6, B8
    q, k, v = qkv(1, 2, 1, 1, 200, 32, size=size)
    o, _ = split_in(q, k, v, splits=4)
    close(o, exact(q, k, v, False)[0], naive.attention(q, k, v), of_scores(q, k, v))


def paged(x, page, perm):
    """(B, H, N, d) as a pool of pages, page i of batch b at place perm[b, i]."""
    b, h, n, d = x.shape
    pages = x.view(b, h, n // page, page, d).transpose(1, 2).reshape(-1, h, page, d)
    pool = torch.full_like(pages, math.nan).repeat(2, 1, 1, 1)  # half of them belong to nobody
    pool[perm.flatten().long()] = pages
    return pool


@pytest.mark.parametrize("page", [None, 16, 32, 64])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_pages_and_lengths_see_what_is_theirs_and_no_more(page, splits, causal):  # A13, A18
    q, k, v = qkv(3, 4, 2, 2, 128, 32)
    lengths = torch.tensor([128, 37, 5], dtype=torch.int32)
    for i, n in enumerate(lengths):
        k[i, :, n:], v[i, :, n:] = math.nan, math.nan
    options = {"lengths": lengths}
    keys, values = k, v
    if page:
        count = 3 * 128 // page
        perm = torch.randperm(2 * count, generator=torch.Generator().manual_seed(3))[:count]
        table = perm.view(3, -1).to(torch.int32)
        keys, values = paged(k, page, table), paged(v, page, table)
        for i, n in enumerate(lengths):  # places past the length name no page
            table[i, -(-int(n) // page) :] = -1
        options["table"] = table
    o, lse = split_in(q, keys, values, splits=splits, causal=causal, **options)
    for i, n in enumerate(lengths):
        right, right_lse = exact(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n], causal)
        close(o[i : i + 1], right)
        assert torch.allclose(lse[i : i + 1], right_lse)


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("wrong", [-1, 100, 2**30])
def test_a_page_that_does_not_exist_is_loud(page, wrong):
    q, k, v = qkv(2, 2, 1, 1, 128, 16)
    table = torch.arange(2 * 128 // page, dtype=torch.int32).view(2, -1)
    pool = [paged(x, page, table) for x in (k, v)]
    table[1, 1] = wrong
    o = kernels.decode(q, *pool, table=table)
    assert o[0].isfinite().all() and o[1].isnan().all()


@pytest.mark.parametrize("wrong", [-1, 129, 2**31 - 1])
def test_a_length_that_cannot_be_is_loud(wrong):
    q, k, v = qkv(2, 2, 1, 1, 128, 16)
    o = kernels.decode(q, k, v, lengths=torch.tensor([128, wrong], dtype=torch.int32))
    assert o[0].isfinite().all() and o[1].isnan().all()


@pytest.mark.parametrize("scale", [0.0, -0.35, 2.0])
def test_any_scale(scale):  # A20
    q, k, v = qkv(1, 4, 2, 2, 100, 24)
    o, lse = kernels.decode(q, k, v, scale=scale, return_lse=True)
    right, right_lse = exact(q, k, v, True, scale)
    plain = naive.attention(q, k, v, causal=True, scale=scale)
    close(o, right, plain, of_scores(q, k, v, scale))
    assert torch.allclose(lse.double(), right_lse, atol=1e-4)


@pytest.mark.parametrize("b, n, n_kv", [(0, 1, 8), (1, 0, 8), (1, 2, 0)])
def test_nothing_to_attend_to(b, n, n_kv):  # A24
    o, lse = kernels.decode(*qkv(b, 2, 1, n, n_kv, 16), return_lse=True)
    assert o.shape == (b, 2, n, 16) and (o == 0).all() and (lse == -math.inf).all()


def test_attention_takes_this_way_where_queries_are_few(monkeypatch, assert_attention):
    q, k, v = qkv(1, 4, 2, 2, 1100, 32)
    calls, own = [], split_kv.forward
    monkeypatch.setattr(split_kv, "forward", lambda *a, **o: calls.append(1) or own(*a, **o))
    o, lse = kernels.attention(q, k, v, causal=True, return_lse=True)
    right, right_lse = exact(q, k, v, True)
    close(o, right)
    assert torch.allclose(lse.double(), right_lse, atol=1e-5) and calls
    kernels.attention(q, k, v, variant="readable")
    kernels.attention(q.requires_grad_(), k, v)
    assert len(calls) == 1


# --- the rules ---------------------------------------------------------------------------------


def test_the_split_is_the_cheapest_by_the_stated_rule():
    for walks in (1, 3, 8, 64, 256, 1024):
        for n_kv in (1, 100, 8192, 131_072):
            chosen = split_kv.count_splits(walks, n_kv, 128, 132)
            assert 1 <= chosen <= max(1, -(-n_kv // 128))
            most = -(-n_kv // 128)

            def keys(split, walks=walks, most=most):
                return -(-walks * split // 132) * (-(-most // split) * 128 + split_kv.START)

            assert keys(chosen) == min(map(keys, range(1, max(1, min(most, 528 // walks)) + 1)))
    assert split_kv.count_splits(8, 131_072, 128, 132) == 16  # one long sequence fills the GPU
    assert split_kv.count_splits(1024, 8192, 128, 132) == 1  # a large batch fills it as it is


@pytest.mark.parametrize("shared_memory", [65_536, 101_376, 232_448])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("page", [None, 16, 64, 128, 256])
def test_every_tile_fits(shared_memory, itemsize, page):  # D11, D12
    for rows in (1, 8, 16, 40, 128, 1000):
        for d in (16, 64, 80, 128):
            tile, per_sm = split_kv.choose(rows, d, itemsize, shared_memory, page)
            size = (
                1024
                + (tile.block_q + 2 * tile.num_stages * tile.block_kv) * tiles.padded(d) * itemsize
            )
            assert size <= shared_memory and tile.block_q >= 16 and tile.block_kv >= 16
            assert 1 <= per_sm <= 4
            assert page in (None, 16) or page % tile.block_kv == 0


Q, K = torch.zeros(2, 4, 1, 16), torch.zeros(2, 2, 32, 16)
TABLE, LENGTHS = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.decode(Q, K, K[:, :, 1:]), "must have the same shape"),
        (lambda: kernels.decode(Q, K[:1], K[:1]), "must agree in batch"),
        (lambda: kernels.decode(Q[:, :3], K, K), "3 query heads cannot share 2"),
        (lambda: kernels.decode(Q, K[0], K[0]), "k must have shape"),
        (lambda: kernels.decode(Q, K, K, causal="False"), "causal must be True or False"),
        (lambda: kernels.decode(Q.clone().requires_grad_(), K, K), "would get none"),
        (lambda: kernels.decode(Q, K, K, lengths=[32, 32]), "lengths must be an int32 tensor"),
        (lambda: kernels.decode(Q, K, K, lengths=LENGTHS.long()), "lengths must be an int32"),
        (lambda: kernels.decode(Q, K, K, lengths=LENGTHS[:1]), r"lengths must have shape \(2,\)"),
        (lambda: kernels.decode(Q, K, K, table=TABLE[:1]), r"table must have shape \(2, pages"),
        (lambda: kernels.decode(Q, K, K, table=TABLE.float()), "table must be an int32 tensor"),
        (lambda: kernels.decode(Q, K, K, scale=math.inf), "finite"),
    ],
)
def test_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)
