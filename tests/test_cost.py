"""FLOPs and bytes against published figures, hand counts and loops; the field's cases C1–C16."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.cost import (
    OPS,
    Cost,
    Op,
    attention,
    chain,
    decode_step,
    elementwise,
    kv_cache_bytes,
    latent_cache_bytes,
    matmul,
    paper_tiles,
    tile_bytes,
    visible_pairs,
)
from course.hardware import GPUS, GiB, KiB
from course.roofline import bound, ridge, time

LLAMA_3_8B = dict(layers=32, kv_heads=8, head_dim=128)
LLAMA_3_70B = dict(layers=80, kv_heads=8, head_dim=128)


# The algebra

COUNT = st.integers(0, 10**40)
COSTS = st.builds(Cost, COUNT, COUNT, COUNT)


@given(COSTS, COSTS, COSTS, st.integers(0, 99))
def test_costs_add_and_multiply(a, b, c, times):
    assert a + b == b + a
    assert (a + b) + c == a + (b + c) == sum([a, b, c])
    assert a + Cost() == a == sum([a])
    assert times * a == a * times == sum([a] * times, Cost())
    assert (a + b).bytes == a.bytes + b.bytes == a.read + b.read + a.written + b.written
    assert len({a, replace(a)}) == 1


def test_intensity():
    assert Cost(10, 3, 2).intensity == 2
    assert Cost(0, 3, 2).intensity == 0
    with pytest.raises(ValueError, match="no bytes"):
        _ = Cost(10).intensity


def test_a_cost_and_something_else_do_not_add():
    for other in (1, None, "a", 2.5):
        with pytest.raises(TypeError):
            Cost(1) + other


# Elementwise, chains, matmul


def test_elementwise():
    assert elementwise(10, inputs=3, outputs=2, flops_per_element=5, itemsize=4) == Cost(
        50, 120, 80
    )


def test_c9_the_brackets_of_a_bandwidth():
    n = 1024
    moved = Cost(read=2 * (n * n + n * n), written=4 * n * n)  # FP16 in, FP32 out
    assert f"{moved.bytes * 1e-9 / 1e-4:.1f}" == "83.9"


def test_c10_attention_flops():
    problem = dict(n=1024, d=64, heads=16, batch=64)
    forward = attention(**problem, flow="flash")
    assert forward.flops == 274_877_906_944
    for flow, times, total in (("naive", 2, "824.6"), ("flash", 2.5, "962.1")):
        backward = attention(**problem, flow=flow, backward=True)
        assert backward.flops == times * forward.flops
        assert f"{(forward + backward).flops / 1e9:.1f}" == total
    half = attention(**problem, flow="flash", causal=True).flops / forward.flops
    assert half == (1024 + 1) / (2 * 1024)  # about half: the pairs that are really visible


def test_c12_a_multiply_add_is_two_flops_and_a_peak_counts_it_so():
    assert matmul(3, 5, 7).flops == 2 * 3 * 5 * 7
    h100 = GPUS["H100 SXM"]  # 132 SMs · 4 tensor cores · 512 multiply-adds a clock · 1.83 GHz
    assert h100.peak["fp16"] == pytest.approx(2 * 132 * 4 * 512 * 1.83e9, rel=1e-3)


def test_c13_intensities_with_a_published_answer():
    n, d = 4096, 128
    softmax = Cost(flops=3 * n * n)
    attn = attention(n, d, flow="naive") + softmax
    assert attn.intensity == (4 * n**2 * d + 3 * n**2) / (8 * n**2 + 8 * n * d)
    assert f"{attn.intensity:.1f}" == "62.4"
    a10 = replace(GPUS["A100 40GB"], name="A10", peak={"fp16": 125e12}, bandwidth=600e9)
    assert f"{ridge(a10):.1f}" == "208.3"
    assert bound(attn, a10) == "memory"
    assert f"{time(decode_step(weight_bytes=7e9 * 2), a10) * 1e3:.1f}" == "23.3"
    assert f"{matmul(4096, 1, 4096).intensity:.4f}" == "0.9995"


def test_c14_critical_batch_sizes():
    def critical(peak, bandwidth, itemsize):
        tpu = replace(GPUS["A100 40GB"], peak={"int8": peak}, bandwidth=bandwidth)
        one = decode_step(weight_bytes=10**9, itemsize=itemsize)
        return ridge(tpu, "int8") / one.intensity

    assert f"{critical(3.94e14, 8.2e11, 1):.1f}" == "240.2"
    assert f"{critical(3.94e14, 8.1e11, 1):.1f}" == "243.2"
    assert f"{critical(1.97e14, 8.2e11, 1):.1f}" == "120.1"


def test_c15_row_softmax_one_kernel_a_step():
    m, n = 1823, 781
    element, row = elementwise(m * n, itemsize=1), elementwise(m, itemsize=1)
    reduce = Cost(read=element.read, written=row.written)
    spread = Cost(read=element.read + row.read, written=element.written)
    naive = reduce + spread + element + reduce + spread  # max, −, exp, Σ, ÷
    assert (naive.read, naive.written) == (5 * m * n + 2 * m, 3 * m * n + 2 * m)
    assert f"{naive.bytes / element.bytes:.1f}" == "4.0"


def test_c15_rms_norm_between_two_types():
    n = 4096 * 10240
    up = elementwise(n, outputs=0, itemsize=2) + elementwise(n, inputs=0, itemsize=4)
    down = elementwise(n, outputs=0, itemsize=4) + elementwise(n, inputs=0, itemsize=2)
    apart = up + 2 * elementwise(n, itemsize=4) + down
    fused = elementwise(n, itemsize=2)
    assert (f"{apart.bytes / 1e6:.1f}", f"{fused.bytes / 1e6:.1f}") == ("1174.4", "167.8")
    assert apart.bytes / fused.bytes == 7


def test_c15_add_relu_multiply():
    ops = [Op("add", reads=1), "relu", Op("multiply", reads=1)]
    apart, fused = (chain(ops, 100, fused=f, itemsize=1) for f in (False, True))
    assert (apart.bytes, fused.bytes) == (800, 400)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*OPS, Op(reads=3, stored=5), Op(flops=7)]), min_size=1, max_size=6),
    st.integers(0, 99),
    st.sampled_from([1, 2, 4]),
)
def test_fusion_saves_a_write_and_a_read_at_each_hand_over(ops, n, itemsize):
    apart, fused = (chain(ops, n, fused=f, itemsize=itemsize) for f in (False, True))
    handed_over = (len(ops) - 1) * n * itemsize
    assert apart.flops == fused.flops
    assert apart.read - fused.read == apart.written - fused.written == handed_over
    assert chain(ops[:1], n, fused=True) == chain(ops[:1], n, fused=False)


# Attention


@pytest.mark.parametrize("causal", [False, True])
def test_visible_pairs_are_the_pairs_of_the_definition(causal):
    for n, n_kv in product(range(9), range(9)):
        seen = [(i, j) for i in range(n) for j in range(n_kv) if not causal or j <= i + n_kv - n]
        assert visible_pairs(n, n_kv, causal) == len(seen)


@pytest.mark.parametrize("flow", ["naive", "flash", "tiled"])
@pytest.mark.parametrize("backward", [False, True])
def test_flops_are_the_products_over_the_visible_pairs(flow, backward):
    pairs, d, heads = visible_pairs(37, 53, True), 16, 6
    products = {"naive": 4, "flash": 5, "tiled": 7}[flow] if backward else 2
    got = attention(37, d, n_kv=53, heads=heads, kv_heads=2, flow=flow, backward=backward,
                    causal=True, batch=3)  # fmt: skip
    assert got.flops == 3 * heads * products * 2 * d * pairs


def test_naive_and_flash_bytes_by_hand():
    n, n_kv, d, heads, kv_heads = 10, 7, 4, 6, 2
    q, k, s, row = heads * n * d * 2, kv_heads * n_kv * d * 2, heads * n * n_kv * 2, heads * n * 4
    problem = dict(n_kv=n_kv, heads=heads, kv_heads=kv_heads)

    def moved(**options):
        c = attention(n, d, **problem, **options)
        return c.read, c.written

    assert moved(flow="naive") == (q + k + s + s + k, s + s + q)
    assert moved(flow="flash") == (q + k + k, q)
    assert moved(flow="flash", backward=True) == (q + k + k + q + q + row, q + k + k)
    five_kernels = [
        ((s, q), k),  # dV = PᵀdO
        ((q, k), s),  # dP = dOVᵀ
        ((s, s), s),  # dS = P ∘ (dP − D)
        ((s, k), q),  # dQ = dS K
        ((s, q), k),  # dK = dSᵀQ
    ]
    assert moved(flow="naive", backward=True) == (
        sum(sum(read) for read, _ in five_kernels),
        sum(written for _, written in five_kernels),
    )


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64), st.booleans(), st.booleans())
def test_tiles_read_at_least_what_the_ideal_reads_and_one_tile_is_ideal(
    n, n_kv, d, causal, backward
):
    problem = dict(n=n, n_kv=n_kv, d=d, causal=causal, backward=backward)
    ideal = attention(**problem, flow="flash")
    smaller = attention(**problem, flow="tiled", block_q=16, block_kv=16)
    assert smaller.written >= ideal.written
    if not causal:
        one = attention(**problem, flow="tiled", block_q=n, block_kv=n_kv)
        assert smaller.read >= one.read >= ideal.read
        if not backward:
            assert one == ideal


def test_heads_and_batches_multiply():
    problem = dict(n=100, d=32, flow="tiled", causal=True, backward=True)
    assert attention(**problem, heads=6, batch=4) == 24 * attention(**problem)


def test_grouped_heads_share_k_and_v_where_a_kernel_reads_each_operand_once():
    shared = attention(64, 32, flow="flash", heads=8, kv_heads=2)
    own = attention(64, 32, flow="flash", heads=8)
    assert own.read - shared.read == 2 * 6 * 64 * 32 * 2
    assert own.flops == shared.flops


def test_c16_sram_counts_elements():
    assert paper_tiles(96 * KiB, 64) == (64, 192)
    assert paper_tiles(96 * KiB, 64, itemsize=1) == (64, 384)  # what counting bytes would give
    assert paper_tiles(1, 64) == (1, 1)
    q_tile = tile_bytes(128, 0, 512)
    assert q_tile == 131_072
    assert q_tile > GPUS["RTX 4090"].smem_per_block > GPUS["T4"].smem_per_block
    assert tile_bytes(128, 64, 128) == 64 * KiB  # Q of 32 KiB, K and V of 16 KiB each


def test_c16_hbm_traffic_goes_with_one_over_m():
    n, d = 2**14, 64

    def reads(m):  # elements of K and V
        whole = attention(n, d, flow="tiled", block_q=m // (4 * d), block_kv=64)
        return (whole.read - elementwise(n * d).read) // 2

    assert reads(2**15) == 2 * reads(2**16) == 8 * n**2 * d**2 // 2**15


# The KV cache


@pytest.mark.parametrize(
    ("model", "layers", "kv_heads", "head_dim", "expected"),
    [
        ("Llama-2-7B", 32, 32, 128, 524_288),
        ("Llama-2-13B", 40, 40, 128, 819_200),
        ("Llama-2-70B, Llama-3-70B", 80, 8, 128, 327_680),
        ("Llama-3-8B, Mistral-7B, Mixtral", 32, 8, 128, 131_072),
        ("BLOOM", 70, 112, 128, 4_014_080),
        ("Qwen3-4B (C4)", 36, 8, 128, 147_456),  # head_dim is not 2560 / 32 = 80
    ],
)
def test_c1_c4_bytes_a_token(model, layers, kv_heads, head_dim, expected):
    assert kv_cache_bytes(layers=layers, kv_heads=kv_heads, head_dim=head_dim) == expected


def test_c1_llama_2_7b_at_2048_tokens():
    total = kv_cache_bytes(layers=32, kv_heads=32, head_dim=128, tokens=2048)
    assert (total, f"{total / 1e9:.4f}") == (GiB, "1.0737")


def test_c3_a_published_table_with_one_wrong_row():
    def holds(model, row):
        sizes = [kv_cache_bytes(**model, tokens=t * KiB) / GiB for t in (4, 32, 128)]
        return sizes == pytest.approx(row)

    assert holds(LLAMA_3_8B, [0.5, 4, 16])
    assert not holds(LLAMA_3_70B, [5, 40, 160])
    assert holds(LLAMA_3_70B, [1.25, 10, 40])
    assert f"{kv_cache_bytes(**LLAMA_3_70B, tokens=128 * KiB) / 1e9:.2f}" == "42.95"


def test_c5_latent_and_windowed_caches():
    deepseek_v3 = dict(layers=61, latent_dim=512, rope_dim=64)
    assert latent_cache_bytes(**deepseek_v3) == 70_272
    assert latent_cache_bytes(**deepseek_v3, tokens=10, batch=3) == 70_272 * 30

    def gpt_oss_120b(tokens):
        half = dict(layers=18, kv_heads=8, head_dim=64, tokens=tokens)
        return kv_cache_bytes(**half) + kv_cache_bytes(**half, window=128)

    assert gpt_oss_120b(1) == 73_728
    assert gpt_oss_120b(128) == 128 * 73_728
    assert gpt_oss_120b(131_072) == 4_836_556_800


def test_c6_what_the_formula_counts():
    assert kv_cache_bytes(layers=1, kv_heads=1, head_dim=128) == 512  # a head, not a layer
    assert kv_cache_bytes(layers=1, kv_heads=32, head_dim=128) == 16_384
    assert kv_cache_bytes(layers=32, kv_heads=32, head_dim=128, tokens=32 * KiB) == 16 * GiB


def test_quantised_caches_are_whole_bytes():
    assert kv_cache_bytes(**LLAMA_3_8B, itemsize=0.5) == 32_768
    assert kv_cache_bytes(layers=1, kv_heads=1, head_dim=1, itemsize=0.5, tokens=3) == 3
    assert latent_cache_bytes(layers=1, latent_dim=1, rope_dim=0, itemsize=0.5) == 1


def test_decode_step_by_hand():
    step = decode_step(
        weight_bytes=10**9, kv_bytes=10**6, batch=8, itemsize=0.5, kv_itemsize=1, queries_per_kv_head=4
    )  # fmt: skip
    assert step.read == 10**9 + 8 * 10**6 and step.written == 0
    assert step.flops == 2 * 8 * 2 * 10**9 + 2 * 8 * 4 * 10**6
    assert decode_step(weight_bytes=16e9).intensity == 1


def test_decode_reads_its_cache_as_attention_does():
    """One query a head: the decode step's cache part is attention's own FLOPs and K, V bytes."""
    n, shape = 1000, dict(layers=1, kv_heads=8, head_dim=128)
    attn = attention(1, 128, n_kv=n, heads=32, kv_heads=8, flow="flash")
    cache = kv_cache_bytes(**shape, tokens=n)
    step = decode_step(weight_bytes=0, kv_bytes=cache, queries_per_kv_head=4)
    assert step.flops == attn.flops
    assert step.read == attn.read - 32 * 128 * 2


# What is no size, and what is very large


CALLS = {
    "elementwise": (elementwise, dict(n=8, inputs=1, outputs=1, flops_per_element=1, itemsize=2)),
    "chain": (chain, dict(ops=["bias"], n=8, fused=True, itemsize=2)),
    "matmul": (matmul, dict(m=2, n=3, k=4, itemsize=2)),
    "visible_pairs": (visible_pairs, dict(n=4, n_kv=5, causal=True)),
    "attention": (
        attention,
        dict(n=8, d=4, flow="tiled", n_kv=8, heads=2, kv_heads=1, batch=1, itemsize=2, block_q=2,
             block_kv=2),
    ),
    "tile_bytes": (tile_bytes, dict(block_q=2, block_kv=2, d=4, itemsize=2)),
    "paper_tiles": (paper_tiles, dict(sram_bytes=100, d=4, itemsize=2)),
    "kv_cache_bytes": (
        kv_cache_bytes,
        dict(layers=1, kv_heads=1, head_dim=8, tokens=1, batch=1, itemsize=2, window=4),
    ),
    "latent_cache_bytes": (
        latent_cache_bytes,
        dict(layers=1, latent_dim=8, rope_dim=1, tokens=1, batch=1, itemsize=2),
    ),
    "decode_step": (
        decode_step,
        dict(weight_bytes=8, kv_bytes=8, batch=1, itemsize=2, kv_itemsize=2, queries_per_kv_head=1),
    ),
    "Cost": (Cost, dict(flops=1, read=2, written=3)),
}  # fmt: skip
SIZES = [
    pytest.param(f, options, name, id=f"{call}-{name}")
    for call, (f, options) in CALLS.items()
    for name, value in options.items()
    if isinstance(value, int) and not isinstance(value, bool)
]


@pytest.mark.parametrize(("f", "options", "name"), SIZES)
@pytest.mark.parametrize("bad", [-1, -0.5, "8", float("nan"), float("inf"), 1j, [8]])
def test_what_is_no_size_is_refused_by_name(f, options, name, bad):
    with pytest.raises(ValueError, match=rf"^{name} must be ") as error:
        f(**options | {name: bad})
    assert repr(bad) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("f", "options", "name"), SIZES)
def test_a_part_of_an_element_is_refused_or_rounded_to_whole_bytes(f, options, name):
    if name.endswith("itemsize") and f in (kv_cache_bytes, latent_cache_bytes, decode_step):
        assert f(**options | {name: 0.5}) is not None
    else:
        with pytest.raises(ValueError, match=name):
            f(**options | {name: 1.5})


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint64, np.float32, float, Fraction])
@pytest.mark.parametrize(("f", "options"), CALLS.values(), ids=CALLS)
def test_whole_numbers_of_any_kind_give_python_integers(f, options, kind):
    sizes = {k: kind(v) for k, v in options.items() if type(v) is int}
    result = f(**options | sizes)
    assert result == f(**options)
    numbers = (
        (result.flops, result.read, result.written) if isinstance(result, Cost) else
        result if isinstance(result, tuple) else (result,)
    )  # fmt: skip
    assert all(type(x) is int for x in numbers)


def test_sizes_beyond_any_machine_do_not_overflow():
    n = np.int32(2**31 - 1)
    exact = (2**31 - 1) ** 2
    assert matmul(n, n, 1).flops == 2 * exact
    assert attention(n, np.int8(127), flow="tiled").flops == 4 * 127 * exact
    assert attention(10**30, 128, flow="tiled").bytes > 10**55
    assert attention(10**30, 128, flow="flash", causal=True).flops == (
        4 * 128 * (10**30 * (10**30 + 1) // 2)
    )
    assert decode_step(weight_bytes=10**30).flops == 10**30
    assert (np.int64(3) * Cost(2**62)).flops == 3 * 2**62


@pytest.mark.parametrize("sizes", [dict(n=0), dict(n_kv=0), dict(batch=0), dict(n=0, n_kv=0)])
@pytest.mark.parametrize("flow", ["naive", "flash", "tiled"])
@pytest.mark.parametrize("backward", [False, True])
def test_nothing_costs_no_flops(sizes, flow, backward):
    c = attention(**{"n": 4, "d": 8} | sizes, flow=flow, backward=backward)
    assert c.flops == 0
    if "batch" in sizes or len(sizes) == 2:
        assert c == Cost()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention(8, 4, flow="fused"), "one of naive, ideal, tiled"),
        (lambda: attention(8, 4, flow="flash", block_q=8), "Only flow='tiled' has block sizes"),
        (lambda: attention(8, 4, flow="naive", block_kv=8), "Only flow='tiled' has block sizes"),
        (lambda: attention(8, 4, flow="tiled", block_q=0), "block_q must be a whole number, 1"),
        (lambda: attention(8, 0, flow="flash"), "d must be a whole number, 1 or more"),
        (lambda: attention(8, 4, flow="flash", heads=4, kv_heads=3), "multiple of kv_heads (3)"),
        (lambda: attention(8, 4, flow="flash", heads=4, kv_heads=0), "kv_heads must be"),
        (lambda: chain([], 8, fused=True), "at least one operation"),
        (lambda: chain(["bais"], 8, fused=True), "No operation is called 'bais'. Known: bias"),
        (lambda: chain([["bias"]], 8, fused=True), "No operation is called ['bias']"),
        (lambda: 2.5 * Cost(1), "times must be a whole number"),
        (lambda: Cost(1) * -1, "times must be a whole number"),
    ],
)
def test_refusals_name_the_cause_and_the_remedy(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_one_name_is_a_chain_of_one():
    assert chain("residual", 5, fused=True) == chain(["residual"], 5, fused=True)


def test_flash_is_another_word_for_ideal():
    for backward in (False, True):
        a, b = (attention(100, 64, flow=f, backward=backward) for f in ("ideal", "flash"))
        assert a == b
