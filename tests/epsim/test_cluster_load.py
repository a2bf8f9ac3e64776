"""Many groups on one network, and one exchange among all cards."""

import numpy as np
import pytest

from epsim.cluster import exchange_on_cluster, groups_on_cluster, payload_topology
from epsim.errors import InputError
from epsim.inputs.groups import group_bytes
from epsim.platform.network import payload_share
from epsim.platform.platform import make_platform
from topology import link_bound


def test_packed_groups_do_not_meet():
    platform = make_platform("clos:256")
    matrix = group_bytes(platform, 128, "dispatch", tokens=64)
    answer = groups_on_cluster(platform, matrix)
    assert answer.load.startswith("2 groups of 128")
    assert answer.time_us == answer.alone_us
    assert all(tier.name.startswith("netlayer 1") for tier in answer.tiers)


def test_one_group_is_the_busiest_link_of_its_matrix():
    platform = make_platform("clos:256")
    matrix = group_bytes(platform, 128, "combine", tokens=64, routing="zipf:0.8", seed=3)
    [answer] = [groups_on_cluster(platform, matrix, num_groups=1)]
    assert answer.time_us == link_bound(payload_topology(platform), matrix).time_ps / 1e6


def test_groups_that_are_spread_pay_on_the_scale_out_tier():
    platform = make_platform("clos:256")
    matrix = group_bytes(platform, 128, "dispatch", tokens=64)
    packed, spread = (groups_on_cluster(platform, matrix, placement=p) for p in ("packed", "spread"))
    assert spread.tiers[0].name.startswith("netlayer 2")
    assert spread.time_us > packed.time_us


def test_an_exchange_among_all_is_that_of_the_listed_matrix():
    platform = make_platform("clos:256")
    answer = exchange_on_cluster(platform, 7168)
    matrix = np.full((256, 256), 7168)
    assert answer.time_us == link_bound(payload_topology(platform), matrix).time_ps / 1e6
    assert answer.exact_us is not None
    assert answer.exact_us >= answer.time_us


def test_links_have_payload_rates():
    platform = make_platform("ubl128:8")
    nominal = platform.network.topology.link_bytes_per_s()
    assert payload_topology(platform).link_bytes_per_s()[0] == round(
        nominal[0] * payload_share(platform.hardware)
    )


@pytest.mark.parametrize(
    ("system", "size", "groups", "word"),
    [("sm100", 8, None, "graph"), ("clos:256", 128, 3, "number of ranks"), ("clos:256", 8, 0, "num_groups")],
)
def test_what_cannot_be_is_refused(system, size, groups, word):
    platform = make_platform(system)
    with pytest.raises(InputError, match=word):
        groups_on_cluster(platform, np.ones((size, size), np.int64), num_groups=groups)


def test_no_bytes_are_refused():
    with pytest.raises(InputError, match="bytes per pair"):
        exchange_on_cluster(make_platform("clos:256"), 0)
