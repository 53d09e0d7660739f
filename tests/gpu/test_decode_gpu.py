"""Decode on a GPU: right for every tile, split, page and type; captured by a CUDA graph."""

import itertools
from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available() or find_spec("triton") is None:
    pytest.skip("needs a CUDA GPU and Triton", allow_module_level=True)

from course import kernels
from course.kernels import naive, split_kv

pytestmark = pytest.mark.gpu
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def inputs(b, h, h_kv, n, n_kv, d, dtype):
    torch.manual_seed(0)
    q = torch.randn(b, h, n, d, device="cuda", dtype=dtype)
    return q, *(torch.randn(b, h_kv, n_kv, d, device="cuda", dtype=dtype) for _ in "kv")


def held_to_the_rule(o, q, k, v, causal):
    """D15: twice plain PyTorch's error, and half a unit for each of two stores, parts and o."""
    exact = naive.attention(*(x.double() for x in (q, k, v)), causal=causal)
    plain = naive.attention(q, k, v, causal=causal)
    allowed = 2 * (plain.double() - exact).abs().max()
    allowed += torch.finfo(q.dtype).eps * exact.abs().max()
    assert o.isfinite().all() and (o.double() - exact).abs().max() <= allowed


@pytest.mark.parametrize(
    "d, dtype",
    [*((128, dtype) for dtype in DTYPES), (40, DTYPES[0]), (64, DTYPES[1]), (256, DTYPES[1])],
)
@pytest.mark.parametrize("n, causal", [(1, True), (4, True), (16, False), (100, True)])
def test_right_for_every_shape(n, causal, d, dtype):
    for b, (h, h_kv), n_kv in itertools.product((1, 5), ((8, 1), (4, 4)), (1, 2333)):
        q, k, v = inputs(b, h, h_kv, n, n_kv, d, dtype)
        held_to_the_rule(kernels.decode(q, k, v, causal=causal), q, k, v, causal)


@pytest.mark.parametrize("page", [16, 48, 128])
@pytest.mark.parametrize("n", [1, 16])
def test_pages_and_ragged_lengths(page, n):
    q, k, v = inputs(4, 16, 2, n, 768, 128, torch.bfloat16)
    lengths = torch.tensor([768, 1, 300, 513], dtype=torch.int32, device="cuda").clamp(min=n)
    table = torch.randperm(4 * 768 // page, device="cuda").to(torch.int32).view(4, -1)

    def pool(x):
        pages = x.view(4, 2, -1, page, 128).transpose(1, 2).reshape(-1, 2, page, 128)
        out = torch.empty_like(pages)
        out[table.flatten().long()] = pages
        return out

    for i, length in enumerate(lengths):
        k[i, :, length:], v[i, :, length:] = float("nan"), float("nan")
    o = kernels.decode(q, pool(k), pool(v), table=table, lengths=lengths)
    for i, length in enumerate(lengths):
        row = slice(i, i + 1)
        held_to_the_rule(o[row], q[row], k[row, :, :length], v[row, :, :length], True)
    table[2, 1] = -1
    bad = kernels.decode(
        q, pool(k.nan_to_num()), pool(v.nan_to_num()), table=table, lengths=lengths
    )
    assert bad[2].isnan().all() and bad[[0, 3]].isfinite().all()


def test_the_same_bits_every_time_and_in_a_graph():
    q, k, v = inputs(1, 64, 8, 1, 30_000, 128, torch.bfloat16)
    first = kernels.decode(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernels.decode(q, k, v)
    for _ in range(20):
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, first) and torch.equal(kernels.decode(q, k, v), first)


def test_attention_takes_this_way_where_queries_are_few(monkeypatch):
    q, k, v = inputs(1, 16, 16, 256, 8192, 128, torch.float16)
    calls, own = [], split_kv.forward
    monkeypatch.setattr(split_kv, "forward", lambda *a, **o: calls.append(1) or own(*a, **o))
    held_to_the_rule(kernels.attention(q, k, v, causal=True), q, k, v, True)
    assert calls
