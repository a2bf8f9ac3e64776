"""The checks of counts, ledgers and samplers reject what they must: each fault is planted once."""

import dataclasses

import numpy as np
import pytest

from reference.config import EPConfig
from reference.plan import count_rows
from reference.routing.draws import Draws
from reference.routing.generate import generate_topk
from tests.reference.counting import check_counts, check_ledger, slow_ledger
from tests.reference.goodness_of_fit import check_frequencies, check_proportion, frequencies

CONFIG = EPConfig(ep_size=3, num_experts=6, num_topk=3, hidden=128, num_max_tokens_per_rank=7)
TOPK = generate_topk(CONFIG, "uniform", tokens_per_rank=(7, 5, 3), seed=1, masked_ratio=0.2)


def changed(**edits):
    """Return the counts of the routing with the named fields edited."""
    counts = count_rows(CONFIG, TOPK)
    fields = {}
    for name, edit in edits.items():
        array = getattr(counts, name).copy()
        edit(array)
        fields[name] = array
    return dataclasses.replace(counts, **fields)


LOADS = count_rows(CONFIG, TOPK).expert_rows
UNEQUAL_EXPERTS = int(LOADS.argmin()), int(LOADS.argmax())


def add(place, amount):
    def edit(array):
        array[place] += amount

    return edit


def swap(a, b):
    def edit(array):
        array[a], array[b] = array[b].copy(), array[a].copy()

    return edit


def transpose(array):
    array[:] = array.T.copy()


def test_true_counts_and_ledger_pass():
    check_counts(CONFIG, TOPK, count_rows(CONFIG, TOPK))
    check_ledger(CONFIG, TOPK, slow_ledger(CONFIG, TOPK))


@pytest.mark.parametrize(
    "edits",
    [
        {"rows": add((0, 1), -1)},  # a lost token
        {"rows": add((1, 1), 1)},  # a duplicated row
        {"rows": transpose},  # src and dst taken for each other
        {"rows": swap((slice(None), 0), (slice(None), 1))},  # two columns swapped; row sums still right
        {"single_rows": add((0, 2), 1)},
        {"entries": add((2, 0), -1)},
        {"expert_rows": swap(*UNEQUAL_EXPERTS)},  # two experts swapped; the total still right
        {"expert_rows": add(3, 1)},
        {"num_tokens": add(1, -1)},
    ],
)
def test_wrong_counts_are_rejected(edits):
    with pytest.raises(AssertionError):
        check_counts(CONFIG, TOPK, changed(**edits))


def lost(rows):
    return rows[:-1]


def duplicated(rows):
    return [*rows, rows[0]]


def two_tokens_swapped_in_one_column(rows):
    # The first two rows of rank 0 in one column with experts of one rank: all counts stay right.
    a, b = next(
        (i, j)
        for i, x in enumerate(rows)
        for j, y in enumerate(rows)
        if x[0] == y[0] and x[2:4] == y[2:4] and x[4] != y[4]
    )
    experts = rows[a][4], rows[b][4]
    rows = list(rows)
    rows[a] = (*rows[a][:4], experts[1], *rows[a][5:])
    rows[b] = (*rows[b][:4], experts[0], *rows[b][5:])
    return rows


def lowest_master(rows):
    """Mark the first choice on a rank instead of the last: same counts, another master."""
    first = {}
    for row in rows:
        first.setdefault((row[0], row[1], row[3]), row[2])
    return [(*row[:6], first[row[0], row[1], row[3]] == row[2]) for row in rows]


def source_off_by_one(rows):
    return [((row[0] + 1) % 3, *row[1:]) for row in rows]


@pytest.mark.parametrize(
    "fault", [lost, duplicated, two_tokens_swapped_in_one_column, lowest_master, source_off_by_one]
)
def test_wrong_ledger_is_rejected(fault):
    rows = slow_ledger(CONFIG, TOPK)
    broken = fault(rows)
    assert broken != rows, "the fault did nothing"
    with pytest.raises(AssertionError):
        check_ledger(CONFIG, TOPK, broken)


PAIRS = [(a, b) for a in range(6) for b in range(6) if a != b]


def with_replacement_repaired(count):
    """Replace a repeat by its neighbour: no repeats, but not uniform."""
    first, second = Draws(4).below(6, count), Draws(5).below(6, count)
    return np.stack([first, np.where(second == first, (second + 1) % 6, second)])


def modulo(count):
    """Take an 8-bit lane modulo 20, then modulo 6: low numbers are favoured."""
    grid = (Draws(4).lanes16(3 * count) >> 8).astype(np.int64) % 20 % 6
    grid = grid.reshape(3, count)
    second = np.where(grid[1] == grid[0], grid[2], grid[1])
    keep = second != grid[0]
    return np.stack([grid[0], second])[:, keep]


def sorted_columns(count):
    """Sort each subset: subsets uniform, positions not."""
    return np.sort(Draws(4).distinct(6, 2, count), axis=0)


def too_regular(count):
    """List all pairs in turn: the frequencies are perfect, which chance never is."""
    return np.array([PAIRS[i % 30] for i in range(count)]).T


@pytest.mark.parametrize("sampler", [with_replacement_repaired, modulo, sorted_columns, too_regular])
def test_biased_sampler_is_rejected(sampler):
    counts = frequencies(sampler(60_000), PAIRS)
    with pytest.raises(AssertionError, match="chi-square"):
        check_frequencies(counts, [1 / 30] * 30)


def test_impossible_outcome_and_wrong_share_are_rejected():
    with pytest.raises(AssertionError, match="impossible"):
        check_frequencies([99, 1], [1.0, 0.0])
    with pytest.raises(AssertionError, match="expected"):
        check_proportion(5300, 10_000, 0.5)
