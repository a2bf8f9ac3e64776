// The copy epilogue of dispatch: every received record goes to one row per expert that it has here.
//
// Rows of an expert keep the order of the records. An AIV owns a range of stream positions; it counts its
// rows, learns how many the AIVs before it have, and then copies records through UB. Facts: deepep-ascend.md
// section 4.4.
#pragma once

#include <kernels/common/barrier.hpp>
#include <kernels/ep/epilogue_rows.hpp>

namespace epsim::ep {

// Give counts[e] its start: each AIV adds its own counts to the rows of all later AIVs.
template <class Cfg>
__aicore__ void find_first_rows(const Cfg& cfg, const DispatchEpilogueTensors& t, const EpilogueUb& plan,
                                Share range, uint32_t aiv) {
  const uint32_t row_bytes = 4 * num_local_experts(cfg);
  asc_sync_data_barrier(DSB_ALL);
  asc_sync_inter_arrive(PIPE_S, kRowsZeroId);
  asc_vf_call<count_rows<Cfg>>(cfg.num_threads, cfg, t, plan, range);
  order(PIPE_V, PIPE_MTE3);
  asc_sync_inter_wait(PIPE_S, kRowsZeroId);
  const uint32_t num_later = cfg.num_aivs - 1 - aiv;
  if (num_later > 0) {
    const uint64_t next = t.comm.window + layout::epilogue_counter_word(aiv + 1, 0, num_local_experts(cfg));
    asc_set_atomic_add_int();
    asc_copy_ub2gm_align(gm<int32_t>(next), ub<int32_t>(plan.counts), num_later, row_bytes, row_bytes, 0);
    asc_set_atomic_none();
  }
  order(PIPE_MTE3, PIPE_S);
  asc_sync_data_barrier(DSB_ALL);
  asc_sync_inter_arrive(PIPE_S, kRowsAddedId);
  asc_sync_inter_wait(PIPE_S, kRowsAddedId);
  asc_vf_call<load_first_rows<Cfg>>(cfg.num_threads, cfg, t, plan, aiv);
  order(PIPE_V, PIPE_S);
}

// Copies the records of one AIV's range to their rows. Flag ids = stage.
template <class Cfg>
class Expander {
 public:
  __aicore__ Expander(const Cfg& cfg, const DispatchEpilogueTensors& t, const EpilogueUb& plan, Share range)
      : cfg_(cfg),
        t_(t),
        plan_(plan),
        record_(record_of(cfg)),
        chunks_(range, plan.stage_records, ub<const uint32_t>(plan.psum_rank)) {}

  __aicore__ void expand() {
    Chunk loaded{};
    bool has_loaded = false;
    uint32_t num_loaded = 0;
    while (has_loaded || !chunks_.is_done()) {
      const Chunk current = loaded;
      const bool has_current = has_loaded;
      has_loaded = !chunks_.is_done();
      if (has_loaded) {
        loaded = chunks_.take();
        load(loaded, num_loaded);
        ++num_loaded;
      }
      if (has_current) {
        store(current, num_loaded - 1 - (has_loaded ? 1 : 0));
      }
    }
    for (uint32_t stage = 0; stage < least(num_loaded, plan_.num_stages); ++stage) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, stage);
    }
  }

 private:
  __aicore__ uint32_t stage_of(uint32_t number) const { return number % plan_.num_stages; }
  __aicore__ uint32_t records_at(uint32_t number) const {
    return plan_.stages + stage_of(number) * plan_.stage_bytes;
  }
  // Records are multiples of 32 bytes, so what follows them is aligned.
  __aicore__ uint32_t metadata_at(uint32_t number) const {
    return records_at(number) + plan_.stage_records * record_.bytes;
  }
  __aicore__ uint64_t metadata_rows(const Chunk& chunk) const {
    return t_.recv_src_metadata + uint64_t{chunk.position} * metadata_row_bytes(cfg_.num_topk);
  }

  __aicore__ void load(const Chunk& chunk, uint32_t number) {
    if (number >= plan_.num_stages) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, stage_of(number));
    }
    const uint64_t offset =
        layout::receive_offset(chunk.src_rank, chunk.slot, cfg_.num_max_tokens, record_.bytes);
    const uint32_t num_bytes = chunk.count * record_.bytes;
    asc_copy_gm2ub_align(ub<uint8_t>(records_at(number)),
                         gm<const uint8_t>(t_.comm.window + layout::kEpOffset + offset), 1, num_bytes,
                         num_bytes, num_bytes);
    if (cfg_.cached) {
      const uint32_t table_bytes = chunk.count * metadata_row_bytes(cfg_.num_topk);
      asc_copy_gm2ub_align(ub<uint8_t>(metadata_at(number)), gm<const uint8_t>(metadata_rows(chunk)), 1,
                           table_bytes, table_bytes, table_bytes);
    }
    asc_sync_notify(PIPE_MTE2, PIPE_S, stage_of(number));
  }

  __aicore__ void store(const Chunk& chunk, uint32_t number) {
    asc_sync_wait(PIPE_MTE2, PIPE_S, stage_of(number));
    for (uint32_t i = 0; i < chunk.count; ++i) {
      const uint32_t record = records_at(number) + i * record_.bytes;
      const ub<int32_t> metadata(metadata_at(number) + i * metadata_row_bytes(cfg_.num_topk));
      if (!cfg_.cached) {
        fill_metadata(record, metadata);
      }
      for (uint32_t k = 0; k < cfg_.num_topk; ++k) {
        const int32_t row = metadata[k];
        if (row >= 0) {
          store_row(record, static_cast<uint64_t>(row), k);
        }
      }
    }
    if (!cfg_.cached) {
      const uint32_t table_bytes = chunk.count * metadata_row_bytes(cfg_.num_topk);
      order(PIPE_S, PIPE_MTE3, stage_of(number));
      asc_copy_ub2gm_align(gm<uint8_t>(metadata_rows(chunk)), ub<uint8_t>(metadata_at(number)), 1,
                           table_bytes, table_bytes, table_bytes);
    }
    asc_sync_notify(PIPE_MTE3, PIPE_MTE2, stage_of(number));
  }

  // Give the record a row in the block of each of its experts that is here, and note where it came from.
  __aicore__ void fill_metadata(uint32_t record, ub<int32_t> metadata) {
    const ub<const int64_t> ids(record + record_.ids);
    const ub<int32_t> next_rows(plan_.counts);
    const uint32_t num_local = num_local_experts(cfg_);
    int32_t master = -1;
    for (uint32_t k = 0; k < cfg_.num_topk; ++k) {
      const int64_t local = ids[k] - int64_t{t_.comm.rank} * num_local;
      int32_t row = -1;
      if (local >= 0 && local < num_local) {
        row = next_rows[local];
        next_rows[local] = row + 1;
        master = static_cast<int32_t>(k);
      }
      metadata[k] = row;
    }
    const int32_t gid = ub<const int32_t>(record + record_.gid)[0];
    metadata[cfg_.num_topk] = gid;
    metadata[cfg_.num_topk + 1] = master;
  }

  __aicore__ void store_row(uint32_t record, uint64_t row, uint32_t k) const {
    asc_copy_ub2gm_align(gm<uint8_t>(t_.recv_x + row * record_.payload_bytes), ub<uint8_t>(record), 1,
                         record_.payload_bytes, record_.payload_bytes, record_.payload_bytes);
    if (cfg_.num_scale_packs != 0) {
      const uint32_t num_bytes = 2 * cfg_.num_scale_packs;
      asc_copy_ub2gm_align(gm<uint8_t>(t_.recv_scales + row * num_bytes),
                           ub<uint8_t>(record + record_.scales), 1, num_bytes, num_bytes, num_bytes);
    }
    if (t_.recv_weights != 0) {
      const uint32_t weight = ub<const uint32_t>(record + record_.weights)[k];
      asc_store_dev(gm<uint32_t>(t_.recv_weights) + row, weight);
    }
  }

  const Cfg& cfg_;
  const DispatchEpilogueTensors& t_;
  const EpilogueUb& plan_;
  layout::DispatchRecord record_;
  Chunks chunks_;
};

// Zero the payload of gap rows by repeating a block of zeros.
template <class Cfg>
__aicore__ void zero_payload(const Cfg& cfg, const DispatchEpilogueTensors& t, const EpilogueUb& plan,
                             uint32_t aiv) {
  uint32_t burst_bytes = kZeroBytes;
  while (cfg.payload_bytes % burst_bytes != 0) {
    burst_bytes /= 2;  // a payload is a multiple of 32 bytes
  }
  uint32_t before = 0;
  for (uint32_t expert = 0; expert < num_local_experts(cfg); ++expert) {
    const uint32_t end = ub<uint32_t>(plan.psum_expert)[expert];
    const uint32_t count = layout::align_up<uint32_t>(end, cfg.expert_alignment) - end;
    for (uint32_t i = 0; i < count; ++i) {
      if ((before + i) % cfg.num_aivs == aiv) {
        const uint64_t target = t.recv_x + (uint64_t{end} + i) * cfg.payload_bytes;
        asc_copy_ub2gm_align(gm<uint8_t>(target), ub<uint8_t>(plan.zeros), cfg.payload_bytes / burst_bytes,
                             burst_bytes, burst_bytes, 0);
      }
    }
    before += count;
  }
}

template <class Cfg>
__aicore__ void dispatch_epilogue_impl(gm<const DispatchEpilogueArgs> args, Cfg cfg) {
  asc_init_soc_state();
  const auto t = read_struct<DispatchEpilogueTensors>(gm_field(args, &DispatchEpilogueArgs::tensors));
  const uint32_t aiv = asc_get_block_idx();
  const EpilogueUb plan = plan_epilogue_ub(cfg);
  if (!cfg.barrier_in_prologue) {
    rank_barrier(cfg, t.comm, exit_barrier(cfg.num_aivs, true));
  }
  asc_vf_call<load_counts<Cfg>>(cfg.num_threads, cfg, t, plan, aiv);
  order(PIPE_V, PIPE_S);
  const uint32_t num_records = ub<uint32_t>(plan.psum_rank)[cfg.num_ranks - 1];
  const Share range = share_of(num_records, layout::ceil_div<uint32_t>(num_records, cfg.num_aivs), aiv);
  if (!cfg.cached) {
    find_first_rows(cfg, t, plan, range, aiv);
  }
  if (cfg.zero_padding) {
    asc_vf_call<zero_small_fields<Cfg>>(cfg.num_threads, cfg, t, plan, aiv);
    zero_payload(cfg, t, plan, aiv);
  }
  Expander<Cfg>(cfg, t, plan, range).expand();
  asc_sync_pipe(PIPE_ALL);
  asc_sync_data_barrier(DSB_ALL);
}

}  // namespace epsim::ep
