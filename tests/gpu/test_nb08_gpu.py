"""The cells of notebook 08 on a GPU: its kernels, its exercises, what is kept, training, its points."""

import itertools
import math

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course import kernels, train
from course.exercises import training as ex
from course.kernels import interpreted, naive
from course.records import training as recorder

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16]
HEAD = """
import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from course import kernels
from course.kernels import launch, naive, tl, triton
from course.kernels.notebook import load_tile, store_tile
from course.kernels.notebook_forward import flash
"""


@pytest.fixture(scope="module")
def nb(cells):
    """What the notebook defines, its broken kernel mended and the missing one put in its place."""
    assert not interpreted
    names = cells("08_training.ipynb", HEAD)  # the globals of what is defined there
    names["dkdv_kernel"], names["dq_kernel"] = ex.dkdv.answer, ex.dq.answer
    return names


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


@pytest.fixture(scope="module")
def attend(nb):
    """attend(q, k, v): o and lse, the gradients by the notebook's kernels, at any tile."""

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

    def run(q, k, v, *, causal, scale, return_lse, block=None):
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


@pytest.mark.parametrize("block", [16, 32, 64])
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
            assert nb["is_right"](dtype, causal, n, n_kv), (seed, n)


def test_the_comparison_sees_a_silent_mask(nb, monkeypatch):
    """A10: a backward that is causal though nobody asked."""
    right = nb["triton_backward"]
    monkeypatch.setitem(nb, "triton_backward", lambda *tensors: right(*tensors[:-1], True))
    torch.manual_seed(0)
    assert not nb["is_right"](torch.float32, False, 70, 101)


@pytest.mark.parametrize("item", [ex.dq, ex.dkdv], ids=["dq", "dkdv"])
def test_the_exercises_accept_their_solution_and_no_wrong_answer(item):
    assert item.verdict(item.answer, 1)[0] == "right"
    for attempt, diagnosis in item.wrong:
        assert item.verdict(attempt, 1)[0] == "wrong", diagnosis


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_the_same_bits_again(nb, dtype):
    """A23."""
    q, k, v, do = random(4, 1, 3, 700, 64).to(dtype)
    for attend in (nb["attention"], kernels.attention):
        first, second = (nb["gradients"](attend, [q, k, v], do, True) for _ in range(2))
        assert all(map(torch.equal, first, second))


def test_what_is_kept(nb):
    """The same bytes as in the stored output, which a CPU compares."""
    n, d = 256, 16
    inputs = [random(1, 1, n, d, seed=seed).requires_grad_() for seed in range(3)]
    assert nb["kept_bytes"](naive.attention, *inputs) == 3 * n * d * 4 + n * n * 4
    assert nb["kept_bytes"](nb["attention"], *inputs) == 4 * n * d * 4 + n * 4


def test_what_rounding_took_from_o(nb):
    k, v, do = random(3, 1, 1, 128, 64)
    plain, without, kept = (float(x) for x in nb["errors_of_dq"](2 * k, k, v, do))
    assert kept < 1e-3 and without > 50 * kept and without < 2 * plain


def test_a_second_derivative_is_refused():  # A22
    q, k, v = (random(1, 1, 8, 16, seed=seed).requires_grad_() for seed in range(3))
    (dq,) = torch.autograd.grad(kernels.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="attention has no second derivative"):
        dq.pow(2).sum().backward()


def test_four_ways_train_alike(nb):
    """As in the notebook, whose output says so."""
    text, characters = train.load_text()
    curves = []
    for attend in (naive.attention, nb["sdpa"], nb["attention"], kernels.attention):
        shape = dict(width=32, heads=2, layers=1, n=32)
        model = train.Transformer(attend, characters=len(characters), **shape).cuda()
        curves.append(train.train(model, train.windows(text, n=32, batch=1), steps=20, lr=5e-3))
    assert curves[0][-1] < curves[0][0] - 0.5
    for one, other in itertools.combinations(curves, 2):
        assert np.abs(np.subtract(one, other)).max() < 1e-3


@pytest.mark.skipif(torch.cuda.get_device_capability() < (8, 0), reason="trains in BF16")
def test_points_of_the_reader_s_own():
    points = {flow: recorder.point(flow, 1024) for flow in recorder.FLOWS}
    for flow, point in points.items():
        if flow != "naive":
            assert point["peak_bytes"] > point["kept_bytes"] > 0
            assert 0 < point["gpu_seconds"] < 1.2 * recorder.TOKENS / point["tokens_per_second"]
            assert math.isfinite(point["host_seconds"])
    plain = points["naive"]
    assert plain.get("out_of_memory") or plain["kept_bytes"] > points["ours"]["kept_bytes"]
