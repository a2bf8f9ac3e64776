"""Public bug cases (cases.md) of rounds, addresses, queues, flags and memory order, as kernels on the twin.

Kernels are in catalogue/public_cases.cpp; G62-G67 run there, G15 in numbers.cpp.
"""

import numpy as np
import pytest

from native.errors import TwinViolation
from tests.native.cataloguekit import (
    COMPARISON,
    KernelEntry,
    ends,
    kernel_twin,
    run_kernel,
    schedules,
    script_twin,
)
from tests.native.urmakit import STRONG, Fabric


def case(name: str, *rules: str, **options) -> KernelEntry:
    """Return an entry for a case."""
    return KernelEntry(name.upper(), "", "", frozenset(rules), name, **options)


def assert_caught(cache, entry: KernelEntry, *, always: bool = True) -> None:
    """Require that the wrong form breaks the rules, in every schedule or in some, the repaired form none."""
    wrong = set(ends(cache, entry, is_good=False))
    assert wrong - {""} == entry.rules
    assert ("" not in wrong) is always
    assert set(ends(cache, entry, is_good=True)) == {""}


def test_g14_every_rank_runs_all_rounds(jit_cache):
    """Tokens 10 and 3, rounds of 4, two buffers: counts add up; without empty rounds rank 0 hangs."""
    assert_caught(jit_cache, case("g14", "deadlock", result=((3,), (10,))))


def test_g15_an_address_beyond_31_bits(jit_cache):
    """Token x K x slot bytes is made in 64 bits, or it lands outside."""
    size = 5 << 30
    assert_caught(jit_cache, case("ot3", "gm_out_of_bounds", big_bytes=(size, size)))


def send_rows(fabric: Fabric, *, stalls: bool) -> None:
    """Rank 0 sends 40 rows of 64 B through a queue of 16; with stalls it drains after eight."""
    queue = fabric.queue()
    for row in range(40):
        queue.write(64 * row, **(STRONG if stalls and row % 8 == 7 else {}))
        if stalls and row % 8 == 7:
            queue.ring().drain()
    if not stalls:
        queue.ring()


@pytest.mark.parametrize(("strategy", "seed"), [*schedules(range(3))])
def test_g17_a_sender_that_stalls_loses_no_row(jit_cache, strategy, seed):
    fabric = Fabric(script_twin(jit_cache), seed, strategy, sq_depth=16)
    send_rows(fabric, stalls=True)
    fabric.run()
    np.testing.assert_array_equal(fabric.window(1)[: 40 * 64], fabric.content[0][: 40 * 64])
    fabric.machine.close()


@pytest.mark.parametrize(("strategy", "seed"), [*schedules(range(3))])
def test_g17_without_stalls_the_overflow_and_its_queue_are_named(jit_cache, strategy, seed):
    fabric = Fabric(script_twin(jit_cache), seed, strategy, sq_depth=16)
    send_rows(fabric, stalls=False)
    with pytest.raises(TwinViolation) as caught:
        fabric.run()
    assert (caught.value.rule, caught.value.rank, caught.value.aiv) == ("sq_overflow", 0, 0)
    fabric.machine.close()


def test_g62_a_signal_carries_the_number_of_its_call(jit_cache):
    """Four ranks, 12 steps, two buffers: a signal that is always 1 may be one of two calls ago."""
    assert_caught(jit_cache, case("g62", "data_race", COMPARISON, ranks=4))


def test_g62_counts_that_differ_hide_it(jit_cache):
    """The control: the same protocol, but no two counts are equal."""
    assert set(ends(jit_cache, case("g62_counts_vary", ranks=4), is_good=False)) == {""}


def test_g63_a_flag_waits_for_its_four_words(jit_cache):
    """Words carry the number of the step, so that old ones are seen; not every schedule swaps them."""
    assert_caught(jit_cache, case("g63", COMPARISON), always=False)


@pytest.mark.parametrize(("ep_size", "num_local"), [(16, 16), (32, 16), (8, 24), (16, 10), (6, 8)])
def test_g64_the_first_word_of_a_block_is_no_flag(jit_cache, ep_size, num_local):
    """No block of 512 B arrives as one here, padded or not; a word of its own tells, and 0 is a count."""
    num_counts = ep_size * num_local
    total = sum(i % 3 for i in range(num_counts))
    assert_caught(jit_cache, case("g64", "data_race", num_bytes=4 * num_counts, result=((total,),)))


def test_g65_a_stage_is_loaded_again_after_it_was_read(jit_cache):
    """1 + 10 + 100 + 1000 over two stages."""
    entry = case("g65", "data_race", "double_notify", result=((1111,),) * 2)
    wrong = set(ends(jit_cache, entry, is_good=False))
    assert {"data_race"} <= wrong <= entry.rules
    assert set(ends(jit_cache, entry, is_good=True)) == {""}


def test_g66_a_forwarder_serves_the_peer_that_has_room(jit_cache):
    """Three ranks, two slots each; rank 1 takes its rows last. The report has who waits where."""
    entry = case("g66", "deadlock", ranks=3)
    assert_caught(jit_cache, entry)
    violation = run_kernel(kernel_twin(jit_cache), entry, "random", 0, is_good=False)
    assert isinstance(violation, TwinViolation)
    waiting = {other["rank"]: other["file"] for other in violation.others}
    assert sorted(waiting) == [0, 1, 2]
    assert all("waits for" in other["what"] for other in violation.others)
    assert waiting[0] == "kernels/public_cases.cpp"


def test_g67_a_buffer_is_reused_after_the_other_stream_has_read_it(jit_cache):
    """Two AIVs stand for the streams of computation and of communication."""
    assert_caught(jit_cache, case("g67", "data_race", blocks=2))
