"""Section "attention_bytes": peak memory, time and DRAM bytes of naive and fused attention."""

from course import measure

HEADS, D = 16, 128
LENGTHS = tuple(2**e for e in range(10, 18))  # N = 1,024 to 131,072
COUNTED = ((1, 2048), (1, 4096), (8, 8192))  # (heads, N): S fits in an L2 of 60 MB, just, and not
FLOWS = ("naive", "flash", "cudnn")


def record() -> dict:
    """Memory and time over N until memory runs out, DRAM bytes a kernel by counter. Half a minute."""
    points = [point(flow, n) for flow in FLOWS for n in LENGTHS]
    method = (
        f"FP16, forward, d = {D}, {HEADS} heads for memory and time; naive: baddbmm, softmax, bmm; "
        "flash and cudnn: torch's scaled_dot_product_attention; seconds: CUDA events, median, L2 "
        "flushed by reads before each call; peak: torch's allocator, above the inputs; dram: "
    )
    runs = [[flow, heads, n] for flow in FLOWS for heads, n in COUNTED]
    section = {"heads": HEADS, "d": D, "points": points}
    try:
        counted = {
            caches: measure.dram_bytes("course.records.attention_bytes:prepare", runs, cold=cold)
            for caches, cold in (("kept", False), ("emptied", True))
        }
    except RuntimeError as error:
        method += str(error)
    else:
        method += "ncu --clock-control none, caches kept or emptied between kernels, as each says"
        section["dram"] = [
            {"flow": flow, "heads": heads, "n": n, "caches": caches, "kernels": kernels}
            for caches, lists in counted.items()
            for (flow, heads, n), kernels in zip(runs, lists, strict=True)
        ]
    return section | {"stamp": measure.stamp("cuda", method)}


def point(flow: str, n: int) -> dict:
    """Peak memory and time of one call with 16 heads here, or the word that memory ran out."""
    import torch

    found = {"flow": flow, "n": n}
    try:
        fn = prepare(flow, HEADS, n)
        found["peak_bytes"] = measure.peak_memory(fn, device="cuda")
        found["seconds"] = measure.time(fn, device="cuda", budget=0.1).median
    except torch.OutOfMemoryError:
        found["out_of_memory"] = True
    torch.cuda.empty_cache()
    return found


def here() -> list[dict]:
    """The points of this machine's GPU, naive and fused, for three lengths; none without a GPU."""
    if not measure.cuda_available():
        return []
    return [point(flow, n) for flow in ("naive", "flash") for n in (4096, 8192, 16384)]


def prepare(flow: str, heads: int, n: int):
    """A call that computes attention once, of `heads` heads, N = n, d = 128, FP16."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    q, k, v = torch.randn(3, heads, n, D, device="cuda", dtype=torch.float16)
    if flow == "naive":
        return lambda: naive(q, k, v)
    backends = {  # the second where a GPU is too old for the first
        "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
        "cudnn": [SDPBackend.CUDNN_ATTENTION],
    }

    def fused():
        with sdpa_kernel(backends[flow], set_priority=True):
            return F.scaled_dot_product_attention(q[None], k[None], v[None])

    return fused


def naive(q, k, v):
    """Three kernels and four passes over N×N: S = scale·QKᵀ, P = softmax(S), O = PV."""
    import torch

    s = torch.baddbmm(q.new_empty(1), q, k.mT, beta=0, alpha=D**-0.5)
    p = torch.softmax(s, -1)
    return torch.bmm(p, v)
