"""Arguments of the EP kernels as ctypes structs: the fields of epsim_native/config.hpp and args.hpp."""

import ctypes
from collections.abc import Sequence
from typing import Any

_U32, _U64, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


def _words(names: str, kind: Any = _U64) -> Sequence[tuple[str, Any]]:  # noqa: ANN401 (a C type)
    return [(name, kind) for name in names.split()]


class RuntimeConfig(ctypes.Structure):
    """What a kernel is specialised on; see config.hpp."""

    _fields_ = (
        ("timeout_cycles", _U64),
        *_words(
            "num_ranks num_experts num_topk num_max_tokens expert_alignment num_aivs num_threads hidden "
            "payload_bytes num_scale_packs ub_bytes sq_depth cached cpu_sync barrier_in_prologue "
            "zero_padding single_reduction rotate_by_aiv early_doorbells",
            _U32,
        ),
    )


class Comm(ctypes.Structure):
    """Where a rank finds its window, its peers and its queues."""

    _fields_ = (
        *_words("window host_workspace jetty_table peer_table"),
        ("rank", _U32),
        ("num_tokens", _U32),
    )


class DispatchArgs(ctypes.Structure):
    """Of kernel dispatch."""

    _fields_ = (
        ("cfg", RuntimeConfig),
        ("comm", Comm),
        *_words("x scales"),
        ("scale_token_stride", _I64),
        ("scale_pack_stride", _I64),
        *_words(
            "topk_idx topk_weights metadata_image dst_buffer_slot_idx dst_gsge_idx psum_rank psum_expert "
            "num_unaligned stats"
        ),
    )


class DispatchEpilogueArgs(ctypes.Structure):
    """Of kernel dispatch_epilogue."""

    _fields_ = (
        ("cfg", RuntimeConfig),
        ("comm", Comm),
        *_words("psum_rank psum_expert recv_x recv_scales recv_weights recv_src_metadata"),
    )


class CombineArgs(ctypes.Structure):
    """Of kernel combine."""

    _fields_ = (
        ("cfg", RuntimeConfig),
        ("comm", Comm),
        *_words("x topk_weights recv_src_metadata psum_rank send_buffer"),
    )


class CombineEpilogueArgs(ctypes.Structure):
    """Of kernel combine_epilogue."""

    _fields_ = (
        ("cfg", RuntimeConfig),
        ("comm", Comm),
        ("topk_idx", _U64),
        ("bias", _U64 * 2),
        *_words("combined_x combined_weights"),
    )


KernelArgs = DispatchArgs | DispatchEpilogueArgs | CombineArgs | CombineEpilogueArgs
KERNELS: dict[str, type[KernelArgs]] = {
    "dispatch": DispatchArgs,
    "dispatch_epilogue": DispatchEpilogueArgs,
    "combine": CombineArgs,
    "combine_epilogue": CombineEpilogueArgs,
}
"""Arguments by kernel; the C++ struct has the same name as the class."""
