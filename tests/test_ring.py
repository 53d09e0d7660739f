"""Attention shared out among processes: right, counted, overlapped, and nothing hangs."""

import math
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from course import cost, kernels, ring, softmax
from course.kernels import naive
from tests import conftest, ring_cases

WAYS = [("ring", "ring"), ("ring", "zigzag"), ("gather", "ring"), ("gather", "zigzag"),
        ("heads", "zigzag")]  # fmt: skip
SIZES = (1, 2, 3, 4)


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"W={size}")
def team(request):
    """Processes for all the cases of one size."""
    with ring.Team(request.param) as team:
        yield team


def cases(size):
    """n, d, heads, K/V heads, batch, causal, kind of scores, way, layout."""
    for way, layout in WAYS:
        heads, kv_heads = (2 * size, size) if way == "heads" else (4, 2)
        for n, d, causal, kind in (
            (16, 8, False, ""),
            (23, 5, True, "huge"),  # ragged, odd
            (13, 4, False, "rising"),
            (13, 4, True, "rising"),
            (9, 3, False, "sunk"),
            (8, 4, True, "equal"),
            (12, 4, True, "hidden"),
            (3, 4, True, ""),  # fewer rows than chunks: processes without any
            (1, 1, False, ""),
        ):
            yield n, d, heads, kv_heads, 2, causal, kind, way, layout


def unshard(parts, layout):
    """The whole, of (B, H, n, d) or (B, H, n)."""
    if parts[0].ndim == 4:
        return ring.unshard(parts, layout=layout)
    return ring.unshard([x[..., None] for x in parts], layout=layout)[..., 0]


class Recorded(torch.autograd.Function):
    """What the processes computed, as a function that can be differentiated."""

    @staticmethod
    def forward(ctx, q, k, v, found):
        ctx.grads = found[2:]
        return found[0].clone(), found[1].clone()

    @staticmethod
    def backward(ctx, *_):
        return *ctx.grads, None


def wholes(answers, cases):
    for i, case in enumerate(cases):
        yield (
            case,
            [unshard(parts, case[-1]) for parts in zip(*(a[i] for a in answers), strict=True)],
        )


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_right_by_the_rule_of_all_kernels(team, dtype, assert_attention):
    """o, lse, dq, dk, dv: at most twice the error of plain PyTorch in this dtype, against FP64."""
    todo = list(cases(team.size))
    for case, found in wholes(team.run(ring_cases.all_results, todo, dtype), todo):
        q, k, v, do, dlse = ring_cases.inputs(*case[:5], case[6])
        if case[7] == "ring":
            assert found[1].dtype == torch.float32
        found[1] = found[1].float()
        assert_attention(
            q.to(dtype), k.to(dtype), v.to(dtype), causal=case[5], do=do.to(dtype),
            dlse=dlse.to(torch.float32),
            run=lambda *x, found=found, **_: Recorded.apply(*x, found),
        )  # fmt: skip


def test_right_in_fp64(team):
    """Against one process; as far off as a few roundings of the terms' sizes allow."""
    todo = list(cases(team.size))
    for case, found in wholes(team.run(ring_cases.all_results, todo, torch.float64), todo):
        q, k, v, do, dlse = ring_cases.inputs(*case[:5], case[6])
        leaves = [x.requires_grad_() for x in (q, k, v)]
        o, lse = naive.attention(*leaves, causal=case[5], return_lse=True)
        exact = [o, lse, *torch.autograd.grad((o, lse), leaves, (do, dlse))]
        terms = conftest._roundings(*(x.detach() for x in (q, k, v)), do, dlse, case[5], None)
        eps = torch.finfo(torch.float64).eps
        for name, x, e in zip(("o", "lse", "dq", "dk", "dv"), found, exact, strict=True):
            allowed = 4 * eps * (sum(y.abs().max() for y in terms[name]) + e.abs().max())
            assert (x - e).abs().max() <= allowed, (case, name)


def test_a_row_whose_keys_here_all_score_minus_infinity():
    """A shard, or all of them, may hold nothing that a row sees: 0 and −∞, never NaN."""
    q = torch.ones(1, 1, 2, 4)
    k, v = torch.full((1, 1, 3, 4), -math.inf), torch.ones(1, 1, 3, 4)
    nothing = ring.tile(q, k, v, False, 1.0)
    assert torch.equal(nothing[0], torch.zeros_like(q)) and (nothing[1] == -math.inf).all()
    seen = ring.tile(q, torch.ones_like(k), v, False, 1.0)
    for a, b in ((nothing, seen), (seen, nothing)):
        o, lse = ring.merge(*a, *b)
        assert torch.equal(o, seen[0]) and torch.equal(lse, seen[1])
    o, lse = ring.merge(*nothing, *nothing)
    assert torch.equal(o, nothing[0]) and (lse == -math.inf).all()
    grads = ring.tile_backward(q, k, v, lse, torch.ones_like(q), torch.zeros_like(lse), False, 1.0)
    assert not any(x.isnan().any() for x in grads[2:])


def test_merge_is_that_of_softmax():
    rng = np.random.default_rng(1)
    parts = []
    for low in (-900.0, 0.0, 700.0):
        lse = low + 300 * rng.random(5)
        parts.append((rng.standard_normal((5, 3)), lse))
    parts[0][1][:2] = -np.inf
    parts[0][0][:2] = 0
    for a in parts:
        for b in parts:
            states = [softmax.State(m=lse, l=np.ones(5), o=o) for o, lse in (a, b)]
            o, lse = softmax.finish(softmax.merge(*states))
            found = ring.merge(*(torch.from_numpy(x) for x in (*a, *b)))
            np.testing.assert_allclose(found[0], o, rtol=1e-13)
            np.testing.assert_allclose(found[1], lse, rtol=1e-13)


@pytest.mark.skipif(not kernels.available, reason=kernels.reason or "Triton")
@pytest.mark.parametrize("causal", (False, True))
def test_the_kernels_tile_is_that_of_a_cpu(causal, monkeypatch):
    """What runs on GPUs, here in the interpreter: forward, and backward of a part of the keys."""
    torch.manual_seed(0)
    q, do = torch.randn(2, 1, 4, 20, 16)
    k, v = torch.randn(2, 1, 2, 20, 16)
    slow = ring.tile(q, k, v, causal, 0.25)
    lse = torch.logaddexp(slow[1], slow[1] + torch.randn(1, 4, 20))  # other keys exist
    delta = torch.randn(1, 4, 20)
    slow += tuple(ring.tile_backward(q, k, v, lse, do, delta, causal, 0.25))
    monkeypatch.setattr(ring, "_fast", lambda q: True)
    fast = ring.tile(q, k, v, causal, 0.25)
    fast += tuple(ring.tile_backward(q, k, v, lse, do, delta, causal, 0.25))
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# --- counted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
def test_every_byte_that_a_process_sends_is_predicted(team, dtype):
    todo, size = list(cases(team.size)), team.size
    answers = team.run(ring_cases.all_counted, todo, dtype)
    exchanges = {
        "ring": (size - 1, 2 * size - 1 if size > 1 else 0),
        "gather": (1, 1),
        "heads": (3, 3),
    }
    for i, case in enumerate(todo):
        for rank, answer in enumerate(answers):
            for ((sent, received, number), predicted), wanted in zip(
                answer[i], exchanges[case[7]], strict=True
            ):
                assert (sent, received) == (predicted.written, predicted.read), (case, rank)
                assert number == wanted, case
        for way in (0, 1):  # what all send, all receive; what all compute is attention
            total = sum((a[i][way][1] for a in answers), cost.Cost())
            n, d, heads, kv_heads, batch, causal, *_ = case
            whole = cost.attention(
                n, d, flow="ideal", heads=heads, kv_heads=kv_heads, batch=batch, causal=causal,
                backward=bool(way),
            )  # fmt: skip
            assert total.written == total.read and total.flops == whole.flops, case


def test_bytes_by_hand():
    """Four processes with 2 rows each of 3 numbers, 2 K/V heads, FP16: 3 messages of K and V."""
    shape = dict(processes=4, heads=4, kv_heads=2)
    assert cost.ring(8, 3, **shape).written == 3 * (2 * 2 * 2 * 3 * 2)
    backward = cost.ring(8, 3, backward=True, **shape).written
    assert backward == 3 * 48 + 4 * (2 * 2 * 2 * 3 * 4)  # and 4 of dK and dV in FP32
    assert cost.ring(8, 3, processes=1).bytes == 0


@pytest.mark.parametrize("n", (0, 1, 5, 24, 37))
@pytest.mark.parametrize("processes", (1, 2, 3, 4, 8))
@pytest.mark.parametrize("layout", ("ring", "zigzag"))
def test_every_row_has_one_home_and_every_pair_one_step(n, processes, layout):
    plan = cost.shards(n, processes, layout)
    assert sorted(row for chunks in plan for chunk in chunks for row in chunk) == list(range(n))
    x = torch.arange(n)[:, None]
    parts = [ring.shard(x, layout=layout, rank=i, processes=processes) for i in range(processes)]
    assert torch.equal(ring.unshard(parts, layout=layout), x)
    for causal in (False, True):
        steps = cost.ring_pairs(n, processes, layout, causal=causal)
        assert sum(map(sum, steps)) == cost.visible_pairs(n, n, causal)
        for step, row in enumerate(steps):
            for i, pairs in enumerate(row):
                a, b = parts[i], parts[i - step]
                assert pairs == ((a >= b.T).sum() if causal else a.numel() * b.numel())


def test_idle_time_is_what_the_formula_says():
    """A causal ring takes W − ½ steps for W/2 steps' work; zigzag loses next to nothing."""
    for w in (2, 4, 8):
        n = 4096 * w
        assert cost.ring_idle(n, w, causal=True) == pytest.approx(1 - w / (2 * w - 1), rel=1e-3)
        assert cost.ring_idle(n, w, "zigzag", causal=True) < 1e-3
        assert cost.ring_idle(n, w, causal=False) == 0
    assert cost.ring_idle(0, 3, causal=True) == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (dict(way="star"), "way"),
        (dict(layout="spiral"), "layout"),
        (dict(rank=2), "rank"),
        (dict(processes=0), "processes"),
        (dict(way="heads", heads=3), "do not divide"),
        (dict(heads=3, kv_heads=2), "multiple"),
    ],
)
def test_cost_refuses_in_one_line(call, said):
    with pytest.raises(ValueError, match=said) as error:
        cost.ring(8, 4, **{"processes": 2} | call)
    assert "\n" not in str(error.value)


# --- overlap ----------------------------------------------------------------------------------


def test_the_wire_is_busy_while_the_tile_is_computed():
    """On a wire slowed to 0.1 s a message: the tile lies inside the message's time, the rest waits."""
    n, size = 128, 2
    message = 2 * 2 * (n // size) * 32 * 4
    with ring.Team(size) as team:
        for log, sent in team.run(ring_cases.time_line, message / 0.1, n):
            (wire,), tiles = ([x for x in log if x[0] == what] for what in ("wire", "tile"))
            (wait,) = [x for x in log if x[0] == "wait"]
            assert sent == message and len(tiles) == 2
            assert wire[1] <= tiles[0][1] <= tiles[0][2] <= wait[2] and wire[2] - wire[1] >= 0.1
            assert tiles[0][1] < wire[2] and wait[2] <= tiles[1][1]


# --- when something goes wrong ----------------------------------------------------------------


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_wrong_inputs_are_refused_by_every_process_in_the_same_line():
    with ring.Team(2) as team:
        first, second = team.run(ring_cases.refusals)
    assert first == second and first.pop("goes on")
    for name, words in {
        "one wrong shape": "Process 1 of 2.*do not fit together",
        "widths differ": "disagree: q but for its rows is .* in process 0",
        "dtypes differ": "disagree: dtype is torch.float32 in process 0, torch.float64 in 1",
        "rows do not fit": r"not \[2, 4\]: cut with course.ring.shard",
        "options differ": "disagree: causal is False in process 0, True in 1",
        "heads": "cannot be shared out among 2 processes",
        "no such way": "way must be one of ring, gather, heads",
        "no such layout": "layout 'ring' or 'zigzag'",
        "not finite": "scale must be finite",
        "one is no tensor": r"Process 1 of 2: q, k and v must be tensors",
    }.items():
        said = first.pop(name)
        assert len(said.splitlines()) == 1 and re.search(words, said), (name, said)
    assert not first


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "fails, process 1 of 2: OverflowError: too much for a line"),
        ("dies", "fails, process 1 of 2: it ended"),
        ("sleeps", "fails did not end within 3 s in process 0, 1 of 2"),
    ],
)
def test_a_process_that_fails_ends_all_with_one_line(how, said):
    with ring.Team(2) as team:
        pids = [pid for _, pid in team.run(ring_cases.hello, "here")]
        assert pids == team.pids
        start = time.monotonic()
        with pytest.raises(ring.Failed, match=said) as error:
            team.run(ring_cases.fails, how, timeout=3 if how == "sleeps" else 60)
        assert time.monotonic() - start < 30 and "\n" not in str(error.value)
        assert all(map(gone, pids)) and not team.pids
        if how == "dies":  # the team starts anew
            assert [rank for rank, _ in team.run(ring_cases.hello, "again")] == [0, 1]
            pids = team.pids
    assert all(map(gone, pids))


def test_prints_come_in_the_order_of_the_processes(capsys):
    with ring.Team(2) as team:
        team.run(ring_cases.hello, "process")
    assert capsys.readouterr().out == "process 0\nprocess 1\n"


def test_processes_end_with_the_python_that_started_them(tmp_path):
    """Even if it is killed, and even if they hang."""
    code = (
        "import os, sys\nfrom course import ring\nfrom tests import ring_cases\n"
        "team = ring.Team(2)\nteam.run(ring_cases.hello, 'x')\n"
        "print(*team.pids, flush=True)\n"
        "team.run(ring_cases.fails, 'sleeps')\n"
    )
    root = os.path.dirname(os.path.dirname(ring_cases.__file__))
    started = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, encoding="utf-8"
    )
    while not (line := started.stdout.readline()).replace(" ", "").strip().isdigit():
        assert line, "it ended too early"
    started.kill()
    started.wait()
    started.stdout.close()
    deadline = time.monotonic() + 20
    while not all(gone(int(pid)) for pid in line.split()):
        assert time.monotonic() < deadline, f"{line} are left behind"
        time.sleep(0.05)


def test_without_processes_it_says_how_to_start_them():
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(RuntimeError, match="start them with course"):
        ring.attention(x, x, x)
    with pytest.raises(ValueError, match="processes must be a whole number, 1 or more"):
        ring.run(ring_cases.hello, 0)
    with pytest.raises(ValueError, match="a plain function, written with def"):
        ring.run(lambda: 1, 2)
