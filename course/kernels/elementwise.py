"""The Triton kernels of notebook 03: a fused chain with dropout, a fused row softmax.

Each reads every input once and writes its output once (a softmax of very long rows reads twice).
Arithmetic is in FP32, whatever the data type. Offsets are 64-bit, so a tensor may hold more than
2³¹ elements. Tensors are on one GPU, or anywhere in Triton's interpreter.
"""

from operator import index

import torch
import triton
import triton.language as tl

from course.kernels import guard

ONE_BLOCK = 32768  # the longest row that one program holds in its registers


@triton.jit
def place(cols, BLOCK: tl.constexpr):
    """Row and first column of this program: it has BLOCK columns of one row."""
    program = tl.program_id(0)
    blocks = tl.cdiv(cols, BLOCK)
    return (program // blocks).to(tl.int64), (program % blocks).to(tl.int64) * BLOCK


@triton.jit
def gelu(x):
    """½x(1 + tanh(u/2)), u = 2√(2/π)(x + 0.044715x³); and ½(1 + tanh(u/2)) is σ(u)."""
    u = 1.5957691216 * (x + 0.044715 * x * x * x)
    return x * tl.sigmoid(u)


@triton.jit
def gelu_slope(x):
    """Derivative of `gelu`."""
    u = 1.5957691216 * (x + 0.044715 * x * x * x)
    slope = 1.5957691216 * (1 + 3 * 0.044715 * x * x)
    # σ(−u), not 1 − σ(u), which rounds to nothing where u is large.
    return tl.sigmoid(u) + x * tl.sigmoid(u) * tl.sigmoid(-u) * slope


@triton.jit
def kept(threshold, seed, row, first, cols, BLOCK: tl.constexpr):
    """Dropout's mask, made from the seed and the place of an element alone, so never stored.

    A draw gives four numbers of 32 random bits, and costs more arithmetic than all the rest of the
    chain: with one draw an element, the kernel waits for arithmetic and not for memory. So four
    neighbours share one: column c takes number c % 4 of draw c // 4 of its row. Seven rounds are
    the fewest with which Philox passes every test of randomness (Salmon et al., SC 2011).
    """
    draws = row * tl.cdiv(cols, 4) + first // 4 + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.randint4x(seed, draws, n_rounds=7)
    bits = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (BLOCK,))
    return bits.to(tl.int32, bitcast=True) >= threshold


@triton.jit(do_not_specialize=["threshold", "scale", "seed"])
def chain_kernel(
    x_ptr, bias_ptr, residual_ptr, out_ptr, cols, x_stride, residual_stride,
    threshold, scale, seed, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = dropout(gelu(x + bias)) + residual: two loads and one store an element."""
    row, first = place(cols, BLOCK)
    columns = first + tl.arange(0, BLOCK)
    inside = columns < cols
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0).to(tl.float32)
    y = gelu(x + bias)
    y = tl.where(kept(threshold, seed, row, first, cols, BLOCK), y * scale, 0)
    residual = tl.load(residual_ptr + row * residual_stride + columns, mask=inside, other=0)
    tl.store(out_ptr + row * cols + columns, y + residual.to(tl.float32), mask=inside)


@triton.jit
def plain_chain_kernel(x_ptr, bias_ptr, residual_ptr, out_ptr, cols, p, seed, BLOCK: tl.constexpr):
    """The chain as notebook 03 writes it first, with a draw per number. It is there to be timed."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    places = row * cols + columns
    x = tl.load(x_ptr + places, mask=inside, other=0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0).to(tl.float32)
    residual = tl.load(residual_ptr + places, mask=inside, other=0).to(tl.float32)
    y = gelu(x + bias)
    y = tl.where(tl.rand(seed, places) < p, 0, y / (1 - p))
    tl.store(out_ptr + places, y + residual, mask=inside)


@triton.jit(do_not_specialize=["threshold", "scale", "seed"])
def chain_backward_kernel(
    x_ptr, bias_ptr, dout_ptr, dx_ptr, cols, x_stride, dout_stride,
    threshold, scale, seed, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = gelu'(x + bias) · dropout(dout), with the mask of the forward pass drawn again."""
    row, first = place(cols, BLOCK)
    columns = first + tl.arange(0, BLOCK)
    inside = columns < cols
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0).to(tl.float32)
    dout = tl.load(dout_ptr + row * dout_stride + columns, mask=inside, other=0).to(tl.float32)
    dy = tl.where(kept(threshold, seed, row, first, cols, BLOCK), dout * scale, 0)
    tl.store(dx_ptr + row * cols + columns, dy * gelu_slope(x + bias), mask=inside)


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, residual, p, seed, block):
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        ctx.save_for_backward(x, bias)
        ctx.arguments = p, seed, block
        _launch_chain(chain_kernel, x, bias, residual, out, p, seed, block)
        return out

    @staticmethod
    def backward(ctx, dout):
        x, bias = ctx.saved_tensors
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _launch_chain(chain_backward_kernel, x, bias, dout, dx, *ctx.arguments)
        dbias = dx.sum(tuple(range(dx.dim() - 1)), dtype=torch.float32) if dx.dim() > 1 else dx
        grads, inputs = (dx, dbias.to(bias.dtype)), (x, bias, dout)
        name, instead = "bias_gelu_dropout_residual", "torch.nn.functional"
        grads = guard.differentiable_once(grads, inputs, name, instead)
        return *grads, dout, None, None, None


def _launch_chain(kernel, x, bias, other, out, p, seed, block):
    if out.numel() == 0:
        return
    x, other, cols = _rows(x), _rows(other), x.shape[-1]
    bias = bias.contiguous().resolve_neg()
    grid = guard.grid(cols, block, x.shape[0])
    strides = x.stride(0), other.stride(0)
    # 32 random bits, read as a number from −2³¹ to 2³¹ − 1, lie below this with probability p.
    threshold = int(p * 2**32) - 2**31
    with guard.on_device(x):
        kernel[grid](
            x, bias, other, out, cols, *strides, threshold, 1 / (1 - p), seed,
            BLOCK=block, num_warps=min(max(block // 1024, 1), 8),
        )  # fmt: skip


def bias_gelu_dropout_residual(x, bias, residual, *, p=0.1, seed=0, block=1024):
    """dropout(gelu(x + bias)) + residual in one kernel; differentiable.

    x, residual: (..., cols); bias: (cols,). GELU is the tanh form. The same seed drops the same
    elements, for any block size, forward and backward. First derivatives only.
    """
    guard.tensors(x=x, bias=bias, residual=residual)
    if x.dim() == 0 or bias.shape != x.shape[-1:] or residual.shape != x.shape:
        raise ValueError(
            f"x is {_shape(x)}, bias {_shape(bias)}, residual {_shape(residual)}: bias must be the "
            "last axis of x, and residual the shape of x"
        )
    p = guard.number("p", p)
    if not 0 <= p < 1:
        raise ValueError(f"p is {p}: the part dropped must be at least 0 and less than 1")
    if not hasattr(seed, "__index__") or not -(2**63) <= index(seed) < 2**64:
        raise ValueError(f"seed is {seed!r}: it must be an integer of at most 64 bits")
    _check_block("block", block, 4)
    return _Chain.apply(x, bias, residual, p, index(seed), block)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, x_stride, BLOCK: tl.constexpr):
    """Softmax of one row, held whole: one load and one store an element."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < cols
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=-float("inf")).to(tl.float32)
    m = tl.max(x, axis=0)
    p = tl.exp(x - tl.where(m == -float("inf"), 0, m))
    l = tl.sum(p, axis=0)
    tl.store(out_ptr + row * cols + columns, p / tl.where(l == 0, 1, l), mask=inside)


@triton.jit
def long_softmax_kernel(x_ptr, out_ptr, cols, x_stride, BLOCK: tl.constexpr):
    """Softmax of one row of any length, block by block: first m and l, then the numbers."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    out_ptr += row * cols
    m, l = -float("inf"), 0.0
    for first in range(0, cols, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + columns, mask=columns < cols, other=-float("inf")).to(tl.float32)
        m_old, m = m, tl.maximum(m, tl.max(x, axis=0))
        base = tl.where(m == -float("inf"), 0, m)
        l = l * tl.exp(m_old - base) + tl.sum(tl.exp(x - base), axis=0)
    base, l = tl.where(m == -float("inf"), 0, m), tl.where(l == 0, 1, l)
    for first in range(0, cols, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < cols
        x = tl.load(x_ptr + columns, mask=inside, other=-float("inf")).to(tl.float32)
        tl.store(out_ptr + columns, tl.exp(x - base) / l, mask=inside)


def softmax(x, *, one_block=ONE_BLOCK):
    """Softmax over the last axis, in one kernel. No backward pass.

    Rows longer than `one_block` are read twice. A row of −∞ alone gives 0, as everywhere in the
    course (torch.softmax gives NaN).
    """
    guard.tensors(x=x)
    _check_forward_only(x)
    _check_block("one_block", one_block, 1)
    if x.dim() == 0:
        raise ValueError("x is a single number: softmax needs at least one axis")
    shape = x.shape
    if x.numel() == 0:
        return torch.empty(shape, dtype=x.dtype, device=x.device)
    x, cols = _rows(x), shape[-1]
    kernel = softmax_kernel if cols <= one_block else long_softmax_kernel
    block = min(triton.next_power_of_2(cols), one_block)
    warps = min(max(block // 512, 1), 32)
    grid = guard.grid(x.shape[0], 1, 1)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    with guard.on_device(x):
        kernel[grid](x, out, cols, x.stride(0), BLOCK=block, num_warps=warps)
    return out


def _rows(x):
    """x as (rows, cols), each row without gaps; a copy only where its strides allow no view."""
    x = x.reshape(-1, x.shape[-1]).resolve_neg()
    return x if x.stride(1) == 1 else x.contiguous()


def _shape(x):
    return tuple(x.shape)


def _check_block(name, block, least):
    if not isinstance(block, int) or not least <= block <= ONE_BLOCK or block & (block - 1):
        raise ValueError(f"{name} is {block}: it must be a power of two, {least} to {ONE_BLOCK:,}")


def _check_forward_only(*tensors):
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise ValueError("this kernel has no backward pass: call it under torch.no_grad()")
