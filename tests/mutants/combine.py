"""Mutants of combine, its reduce epilogue and the sums of rows."""

from tests.mutants.mutant import Mutant

MAIN = "kernels/ep/combine.hpp"
FETCH = "kernels/ep/combine_fetch.hpp"
REDUCE = "kernels/ep/combine_epilogue.hpp"
ROWS = "kernels/common/rows.hpp"

SENDING = (
    Mutant(
        name="combine: no entry barrier",
        file=MAIN,
        old="  rank_barrier(cfg, t.comm, kEntryBarrier);\n",
        new="",
        bug="slots are written while a peer still reads the dispatch",
    ),
    Mutant(
        name="combine: tables not ready",
        file=MAIN,
        old="""uint32_t{cfg.num_ranks});
  order(PIPE_V, PIPE_S);
""",
        new="uint32_t{cfg.num_ranks});\n",
        bug="removed wait, V to S",
    ),
    Mutant(
        name="combine: task used before it is fetched",
        file=MAIN,
        old="      asc_sync_wait(PIPE_V, PIPE_S, stage);\n",
        new="",
        bug="removed wait, V to S, and flags that stay set",
    ),
    Mutant(
        name="combine: one event for both stages",
        file=MAIN,
        old="    asc_sync_notify(PIPE_V, PIPE_S, stage);\n",
        new="    asc_sync_notify(PIPE_V, PIPE_S, 0);\n",
        bug="the event of one stage is set twice",
    ),
    Mutant(
        name="combine: doorbell before the rows are stored",
        file=MAIN,
        old="    order(PIPE_MTE3, PIPE_S);\n",
        new="",
        bug="flag before data: requests gather rows that MTE3 still writes",
    ),
    Mutant(
        name="combine: head of the next task",
        file=MAIN,
        old="num_sent_ = ub<uint32_t>(plan_.requests_end)[stage];",
        new="num_sent_ = ub<uint32_t>(plan_.num_requests)[0];",
        bug="the count is read from a word that the next task moves",
    ),
    Mutant(
        name="combine: queue not filled up",
        file=MAIN,
        old="const uint32_t count = urma::kSqStartStep - start % urma::kSqStartStep;",
        new="const uint32_t count = 1;",
        bug="the next call does not start at a multiple of four blocks",
    ),
    Mutant(
        name="combine: closing NOP without order",
        file=MAIN,
        old="urma::nop_flags(start + block, block + 1 == count, cfg_.sq_depth)",
        new="""urma::nop_flags(start + block, false, cfg_.sq_depth) |
                                   urma::put(urma::kCompletion, block + 1 == count)""",
        bug="the completion of the NOP does not wait for the writes",
    ),
    Mutant(
        name="combine: local record at the lowest column",
        file=MAIN,
        old="home_record(token, num_rows - 1)",
        new="home_record(token, num_rows * 0)",
        bug="master lowest in place of highest",
    ),
    Mutant(
        name="combine: neighbouring positions",
        file=MAIN,
        old="const uint64_t position = task.first + i * cfg_.num_aivs;",
        new="const uint64_t position = task.first + i;",
        bug="AIVs write sums into each other's records",
        variant="many tokens",
    ),
    Mutant(
        name="combine: weights not zeroed",
        file=FETCH,
        old="if (simt::lane() >= cfg.num_topk)",
        new="if (simt::lane() >= cfg.num_topk || row < 0)",
        bug="positions of others keep what lay in the record",
    ),
    Mutant(
        name="combine: groups by position",
        file=FETCH,
        old="by_rank ? rank : position_k, home_token",
        new="by_rank && cfg.num_ranks == 0 ? rank : position_k, home_token",
        bug="writer and reader number the groups differently when R < K",
    ),
    Mutant(
        name="combine: home token of the group",
        file=FETCH,
        old="static_cast<uint32_t>(gid) % cfg.num_max_tokens",
        new="static_cast<uint32_t>(gid)",
        bug="the rank is left in the number of the token",
    ),
    Mutant(
        name="combine: requests before the tokens are fetched",
        file=FETCH,
        old="""  asc_syncthreads();
  if (task.home != t.comm.rank)""",
        new="  if (task.home != t.comm.rank)",
        bug="removed barrier: warps read tokens of other warps",
    ),
    Mutant(
        name="combine: count moved too early",
        file=FETCH,
        old="""    asc_syncthreads();
    if (threadIdx.x == 0)""",
        new="    if (threadIdx.x == 0)",
        bug="removed barrier: warps start at the count of the next task",
    ),
    Mutant(
        name="combine: sum where each row travels",
        file=FETCH,
        old="const bool is_in_place = cfg.single_reduction || num_rows == 1;",
        new="const bool is_in_place = num_rows == 1;",
        bug="the send buffer has no rows when nothing is summed",
    ),
)

REDUCING = (
    Mutant(
        name="reduce: no exit barrier",
        file=REDUCE,
        old="    rank_barrier(cfg, t.comm, exit_barrier(cfg.num_aivs, false));\n",
        new="",
        bug="records are summed before peers have sent them",
    ),
    Mutant(
        name="reduce: exit barrier without drain",
        file=REDUCE,
        old="exit_barrier(cfg.num_aivs, false)",
        new="exit_barrier(0, true)",
        bug="peers are told while combine's writes are under way",
    ),
    Mutant(
        name="reduce: plan used before it is made",
        file=REDUCE,
        old="asc_sync_wait(PIPE_V, PIPE_S, (batch - 1) % kPlanStages);",
        new="asc_sync_wait(PIPE_V, PIPE_S, batch % kPlanStages);",
        bug="wait on the wrong event",
    ),
    Mutant(
        name="reduce: master lowest",
        file=REDUCE,
        old="for (uint32_t later = k + 1; later < cfg.num_topk && !cfg.single_reduction; ++later)",
        new="for (uint32_t later = 0; later < k && !cfg.single_reduction; ++later)",
        bug="the record is looked for at the lowest column",
    ),
    Mutant(
        name="reduce: one record per rank always",
        file=REDUCE,
        old="later < cfg.num_topk && !cfg.single_reduction; ++later",
        new="later < cfg.num_topk; ++later",
        bug="dedup where every row has travelled alone",
    ),
    Mutant(
        name="reduce: first bias twice",
        file=REDUCE,
        old="batch_.load_input(t_.bias[bias] +",
        new="batch_.load_input(t_.bias[bias * 0] +",
        bug="bias twice, and the second never",
    ),
    Mutant(
        name="sum: order changed",
        file=ROWS,
        old="const uint32_t pair = first[input * shape.slot_words + word];",
        new="const uint32_t pair = first[(count - input) * shape.slot_words + word];",
        bug="reduction order changed: last contributor first",
    ),
    Mutant(
        name="sum: rounding missing",
        file=ROWS,
        old="return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;",
        new="return bits >> 16;",
        bug="rounding per contribution missing: bits are cut off",
    ),
    Mutant(
        name="sum: ties away from zero",
        file=ROWS,
        old="return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;",
        new="return (bits + 0x8000u) >> 16;",
        bug="ties do not go to even",
    ),
    Mutant(
        name="sum: rounded after every addition",
        file=ROWS,
        old="    low += simt::low_half(pair);\n",
        new="    low = simt::low_half(simt::round_to_bf16(low + simt::low_half(pair)));\n",
        bug="bf16 accumulator in place of fp32",
    ),
    Mutant(
        name="sum: weights of biases",
        file=ROWS,
        old="for (uint32_t input = shape.num_plain; input < count; ++input)",
        new="for (uint32_t input = 0 * shape.num_plain; input < count; ++input)",
        bug="biases have no weights: what lies behind them is taken",
    ),
    Mutant(
        name="sum: rows summed before they are loaded",
        file=ROWS,
        old="      order(PIPE_MTE2, PIPE_V, half_);\n",
        new="",
        bug="removed wait, MTE2 to V",
    ),
    Mutant(
        name="sum: rows stored before they are summed",
        file=ROWS,
        old="      order(PIPE_V, PIPE_MTE3, half_);\n",
        new="",
        bug="removed wait, V to MTE3",
    ),
    Mutant(
        name="sum: copy stored before it is loaded",
        file=ROWS,
        old="      order(PIPE_MTE2, PIPE_MTE3, half_);\n",
        new="",
        bug="removed wait, MTE2 to MTE3",
    ),
    Mutant(
        name="sum: half reused too early",
        file=ROWS,
        old="""    if (num_jobs_ == 0 && is_in_flight_[half_]) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, half_);
      is_in_flight_[half_] = false;
    }
""",
        new="",
        bug="slots are filled again while they are stored",
        variant="many tokens",
    ),
    Mutant(
        name="sum: flag left set",
        file=ROWS,
        old="for (uint32_t half = 0; half < num_halves_; ++half)",
        new="for (uint32_t half = 1; half < num_halves_; ++half)",
        bug="the kernel ends with a flag that the next one finds set",
    ),
)

COMBINE = (*SENDING, *REDUCING)
