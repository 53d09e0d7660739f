"""What the processes of tests/test_ring.py run: take their shares, compute, count, fail."""

import os
import time

import torch
import torch.distributed as dist

from course import cost, ring


def inputs(n, d, heads, kv_heads, batch, kind):
    """The same q, k, v, do, dlse in every process, in FP64."""
    generator = torch.Generator().manual_seed(n + d)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, do = random(2, batch, heads, n, d)
    k, v = random(2, batch, kv_heads, n, d)
    if kind == "huge":  # scores of ±10³: one key draws everything
        q, k = 30 * q, 30 * k
    if kind == "equal":
        k = torch.ones_like(k)
    if kind == "sunk":  # scores far below 0: their exponentials are 0 unless the maximum comes off
        q, k = 100 * q.abs(), -100 * k.abs()
    if kind == "rising":  # the maximum moves with every chunk
        q, k = q.abs(), k.abs() * torch.arange(1.0, n + 1, dtype=torch.float64)[:, None]
    if kind == "hidden":  # what all but the last rows must not see would spoil them
        k, v = k.clone(), v.clone()
        k[:, :, n - 1 :], v[:, :, n - 1 :] = 1e3, 1e6
    return q, k, v, do, random(batch, heads, n)


def share(x, layout):
    """This process's rows of (B, H, N, d) or (B, H, N)."""
    return (
        ring.shard(x, layout=layout)
        if x.ndim == 4
        else ring.shard(x[..., None], layout=layout)[..., 0]
    )


def results(case, dtype):
    """o, lse, dq, dk, dv of this process's rows."""
    n, d, heads, kv_heads, batch, causal, kind, way, layout = case
    *leaves, do, dlse = (share(x, layout) for x in inputs(n, d, heads, kv_heads, batch, kind))
    leaves = [x.to(dtype).requires_grad_() for x in leaves]
    o, lse = ring.attention(*leaves, causal=causal, way=way, layout=layout, return_lse=True)
    grads = torch.autograd.grad((o, lse), leaves, (do.to(o.dtype), dlse.to(lse.dtype)))
    return [o.detach(), lse.detach(), *grads]


def all_results(cases, dtype):
    """For each case what `results` says: one call of `run` for many cases."""
    return [results(case, dtype) for case in cases]


def counted(case, dtype):
    """(forward, backward), each ((sent, received, exchanges), the Cost that `cost.ring` predicts)."""
    n, d, heads, kv_heads, batch, causal, kind, way, layout = case
    *leaves, do, _ = (
        share(x, layout).to(dtype) for x in inputs(n, d, heads, kv_heads, batch, kind)
    )
    leaves = [x.requires_grad_() for x in leaves]
    wire, o, before, said = ring.Wire(), None, (0, 0, 0), []
    for backward in (False, True):
        if backward:
            o.backward(do)
        else:
            o = ring.attention(*leaves, causal=causal, way=way, layout=layout, wire=wire)
        now = wire.sent, wire.received, wire.exchanges
        predicted = cost.ring(
            n, d, processes=wire.size, rank=wire.rank, way=way, layout=layout, heads=heads,
            kv_heads=kv_heads, batch=batch, causal=causal, backward=backward,
            itemsize=leaves[0].element_size(),
        )  # fmt: skip
        said.append((tuple(a - b for a, b in zip(now, before, strict=True)), predicted))
        before = now
    return said


def all_counted(cases, dtype):
    """As `all_results`."""
    return [counted(case, dtype) for case in cases]


def time_line(bandwidth, n):
    """The log of one forward pass on a slowed wire, after one to warm up."""
    q, k, v = (ring.shard(x).float() for x in inputs(n, 32, 2, 2, 1, "")[:3])
    ring.attention(q, k, v)
    wire = ring.Wire(bandwidth)
    ring.attention(q, k, v, wire=wire)
    return wire.log, wire.sent


def refusals():
    """The error of each wrong call, as this process sees it; and that all go on after it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(1, 2, 4, 8)
    calls = {
        "one wrong shape": (x, x[..., : 8 - (rank == 1)], x, {}),
        "widths differ": ([x, x[..., :4]][rank == 1], [x, x[..., :4]][rank == 1],
                          [x, x[..., :4]][rank == 1], {}),
        "dtypes differ": ([x, x.double()][rank == 1],) * 3 + ({},),
        "rows do not fit": (x[:, :, : 4 - 2 * (rank == 0)],) * 3 + ({},),
        "options differ": (x, x, x, {"causal": rank == 1}),
        "heads": (x[:, :1], x[:, :1], x[:, :1], {"way": "heads"}),
        "no such way": (x, x, x, {"way": "star"}),
        "no such layout": (x, x, x, {"layout": "spiral"}),
        "not finite": (x, x, x, {"scale": float("nan")}),
        "one is no tensor": (x, x, [x, None][rank == 1], {}),
    }  # fmt: skip
    said = {}
    for name, (q, k, v, options) in calls.items():
        try:
            ring.attention(q, k, v, **options)
        except ValueError as error:
            said[name] = str(error)
    said["goes on"] = ring.attention(x, x, x).shape == x.shape and size > 1
    return said


def fails(how):
    """Process 1 fails; the others wait for it in an exchange."""
    if dist.get_rank() == 1:
        if how == "raises":
            raise OverflowError("too much\nfor a line")
        if how == "dies":
            os._exit(3)
        time.sleep(60)
    x = torch.zeros(1, 1, 4, 8)
    try:
        return str(ring.attention(x, x, x).shape)
    except ring.Broken as error:
        assert len(str(error).splitlines()) == 1
        raise


def hello(text):
    """Prints and answers."""
    print(text, dist.get_rank())
    return dist.get_rank(), os.getpid()
