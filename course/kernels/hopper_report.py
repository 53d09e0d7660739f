"""What the compiler made of hopper_forward.py: registers, spills, and the order of its instructions.

No GPU is needed: a child process, whose interpreter is off, compiles for an H100 or H200.
"""

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MARKS = {  # machine instructions that tell the order, and what the course calls them
    "product": r"HGMMA",
    "wait": r"WARPGROUP\.DEPBAR\S* gsb\d+, 0x(\d)",
    "exp2": r"MUFU\.EX2",
    "fetch": r"UTMALDG",
    "registers": r"USETMAXREG\.(?:TRY_ALLOC|DEALLOC)",
}


@functools.cache
def listing(d, causal, schedule):
    """{"registers", "stack", "shared": bytes, "order": [[what, how many in a row], …]}.

    For FP16 and head dimension d, 64 or 128. stack counts the spilled bytes of a thread; a wait is
    noted as "wait 0" or "wait 1", by how many products may still run after it. Raises RuntimeError
    in one line where the compiler fails.
    """
    asked = json.dumps([d, bool(causal), schedule._asdict()])
    done = subprocess.run(
        [sys.executable, "-m", __name__, asked],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise RuntimeError(f"the compiler failed on {schedule}: {said}")
    return json.loads(done.stdout.splitlines()[-1])


def order(disassembly):
    """[[what, how many in a row], …] of the instructions in MARKS."""
    names = []
    for line in disassembly.splitlines():
        for what, pattern in MARKS.items():
            if found := re.search(pattern, line):
                names.append(f"{what} {found[1]}" if found.groups() else what)
    return [[name, len(list(run))] for name, run in itertools.groupby(names)]


def _compile(d, causal, schedule):
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Absent:  # stands in for the driver of the GPU that is not here
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device=None):
            return 0

    driver.set_active(Absent())
    from course.kernels import hopper_forward as hopper

    how = hopper.Schedule(**schedule)
    x, row = torch.empty(1, 1, 256, d, dtype=torch.float16), torch.empty(4)
    q, k = hopper.descriptor(x, 64), hopper.descriptor(x, how.block_kv)
    compiled = hopper.forward_kernel.warmup(
        q, k, k, q, q, row, row, 0.1, 999, 7, 300, 300, 1, False, causal,
        *hopper.constants(how), grid=(1,), num_warps=4,
    )  # fmt: skip
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()

        def tool(*command):
            command = [tools / command[0], *command[1:], file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage = tool("cuobjdump", "--dump-resource-usage")
        disassembly = tool("nvdisasm", "-c")
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "stack": int(re.search(r"STACK:(\d+)", usage)[1]),
        "shared": compiled.metadata.shared,
        "order": order(disassembly),
    }


if __name__ == "__main__":
    print(json.dumps(_compile(*json.loads(sys.argv[1]))))
