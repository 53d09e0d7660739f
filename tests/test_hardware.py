"""GPUs and memory levels: dense, complete, sourced, and in agreement with themselves."""

import pickle
from dataclasses import fields, replace

import pytest

from course import hardware, measure
from course.draw import theme
from course.hardware import DTYPES, GB, GPUS, LADDER, Gpu, KiB, Level
from course.roofline import ridge

EVERY_GPU = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
CHIPS = [gpu for gpu in GPUS.values() if gpu.sms]  # all but the round example
EVERY_CHIP = pytest.mark.parametrize("gpu", CHIPS, ids=lambda gpu: gpu.name)


def test_the_gpus_of_the_course():
    assert list(GPUS) == [
        "H100 SXM", "H100 PCIe", "H200", "A100 40GB", "A100 80GB", "B200", "T4", "RTX 4090",
        "laptop GPU",
    ]  # fmt: skip


@EVERY_GPU
def test_every_figure_has_a_source(gpu):
    for item in (gpu, *gpu.levels):
        assert len(item.source) > 20
        assert "\n" not in item.source


def test_every_level_of_the_ladder_has_a_source_and_a_colour():
    assert [level.name for level in LADDER] == list(theme.LEVELS)
    assert all(len(level.source) > 20 for level in LADDER)
    assert len({level.analogy for level in LADDER}) == len(LADDER)


@EVERY_CHIP
def test_levels_get_larger_slower_and_further_and_agree_with_the_gpu(gpu):
    registers, shared, l2, hbm = gpu.levels
    assert [level.name for level in gpu.levels] == ["registers", "shared", "l2", "hbm"]
    assert shared.capacity_bytes == gpu.sms * gpu.smem_per_sm
    assert registers.capacity_bytes == gpu.sms * 256 * KiB
    assert (l2.capacity_bytes, hbm.capacity_bytes) == (gpu.l2_bytes, gpu.hbm_bytes)
    assert hbm.bandwidth == gpu.bandwidth < shared.bandwidth == gpu.sms * 128 * gpu.clock
    latencies = [level.latency for level in gpu.levels]
    assert latencies == sorted(latencies)
    assert gpu.smem_per_block <= gpu.smem_per_sm
    assert gpu.l2_bytes < gpu.hbm_bytes


# Multiply-adds of the tensor cores a clock and SM, dense FP16, from NVIDIA's architecture papers.
FMA_A_CLOCK = {
    "H100 SXM": 2048,
    "H100 PCIe": 2048,
    "H200": 2048,
    "A100 40GB": 1024,
    "A100 80GB": 1024,
    "B200": 4096,
    "T4": 512,
    "RTX 4090": 256,
}


@EVERY_CHIP
def test_peaks_are_dense_and_follow_from_the_clock(gpu):
    expected = 2 * gpu.sms * FMA_A_CLOCK[gpu.name] * gpu.clock
    assert gpu.peak["fp16"] == pytest.approx(expected, rel=0.005)
    for dtype, times in (("bf16", 1), ("fp8", 2), ("tf32", 0.5)):
        if dtype in gpu.peak:
            assert gpu.peak[dtype] == pytest.approx(times * gpu.peak["fp16"], rel=0.001)


# Multiply-adds of the plain units a clock and SM, and the clock in GHz that the FP32 peak is for.
FP32 = {
    "H100 SXM": (128, 1.98),
    "H100 PCIe": (128, 1.755),
    "H200": (128, 1.98),
    "A100 40GB": (64, 1.41),
    "A100 80GB": (64, 1.41),
    "B200": (128, 1.98),
    "T4": (64, 1.59),
    "RTX 4090": (128, 2.52),
}


@EVERY_CHIP
def test_the_fp32_peak_is_for_the_highest_clock(gpu):
    """On Hopper and Blackwell not the one of the tensor peaks: 1.98 GHz, not 1.83."""
    fma, clock = FP32[gpu.name]
    assert gpu.peak["fp32"] == pytest.approx(2 * gpu.sms * fma * clock * 1e9, rel=0.01)
    assert gpu.clock <= clock * 1e9


def test_what_a_box_says_is_not_what_a_card_holds():
    """The device's own figure stands in the source: more than the box's, in thousands."""
    reported = {
        "H100 SXM": ("81,559 MiB", 81_559 * 2**20),
        "H200": ("150,109,880,320 bytes", 150_109_880_320),
    }
    for name, (words, held) in reported.items():
        gpu = GPUS[name]
        assert words in gpu.source and 1.06 < held / gpu.hbm_bytes < 1.07


def test_both_bandwidths_of_a_b200_are_told():
    b200 = GPUS["B200"]
    assert "62 TB/s for eight" in b200.source and "launch pages said 8 TB/s" in b200.source
    assert b200.bandwidth == pytest.approx(62e12 / 8, rel=0.01)
    assert b200.bandwidth == pytest.approx(7680 / 8 * 3996e6 * 2, rel=0.005)
    assert round(ridge(b200)) == 292


@EVERY_GPU
def test_peaks_have_the_names_of_the_design(gpu):
    assert "fp16" in gpu.peak and set(gpu.peak) <= set(DTYPES)


def test_every_gpu_has_its_own_memory():
    """The H200 is an H100 with more and faster memory, and nothing else."""
    h100, h200 = GPUS["H100 SXM"], GPUS["H200"]
    assert h200.peak == h100.peak
    assert (h100.bandwidth, h200.bandwidth) == (3.35e12, 4.8e12)
    assert (h100.hbm_bytes, h200.hbm_bytes) == (80 * GB, 141 * GB)
    assert len({gpu.bandwidth for gpu in GPUS.values()}) == len(GPUS)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("T4", 65_536), ("RTX 4090", 101_376), ("H100 SXM", 232_448), ("H200", 232_448),
        ("A100 40GB", 166_912),
    ],
)  # fmt: skip
def test_d12_shared_memory_of_a_block(name, limit):
    assert GPUS[name].smem_per_block == limit


def test_older_gpus_lack_data_types_and_say_so():
    with pytest.raises(ValueError, match=r"T4 has no 'bf16' peak\. It has: fp32, fp16, int8\."):
        GPUS["T4"].peak_for("bf16")


def test_the_interface_of_the_design():
    assert {field.name for field in fields(Gpu)} >= {
        "name", "sms", "peak", "bandwidth", "levels", "smem_per_sm", "smem_per_block", "l2_bytes",
        "hbm_bytes", "source",
    }  # fmt: skip
    assert {field.name for field in fields(Level)} == {
        "name", "analogy", "scope", "capacity_bytes", "bandwidth", "latency", "managed_by", "source",
    }  # fmt: skip


@EVERY_GPU
def test_a_gpu_is_a_value(gpu):
    assert replace(gpu) == gpu and hash(replace(gpu)) == hash(gpu)
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    with pytest.raises(AttributeError):
        gpu.bandwidth = 1e12


@pytest.mark.parametrize(
    "slip",
    [dict(bandwidth=b) for b in (0, -2e12, float("nan"), float("inf"), 3.35, 3350)]
    + [dict(peak={"fp16": p}) for p in (0, -1e12, float("nan"), float("inf"), 989.4)],
)
def test_c9_rates_in_other_units_are_refused(slip):
    with pytest.raises(ValueError, match="was a 1e9 or 1e12 left out"):
        replace(GPUS["H100 SXM"], **slip)


def test_this_machine_is_a_gpu_too(monkeypatch):
    copy, rate = measure.copy_bandwidth, measure.matmul_rate
    quick = dict(budget=1e-3)
    monkeypatch.setattr(measure, "cuda_available", lambda: False)
    monkeypatch.setattr(measure, "copy_bandwidth", lambda *_, **__: copy(2**16, **quick))
    monkeypatch.setattr(measure, "matmul_rate", lambda _, dtype: rate(64, dtype, **quick))
    here = hardware.this_machine.__wrapped__()  # measured once a process; here afresh
    assert isinstance(here, Gpu) and here.name
    assert here.source.startswith("measured here, 20")
    assert ridge(here, "fp32") > 0
    assert here.levels[-1].bandwidth == here.bandwidth
    assert all(isinstance(level, Level) and level.source for level in here.levels)


def test_this_machine_is_measured_once(monkeypatch):
    calls = []
    found = dict(name="a CPU", kind="cpu", peak={"fp32": 1e11}, bandwidth=1e10, levels=[])
    found["stamp"] = dict(date="2026-01-02", method="by hand")
    monkeypatch.setattr(measure, "machine", lambda: calls.append(1) or found)
    hardware.this_machine.cache_clear()
    assert hardware.this_machine() is hardware.this_machine()
    hardware.this_machine.cache_clear()
    assert calls == [1]
