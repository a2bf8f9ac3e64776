"""UnifiedBus framing: the published efficiency tables to the digit, and the inequality by brute force."""

import dataclasses
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology import framing
from topology.errors import TopologyError
from topology.framing import ACK_EACH, ACK_NONE, CTP6, CTP7, FORMS, RTP, UBMEM, AckPolicy, PacketForm

# Golden: network.md section 2, first table. Payload, CTP6 flits and blocks, CTP6 forward efficiency,
# CTP6 efficiency with one TAACK per packet, then GB/s with ack of CTP6, CTP7, RTP and UBMEM at the
# capacity 8 ports x 4 lanes x 106.25 Gb/s x 120/128 / 8 = 398.4375 GB/s.
# One row by hand, P = 1024: 52 + 1024 + 4 x 2 + 2 x 1 = 1086 bytes -> 55 flits (1100 B), 2 blocks;
# 1024 / 1100 = 0.931; 1024 / (1100 + 40) = 0.898; x 398.4375 = 357.9.
PACKET_TABLE = [
    (256, 16, 1, "0.800", "0.711", "283.3", "231.8", "242.9", "318.8"),
    (512, 29, 1, "0.883", "0.826", "329.0", "300.0", "309.1", "351.7"),
    (1024, 55, 2, "0.931", "0.898", "357.9", "340.0", "345.8", "370.9"),
    (2048, 107, 4, "0.957", "0.939", "374.3", "364.3", "367.6", "384.9"),
    (4096, 210, 7, "0.975", "0.966", "384.9", "379.5", "381.3", "388.6"),
    (8192, 416, 13, "0.985", "0.980", "390.4", "386.7", "387.6", "392.3"),
]
# Golden: second table, row-granular messages, CTP6 with ack, GB/s at MTU 512, 1024, 2048, 4096.
# One entry by hand, 7464 at 1024: 7 full packets and 296 B; 7 x 55 + 18 = 403 flits = 8060 B, and
# 8 TAACKs = 320 B; 7464 / 8380 x 398.4375 = 354.9.
MESSAGE_TABLE = [
    (7464, ("327.5", "354.9", "372.7", "384.2")),
    (14360, ("327.3", "355.8", "372.0", "383.5")),
]
FORM_LIST = list(FORMS.values())
forms = st.sampled_from(FORM_LIST)
padded_forms = st.sampled_from([dataclasses.replace(form, pads_transport=True) for form in FORM_LIST])
payloads = st.integers(1, 9600)
policies = st.builds(AckPolicy, packets_per_taack=st.integers(1, 32))


def gb_per_s(form: PacketForm, mtu: int, message_bytes: int | None = None) -> str:
    return f"{framing.payload_limit_bytes_per_s(form, mtu, message_bytes) / 1e9:.1f}"


@pytest.mark.parametrize(
    ("form", "header_bytes", "taack_bytes"), [(CTP6, 52, 40), (CTP7, 83, 80), (RTP, 62, 80), (UBMEM, 28, 20)]
)
def test_header_sums_and_acknowledgements_are_the_published_ones(form, header_bytes, taack_bytes):
    assert (form.header_bytes, form.taack_wire_bytes) == (header_bytes, taack_bytes)


@pytest.mark.parametrize("row", PACKET_TABLE, ids=lambda row: str(row[0]))
def test_packet_table_is_reproduced_to_the_printed_digit(row):
    payload = row[0]
    assert row == (
        payload,
        CTP6.flits(payload),
        CTP6.blocks(payload),
        f"{float(framing.forward_efficiency(CTP6, payload)):.3f}",
        f"{float(framing.efficiency(CTP6, payload)):.3f}",
        *(gb_per_s(form, payload) for form in (CTP6, CTP7, RTP, UBMEM)),
    )


@pytest.mark.parametrize(("row_bytes", "limits"), MESSAGE_TABLE)
def test_message_table_is_reproduced_to_the_printed_digit(row_bytes, limits):
    assert tuple(gb_per_s(CTP6, mtu, row_bytes) for mtu in (512, 1024, 2048, 4096)) == limits


def test_default_capacity_is_3187_5_gigabits():
    assert framing.capacity() == 398_437_500_000
    assert framing.capacity(lane_bits_per_s=112 * 10**9) == 420e9
    assert framing.capacity(ports=1, fec=Fraction(1)) == 53.125e9


def brute_force_flits(used_bytes: int) -> int:
    flits = 1
    while True:
        blocks = (flits + 31) // 32
        if 20 * flits >= used_bytes + 4 * blocks + 2 * (blocks - 1):
            return flits
        flits += 1


@settings(deadline=None)
@given(forms, payloads)
def test_flits_is_the_smallest_count_that_holds_the_packet(form, payload):
    assert form.flits(payload) == brute_force_flits(form.header_bytes + payload)


@pytest.mark.parametrize("form", FORM_LIST, ids=lambda form: form.name)
def test_vector_counts_equal_scalar_counts_for_every_payload(form):
    every = np.arange(1, form.max_payload_bytes + 1)
    assert form.flits_of(every).tolist() == [form.flits(p) for p in range(1, form.max_payload_bytes + 1)]


@settings(deadline=None)
@given(padded_forms, payloads)
def test_padding_completes_transport_and_payload_to_four_bytes(form, payload):
    transport = sum(field.num_bytes for field in form.header if field.layer == "transport")
    pad = next(p for p in range(4) if (transport + payload + p) % 4 == 0)
    assert form.flits(payload) == brute_force_flits(form.header_bytes + payload + pad)
    assert form.flits_of(np.array([payload])).tolist() == [form.flits(payload)]


@pytest.mark.parametrize(
    ("payload", "extra"), [(256, 0), (512, 1), (1024, 0), (2048, 0), (4096, 1), (8192, 0)]
)
def test_padding_costs_ctp7_one_flit_at_512_and_4096(payload, extra):
    padded = dataclasses.replace(CTP7, pads_transport=True)
    assert padded.flits(payload) - CTP7.flits(payload) == extra


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("form", FORM_LIST, ids=lambda form: form.name)
def test_largest_payload_fills_the_largest_packet(form, pads):
    form = dataclasses.replace(form, pads_transport=pads)
    assert form.flits(form.max_payload_bytes) == 512
    assert form.blocks(form.max_payload_bytes) == 16
    with pytest.raises(TopologyError, match=f"at most {form.max_payload_bytes}"):
        form.flits(form.max_payload_bytes + 1)


@settings(deadline=None)
@given(forms, payloads, policies)
def test_acknowledgements_only_cost(form, payload, ack):
    with_ack = framing.efficiency(form, payload, ack)
    assert 0 < with_ack < framing.forward_efficiency(form, payload) < 1
    assert with_ack >= framing.efficiency(form, payload, ACK_EACH)


@settings(deadline=None)
@given(forms, payloads)
def test_a_longer_payload_never_takes_fewer_flits(form, payload):
    # Efficiency itself is not monotone (a new flit or block is a step), so it is not claimed.
    assert form.flits(payload) <= form.flits(payload + 1) <= form.flits(payload) + 2


@settings(deadline=None)
@given(forms, st.sampled_from(framing.URMA_MTUS), st.integers(1, 20), policies)
def test_whole_packets_have_the_efficiency_of_one(form, mtu, count, ack):
    assert framing.message_efficiency(form, count * mtu, mtu, ack) == framing.efficiency(form, mtu, ack)


@settings(deadline=None)
@given(forms, st.sampled_from(framing.URMA_MTUS), st.integers(1, 40_000))
def test_message_bytes_are_the_sum_over_its_packets(form, mtu, message):
    sizes = [min(mtu, message - start) for start in range(0, message, mtu)]
    want = sum(20 * form.flits(size) + form.taack_wire_bytes for size in sizes)
    assert framing.message_wire_bytes(form, message, mtu) == want


def test_aggregated_acknowledgements_approach_the_forward_efficiency():
    # 1100 B + 40/32 B per packet.
    aggregated = framing.efficiency(CTP6, 1024, AckPolicy(packets_per_taack=32))
    assert aggregated == Fraction(1024) / (1100 + Fraction(40, 32))
    assert framing.efficiency(CTP6, 1024, ACK_NONE) == framing.forward_efficiency(CTP6, 1024)


@settings(deadline=None)
@given(st.floats(1.0, 1e15), forms)
def test_limit_is_linear_in_the_capacity_and_below_it(rate, form):
    limit = framing.payload_limit_bytes_per_s(form, 1024, 7464, ACK_EACH, rate)
    assert limit == float(Fraction(rate) * framing.message_efficiency(form, 7464, 1024))
    assert limit < rate


def test_every_number_of_the_module_has_a_source():
    numbers = {
        name
        for name, value in vars(framing).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, int | tuple | Fraction)
    }
    assert numbers == set(framing.SOURCES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CTP6.flits(0), "payload bytes is 0: must be a positive integer"),
        (lambda: CTP6.flits(True), "payload bytes is True"),
        (lambda: CTP6.flits(1.5), "payload bytes is 1.5"),  # type: ignore[arg-type]
        (lambda: CTP6.flits_of(np.array([8, 0])), "payload bytes is 0: must be in 1.."),
        (lambda: CTP6.flits_of(np.array([10**6])), "payload bytes is 1000000: must be in 1.."),
        (lambda: framing.message_efficiency(CTP6, -1), "message bytes is -1"),
        (lambda: framing.message_efficiency(CTP6, 1, 0), "mtu is 0"),
        (
            lambda: framing.message_efficiency(CTP6, 20_000, 16_384),
            "payload bytes is 16384: must fit one ctp6",
        ),
        (lambda: AckPolicy(packets_per_taack=33), "packets per TAACK is 33: must be an integer in 0..32"),
        (lambda: AckPolicy(packets_per_taack=-1), "packets per TAACK is -1"),
        (lambda: framing.efficiency(RTP, 1024, ACK_NONE), "must be at least 1 for rtp; only CTP can skip it"),
        (lambda: framing.capacity(ports=0), "ports is 0"),
        (lambda: framing.capacity(lane_bits_per_s=-1), "lane bits per second is -1"),
        (lambda: framing.capacity(fec=Fraction(3, 2)), "fec rate is '3/2': must be in"),
        (
            lambda: framing.payload_limit_bytes_per_s(capacity_bytes_per_s=float("nan")),
            "must be positive and finite",
        ),
        (
            lambda: framing.HeaderField(name="x", num_bytes=0, layer="link", source=framing.LPH.source),
            "field x is 0",
        ),
    ],
)
def test_bad_input_is_refused_with_field_value_and_rule(call, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        call()
