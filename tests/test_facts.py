"""The figures that the course quotes, each out of `course`: the exact one and as pages print it."""

from dataclasses import replace
from math import floor

import numpy as np
import pytest

from course.cost import Op, attention, chain, decode_step, elementwise, kv_cache_bytes, matmul
from course.hardware import GB, GPUS, GiB, KiB, MiB
from course.roofline import attainable, bound, compute_time, memory_time, ridge, time
from course.softmax import State, finish, update
from course.units import binary, decimal, seconds

H100 = GPUS["H100 SXM"]
A100 = replace(GPUS["A100 80GB"], bandwidth=2.0e12)  # as many texts round it

N, D = 4096, 128
NAIVE, FLASH = attention(N, D, flow="naive"), attention(N, D, flow="flash")
NAIVE_8K, FLASH_8K = attention(8192, D, flow="naive"), attention(8192, D, flow="flash")


def s_bytes(n):
    """S or P at length n, in FP16: what writing it once costs."""
    return elementwise(n * n).written


def peak(gpu, fp16):
    return replace(gpu, peak={"fp16": fp16})


def at(gpu, bandwidth):
    return replace(gpu, bandwidth=bandwidth)


def tokens_a_second(parameters, itemsize, bandwidth):
    step = decode_step(weight_bytes=parameters * itemsize, itemsize=itemsize)
    return 1 / time(step, at(H100, bandwidth))


def kv(tokens, batch=1):
    return kv_cache_bytes(layers=32, kv_heads=8, head_dim=128, tokens=tokens, batch=batch)


def worked_example():
    """Scores 1, 3 | 4, 2 with values 1, 2, 3, 4: the states after each block, and the output."""
    one = update(State.empty(1), np.array([1.0, 3]), np.array([[1.0], [2]]))
    two = update(one, np.array([4.0, 2]), np.array([[3.0], [4]]))
    return one, two, finish(two)[0].item()


ONE, TWO, OUT = worked_example()
WAIT = {"naive": memory_time(NAIVE, H100), "flash": memory_time(FLASH, H100)}

# what, as the course computes it, as FACTS has it
TABLE = [
    ("one operand at N=4096", elementwise(N * D).written, 1_048_576),
    ("  printed", binary(elementwise(N * D).written), "1 MiB"),
    ("S", s_bytes(N), 33_554_432),
    ("  printed", decimal(s_bytes(N)), "33.6 MB"),
    ("  printed in binary units", binary(s_bytes(N)), "32 MiB"),
    ("  cut, not rounded, as the source prints it", floor(s_bytes(N) / 1e5) / 10, 33.5),
    ("naive, four passes and Q, K, V, O", NAIVE.bytes, 138_412_032),
    ("  printed", decimal(NAIVE.bytes), "138 MB"),
    ("  the passes alone", NAIVE.bytes - FLASH.bytes, 4 * s_bytes(N)),
    ("fused, each operand once", FLASH.bytes, 4_194_304),
    ("  printed", binary(FLASH.bytes), "4 MiB"),
    ("ratio, Q, K, V, O in both", NAIVE.bytes / FLASH.bytes, 33.0),
    ("ratio, the passes alone", (NAIVE.bytes - FLASH.bytes) / FLASH.bytes, 32.0),
    ("FLOPs", (NAIVE.flops, FLASH.flops), (8_589_934_592,) * 2),
    ("  printed", f"{NAIVE.flops / 1e9:.1f}", "8.6"),
    ("intensity, naive", f"{NAIVE.intensity:.2f}", "62.06"),
    ("  printed", f"{NAIVE.intensity:.0f}", "62"),
    ("intensity, fused", FLASH.intensity, 2048),
    ("  about", f"{FLASH.intensity:.0e}", "2e+03"),
    ("H100 memory time, naive", f"{WAIT['naive'] * 1e6:.2f}", "41.32"),
    ("  printed", f"{WAIT['naive'] * 1e6:.0f}", "41"),
    ("H100 memory time, fused", f"{WAIT['flash'] * 1e6:.3f}", "1.252"),
    ("  printed", seconds(WAIT["flash"]), "1.25 µs"),
    ("H100 compute time", f"{compute_time(FLASH, H100) * 1e6:.2f}", "8.68"),
    ("  printed", seconds(compute_time(FLASH, H100), digits=2), "8.7 µs"),
    ("naive waits", bound(NAIVE, H100), "memory"),
    ("fused works", bound(FLASH, H100), "compute"),
    ("N=8192, four passes", NAIVE_8K.bytes - FLASH_8K.bytes, 512 * MiB),
    ("N=8192, ideal fused", FLASH_8K.bytes, 8 * MiB),
    ("N=8192, ratio", (NAIVE_8K.bytes - FLASH_8K.bytes) / FLASH_8K.bytes, 64.0),
    ("N=8192, ratio with Q, K, V, O", NAIVE_8K.bytes / FLASH_8K.bytes, 65.0),
    ("S at 8,192", binary(s_bytes(8_192)), "128 MiB"),
    ("S at 32,768", binary(s_bytes(32_768)), "2 GiB"),
    ("S at 131,072", binary(s_bytes(131_072)), "32 GiB"),
    ("S at 32,768, 32 heads", binary(32 * s_bytes(32_768)), "64 GiB"),
    ("ridge, H100 SXM", f"{ridge(H100):.1f}", "295.3"),
    ("  with the peak as 989", f"{ridge(peak(H100, 989e12)):.0f}", "295"),
    ("  with the peak as 990", f"{ridge(peak(H100, 990e12)):.0f}", "296"),
    ("ridge, A100 at 2.0 TB/s", f"{ridge(A100):.1f}", "156.0"),
    ("ridge, A100 at 2.039 TB/s", f"{ridge(GPUS['A100 80GB']):.1f}", "153.0"),
    ("ridge, A100 40 GB", f"{ridge(GPUS['A100 40GB']):.1f}", "200.6"),
    ("ridge, H200", f"{ridge(GPUS['H200']):.1f}", "206.1"),
    ("ridge, H100 PCIe", f"{ridge(GPUS['H100 PCIe']):.0f}", "378"),
    ("ridge, laptop", f"{ridge(GPUS['laptop GPU']):.1f}", "66.7"),
    ("  printed", f"{ridge(GPUS['laptop GPU']):.0f}", "67"),
    ("matmul 128", f"{matmul(128, 128, 128).intensity:.2f}", "42.67"),
    ("matmul 1024", f"{matmul(1024, 1024, 1024).intensity:.2f}", "341.33"),
    ("matmul 8192", f"{matmul(8192, 8192, 8192).intensity:.2f}", "2730.67"),
    ("  printed", [f"{matmul(n, n, n).intensity:.1f}" for n in (128, 1024, 8192)],
     ["42.7", "341.3", "2730.7"]),
    ("add", elementwise(10**6, inputs=2).intensity, 1 / 6),
    ("  printed", f"{elementwise(10**6, inputs=2).intensity:.2f}", "0.17"),
    ("ReLU", elementwise(10**6).intensity, 1 / 4),
    ("decode, 16 GB of weights", f"{time(decode_step(weight_bytes=16 * GB), H100) * 1e3:.3f}", "4.776"),
    ("  printed", seconds(time(decode_step(weight_bytes=16 * GB), H100), digits=2), "4.8 ms"),
    ("  tokens/s", f"{tokens_a_second(8e9, 2, 3.35e12):.1f}", "209.4"),
    ("  printed", f"{tokens_a_second(8e9, 2, 3.35e12):.0f}", "209"),
    ("7B bf16 at 2 TB/s", f"{tokens_a_second(7e9, 2, 2e12):.1f}", "142.9"),
    ("7B int4", f"{tokens_a_second(7e9, 0.5, 2e12):.1f}", "571.4"),
    ("70B int4", f"{tokens_a_second(70e9, 0.5, 2e12):.1f}", "57.1"),
    ("  printed", [f"{tokens_a_second(*x, 2e12):.0f}" for x in ((7e9, 2), (7e9, 0.5), (70e9, 0.5))],
     ["143", "571", "57"]),
    ("KV a token", kv(1), 131_072),
    ("  printed", binary(kv(1)), "128 KiB"),
    ("KV at 8,000 tokens", f"{kv(8_000) / GiB:.3f}", "0.977"),
    ("  printed", f"{kv(8_000) / GiB:.0f}", "1"),
    ("KV at 8,192", binary(kv(8_192)), "1 GiB"),
    ("KV at 8,000, 64 sequences", binary(kv(8_000, 64)), "62.5 GiB"),
    ("KV at 8,192, 64 sequences", binary(kv(8_192, 64)), "64 GiB"),
    ("worked example, m", (ONE.m, TWO.m), (3, 4)),
    ("worked example, l", (f"{ONE.l:.4f}", f"{TWO.l:.4f}"), ("1.1353", "1.5530")),
    ("worked example, o", (f"{ONE.o[0]:.4f}", f"{TWO.o[0]:.4f}"), ("2.1353", "4.3269")),
    ("worked example, output", (f"{OUT:.4f}", f"{OUT:.3f}"), ("2.7861", "2.786")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("computed", "expected"),
    [row[1:] for row in TABLE],
    ids=[f"{i:02} {row[0].strip()}" for i, row in enumerate(TABLE)],
)
def test_facts_table(computed, expected):
    assert computed == expected


# Where to be careful


@pytest.mark.parametrize(("block", "mebibytes"), [(128, 66), (64, 130)])
def test_careful_1_the_tiled_flow_rereads_k_and_v(block, mebibytes):
    tiled = attention(N, D, flow="tiled", block_q=block, block_kv=block)
    assert tiled.bytes == mebibytes * MiB
    assert FLASH.bytes < tiled.bytes < NAIVE.bytes == 132 * MiB
    assert 2 * elementwise(N * D).read < H100.l2_bytes  # K and V of a head stay in the L2


@pytest.mark.parametrize("block_q", [32, 64, 128])
def test_careful_2_the_constant_that_theta_hides(block_q):
    m = 4 * D * block_q  # SRAM in elements, so that B_r = M/4d
    tiled = attention(N, D, flow="tiled", block_q=block_q, block_kv=64)
    k_and_v = tiled.read - elementwise(N * D).read
    assert k_and_v / 2 == 8 * N**2 * D**2 / m


@pytest.mark.parametrize(
    ("ops", "separate", "fused", "times"),
    [
        ([Op()] * 4, 16, 4, "4.0"),  # the simple count
        (["bias", "gelu", "dropout", "residual"], 18, 6, "3.0"),
        (["bias", "gelu", "stored dropout", "residual"], 19, 7, "2.7"),
        ([Op()] * 3, 12, 4, "3.0"),  # careful 9
        (["bias"], 4, 4, "1.0"),
        (["gelu"], 4, 4, "1.0"),
        (["dropout"], 4, 4, "1.0"),
        (["stored dropout"], 5, 5, "1.0"),
        (["residual"], 6, 6, "1.0"),
    ],
)
def test_careful_3_and_9_fusion_counts(ops, separate, fused, times):
    n = 12_345
    apart, together = chain(ops, n, fused=False), chain(ops, n, fused=True)
    assert (apart.bytes, together.bytes) == (separate * n, fused * n)
    assert f"{apart.bytes / together.bytes:.1f}" == times
    assert apart.flops == together.flops


def test_careful_4_the_accumulator_is_rescaled_when_the_maximum_moves_and_divided_at_the_end():
    alpha = np.exp(ONE.m - TWO.m)  # e⁻¹: no inverse, and no division before `finish`
    np.testing.assert_allclose(TWO.o, alpha * ONE.o + 3 + 4 * np.exp(-2), rtol=1e-15)
    assert OUT == TWO.o[0] / TWO.l


def test_careful_5_other_orders_change_the_last_bits_and_no_more():
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=100), rng.normal(size=(100, 1))

    def blocks(size):
        state = State.empty(1)
        for start in range(0, 100, size):
            state = update(state, x[start : start + size], v[start : start + size])
        return finish(state)[0].item()

    results = [blocks(size) for size in (1, 3, 7, 32, 100)]
    assert len(set(results)) > 1
    np.testing.assert_allclose(results, results[0], rtol=1e-13)


def test_careful_6_the_three_intensities_of_naive_attention():
    assert f"{NAIVE.intensity:.0f}" == "62"
    for d in (16, 64, 128):  # d/2, once N×N outweighs Q, K, V and O
        assert attention(10**7, d, flow="naive").intensity == pytest.approx(d / 2, rel=1e-4)
    softmax = elementwise(N * N, flops_per_element=5)  # max, −, exp, +, ÷: S in, P out
    small = attention(N, 16, flow="naive")
    assert 1 <= softmax.intensity <= small.intensity <= 10


def test_careful_7_operations_a_byte_are_tensor_core_flops():
    assert f"{ridge(H100):.0f}" == "295"
    assert f"{ridge(H100, 'fp32'):.0f}" == "20"  # outside the tensor cores
    assert attainable(295, H100) < H100.peak["fp16"] == attainable(296, H100)


@pytest.mark.parametrize(
    ("name", "sheet"), [("H100 SXM", 1979), ("H200", 1979), ("H100 PCIe", 1513), ("B200", 4500)]
)
def test_careful_8_peaks_are_half_of_the_sparse_figure_on_the_sheet(name, sheet):
    for dtype in ("fp16", "bf16"):
        assert GPUS[name].peak[dtype] * 2 == pytest.approx(sheet * 1e12, rel=1e-3)


def test_careful_12_what_an_h100_holds():
    registers, shared, l2, hbm = H100.levels
    assert H100.l2_bytes == l2.capacity_bytes == 50 * MiB
    assert GPUS["A100 40GB"].l2_bytes == GPUS["A100 80GB"].l2_bytes == 40 * MiB
    assert (H100.smem_per_sm, H100.smem_per_block) == (228 * KiB, 227 * KiB)
    assert shared.capacity_bytes == 132 * 228 * KiB
    assert registers.capacity_bytes == 132 * 256 * KiB
    assert hbm.capacity_bytes == H100.hbm_bytes == 80 * GB
