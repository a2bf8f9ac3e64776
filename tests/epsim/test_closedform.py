"""The closed form: terms that add up, what each rate may and may not change, descriptors, limits by name."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.model.closedform import OPERATIONS, TERMS, OperationBytes, evaluate, num_descriptors, payload_rate
from epsim.model.loads import rank_loads
from epsim.platform.profile import override
from epsim.prediction import BINDING, classify
from reference.routing.expected import expected_rows
from tests.epsim.cases import (
    EPS,
    HARDWARE,
    ROW,
    SOFTWARE,
    group,
    is_sum,
    loads_of,
    network,
    rounding,
    terms_of,
    topk_of,
)
from tests.strategies import routed_configs

PER_RANK = tuple(name for name in TERMS if name not in ("fixed", "imbalance"))
RATES = st.sampled_from([1e6, 1e9, 40e9, 400e9, 3.3e12])
POSTING = st.sampled_from(
    [
        {},
        {"post_time": "1ms"},
        {"issue_overlap": 0, "post_time": "3us"},
        {"staging_rate_dispatch": "1GB/s", "staging_rate_combine": "1GB/s"},
    ]
)


@st.composite
def situations(draw):
    """Draw loads, an operation, a network and settings."""
    config, topk = draw(routed_configs())
    loads = loads_of(config, topk, draw(st.none() | st.integers(1, 3)), pod_dedup=draw(st.booleans()))
    net = network(
        scaleup_bytes_per_s=draw(RATES), scaleout_bytes_per_s=draw(RATES), is_mesh=draw(st.booleans())
    )
    return loads, draw(st.sampled_from(OPERATIONS)), net, {**draw(POSTING), "fanout_knee": 2}


ROUND = {
    "packet_form": "none", "line_efficiency": 1, "payload_efficiency": 1, "wire_efficiency": 1,
    "hbm_rate": "1GB/s", "hbm_efficiency": 1, "fanout_knee": 2, "post_time": "0s",
    "launch_time": "1us", "worker_time": "2us", "barrier_time": "13us", "barrier_time_per_doubling": "4us",
}  # fmt: skip
"""A byte a nanosecond on the wire and in memory; a barrier of two ranks takes 13 - 2 x 4 = 5 us."""


@pytest.mark.parametrize(
    ("operation", "fetch", "reduction", "fixed"),
    [
        ("dispatch", [4, 2], [0, 0], 13),
        ("cached-dispatch", [4, 2], [0, 0], 11),
        ("combine", [3, 3], [1.5, 1.5], 11),
    ],
)
def test_a_case_worked_by_hand(operation, fetch, reduction, fixed):
    """Two ranks with two experts each; records of 1,000 bytes, payload of 500; all times in us.

    Rank 0 has tokens {0,1}, {2,3}, {0,2}, rank 1 has {0,2}: it sends 4 rows (2 remote) and rank 1 sends 2
    (1 remote); both receive 3. Rank 0 sends 2 remote rows and receives 1, rank 1 the other way round, so
    both ports work for 2. Dispatch reads the sent rows, combine the received ones; one row per rank has
    two experts, whose sum reads 2 and writes 1. Fixed: launch 1, worker 2 (dispatch alone), 2 barriers of 5.
    """
    loads = loads_of(group(2, 4, 2, 3), topk_of([[[0, 1], [2, 3], [0, 2]], [[0, 2]]], 4))
    row = OperationBytes(logical=900, wire=1000, payload=500)
    hardware, software = override(HARDWARE, SOFTWARE, ROUND)
    terms = evaluate(operation, loads, row, network(scaleup_bytes_per_s=1e9), hardware, software)
    for name, expected in (("wire", [2, 2]), ("fetch", fetch), ("reduction", reduction), ("fanout", [0, 0])):
        np.testing.assert_allclose(1e6 * getattr(terms, name), expected, rtol=8 * EPS, err_msg=name)
    assert abs(1e6 * terms.fixed - fixed) <= rounding(8, fixed)
    slowest = max(2 + f + r for f, r in zip(fetch, reduction, strict=True)) + fixed
    assert abs(1e6 * terms.total - slowest) <= rounding(16, slowest)


@given(case=situations())
def test_mean_terms_add_up_to_the_time(case):
    """The printed split is complete: nothing is hidden in the total."""
    loads, operation, net, settings = case
    terms = terms_of(loads, operation, net, settings)
    means = terms.means()
    assert tuple(sorted(means)) == tuple(sorted(TERMS))
    assert is_sum(terms.total, means.values())


@given(case=situations())
def test_no_term_is_negative(case):
    """A negative term would hide time of another one; imbalance may lose the last bits only."""
    loads, operation, net, settings = case
    terms = terms_of(loads, operation, net, settings)
    for name in PER_RANK:
        assert (getattr(terms, name) >= 0).all(), name
    assert terms.means()["imbalance"] >= -rounding(20, terms.total)


@given(case=situations())
def test_doubling_link_speed_halves_wire_time_and_never_lengthens(case):
    """Wire and fan-out are bytes over rate, and nothing else gets slower on a faster network."""
    loads, operation, net, settings = case
    faster = replace(
        net,
        scaleup_bytes_per_s=2 * net.scaleup_bytes_per_s,
        scaleout_bytes_per_s=2 * net.scaleout_bytes_per_s,
    )
    slow, fast = (terms_of(loads, operation, n, settings) for n in (net, faster))
    np.testing.assert_array_equal(2 * fast.wire, slow.wire)  # a power of two scales exactly
    np.testing.assert_array_equal(2 * fast.fanout, slow.fanout)
    assert fast.total <= slow.total + rounding(20, slow.total)


@given(case=situations())
def test_doubling_memory_rate_halves_its_terms_and_never_lengthens(case):
    """Fetch and reduction are bytes over the memory rate, and nothing else depends on it but hiding."""
    loads, operation, net, settings = case
    slow, fast = (
        terms_of(loads, operation, net, {**settings, "hbm_rate": rate}) for rate in ("1TB/s", "2TB/s")
    )
    np.testing.assert_array_equal(2 * fast.fetch, slow.fetch)
    np.testing.assert_array_equal(2 * fast.reduction, slow.reduction)
    np.testing.assert_array_equal(fast.wire, slow.wire)
    assert fast.total <= slow.total + rounding(20, slow.total)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_rank_has_no_traffic_and_no_barrier(operation):
    """EP1 keeps the launch and the local reads, and nothing that needs a peer."""
    terms = terms_of(rank_loads(expected_rows(group(1), 512)), operation)
    for name in ("wire", "fanout", "scaleout", "issue"):
        assert not getattr(terms, name).any(), name
    worker = SOFTWARE.worker_time.value if operation == "dispatch" else 0.0
    assert terms.fixed == SOFTWARE.launch_time.value + worker


def test_two_ranks_wait_at_two_barriers():
    """Entry and exit barrier come with the first peer, and grow by the profile's step per doubling."""
    fixed = [
        terms_of(rank_loads(expected_rows(group(size), 512)), "combine").fixed for size in (1, 8, 16, 32)
    ]
    assert abs(fixed[1] - fixed[0] - 2 * SOFTWARE.barrier_time.value) <= rounding(4, fixed[1])
    step = 2 * SOFTWARE.barrier_time_per_doubling.value
    assert abs(fixed[2] - fixed[1] - step) <= rounding(4, fixed[2])
    assert abs(fixed[3] - fixed[2] - step) <= rounding(4, fixed[3])


@given(case=situations(), scale=st.integers(2, 8))
def test_more_bytes_per_row_never_shorten(case, scale):
    """BF16 rows are longer than FP8 rows and cannot be faster."""
    loads, operation, net, settings = case
    hardware, software = override(HARDWARE, SOFTWARE, settings)
    longer = replace(ROW, logical=scale * ROW.logical, wire=scale * ROW.wire, payload=scale * ROW.payload)
    base, big = (evaluate(operation, loads, row, net, hardware, software) for row in (ROW, longer))
    assert big.total >= base.total - rounding(20, base.total)
    assert (big.wire >= base.wire).all()


def test_skew_with_the_same_number_of_rows_is_slower():
    """Four ranks send 4 remote rows each: to all alike, or all to one of two hot ranks."""
    config = group(4, num_experts=4, num_topk=1, tokens=6)
    level = [[[e] for e in range(4) if e != r] * 2 for r in range(4)]
    skewed = [[[1 if r == 0 else 0]] * 6 for r in range(4)]
    even, hot = (loads_of(config, topk_of(ranks, 4)) for ranks in (level, skewed))
    assert even.remote_sent.tolist() == hot.remote_sent.tolist() == [6] * 4
    assert terms_of(hot).wire.max() == 3 * terms_of(even).wire.max()  # rank 0 receives 18 rows, not 6
    assert terms_of(hot).total > terms_of(even).total


@pytest.mark.parametrize(
    ("ep_size", "rows", "descriptors", "fill"),
    [
        (8, 142, 169, 5.90),
        (16, 82.9, 213, 5.82),
        (32, 44.8, 244, 5.68),
        (64, 23.3, 271, 5.42),
        (128, 11.9, 304, 4.96),
    ],
)
def test_descriptors_per_aiv_meet_the_derived_figures(ep_size, rows, descriptors, fill):
    """E 256, K 6, 16,384 tokens, 64 AIVs: to the printed digits. Source: deepep-ascend.md section 4.2."""
    loads = rank_loads(expected_rows(group(ep_size), 16_384))
    (number,) = set(num_descriptors(False, loads, 64, 6).tolist())
    per_pair = float(loads.remote_sent[0]) / 64 / loads.peers
    assert round(number) == descriptors
    assert float(f"{per_pair:.3g}") == rows
    assert round(per_pair * loads.peers / number, 2) == fill


@pytest.mark.parametrize("ep_size", [8, 16, 32, 64, 128])
def test_expected_descriptors_agree_with_the_binomial_sum(ep_size):
    """The formula's E[ceil(n / 6)] against the sum over all n of 256 tokens per AIV.

    Beyond rounding, the formula takes ceil's fraction for uniform; Euler-Maclaurin's next term is below
    the mass at a single n, 1 / sqrt(2 pi variance), times 6 / 12 per peer.
    """
    loads = rank_loads(expected_rows(group(ep_size), 16_384))
    chance = float(loads.remote_sent[0]) / 16_384 / loads.peers
    mass = [comb(256, n) * chance**n * (1 - chance) ** (256 - n) for n in range(257)]
    exact = loads.peers * sum(p * -(-n // 6) for n, p in enumerate(mass))
    slack = loads.peers / 2 / (2 * np.pi * 256 * chance * (1 - chance)) ** 0.5
    assert abs(float(num_descriptors(False, loads, 64, 6)[0]) - exact) <= slack


@given(case=routed_configs(), size=st.integers(1, 6), aivs=st.integers(1, 64))
def test_descriptors_lie_between_full_and_single_rows(case, size, aivs):
    """A descriptor holds one to `size` rows; combine always posts one per row."""
    config, topk = case
    loads = loads_of(config, topk)
    posted = num_descriptors(False, loads, aivs, size)
    rows = loads.remote_sent / aivs
    assert (posted <= rows * (1 + 4 * EPS)).all()
    assert (posted >= rows / size * (1 - 4 * EPS)).all()
    np.testing.assert_array_equal(num_descriptors(True, loads, aivs, size), loads.remote_received / aivs)


LIMITS = [
    ("dispatch", {}, {}, ("network-limited", "wire")),
    ("combine", {"scaleup_bytes_per_s": 1e9}, {}, ("network-limited", "wire")),
    ("combine", {}, {"fanout_knee": 1, "fanout_slope_combine": 1}, ("network-limited", "fanout")),
    ("dispatch", {}, {"hbm_rate": "50GB/s"}, ("memory-limited", "fetch")),
    ("dispatch", {"scaleup_bytes_per_s": 1e15}, {}, ("memory-limited", "fetch")),
    ("combine", {}, {"hbm_rate": "50GB/s", "ep_size": 2}, ("memory-limited", "reduction")),
    ("dispatch", {}, {"post_time": "1ms"}, ("kernel-limited", "issue")),
    ("combine", {}, {"used_aivs": 1}, ("kernel-limited", "issue")),
    ("dispatch", {}, {"staging_rate_dispatch": "10MB/s"}, ("kernel-limited", "staging")),
    ("dispatch", {}, {"launch_time": "1s"}, ("kernel-limited", "fixed")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "net", "settings", "expected"), LIMITS, ids=[str(c[:3]) for c in LIMITS]
)
def test_the_limit_is_named_after_what_was_made_slow(operation, net, settings, expected):
    """Each resource becomes the answer's first word when it alone is made the slowest."""
    parameters = {key: value for key, value in settings.items() if key != "ep_size"}
    loads = rank_loads(expected_rows(group(settings.get("ep_size", 16)), 4096))
    terms = terms_of(loads, operation, network(**net), parameters)
    assert classify(terms.means(), terms.outlasting) == (expected[0], BINDING[expected[1]])


def test_a_faster_scaleout_port_hides_behind_the_scaleup_ports():
    """Forwarders pipeline: the tiers overlap, so only the slower one shows."""
    loads = rank_loads(expected_rows(group(16), 4096, pod_size=8))
    assert not terms_of(loads, net=network(scaleout_bytes_per_s=1e15)).scaleout.any()


@given(case=situations())
def test_the_class_is_the_one_with_the_most_time(case):
    """The first word follows from the split: no other class of terms sums to more, hidden time moved over."""
    loads, operation, net, settings = case
    terms = terms_of(loads, operation, net, settings)
    means = terms.means()
    network_time = means["wire"] + means["fanout"] + means["scaleout"]
    memory_time = means["fetch"] + means["reduction"]
    kernel_time = means["issue"] + means["staging"] + means["fixed"]
    if "issue" in terms.outlasting:
        network_time, memory_time, kernel_time = 0, 0, kernel_time + network_time + memory_time
    times = {"network-limited": network_time, "memory-limited": memory_time, "kernel-limited": kernel_time}
    chosen = times[classify(means, terms.outlasting)[0]]
    assert chosen >= max(times.values()) - rounding(20, chosen)


@pytest.mark.parametrize("post_time", ["100us", "150us", "200us", "250us", "1ms"])
def test_the_kernel_is_named_exactly_when_a_faster_network_would_not_help(post_time):
    """Posting beside the data binds as soon as it takes longer, however little it adds."""
    loads = rank_loads(expected_rows(group(8), 16_384))
    now, faster = (
        terms_of(loads, net=network(scaleup_bytes_per_s=rate), settings={"post_time": post_time})
        for rate in (400e9, 401e9)
    )
    helps = now.total - faster.total > rounding(20, now.total)
    bound, binding = classify(now.means(), now.outlasting)
    assert (bound == "network-limited") == helps
    assert (binding == BINDING["issue"]) == (not helps)


def test_the_scaleout_port_is_named_as_soon_as_it_outlasts_the_scaleup_ports():
    """It adds little to them here, and still a faster scale-up network would not help."""
    loads = rank_loads(expected_rows(group(16), 16_384, pod_size=8))
    even = network(scaleout_bytes_per_s=1e15)
    rate = float(loads.scaleout_sent.max()) * ROW.wire / terms_of(loads, net=even).wire.max()
    terms = terms_of(loads, net=network(scaleout_bytes_per_s=rate))
    assert 0 < terms.scaleout.max() < terms.wire.max()
    assert classify(terms.means(), terms.outlasting) == ("network-limited", BINDING["scaleout"])


def test_the_busiest_link_floors_the_wire_time():
    """A link slower than the busiest card stretches the wire time of all ranks; a faster one does nothing."""
    loads = rank_loads(expected_rows(group(4), 512))
    hardware, software = override(HARDWARE, SOFTWARE, {})
    free, fast, slow = (
        evaluate("dispatch", loads, ROW, network(), hardware, software, link_s) for link_s in (0.0, 1e-9, 1.0)
    )
    np.testing.assert_array_equal(free.wire, fast.wire)
    nominal = network().scaleup_bytes_per_s / payload_rate(network(), hardware)
    assert abs(slow.wire.max() - nominal) <= rounding(4, nominal)
    np.testing.assert_allclose(slow.wire / free.wire, slow.wire[0] / free.wire[0], rtol=4 * EPS)
