// The layout headers for Python, by names: what tests compare with reference/memory and hosts build arguments
// with.
#include <epsim_native/args.hpp>
#include <epsim_native/descriptor.hpp>
#include <epsim_native/layout.hpp>

extern "C" {

// A number of the headers; bit fields hold low | width << 32.
struct epsim_constant {
  const char* name;
  uint64_t value;
};

// A member of a struct of the headers, as "DispatchArgs.x"; the last one of each, "DispatchArgs.", is its
// size.
struct epsim_member {
  const char* name;
  uint32_t offset;
  uint32_t num_bytes;
};

// Tables end at an entry without a name.
const epsim_constant* epsim_layout_constants(void);
const epsim_member* epsim_layout_members(void);
// Fills out with payload_bytes, scales, ids, weights, gid, bytes.
void epsim_layout_dispatch_record(uint32_t payload_bytes, uint32_t num_scale_packs, uint32_t num_topk,
                                  uint32_t fresh, uint32_t* out);
uint64_t epsim_layout_receive_offset(uint32_t src_rank, uint32_t slot, uint32_t num_max_tokens,
                                     uint32_t record_bytes);
uint32_t epsim_layout_combine_record_bytes(uint32_t hidden, uint32_t num_topk);
uint32_t epsim_layout_groups_by_rank(uint32_t num_ranks, uint32_t num_topk, uint32_t single_reduction);
uint64_t epsim_layout_combine_offset(uint32_t group, uint32_t token, uint32_t num_max_tokens,
                                     uint32_t record_bytes);
// The workspace word at indices of a field, 0 = local_expert_histogram, then in the order of the structure.
uint64_t epsim_layout_word(uint32_t field, uint32_t first, uint32_t second, uint32_t num_local_experts);
uint32_t epsim_layout_pack_word(uint32_t arrivals, uint32_t value);
// Header word 0 of a request. kind: 0 write, 1 last write, 2 NOP, 3 last NOP.
uint64_t epsim_layout_flags(uint32_t kind, uint32_t head);
}

namespace {

using namespace epsim;

constexpr uint64_t bits(urma::BitField field) { return field.low | uint64_t{field.width} << 32; }

constexpr epsim_constant kConstants[] = {
    {"MAX_RANKS", layout::kMaxRanks},
    {"MAX_EXPERTS", layout::kMaxExperts},
    {"MAX_AIVS", layout::kMaxAivs},
    {"SECTOR_INTS", layout::kSectorInts},
    {"RECORD_ALIGN_BYTES", layout::kRecordAlignBytes},
    {"WORST_TOPK", layout::kMaxTopk},
    {"WORKSPACE_BYTES", layout::kWorkspaceBytes},
    {"SIGNALS_BYTES", layout::kSignalsBytes},
    {"EP_WORKSPACE_USED_BYTES", layout::kWorkspaceUsedBytes},
    {"ARRIVAL_SHIFT", layout::kArrivalShift},
    {"MAX_ARRIVALS", layout::kMaxArrivals},
    {"MAX_VALUE", layout::kMaxValue},
    {"ep_offset", layout::kEpOffset},
    {"workspace.peer_ptrs", layout::kPeerPtrs},
    {"workspace.grid_sync_count", layout::kGridSyncCount},
    {"workspace.barrier_counter", layout::kBarrierCounter},
    {"workspace.barrier_signals", layout::kBarrierSignals},
    {"workspace.local_expert_histogram", layout::kLocalExpertHistogram},
    {"workspace.remote_expert_histogram", layout::kRemoteExpertHistogram},
    {"workspace.local_rank_histogram", layout::kLocalRankHistogram},
    {"workspace.remote_rank_histogram", layout::kRemoteRankHistogram},
    {"workspace.host_rank_expert_count", layout::kHostRankExpertCount},
    {"workspace.epilogue_expert_counter", layout::kEpilogueExpertCounter},
    {"WQEBB_BYTES", urma::kWqebbBytes},
    {"WQEBB_WORDS", urma::kWqebbWords},
    {"SQ_DEPTH", urma::kSqDepth},
    {"SQ_START_STEP", urma::kSqStartStep},
    {"HEADER_WORDS", urma::kHeaderWords},
    {"SGE_WORDS", urma::kSgeWords},
    {"DISPATCH_WQEBBS", urma::kDispatchWqebbs},
    {"DISPATCH_RECORDS", urma::kDispatchRecords},
    {"COMBINE_WQEBBS", urma::kCombineWqebbs},
    {"MAX_WRITE_BYTES", urma::kMaxWriteBytes},
    {"OPCODE_WRITE", urma::kOpcodeWrite},
    {"OPCODE_NOP", urma::kOpcodeNop},
    {"flag.wqebb_idx", bits(urma::kWqebbIdx)},
    {"flag.order", bits(urma::kOrder)},
    {"flag.fence", bits(urma::kFence)},
    {"flag.se", bits(urma::kSe)},
    {"flag.completion", bits(urma::kCompletion)},
    {"flag.inline", bits(urma::kInline)},
    {"flag.udf", bits(urma::kUdf)},
    {"flag.nf", bits(urma::kNf)},
    {"flag.token_enable", bits(urma::kTokenEnable)},
    {"flag.jetty_type", bits(urma::kJettyType)},
    {"flag.owner", bits(urma::kOwner)},
    {"flag.hint", bits(urma::kHint)},
    {"flag.opcode", bits(urma::kOpcode)},
    {"flag.inline_bytes", bits(urma::kInlineBytes)},
    {"peer.tp_id", bits(urma::kTpId)},
    {"peer.num_sges", bits(urma::kNumSges)},
    {"peer.token_id", bits(urma::kTokenId)},
    {nullptr, 0},
};

// Offsets inside a struct that lies at `base` of the outer one.
#define MEMBER(name, type, member, base) \
  {name "." #member, base + offsetof(type, member), sizeof(type::member)}
#define COMM_MEMBERS(name, base)                                                   \
  MEMBER(name, Comm, window, base), MEMBER(name, Comm, host_workspace, base),      \
      MEMBER(name, Comm, jetty_table, base), MEMBER(name, Comm, peer_table, base), \
      MEMBER(name, Comm, rank, base), MEMBER(name, Comm, num_tokens, base)
#define TENSOR(name, member) MEMBER(#name "Args", name##Tensors, member, offsetof(name##Args, tensors))
#define COMM_OF(name) \
  COMM_MEMBERS(#name "Args", offsetof(name##Args, tensors) + offsetof(name##Tensors, comm))
#define SIZE(name) {#name ".", 0, sizeof(name)}
#define CONFIG_MEMBER(type, name) MEMBER("RuntimeConfig", RuntimeConfig, name, 0),
#define JETTY(member) MEMBER("JettyInfo", urma::JettyInfo, member, 0)
#define PEER(member) MEMBER("PeerInfo", urma::PeerInfo, member, 0)

// clang-format off
constexpr epsim_member kMembers[] = {
    EPSIM_CONFIG_FIELDS(CONFIG_MEMBER) SIZE(RuntimeConfig),
    COMM_OF(Dispatch), TENSOR(Dispatch, x), TENSOR(Dispatch, scales), TENSOR(Dispatch, scale_token_stride),
    TENSOR(Dispatch, scale_pack_stride), TENSOR(Dispatch, topk_idx), TENSOR(Dispatch, topk_weights),
    TENSOR(Dispatch, metadata_image), TENSOR(Dispatch, dst_buffer_slot_idx), TENSOR(Dispatch, dst_gsge_idx),
    TENSOR(Dispatch, psum_rank), TENSOR(Dispatch, psum_expert), TENSOR(Dispatch, num_unaligned),
    TENSOR(Dispatch, stats), SIZE(DispatchArgs),
    COMM_OF(DispatchEpilogue), TENSOR(DispatchEpilogue, psum_rank), TENSOR(DispatchEpilogue, psum_expert),
    TENSOR(DispatchEpilogue, recv_x), TENSOR(DispatchEpilogue, recv_scales),
    TENSOR(DispatchEpilogue, recv_weights), TENSOR(DispatchEpilogue, recv_src_metadata),
    SIZE(DispatchEpilogueArgs),
    COMM_OF(Combine), TENSOR(Combine, x), TENSOR(Combine, topk_weights), TENSOR(Combine, recv_src_metadata),
    TENSOR(Combine, psum_rank), TENSOR(Combine, send_buffer), SIZE(CombineArgs),
    COMM_OF(CombineEpilogue), TENSOR(CombineEpilogue, topk_idx), TENSOR(CombineEpilogue, bias),
    TENSOR(CombineEpilogue, combined_x), TENSOR(CombineEpilogue, combined_weights), SIZE(CombineEpilogueArgs),
    COMM_MEMBERS("BarrierArgs", offsetof(BarrierArgs, comm)), MEMBER("BarrierArgs", BarrierArgs, num_jetties, 0),
    SIZE(BarrierArgs),
    JETTY(sq_base), JETTY(sq_head_address), JETTY(completion_tail_address), JETTY(sq_doorbell_address),
    JETTY(cq_base), JETTY(cq_tail_address), JETTY(cq_doorbell_address), JETTY(wqebb_head),
    JETTY(num_expected_completions), JETTY(jfs_id), JETTY(wqebb_bytes), JETTY(jfc_id), JETTY(cqe_bytes),
    JETTY(cq_depth), JETTY(reserved), {"JettyInfo.", 0, sizeof(urma::JettyInfo)},
    PEER(tp_and_token_id), PEER(eid), PEER(token_value), PEER(window_base), PEER(window_bytes),
    {"PeerInfo.", 0, sizeof(urma::PeerInfo)},
    {nullptr, 0, 0},
};
// clang-format on

}  // namespace

const epsim_constant* epsim_layout_constants(void) { return kConstants; }

const epsim_member* epsim_layout_members(void) { return kMembers; }

void epsim_layout_dispatch_record(uint32_t payload_bytes, uint32_t num_scale_packs, uint32_t num_topk,
                                  uint32_t fresh, uint32_t* out) {
  const layout::DispatchRecord record =
      layout::dispatch_record(payload_bytes, num_scale_packs, num_topk, fresh != 0);
  const uint32_t fields[] = {record.payload_bytes, record.scales, record.ids,
                             record.weights,       record.gid,    record.bytes};
  for (const uint32_t field : fields) {
    *out++ = field;
  }
}

uint64_t epsim_layout_receive_offset(uint32_t src_rank, uint32_t slot, uint32_t num_max_tokens,
                                     uint32_t record_bytes) {
  return layout::receive_offset(src_rank, slot, num_max_tokens, record_bytes);
}

uint32_t epsim_layout_combine_record_bytes(uint32_t hidden, uint32_t num_topk) {
  return layout::combine_record_bytes(hidden, num_topk);
}

uint32_t epsim_layout_groups_by_rank(uint32_t num_ranks, uint32_t num_topk, uint32_t single_reduction) {
  return layout::groups_by_rank(num_ranks, num_topk, single_reduction != 0);
}

uint64_t epsim_layout_combine_offset(uint32_t group, uint32_t token, uint32_t num_max_tokens,
                                     uint32_t record_bytes) {
  return layout::combine_offset(group, token, num_max_tokens, record_bytes);
}

uint64_t epsim_layout_word(uint32_t field, uint32_t first, uint32_t second, uint32_t num_local_experts) {
  switch (field) {
    case 0:
      return layout::local_expert_word(first);
    case 1:
      return layout::remote_expert_word(first);
    case 2:
      return layout::local_rank_word(first, second);
    case 3:
      return layout::remote_rank_word(first);
    case 4:
      return layout::host_rank_word(first);
    case 5:
      return layout::host_expert_word(first);
    default:
      return layout::epilogue_counter_word(first, second, num_local_experts);
  }
}

uint32_t epsim_layout_pack_word(uint32_t arrivals, uint32_t value) {
  return layout::pack_word(arrivals, value);
}

uint64_t epsim_layout_flags(uint32_t kind, uint32_t head) {
  return kind < 2 ? urma::write_flags(head, kind == 1) : urma::nop_flags(head, kind == 3);
}
