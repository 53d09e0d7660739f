"""The 32-bank model against a simulation that serves one word per bank and turn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course import banks


def served(words):
    """Turn by turn: each bank picks one word and hands it to every lane that wants it."""
    waiting, count = list(words), 0
    while waiting:
        picked = {}
        for word in waiting:
            picked.setdefault(word % 32, word)
        waiting = [word for word in waiting if picked[word % 32] != word]
        count += 1
    return count


@given(st.lists(st.integers(0, 4000), min_size=32, max_size=32))
def test_against_the_simulation(words):
    assert banks.turns(words) == served(words)


@pytest.mark.parametrize("stride", range(1, 70))
def test_a_stride_takes_what_it_shares_with_32(stride):
    assert banks.turns(banks.strided(stride)) == np.gcd(stride, 32)


def test_one_word_for_all_is_one_turn():
    assert banks.turns([7] * 32) == 1


@pytest.mark.parametrize("col", range(32))
def test_padding_and_swizzling_free_every_column(col):
    assert banks.turns(banks.column(col)) == 32
    assert banks.turns(banks.column(col, width=33)) == banks.turns(banks.swizzled(col)) == 1


@pytest.mark.parametrize("width", [32, 64])
def test_a_swizzled_tile_keeps_every_word_once_and_rows_stay_free(width):
    places = [banks.swizzled(col, width=width) for col in range(width)]
    assert sorted(np.ravel(places)) == list(range(32 * width))
    for row in range(32):
        assert banks.turns(places[col][row] for col in range(32)) == 1
