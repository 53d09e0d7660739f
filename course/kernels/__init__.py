"""The same attention, on a GPU: Triton kernels written to be read.

Import this before `triton`. Where there is no GPU it switches Triton's interpreter on, which
must happen before Triton is imported, and says so in one line. Where there is no Triton at all,
`available` is False and `reason` is the line a notebook prints.

`from course.kernels import tl, triton` gives Triton itself, or where there is none stand-ins with
which a kernel can still be defined; its launch raises NoTriton. So a cell that launches a kernel
needs no `if`, only

    with kernels.needed:
        my_kernel[grid](x.to(kernels.device), …)
        print(…)

Where there is no Triton the block ends at the launch with that one line, and the page goes on.
"""

import contextlib
import importlib.util
import os
import sys


class NoTriton(RuntimeError):
    """A kernel was to run, and there is no Triton: the message is `reason`."""


class _Needed(contextlib.ContextDecorator):
    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        not_found = isinstance(error, ImportError) and (error.name or "").startswith("triton")
        if kind is NoTriton or not_found:
            print(reason)
        return kind is NoTriton or not_found


def _set_up():
    """(available, reason, note), after choosing between the GPU and the interpreter."""
    if importlib.util.find_spec("triton") is None:
        why = (
            f"Triton has no wheel for this platform ({sys.platform}): the Triton cells are skipped"
        )
        return False, f"{why}, and their recorded results are shown instead.", ""
    chosen = os.environ.get("TRITON_INTERPRET")
    if chosen and chosen.lower() not in ("1", "true", "yes", "on", "y"):  # Triton's own list
        return True, "", ""
    import torch

    gpu = torch.cuda.is_available()
    if gpu and not chosen:
        return True, "", ""
    triton = sys.modules.get("triton")
    if triton and isinstance(triton.language.sum, triton.JITFunction):
        why = "triton was imported before course.kernels, too late to switch its interpreter on"
        return False, f"{why}. Restart the kernel and import course.kernels first.", ""
    os.environ["TRITON_INTERPRET"] = "1"
    why = "TRITON_INTERPRET is set" if gpu else "No GPU here"
    return True, "", f"{why}: Triton kernels run in its interpreter, right but slow."


available, reason, note = _set_up()
interpreted = available and os.environ.get("TRITON_INTERPRET") == "1"
device = "cuda" if available and not interpreted else "cpu"  # where kernels find their tensors
needed = _Needed()  # a block, or with @ a function, that launches kernels
if note or reason:
    print(note or reason)


def __getattr__(name):
    if name not in ("tl", "triton"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if available:
        import triton
        import triton.language as tl
    else:
        from course.kernels.missing import tl, triton
    return {"tl": tl, "triton": triton}[name]


def attention(q, k, v, *, causal=False, scale=None, variant="auto", return_lse=False):
    """softmax(q kᵀ · scale) v on the GPU, in memory that grows with N, not N²; differentiable.

    q (B, H, N, d); k, v (B, H_kv, N_kv, d), all on one device, in one of float16, bfloat16 and
    float32 (whose dots are IEEE, never TF32); d from 1 to 256, H a multiple of H_kv, any strides.
    Causal aligns bottom-right: query i sees key j when j ≤ i + N_kv − N. A query that sees no key
    gets 0, lse −∞ and zero gradients. scale defaults to 1/√d; any number will do whose size is
    below 2.3e38.

    Returns o (B, H, N, d), and with return_lse also lse (B, H, N): float32, natural logarithm,
    differentiable too. Raises ValueError in one line for what it does not support, before any
    launch. First derivatives only; not for torch.func, and under torch.compile wrap the call in
    torch.compiler.disable.

    Numbers that are out of range are not hidden. A score q·k·scale of −∞ has weight 0; one above
    2.3e38, or only scores of −∞, give a row of NaN. The sum Σ p·v is divided by ℓ at the end, so it
    overflows where |v|·N passes the range of FP32. In float16 dO·v overflows at 65,504 in the
    backward pass, as in PyTorch. A NaN or infinity in v reaches o in every row whose tile covers it,
    even where the causal mask hides it (0 · NaN is NaN). In the same way those in k, q and dO reach
    dQ, dK and dV.

    variant: "readable", the Triton kernels of forward.py and backward.py; or "auto", the fastest
    that this device and input allow: split_kv.py where few queries meet many keys and no gradient
    is asked for, hopper_forward.py on long rows of an H100 or H200, else the same.
    """
    if not available:
        raise NoTriton(reason)
    from course.kernels.autograd import attention

    return attention(q, k, v, causal=causal, scale=scale, variant=variant, return_lse=return_lse)


def decode(q, k, v, *, lengths=None, table=None, causal=True, scale=None, return_lse=False):
    """The next tokens' attention over a cache of keys and values; no gradient.

    q (B, H, N, d), N new queries a sequence, usually 1. k and v (B, H_kv, N_kv, d); or, with table,
    pools of pages (pages, H_kv, keys a page, d), where table (B, pages of a batch), int32, says
    which pages a sequence has, in order. lengths (B,), int32: how many keys of each sequence
    count, N_kv or all pages where it is None; what lies past them is never seen, NaN or not.
    Causal aligns bottom-right, so the last query sees every key.

    Returns o (B, H, N, d), and with return_lse also lse, as `attention` does. Raises ValueError in
    one line for what it does not support. What table and lengths hold is not read on the host,
    which would have to wait for the GPU: a page or a length that cannot be gives rows of NaN.
    """
    if not available:
        raise NoTriton(reason)
    from course.kernels.serving import decode

    return decode(
        q, k, v, lengths=lengths, table=table, causal=causal, scale=scale, return_lse=return_lse
    )
