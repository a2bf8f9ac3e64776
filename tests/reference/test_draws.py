"""Raw draws: exactly uniform, and the same on every machine."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.routing.draws import Draws
from tests.reference.goodness_of_fit import check_frequencies, frequencies


@pytest.mark.parametrize(
    ("limit", "width", "count"),
    [
        (6, 3, 60_000),  # whole-row rejection, 120 ordered tuples
        (5, 4, 60_000),  # insertion, 120 ordered tuples, biased lanes to drop
        (8, 2, 30_000),  # power of two: no lane is dropped
        (7, 1, 30_000),
        (4, 4, 24_000),  # all of them: a permutation
    ],
)
def test_every_ordered_tuple_is_equally_likely(limit, width, count):
    tuples = list(permutations(range(limit), width))
    seen = frequencies(Draws(11).distinct(limit, width, count), tuples)
    check_frequencies(seen, [1 / len(tuples)] * len(tuples))


@pytest.mark.parametrize("limit", [1, 3, 2**12, 2**12 + 1, 40_000])
def test_bounded_values_cover_their_range_evenly(limit):
    values = Draws(5).below(limit, 200_000)
    assert values.min() >= 0
    assert values.max() < limit
    bins = min(limit, 10)
    check_frequencies(np.bincount(values * bins // limit, minlength=bins), edges(limit, bins))


def edges(limit, bins):
    """Exact share of each bin of 0 .. limit - 1."""
    return (np.bincount(np.arange(limit) * bins // limit, minlength=bins) / limit).tolist()


def test_biased_lanes_are_dropped_exactly():
    # 2^16 mod 3 = 1: of 65,536 lanes one is dropped, and 21,845 are left for each value.
    lanes = np.arange(2**16, dtype=np.uint16)

    class AllLanes(Draws):
        def lanes16(self, count):
            return lanes[:count]

    values, keep = AllLanes(0).bounded(3, 2**16)
    assert np.bincount(values[keep]).tolist() == [21845] * 3


@given(st.integers(1, 40), st.data())
def test_tuples_never_repeat_a_number(limit, data):
    width = data.draw(st.integers(1, limit))
    tuples = Draws(data.draw(st.integers(0, 99))).distinct(limit, width, 20)
    assert tuples.shape == (width, 20)
    assert all(len(set(column)) == width for column in tuples.T.tolist())
    assert tuples.min() >= 0
    assert tuples.max() < limit


def test_streams_of_other_keys_differ():
    words = {tuple(Draws(1, *key).words(4).tolist()) for key in [(), (0,), (1,), (0, 0), (0, 1)]}
    assert len(words) == 5


def test_words_are_the_published_stream():
    # Pinned: another value means that seeds no longer name the same routing.
    assert [hex(w) for w in Draws(0, 0, 0).words(2).tolist()] == PINNED_WORDS
    assert Draws(0, 0, 0).lanes16(8).tolist() == [
        int(w, 16) >> shift & 0xFFFF for w in PINNED_WORDS for shift in (0, 16, 32, 48)
    ]


PINNED_WORDS = ["0x90ac79b30468d47c", "0xef788bcae8d45db2"]


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_coins_fall_with_their_probability(probability):
    count = 100_000
    heads = int(Draws(2).coins(probability, count).sum())
    check_frequencies([heads, count - heads], [probability, 1 - probability])
