"""Mutants of the copy epilogue of dispatch."""

from tests.mutants.mutant import LATER_CALLS, Mutant

MAIN = "kernels/ep/dispatch_epilogue.hpp"
ROWS = "kernels/ep/epilogue_rows.hpp"

FIRST_ROWS = (
    Mutant(
        name="epilogue: counters not cleared",
        file=ROWS,
        old="""    if (!cfg.cached) {
      asc_stcg""",
        new="""    if (cfg.num_ranks == 0) {
      asc_stcg""",
        bug="rows of AIVs are counted on from the last call",
        scenarios=LATER_CALLS,
    ),
    Mutant(
        name="epilogue: counters cleared late",
        file=MAIN,
        old="""  asc_sync_inter_arrive(PIPE_S, kRowsZeroId);
  asc_vf_call<count_rows<Cfg>>(cfg.num_threads, cfg, t, plan, range);
  order(PIPE_V, PIPE_MTE3);
  asc_sync_inter_wait(PIPE_S, kRowsZeroId);
""",
        new="""  asc_vf_call<count_rows<Cfg>>(cfg.num_threads, cfg, t, plan, range);
  order(PIPE_V, PIPE_MTE3);
""",
        bug="an AIV clears its row after another has added to it",
    ),
    Mutant(
        name="epilogue: counts taken before they are complete",
        file=MAIN,
        old="  order(PIPE_V, PIPE_MTE3);\n",
        new="",
        bug="removed wait, V to MTE3",
    ),
    Mutant(
        name="epilogue: copy does not add",
        file=MAIN,
        old="    asc_set_atomic_add_int();\n",
        new="",
        bug="AIVs overwrite each other's counts",
    ),
    Mutant(
        name="epilogue: copies go on adding",
        file=MAIN,
        old="    asc_set_atomic_none();\n",
        new="",
        bug="the mode stays set, and rows are added to what lies there",
    ),
    Mutant(
        name="epilogue: counts told before they are stored",
        file=MAIN,
        old="  order(PIPE_MTE3, PIPE_S);\n",
        new="",
        bug="flag before data: the AIVs meet while MTE3 still adds",
    ),
    Mutant(
        name="epilogue: blocks not aligned",
        file=ROWS,
        old="start = layout::align_up<uint32_t>(end, cfg.expert_alignment);",
        new="start = end;",
        bug="wrong alignment: blocks begin right behind the rows before",
    ),
    Mutant(
        name="epilogue: expert of the next rank",
        file=ROWS,
        old="if (local >= 0 && local < num_local)",
        new="if (local >= 0 && local <= num_local)",
        bug="off by one: the neighbour's first expert counts as own",
    ),
)

COPYING = (
    Mutant(
        name="epilogue: no exit barrier",
        file=MAIN,
        old="    rank_barrier(cfg, t.comm, exit_barrier(cfg.num_aivs, true));\n",
        new="",
        bug="records are read before peers have sent them",
    ),
    Mutant(
        name="epilogue: record read before it is loaded",
        file=MAIN,
        old="    asc_sync_wait(PIPE_MTE2, PIPE_S, stage_of(number));\n",
        new="",
        bug="removed wait, MTE2 to S",
    ),
    Mutant(
        name="epilogue: one event for all stages",
        file=MAIN,
        old="    asc_sync_notify(PIPE_MTE2, PIPE_S, stage_of(number));\n",
        new="    asc_sync_notify(PIPE_MTE2, PIPE_S, 0);\n",
        bug="wait on the wrong event",
    ),
    Mutant(
        name="epilogue: master lowest",
        file=MAIN,
        old="master = static_cast<int32_t>(k);",
        new="master = master < 0 ? static_cast<int32_t>(k) : master;",
        bug="master of a record is the lowest column in place of the highest",
    ),
    Mutant(
        name="epilogue: rows all in one place",
        file=MAIN,
        old="        next_rows[local] = row + 1;\n",
        new="",
        bug="rows of an expert are written over each other",
    ),
    Mutant(
        name="epilogue: weight of the first column",
        file=MAIN,
        old="ub<const uint32_t>(record + record_.weights)[k]",
        new="ub<const uint32_t>(record + record_.weights)[k * 0]",
        bug="a row has the weight of another choice",
    ),
    Mutant(
        name="epilogue: weights through the cache",
        file=MAIN,
        old="asc_store_dev(gm<uint32_t>(t_.recv_weights) + row, weight);",
        new="gm<uint32_t>(t_.recv_weights)[row] = weight;",
        bug="missing bypass: lines that AIVs share are written back whole",
    ),
    Mutant(
        name="epilogue: scales of the record's place",
        file=MAIN,
        old="gm<uint8_t>(t_.recv_scales + row * num_bytes)",
        new="gm<uint8_t>(t_.recv_scales + row * 2)",
        bug="scales of the wrong row",
    ),
    Mutant(
        name="epilogue: padding not cleared",
        file=MAIN,
        old="    zero_payload(cfg, t, plan, aiv);\n",
        new="",
        bug="gap rows hold what lay there",
    ),
    Mutant(
        name="epilogue: padding of scales not cleared",
        file=MAIN,
        old="    asc_vf_call<zero_small_fields<Cfg>>(cfg.num_threads, cfg, t, plan, aiv);\n",
        new="",
        bug="gap rows have scales and weights that lay there",
    ),
)

EPILOGUE = (*FIRST_ROWS, *COPYING)
