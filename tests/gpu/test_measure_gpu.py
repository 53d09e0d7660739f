"""Measuring on a real GPU: events, L2, peak memory, counters."""

import shutil

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course import measure

pytestmark = pytest.mark.gpu


def prepare_copy(n):
    """For `dram_bytes`: a kernel that reads n bytes and writes n bytes."""
    x = torch.ones(n, dtype=torch.uint8, device="cuda")
    return lambda: x + 1


def test_case_d16_events_time_the_work_and_not_its_queueing():
    x = torch.randn(4096, 4096, device="cuda")
    timing = measure.time(lambda: x @ x, device="cuda", budget=0.1)
    assert timing.median > 2 * 4096**3 / 1e15  # nothing computes at a PFLOP/s in FP32
    assert "L2 flushed" in timing.stamp["method"] and "CUDA events" in timing.stamp["method"]
    wall = measure.time(lambda: x @ x, budget=0.1)  # the wall clock waits for the GPU
    assert wall.median == pytest.approx(timing.median, rel=0.5)


def test_cold_and_warm_l2_differ():
    x = torch.ones(4 * 2**20, device="cuda")  # 16 MiB: fits in an L2 of 60
    cold = measure.time(lambda: x.sum(), device="cuda", budget=0.1).median
    warm = measure.time(lambda: x.sum(), device="cuda", budget=0.1, cold=False).median
    assert warm < cold


def test_staircase_and_matmul():
    points = measure.staircase([2**25, 2**31], device="cuda")["points"]
    assert points[0]["bandwidth"] > points[1]["bandwidth"] > 1e11
    assert measure.matmul_rate(2048, "fp16", device="cuda")["rate"] > 1e12


def test_peak_memory():
    x = torch.ones(2**20, device="cuda")
    assert measure.peak_memory(lambda: (x + 1) * 2, device="cuda") == 2 * x.nbytes


def test_dram_bytes_of_a_copy():
    if shutil.which("ncu") is None:
        pytest.skip("no ncu here")
    n = 2**30
    lists = measure.dram_bytes("tests.gpu.test_measure_gpu:prepare_copy", [[n], [n // 2]])
    for size, [kernel] in zip((n, n // 2), lists, strict=True):
        assert kernel["read"] == pytest.approx(size, rel=0.05)
        assert kernel["written"] == pytest.approx(size, rel=0.15)  # the L2 keeps the last of it
