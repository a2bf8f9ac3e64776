"""Public cases on bandwidth and rank placement (cases.md G47 to G51, G70), with the values that are right."""

import numpy as np
import pytest

import epsim
from epsim.model.closedform import NETWORK_TERMS
from reference.config import EPConfig
from reference.memory.limits import limits
from reference.topk import TopK
from tests.epsim.cases import rounding
from topology import link_bound
from topology.cluster import from_toml
from topology.units import PS_PER_SECOND


@pytest.mark.parametrize(("domains", "wire"), [(2, 21.5), (4, 32.25), (8, 37.625)])
def test_g47_a_logical_figure_is_n_over_n_minus_one_of_the_wire(domains, wire):
    """43 GB/s with local rows counted is 43 (N-1)/N on the wire when record and metric bytes are equal."""
    found = epsim.predict(ep=domains, num_experts=domains, num_topk=1, operations=["combine"])[0]
    # A combined record is 32 bytes longer than the metric's row: the K weights, padded.
    per_logical = found.wire_gb_per_s / found.gb_per_s_mean * 14_336 / 14_368
    assert abs(43 * per_logical - wire) <= rounding(20, wire)


def test_g48_every_reason_of_a_falling_bandwidth_can_be_switched_off():
    """Fan-out, barriers and imbalance are terms of their own; sums are smaller with fewer experts a rank."""
    stock = epsim.predict(ep=128, operations=["combine"])[0].terms_us
    no_slope = {"fanout_slope_dispatch": 0, "fanout_slope_combine": 0}
    no_fixed = {"barrier_time": "0s", "barrier_time_per_doubling": "0s", "launch_time": "0s"}
    without = epsim.predict(ep=128, operations=["combine"], settings=no_slope)[0].terms_us
    instant = epsim.predict(ep=128, operations=["combine"], settings=no_fixed)[0].terms_us
    assert (stock["fanout"] > 0, without["fanout"]) == (True, 0)
    assert (stock["fixed"] > 0, instant["fixed"]) == (True, 0)
    assert stock["imbalance"] > 0
    assert stock["reduction"] < epsim.predict(ep=8, operations=["combine"])[0].terms_us["reduction"]


def nics(nic_of_rank: list[int]) -> str:
    """Return a cluster file: 8 cards, 4 NICs of 50 GB/s under one switch, cards on NICs as told."""
    cable = '[[links]]\nfrom = "{}"\nto = "{}"\nclass = "{}"\n'
    classes = "".join(
        f'[[link_classes]]\nname = "{name}"\nrate = "{rate}GB/s"\nlatency = "1us"\n'
        for name, rate in (("bus", 400), ("nic", 50))
    )
    cards = "".join(cable.format(f"npu{card}", f"sw{nic}", "bus") for card, nic in enumerate(nic_of_rank))
    ports = "".join(cable.format(f"sw{nic}", "sw4", "nic") for nic in range(4))
    return f'kind = "links"\nnum_npus = 8\nnum_switches = 5\n{classes}{cards}{ports}'


def test_g49_ranks_share_the_rate_of_the_nic_that_they_are_on():
    """Two ranks per NIC get 25 GB/s each; seven on one NIC get a seventh of its 50 GB/s, and it is named."""
    # Rank r and r+4 never share a NIC in the good map: pairs (r, r+4) cross NICs only.
    matrix = np.zeros((8, 8), dtype=np.int64)
    matrix[np.arange(8), (np.arange(8) + 4) % 8] = 10**9
    good = from_toml(nics([0, 1, 2, 3, 1, 2, 3, 0])).build()
    share = 10**9 * PS_PER_SECOND / link_bound(good, matrix).time_ps
    assert share == 25e9
    remote = np.zeros((8, 8), dtype=np.int64)
    remote[:7, 7] = 10**9
    crowded = from_toml(nics([0, 0, 0, 0, 0, 0, 0, 1])).build()
    bound = link_bound(crowded, remote)
    assert bound.time_ps == 7 * 10**9 * PS_PER_SECOND // (50 * 10**9)
    assert "sw0 -> sw4" in bound.describe(crowded) or "sw4 -> sw1" in bound.describe(crowded)


@pytest.mark.parametrize(("ranks", "distinct"), [(32, 8), (16, 4)])
def test_g51_the_pattern_of_ids_decides_the_volume(ranks, distinct):
    """Ids 64 (t mod 4) + 8 j reach 8 ranks of 8 experts, or 4 ranks of 16 twice each: half the rows."""
    row = 64 * (np.arange(128) % 4)[:, None] + 8 * np.arange(8)[None, :]
    topk = TopK(num_experts=256, topk_idx=tuple(row.astype(np.int64) for _ in range(ranks)))
    found = epsim.predict(ep=ranks, num_topk=8, routing=topk, operations=["dispatch"])[0]
    assert found.rows_per_rank == 128 * distinct
    assert sum(found.terms_us[name] for name in NETWORK_TERMS) > 0


@pytest.mark.parametrize(("ranks", "experts"), [(1, 256), (2, 256), (8, 256), (16, 256), (160, 480)])
def test_g70_supported_rank_counts_hit_no_limit(ranks, experts):
    """Even rank counts that divide the experts, and one rank."""
    assert not errors_of(ranks, experts)


@pytest.mark.parametrize(("ranks", "experts", "rule"), [(3, 255, "even-ranks"), (161, 483, "even-ranks")])
def test_g70_odd_rank_counts_are_named_before_the_start(ranks, experts, rule):
    """The reference takes any count; the library would fail in its set-up."""
    assert rule in errors_of(ranks, experts)


def test_g70_experts_that_do_not_divide_are_refused():
    """255 experts on 8 ranks need an explicit map."""
    with pytest.raises(epsim.ConfigError, match="ep_size 8 must divide it"):
        epsim.predict(ep=8, num_experts=255)


def errors_of(ranks: int, experts: int) -> list[str]:
    """Return the ids of broken limits of a small group."""
    config = EPConfig(
        ep_size=ranks, num_experts=experts, num_topk=6, hidden=7168, num_max_tokens_per_rank=128
    )
    return [limit.id for limit in limits(config) if limit.severity == "error"]
