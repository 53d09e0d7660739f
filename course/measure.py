"""Time, peak memory and DRAM bytes, measured here and now.

Every result carries a stamp: device, date, versions, method. Times are medians; their spread is
the range between the first and the third quartile. A copy counts the bytes it reads and the bytes
it writes. Torch is imported only when a GPU is asked for, and nothing of the course ever:
`course.hardware.this_machine` makes a `Gpu` of what `machine` finds.
"""

import csv
import importlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np

KIB, MIB = 2**10, 2**20
STAIRCASE_CPU = tuple(2**e * KIB for e in range(4, 19))  # 16 KiB to 256 MiB
STAIRCASE_CUDA = tuple(2**e * KIB for e in range(5, 24))  # 32 KiB to 8 GiB


@dataclass(frozen=True)
class Timing:
    """Seconds a call took: the median of `repeats` samples, and the quartiles around it."""

    median: float
    low: float
    high: float
    repeats: int
    warmup: int
    stamp: dict

    @property
    def spread(self) -> float:
        """Third quartile minus first, in seconds."""
        return self.high - self.low

    def rate(self, amount: float) -> float:
        """Amount (bytes, FLOPs) a second, at the median."""
        return amount / self.median


def time(fn, *, device="cpu", budget=0.2, cold=True) -> Timing:
    """Time `fn()` for about `budget` seconds, after warm-up calls that take a third of that.

    On "cpu" by the wall clock; if CUDA is in use, work is waited for before the clock is read. On
    "cuda" by events on the GPU's own queue, and with `cold` the L2 is filled with other data
    before each call, by reading a buffer four times its size.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}: time on cpu or cuda")
    if device == "cuda":
        _torch()  # refuses where there is no GPU
    fn()  # compiles, allocates: never measured
    once = _seconds(fn)
    warmup = min(int(budget / 3 / once), 1000)
    for _ in range(warmup):
        fn()
    repeats = min(max(int(budget / once), 5), 100)
    if device == "cpu":
        calls = max(1, int(1e-4 / once))  # a sample is long enough for the clock
        samples = [_seconds(fn, calls) for _ in range(repeats)]
        method = f"wall clock, median and quartiles of {repeats} samples of {calls} calls"
    else:
        samples = _cuda_samples(fn, repeats, cold)
        flush = "L2 flushed by reads before each" if cold else "L2 left as it was"
        method = f"CUDA events, median and quartiles of {repeats} calls, {flush}"
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, low, high, repeats, warmup + 2, stamp(device, method))


def arrays(*shape, count=3):
    """A library and `count` arrays of random numbers: NumPy's in FP32; PyTorch's in FP16 on a GPU.

    What is written in the words that both libraries know, xp.add(x, y, out=out), x @ y or
    x.mean(-1, keepdims=True), then runs on the processor or on the GPU.
    """
    if cuda_available():
        torch = _torch()
        return torch, torch.randn(count, *shape, device="cuda", dtype=torch.float16)
    rng = np.random.default_rng(0)
    return np, rng.standard_normal((count, *shape), np.float32)


def copy_bandwidth(size_bytes, *, device="cpu", threads=None, budget=0.05) -> dict:
    """Bytes a second of a copy whose source and destination take `size_bytes` together.

    So `size_bytes` is the working set, and also what one copy reads plus writes. (A CPU cache may
    read the destination too before it writes; that is not counted.) `threads` share the copy on a
    CPU; None takes every core this process may use.
    """
    if size_bytes < 64:
        raise ValueError(f"size_bytes is {size_bytes}: a copy needs at least 64 bytes to time")
    if device == "cpu":
        threads = threads or _cores()
        timing, moved = _time_cpu_copy(size_bytes, threads, budget)
    else:
        torch, threads = _torch(), None
        source = torch.ones(size_bytes // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copies = min(max(2**28 // size_bytes, 1), 256)
        copy = lambda: target.copy_(source)  # noqa: E731
        if copies > 1:  # in one CUDA graph: not timed by how fast Python can ask for the next
            copy = cuda_graph(copy, copies).replay
        timing = time(copy, device="cuda", budget=budget, cold=False)
        moved = 2 * source.nbytes * copies
    return {
        "bytes": size_bytes,
        "bandwidth": timing.rate(moved),
        "low": moved / timing.high,
        "high": moved / timing.low,
        "threads": threads,
        "stamp": timing.stamp,
    }


def staircase(sizes=None, *, device="cpu", threads=1) -> dict:
    """Copy bandwidth against working-set size: each level of memory shows as a step.

    On a CPU one thread by default, since L1 and L2 belong to one core. Returns {"points", "stamp"},
    each point {"bytes", "bandwidth", "low", "high"}.
    """
    sizes = sizes or (STAIRCASE_CPU if device == "cpu" else STAIRCASE_CUDA)
    points = [copy_bandwidth(size, device=device, threads=threads) for size in sizes]
    keep = ("bytes", "bandwidth", "low", "high")
    how = f"{threads} thread" + "s" * (threads > 1)
    if device == "cuda":
        how = "up to 256 copies to a CUDA graph"
    method = f"copy, bytes read + written, {how}, caches warm, median and quartiles"
    return {
        "points": [{key: point[key] for key in keep} for point in points],
        "stamp": stamp(device, method),
    }


def matmul_rate(n, dtype="fp32", *, device="cpu", budget=None) -> dict:
    """FLOP/s of an n×n×n matmul of random numbers (FMA = 2 FLOP) by NumPy's BLAS or by torch.

    "rate" is at the median time, "high" at the first quartile. Default budget: 0.3 s on a CPU, 0.02 s
    on a GPU, where a large matmul soon meets the power limit.
    """
    budget = budget or (0.3 if device == "cpu" else 0.02)
    if n < 1:
        raise ValueError(f"n is {n}: a matmul needs at least 1 row")
    if device == "cpu":
        if dtype not in ("fp32", "fp64"):
            raise ValueError(f"no fast {dtype} matmul in NumPy: ask for fp32 or fp64, or a GPU")
        kind = {"fp32": np.float32, "fp64": np.float64}[dtype]
        a, b = np.random.default_rng(0).standard_normal((2, n, n)).astype(kind)
        out = np.empty_like(a)
        timing = time(lambda: np.matmul(a, b, out=out), budget=budget)
    else:
        torch = _torch()
        kinds = {"fp16": torch.float16, "bf16": torch.bfloat16}
        kinds |= {"fp32": torch.float32, "tf32": torch.float32, "fp64": torch.float64}
        if dtype not in kinds:
            raise ValueError(f"unknown dtype {dtype!r}: one of {', '.join(kinds)}")
        a, b = torch.randn(2, n, n, device="cuda").to(kinds[dtype])
        out = torch.empty_like(a)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            timing = time(lambda: torch.mm(a, b, out=out), device="cuda", budget=budget)
        finally:
            torch.set_float32_matmul_precision(before)
    flops = 2 * n**3
    return {
        "n": n,
        "dtype": dtype,
        "rate": timing.rate(flops),
        "high": flops / timing.low,
        "stamp": timing.stamp,
    }


def peak_memory(fn, *, device="cpu") -> int:
    """Most bytes that `fn()` held at once, above what was held before the call.

    On "cpu" what NumPy and Python allocate (tracemalloc), on "cuda" what torch's allocator gives.
    """
    if device == "cpu":
        running = tracemalloc.is_tracing()
        if not running:
            tracemalloc.start()
        try:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            fn()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            if not running:
                tracemalloc.stop()
    torch = _torch()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def dram_bytes(target, argument_lists, *, cold=False, timeout=240) -> list[list[dict]]:
    """Bytes each kernel really read from and wrote to DRAM, by hardware counter (NVIDIA's ncu).

    `target` is "module:function"; for each list of arguments, `function(*arguments)` prepares data
    and returns the call to count, in a child process under ncu. Returns, for each list, one dict
    a kernel: {"kernel", "read", "written"}. The L2 is filled with other data before the call. After
    that a kernel finds in it what the kernel before left, as in a normal run, unless `cold`: then
    ncu empties the caches before each kernel.
    Raises RuntimeError, in one line, where ncu cannot count.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError("DRAM counters: not available (no `ncu` on the PATH)")
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--clock-control", "none", "--cache-control", "all" if cold else "none"]
    command += ["--profile-from-start", "off"]
    command += ["--metrics", "dram__bytes_read.sum,dram__bytes_write.sum"]
    command += [sys.executable, "-m", "course.measure", target, json.dumps(argument_lists)]
    root = str(Path(__file__).parent.parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=timeout, env=env)
    runs = _read_ncu(done.stdout)
    if done.returncode or len(runs) != len(argument_lists):
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise RuntimeError(f"DRAM counters: not available (ncu said: {said[-1]})")
    return runs


def machine() -> dict:
    """What this machine can do: the GPU where torch sees one, the CPU otherwise. About 3 s.

    {"name", "kind", "peak": {dtype: FLOP/s}, "bandwidth": bytes/s of its main memory, "levels":
    [{"name", "capacity_bytes", "bandwidth" or None}], "threads", "stamp"}, and on a GPU also "sms",
    "smem_per_sm", "smem_per_block", "l2_bytes", "hbm_bytes".
    """
    return _cuda_machine() if cuda_available() else _cpu_machine()


def cuda_available() -> bool:
    """Whether torch is installed and sees a CUDA GPU. Imports torch."""
    try:
        return importlib.import_module("torch").cuda.is_available()
    except ImportError:
        return False


def stamp(device="cpu", method="") -> dict:
    """Where a number comes from: {"device", "date", "versions", "method"}."""
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    if device == "cpu":
        name = _cpu_name()
    else:
        torch = _torch()
        name = torch.cuda.get_device_name()
        versions |= {"torch": torch.__version__, "cuda": torch.version.cuda}
        try:
            versions["triton"] = importlib.import_module("triton").__version__
        except ImportError:
            pass
    return {
        "device": name,
        "date": date.today().isoformat(),
        "versions": versions,
        "method": method,
    }


def _torch():
    if not cuda_available():
        raise ValueError("no CUDA GPU here: use device='cpu', or the recorded course.records")
    return sys.modules["torch"]


def _seconds(fn, calls=1):
    """Wall-clock seconds a call; never the time to merely queue work on a GPU."""
    torch = sys.modules.get("torch")
    wait = torch.cuda.synchronize if torch and torch.cuda.is_initialized() else lambda: None
    wait()
    start = perf_counter()
    for _ in range(calls):
        fn()
    wait()
    return max(perf_counter() - start, 1e-9) / calls


def _cuda_samples(fn, repeats, cold):
    torch = _torch()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        torch.cuda._sleep(
            1_000_000
        )  # half a millisecond, in which Python queues the rest of this sample
        if cold:
            _fill_l2()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in events]


@cache
def _other_data():
    torch = _torch()
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return torch.zeros(4 * l2 // 4, dtype=torch.float32, device="cuda")


def _fill_l2():
    """Fill the L2 by reading: writing would leave dirty lines for the next kernel to write back."""
    _other_data().max()


def cuda_graph(fn, calls):
    """A CUDA graph of `calls` calls of `fn`: replayed without Python in between."""
    torch = _torch()
    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            fn()
    return graph


def _time_cpu_copy(size_bytes, threads, budget):
    """Timing of one sample of copies by `threads` threads, and the bytes it reads and writes."""
    half = max(size_bytes // 2 // threads, 1)
    copies = max(1, 4 * MIB // half)  # long enough to hide the start of the threads

    def buffers():
        # One element as large as the buffer, seen `copies` times (stride 0): NumPy then copies it
        # over and over in one call, without Python in between and without the lock. From a page's
        # start, the target half a page on, so that a store never looks like the load after it.
        raw = np.ones(2 * half + 6144, np.uint8)
        start = -raw.ctypes.data % 4096
        kind = np.dtype(f"V{half}")
        pair = [raw[at : at + half].view(kind) for at in (start, start + half + 2048)]
        return [np.lib.stride_tricks.as_strided(a, (copies,), (0,)) for a in pair]

    pairs = [buffers() for _ in range(threads)]
    moved = 2 * half * copies * threads
    if threads == 1:
        [(source, target)] = pairs
        return time(lambda: np.copyto(target, source), budget=budget), moved
    with ThreadPoolExecutor(threads) as pool:
        run = lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))  # noqa: E731
        return time(run, budget=budget), moved


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name():
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} ({_cores()} cores)"


def cpu_caches() -> list[dict]:
    """Data caches of core 0, small to large: {"name", "capacity_bytes"}. Empty where not known."""
    caches = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = [
            (index / f).read_text(encoding="utf-8").strip() for f in ("level", "type", "size")
        ]
        if kind != "Instruction":
            capacity = int(size[:-1]) * {"K": KIB, "M": MIB, "G": 2**30}[size[-1]]
            caches.append({"name": f"l{level}", "capacity_bytes": capacity})
    return caches


def _cpu_machine():
    # What the machine can do: first quartiles, since other programs only make a run slower.
    threads, caches = _cores(), cpu_caches()
    last = caches[-1]["capacity_bytes"] if caches else 32 * MIB
    memory = copy_bandwidth(max(8 * last, 256 * MIB), budget=0.6)["high"]
    # Half of a cache is surely in it; one thread, for a cache of its own.
    levels = [
        level | {"bandwidth": copy_bandwidth(level["capacity_bytes"] // 2, threads=1)["high"]}
        for level in caches
    ]
    ram = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    levels.append({"name": "ram", "capacity_bytes": ram, "bandwidth": memory})
    return {
        "name": _cpu_name(),
        "kind": "cpu",
        # The best of three sizes: small ones fit a cache, large ones keep every core busy.
        "peak": {"fp32": max(matmul_rate(n, "fp32")["high"] for n in (256, 512, 1024))},
        "bandwidth": memory,
        "levels": levels,
        "threads": threads,
        "stamp": stamp(
            "cpu",
            "peak: the best of NumPy's fp32 matmuls, n = 256, 512, 1024; memory: copy, read + "
            f"written, {threads} threads; caches: the same by one thread, half the cache; of each the "
            "first quartile of the times",
        ),
    }


def _cuda_machine():
    torch = _torch()
    props = torch.cuda.get_device_properties(0)
    large = min(4 * 2**30, props.total_memory // 4)
    memory = copy_bandwidth(large, device="cuda", budget=0.2)["bandwidth"]
    l2 = copy_bandwidth(props.L2_cache_size // 2, device="cuda")["bandwidth"]
    dtypes = [
        d for d in ("fp32", "tf32", "fp16", "bf16") if d in ("fp32", "fp16") or props.major > 7
    ]
    return {
        "name": props.name,
        "kind": "cuda",
        "peak": {
            d: matmul_rate(4096 if d == "fp32" else 8192, d, device="cuda")["rate"] for d in dtypes
        },
        "bandwidth": memory,
        "levels": [
            {"name": "l2", "capacity_bytes": props.L2_cache_size, "bandwidth": l2},
            {"name": "hbm", "capacity_bytes": props.total_memory, "bandwidth": memory},
        ],
        "threads": None,
        "sms": props.multi_processor_count,
        "smem_per_sm": props.shared_memory_per_multiprocessor,
        "smem_per_block": props.shared_memory_per_block_optin,
        "l2_bytes": props.L2_cache_size,
        "hbm_bytes": props.total_memory,
        "stamp": stamp("cuda", "peak: torch matmul, random data; memory: copy, read + written"),
    }


_MARK = "spin_kernel"  # what torch.cuda._sleep launches: it ends the kernels of one call


def kernel_name(name: str) -> str:
    """A kernel's name without namespaces, and no longer than what tells it from others."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|\w+::|^void ", "", name)
    return name if len(name) <= 60 else name[:57] + "..."


def _count(target, argument_lists):
    """The child of `dram_bytes`: run each call once to warm up, then once for ncu to count."""
    torch = _torch()
    module, function = target.split(":")
    prepare = getattr(importlib.import_module(module), function)
    for arguments in argument_lists:
        fn = prepare(*arguments)
        fn()
        _fill_l2()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        fn()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def _read_ncu(text):
    """The runs in ncu's CSV: lists of {"kernel", "read", "written"}, split at the mark."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    runs, run = [], []
    for row in csv.DictReader(lines[begin:]):
        if not row["ID"]:  # the line of units
            continue
        name = row["Kernel Name"]
        if _MARK in name:
            runs.append(run)
            run = []
        else:
            read, written = (
                int(float(row[f"dram__bytes_{way}.sum"].replace(",", "")))
                for way in ("read", "write")
            )
            run.append({"kernel": kernel_name(name), "read": read, "written": written})
    return runs


if __name__ == "__main__":
    _count(sys.argv[1], json.loads(sys.argv[2]))
