"""Mutants of kernels/common: barrier, queues, lanes, the scalar pipe."""

from tests.mutants.mutant import Mutant

BARRIER = "kernels/common/barrier.hpp"
JETTY = "kernels/common/jetty.hpp"
SIMT = "kernels/common/simt.hpp"
CORE = "kernels/common/core.hpp"

BARRIERS = (
    Mutant(
        name="barrier: one signal word",
        file=BARRIER,
        old="""  const auto phase = static_cast<uint32_t>(num_passed & 1);
  const bool is_down = ((num_passed >> 1) & 1) != 0;
""",
        new="""  const uint32_t phase = 0;
  const bool is_down = (num_passed & 1) != 0;
""",
        bug="a fast rank counts down before a slow one has seen the word full",
    ),
    Mutant(
        name="barrier: one signal short",
        file=BARRIER,
        old="is_down ? 0 : static_cast<int32_t>(cfg.num_ranks)",
        new="is_down ? 0 : static_cast<int32_t>(cfg.num_ranks) - 1",
        bug="the own signal was not thought of as one of R",
    ),
    Mutant(
        name="barrier: no drain",
        file=BARRIER,
        old="      drain_jetty(comm, jetty, cfg.timeout_cycles);\n",
        new="",
        bug="drain missing: peers are told while writes are under way",
    ),
    Mutant(
        name="barrier: no sync behind the drain",
        file=BARRIER,
        old="""    }
    sync_aivs();
  }
  if (aiv == 0)""",
        new="""    }
  }
  if (aiv == 0)""",
        bug="AIV 0 speaks for AIVs that still drain",
    ),
    Mutant(
        name="barrier: no sync at the end",
        file=BARRIER,
        old="if (options.sync_end)",
        new="if (options.sync_end && cfg.num_ranks == 0)",
        bug="AIVs other than 0 go on before the ranks have met",
    ),
    Mutant(
        name="barrier: poll through the cache",
        file=CORE,
        old="while (asc_load_dev(word) != wanted)",
        new="while (word[0] != wanted)",
        bug="poll without bypass: the line never changes",
    ),
    Mutant(
        name="barrier: plain add to the signal",
        file=BARRIER,
        old="asc_atomic_add(gm<int32_t>(word), step);",
        new="asc_stcg(gm<int32_t>(word), asc_ldcg(gm<int32_t>(word)) + step);",
        bug="load, add, store in place of an atomic: signals are lost",
    ),
)

JETTIES = (
    Mutant(
        name="doorbell: not behind the head",
        file=JETTY,
        old="""packed);
  asc_sync_data_barrier(DSB_DDR);
""",
        new="packed);\n",
        bug="DSB dropped: the doorbell overtakes the head",
    ),
    Mutant(
        name="doorbell: in front of the head",
        file=JETTY,
        old="""  asc_store_dev(gm<uint64_t>(jetty.sq_head_address), packed);
  asc_sync_data_barrier(DSB_DDR);
  asc_store_dev(gm<uint64_t>(jetty.sq_doorbell_address), uint64_t{head});
""",
        new="""  asc_store_dev(gm<uint64_t>(jetty.sq_doorbell_address), uint64_t{head});
  asc_sync_data_barrier(DSB_DDR);
  asc_store_dev(gm<uint64_t>(jetty.sq_head_address), packed);
""",
        bug="the two stores in the wrong order",
    ),
    Mutant(
        name="queue: one for all AIVs",
        file=JETTY,
        old="read_jetty_info(comm, aiv);",
        new="read_jetty_info(comm, aiv * 0);",
        bug="two producers on one send queue",
    ),
    Mutant(
        name="queue: ring does not wrap",
        file=JETTY,
        old="(head + word / urma::kWqebbWords) & (sq_depth - 1)",
        new="(head + word / urma::kWqebbWords) % (2 * sq_depth)",
        bug="the second lap is written behind the ring",
        variant="short queue",
    ),
    Mutant(
        name="drain: tail not kept",
        file=JETTY,
        old="  asc_store_dev(gm<uint32_t>(jetty.cq_tail_address), tail);\n",
        new="",
        bug="the next drain counts from an old tail",
        variant="short queue",
    ),
    Mutant(
        name="peer: entry of the next rank",
        file=JETTY,
        old="urma::peer_entry(peer, comm.rank)",
        new="peer % (num_ranks - 1)",
        bug="the table of peers has no entry for oneself, ranks above are shifted",
    ),
    Mutant(
        name="address: 32 bits",
        file=JETTY,
        old="const uint64_t window = peer[4];",
        new="const uint64_t window = static_cast<uint32_t>(uint64_t{peer[4]});",
        bug="32-bit offset: the high half of an address is lost",
    ),
    Mutant(
        name="address: region offset forgotten",
        file=JETTY,
        old="window + layout::kEpOffset + region_offset",
        new="window + region_offset",
        bug="records are written over the workspace",
    ),
)

LANES = (
    Mutant(
        name="prefix: off by one",
        file=SIMT,
        old="lane() >= step ? below : 0",
        new="lane() > step ? below : 0",
        bug="off-by-one in the prefix over a warp",
    ),
    Mutant(
        name="counts: poll through the cache",
        file=SIMT,
        old="""  while (layout::word_arrivals(value) != arrivals) {
    asc_nop(kPollCycles);
    value = asc_ldcg(word);
""",
        new="""  while (layout::word_arrivals(value) != arrivals) {
    asc_nop(kPollCycles);
    value = word[0];
""",
        bug="poll without bypass, of lanes",
    ),
    Mutant(
        name="counts: one arrival is enough",
        file=SIMT,
        old="for (uint64_t poll = 0; layout::word_arrivals(value) != arrivals; ++poll)",
        new="for (uint64_t poll = 0; layout::word_arrivals(value) == 0 && arrivals != 0; ++poll)",
        bug="the sum is taken before all ranks have added",
    ),
)

COMMON = (*BARRIERS, *JETTIES, *LANES)
