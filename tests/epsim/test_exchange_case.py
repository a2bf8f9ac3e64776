"""The exchanged case: transfers in order, phases by source, and what is refused."""

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.exchange.cables import pair_cables
from epsim.exchange.case import finish_times, read_time
from tests.epsim.exchanged import small_case
from topology import Router, clos, leaf_spine, ubl128, without_links
from topology.edit import with_link_rate
from topology.source import Source


def test_transfers_are_the_pairs_with_bytes_by_source_then_destination():
    transfers = small_case().transfers()
    assert len(transfers) == 12
    assert list(zip(transfers.src, transfers.dst, strict=True)) == sorted(
        (s, d) for s in range(4) for d in range(4) if s != d
    )
    assert (transfers.num_bytes == (4 * transfers.src + transfers.dst) * 1000).all()


def test_the_phase_before_is_that_of_the_same_source():
    phase = np.array([[0, 0, 2, 5], [1, 0, 1, 1], [0, 3, 0, 3], [0, 0, 4, 0]])
    before = small_case(phase=phase).transfers().previous_phase()
    assert before.tolist() == [-1, 0, 2, -1, -1, -1, -1, 0, 0, -1, -1, 0]


WRONG = [
    ({"name": "a/b"}, "case name"),
    ({"bytes_matrix": np.ones((3, 4), int)}, "shape of the bytes matrix"),
    ({"bytes_matrix": np.ones((4, 4))}, "float64"),
    ({"bytes_matrix": np.eye(4, dtype=int)}, "something to send"),
    ({"bytes_matrix": -np.ones((4, 4), int)}, "negative"),
    ({"npus": np.array([0, 1, 2])}, "one per rank"),
    ({"npus": np.array([0, 1, 2, 2])}, "must not repeat"),
    ({"npus": np.array([0, 1, 2, 4])}, "NPUs 0..3"),
    ({"start_ps": np.array([1])}, "start_ps"),
    ({"phase": np.array([1])}, "phase"),
]


@pytest.mark.parametrize(("changes", "text"), WRONG)
def test_a_case_that_breaks_a_rule_is_refused(changes, text):
    with pytest.raises(InputError, match=text):
        small_case(**changes)


def test_arrays_are_copies_that_cannot_change():
    matrix = np.ones((4, 4), int)
    case = small_case(bytes_matrix=matrix)
    matrix[0, 1] = 7
    assert case.bytes_matrix[0, 1] == 1
    with pytest.raises(ValueError, match="read-only"):
        case.bytes_matrix[0, 1] = 7


def test_phases_and_starts_of_zero_are_none():
    zero = small_case(start_ps=np.zeros(4, int), phase=np.zeros((4, 4), int))
    zero.require_one_shot("x")
    with pytest.raises(InputError, match="start_ps"):
        small_case(start_ps=np.array([0, 0, 1, 0])).require_one_shot("x")


def test_times_are_those_of_the_case():
    case = small_case()
    found = {(s, d): 10 * s + d for s in range(4) for d in range(4) if s != d}
    assert finish_times(case, "f", found).tolist() == sorted(found.values())
    with pytest.raises(InputError, match="no transfer"):
        finish_times(case, "f", found | {(1, 1): 5})
    del found[2, 1]
    with pytest.raises(InputError, match=r"rank 2 -> 1.*never ended"):
        finish_times(case, "f", found)


@pytest.mark.parametrize(
    ("text", "found"),
    [("12.5", (12_500_000, 50_001)), ("3", (3_000_000, 500_001)), ("1e-999999", (0, 2))],
)
def test_a_printed_time_has_the_rounding_of_its_last_digit(text, found):
    assert read_time("end", text, "us") == found


@pytest.mark.parametrize(
    ("text", "rule"),
    [("nan", "must be microseconds"), ("-1", "must be microseconds"), ("", "must be microseconds"),
     ("1e30", "at most 9.22e"), ("0e999999999", "at most 9.22e"), ("9223372036854.775808", "at most")],
)  # fmt: skip
def test_what_is_no_time_of_ours_is_refused(text, rule):
    with pytest.raises(InputError, match=f"end is '{text}': .*{rule}"):
        read_time("end", text, "us")


@pytest.mark.parametrize("topology", [ubl128(16), leaf_spine(8, leaves=4, spines=2, switch_hop="70ns")])
def test_cables_and_crossings_add_up_to_the_latency_of_every_link(topology):
    cables = pair_cables(topology, "x")
    latency = dict(
        zip(zip(topology.link_src, topology.link_dst, strict=True), topology.link_latency_ps(), strict=True)
    )
    for (a, b), delay in zip(cables.vertex, cables.delay_ps, strict=True):
        assert latency[a, b] == delay + cables.crossing_ps[b]
        assert latency[b, a] == delay + cables.crossing_ps[a]
    assert cables.num_ports.sum() == topology.num_links
    ends = set(zip(cables.vertex.ravel(), cables.port.ravel(), strict=True))
    assert len(ends) == topology.num_links


def test_a_link_without_way_back_or_with_another_rate_is_no_cable():
    topology = ubl128(4)
    with pytest.raises(InputError, match="not as many links each way"):
        pair_cables(without_links(topology, np.array([3])), "x")
    slow = with_link_rate(topology, np.array([3]), 10**9, Source("given", "a test"))
    with pytest.raises(InputError, match=r"link is|not as many"):
        pair_cables(slow, "x")


def test_only_the_layer_that_routes_use_is_exported():
    topology = clos(256)
    matrix = np.ones((4, 4), int)
    case = small_case(topology=topology, npus=np.arange(4), bytes_matrix=matrix).on_one_layer("x")
    assert case.topology.netlayers() == (1,)
    used = Router(topology, np.arange(4)).find(np.array([0]), np.array([3]))
    assert set(used.netlayer) == {1}
    with pytest.raises(InputError, match="one network"):
        small_case(topology=topology, npus=np.array([0, 1, 128, 129]), bytes_matrix=matrix).on_one_layer("x")
