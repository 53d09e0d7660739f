"""Measurements: what is counted, what is said about it, and what is refused."""

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from course import hardware, measure


def test_importing_measure_loads_neither_torch_nor_triton():
    code = "import sys, course.measure; print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.strip() == "set()"


def test_time_gives_median_quartiles_and_where_they_come_from():
    timing = measure.time(lambda: time.sleep(0.002), budget=0.05)
    assert 0.002 <= timing.low <= timing.median <= timing.high
    assert timing.median < 0.02  # not the sum of the calls
    assert timing.spread == timing.high - timing.low
    assert timing.repeats >= 5 and timing.warmup >= 1
    assert timing.rate(1) == 1 / timing.median
    assert "median" in timing.stamp["method"] and "quartiles" in timing.stamp["method"]
    assert set(timing.stamp) == {"device", "date", "versions", "method"}


def test_a_call_too_short_for_the_clock_is_timed_many_at_once():
    calls = 0

    def nothing():
        nonlocal calls
        calls += 1

    timing = measure.time(nothing, budget=0.01)
    assert timing.median < 1e-5
    assert calls > 10 * timing.repeats


def test_case_d16_the_wall_clock_waits_for_the_gpu(monkeypatch):
    """Queued work counts: the clock is read only after `synchronize`."""
    queue = []

    def synchronize():
        time.sleep(0.003 * len(queue))
        queue.clear()

    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert measure.time(lambda: queue.append(1), budget=0.03).median >= 0.003


@pytest.fixture
def one_second(monkeypatch):
    """Every call is run once and said to take a second: a rate is then what was counted."""

    def run_once(fn, **_):
        fn()
        return measure.Timing(1.0, 1.0, 1.0, 1, 0, {})

    monkeypatch.setattr(measure, "time", run_once)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [2**14, 2**20 + 2, 2**26])
def test_a_copy_counts_what_it_reads_and_what_it_writes(size, threads, one_second, monkeypatch):
    copied = []

    def copyto(target, source, copy=np.copyto):
        one = target[:1].view(np.uint8)  # the buffer that is seen many times
        one[:] = 0
        copy(target, source)
        assert (one == 1).all()  # every byte arrived
        copied.append(target.nbytes)

    monkeypatch.setattr(np, "copyto", copyto)
    found = measure.copy_bandwidth(size, threads=threads)
    assert found["bandwidth"] == 2 * sum(copied)
    assert found["threads"] == threads == len(copied) and found["bytes"] == size
    assert sum(copied) >= 2 * 2**20  # long enough that Python's own time does not matter


def test_matmul_rate_counts_two_flops_a_multiply_add(one_second):
    found = measure.matmul_rate(96)
    assert found["rate"] == found["high"] == 2 * 96**3
    assert measure.matmul_rate(96, "fp64")["dtype"] == "fp64"


def test_staircase_walks_up_the_sizes_it_was_given():
    stairs = measure.staircase([2**15, 2**20])
    assert [p["bytes"] for p in stairs["points"]] == [2**15, 2**20]
    assert all(p["bandwidth"] > 0 for p in stairs["points"])
    assert "1 thread," in stairs["stamp"]["method"]
    assert "read + written" in stairs["stamp"]["method"]


def test_peak_memory_is_what_the_call_adds():
    held = np.ones(10**6)  # before the call: not counted

    def call():
        a = np.ones(10**6)
        b = a + held
        del a
        return b.sum()

    assert measure.peak_memory(call) == pytest.approx(16e6, rel=0.01)


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: measure.copy_bandwidth(0), "at least 64 bytes"),
        (lambda: measure.matmul_rate(0), "at least 1 row"),
        (lambda: measure.matmul_rate(8, "fp16"), "fp32 or fp64"),
        (lambda: measure.time(int, device="tpu"), "cpu or cuda"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def test_cuda_without_a_gpu_is_refused_in_one_line():
    if measure.cuda_available():
        pytest.skip("there is a GPU here")
    for call in (
        lambda: measure.staircase(device="cuda"),
        lambda: measure.time(int, device="cuda"),
        lambda: measure.matmul_rate(8, device="cuda"),
        lambda: measure.peak_memory(int, device="cuda"),
    ):
        with pytest.raises(ValueError, match="no CUDA GPU here"):
            call()


def test_machine_says_what_is_here():
    here = measure.machine()
    assert here["bandwidth"] > 1e8 and all(rate > 1e8 for rate in here["peak"].values())
    sizes = [level["capacity_bytes"] for level in here["levels"] if level["capacity_bytes"]]
    assert sizes == sorted(sizes)
    assert here["levels"][-1]["bandwidth"] == here["bandwidth"]
    assert here["stamp"]["date"] and here["stamp"]["device"] == here["name"]


def test_what_it_says_makes_a_gpu_of_course_hardware(monkeypatch):
    monkeypatch.setattr(measure, "machine", lambda: _FAKE_MACHINE)
    gpu = hardware.this_machine.__wrapped__()  # not the one that is kept
    assert gpu.peak == {"fp32": 2e11} and gpu.bandwidth == 3e10
    assert [level.name for level in gpu.levels] == ["l1", "ram"]
    assert gpu.source == "measured here, 2026-01-02: by hand"


_FAKE_MACHINE = {
    "name": "some CPU",
    "kind": "cpu",
    "peak": {"fp32": 2e11},
    "bandwidth": 3e10,
    "levels": [
        {"name": "l1", "capacity_bytes": 2**15, "bandwidth": 2e11},
        {"name": "ram", "capacity_bytes": None, "bandwidth": 3e10},
    ],
    "threads": 2,
    "stamp": {"device": "some CPU", "date": "2026-01-02", "versions": {}, "method": "by hand"},
}

NCU_OUTPUT = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","byte","byte"
"0","7","gemm_kernel","33,554,432","1024"
"1","7","softmax","2048","0"
"2","7","spin_kernel(long)","0","0"
"3","7","fused","4096.0","64"
"4","7","spin_kernel(long)","0","0"
"""


def test_dram_bytes_reads_what_ncu_prints(tmp_path, monkeypatch):
    """A stand-in for ncu: the same table, one list of kernels for each list of arguments."""
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\ncat <<'END'\n{NCU_OUTPUT}END\n", encoding="utf-8")
    ncu.chmod(0o755)
    monkeypatch.setattr(measure.shutil, "which", lambda name: str(ncu))
    naive, fused = measure.dram_bytes("some.module:call", [["naive"], ["fused"]])
    assert naive == [
        {"kernel": "gemm_kernel", "read": 33554432, "written": 1024},
        {"kernel": "softmax", "read": 2048, "written": 0},
    ]
    assert fused == [{"kernel": "fused", "read": 4096, "written": 64}]
    with pytest.raises(RuntimeError, match="not available"):  # one list asked for, two came back
        measure.dram_bytes("some.module:call", [["naive"]])


def test_dram_bytes_says_in_one_line_why_it_cannot_count(tmp_path, monkeypatch):
    monkeypatch.setattr(measure.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match=r"not available .no `ncu`"):
        measure.dram_bytes("a:b", [[]])
    ncu = tmp_path / "ncu"
    ncu.write_text(
        "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM: no permission'\nexit 1\n", encoding="utf-8"
    )
    ncu.chmod(0o755)
    monkeypatch.setattr(measure.shutil, "which", lambda name: str(ncu))
    with pytest.raises(RuntimeError, match="ERR_NVGPUCTRPERM") as error:
        measure.dram_bytes("a:b", [[]])
    assert "\n" not in str(error.value)
