"""What the tests of `course.kernels.elementwise` hold it to, in the interpreter and on a GPU."""

import torch
import torch.nn.functional as F

from course import kernels
from course.kernels import elementwise as ew

DEVICE = kernels.device
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random(*shape, dtype=torch.float32, seed=0):
    """Drawn on the CPU, so that both kinds of machine see the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def mask(shape, p, seed, block=1024):
    """What the chain keeps: it turns 3 into something, and drops to 0."""
    zeros, bias = torch.zeros(shape, device=DEVICE), torch.zeros(shape[-1], device=DEVICE)
    return ew.bias_gelu_dropout_residual(zeros + 3, bias, zeros, p=p, seed=seed, block=block) != 0


def chain_reference(x, bias, residual, keep, p):
    """The chain in plain PyTorch, in the data type of its inputs."""
    y = F.gelu(x + bias, approximate="tanh")
    return torch.where(keep, y / (1 - p), 0) + residual


def no_worse_than_pytorch(ours, theirs, exact):
    """Our error against FP64 is at most twice PyTorch's in the same data type, and finite."""
    assert torch.isfinite(ours).all()
    error, allowed = (ours.double() - exact).abs(), (theirs.double() - exact).abs()
    one_rounding = torch.finfo(ours.dtype).eps / 2 * exact.abs().max()  # PyTorch may be lucky
    assert error.max() <= 2 * torch.maximum(allowed.max(), one_rounding)


def chain_and_its_gradients(shape, dtype, block):
    """The fused chain, forward and backward, against PyTorch with the same mask."""
    p, seed = 0.3, 11
    tensors = [random(*s, dtype=dtype, seed=i) for i, s in enumerate((shape, shape[-1:], shape))]
    dout, keep = random(*shape, dtype=dtype, seed=9), mask(shape, p, seed)

    def run(chain, dtype):
        inputs = [t.to(dtype).detach().requires_grad_() for t in tensors]
        out = chain(*inputs)
        return [out.detach(), *torch.autograd.grad(out, inputs, dout.to(dtype))]

    ours = run(lambda *t: ew.bias_gelu_dropout_residual(*t, p=p, seed=seed, block=block), dtype)
    theirs = run(lambda *t: chain_reference(*t, keep, p), dtype)
    exact = run(lambda *t: chain_reference(*t, keep, p), torch.float64)
    for one in zip(ours, theirs, exact, strict=True):
        no_worse_than_pytorch(*one)


def softmax_of(shape, dtype, one_block):
    """The softmax of rows in one block or in several, against PyTorch."""
    x = 4 * random(*shape, dtype=dtype)
    ours = ew.softmax(x, one_block=one_block)
    no_worse_than_pytorch(ours, torch.softmax(x, -1), torch.softmax(x.double(), -1))


def one_seed_one_mask(shape, blocks):
    """Whatever the block size; another seed is another mask. Returns the mask."""
    first = mask(shape, 0.5, seed=7)
    for block in blocks:
        assert torch.equal(mask(shape, 0.5, seed=7, block=block), first)
    differ = (mask(shape, 0.5, seed=8) != first).double()
    assert abs(differ.mean().item() - 0.5) < 4 / (2 * differ.numel() ** 0.5)
    return first


def empty(shape):
    """Nothing in, nothing out, and gradients of the right shape."""
    x = torch.empty(shape, device=DEVICE, requires_grad=True)
    bias = torch.ones(shape[-1:], device=DEVICE, requires_grad=True)
    out = ew.bias_gelu_dropout_residual(x, bias, x)
    assert out.shape == shape
    out.sum().backward()
    assert x.grad.shape == shape and torch.equal(bias.grad, torch.zeros_like(bias))
    with torch.no_grad():
        assert ew.softmax(x).shape == shape
