"""hopper_forward.py on a Hopper GPU: every schedule is right, for every shape that auto gives it."""

from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available() or find_spec("triton") is None:
    pytest.skip("needs a CUDA GPU and Triton", allow_module_level=True)

from course import kernels
from course.kernels import auto, naive
from course.records.hopper_forward import schedules

if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

pytestmark = pytest.mark.gpu
SHAPES = [  # batch, heads, K/V heads, queries, keys
    (2, 4, 4, 512, 512),
    (1, 4, 2, 300, 300),
    (1, 2, 1, 1, 700),
    (1, 2, 2, 200, 77),
    (2, 2, 2, 77, 400),
]


def error(x, right):
    assert x.isfinite().all()
    return (x.double() - right).abs().max()


@pytest.mark.parametrize("d, schedule", [(d, s) for d in (64, 128) for s in schedules(d)])
def test_every_schedule_on_every_shape(d, schedule):
    for causal in (False, True):
        for b, h, h_kv, n, n_kv in SHAPES:
            torch.manual_seed(n)
            q = 2 * torch.randn(b, h, n, d, device="cuda", dtype=torch.bfloat16)
            k, v = (torch.randn(b, h_kv, n_kv, d, device="cuda", dtype=q.dtype) for _ in "kv")
            o, rest, m, inv_l = auto.hopper(
                q, k, v, True, schedule, causal=causal, scale=d**-0.5
            )  # fmt: skip
            exact, lse = naive.attention(
                q.double(), k.double(), v.double(), causal=causal, return_lse=True
            )
            plain = naive.attention(q, k, v, causal=causal)
            assert error(o, exact) <= 2 * error(plain, exact) + 2**-9
            assert error(o.double() + rest.double(), exact) <= error(o, exact) + 2**-9
            ours = m[:, :, :n].double() * 0.6931471805599453 - inv_l[:, :, :n].double().log()
            seen = lse > -float("inf")
            assert torch.equal(ours > -float("inf"), seen)
            assert ((ours - lse)[seen].abs() < 2e-3).all()


@pytest.mark.parametrize("d, causal, n", [(128, False, 2048), (128, True, 2048), (64, False, 2048), (64, True, 8192)])  # fmt: skip
def test_auto_takes_it_and_trains_through_it(d, causal, n, assert_attention):
    q, k, v = (torch.randn(1, 1, n, d, device="cuda", dtype=torch.float16) for _ in "qkv")
    assert auto.hopper_schedule(q, k, causal)
    assert_attention(q, k, v, causal=causal)


def test_strided_operands_and_the_same_bits_every_time():
    x = torch.randn(2, 2048, 3, 4, 128, device="cuda", dtype=torch.float16)
    q, k, v = (x[:, :, i].transpose(1, 2) for i in range(3))
    first = kernels.attention(q, k, v)
    assert torch.equal(first, kernels.attention(*(t.contiguous() for t in (q, k, v))))
    assert all(torch.equal(first, kernels.attention(q, k, v)) for _ in range(20))
