"""What stands before every launch: operands a kernel can read, a grid CUDA can start, the device.

Whatever is not supported is refused here, in one line, before anything runs.
"""

import threading

import torch

from course.kernels import interpreted, tiles

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_GRID = 2**31 - 1  # programs along x, the only axis used: y and z stop at 65,535
INTERPRETER = threading.Lock()  # it keeps which program runs in a global: one launch at a time


def tensors(**operands):
    """Raise ValueError unless these are dense tensors of one data type on one device of Triton's."""
    for name, x in operands.items():
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name} is of type {type(x).__name__}. Make it a tensor.")
        if x.is_nested or x.layout != torch.strided:
            raise ValueError(f"{name} is sparse or nested. Make it dense: to_dense() or padding.")
        if x.dtype not in DTYPES:
            raise ValueError(f"{name} is {x.dtype}. Use float16, bfloat16 or float32.")
    names, first = ", ".join(operands), next(iter(operands.values()))
    for what in ("dtype", "device"):
        found = [str(getattr(x, what)) for x in operands.values()]
        if len(set(found)) > 1:
            raise ValueError(f"{names} differ in {what} ({', '.join(found)}). Bring them to one.")
    if not first.is_cuda and not (interpreted and first.device.type == "cpu"):
        where, there = ("the CPU or a GPU", "there") if interpreted else ("a GPU", "to 'cuda'")
        remedy = "" if interpreted else ", or set TRITON_INTERPRET=1 before Python starts"
        raise ValueError(
            f"{next(iter(operands))} is on {first.device}, and Triton runs on {where} here. Move "
            f"{names} {there}{remedy}."
        )
    if not interpreted:
        capability, _ = tiles.gpu(first.device.index)
        if capability < 75 or (capability < 80 and first.dtype == torch.bfloat16):
            raise ValueError(
                f"this GPU (compute capability {capability / 10}) cannot run {first.dtype} "
                "kernels. float16 and float32 need 7.5, bfloat16 needs 8.0."
            )


def number(name, x):
    """x as a float. Raises ValueError for what is none, or would silently lose its gradient."""
    if isinstance(x, torch.Tensor) and x.requires_grad:
        raise ValueError(f"{name} requires a gradient and would get none. Pass {name}.item().")
    try:
        # of NumPy's complex numbers float() would take the real part
        kind = getattr(getattr(x, "dtype", None), "kind", "f")
        if isinstance(x, str | bytes | bytearray) or kind not in "biuf":
            raise TypeError
        return float(x)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        said = " ".join(repr(x).split())
        said = said if len(said) < 40 else f"{said[:37]}..."
        raise ValueError(f"{name} is {said}. It must be one real number.") from None


def grid(rows, block, heads):
    """One program for each `block` of the rows of each head, all along x."""
    programs = -(-rows // block) * heads
    if programs > MAX_GRID:
        raise ValueError(
            f"this needs {programs:,} programs and CUDA starts at most {MAX_GRID:,} at once. "
            "Split the batch."
        )
    return (programs,)


def on_device(x):
    """Launches go to the current device: make it the one x is on, until they are queued."""
    return torch.cuda.device(x.device) if not interpreted else INTERPRETER


def differentiable_once(grads, inputs, name, instead):
    """The gradients that function `name` returns, which refuse to be differentiated again."""
    if not torch.is_grad_enabled():  # nobody asked: create_graph=False
        return grads
    refusal = f"{name} has no second derivative. Use {instead} where you differentiate twice."
    return [NoSecondDerivative.apply(g, refusal, *inputs) for g in grads]


class NoSecondDerivative(torch.autograd.Function):
    """A gradient as it is, with a node in the graph: without one, a penalty would train nothing.

    PyTorch's once_differentiable makes one only where the upstream gradient requires a gradient.
    """

    @staticmethod
    def forward(ctx, grad, refusal, *inputs):
        """The same numbers."""
        ctx.refusal = refusal
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, *_):
        """Refuse."""
        raise RuntimeError(ctx.refusal)
