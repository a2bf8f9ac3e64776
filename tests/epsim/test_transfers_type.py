"""The type of all workloads: what it refuses, and what it says about itself."""

from dataclasses import replace

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.schedule.transfers import NEVER, Draft, pieces_of, split_evenly
from epsim.sim.transfers import TransferOptions, run_transfers
from tests.epsim.transfer_checks import machine


def three():
    """Two transfers in a row and a copy that waits for both."""
    draft = Draft(4)
    first = draft.add(0, 1, 100, label="first")
    second = draft.add(1, 2, 50, label="second", after=[first])
    draft.add(2, 2, 10, label="copy", after=[first, second])
    return draft.build()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"src": [0, 1, 4]}, "src[2]"),
        ({"dst": [-1, 2, 2]}, "dst[0]"),
        ({"size_bytes": [100, -1, 0]}, "size_bytes[1]"),
        ({"memory_bytes": [0, 0, -5]}, "memory_bytes[2]"),
        ({"delay_ps": [0, -1, 0]}, "delay_ps[1]"),
        ({"lane": [3, 0, 0]}, "lane[0]"),
        ({"label_idx": [0, 0, 3]}, "label_idx[2]"),
        ({"queue_idx": [-1, 0, 0]}, "queue_idx[0]"),
        ({"dst": [1, 2]}, "dst"),
        ({"after": [0, 0, 3]}, "after[2]"),
        ({"after": [0, 0, -2]}, "after[2]"),
        ({"after_start": [0, 0, 1, 2]}, "after_start[-1]"),
        ({"after_start": [0, 2, 1, 3]}, "after_start"),
    ],
)
def test_what_breaks_a_rule_is_named(change, field):
    with pytest.raises(InputError) as caught:
        replace(three(), **{name: np.array(value) for name, value in change.items()})
    assert caught.value.field == field


def test_a_circle_is_named_in_full():
    draft = Draft(3)
    first = draft.add(0, 1, 8, label="a")
    second = draft.add(1, 2, 8, label="b", after=[first])
    draft.wait_also(first, [second])
    draft.add(2, 0, 8, label="innocent", after=[second])
    with pytest.raises(InputError, match="a from rank 0 to rank 1 <- b from rank 1 to rank 2 <- a from"):
        draft.build()


def test_matrix_followers_and_issuers():
    transfers = three()
    matrix = transfers.bytes_matrix()
    assert matrix[0, 1] == 100
    assert matrix[1, 2] == 50
    assert matrix.sum() == 150  # the copy stays on its card
    assert transfers.followers == [[1, 2], [2], []]
    draft = Draft(2)
    draft.add(0, 1, 8, label="load", lane="ubmem-load")
    assert draft.build().issuer.tolist() == [1]


def test_parts():
    assert split_evenly(10, 4) == [3, 3, 2, 2]
    assert pieces_of(10, 4) == [4, 4, 2]
    assert pieces_of(0, 4) == []


def test_nothing_takes_no_time():
    assert run_transfers(machine(), Draft(8).build()).time_ps == 0
    draft = Draft(8)
    draft.add(0, 1, 0, label="empty")
    assert run_transfers(machine(), draft.build()).time_ps == 0


def test_bad_options_and_ranks_are_refused():
    with pytest.raises(InputError, match="chunk bytes"):
        TransferOptions(chunk_bytes=-1)
    with pytest.raises(InputError, match="ranks"):
        run_transfers(machine(), three())
    with pytest.raises(InputError, match="lane"):
        Draft(2).add(0, 1, 8, label="x", lane="rdma")


def test_what_never_comes_is_not_a_circle():
    draft = Draft(2)
    draft.add(0, 1, 8, label="a", after=[NEVER])
    assert draft.build().waits_of(0) == [NEVER]
