"""Ridge, attainable rate, time and bound, by hand and against one another; cases C7, C9, C14."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.cost import Cost, attention, decode_step, elementwise, matmul
from course.hardware import GPUS, Gpu
from course.roofline import (
    attainable,
    bandwidth_utilisation,
    bound,
    compute_time,
    memory_time,
    ridge,
    time,
    utilisation,
)
from course.units import decimal

ROUND = replace(GPUS["laptop GPU"], peak={"fp16": 100e12, "fp8": 200e12}, bandwidth=1e12)
WORK = st.integers(0, 10**18)


def test_by_hand():
    waits, works = Cost(flops=10**9, read=3 * 10**9, written=10**9), Cost(10**12, 10**9)
    assert ridge(ROUND) == 100 and ridge(ROUND, "fp8") == 200
    assert (memory_time(waits, ROUND), compute_time(waits, ROUND)) == (4e-3, 1e-5)
    assert (time(waits, ROUND), bound(waits, ROUND)) == (4e-3, "memory")
    assert (time(works, ROUND), bound(works, ROUND)) == (1e-2, "compute")
    assert (time(works, ROUND, "fp8"), bound(works, ROUND, "fp8")) == (5e-3, "compute")
    assert attainable(10, ROUND) == 1e13
    assert attainable(1e9, ROUND) == attainable(float("inf"), ROUND) == 100e12
    assert attainable(0, ROUND) == 0


def test_at_the_ridge_both_take_equally_long():
    c = Cost(flops=100 * 10**6, read=10**6)
    assert c.intensity == ridge(ROUND)
    assert memory_time(c, ROUND) == compute_time(c, ROUND) == time(c, ROUND)
    assert bound(c, ROUND) == "compute"
    assert bound(c + Cost(read=1), ROUND) == "memory"


def test_a_name_is_no_gpu():
    with_gpu = [
        ridge,
        lambda gpu: attainable(1, gpu),
        lambda gpu: memory_time(Cost(), gpu),
        lambda gpu: compute_time(Cost(), gpu),
        lambda gpu: time(Cost(), gpu),
        lambda gpu: bound(Cost(), gpu),
        lambda gpu: utilisation(1e9, gpu),
        lambda gpu: bandwidth_utilisation(1e9, gpu),
    ]
    for call in with_gpu:
        with pytest.raises(ValueError, match=r"an entry of GPUS, .* not 'H100 SXM'"):
            call("H100 SXM")


def test_nothing_takes_no_time():
    assert time(Cost(), ROUND) == 0


@pytest.mark.parametrize("name", GPUS)
@given(flops=WORK, read=WORK, written=WORK)
def test_time_bound_and_attainable_rate_agree(name, flops, read, written):
    gpu, c = GPUS[name], Cost(flops, read, written)
    t = time(c, gpu)
    assert t >= memory_time(c, gpu) and t >= compute_time(c, gpu)
    slow = {"memory": memory_time, "compute": compute_time}[bound(c, gpu)](c, gpu)
    assert t == slow
    if c.bytes and c.flops:
        assert c.flops / t == pytest.approx(attainable(c.intensity, gpu))
        assert (bound(c, gpu) == "memory") == (c.intensity < ridge(gpu)) or (
            c.intensity == pytest.approx(ridge(gpu))
        )


def test_batching_decode_moves_it_to_the_right_until_it_computes():
    """C14: with FP16 weights one token a sequence is 1 FLOP a byte, so the ridge is the batch."""
    h100 = GPUS["H100 SXM"]
    bounds = [bound(decode_step(weight_bytes=16e9, batch=b), h100) for b in (1, 295, 296, 1024)]
    assert bounds == ["memory", "memory", "compute", "compute"]


def test_a_matmul_crosses_the_ridge_as_it_grows():
    sizes = (128, 512, 1024, 8192)
    bounds = [bound(matmul(n, n, n), GPUS["H100 SXM"]) for n in sizes]
    assert bounds == ["memory", "memory", "compute", "compute"]


def test_c7_utilisation_is_of_the_dense_peak():
    h100, h200, pcie = (GPUS[name] for name in ("H100 SXM", "H200", "H100 PCIe"))
    assert f"{utilisation(9600 * 0.05e12, h100):.1%}" == "48.5%"  # not 24.3 %
    assert f"{utilisation(420e12, h200):.1%}" == "42.4%"  # not 21.2 %
    a100 = replace(GPUS["A100 80GB"], bandwidth=2.0e12)
    assert bandwidth_utilisation(700e9, a100) == 0.35  # printed as 70 % in a book
    assert utilisation(756.5e12, pcie) == 1
    with pytest.raises(ValueError, match="200% of H100 PCIe's dense fp16 peak"):
        utilisation(1513e12, pcie)


def test_c7_more_than_all_is_flagged_with_what_to_check():
    with pytest.raises(ValueError, match=r"Check the timing .* the count and the units"):
        utilisation(9.9e14, GPUS["H100 SXM"])
    with pytest.raises(ValueError, match="of H200's memory bandwidth"):
        bandwidth_utilisation(4.9e12, GPUS["H200"])


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("share", [utilisation, bandwidth_utilisation])
def test_a_rate_that_is_none_is_refused(rate, share):
    with pytest.raises(ValueError, match="A rate must be finite and 0 or more"):
        share(rate, ROUND)


def test_c13_naive_attention_is_left_of_every_ridge_however_it_is_counted():
    """62.4 with 3 FLOP per score; d/2 in the limit; 1 to 10 for the softmax or untidy code."""
    n, d = 4096, 128
    naive = attention(n, d, flow="naive")
    assert f"{naive.intensity:.2f}" == "62.06"
    assert f"{(naive.flops + 3 * n * n) / naive.bytes:.1f}" == "62.4"
    assert attention(10**6, d, flow="naive").intensity == pytest.approx(d / 2, rel=1e-3)
    untidy = attention(n, 64, flow="naive", itemsize=4) + Cost(0, 12 * n * n, 12 * n * n)
    low = [elementwise(1, flops_per_element=k).intensity for k in (5, 9)]
    low += [attention(n, 16, flow="naive").intensity, untidy.intensity]
    assert all(1 <= x <= 10 for x in low)
    assert untidy.bytes == 10 * n * n * 4 + 4 * n * 64 * 4
    a10 = Gpu("A10", None, {"fp16": 125e12}, 600e9, None, None, None, None, "C13")
    assert f"{ridge(a10):.1f}" == "208.3" and bound(naive, a10) == "memory"


def test_c14_where_splitting_in_two_directions_starts_to_pay():
    """128 · (3/4)² = 72 chips, once printed as 81: found by trying, from the bytes on the wire.

    A feed-forward layer, D wide inside and F = 4D between, on N chips with three links each. Split
    in one direction, D numbers per token are gathered and scattered over three links: 4D/3. Split
    in two, X of the N one way: two collectives of 2D/X, two of F·X/N over two links.
    """
    width, wide = Fraction(1), Fraction(4)

    def two_ways(chips):
        least = (width / wide * 2 * chips) ** 0.5  # X where both halves are equal
        return 4 * width / least + 2 * wide * least / chips

    pays = [chips for chips in range(1, 200) if two_ways(chips) < float(4 * width / 3) - 1e-12]
    assert min(pays) - 1 == 72 == 128 * Fraction(3, 4) ** 2


def test_c9_units():
    assert decimal(320 * 10**6 / 1e-3, "B/s") == "320 GB/s"  # 10e9 is ten giga: it would print 32
    with pytest.raises(ValueError, match=r"bandwidth in bytes/s .* 3350"):  # GB/s inside min()
        replace(GPUS["H100 SXM"], bandwidth=3350)
    with pytest.raises(ValueError, match=r"fp16 peak in FLOP/s .* 989.4"):
        replace(GPUS["H100 SXM"], peak={"fp16": 989.4})


@pytest.mark.parametrize("intensity", [-1, float("nan"), -float("inf")])
def test_an_intensity_that_is_none_is_refused(intensity):
    with pytest.raises(ValueError, match="intensity must be 0 or more"):
        attainable(intensity, ROUND)


@pytest.mark.parametrize(
    "call",
    [
        lambda dtype: ridge(ROUND, dtype),
        lambda dtype: attainable(1, ROUND, dtype),
        lambda dtype: time(Cost(1, 1), ROUND, dtype),
        lambda dtype: bound(Cost(1, 1), ROUND, dtype),
        lambda dtype: utilisation(1, ROUND, dtype),
    ],
)
def test_a_data_type_without_a_peak_is_refused(call):
    with pytest.raises(ValueError, match=r"laptop GPU has no 'fp4' peak\. It has: fp16, fp8\."):
        call("fp4")
