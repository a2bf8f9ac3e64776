"""Public case G71 (cases.md): wrong only at a large EP degree, found by integer tags."""

import numpy as np
import pytest

from reference.comparison.compare import RowKeys, RowStream, compare
from reference.config import EPConfig
from reference.dispatch import dispatch
from reference.handle import DispatchMode
from tests.reference.exchange import random_topk

RANKS, TOKENS, TOPK = 32, 2, 4
CONFIG = EPConfig(ep_size=RANKS, num_experts=64, num_topk=TOPK, hidden=128, num_max_tokens_per_rank=TOKENS)
ROUTING = random_topk(CONFIG, np.random.default_rng(71), tokens=[TOKENS] * RANKS)


def tagged():
    """Dispatch rows whose columns say source rank, token and column; return received rows and their keys."""
    x = []
    for rank in range(RANKS):
        rows = np.tile(np.arange(CONFIG.hidden, dtype=np.float32), (TOKENS, 1))
        rows[:, 0], rows[:, 1] = rank, np.arange(TOKENS)
        x.append(rows)
    results, handles = dispatch(CONFIG, ROUTING, x, mode=DispatchMode(edition="nvidia-v2", expand=False))
    return [result.recv_x.copy() for result in results], handles


def report_of(rank, harm):
    """Compare what was received with the same after `harm` changed the rows of one rank."""
    right, _ = tagged()
    wrong = [rows.copy() for rows in right]
    harm(wrong[rank])
    keys = [RowKeys(src_rank=rows[:, 0].astype(int), src_token=rows[:, 1].astype(int)) for rows in right]
    stream = RowStream(fields=("recv_x",), expected=keys, actual=keys, name="received")
    return right[rank], compare(
        [{"recv_x": rows} for rows in right], [{"recv_x": rows} for rows in wrong], streams=[stream]
    )


def names(row):
    """Return the source of a row, off its tags."""
    return int(row[0]), int(row[1])


def test_tags_come_through_a_dispatch_of_32_ranks():
    """Every received row names a rank and token that chose this rank, each once."""
    received, _ = tagged()
    owner = CONFIG.expert_ranks()
    for rank, rows in enumerate(received):
        pairs = {(int(row[0]), int(row[1])) for row in rows}
        chose = {
            (src, token)
            for src, ids in enumerate(ROUTING.topk_idx)
            for token in range(TOKENS)
            if rank in owner[ids[token]]
        }
        assert (len(rows), pairs) == (len(chose), chose)


def test_g71_without_harm_the_report_is_empty():
    """The comparison has nothing to say of a right exchange."""
    assert report_of(20, lambda rows: None)[1].is_empty


def test_g71_a_wrong_row_is_named_as_exchanged():
    """Two rows that changed places at rank 20: whole rows of legal tags, both sources named."""

    def exchange(rows):
        rows[[0, -1]] = rows[[-1, 0]]

    right, report = report_of(20, exchange)
    [found] = report.mismatches
    assert (found.kind, found.rank) == ("swapped_rows", 20)
    assert {found.row, found.other_row} == {names(right[0]), names(right[-1])}


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "nonfinite"), (77.0, "value")])
def test_g71_a_damaged_row_is_told_apart_and_the_pair_is_named(value, kind):
    """One column of one row at rank 31: no exchange, one element, and the pair (source, 31)."""

    def damage(rows):
        rows[1, 5] = value

    right, report = report_of(31, damage)
    [found] = report.mismatches
    [count] = report.counts
    assert (found.kind, found.rank, found.row, found.index) == (kind, 31, names(right[1]), (1, 5))
    assert (dict(count.by_rank), dict(count.by_src_rank)) == ({31: 1}, {names(right[1])[0]: 1})


def test_g71_a_row_of_another_step_keeps_its_tags_and_is_still_seen():
    """A row that holds the tags of a source which never chose this rank is wrong in its first two columns."""

    def stale(rows):
        rows[0, :2] = rows[0, 0] + 1, 1 - rows[0, 1]

    right, report = report_of(7, stale)
    [found] = report.mismatches
    assert (found.kind, found.row, found.index) == ("value", names(right[0]), (0, 0))
    assert "2 of 128 columns of this row differ" in found.note
