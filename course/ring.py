"""Attention over a sequence that is shared out among processes, on `torch.distributed`.

Each process keeps its queries. In the **ring** keys and values travel: every process hands what it
holds to the next one, computes a tile meanwhile, and joins the results by the rule of
`course.softmax.merge`. In the backward pass dK and dV travel with their keys until they are home.
The same code runs on CPU processes (gloo) and on GPUs (NCCL):

    def everyone(n):                       # runs in every process
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 8, n, 64)
        mine = [ring.shard(x) for x in (q, k, v)]
        return ring.attention(*mine, causal=True)

    shards = ring.run(everyone, 4, 1024)   # starts four processes, ends them, returns four results

Under `torchrun`, after `init_process_group`, call `ring.attention` itself.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import linecache
import math
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from course import kernels
from course.cost import WAYS, shards, shown, whole
from course.kernels import naive


class Broken(RuntimeError):
    """An exchange that did not come about, as another process failed or is late."""


class Failed(RuntimeError):
    """What `run` raises: which process failed, and of what, in one line."""


# --- the sequence, shared out -----------------------------------------------------------------


def shard(x, *, layout="ring", rank=None, processes=None):
    """The rows of x (..., N, d) or (…, N, 1) that a process holds; this process unless given."""
    rank = dist.get_rank() if rank is None else rank
    processes = dist.get_world_size() if processes is None else processes
    mine = shards(x.shape[-2], processes, layout)[rank]
    return torch.cat([x[..., chunk.start : chunk.stop, :] for chunk in mine], -2)


def unshard(parts, *, layout="ring"):
    """The whole (..., N, d), from what each process holds, in the order of the processes."""
    whole_one = parts[0].new_empty(
        *parts[0].shape[:-2], sum(p.shape[-2] for p in parts), parts[0].shape[-1]
    )
    plan = shards(whole_one.shape[-2], len(parts), layout)
    for chunks, part in zip(plan, parts, strict=True):
        whole_one[..., _rows(chunks), :] = part
    return whole_one


def _rows(chunks):
    return [row for chunk in chunks for row in chunk]


def _count(chunks):
    return sum(map(len, chunks))


# --- the wire ---------------------------------------------------------------------------------


class Wire:
    """What this process sends and receives: counted, and on CPUs with the times.

    sent and received are bytes, exchanges counts how often. log holds (what, start, stop) in
    seconds of one clock for all processes of a machine: "wire" while bytes travel, "tile" while this
    process computes, "wait" while it can only wait. work holds, for each step, how long
    its tile kept a core busy. With `bandwidth` in bytes/s a CPU's wire is
    slowed to that speed, so that a small example shows what a slow link does.
    """

    def __init__(self, bandwidth: float | None = None):
        """For this process, in the group of all."""
        if not dist.is_initialized():
            raise RuntimeError(
                "No group of processes: start them with course.ring.run, or torchrun."
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.next, self.previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self.bandwidth, self._free = bandwidth, 0.0
        self.sent = self.received = self.exchanges = 0
        self.log, self.work = [], []

    def exchange(self, outgoing: dict, incoming: dict) -> Arrival:
        """Start sending {process: tensor} and receiving into {process: tensor}; nothing waits.

        Every process starts its exchanges in the same order. Tensors without elements stay at home.
        """
        tag, self.exchanges = self.exchanges, self.exchanges + 1
        send = {to: x.contiguous() for to, x in outgoing.items() if x.numel()}
        receive = {source: x for source, x in incoming.items() if x.numel()}
        self.sent += sum(map(_bytes, send.values()))
        self.received += sum(map(_bytes, receive.values()))
        operations = [dist.P2POp(dist.isend, x, to, tag=tag) for to, x in send.items()]
        operations += [dist.P2POp(dist.irecv, x, source, tag=tag) for source, x in receive.items()]
        started = time.perf_counter()
        try:
            works = dist.batch_isend_irecv(operations) if operations else []
        except RuntimeError as error:
            raise self._broken(error) from None
        return Arrival(self, incoming, works, send, started)

    def hand_on(self, x, buffer) -> Arrival:
        """One step around the ring: x goes to the next process, the previous one's comes."""
        return self.exchange({self.next: x}, {self.previous: buffer})

    @contextlib.contextmanager
    def noted(self, what):
        """Note in the log how long this block took."""
        start, worked = time.perf_counter(), time.thread_time()
        yield
        self.log.append((what, start, time.perf_counter()))
        if what == "tile":
            self.work.append(time.thread_time() - worked)

    def _broken(self, error):
        why = str(error).splitlines()[0]
        return Broken(f"process {self.rank} waits for one that has failed or is late ({why[:120]})")


class Arrival:
    """An exchange on its way. `wait()` gives what came, {process: tensor}."""

    def __init__(self, wire, incoming, works, kept, started):
        """works: what torch.distributed is doing; kept: what must not be freed before it is sent."""
        self._wire, self._incoming, self._works, self._kept = wire, incoming, works, kept
        self._started = started
        on_gpu = any(x.is_cuda for x in incoming.values())
        # A thread sees when the bytes are there. A GPU keeps that to itself: its stream waits.
        self._done = _in_background(self._finish) if works and not on_gpu else None

    def _finish(self):
        for work in self._works:
            work.wait()
        wire = self._wire
        if wire.bandwidth:
            wire._free = max(wire._free, self._started)
            wire._free += sum(map(_bytes, self._kept.values())) / wire.bandwidth
            time.sleep(max(wire._free - time.perf_counter(), 0))
        wire.log.append(("wire", self._started, time.perf_counter()))

    def wait(self):
        """Block until all is sent and received."""
        try:
            with self._wire.noted("wait"):
                if self._done:
                    self._done.result()
                else:
                    for work in self._works:
                        work.wait()
        except RuntimeError as error:
            raise self._wire._broken(error) from None
        return self._incoming


def span(logs) -> float:
    """Seconds from the first thing that the logs of all processes note to the last."""
    return max(stop for log in logs for *_, stop in log) - min(x[1] for log in logs for x in log)


def idle(works) -> float:
    """The share of idle time where all processes wait for the slowest tile of each step.

    works: for each process what `Wire.work` holds.
    """
    steps = list(zip(*works, strict=True))
    return 1 - sum(map(sum, steps)) / (len(works) * sum(map(max, steps)))


def _in_background(function) -> Future:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future


def _bytes(x):
    return x.numel() * x.element_size()


# --- a tile: some queries at home, the keys that are on a visit -------------------------------


def merge(o, lse, o_new, lse_new):
    """(o, lse) of all keys, from those of two disjoint sets: `course.softmax.merge` for finished rows.

    o (..., N, d); lse (..., N), −∞ where a set holds no key that the row sees.
    """
    both = torch.logaddexp(lse, lse_new)
    old, new = (_exp(part - both).unsqueeze(-1).to(o.dtype) for part in (lse, lse_new))
    return old * o + new * o_new, both


def _exp(x):
    """exp, where −∞ − (−∞), a row that nothing was seen of, gives 0."""
    return torch.exp(x.masked_fill(x.isnan(), -math.inf))


def tile(q, k, v, causal=False, scale=None):
    """(o, lse) of one tile, as `attention` of these alone: what `merge` joins.

    lse is FP64, as a large one in FP32 would blur the weights of a merge.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if _fast(q):
        o, lse = kernels.attention(q, k, v, causal=causal, scale=scale, return_lse=True)
        return o.to(lse.dtype), lse.double()
    q, k, v = (x.to(_statistics(q.dtype)) for x in (q, k, v))
    s = _scores(q, k, causal, scale)
    m = s.amax(-1, keepdim=True)
    p = _exp(s - m)
    l = p.sum(-1, keepdim=True)  # 0 where the row sees no key of this tile
    lse = m.double() + l.double().log()
    return p @ _for_each_query_head(v, q) / l.masked_fill(l == 0, 1), lse[..., 0]


def tile_backward(q, k, v, lse, do, delta, causal, scale):
    """What one tile adds to dq, dk and dv, (B, H, n, d) and twice (B, H_kv, …). lse and delta = rowsum(dO ∘ O) are those of whole rows."""
    if _fast(q):
        return _kernel_backward(q, k, v, lse, do, delta, causal, scale)
    q, k, v, do = (x.to(delta.dtype) for x in (q, k, v, do))
    most = lse.to(delta.dtype)  # and what FP32 leaves over of it: a small number, and exact
    rest = (lse - most).nan_to_num(0.0).to(delta.dtype)
    p = _exp(_scores(q, k, causal, scale) - most[..., None] - rest[..., None])
    ds = p * (do @ _for_each_query_head(v, q).mT - delta[..., None]) * scale
    dk, dv = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (ds.mT @ q, p.mT @ do))
    return ds @ _for_each_query_head(k, q), dk, dv


def _kernel_backward(q, k, v, lse, do, delta, causal, scale):
    """The same by the kernels' own backward pass, which knows this tile alone.

    o = Σ w_i o_i with w_i = exp(L_i − L), so dO_i = w_i dO and dL_i = w_i (dO · o_i − delta).
    """
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o_i, lse_i = kernels.attention(*leaves, causal=causal, scale=scale, return_lse=True)
    weight = _exp(lse_i.detach() - lse)
    dlse_i = weight * ((do.to(delta.dtype) * o_i.detach()).sum(-1) - delta)
    do_i = (weight[..., None] * do).to(q.dtype)
    grads = torch.autograd.grad((o_i, lse_i), leaves, (do_i, dlse_i.to(lse_i.dtype)))
    return [x.to(delta.dtype) for x in grads]


def _fast(q):
    return q.is_cuda and kernels.available and q.dtype != torch.float64


def _statistics(dtype):
    return torch.promote_types(dtype, torch.float32)


def _scores(q, k, causal, scale):
    s = q @ _for_each_query_head(k, q).mT * scale
    return s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf) if causal else s


def _for_each_query_head(x, q):
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _tiles(mine, theirs, causal):
    """(rows of mine, rows of theirs, diagonal) of the tiles in which anything is seen.

    A chunk of queries sees earlier chunks of keys in full, its own causally, later ones not at all.
    """
    if not causal:
        if _count(mine) and _count(theirs):
            yield slice(None), slice(None), False
        return
    for chunk, rows in _places(mine):
        for visitor, columns in _places(theirs):
            if visitor.start <= chunk.start:
                yield rows, columns, visitor == chunk


def _places(chunks):
    """(chunk, where its rows lie in the shard), empty ones left out."""
    start = 0
    for chunk in chunks:
        if len(chunk):
            yield chunk, slice(start, start + len(chunk))
            start += len(chunk)


# --- the ring ---------------------------------------------------------------------------------


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale, plan, wire):
        o = torch.zeros_like(q, dtype=_statistics(q.dtype))
        lse = torch.full_like(o[..., 0], -math.inf, dtype=torch.float64)
        held = torch.stack((k, v))  # keys and values travel as one message
        for step in range(wire.size):
            source = (wire.rank - step) % wire.size  # whose keys are here
            coming = _hand_on(wire, held, plan[source - 1]) if step < wire.size - 1 else None
            with wire.noted("tile"):
                for rows, columns, diagonal in _tiles(plan[wire.rank], plan[source], causal):
                    part = tile(q[:, :, rows], *held[:, :, :, columns], diagonal, scale)
                    joined = merge(o[:, :, rows], lse[:, :, rows], *part)
                    o[:, :, rows], lse[:, :, rows] = joined
            if coming:
                held = coming.wait()[wire.previous]
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = causal, scale, plan, wire
        return o.to(q.dtype), lse.to(o.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        (q, k, v, o, lse), (causal, scale, plan, wire) = ctx.saved_tensors, ctx.call
        delta = (do.to(o.dtype) * o).sum(-1) - dlse
        dq, held, travelling = torch.zeros_like(o), torch.stack((k, v)), None
        for step in range(wire.size):
            source = (wire.rank - step) % wire.size
            coming = _hand_on(wire, held, plan[source - 1]) if step < wire.size - 1 else None
            grads = torch.zeros_like(held, dtype=o.dtype)  # dK and dV of the keys that are here
            with wire.noted("tile"):
                for rows, columns, diagonal in _tiles(plan[wire.rank], plan[source], causal):
                    at_home = (x[:, :, rows] for x in (lse, do, delta))
                    part = tile_backward(
                        q[:, :, rows], *held[:, :, :, columns], *at_home, diagonal, scale
                    )
                    dq[:, :, rows] += part[0]
                    grads[:, :, :, columns] += torch.stack(part[1:])
            if travelling:
                grads += travelling.wait()[wire.previous]  # what the others gave to the same keys
            if wire.size > 1:  # the last step takes them home
                travelling = _hand_on(wire, grads, plan[source - 1])
            if coming:
                held = coming.wait()[wire.previous]
        if travelling:
            grads = travelling.wait()[wire.previous]
        return dq.to(q.dtype), *grads.to(k.dtype), None, None, None, None


def _hand_on(wire, x, chunks):
    """Start one step around the ring; what comes has the rows of these chunks."""
    return wire.hand_on(x, _room(x, _count(chunks)))


def _room(x, rows, heads=None):
    return x.new_empty(*x.shape[:-3], x.shape[-3] if heads is None else heads, rows, x.shape[-1])


# --- two other ways: all keys to everybody, or heads instead of rows --------------------------


class _Gather(torch.autograd.Function):
    """(..., H, n, d) of each process → (..., H, N, d) everywhere; gradients return and are added."""

    @staticmethod
    def forward(ctx, x, plan, wire):
        ctx.plan, ctx.wire = plan, wire
        others = [i for i in range(wire.size) if i != wire.rank]
        incoming = {i: _room(x, _count(plan[i])) for i in others}
        parts = wire.exchange({i: x for i in others}, incoming).wait() | {wire.rank: x}
        return _in_order(parts, plan)

    @staticmethod
    def backward(ctx, grad):
        plan, wire = ctx.plan, ctx.wire
        pieces = [grad[..., _rows(chunks), :] for chunks in plan]
        mine = pieces[wire.rank]
        outgoing = {i: x for i, x in enumerate(pieces) if i != wire.rank}
        parts = wire.exchange(outgoing, {i: torch.empty_like(mine) for i in outgoing}).wait()
        total = sum((parts[i].to(_statistics(grad.dtype)) for i in outgoing), mine)
        return total.to(grad.dtype), None, None


class _Swap(torch.autograd.Function):
    """Rows for heads: (..., H, n, d) of each process → (..., H / W, N, d), or back."""

    @staticmethod
    def forward(ctx, x, plan, wire, back):
        ctx.call = plan, wire, back
        others = [i for i in range(wire.size) if i != wire.rank]
        if back:
            pieces = [x[..., _rows(chunks), :] for chunks in plan]
            incoming = {i: _room(x, _count(plan[wire.rank])) for i in others}
        else:
            pieces = x.chunk(wire.size, -3)
            incoming = {i: _room(x, _count(plan[i]), x.shape[-3] // wire.size) for i in others}
        parts = wire.exchange({i: pieces[i] for i in others}, incoming).wait()
        parts[wire.rank] = pieces[wire.rank]
        if back:
            return torch.cat([parts[i] for i in range(wire.size)], -3)
        return _in_order(parts, plan)

    @staticmethod
    def backward(ctx, grad):
        plan, wire, back = ctx.call
        return _Swap.apply(grad, plan, wire, not back), None, None, None


def _in_order(parts, plan):
    whole_one = _room(parts[0], sum(map(_count, plan)))
    for i, chunks in enumerate(plan):
        whole_one[..., _rows(chunks), :] = parts[i]
    return whole_one


def _whole(q, k, v, causal, scale):
    """Attention of what one process holds, differentiable; causal aligns bottom-right."""
    attend = kernels.attention if _fast(q) else naive.attention
    return attend(q, k, v, causal=causal, scale=scale, return_lse=True)


def _by_gather(q, k, v, causal, scale, plan, wire):
    k, v = _Gather.apply(torch.stack((k, v)), plan, wire)
    if not causal:
        return _whole(q, k, v, False, scale)
    parts = [
        _whole(q[:, :, rows], k[:, :, : chunk.stop], v[:, :, : chunk.stop], True, scale)
        for chunk, rows in _places(plan[wire.rank])
    ]
    if not parts:  # no rows here, and yet a part in the backward exchange
        return _whole(q, k, v, True, scale)
    return tuple(torch.cat(x, 2) for x in zip(*parts, strict=True))


def _by_heads(q, k, v, causal, scale, plan, wire, return_lse):
    q = _Swap.apply(q, plan, wire, False)
    k, v = _Swap.apply(torch.stack((k, v)), plan, wire, False)
    o, lse = _whole(q, k, v, causal, scale)
    o = _Swap.apply(o, plan, wire, True)
    return o, _Swap.apply(lse[..., None], plan, wire, True)[..., 0] if return_lse else None


# --- the public function ----------------------------------------------------------------------


def attention(
    q, k, v, *, causal=False, scale=None, layout="ring", way="ring", return_lse=False, wire=None
):  # fmt: skip
    """Attention over the sequence of all processes together; every process calls it. Differentiable.

    q (B, H, n, d), k and v (B, H_kv, n, d): this process's rows of N, as `shard` cuts them; H is a
    multiple of H_kv. layout: "ring", process i holds chunk i of W; "zigzag", chunks i and 2W − 1 − i
    of 2W. way: "ring"; "gather", all keys and values to everybody at once; "heads", each process
    takes H / W heads of the whole sequence. Returns o as q, and with return_lse also lse (B, H, n).

    Give a `Wire` to count bytes. Where inputs are wrong or disagree, every process raises the same
    ValueError; where a process has failed, the others raise Broken. In FP16 and BF16 dK and dV
    travel in FP32 around the ring, and in the data's own type otherwise.
    """
    wire = wire or Wire()
    call = {"causal": causal, "scale": scale, "layout": layout, "way": way}
    plan = _agree(q, k, v, call, wire)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    given = q, k, v, causal, scale, plan, wire
    if way == "heads":
        o, lse = _by_heads(*given, return_lse)
    else:
        o, lse = _Ring.apply(*given) if way == "ring" else _by_gather(*given)
    return (o, lse) if return_lse else o


def _agree(q, k, v, call, wire):
    """The chunks of every process, once all have said that their inputs fit together."""
    flaw = _flaw(q, k, v, call, wire.size)
    facts = {}
    if not flaw:
        facts = call | {
            "q but for its rows": (*q.shape[:2], q.shape[3]), "K/V heads": k.shape[1],
            "dtype": str(q.dtype), "device": q.device.type,
        }  # fmt: skip
    everyone = [None] * wire.size
    try:
        dist.all_gather_object(everyone, (flaw, facts, 0 if flaw else q.shape[2]))
    except RuntimeError as error:
        raise wire._broken(error) from None
    for rank, (said, _, _) in enumerate(everyone):
        if said:
            raise ValueError(f"Process {rank} of {wire.size}: {said}")
    for rank, (_, other, _) in enumerate(everyone):
        for name, value in everyone[0][1].items():
            if other[name] != value:
                raise ValueError(
                    f"Processes disagree: {name} is {value} in process 0, {other[name]} in {rank}."
                )
    rows = [rows for _, _, rows in everyone]
    plan = shards(sum(rows), wire.size, call["layout"])
    if rows != [_count(chunks) for chunks in plan]:
        raise ValueError(
            f"{sum(rows)} rows, shared out as {call['layout']!r}, are "
            f"{[_count(chunks) for chunks in plan]} and not {rows}: cut with course.ring.shard."
        )
    return plan


def _flaw(q, k, v, call, size):
    """What is wrong with the inputs of this process, in a line; None if nothing is."""
    if not all(isinstance(x, torch.Tensor) and x.ndim == 4 for x in (q, k, v)):
        return "q, k and v must be tensors of shape (B, H, n, d)."
    if call["causal"] not in (True, False):
        return f"causal must be True or False, and is {shown(call['causal'])}."
    if call["way"] not in WAYS or call["layout"] not in ("ring", "zigzag"):
        return f"way must be one of {', '.join(WAYS)}, and layout 'ring' or 'zigzag'."
    if call["scale"] is not None and not math.isfinite(call["scale"]):
        return f"scale must be finite, and is {call['scale']}."
    if k.shape != v.shape or q.shape[::2] != k.shape[::2] or q.shape[3] != k.shape[3]:
        return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not fit together."
    if not k.shape[1] or not q.shape[3] or q.shape[1] % k.shape[1]:
        return (
            f"{q.shape[1]} query heads cannot share {k.shape[1]} K/V heads of width {q.shape[3]}."
        )
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        return f"q, k and v must have one floating dtype, not {q.dtype}, {k.dtype}, {v.dtype}."
    if not q.device == k.device == v.device:
        return f"q, k and v must be on one device, not {q.device}, {k.device}, {v.device}."
    if call["way"] == "heads" and (q.shape[1] % size or k.shape[1] % size):
        return (
            f"{q.shape[1]} query heads and {k.shape[1]} K/V heads cannot be shared out among {size} "
            "processes: use way='ring'."
        )
    return None


# --- processes --------------------------------------------------------------------------------


def run(function, processes: int, *args, timeout: float = 60):
    """What `function(*args)` returns in each of so many processes, started for it and then ended.

    Each is a new Python with a group of `torch.distributed`: NCCL where every process can have a
    GPU, else gloo with one thread each. The function may stand in a module or in a notebook's cell:
    then its source is sent, and it sees torch, dist and ring, and what it imports itself. Its prints
    are printed here. Failed, in one line, if a process fails or needs more than `timeout` seconds.
    """
    with Team(processes) as team:
        return team.run(function, *args, timeout=timeout)


class Team:
    """Processes that stay for several calls of `run`, as each takes seconds to start.

    They end with `close()`, at the end of a `with`, after a failure, and when this Python ends.
    """

    def __init__(self, processes: int):
        """Nothing starts before the first `run`."""
        self._processes, self._folder, self._jobs = [], None, 0
        (self.size,) = whole(1, processes=processes)

    def __enter__(self):
        """The team itself."""
        return self

    def __exit__(self, *_):
        """Close."""
        self.close()

    __del__ = __exit__

    def run(self, function, *args, timeout: float = 60) -> list:
        """As `course.ring.run`; the processes are started if they are not there."""
        job = pickle.dumps((_portable(function), args))
        try:
            if not self._processes:
                self._start()
            self._jobs += 1
            for process in self._processes:
                with contextlib.suppress(OSError):  # it has died: `_collect` says of what
                    pickle.dump((self._jobs, job), process.stdin)
                    process.stdin.flush()
            answers = self._collect(self._jobs, timeout, getattr(function, "__name__", "function"))
        except BaseException:  # an interrupt too: nobody is left behind
            self.close()
            raise
        for _, _, printed in answers:
            print(printed, end="")
        return [value for _, value, _ in answers]

    def close(self):
        """End the processes."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            process.stdin.close()
        if self._folder:
            self._folder.cleanup()
            self._folder, self._jobs = None, 0

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that are there."""
        return [process.pid for process in self._processes]

    def _start(self):
        self._folder = tempfile.TemporaryDirectory(prefix="ring-", ignore_cleanup_errors=True)
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        env = {"GLOO_SOCKET_IFNAME": loopback} if os.name == "posix" else {}
        env |= os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", "from course.ring import _serve; _serve()"]
        for rank in range(self.size):
            with (Path(self._folder.name) / f"{rank}.stderr").open("wb") as stderr:
                process = subprocess.Popen(
                    [*command, self._folder.name, str(rank), str(self.size)],
                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, env=env,
                )  # fmt: skip
            self._processes.append(process)
        self._collect(0, 240, "the start")

    def _collect(self, job, timeout, name):
        """The answer of every process, or Failed with the line of the one that failed first."""
        answers, deadline, failed = {}, time.monotonic() + timeout, False
        while len(answers) < self.size and time.monotonic() < deadline:
            for rank, process in enumerate(self._processes):
                done = process.poll() is not None  # asked first: it may answer and then end
                file = Path(self._folder.name) / f"{job}-{rank}"
                if rank not in answers and file.exists():
                    answers[rank] = pickle.loads(file.read_bytes())
                elif rank not in answers and done:
                    answers[rank] = ("error", self._last_words(rank), "")
            if not failed and any(kind != "value" for kind, _, _ in answers.values()):
                failed, deadline = True, min(deadline, time.monotonic() + 2)  # for the others' word
            time.sleep(0.003)
        for wanted in ("error", "broken"):  # the cause before its consequences
            for rank, (kind, said, _) in sorted(answers.items()):
                if kind == wanted:
                    raise Failed(f"{name}, process {rank} of {self.size}: {said}")
        if len(answers) < self.size:
            late = ", ".join(str(r) for r in range(self.size) if r not in answers)
            raise Failed(
                f"{name} did not end within {timeout:g} s in process {late} of {self.size}: does one "
                "wait for what nobody sends? All processes were ended."
            )
        return [answers[rank] for rank in range(self.size)]

    def _last_words(self, rank):
        file = Path(self._folder.name) / f"{rank}.stderr"
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no word of why")
        return f"it ended: {last.strip()[:200]}"


def _portable(function):
    """How another Python finds the function: (its module, its name), or its source as well."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module != "__main__" and "<" not in name:
        return module, name, None
    try:
        code = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = ""
    if not code.startswith("def ") or getattr(function, "__closure__", None):
        raise ValueError("A process can be sent a plain function, written with def and without @.")
    return module, function.__name__, code


def _found(module, name, code):
    """The function, in the process that runs it."""
    if code is None:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    file = f"<{name}, sent to the processes>"
    linecache.cache[file] = len(code), None, code.splitlines(True), file
    scope = {"torch": torch, "dist": dist, "ring": sys.modules[__name__], "__name__": "__ring__"}
    exec(compile(code, file, "exec"), scope)
    return scope[name]


def _serve():
    """What a process does: join the group, then run jobs until nobody is there to send them."""
    folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jobs = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    backend = "nccl" if torch.cuda.device_count() >= size else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=(Path(folder) / "store").as_uri(), rank=rank, world_size=size,
        timeout=timedelta(seconds=240),
    )  # fmt: skip
    _answer(folder, 0, rank, ("value", None, ""))
    while True:
        number, job = jobs.get()
        _answer(folder, number, rank, _done(job))


def _done(job):
    """("value", what the function returned, what it printed), or ("error" or "broken", a line, "")."""
    printed = io.StringIO()
    try:
        how, args = pickle.loads(job)
        with contextlib.redirect_stdout(printed):
            value = _found(*how)(*args)
        pickle.dumps(value)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename.startswith("<")]
        where = f", at `{own[-1].line}`" if own else ""
        said = " ".join(str(error).split())[:300]
        kind = "broken" if isinstance(error, Broken | dist.DistBackendError) else "error"
        return kind, f"{type(error).__name__}: {said}{where}", ""
    return "value", value, printed.getvalue()


def _listen(jobs):
    """Read jobs from the parent; when it is gone, so are we, whatever we were waiting for."""
    try:
        while True:
            jobs.put(pickle.load(sys.stdin.buffer))
    except (EOFError, pickle.UnpicklingError, OSError):
        os._exit(0)


def _answer(folder, job, rank, answer):
    """Written aside and then named, so that the parent never reads half of it."""
    part = Path(folder) / f"{job}-{rank}.part"
    part.write_bytes(pickle.dumps(answer))
    part.rename(Path(folder) / f"{job}-{rank}")


# --- several GPUs -----------------------------------------------------------------------------


def _gpu_seconds(shape, causal, layout, way, backward, repeats=10):
    """Seconds of one pass over (B, H, N, d) in BF16, after three to warm up."""
    q, k, v = (shard(x, layout=layout) for x in torch.randn(3, *shape, dtype=torch.bfloat16))
    q, k, v = (x.cuda().requires_grad_(backward) for x in (q, k, v))
    for call in range(3 + repeats):
        if call == 3:
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
        o = attention(q, k, v, causal=causal, layout=layout, way=way)
        if backward:
            torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def _gpu_error(shape, causal, layout, way):
    """The largest error of this share of o and dq, against FP64 in one process."""
    torch.manual_seed(0)
    wholes = torch.randn(4, *shape, dtype=torch.float64).cuda()
    q, k, v = (x.requires_grad_() for x in wholes[:3].unbind())
    exact = naive.attention(q, k, v, causal=causal)
    exact = exact, *torch.autograd.grad(exact, (q, k, v), wholes[3])
    mine = [shard(x, layout=layout).detach().bfloat16().requires_grad_() for x in (q, k, v)]
    o = attention(*mine, causal=causal, layout=layout, way=way)
    found = o, *torch.autograd.grad(o, mine, shard(wholes[3], layout=layout).bfloat16())
    return max(
        (a - shard(b, layout=layout)).abs().max().item() for a, b in zip(found, exact, strict=True)
    )


def _main():
    """All ways on all GPUs of this computer: errors, times, and the share of the ideal."""
    size = torch.cuda.device_count()
    if size < 2:
        print(
            f"This needs two GPUs or more, and there are {size}: notebook 11 runs on CPU processes."
        )
        return
    shape = (1, 32, 8192 * size, 128)
    ways = [("ring", "ring"), ("zigzag", "ring"), ("zigzag", "gather"), ("ring", "heads")]
    with Team(1) as one:
        (alone,) = one.run(_gpu_seconds, (1, 32, 8192, 128), True, "ring", "ring", False)
    ideal = alone * size  # N is W times as long: W² times the work, on W GPUs
    print(f"{size} × {torch.cuda.get_device_name()}, causal, (B, H, N, d) = {shape}, BF16")
    print(f"ideal, from {shape[2] // size:,} tokens on one GPU: {1e3 * ideal:.2f} ms")
    with Team(size) as team:
        for layout, way in ways:
            error = max(team.run(_gpu_error, (1, 8, 128 * size, 128), True, layout, way))
            ahead, both = (
                max(team.run(_gpu_seconds, shape, True, layout, way, backward, timeout=300))
                for backward in (False, True)
            )
            print(
                f"{way}, {layout}: forward {1e3 * ahead:.2f} ms ({ideal / ahead:.0%} of the ideal), "
                f"with backward {1e3 * both:.2f} ms, largest error {error:.2g}"
            )


if __name__ == "__main__":
    _main()
