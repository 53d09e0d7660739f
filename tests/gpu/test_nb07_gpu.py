"""The cells of notebook 07 on a GPU: its backward in Triton, what is kept, training, its points."""

import itertools
import math

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course import kernels, train
from course.kernels import interpreted, naive
from course.records import training as recorder

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16]
HEAD = """
import numpy as np
import torch
from torch.autograd.function import once_differentiable

from course import attention, kernels
from course.kernels import naive, tl, triton

device = "cuda"
"""


@pytest.fixture(scope="module")
def nb(cells):
    assert not interpreted
    return cells("07_flash_backward.ipynb", HEAD)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


@pytest.fixture(scope="module")
def attend(nb):
    """attend(q, k, v): o and lse by the library, the gradients by the kernels of the notebook."""

    class Attend(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal, scale, block):
            o, lse = kernels.attention(q, k, v, causal=causal, scale=scale, return_lse=True)
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.options = causal, block
            return o, lse

        @staticmethod
        def backward(ctx, do, dlse):
            assert not dlse.any()  # the notebook's kernels have no gradient of lse
            heads = [x[0].contiguous() for x in (*ctx.saved_tensors, do)]
            return *(g[None] for g in nb["triton_backward"](*heads, *ctx.options)), None, None, None

    def run(q, k, v, *, causal, scale, return_lse, block=32):
        return Attend.apply(q, k, v, causal, scale, block)

    return run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("n", "n_kv", "d"), [(1000, 1000, 64), (63, 1025, 40), (300, 70, 128), (5, 40, 31)]
)
def test_the_gradients(n, n_kv, d, causal, dtype, attend, assert_attention):
    """A1, A3, A8, A10, A21, D15: ragged, N ≠ N_kv, odd d, both masks, rows that see no key."""
    q, k, v, do = (random(1, 3, m, d, seed=m).to(dtype) for m in (n, n_kv, n_kv, n))
    no_dlse = torch.zeros(q.shape[:3], device="cuda")
    assert_attention(q, k, v, causal=causal, do=do, dlse=no_dlse, run=attend)


@pytest.mark.parametrize("block", [16, 64])
def test_the_tile_is_a_choice(block, attend, assert_attention):
    q, k, v = (random(1, 2, m, 40, seed=m) for m in (70, 101, 101))
    no_dlse = torch.zeros(q.shape[:3], device="cuda")

    def run(*tensors, **options):
        return attend(*tensors, block=block, **options)

    assert_attention(q, k, v, causal=True, dlse=no_dlse, run=run)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_comparison_of_the_notebook(nb, dtype, causal):
    for seed in range(20):
        torch.manual_seed(seed)
        for n, n_kv in ((70, 101), (101, 70)):
            assert nb["compare"](dtype, causal, n, n_kv) == [True, True], (seed, n)


def test_the_comparison_sees_a_silent_mask(nb, monkeypatch):
    """A10: a backward that is causal though nobody asked."""
    right = nb["triton_backward"]
    monkeypatch.setitem(nb, "triton_backward", lambda *tensors: right(*tensors[:-1], True))
    torch.manual_seed(0)
    assert nb["compare"](torch.float32, False, 70, 101) == [False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_again(nb, dtype):
    """A23."""
    q, k, v, do = random(4, 3, 700, 64).to(dtype)
    o, lse = (x[0] for x in kernels.attention(q[None], k[None], v[None], return_lse=True))
    first, second = (nb["triton_backward"](q, k, v, o, lse, do) for _ in range(2))
    assert all(map(torch.equal, first, second))
    inputs = [x[None] for x in (q, k, v)]
    first, second = (nb["gradients"](kernels.attention, inputs, do[None], True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_what_is_kept(nb):
    """The same bytes as in the stored output, which a CPU compares."""
    n, d = 1024, 64
    inputs = [random(1, 1, n, d, seed=seed).requires_grad_() for seed in range(3)]
    assert nb["kept_bytes"](naive.attention, *inputs) == 3 * n * d * 4 + n * n * 4
    assert nb["kept_bytes"](kernels.attention, *inputs) == 4 * n * d * 4 + 2 * n * 4


def test_the_numpy_loop_takes_tensors_of_a_gpu(nb):
    shapes = (4, 5), (2, 7), (2, 7)
    q, k, v = (random(1, *shapes[i], 8, seed=i).double() for i in range(3))
    do = random(1, 4, 5, 8).double()
    for causal in (False, True):
        ours, exact = (
            nb["gradients"](f, [q, k, v], do, causal) for f in (nb["tiled"], naive.attention)
        )
        for a, b in zip(ours, exact, strict=True):
            assert a.device == b.device and torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_a_second_derivative_is_refused():  # A22
    q, k, v = (random(1, 1, 8, 16, seed=seed).requires_grad_() for seed in range(3))
    (dq,) = torch.autograd.grad(kernels.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="attention has no second derivative"):
        dq.pow(2).sum().backward()


def test_three_ways_train_alike(nb):
    """As in the notebook, whose output says so."""
    text, characters = train.load_text()
    curves = []
    for attend in (naive.attention, nb["tiled"], kernels.attention):
        shape = dict(width=32, heads=2, layers=1, n=64)
        model = train.Transformer(attend, characters=len(characters), **shape).cuda()
        curves.append(train.train(model, train.windows(text, n=64, batch=1), steps=40, lr=5e-3))
    assert curves[0][-1] < curves[0][0] - 0.5
    for one, other in itertools.combinations(curves, 2):
        assert np.abs(np.subtract(one, other)).max() < 1e-3


@pytest.mark.skipif(torch.cuda.get_device_capability() < (8, 0), reason="trains in BF16")
def test_points_of_the_reader_s_own():
    ours, naives = (recorder.point(flow, 1024) for flow in ("ours", "naive"))
    assert math.isfinite(ours["tokens_per_second"]) and ours["peak_bytes"] > ours["kept_bytes"] > 0
    assert naives.get("out_of_memory") or naives["kept_bytes"] > ours["kept_bytes"]
