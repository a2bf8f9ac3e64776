// The only file of ours that includes headers of CANN; tests put a small set of their own in its place
// (tests/native/fake_cann). Written against the 9.3 interfaces (spec/ascend.md 6.1): channel descriptors with a name
// and shared-queue configurations. Not yet compiled against the vendor's headers: docs/hardware-status.md.
#pragma once

#include <acl/acl.h>
#include <hccl/hccl.h>
#include <hccl/hccl_comm.h>
#include <hccl/hccl_rank_graph.h>
#include <hccl/hccl_res.h>
#include <hcomm/hcomm_res.h>

namespace epsim::runtime {

// By number: releases disagree on the name (COMM_PROTOCOL_UBC_CTP, COMM_PROTOCOL_UB_CTP) and, says one source, on the
// number (spec/ascend.md 12, unsure).
inline constexpr CommProtocol kUbCtp = static_cast<CommProtocol>(4);
inline constexpr CommProtocol kUbMem = static_cast<CommProtocol>(6);

}  // namespace epsim::runtime
