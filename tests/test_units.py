"""Numbers as the pages print them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.units import binary, decimal, seconds


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (33_554_432, "33.6 MB"),
        (138_412_032, "138 MB"),
        (80e9, "80 GB"),
        (-5e6, "-5 MB"),
        (999.4, "999 B"),
        (999.5, "1 kB"),  # what rounds up to the next unit is printed in it
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1e30, "1000000000000 EB"),  # never an exponent in the last unit either
        (999.9e18, "1000 EB"),
        (np.float32(2e6), "2 MB"),
        (10**21, "1000 EB"),
    ],
)
def test_decimal(x, text):
    assert decimal(x) == text


def test_decimal_with_other_units_and_digits():
    assert decimal(9.894e14, "FLOP/s") == "989 TFLOP/s"
    assert decimal(3.35e12, "B/s") == "3.35 TB/s"
    assert decimal(989_400, "FLOP/s", digits=4) == "989.4 kFLOP/s"
    assert decimal(9.96e3, digits=2) == "10 kB"


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (1000, "1000 B"),
        (1023, "1023 B"),
        (1023.9, "1 KiB"),
        (1024, "1 KiB"),
        (1_048_575, "1 MiB"),
        (4_194_304, "4 MiB"),
        (131_072, "128 KiB"),
        (80e9, "74.5 GiB"),  # C9 iv: 80 and 141 GB are not 80 and 141 GiB
        (141e9, "131 GiB"),
        (2**60, "1 EiB"),
        (-(2**21), "-2 MiB"),
    ],
)
def test_binary(x, text):
    assert binary(x) == text


def test_c9_gigabytes_are_not_gibibytes():
    assert (binary(80e9, digits=4), binary(141e9, digits=4)) == ("74.51 GiB", "131.3 GiB")


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0, "0 ns"),
        (4.132e-5, "41.3 µs"),
        (1.252e-6, "1.25 µs"),
        (4.776e-3, "4.78 ms"),
        (9.999e-4, "1 ms"),
        (0.99999, "1 s"),
        (59.99, "60 s"),
        (1234, "1234 s"),
        (2e-10, "0.2 ns"),
        (-1e-3, "-1 ms"),
    ],
)
def test_seconds(x, text):
    assert seconds(x) == text


PREFIXES = {
    decimal: {prefix: 1000.0**i for i, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    binary: {
        prefix: 1024.0**i for i, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    },
}


@pytest.mark.parametrize("show", [decimal, binary])
@given(x=st.floats(1, 1e18), digits=st.integers(2, 6))
def test_what_is_printed_reads_back_as_the_number(show, x, digits):
    number, unit = show(x, digits=digits).split(" ")
    value = float(number) * PREFIXES[show][unit.removesuffix("B")]
    assert value == pytest.approx(x, rel=0.51 * 10.0 ** (1 - digits))
    assert "e" not in number
    assert 1 <= float(number) < 1024


@pytest.mark.parametrize("show", [decimal, binary, seconds])
@pytest.mark.parametrize("x", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_amount_is_refused(show, x):
    with pytest.raises(ValueError, match="no amount"):
        show(x)
