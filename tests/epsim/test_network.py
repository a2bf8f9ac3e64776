"""What the closed form reads of a graph or a profile, and what framing leaves of a line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.platform.network import busiest_link_s, network_of_profile, network_of_topology, payload_share
from epsim.platform.profile import hardware_profile, override
from tests.epsim.cases import EPS, HARDWARE, SOFTWARE
from topology import clos, leaf_spine, mesh, ubl128, without_links
from topology.errors import TopologyError
from topology.graph import Topology


def test_a_supernode_has_its_ports_and_no_scaleout():
    """UBL128: 8 planes of 50 GB/s for each of 128 cards, one domain."""
    found = network_of_topology(ubl128())
    assert (found.num_npus, found.scaleup_domain) == (128, 128)
    assert (found.scaleup_bytes_per_s, found.scaleout_bytes_per_s, found.is_mesh) == (400e9, 0.0, False)


@pytest.mark.parametrize("planes", [1, 2, 4, 8])
def test_the_rate_of_a_card_is_the_sum_of_its_planes(planes):
    """Planes of 50 GB/s add up."""
    assert network_of_topology(ubl128(16, planes=planes)).scaleup_bytes_per_s == planes * 50e9


def test_a_server_mesh_beside_the_supernode_is_not_counted():
    """DeepEP-Ascend sends over netlayer 1 alone, so a mesh on netlayer 0 adds no rate."""
    plain, meshed = (network_of_topology(ubl128(16, server_mesh=with_mesh)) for with_mesh in (False, True))
    assert plain.scaleup_bytes_per_s == meshed.scaleup_bytes_per_s
    assert not meshed.is_mesh
    matrix = np.full((16, 16), 8e9)
    assert busiest_link_s(plain, matrix) == busiest_link_s(meshed, matrix)


def test_a_mesh_alone_is_the_scaleup_tier():
    """Eight cards with seven links of 50 GB/s each, and every pair on its own link."""
    found = network_of_topology(mesh(8))
    assert (found.is_mesh, found.scaleup_domain, found.scaleup_bytes_per_s) == (True, 8, 350e9)
    pair = np.zeros((2, 2))
    pair[0, 1] = 50e9
    assert busiest_link_s(found, pair) == 1.0


def test_a_clos_has_both_tiers():
    """Supernodes of 128 cards, and one port of 50 GB/s per card above them."""
    found = network_of_topology(clos(1024))
    assert (found.num_npus, found.scaleup_domain) == (1024, 128)
    assert (found.scaleup_bytes_per_s, found.scaleout_bytes_per_s) == (400e9, 50e9)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_oversubscription_divides_the_scaleout_rate(ratio):
    """Uniform traffic gets the port's rate over the ratio that the fabric was built with."""
    found = network_of_topology(clos(4096, oversubscription=ratio))
    assert abs(found.scaleout_bytes_per_s - 50e9 / ratio) <= 4 * EPS * 50e9


def test_the_slowest_card_sets_the_rate():
    """One card that lost a plane slows the group, because all wait at the exit barrier."""
    whole = ubl128(8)
    lost = without_links(whole, np.array([0]))
    assert network_of_topology(whole).scaleup_bytes_per_s == 400e9
    assert network_of_topology(lost).scaleup_bytes_per_s == 350e9


def test_a_thin_trunk_shows_in_the_busiest_link():
    """Half as fast uplinks double what traffic between the leaves needs."""
    wide, thin = (network_of_topology(leaf_spine(uplink_rate=rate)) for rate in ("50GB/s", "25GB/s"))
    matrix = np.zeros((128, 128))
    matrix[:8, 8:16] = 1e9
    assert busiest_link_s(thin, matrix) == 2 * busiest_link_s(wide, matrix)


def test_a_graph_without_links_is_refused():
    """Cards that nothing joins are no network."""
    one = ubl128(2)
    bare = without_links(one, np.arange(one.num_links))
    assert isinstance(bare, Topology)
    with pytest.raises((InputError, TopologyError)) as refused:
        network_of_topology(bare)
    assert "no" in str(refused.value)


@pytest.mark.parametrize("name", ["950dt", "h800-cx7", "sm100-nvlink", "910c"])
def test_a_profile_alone_gives_rates_without_a_graph(name):
    """The rates are the profile's, and no number of cards is known."""
    hardware = hardware_profile(name)
    found = network_of_profile(hardware)
    assert (found.topology, found.num_npus) == (None, None)
    assert found.scaleup_bytes_per_s == hardware.scaleup_rate.value
    assert busiest_link_s(found, np.full((4, 4), 1e12)) == 0.0


def share(**settings):
    """Payload share of the standard card with some settings."""
    hardware, _ = override(HARDWARE, SOFTWARE, settings)
    return payload_share(hardware)


def test_the_payload_limit_of_ctp_packets_of_2_kib():
    """364.3 GB/s of 400 with the 128-bit EID and an acknowledgement for each packet. Source: network.md 2."""
    assert round(400 * share(), 1) == 364.3


@given(payload=st.integers(1, 9600), packets=st.integers(0, 32))
def test_the_payload_share_is_a_share(payload, packets):
    """Packets always cost something, and never everything."""
    assert 0 < share(packet_payload=f"{payload}B", packets_per_taack=packets) < 1


@pytest.mark.parametrize("payload", ["512B", "1KiB", "2KiB", "4KiB"])
def test_fewer_acknowledgements_leave_more_for_payload(payload):
    """One TAACK for 4 packets costs less than one for each, and none costs nothing."""
    each, fourth, none = (share(packet_payload=payload, packets_per_taack=n) for n in (1, 4, 0))
    assert each < fourth < none


def test_without_a_packet_form_the_profile_states_the_share():
    """Line efficiency times payload efficiency, as for networks whose framing nobody described."""
    stated = share(packet_form="none", payload_efficiency=0.5)
    assert abs(stated - 0.5 * HARDWARE.line_efficiency.value) <= 2 * EPS
