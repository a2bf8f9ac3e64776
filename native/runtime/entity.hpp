// What a channel handle of the AIV engine points to in device memory: the vendor's record of a channel and the records
// of its queues and memories (spec/ascend.md 6.2), of which we read a few fields. Declared here because no public host
// header has them; offsets as read in two public sources, unsure for other releases: a record that does not look like
// one is refused (jetties.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace epsim::runtime {

struct MemoryEntity {
  int32_t type;
  uint64_t address;
  uint64_t num_bytes;
  int32_t protection_type;
  uint32_t token_id;
  uint32_t token_value;
  uint8_t other[28];
};
static_assert(sizeof(MemoryEntity) == 64 && offsetof(MemoryEntity, token_id) == 28);

struct SendQueueEntity {
  int32_t type;
  uint64_t ring;
  uint64_t head_address;
  uint64_t tail_address;
  uint64_t doorbell;
  uint32_t jfs_id;
  uint32_t wqebb_bytes;
  uint32_t num_wqebbs;
  uint32_t tp_id;
  uint64_t remote_eid[2];
  uint8_t other[56];
};
static_assert(sizeof(SendQueueEntity) == 128 && offsetof(SendQueueEntity, remote_eid) == 56);

struct CompletionQueueEntity {
  int32_t type;
  uint64_t ring;
  uint64_t head_address;
  uint64_t tail_address;
  uint64_t doorbell;
  uint32_t jfc_id;
  uint32_t cqe_bytes;
  uint32_t num_cqes;
  uint8_t other[76];
};
static_assert(sizeof(CompletionQueueEntity) == 128 && offsetof(CompletionQueueEntity, num_cqes) == 48);

struct ChannelEntity {
  uint32_t header[4];
  int32_t engine;
  int32_t protocol;
  uint32_t num_local_notifies;
  uint32_t num_remote_notifies;
  uint32_t num_local_memories;
  uint32_t num_remote_memories;
  uint32_t num_send_queues;
  uint32_t num_completion_queues;
  uint64_t local_notifies;
  uint64_t remote_notifies;
  uint64_t local_memories;
  uint64_t remote_memories;
  uint64_t send_queues;
  uint64_t completion_queues;
  uint8_t other[160];
};
static_assert(sizeof(ChannelEntity) == 256 && offsetof(ChannelEntity, completion_queues) == 88);

}  // namespace epsim::runtime
