// combine: what the experts made of a token goes home; a rank first sums its own rows of the token.
//
// Tokens are served in tasks of eight of one home rank. Lanes fetch two tasks ahead and write their requests;
// a token with one row is sent in place, one with several goes through UB. The doorbell rings every eight
// remote tasks. Facts: deepep-ascend.md section 4.5.
#pragma once

#include <kernels/common/barrier.hpp>
#include <kernels/common/rows.hpp>
#include <kernels/ep/combine_fetch.hpp>

namespace epsim::ep {

// The most blocks that an AIV may need, the closing NOPs included.
template <class Cfg>
__aicore__ uint64_t most_combine_blocks(const Cfg& cfg, const CombineUb& plan, uint32_t rank, uint32_t aiv) {
  uint64_t num_tokens = 0;
  for (uint32_t home = 0; home < cfg.num_ranks; ++home) {
    if (home != rank) {
      num_tokens += home_share(cfg, ub<const uint32_t>(plan.psum_rank), home, aiv).count;
    }
  }
  const uint64_t per_token = cfg.single_reduction ? cfg.num_topk : 1;
  return num_tokens * per_token * urma::kCombineWqebbs + urma::kSqStartStep;
}

template <class Cfg>
class Combiner {
 public:
  __aicore__ Combiner(const Cfg& cfg, const CombineTensors& t, const CombineUb& plan, uint32_t aiv)
      : cfg_(cfg),
        t_(t),
        plan_(plan),
        dealer_(cfg, ub<const uint32_t>(plan.psum_rank), t.comm.rank, aiv),
        batch_(
            RowShape{
                .slot_words = cfg.hidden / 2, .row_words = cfg.hidden / 2, .weight_words = 0, .num_plain = 0},
            cfg.num_threads, plan.rows, cfg.ub_bytes, cfg.num_topk) {
    if (cfg.num_ranks > 1) {
      jetty_ = open_jetty(t.comm, aiv, most_combine_blocks(cfg, plan, t.comm.rank, aiv), cfg.sq_depth);
    }
  }

  __aicore__ void run() {
    for (uint32_t stage = 0; stage < kTaskStages; ++stage) {
      fetch(stage);
    }
    for (uint32_t stage = 0; tasks_[stage].count != 0; stage = (stage + 1) % kTaskStages) {
      asc_sync_wait(PIPE_V, PIPE_S, stage);
      process(tasks_[stage], ub<uint32_t>(plan_.stages + stage * plan_.stage_bytes));
      if (tasks_[stage].home != t_.comm.rank) {
        num_sent_ = ub<uint32_t>(plan_.requests_end)[stage];
        ++num_remote_tasks_;
        if (num_remote_tasks_ % kTasksPerDoorbell == 0) {
          finish_rows();
          ring_doorbell(jetty_, head(), jetty_.num_expected_completions);
        }
      }
      fetch(stage);
    }
    finish_rows();
    if (num_remote_tasks_ != 0) {
      close_queue();
    }
    batch_.finish();
  }

 private:
  __aicore__ uint32_t head() const { return jetty_.wqebb_head + urma::kCombineWqebbs * num_sent_; }

  __aicore__ void fetch(uint32_t stage) {
    tasks_[stage] = dealer_.take();
    if (tasks_[stage].count == 0) {
      return;
    }
    const CombineSource source{.sq_base = jetty_.sq_base, .head = jetty_.wqebb_head};
    asc_vf_call<fetch_task<Cfg>>(cfg_.num_threads, cfg_, t_, plan_, source, tasks_[stage], stage);
    asc_sync_notify(PIPE_V, PIPE_S, stage);
  }

  // Move the rows of a task's tokens; those that are sent in place need nothing.
  __aicore__ void process(const Task& task, ub<uint32_t> stage) {
    const bool is_local = task.home == t_.comm.rank;
    for (uint32_t i = 0; i < task.count; ++i) {
      const ub<uint32_t> token = stage + i * task_token_words(cfg_.num_topk);
      const uint32_t num_rows = token[kTaskNumRows];
      if (cfg_.single_reduction || num_rows == 1) {
        for (uint32_t row = 0; is_local && row < num_rows; ++row) {
          batch_.add_job(1, {home_record(token, row), 0});
          load_row(token, row);
        }
        continue;
      }
      const uint64_t position = task.first + i * cfg_.num_aivs;
      const uint64_t target =
          is_local ? home_record(token, num_rows - 1) : t_.send_buffer + position * combine_bytes(cfg_);
      batch_.add_job(num_rows, {target, 0});
      for (uint32_t row = 0; row < num_rows; ++row) {
        load_row(token, row);
      }
    }
  }

  __aicore__ void load_row(ub<uint32_t> token, uint32_t index) {
    const uint32_t row = token[kTaskRows + index];
    batch_.load_input(t_.x + uint64_t{row} * 2 * cfg_.hidden, 2 * cfg_.hidden);
  }

  __aicore__ uint64_t home_record(ub<uint32_t> token, uint32_t index) const {
    const uint32_t position_k = token[kTaskRows + cfg_.num_topk + index];
    const uint32_t home_token = token[kTaskHomeToken];
    return t_.comm.window + layout::kEpOffset + home_offset(cfg_, t_.comm.rank, position_k, home_token);
  }

  // All rows so far are stored, and S knows it.
  __aicore__ void finish_rows() {
    batch_.flush();
    order(PIPE_MTE3, PIPE_S);
  }

  // NOPs up to the next multiple of four blocks, one at least; the last one asks for the only completion.
  __aicore__ void close_queue() {
    const uint32_t start = head();
    const uint32_t count = urma::kSqStartStep - start % urma::kSqStartStep;
    for (uint32_t block = 0; block < count; ++block) {
      const gm<uint64_t> words = simt::sq_word(jetty_.sq_base, cfg_.sq_depth, start + block, 0);
      asc_store_dev(words, urma::nop_flags(start + block, block + 1 == count, cfg_.sq_depth));
      for (uint32_t word = 1; word < urma::kWqebbWords; ++word) {
        asc_store_dev(words + word, 0);
      }
    }
    ring_doorbell(jetty_, start + count, jetty_.num_expected_completions + 1);
  }

  const Cfg& cfg_;
  const CombineTensors& t_;
  const CombineUb& plan_;
  TaskDealer<Cfg> dealer_;
  RowBatch batch_;
  urma::JettyInfo jetty_{};
  Task tasks_[kTaskStages] = {};
  uint32_t num_sent_ = 0;
  uint32_t num_remote_tasks_ = 0;
};

template <class Cfg>
__aicore__ void combine_impl(gm<const CombineArgs> args, Cfg cfg) {
  asc_init_soc_state();
  const auto t = read_struct<CombineTensors>(gm_field(args, &CombineArgs::tensors));
  const uint32_t aiv = asc_get_block_idx();
  const CombineUb plan = plan_combine_ub(cfg);
  rank_barrier(cfg, t.comm, kEntryBarrier);
  asc_vf_call<load_combine_tables>(cfg.num_threads, t, plan, uint32_t{cfg.num_ranks});
  order(PIPE_V, PIPE_S);
  Combiner<Cfg>(cfg, t, plan, aiv).run();
  asc_sync_pipe(PIPE_ALL);
  if (cfg.barrier_in_prologue) {
    rank_barrier(cfg, t.comm, exit_barrier(cfg.num_aivs, false));
  }
}

}  // namespace epsim::ep
