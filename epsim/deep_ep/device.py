"""Questions about the device, answered for the Ascend 950 that the CPU stands in for.

Source: deepep-ascend.md sections 1.1 and 6.
"""

from typing import Any

from epsim.deep_ep.errors import HostCheckError
from reference.memory.limits import MAX_AIVS
from reference.memory.sizes import ascend_buffer_bytes

AIVS_PER_AI_CORE = 2
NVIDIA_NUM_SMS = 24
"""What NVIDIA editions answer for an EP8 NVLink domain with overlap (deepep-v2.md section 8.4)."""

_settings: dict[str, Any] = {
    "vec": MAX_AIVS,
    "cube": MAX_AIVS // AIVS_PER_AI_CORE,
    "npu_arch": "dav-3510",
    "barrier": False,
}
# Process-wide switches as upstream has them; no operation reads them.


def get_num_ai_cores() -> int:
    """Return AI cores: 32."""
    return MAX_AIVS // AIVS_PER_AI_CORE


def get_num_vec_cores() -> int:
    """Return vector cores (AIVs): 64 unless set."""
    return int(_settings["vec"])


def get_num_cube_cores() -> int:
    """Return cube cores (AICs): 32 unless set."""
    return int(_settings["cube"])


def set_num_vec_cores(num_vec_cores: int) -> None:
    """Set what `get_num_vec_cores` returns; 0 = the device's."""
    _settings["vec"] = num_vec_cores or MAX_AIVS


def set_num_cube_cores(num_cube_cores: int) -> None:
    """Set what `get_num_cube_cores` returns; 0 = the device's."""
    _settings["cube"] = num_cube_cores or MAX_AIVS // AIVS_PER_AI_CORE


def get_npu_arch() -> str:
    """Return the architecture name for the kernel compiler."""
    return str(_settings["npu_arch"])


def set_npu_arch(npu_arch: str) -> None:
    """Set what `get_npu_arch` returns; nothing is compiled here."""
    _settings["npu_arch"] = npu_arch


def set_barrier_in_prologue(enable: bool) -> bool:
    """Set a benchmark switch without meaning on the CPU; return its previous value."""
    previous = bool(_settings["barrier"])
    _settings["barrier"] = enable
    return previous


def init_jit(path: str) -> None:
    """Accept the JIT's path; nothing is compiled here."""
    del path


def calculate_ep_buffer_size(
    num_ranks: int, num_max_tokens_per_rank: int, hidden: int, num_topk: int, use_fp8_dispatch: bool
) -> int:
    """Return the size hint of `EPBuffer` in bytes.

    Raises:
      HostCheckError: a number is out of range.
    """
    if min(num_ranks, num_max_tokens_per_rank, hidden) <= 0 or num_topk < 0:
        found = (num_ranks, num_max_tokens_per_rank, hidden, num_topk)
        raise HostCheckError("(ranks, tokens, hidden, topk)", found, "must be positive, topk at least 0")
    size = ascend_buffer_bytes(
        ep_size=num_ranks,
        num_max_tokens_per_rank=num_max_tokens_per_rank,
        hidden=hidden,
        num_topk=num_topk,
        use_fp8=use_fp8_dispatch,
    )
    return size.hint_bytes
