"""Section "sanitizer": the attention kernels under NVIDIA's memory and race checkers."""

import os
import re
import subprocess
import sys

from course import measure

TOOLS = {
    "memcheck": "reads and writes outside what was allocated",
    "racecheck": "shared memory used by two threads at once without a barrier between",
}


def record() -> dict:
    """What each tool of compute-sanitizer says of `exercise`: {"tools": {tool: summary}, …}."""
    # Without PyTorch's own pool each tensor has its own allocation, with edges to step over.
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    found = {}
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, sys.executable, "-m", __name__]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", env=env)
        summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", done.stdout)
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        found[tool] = {"looks_for": TOOLS[tool], "says": summary[-1] if summary else f"{last}"}
    method = (
        "compute-sanitizer on forward and backward, full and causal, fp16 and fp32, ragged lengths, "
        "d = 64 and 40, grouped queries, with and without the copy engine"
    )
    return {"tools": found, "stamp": measure.stamp("cuda", method)}


def exercise():
    """Every attention kernel on small, awkward inputs."""
    import torch

    from course.kernels import attention, launch

    for dtype, causal, d, tma in (
        (torch.float16, True, 64, True),
        (torch.float16, False, 40, True),
        (torch.float32, True, 64, True),
        (torch.float16, True, 40, False),
    ):
        if not tma:
            launch.has_tma = lambda x: False
        q = torch.randn(1, 2, 150, d, device="cuda", dtype=dtype, requires_grad=True)
        k, v = torch.randn(2, 1, 1, 190, d, device="cuda", dtype=dtype).requires_grad_()
        o, lse = attention(q, k, v, causal=causal, return_lse=True)
        torch.autograd.grad((o.sum(), lse.sum()), (q, k, v))
    torch.cuda.synchronize()


if __name__ == "__main__":
    exercise()
