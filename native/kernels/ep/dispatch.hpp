// dispatch: every own token goes once to each rank that holds one of its experts.
//
// An AIV owns ceil(M / C) neighbouring tokens. Its lanes find the slots while its copy pipes pack the
// metadata; then lanes write requests while the copy pipes move the records that stay on this rank; the
// doorbell comes last. Nothing tells a receiver that a record has come but the exit barrier. Facts:
// deepep-ascend.md sections 4.2 and 4.3.
#pragma once

#include <kernels/common/barrier.hpp>
#include <kernels/ep/dispatch_counts.hpp>
#include <kernels/ep/dispatch_requests.hpp>
#include <kernels/ep/dispatch_route.hpp>

namespace epsim::ep {

// Requests between two doorbells when they ring early.
inline constexpr uint32_t kEarlyRequests = 32;

// Scales that are not contiguous per token cannot be gathered by a copy: lanes put them into the image.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void place_scales(Cfg cfg, DispatchTensors t, Share own) {
  const uint32_t image_bytes = record_of(cfg).image_bytes();
  for (uint32_t i = threadIdx.x; i < own.count * cfg.num_scale_packs; i += blockDim.x) {
    const uint64_t token = own.first + i % own.count;
    const uint64_t pack = i / own.count;
    const uint16_t value = gm<const uint16_t>(t.scales)[static_cast<int64_t>(token) * t.scale_token_stride +
                                                        static_cast<int64_t>(pack) * t.scale_pack_stride];
    asc_stcg(gm<uint16_t>(t.metadata_image + token * image_bytes) + pack, value);
  }
  asc_threadfence();
}

// Packs the metadata of own tokens, a stage of tokens at a time: gathered into UB by MTE2, gids added by S,
// stored by MTE3. Flag ids = stage.
template <class Cfg>
class ImagePacker {
 public:
  __aicore__ ImagePacker(const Cfg& cfg, const DispatchTensors& t, const DispatchUb& plan, Share own)
      : cfg_(cfg), t_(t), own_(own), record_(record_of(cfg)), ub_start_(plan.stages) {
    num_stages_ = num_stages(cfg, plan, kImageStageTokens * record_.image_bytes());
  }

  __aicore__ void pack() {
    const uint32_t num_batches = layout::ceil_div(own_.count, kImageStageTokens);
    for (uint32_t batch = 0; batch <= num_batches; ++batch) {
      if (batch < num_batches) {
        gather(batch);
      }
      if (batch > 0) {
        store(batch - 1);
      }
    }
    for (uint32_t stage = 0; stage < least(num_batches, num_stages_); ++stage) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, stage);
    }
  }

 private:
  __aicore__ Share tokens(uint32_t batch) const {
    const Share part = share_of(own_.count, kImageStageTokens, batch);
    return {own_.first + part.first, part.count};
  }
  __aicore__ uint32_t stage_start(uint32_t batch) const {
    return ub_start_ + batch % num_stages_ * kImageStageTokens * record_.image_bytes();
  }
  __aicore__ bool has_packed_scales() const { return cfg_.num_scale_packs != 0 && t_.scale_pack_stride == 1; }

  // Gather one field of `rows` tokens: rows of `num_bytes` at a distance of `stride_bytes`.
  __aicore__ void gather_field(uint32_t batch, uint32_t field, uint64_t source, uint32_t num_bytes,
                               int64_t stride_bytes) const {
    const Share rows = tokens(batch);
    const uint32_t target = stage_start(batch) + field - record_.payload_bytes;
    const uint64_t first = source + static_cast<uint64_t>(static_cast<int64_t>(rows.first) * stride_bytes);
    asc_copy_gm2ub_align(ub<uint8_t>(target), gm<const uint8_t>(first), rows.count, num_bytes,
                         record_.image_bytes(), stride_bytes);
  }

  __aicore__ void gather(uint32_t batch) {
    if (batch >= num_stages_) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, batch % num_stages_);
    }
    if (has_packed_scales()) {
      gather_field(batch, record_.scales, t_.scales, 2 * cfg_.num_scale_packs, 2 * t_.scale_token_stride);
    }
    if (!cfg_.cached) {
      gather_field(batch, record_.ids, t_.topk_idx, 8 * cfg_.num_topk, 8 * cfg_.num_topk);
    }
    if (t_.topk_weights != 0) {
      gather_field(batch, record_.weights, t_.topk_weights, 4 * cfg_.num_topk, 4 * cfg_.num_topk);
    }
    asc_sync_notify(PIPE_MTE2, PIPE_S, batch % num_stages_);
  }

  __aicore__ void store(uint32_t batch) {
    const uint32_t stage = batch % num_stages_;
    const Share rows = tokens(batch);
    asc_sync_wait(PIPE_MTE2, PIPE_S, stage);
    if (!cfg_.cached) {
      for (uint32_t row = 0; row < rows.count; ++row) {
        const uint32_t gid = t_.comm.rank * cfg_.num_max_tokens + rows.first + row;
        const uint32_t place = row * record_.image_bytes() + record_.gid - record_.payload_bytes;
        ub<uint32_t>(stage_start(batch) + place)[0] = gid;
      }
    }
    order(PIPE_S, PIPE_MTE3, stage);
    // Scales that lanes have placed stay as they are.
    const uint32_t skipped = has_packed_scales() ? 0 : record_.ids - record_.scales;
    const uint32_t num_bytes = record_.image_bytes() - skipped;
    const uint64_t target = t_.metadata_image + uint64_t{rows.first} * record_.image_bytes() + skipped;
    asc_copy_ub2gm_align(gm<uint8_t>(target), ub<uint8_t>(stage_start(batch) + skipped), rows.count,
                         num_bytes, record_.image_bytes(), record_.image_bytes());
    asc_sync_notify(PIPE_MTE3, PIPE_MTE2, stage);
  }

  const Cfg& cfg_;
  const DispatchTensors& t_;
  Share own_;
  layout::DispatchRecord record_;
  uint32_t ub_start_;
  uint32_t num_stages_ = 0;
};

// Records of own tokens whose expert is on this rank: payload and metadata meet in UB and go out as one
// record. No jetty leads to the rank itself.
template <class Cfg>
__aicore__ void copy_local_records(const Cfg& cfg, const DispatchTensors& t, const DispatchUb& plan,
                                   Share own) {
  const layout::DispatchRecord record = record_of(cfg);
  const uint32_t stages = num_stages(cfg, plan, record.bytes);
  uint32_t num_copied = 0;
  for (uint32_t i = 0; i < own.count; ++i) {
    const int32_t slot = ub<int32_t>(plan.local_slot)[i];
    if (slot < 0) {
      continue;
    }
    const uint32_t stage = num_copied % stages;
    const ub<uint8_t> buffer(plan.stages + stage * record.bytes);
    const uint64_t token = uint64_t{own.first} + i;
    if (num_copied >= stages) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, stage);
    }
    asc_copy_gm2ub_align(buffer, gm<const uint8_t>(t.x + token * record.payload_bytes), 1,
                         record.payload_bytes, record.payload_bytes, record.payload_bytes);
    asc_copy_gm2ub_align(buffer + record.payload_bytes,
                         gm<const uint8_t>(t.metadata_image + token * record.image_bytes()), 1,
                         record.image_bytes(), record.image_bytes(), record.image_bytes());
    order(PIPE_MTE2, PIPE_MTE3, stage);
    const uint64_t offset =
        layout::receive_offset(t.comm.rank, static_cast<uint32_t>(slot), cfg.num_max_tokens, record.bytes);
    asc_copy_ub2gm_align(gm<uint8_t>(t.comm.window + layout::kEpOffset + offset), buffer, 1, record.bytes,
                         record.bytes, record.bytes);
    asc_sync_notify(PIPE_MTE3, PIPE_MTE2, stage);
    ++num_copied;
  }
  for (uint32_t stage = 0; stage < least(num_copied, stages); ++stage) {
    asc_sync_wait(PIPE_MTE3, PIPE_MTE2, stage);
  }
}

// Count exchange of a fresh dispatch; AIV 0 has the experts, AIV 1 the ranks. Queued on V.
template <class Cfg>
__aicore__ void start_counts(const Cfg& cfg, const DispatchTensors& t, const DispatchUb& plan, uint32_t aiv) {
  if (cfg.cached) {
    return;
  }
  if (aiv == 0) {
    asc_vf_call<exchange_expert_counts<Cfg>>(cfg.num_threads, cfg, t, plan);
  }
  if (aiv == least(1, cfg.num_aivs - 1)) {
    asc_vf_call<take_rank_counts<Cfg>>(cfg.num_threads, cfg, t, plan);
  }
}

template <class Cfg>
__aicore__ void send_requests(const Cfg& cfg, const DispatchTensors& t, const DispatchUb& plan, Share own,
                              uint32_t aiv, uint32_t num_requests) {
  if (num_requests == 0) {
    copy_local_records(cfg, t, plan, own);
    start_counts(cfg, t, plan, aiv);
    return;
  }
  const urma::JettyInfo jetty = open_jetty(t.comm, aiv, urma::kDispatchWqebbs * num_requests, cfg.sq_depth);
  const RequestSource source{.sq_base = jetty.sq_base,
                             .head = jetty.wqebb_head,
                             .own_first = own.first,
                             .own_rank = t.comm.rank,
                             .x = t.x,
                             .metadata_image = t.metadata_image};
  const uint32_t step = cfg.early_doorbells ? kEarlyRequests : num_requests;
  for (uint32_t first = 0; first < num_requests; first += step) {
    const uint32_t last = least(first + step, num_requests);
    const bool is_end = last == num_requests;
    asc_vf_call<write_requests<Cfg>>(cfg.num_threads, cfg, source, plan, first, last);
    if (is_end && !cfg.early_doorbells) {
      start_counts(cfg, t, plan, aiv);
      copy_local_records(cfg, t, plan, own);
    }
    order(PIPE_V, PIPE_S);
    ring_doorbell(jetty, jetty.wqebb_head + urma::kDispatchWqebbs * last,
                  jetty.num_expected_completions + is_end);
  }
  if (cfg.early_doorbells) {
    start_counts(cfg, t, plan, aiv);
    copy_local_records(cfg, t, plan, own);
  }
}

template <class Cfg>
__aicore__ void dispatch_impl(gm<const DispatchArgs> args, Cfg cfg) {
  asc_init_soc_state();
  const auto t = read_struct<DispatchTensors>(gm_field(args, &DispatchArgs::tensors));
  const uint32_t aiv = asc_get_block_idx();
  if (t.comm.num_tokens > cfg.num_max_tokens) {
    asc_trap(kTrapTokensOutOfRange);
  }
  const Share own = share_of(t.comm.num_tokens, tokens_per_aiv(cfg), aiv);
  const DispatchUb plan = plan_dispatch_ub(cfg);
  rank_barrier(cfg, t.comm, kEntryBarrier);
  if (cfg.num_scale_packs != 0 && t.scale_pack_stride != 1 && own.count != 0) {
    asc_vf_call<place_scales<Cfg>>(cfg.num_threads, cfg, t, own);
  }
  if (cfg.cached) {
    asc_vf_call<route_cached<Cfg>>(cfg.num_threads, cfg, t, plan, own);
  } else {
    asc_vf_call<route_fresh<Cfg>>(cfg.num_threads, cfg, t, plan, own, aiv);
  }
  ImagePacker<Cfg>(cfg, t, plan, own).pack();
  order(PIPE_MTE3, PIPE_S);
  order(PIPE_V, PIPE_S);
  const uint32_t num_requests = ub<uint32_t>(plan.num_requests)[0];
  send_requests(cfg, t, plan, own, aiv, num_requests);
  asc_sync_pipe(PIPE_ALL);
  if (cfg.barrier_in_prologue) {
    rank_barrier(cfg, t.comm, exit_barrier(cfg.num_aivs, true));
  }
}

}  // namespace epsim::ep
