"""Section "decode": few queries over a long cache, ours beside the library's, on this GPU."""

import statistics

from course import measure

HEADS, KV_HEADS, D = 64, 8, 128  # bf16
SHAPES = (  # queries a sequence, batch, keys a sequence
    *((1, 1, keys) for keys in (8192, 32_768, 131_072)),
    (1, 8, 8192),
    (1, 32, 8192),
    (1, 128, 2048),
    (1, 128, 8192),
    *((4, batch, keys) for batch, keys in ((8, 8192), (32, 8192), (1, 131_072))),
    *((16, batch, keys) for batch, keys in ((8, 8192), (32, 8192), (1, 131_072))),
)
PAGES = (16, 128)  # keys a page
ROUNDS = 5
CACHE = 2e9  # bytes walked through before the same are read again: far more than the L2 holds


def record() -> dict:
    """Bytes of cache a second for each shape and flow, all of them in turn. About a minute."""
    import torch

    from course.kernels import split_kv

    points = []
    for n, batch, keys in SHAPES:
        calls = _calls(n, batch, keys)
        samples = {flow: [] for flow in calls}
        graphs = {flow: measure.cuda_graph(call, 1) for flow, call in calls.items()}
        for _ in range(ROUNDS):
            for flow, graph in graphs.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                samples[flow].append(start.elapsed_time(end) / 1e3 / _repeats(batch, keys))
        moved = _bytes(n, batch, keys)
        rows = HEADS // KV_HEADS * n
        sms, shared_memory = split_kv.gpu(0)
        tile, per_sm = split_kv.choose(rows, D, 2, shared_memory)
        walks = batch * KV_HEADS * -(-rows // tile.block_q)
        for flow, times in samples.items():
            low, median, high = statistics.quantiles(times, n=4, method="inclusive")
            points.append(
                {
                    "flow": flow, "queries": n, "batch": batch, "keys": keys,
                    "seconds": median, "low": low, "high": high, "bandwidth": moved / median,
                }
            )  # fmt: skip
            if flow == "ours":
                points[-1] |= {
                    **tile._asdict(),
                    "splits": split_kv.count_splits(walks, keys, tile.block_kv, per_sm * sms),
                }
        del calls, graphs
        torch.cuda.empty_cache()
    method = (
        f"bf16, {HEADS} query and {KV_HEADS} K/V heads, d = {D}; bytes: K, V, q and o once; calls "
        "in one CUDA graph over caches that take turns and exceed the L2, flows in turn, median "
        f"and quartiles of {ROUNDS}; read: the largest of 4 GiB of integers, by torch"
    )
    return {"points": points, "read": _read(), "stamp": measure.stamp("cuda", method)}


def _bytes(n, batch, keys):
    return 2 * (2 * batch * KV_HEADS * keys * D + 2 * batch * HEADS * n * D)


def _repeats(batch, keys):
    """Calls in one graph: enough caches to exceed the L2, enough time for the clock."""
    return max(2, round(CACHE / _bytes(1, batch, keys)))


def _calls(n, batch, keys):
    """{flow: a function that calls it once for each cache}."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from course.kernels import decode

    torch.manual_seed(0)
    count = _repeats(batch, keys)

    def random(heads, rows):
        return torch.randn(batch, heads, rows, D, device="cuda", dtype=torch.bfloat16)

    inputs = [
        (random(HEADS, n), random(KV_HEADS, keys), random(KV_HEADS, keys)) for _ in range(count)
    ]
    calls = {"ours": lambda: [decode(*x, causal=False) for x in inputs]}

    def library(backend):
        def run():
            with sdpa_kernel(backend):
                return [scaled_dot_product_attention(*x, enable_gqa=True) for x in inputs]

        return run

    for page in PAGES:
        table = torch.randperm(batch * keys // page, device="cuda").to(torch.int32)
        table = table.view(batch, -1)
        pools = [(q, _pages(k, page, table), _pages(v, page, table)) for q, k, v in inputs]
        calls[f"ours, pages of {page}"] = lambda p=pools, t=table: [
            decode(*x, causal=False, table=t) for x in p
        ]
    calls["cuDNN"] = library(SDPBackend.CUDNN_ATTENTION)
    calls["FA-2"] = library(SDPBackend.FLASH_ATTENTION)
    return calls


def _pages(x, page, table):
    """(B, H, N, d) as a pool of pages, each where the table says."""
    b, h, n, d = x.shape
    pages = x.view(b, h, n // page, page, d).transpose(1, 2).reshape(-1, h, page, d)
    pool = pages.new_empty(pages.shape)
    pool[table.flatten().long()] = pages
    return pool


def _read():
    """Bytes a second that a kernel reaches which only reads."""
    import torch

    x = torch.empty(2**29, dtype=torch.int64, device="cuda").random_()
    return measure.time(x.max, device="cuda").rate(x.nbytes)
