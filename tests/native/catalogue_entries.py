"""Entries of the bug catalogue that are kernels: ids and symptoms as the catalogue of known bugs has them."""

import numpy as np

from tests.native.cataloguekit import COMPARISON, KernelEntry
from tests.reference.exchange import BF16


def entry(id: str, name: str, symptom: str, rebuilt: str, *rules: str, **options) -> KernelEntry:
    """Return an entry; its rules are those of the twin or `COMPARISON`."""
    return KernelEntry(id, symptom, rebuilt, frozenset(rules), name, **options)


def rounded_sum() -> int:
    """Bits of the fp32 sum of 1 + k / 512, each rounded to bf16 by NumPy's extension."""
    values = np.array([1 + k / 512 for k in (1, 2, 3)], np.float32).astype(BF16).astype(np.float32)
    return int(values.sum(dtype=np.float32).view(np.int32))


GIB5 = 5 << 30
LANE_TABLE_BYTES = 512 + 16384 * 8 * 32
IDS = tuple(sum(lane % 9 - 1 == expert for lane in range(32)) for expert in range(8))

BETWEEN_RANKS = [
    entry("B-YU1", "yu1", "rows of the next call in the slots of this one",
          "three generations through one slot, without the word that says it was consumed", "data_race",
          COMPARISON),
    entry("B-YU3", "yu3", "hang with more than two chunks",
          "a VF polls a word that its caller stores after it; repaired, each chunk has a slot", "deadlock"),
    entry("B-YU4", "yu4", "torn progress",
          "generation and chunk in two words; repaired, in one of 64 bits", COMPARISON),
    entry("B-YU10", "yu10", "stale counters after a communicator is made again",
          "two launches count from 1 on the same words; repaired, the count goes on", "data_race", COMPARISON,
          lives=2),
    entry("B-SG2", "sg2", "ready flag cleared before the payload was copied",
          "the copy out of a slot is not waited for before the slot is given back", "data_race", COMPARISON),
    entry("B-SG4", "sg4", "hang or wrong rows in combine of several rounds",
          "write, then wait for the peer's consent; repaired, the other way round", "data_race", COMPARISON),
    entry("B-SG7", "sg7_wrap", "counter of calls wraps", "`at least` on 32 bits at 2^31; repaired, 64 bits",
          "data_race", COMPARISON),
    entry("B-SG12", "sg12", "a rank without tokens", "it returns early; repaired, it tells that it has none",
          "deadlock", result=((0,), (3,))),
    entry("B-OT1", "ot1", "last token lost",
          "the flags of tokens are read before the end flag; repaired, after it", COMPARISON),
    entry("B-OT2", "ot2", "flag seen before data", "no wait for MTE3 between the rows and the flag",
          "data_race",
          "uninitialised_load"),
    entry("B-OT5", "ot5", "region that one source fills exactly",
          "a reader copies 32 B more, a neighbour stores its flag there; repaired, 32 B are reserved",
          "data_race"),
    entry("B-OT6", "ot6", "combine's window overlaps dispatch's",
          "its offset counts one byte per element, rows have two", "data_race"),
    entry("B-OT7", "ot7", "strided status",
          "words 32 B apart are cleared as neighbours, the next round sees old ones",
          "data_race", COMPARISON),
    entry("B-OT11", "ot11", "flags cleared early",
          "the first of two AIVs clears the flag of both; repaired, after a barrier", "deadlock", blocks=2),
    entry("B-HC1", "hc1", "slices through a small buffer", "no barrier between reading and the next slice",
          "data_race", COMPARISON),
    entry("B-HC2", "hc2", "few cores skip peers", "`return` at the own rank in place of `continue`",
          "deadlock"),
]  # fmt: skip

WITHIN_RANK = [
    entry("B-SG7", "sg7_owner", "counter of calls has two owners",
          "both AIVs add to it through their caches; repaired, one does", "data_race", blocks=2),
    entry("B-SG8", "sg8", "missing DCCI on the buffer number", "one AIV stores it, another reads it",
          "unflushed_line", blocks=2),
    entry("B-SG9", "sg9", "garbage added", "a copy that adds takes 32 B, of which 20 were written",
          "uninitialised_load", result=((0, 1, 2, 3, 4, 0, 0, 0),) * 2),
    entry("B-OT12", "ot12_copies", "missing MTE3 -> MTE2", "a UB buffer is filled again before it was stored",
          "data_race", result=(tuple(range(24)),) * 2),
    entry("B-OT12", "ot12_lanes", "missing V -> MTE3", "lanes write a row that a copy takes", "data_race",
          result=(tuple(range(0, 80, 10)),) * 2),
    entry("B-OT13", "ot13", "metadata needs DCCI",
          "a line that was read once is read again after another AIV stored",
          "stale_scalar_cache", blocks=2),
    entry("B-OT17", "ot17", "cast against copy", "lanes read a row that is being copied in", "data_race",
          result=(tuple(range(0, 80, 10)),) * 2),
    entry("B-OT18", "ot18", "cleaning the smallest buffer erases its number",
          "all of the window is cleared; repaired, all but the last 32 B", COMPARISON, blocks=2),
    entry("B-HC4", "hc4", "no PipeBarrier before a barrier of cores", "the arrival does not wait for MTE3",
          "data_race", "uninitialised_load", blocks=2),
    entry("B-HC5", "hc5", "sync buffer not cleared", "counters start as they were found",
          "uninitialised_load", blocks=2),
    entry("B-SH1", "sh1_gather", "all-gather without a sync of cores", "an AIV forwards what another gathers",
          "data_race", "uninitialised_load", blocks=2),
    entry("B-SH1", "sh1_slots", "signal slots too narrow",
          "two AIVs signal through their caches, 8 B apart; repaired, 512 B", "lost_update", blocks=2),
]  # fmt: skip

NUMBERS = [
    entry("B-YU12", "yu12", "16384 tokens rejected",
          "4 MiB for 512 B and 32 B per lane; repaired, sized by the lanes",
          "gm_out_of_bounds", big_bytes=(4 << 20, LANE_TABLE_BYTES)),
    entry("B-YU13", "yu13", "combine differs from the oracle", "contributions are not rounded to BF16",
          COMPARISON,
          result=((rounded_sum(),),) * 2),
    entry("B-YU15", "yu15", "FP8 payload differs", "an offset in bytes counts elements of two bytes",
          COMPARISON,
          result=((48,),) * 2),
    entry("B-YU16", "yu16", "parallel check of slots",
          "bits are set by a load and a store; repaired, by an atomic OR",
          "data_race", result=((1,),) * 2),
    entry("B-YU17", "yu17", "wrong owner of a group",
          "the first active lane owns all; repaired, the first of each group",
          COMPARISON, result=((8, 8, 8, 8),) * 2),
    entry("B-SG1", "sg1", "combine times out at 8192 tokens",
          "an offset of 2^34 in 32 bits lands in another window",
          COMPARISON, big_bytes=(18 << 30, 18 << 30)),
    entry("B-SG3", "sg3", "UB overflow at 128 local experts",
          "a table of 128 x 512 words; repaired, in tiles",
          "ub_out_of_range", "simt_dcache_overrun"),
    entry("B-SG5", "sg5", "crash at 384 experts", "a table of 160 tokens x 384 experts; repaired, in tiles",
          "ub_out_of_range", "simt_dcache_overrun"),
    entry("B-SG6", "sg6", "wrong stride", "counts of 6 local experts, 24 B apart in UB; repaired, 32 B",
          "unaligned_access"),
    entry("B-SG10", "sg10", "counts from the prefix array", "ends of rows in place of counts", COMPARISON,
          result=((0, 1, 2, 3),) * 2),
    entry("B-SG13", "sg13", "ids of -1", "they are counted too", "ub_out_of_range", result=(IDS,) * 2),
    entry("B-OT3", "ot3", "wrong rows at large shapes", "token x K x slot bytes in 32 bits",
          "gm_out_of_bounds",
          big_bytes=(GIB5, GIB5)),
    entry("B-OT10", "ot10", "abs of an integer", "by way of the float with its bits, a NaN", COMPARISON,
          result=((1, 2, 3, 4),) * 2),
    entry("B-OT14", "ot14", "mask of 64 for 63", "a lane too many clears the neighbour's word", COMPARISON,
          result=((0, 5),) * 2),
    entry("B-OT16", "ot16", "UB overflow", "a table of 64 AIVs x 1024 experts; repaired, in tiles",
          "ub_out_of_range", "simt_dcache_overrun"),
]  # fmt: skip

KERNELS = [*BETWEEN_RANKS, *WITHIN_RANK, *NUMBERS]
