"""Public cases on bandwidth, imbalance and mapping (cases.md) on simulated links."""

from functools import cache

import numpy as np
import pytest

from epsim.calibration.cases import payload_bytes
from epsim.calibration.measured import Range, packaged_measurements
from epsim.inputs.groups import Table, route
from epsim.model.scaling import CANDIDATES, fall_text, falls
from epsim.platform.machine import make_machine
from epsim.platform.platform import make_platform
from epsim.simulate import FlowOptions, Setting, simulate
from epsim.validate import validate
from reference.config import EPConfig
from reference.errors import ConfigError
from reference.memory.sizes import ascend_dispatch_record_bytes
from reference.topk import TopK
from tests.epsim.cases import rounding
from topology.cluster import from_toml

LEVELS = ("flow", "events")
K, TOKENS, EXPERTS = 8, 32, 256


def routing(ranks: int, *, is_even: bool, num_topk: int = K) -> TopK:
    """Return as many rows from every rank: to every rank alike, or to ranks chosen at random."""
    rng = np.random.default_rng(48)
    token, choice = np.arange(TOKENS)[:, None], np.arange(num_topk)[None, :]
    ids = []
    for rank in range(ranks):
        dst = (token + choice * (ranks // num_topk) + rank) % ranks
        if not is_even:
            dst = np.argsort(rng.random((TOKENS, ranks)), axis=1)[:, :num_topk]
        ids.append((dst * (EXPERTS // ranks)).astype(np.int64))
    return TopK(num_experts=EXPERTS, topk_idx=tuple(ids))


def one(level: str, ep: int, topk: TopK | str, **arguments):
    """Simulate one dispatch of a decode batch."""
    given = {"num_experts": EXPERTS, "num_topk": K, "operations": ("dispatch",), **arguments}
    return simulate(level=level, ep=ep, routing=topk, **given)[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ep", [2, 4, 8])
def test_g47_both_figures_and_the_tier_are_named(level, ep):
    """With every rank chosen alike, rows on the wire are (N-1)/N of the logical ones; the port is named."""
    found = one(level, ep, routing(ep, is_even=True, num_topk=1), num_topk=1)
    # The metric counts values, scales, and id and weight of the choice; the record pads them.
    metric, record = 7168 + 224 + 8 + 4, ascend_dispatch_record_bytes(7168, 1, "fp8")
    expected = (ep - 1) / ep * record / metric
    assert abs(found.wire_gb_per_s / found.gb_per_s_mean - expected) <= rounding(20, expected)
    assert "npu" in found.binding
    text = str(found)
    assert "logical GB/s per rank, own rank included" in text
    assert f"{found.wire_gb_per_s:.4g} GB/s on the wire" in text


CAUSES = ("sync gap", "destinations per port", "congestion", "imbalance")


@cache
def with_causes(level: str, causes: frozenset[str]):
    """Simulate EP32 with some of the four causes; the number of rows is the same in all."""
    return one(
        level, 32, routing(32, is_even="imbalance" not in causes),
        settings={} if "sync gap" in causes else {"barrier_time_per_doubling": "0s"},
        with_slope="destinations per port" in causes,
        policy="flow-hash" if "congestion" in causes else "spray",
    )  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cause", CAUSES)
def test_g48_each_cause_is_a_term_that_can_be_switched_off(level, cause):
    """Without any one of the four the same bytes are done earlier, and each alone costs time."""
    everything, alone = frozenset(CAUSES), frozenset({cause})
    runs = [with_causes(level, on) for on in (everything, everything - alone, alone, frozenset())]
    whole, without, single, nothing = runs
    assert without.time_us < whole.time_us
    assert nothing.time_us < single.time_us
    assert {item.ranks.received_rows.sum() for item in runs} == {32 * TOKENS * K}


@pytest.mark.parametrize("level", LEVELS)
def test_g48_a_late_rank_costs_its_delay_and_a_doubling_its_barriers(level):
    """Both are added to the picosecond: nothing starts before the last rank, and nobody leaves early."""
    topk = routing(32, is_even=True)
    usual, late = one(level, 32, topk), one(level, 32, topk, faults=["rank-late:5@100us"])
    assert round(1e6 * late.time_us) - round(1e6 * usual.time_us) == 100 * 10**6
    fast, slow = (
        one(level, 32, topk, settings={"barrier_time_per_doubling": time}) for time in ("0s", "1us")
    )
    # Entry and exit; the barrier time holds for 8 ranks, and 32 are two doublings more.
    assert round(1e6 * slow.time_us) - round(1e6 * fast.time_us) == 2 * 2 * 10**6


def nics(nic_of_rank: list[int]) -> str:
    """Return a cluster file: cards on NIC switches of 50 GB/s under one switch, as told."""
    cable = '[[links]]\nfrom = "{}"\nto = "{}"\nclass = "{}"\n'
    classes = "".join(
        f'[[link_classes]]\nname = "{name}"\nrate = "{rate}GB/s"\nlatency = "1us"\n'
        for name, rate in (("bus", 400), ("nic", 50))
    )
    cards = "".join(cable.format(f"npu{card}", f"sw{nic}", "bus") for card, nic in enumerate(nic_of_rank))
    ports = "".join(cable.format(f"sw{nic}", "sw8", "nic") for nic in range(8))
    return f'kind = "links"\nnum_npus = {len(nic_of_rank)}\nnum_switches = 9\n{classes}{cards}{ports}'


@pytest.mark.parametrize("level", LEVELS)
def test_g49_eight_ranks_on_one_nic_get_a_quarter_and_its_bytes_are_listed(level):
    """Two servers of 8 ranks and 4 NICs exchange all rows: 2 ranks per NIC, or 8 on the first."""
    topk = TopK(
        num_experts=16,
        topk_idx=tuple(np.full((TOKENS, 1), (rank + 8) % 16, dtype=np.int64) for rank in range(16)),
    )
    shared, crowded = (
        one(level, 16, topk, system=from_toml(nics(map_)).build(), num_experts=16, num_topk=1)
        for map_ in ([rank // 2 for rank in range(16)], [0] * 8 + [4] * 8)
    )
    assert crowded.ports[0].gbytes == pytest.approx(4 * shared.ports[0].gbytes, rel=1e-12)
    # Bounds are whole picoseconds, rounded down.
    assert 0 <= round(1e6 * crowded.bound_us) - 4 * round(1e6 * shared.bound_us) <= 3
    assert "sw8" in crowded.ports[0].name
    if level == "flow":
        moving = [(r.ranks.finish_us - r.ranks.first_byte_us).max() for r in (shared, crowded)]
        assert abs(round(1e6 * moving[1]) - 4 * round(1e6 * moving[0])) <= 4


def measured(value: float) -> Range:
    """Return a figure with one decimal."""
    return Range(low=value, high=value, rounding=0.05)


def test_g50_a_fall_beyond_volume_is_said_and_not_fitted():
    """Two nodes 40.9, four 12.3: 20.4 and 9.2 on the wire, 2.2 times less. Candidates, no number."""
    text = fall_text((2, 4), (measured(40.9), measured(12.3)))
    assert text == (
        "not explained by volume, at least 20.4 and at most 9.3 GB/s on the wire, still 2.21 times less"
    )
    assert "shared uplink, several flows on one link" in CANDIDATES


def test_g50_a_fall_that_volume_explains_is_told_apart():
    """43 GB/s on two nodes are 21.5 on the wire, as 28.7 are on four; a rise says nothing."""
    assert fall_text((2, 4), (measured(43), measured(28.7))).startswith("explained by volume")
    assert fall_text((2, 4), (measured(43), measured(28.7)), counts_home=False).startswith("not explained")
    assert fall_text((2, 4), (measured(28.7), measured(43))) == ""


def test_g50_the_report_names_neighbours_that_fall():
    """The public SM90 rows over 2 and 4 domains fall by volume alone, the low-latency A3 ones do not."""
    found = falls(validate().comparisons)
    assert found["v2-sm90-8x2-dispatch to v2-sm90-8x4-dispatch"].startswith("explained by volume")
    assert found["a3-ep64-dispatch to a3-ep128-dispatch"].startswith("not explained by volume")


@pytest.mark.parametrize("level", LEVELS)
def test_g51_half_the_ranks_are_half_the_rows(level):
    """Ids 64 (t mod 4) + 8 j: 8 ranks of 32, or 4 of 16; the decode time falls with the rows."""
    row = 64 * (np.arange(TOKENS) % 4)[:, None] + 8 * np.arange(8)[None, :]
    wide, narrow = (
        one(level, ranks, TopK(num_experts=EXPERTS, topk_idx=(row.astype(np.int64),) * ranks))
        for ranks in (32, 16)
    )
    assert wide.ranks.received_rows.sum() / 32 == 2 * narrow.ranks.received_rows.sum() / 16 == TOKENS * 8
    assert narrow.bound_us < wide.bound_us


@pytest.mark.parametrize("level", LEVELS)
def test_g52_time_follows_the_busiest_rank_and_not_the_law(level):
    """Sigma 0 is uniform to the picosecond; among others more at the busiest rank is more time."""

    def run(law):
        return one(level, 16, law, tokens=256)

    assert run("lognormal:0").time_us == run("uniform").time_us
    found = [run(f"lognormal:{sigma}") for sigma in (0, 0.25, 0.5, 1)]
    peaks = [int(item.ranks.received_rows.max()) for item in found]
    assert np.argsort(peaks).tolist() == np.argsort([item.time_us for item in found]).tolist()


def test_g54_the_numerator_of_npu_figures_is_the_fp8_row_of_the_gpu_test():
    """49.81 GB/s x 304.60 us are 256 x 8 FP8 rows, scales and header; an INT8 row has one scale."""
    slots = 256 * 8
    fp8, int8, bf16 = slots * (7168 + 224 + 16), slots * (7168 + 4), slots * 14_336
    assert (fp8, int8, bf16) == (15_171_584, 14_688_256, 29_360_128)
    for gb_per_s, time_us, numerator in (
        (49.81, 304.60, fp8), (64.90, 452.38, bf16), (46.29, 634.32, bf16), (54.02, 543.55, bf16),
    ):  # fmt: skip
        # Half a unit of the last digit of either figure.
        rounding = 0.005 / gb_per_s + 0.005 / time_us
        assert abs(gb_per_s * time_us * 1e3 / numerator - 1) <= rounding
        assert abs(gb_per_s * time_us * 1e3 / int8 - 1) > rounding


def test_g54_the_numerator_stands_beside_the_figure():
    """The same bytes from the row of a measurement file, with the words that the report prints."""
    found = {c.row.id: c for c in validate(packaged_measurements("community")).comparisons}
    row = found["a3-low-latency-ep8-dispatch"]
    assert row.row.dtype == "int8"
    assert payload_bytes(row.row)[0] == 7168 + 224 + 16
    assert row.numerator == "hidden, scales and 16 B, per slot"
    assert all(c.numerator for c in found.values() if c.bandwidth is not None)


SUPERNODES = """
kind = "links"
num_npus = 16
num_switches = 3
[[link_classes]]
name = "port"
rate = "400GB/s"
latency = "1us"
[[links]]
from = "sw0"
to = "sw2"
class = "port"
[[links]]
from = "sw2"
to = "sw1"
class = "port"
"""


def mapped_rows(npus: np.ndarray, topk: TopK, level: str) -> int:
    """Return the rows from the first supernode of 8 cards to the second; npus: card of each rank."""
    cards = "".join(
        f'[[links]]\nfrom = "npu{card}"\nto = "sw{card // 8}"\nclass = "port"\n' for card in range(16)
    )
    platform = make_platform(from_toml(SUPERNODES + cards).build())
    config = EPConfig(
        ep_size=16, num_experts=EXPERTS, num_topk=topk.topk_idx[0].shape[1], hidden=7168,
        num_max_tokens_per_rank=TOKENS,
    )  # fmt: skip
    setting = Setting(
        platform=platform, machine=make_machine(platform, 16, "none", npus),
        routed=route(Table(config=config, routing=topk, dtype="fp8")), operation="dispatch", policy="spray",
        seed=0, flow=FlowOptions(),
    )  # fmt: skip
    ports = setting.run(level).ports
    carried = sum(port.gbytes for port in ports if "sw0 -> sw2" in port.name)
    rows, rest = divmod(round(carried * 1e9), setting.case.row.wire)
    assert rest == 0
    return rows


PACKED = np.arange(16)
ROUND_ROBIN = PACKED % 2 * 8 + PACKED // 2


@pytest.mark.parametrize("level", LEVELS)
def test_g68_uniform_rows_cross_alike_in_both_mappings(level):
    """8 of 16 ranks lie in the other supernode whatever the order: half the rows of 8 senders cross."""
    topk = routing(16, is_even=True)
    crossing = {mapped_rows(npus, topk, level) for npus in (PACKED, ROUND_ROBIN)}
    assert crossing == {8 * TOKENS * K // 2}


@pytest.mark.parametrize("level", LEVELS)
def test_g68_skewed_rows_cross_as_the_mapping_says(level):
    """Ranks 0-7 and 8-15 keep to themselves: nothing crosses if packed, half if dealt out in turn."""
    ids = [np.arange(TOKENS)[:, None] % 8 + rank // 8 * 8 for rank in range(16)]
    topk = TopK(num_experts=EXPERTS, topk_idx=tuple(16 * dst.astype(np.int64) for dst in ids))
    assert mapped_rows(PACKED, topk, level) == 0
    assert mapped_rows(ROUND_ROBIN, topk, level) == 8 * TOKENS // 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ranks", [1, 3, 6, 12, 24])
def test_g70_a_simulation_takes_any_rank_count(level, ranks):
    """What the library would refuse can still be asked: experts only have to divide."""
    assert one(level, ranks, "uniform", num_experts=10 * ranks, tokens=8).time_us > 0
    with pytest.raises(ConfigError, match=f"ep_size {ranks + 1} must divide it"):
        one(level, ranks + 1, "uniform", num_experts=10 * (ranks + 1) + 1, tokens=8)
