"""A law is projected to exactly what its byte matrix would load, and planted slips are seen."""

import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.flow import projection
from epsim.flow.linksums import exact_product
from epsim.flow.projection import ProductLaw, balanced_law, project_law, uniform_law
from tests.strategies import topologies
from tests.topology.oracle import spray_shares
from topology import TopologyError, clos, leaf_spine, link_bound, mesh, ubl128, without_links

LARGEST = 262_144


def listed(law):
    """Write the matrix down, the scale left out."""
    matrix = np.multiply.outer(law.out, law.into)
    np.fill_diagonal(matrix, 0)
    return matrix


SMALL, WIDE = st.sampled_from([0, 1, 1, 7, 999_983]), st.integers(0, 2**48)


@st.composite
def placed_laws(draw, numbers=SMALL):
    """Draw a topology without direct links in use, NPUs for its ranks, and a law."""
    topology = draw(topologies())
    assume(topology.num_links and topology.netlayers() != (0,))
    num_ranks = draw(st.integers(1, topology.num_npus))
    npus = np.array(draw(st.permutations(range(topology.num_npus)))[:num_ranks])
    sides = [draw(st.lists(numbers, min_size=num_ranks, max_size=num_ranks)) for _ in range(2)]
    return topology, npus, ProductLaw(*(np.array(side) for side in sides), draw(st.integers(1, 9)))


def assert_same(found, bound, scale):
    assert found.bound.link_idx == bound.link_idx
    assert found.bound.link_bytes == bound.link_bytes * scale
    np.testing.assert_array_equal(found.bound.used_links, bound.used_links)
    np.testing.assert_array_equal(found.bound.used_bytes, bound.used_bytes * float(scale))


@given(placed_laws())
def test_the_projection_equals_the_listed_matrix(drawn):
    topology, npus, law = drawn
    try:
        bound = link_bound(topology, listed(law), npus=npus)
    except TopologyError:
        with pytest.raises(TopologyError):
            project_law(topology, law, npus=npus)
        return
    found = project_law(topology, law, npus=npus)
    assert_same(found, bound, law.scale)
    scaled = link_bound(topology, listed(law) * int(law.scale), npus=npus)
    assert found.bound.time_ps == scaled.time_ps


@given(placed_laws(WIDE))
def test_numbers_beyond_63_bits_stay_exact(drawn):
    topology, npus, law = drawn
    loads = defaultdict(Fraction)
    for a, b in np.argwhere(listed_wide(law) > 0):
        shares = spray_shares(topology, npus[a], npus[b])
        assume(shares is not None)
        for link, share in shares.items():
            loads[link] += int(law.out[a]) * int(law.into[b]) * law.scale * share
    seconds = [load / topology.link(link).bandwidth_bytes_per_s for link, load in loads.items()]
    found = project_law(topology, law, npus=npus).bound
    assert found.time_ps == math.ceil(max(seconds, default=0) * 10**12)
    assert found.link_bytes == loads.get(found.link_idx, 0)


def listed_wide(law):
    matrix = np.multiply.outer(law.out.astype(object), law.into)
    np.fill_diagonal(matrix, 0)
    return matrix


@given(st.integers(1, 4), st.integers(1, 70), st.integers(1, 70), st.data())
def test_exact_product_is_the_product_of_integers(inner, bits_a, bits_b, data):
    a = np.array([[data.draw(st.integers(0, 2**bits_a)) for _ in range(inner)] for _ in range(2)], object)
    b = np.array([[data.draw(st.integers(0, 2**bits_b)) for _ in range(3)] for _ in range(inner)], object)
    np.testing.assert_array_equal(exact_product(a, b), a @ b)


def test_the_tiers_are_the_closed_form_of_an_all_to_all():
    # 32 cards in supernodes of 4 over 2 planes; leaves of 8 cards, 8 spines; 1 byte per pair.
    topology = clos(32, supernode_size=4, planes=2, scaleout_radix=16)
    tiers = project_law(topology, uniform_law(32, 1)).tiers
    assert {tier: bound.link_bytes for tier, bound in tiers.items()} == {
        "netlayer 1, card to leaf": Fraction(3, 2),
        "netlayer 1, leaf to card": Fraction(3, 2),
        "netlayer 2, card to leaf": 28,
        "netlayer 2, leaf to card": 28,
        "netlayer 2, leaf to spine": Fraction(8 * 24, 8),
        "netlayer 2, spine to leaf": Fraction(8 * 24, 8),
    }


def test_a_lost_plane_loads_the_other_planes_of_that_card_only():
    topology = ubl128(8, planes=8)
    lost = [link for link in topology.links_of(3) if topology.link_plane[link] == 5]
    bound = project_law(without_links(topology, np.array(lost)), uniform_law(8, 56)).bound
    assert bound.link_bytes == Fraction(7 * 56, 7)


def test_a_balanced_law_offers_what_it_was_given():
    law = balanced_law(np.array([30, 10, 0]), np.array([10, 10, 20]))
    matrix = np.multiply.outer(law.out, law.into) * law.scale
    assert (matrix.sum(axis=1).tolist(), matrix.sum(axis=0).tolist()) == ([30, 10, 0], [10, 10, 20])


@pytest.mark.parametrize("fault", ["own bytes", "plane", "domain"])
def test_planted_slips_change_the_answer(monkeypatch, fault):
    topology = clos(12, supernode_size=3, planes=2, scaleout_radix=6)
    law = ProductLaw(np.arange(1, 13), np.arange(12, 0, -1))
    bound = link_bound(topology, listed(law))
    rest = projection._Rest.everything(law)
    if fault == "own bytes":
        rest.own[:] = False
        monkeypatch.setattr(projection._Rest, "everything", lambda law: rest)
    elif fault == "plane":
        real = projection.usable_planes
        monkeypatch.setattr(
            projection, "usable_planes", lambda *a: real(*a) & (np.arange(a[2].shape[-1]) < 1)
        )
    else:
        rest.open[:] = True
        monkeypatch.setattr(projection, "_narrow", lambda *_: rest)
    with pytest.raises((AssertionError, TopologyError)):
        assert_same(project_law(topology, law), bound, law.scale)


def test_262144_cards_are_answered_without_their_pairs():
    bound = project_law(clos(LARGEST), uniform_law(LARGEST, 7168)).bound
    assert bound.link_bytes == (LARGEST - 128) * 7168


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: ProductLaw(np.array([1, -1]), np.array([1, 1])), "out[1]"),
        (lambda: ProductLaw(np.array([1.0]), np.array([1])), "out"),
        (lambda: ProductLaw(np.array([1]), np.array([1, 2])), "length of into"),
        (lambda: ProductLaw(np.array([1]), np.array([2**53])), "sum of into"),
        (lambda: ProductLaw(np.array([1]), np.array([1]), 0), "scale"),
        (lambda: balanced_law(np.array([1]), np.array([2])), "sum of out_bytes"),
        (lambda: uniform_law(0, 1), "num_ranks"),
        (lambda: project_law(mesh(4), uniform_law(4, 1)), "netlayer"),
        (lambda: projection.limit_cells(2**28 + 1, 9), "number of domains"),
    ],
)
def test_what_no_law_can_say_is_refused(call, field):
    with pytest.raises(InputError) as raised:
        call()
    assert raised.value.field == field


def test_ranks_and_npus_must_fit():
    with pytest.raises(TopologyError, match="number of ranks is 9"):
        project_law(leaf_spine(8, leaves=2), uniform_law(9, 1))
    with pytest.raises(TopologyError, match="number of npus is 2"):
        project_law(leaf_spine(8, leaves=2), uniform_law(3, 1), npus=np.arange(2))
