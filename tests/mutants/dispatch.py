"""Mutants of the dispatch kernel."""

from tests.mutants.mutant import LATER_CALLS, Mutant

MAIN = "kernels/ep/dispatch.hpp"
ROUTE = "kernels/ep/dispatch_route.hpp"
COUNTS = "kernels/ep/dispatch_counts.hpp"
REQUESTS = "kernels/ep/dispatch_requests.hpp"

ROUTING = (
    Mutant(
        name="route: dedup lost",
        file=ROUTE,
        old="is_master = is_master && !(has_other && other == rank);",
        new="is_master = is_master && !(has_other && other == rank && rank < 0);",
        bug="a token goes twice to a rank that has two of its experts",
    ),
    Mutant(
        name="route: master lowest",
        file=ROUTE,
        old="""    const bool has_other = k + step < num_lanes;
      const int32_t other = asc_shfl(rank, has_other ? simt::lane() + step : simt::lane());
""",
        new="""    const bool has_other = k >= step;
      const int32_t other = asc_shfl(rank, has_other ? simt::lane() - step : simt::lane());
""",
        bug="the record stands for the lowest column in place of the highest",
    ),
    Mutant(
        name="route: lanes of the next token",
        file=ROUTE,
        old="const bool has_other = k + step < num_lanes;",
        new="const bool has_other = simt::lane() + step < kWarpLanes;",
        bug="lane order: the shuffle looks beyond the own token",
    ),
    Mutant(
        name="route: counters not ready",
        file=ROUTE,
        old="""  asc_syncthreads();
  count_choices""",
        new="  count_choices",
        bug="lanes count into words that others still clear",
    ),
    Mutant(
        name="route: counts published early",
        file=ROUTE,
        old="""  asc_syncthreads();
  publish_counts""",
        new="  publish_counts",
        bug="other AIVs learn a count that still grows",
    ),
    Mutant(
        name="route: last request cut off",
        file=ROUTE,
        old="layout::ceil_div(num_records, urma::kDispatchRecords)",
        new="num_records / urma::kDispatchRecords",
        bug="rounded down: a request that is not full is none",
    ),
    Mutant(
        name="route: requests of the next peer",
        file=ROUTE,
        old="ub<uint32_t>(plan.rank_base)[peer] = total + up_to - count;",
        new="ub<uint32_t>(plan.rank_base)[peer] = total + up_to;",
        bug="inclusive sum where the exclusive one is meant",
    ),
    Mutant(
        name="route: own count in the prefix",
        file=ROUTE,
        old="layout::pack_word(2, total + up_to - count)",
        new="layout::pack_word(2, total + up_to)",
        bug="off-by-one in the prefix over AIVs",
    ),
    Mutant(
        name="route: slot without the prefix",
        file=ROUTE,
        old="ub<uint32_t>(plan.entry_slot)[entry] = before + number;",
        new="ub<uint32_t>(plan.entry_slot)[entry] = number;",
        bug="all AIVs write from slot 0 on",
    ),
    Mutant(
        name="route: cached, one request short",
        file=ROUTE,
        old="asc_atomic_max(ub<uint32_t>(plan.num_requests), request + 1);",
        new="asc_atomic_max(ub<uint32_t>(plan.num_requests), request);",
        bug="number of the last request in place of how many there are",
    ),
)

COUNTING = (
    Mutant(
        name="counts: psum not aligned",
        file=COUNTS,
        old="store_running_sum(aligned, counts, num_local_experts(cfg)",
        new="store_running_sum(counts, counts, num_local_experts(cfg)",
        bug="blocks of experts begin where the rows before end",
    ),
    Mutant(
        name="counts: host gets rows unaligned",
        file=COUNTS,
        old="asc_stcg(host, layout::pack_word(cfg.num_ranks, rows));",
        new="asc_stcg(host, layout::pack_word(cfg.num_ranks, count));",
        bug="outputs are allocated too small",
    ),
    Mutant(
        name="counts: expert word not cleared",
        file=COUNTS,
        old="""simt::wait_arrivals(word, cfg.num_aivs);
    asc_stcg(word, 0);
    const uint64_t offset""",
        new="""simt::wait_arrivals(word, cfg.num_aivs);
    const uint64_t offset""",
        bug="count not cleared: the next dispatch adds to it",
        scenarios=LATER_CALLS,
    ),
    Mutant(
        name="counts: rank word not cleared",
        file=COUNTS,
        old="""    asc_stcg(word, 0);
    counts[rank] = count;
""",
        new="    counts[rank] = count;\n",
        bug="the next dispatch takes the old count for its own",
        scenarios=LATER_CALLS,
    ),
    Mutant(
        name="counts: global number of an expert",
        file=COUNTS,
        old="layout::remote_expert_word(expert % num_local_experts(cfg))",
        new="layout::remote_expert_word(expert)",
        bug="words of the receiver are by local expert",
    ),
    Mutant(
        name="counts: statistics overwritten",
        file=COUNTS,
        old="asc_stcg(total, before + static_cast<int32_t>(count));",
        new="asc_stcg(total, before * 0 + static_cast<int32_t>(count));",
        bug="counts of earlier steps are lost",
    ),
)

SENDING = (
    Mutant(
        name="dispatch: no entry barrier",
        file=MAIN,
        old="  rank_barrier(cfg, t.comm, kEntryBarrier);\n",
        new="",
        bug="slot reuse while a peer still reads the call before",
    ),
    Mutant(
        name="dispatch: image not known complete",
        file=MAIN,
        old="""  order(PIPE_MTE3, PIPE_S);
  order(PIPE_V, PIPE_S);
""",
        new="  order(PIPE_V, PIPE_S);\n",
        bug="removed wait: requests gather metadata that MTE3 still writes",
    ),
    Mutant(
        name="dispatch: number of requests read early",
        file=MAIN,
        old="""  order(PIPE_MTE3, PIPE_S);
  order(PIPE_V, PIPE_S);
""",
        new="  order(PIPE_MTE3, PIPE_S);\n",
        bug="S reads UB words that lanes still write",
    ),
    Mutant(
        name="dispatch: doorbell before the requests",
        file=MAIN,
        old="""    order(PIPE_V, PIPE_S);
    ring_doorbell""",
        new="    ring_doorbell",
        bug="doorbell before the last SQE is written",
    ),
    Mutant(
        name="dispatch: doorbell waits for the wrong pipe",
        file=MAIN,
        old="""    order(PIPE_V, PIPE_S);
    ring_doorbell""",
        new="""    order(PIPE_MTE3, PIPE_S);
    ring_doorbell""",
        bug="wait on the wrong event",
    ),
    Mutant(
        name="dispatch: completion not counted",
        file=MAIN,
        old="jetty.num_expected_completions + is_end",
        new="jetty.num_expected_completions + (is_end ? 0 : 0)",
        bug="the drain does not know that it has to wait",
    ),
    Mutant(
        name="dispatch: return without requests",
        file=MAIN,
        old="""    copy_local_records(cfg, t, plan, own);
    start_counts(cfg, t, plan, aiv);
    return;
""",
        new="""    copy_local_records(cfg, t, plan, own);
    return;
""",
        bug="an AIV that sends nothing forgets its part of the counts",
    ),
    Mutant(
        name="dispatch: gid by tokens, not capacity",
        file=MAIN,
        old="t_.comm.rank * cfg_.num_max_tokens + rows.first + row",
        new="t_.comm.rank * t_.comm.num_tokens + rows.first + row",
        bug="right only while every rank is full",
    ),
    Mutant(
        name="dispatch: gid before its row is there",
        file=MAIN,
        old="    asc_sync_wait(PIPE_MTE2, PIPE_S, stage);\n",
        new="",
        bug="removed wait, MTE2 to S",
    ),
    Mutant(
        name="dispatch: local record before it is loaded",
        file=MAIN,
        old="    order(PIPE_MTE2, PIPE_MTE3, stage);\n",
        new="",
        bug="removed wait, MTE2 to MTE3",
    ),
    Mutant(
        name="dispatch: local stage reused too early",
        file=MAIN,
        old="""    if (num_copied >= stages) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, stage);
    }
    asc_copy""",
        new="    asc_copy",
        bug="stage reused while it is stored",
        variant="many tokens",
    ),
    Mutant(
        name="dispatch: scales of the first tokens",
        file=MAIN,
        old="const uint64_t token = own.first + i % own.count;",
        new="const uint64_t token = i % own.count;",
        bug="scales of the wrong row, on all AIVs but the first",
    ),
    Mutant(
        name="dispatch: placed scales overwritten",
        file=MAIN,
        old="has_packed_scales() ? 0 : record_.ids - record_.scales",
        new="has_packed_scales() ? 0 : 0 * record_.ids",
        bug="the copy takes scales along that are not in UB",
    ),
)

REQUEST = (
    Mutant(
        name="request: strong order dropped",
        file=REQUESTS,
        old="const uint64_t flags = urma::write_flags(head, request + 1 == num_requests, cfg.sq_depth);",
        new="""const uint64_t closing = urma::put(urma::kFence, 1) | urma::put(urma::kCompletion, 1);
    const uint64_t flags = urma::write_flags(head, false, cfg.sq_depth) |
                           (request + 1 == num_requests ? closing : 0);""",
        bug="the last completion says nothing of the requests before",
    ),
    Mutant(
        name="request: fence dropped",
        file=REQUESTS,
        old="const uint64_t flags = urma::write_flags(head, request + 1 == num_requests, cfg.sq_depth);",
        new="""const bool is_last = request + 1 == num_requests;
    const uint64_t dropped = is_last ? urma::put(urma::kFence, 1) : urma::put(urma::kOrder, ~uint64_t{0});
    const uint64_t flags = urma::write_flags(head, is_last, cfg.sq_depth) & ~dropped;""",
        bug="no order on the writes, and no fence that would make up for it",
    ),
    Mutant(
        name="request: owner bit of the first lap",
        file=REQUESTS,
        old="urma::write_flags(head, request + 1 == num_requests, cfg.sq_depth)",
        new="urma::write_flags(head % cfg.sq_depth, request + 1 == num_requests, cfg.sq_depth)",
        bug="wrong owner bit on an odd lap",
        variant="short queue",
    ),
    Mutant(
        name="request: elements of one piece",
        file=REQUESTS,
        old="simt::write_header_word(word, flags, 2 * num_records, peer, offset)",
        new="simt::write_header_word(word, flags, num_records, peer, offset)",
        bug="every record has two gather elements, payload and metadata",
    ),
    Mutant(
        name="request: rows of the first AIV",
        file=REQUESTS,
        old="const uint64_t token = source.own_first + entry / cfg.num_topk;",
        new="const uint64_t token = source.own_first * 0 + entry / cfg.num_topk;",
        bug="tokens are counted inside the AIV",
    ),
    Mutant(
        name="request: token of a later entry",
        file=REQUESTS,
        old="const uint64_t token = source.own_first + entry / cfg.num_topk;",
        new="const uint64_t token = source.own_first + entry / cfg.num_topk + (entry >= 24 ? 1 : 0);",
        bug="right for the first entries of an AIV only, as after a loop that is unrolled wrongly",
    ),
    Mutant(
        name="request: blocks without NOP",
        file=REQUESTS,
        old="return is_nop ? urma::nop_flags(head + block, false, cfg.sq_depth) : 0;",
        new="return is_nop ? 0 * urma::nop_flags(head + block, false, cfg.sq_depth) : 0;",
        bug="blocks that a short request leaves over are taken for requests",
    ),
)

DISPATCH = (*ROUTING, *COUNTING, *SENDING, *REQUEST)
