"""What the compiler made of a kernel: registers, spills, shared memory, blocks an SM.

No GPU is needed: Triton compiles for any architecture, in a child process, since this one may
have the interpreter on. `report` knows the attention kernels, `resources` takes any kernel.
Results are cached on disk. On a GPU of the architecture asked for, registers, spills and shared
memory are read from the loaded kernel.
"""

import atexit
import contextlib
import functools
import hashlib
import io
import json
import operator
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from course import kernels

# Threads, blocks, registers and bytes of shared memory an SM has; bytes a block may use; bytes
# the system keeps in each block. Source: CUDA C++ Programming Guide, "Technical specifications
# per compute capability" (13.0). Every SM here has 65,536 registers, handed out to warps by 256.
SM = {
    75: (1024, 16, 65_536, 65_536, 0),
    80: (2048, 32, 167_936, 166_912, 1024),
    86: (1536, 16, 102_400, 101_376, 1024),
    87: (1536, 16, 167_936, 166_912, 1024),
    89: (1536, 24, 102_400, 101_376, 1024),
    90: (2048, 32, 233_472, 232_448, 1024),
    100: (2048, 32, 233_472, 232_448, 1024),
    103: (2048, 32, 233_472, 232_448, 1024),
    120: (1536, 24, 102_400, 101_376, 1024),
    121: (1536, 24, 102_400, 101_376, 1024),
}
REGISTERS = 65_536
CRASHED = {"error": "the compiler crashed"}
ONE_QUESTION = threading.Lock()  # JupyterLab moves sliders in a thread of their own
INSTRUCTIONS = {  # in PTX, counted in the text
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
    "mma": r"\bmma\.sync",
    "TMA": r"cp\.async\.bulk\.tensor",
    "cp.async": r"cp\.async\.c[ag]",
}
REASONS = (  # where an error says it: what ptxas said, what became of ptxas, the last line
    r"^ptxas.*?(?:fatal|error) *: *(.+)",
    r"^PTXAS error: (.+)",
    r"(\S.*?)\s*\Z",
)
# Operands of the attention kernels that are fetched by tiles, and which side of the tile they have.
SIDES = {
    "q": "q", "do": "q", "o": "q", "o_rest": "q", "dq_out": "q",
    "k": "kv", "v": "kv", "dk_out": "kv", "dv_out": "kv",
}  # fmt: skip
KERNELS = {  # the products in one step of its loop, the FP32 numbers a block then holds at once
    "forward": ("course.kernels.forward:forward_kernel", 2, lambda q, kv, d: q * d + q * kv),
    "dkdv": ("course.kernels.backward:dkdv_kernel", 4, lambda q, kv, d: 2 * kv * d + 2 * q * kv),
    "dq": ("course.kernels.backward:dq_kernel", 3, lambda q, kv, d: q * d + 2 * q * kv),
}
# What ptxas compiles in some three seconds, in the worst case seen in ten. Far above it takes minutes.
MAX_HELD = 256  # FP32 numbers a thread: it has 255 registers
# Multiply-adds a thread in one step of the loop, by how they are made.
MAX_UNROLLED = {"without tensor cores": 2048, "on tensor cores": 32_768}
NUMBERS = {  # the least and most of what is asked for, and whether it must be a power of two
    "d": (1, 256, False),
    "block_q": (16, None, True),  # tl.dot takes no less
    "block_kv": (16, None, True),
    "num_warps": (1, 32, True),  # a block has at most 1,024 threads (source: as of SM)
    "num_stages": (1, 8, False),  # each is copied out before the loop
    "maxnreg": (24, 255, False),  # ptxas gives a thread no less, an instruction names no more
}
OPTIONS = "num_warps", "num_stages", "maxnreg"


@dataclass(frozen=True)
class Report:
    """What one block of a compiled kernel takes, and how many blocks an SM then holds."""

    arch: int  # compute capability × 10
    registers: int  # a thread
    spilled_bytes: int  # a thread: the stack that holds what the registers did not
    shared_bytes: int  # a block
    blocks_per_sm: int  # 0: it does not start at all
    limited_by: str  # "registers", "shared memory", "threads", "blocks": what binds first
    instructions: dict  # {"wgmma" | "tcgen05" | "mma" | "TMA" | "cp.async": how often in the PTX}
    source: str  # where the numbers come from

    @property
    def tensor_cores(self) -> bool:
        """Whether it multiplies on the tensor cores."""
        return any(self.instructions[name] for name in ("wgmma", "tcgen05", "mma"))

    @property
    def async_copy(self) -> bool:
        """Whether tiles are fetched while it computes, past the registers."""
        return any(self.instructions[name] for name in ("TMA", "cp.async"))


def report(
    kernel="forward", *, d=128, block_q=128, block_kv=64, num_warps=4, num_stages=2,
    dtype="fp16", causal=False, arch=90, maxnreg=None,
) -> Report:  # fmt: skip
    """The report of "forward", "dkdv" or "dq" on one tile. Raises ValueError in one line.

    Only one variant is measured: each head has a K and V of its own (group = 1), and the forward
    pass keeps no rest of the rounding (keep_rest = False).
    """
    from course.kernels.tiles import padded, uses_tma

    if kernel not in list(KERNELS):
        raise ValueError(f"kernel {kernel!r} is unknown. Choose one of {', '.join(KERNELS)}.")
    if dtype not in ("fp16", "bf16", "fp32"):
        raise ValueError(f"dtype {dtype!r} is unknown. Choose fp16, bf16 or fp32.")
    if type(causal).__name__ not in ("bool", "bool_"):  # Python's or NumPy's
        raise ValueError(f"causal is of type {type(causal).__name__}. Choose True or False.")
    arch = _arch(arch, dtype)
    options = _options(num_warps=num_warps, num_stages=num_stages, maxnreg=maxnreg)
    d, block_q, block_kv = _whole(d=d, block_q=block_q, block_kv=block_kv).values()
    _refuse_what_takes_long(kernel, block_q, block_kv, padded(d), options["num_warps"], dtype, arch)
    constants = {
        "causal": bool(causal),
        "block_q": block_q,
        "block_kv": block_kv,
        "block_d": padded(d),
        "group": 1,
        "keep_rest": False,
    }
    tma = uses_tma(arch, 4 if dtype == "fp32" else 2)
    types = {"scale": "fp32", "heads": "i32", "n_q": "i32", "n_kv": "i32"}
    row = f"tensordesc<fp32[1, {block_q}]>" if tma and options["num_stages"] > 1 else "*fp32"
    for name in ("m", "inv_l", "delta"):
        types[name] = row
        types[f"{name}_out"] = "*fp32"
    for name, side in SIDES.items():
        block = block_q if side == "q" else block_kv
        if tma:
            types[name] = f"tensordesc<{dtype}[1, 1, {block}, {padded(d)}]>"
        else:  # (pointer, rows, d, three strides), as in launch.operand
            types[name] = [f"*{dtype}", "i32", f"i32:{d}", "i32", "i32", "i32"]
    return resources(KERNELS[kernel][0], types, constants, arch=arch, **options)


def resources(kernel, types, constants, *, arch=90, num_warps=4, **options) -> Report:
    """The report of any kernel, named "module:function".

    types: {argument: Triton's name of its type, such as "*fp16" or "i32"} for a superset of its
    arguments, pointers taken as 16-byte aligned; constants: {compile-time argument: value};
    options: num_stages, maxnreg. Raises ValueError in one line, and NoTriton where there is none.
    """
    if not kernels.available:
        raise kernels.NoTriton(kernels.reason)
    arch, options = _arch(arch, types), _options(num_warps=num_warps, **options)
    request = dict(kernel=kernel, types=types, constants=constants, arch=arch, options=options)
    facts = _facts(json.dumps(request, sort_keys=True, default=_plain))
    if facts == CRASHED:  # perhaps not the kernel's fault: ask again next time
        _facts.cache_clear()
    if "error" in facts:
        raise ValueError(f"{kernel} does not compile for sm_{arch} so: {facts['error']}")
    blocks, limit = occupancy(facts["registers"], facts["shared_bytes"], options["num_warps"], arch)
    return Report(arch=arch, blocks_per_sm=blocks, limited_by=limit, **facts)


def occupancy(registers, shared_bytes, num_warps, arch) -> tuple[int, str]:
    """(blocks an SM holds at once, what keeps it from holding more). An unknown arch: ValueError."""
    threads, blocks, shared_sm, shared_block, reserved = SM[_arch(arch)]
    if num_warps > NUMBERS["num_warps"][1]:
        return 0, "threads"
    a_warp = -(-registers * 32 // 256) * 256
    a_block = max(-(-(shared_bytes + reserved) // 128), 1) * 128
    limits = {
        "registers": REGISTERS // a_warp // num_warps,
        "shared memory": shared_sm // a_block if shared_bytes <= shared_block else 0,
        "threads": threads // (32 * num_warps),
        "blocks": blocks,
    }
    limit = min(limits, key=limits.get)
    return limits[limit], limit


def _arch(x, types=()):
    """x as an int that SM has and that runs these types. Raises ValueError."""
    try:
        arch = operator.index(x)
    except TypeError:
        arch = f"of type {type(x).__name__}"
    if arch not in SM:
        raise ValueError(f"arch {arch} is unknown. Choose one of {', '.join(map(str, SM))}.")
    if arch < 80 and "bf16" in str(types):
        raise ValueError(f"sm_{arch} cannot run bf16 kernels. Choose fp16 or fp32, or arch 80.")
    return arch


def _options(**options):
    """Options of the compiler as ints. Raises ValueError."""
    if unknown := options.keys() - OPTIONS:
        raise ValueError(f"option {min(unknown)!r} is unknown. Choose {', '.join(OPTIONS)}.")
    if options.get("maxnreg", 0) is None:  # no cap
        del options["maxnreg"]
    return _whole(**options)


def _whole(**numbers):
    """The numbers as ints, NumPy's too. Raises ValueError for one that is none or out of bounds."""
    for name, x in numbers.items():
        least, most, power = NUMBERS[name]
        bounds = f"from {least} to {most}" if most else f"of at least {least}"
        must = f"It must be a {'power of two' if power else 'whole number'} {bounds}."
        try:
            numbers[name] = n = operator.index(x)
        except TypeError:
            raise ValueError(f"{name} is of type {type(x).__name__}. {must}") from None
        if not least <= n <= (most or n) or (power and n & (n - 1)):
            raise ValueError(f"{name} is {n:,}. {must}")
    return numbers


def _refuse_what_takes_long(kernel, block_q, block_kv, block_d, num_warps, dtype, arch):
    _, products, numbers = KERNELS[kernel]
    how = "without tensor cores" if arch < 80 or dtype == "fp32" else "on tensor cores"
    held = numbers(block_q, block_kv, block_d) // (32 * num_warps)
    unrolled = products * block_q * block_kv * block_d // (32 * num_warps)
    for many, most, what in (
        (held, MAX_HELD, "holds {:,} FP32 numbers at once"),
        (unrolled, MAX_UNROLLED[how], f"unrolls into {{:,}} multiply-adds {how}"),
    ):
        if many > most:
            raise ValueError(
                f"this tile takes long to compile: a thread {what.format(many)}. Up to {most:,} are "
                "reported: choose a smaller tile or more warps."
            )


def _plain(x):
    """A number of NumPy as one of Python. Raises ValueError for what is none."""
    if not hasattr(x, "item"):
        raise ValueError(
            f"a {type(x).__name__} cannot be a constant here. Pass a number or a bool."
        )
    return x.item()


@functools.cache
def _facts(request: str) -> dict:
    """What was measured of a request: from the cache on disk, the loaded kernel, or a child."""
    here = _this_gpu()
    if here and json.loads(request)["arch"] == here[0]:
        return _try(request, loaded_on=here[1])
    key = [request, metadata.version("triton"), *_sources()]
    name = hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flash-course"
    path = folder / f"report-{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = _ask(request)
    if facts == CRASHED:
        return facts
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts), encoding="utf-8")
    except OSError:
        pass  # a home that cannot be written to: compile again next time
    return facts


def _sources():
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [path.read_text(encoding="utf-8") for path in files]


def _this_gpu():
    """(arch, name) of this machine's GPU, or None."""
    if os.environ.get("TRITON_INTERPRET") == "1" or "torch" not in sys.modules:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return major * 10 + minor, torch.cuda.get_device_name()


@functools.cache
def _child():
    """The process that compiles: this file, without the interpreter."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path}
    command = [sys.executable, "-m", "course.kernels.report"]
    pipe = subprocess.PIPE
    child = subprocess.Popen(  # in a session of its own: who interrupts a notebook leaves it alive
        command, stdin=pipe, stdout=pipe, env=env, encoding="utf-8", start_new_session=True
    )
    atexit.register(child.kill)
    return child


def _ask(request):
    with ONE_QUESTION:
        child, answer = _child(), ""
        try:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(request + "\n")
                child.stdin.flush()
                answer = child.stdout.readline()
        except KeyboardInterrupt:  # its answer would be taken for that of the next request
            child.kill()
            _child.cache_clear()
            raise
        if not answer:  # the compiler took the child down with it
            _child.cache_clear()
    return json.loads(answer) if answer else CRASHED


def _serve():
    """Answer requests, a line each, until there are no more."""
    for request in sys.stdin:
        print(json.dumps(_try(request)), flush=True)


def _try(request, loaded_on=None):
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # where ptxas fails, all of the PTX
            return _compile(**json.loads(request), loaded_on=loaded_on)
    except Exception as error:
        for reason in REASONS:
            if found := re.search(reason, str(error), re.MULTILINE):
                break
        return {"error": f"{type(error).__name__}: {found[1] if found else ''}"[:300]}


def _compile(kernel, types, constants, arch, options, loaded_on):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, name = kernel.split(":")
    fn = getattr(import_module(module), name)
    signature, constexprs, attributes = {}, {}, {}
    for i, argument in enumerate(fn.arg_names):
        if argument in constants:
            signature[argument], constexprs[i,] = "constexpr", constants[argument]
        else:
            signature[argument] = _type(types[argument], (i,), attributes)
    source = ASTSource(fn=fn, signature=signature, constexprs=constexprs, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    ptx = compiled.asm["ptx"]
    facts = {
        "shared_bytes": compiled.metadata.shared,
        "instructions": {n: len(re.findall(p, ptx)) for n, p in INSTRUCTIONS.items()},
    }
    if loaded_on and facts["shared_bytes"] <= SM[arch][3]:
        compiled._init_handles()
        return facts | {
            "registers": compiled.n_regs,
            "spilled_bytes": 4 * compiled.n_spills,
            "source": f"the kernel as loaded on {loaded_on}, Triton {triton.__version__}",
        }
    return facts | {
        **_resource_usage(compiled.asm["cubin"], triton),
        "source": f"compiled for sm_{arch} by Triton {triton.__version__}, not run",
    }


def _type(name, path, attributes):
    """Triton's type; what is known to be a multiple of 16 is noted, as a launch would."""
    if isinstance(name, list):
        return tuple(_type(part, (*path, i), attributes) for i, part in enumerate(name))
    name, _, value = name.partition(":")
    if name.startswith("*") or (value and int(value) % 16 == 0):
        attributes[path] = [["tt.divisibility", 16]]
    return name


def _resource_usage(cubin, triton):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [tool, "--dump-resource-usage", path]
        text = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    registers, stack, local = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", text).groups()
    return {"registers": int(registers), "spilled_bytes": max(int(stack), int(local))}


if __name__ == "__main__":
    _serve()
