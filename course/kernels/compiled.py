"""What torch.compile makes of a function: the kernels it wrote, or one line where it cannot run."""

import re
from typing import NamedTuple

import torch


class Compiled(NamedTuple):
    """A compiled function, the code written for it, and a note: "" or why plain `fn` runs instead.

    `recognised` counts the attentions that the compiler knew by sight.
    """

    fn: object
    code: str
    note: str
    recognised: int = 0

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels that were written: they tell which operations went in together."""
        return re.findall(r"^(\w*fused\w*) = async_compile", self.code, re.MULTILINE)

    @property
    def calls(self) -> list[str]:
        """Names of the kernels that are called, written by people: "bmm", "_scaled_dot_product_…"."""
        call = r"^ +(?:\w+ = )?(?:torch\.ops\.aten|extern_kernels)\.(\w+)"
        return re.findall(call, self.code, re.MULTILINE)


def compile(fn, *args) -> Compiled:
    """torch.compile of `fn` for arguments like `args`; `fn` itself where that does not work (D13).

    To write a kernel it needs Triton on a GPU, and a C++ compiler on a CPU. It takes some seconds,
    also the second time: the compiler's cache is left aside, since it does not say what was recognised.
    """
    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=False)
    try:
        from torch._dynamo.utils import counters
        from torch._functorch import config as functorch
        from torch._inductor import config
        from torch._inductor.utils import run_and_get_code

        counters["inductor"].pop("fuse_attention", None)
        with config.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
            _, code = run_and_get_code(compiled, *args)
    except Exception as error:  # whatever is missing, the page goes on with what is here
        needs = "Triton" if args[0].is_cuda else "a C++ compiler"
        said = str(error).strip().partition("\n")[0][:80]
        note = f"torch.compile needs {needs} here, and failed ({said}). The plain function runs."
        return Compiled(fn, "", note)
    return Compiled(compiled, "\n".join(code), "", counters["inductor"]["fuse_attention"])


def moves(code: str) -> list[str]:
    """What generated code loads and stores, in order: ["load in_ptr1", …, "store out_ptr0"]."""
    return [" ".join(found) for found in re.findall(r"(load|store)u?\((\w*_ptr\d+)", code)]
