"""Whether one call fits: the limits of the kernels and the bytes of the buffer.

R ranks, M token capacity, K top-k, H hidden, P scale packs, C vector cores.
"""

from dataclasses import dataclass

from epsim.deep_ep.device import AIVS_PER_AI_CORE
from epsim.deep_ep.errors import HostCheckError, UndefinedError
from reference.config import EPConfig
from reference.edition import Edition
from reference.memory.limits import DISPATCH_LIMITS, limits
from reference.memory.sizes import (
    Dtype,
    ascend_combine_record_bytes,
    ascend_dispatch_record_bytes,
    nvidia_buffer_bytes,
)

SYNC_LIMITS = frozenset({"max-aligned-rows"})
COMBINE_LIMITS = frozenset({"max-topk", "combine-tokens", "combine-ring", "reduce-ring"})
MAX_NVIDIA = {"ranks": 1024, "experts": 2048, "local experts": 256, "topk": 32}
MAX_HYBRID_SMS = 160


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a buffer offers a call.

    Args:
      edition: whose limits.
      num_bytes: of the EP region.
      num_scaleup_ranks: SU.
      allow_multiple_reduction: the buffer's flag.
      sized_hidden: H that num_bytes was computed from; None = num_bytes was given.
      sized_topk: K likewise; None also where it was left open.
    """

    edition: Edition
    num_bytes: int
    num_scaleup_ranks: int
    allow_multiple_reduction: bool
    sized_hidden: int | None = None
    sized_topk: int | None = None

    @property
    def is_ascend(self) -> bool:
        """Whether the limits are those of the Ascend kernels."""
        return self.edition.has_gather_idx

    def check_dispatch(
        self,
        config: EPConfig,
        *,
        num_sms: int,
        element_bytes: int,
        num_scale_packs: int,
        is_fresh: bool,
        cpu_sync: bool,
        zero_padding: bool,
    ) -> None:
        """Refuse a dispatch that a kernel or the buffer cannot hold.

        Raises:
          HostCheckError: a limit of the library.
          UndefinedError: a rule that the library does not check.
          Source: deepep-ascend.md sections 1.4 and 1.10; deepep-v2.md sections 1.4, 1.7 and 7.
        """
        self._check_sizing(config)
        dtype: Dtype = "fp8" if element_bytes == 1 else "bf16"
        row = config.hidden * element_bytes
        if row % 32:
            error = UndefinedError if self.is_ascend else HostCheckError
            raise error("x", f"rows of {row} bytes", "must be a multiple of 32 bytes")
        if self.is_ascend:
            names = DISPATCH_LIMITS | (SYNC_LIMITS if cpu_sync else frozenset())
            self._check_limits(config, names, num_sms, dtype)
            if zero_padding and row % 256:
                rule = "with do_zero_padding must be a multiple of 256 bytes"
                raise HostCheckError("x", f"rows of {row} bytes", rule)
            record = ascend_dispatch_record_bytes(
                config.hidden, config.num_topk, dtype, fresh=is_fresh, num_scale_packs=num_scale_packs
            )
            need = config.ep_size * config.num_max_tokens_per_rank * record
        else:
            self._check_nvidia(config, num_sms)
            need = self._nvidia_bytes(config, dtype, num_scale_packs)
        self._check_bytes("dispatch", need)

    def check_combine(self, config: EPConfig, *, num_sms: int) -> None:
        """Refuse a combine that a kernel or the buffer cannot hold; raises as `check_dispatch`."""
        self._check_sizing(config)
        if config.hidden % self.edition.hidden_multiple:
            rule = f"combine needs a multiple of {self.edition.hidden_multiple}"
            raise HostCheckError("hidden", config.hidden, rule)
        if self.is_ascend:
            self._check_limits(config, COMBINE_LIMITS, num_sms, "bf16")
            record = ascend_combine_record_bytes(config.hidden, config.num_topk)
            need = min(config.num_topk, config.ep_size) * config.num_max_tokens_per_rank * record
        else:
            self._check_nvidia(config, num_sms)
            need = self._nvidia_bytes(config, "bf16", 0)
        self._check_bytes("combine", need)

    def _check_sizing(self, config: EPConfig) -> None:
        """Refuse more than the buffer was sized for, also where rounding up to 2 MiB would let it fit."""
        for name, asked, sized in (
            ("hidden", config.hidden, self.sized_hidden),
            ("num_topk", config.num_topk, self.sized_topk),
        ):
            if sized is not None and asked > sized:
                raise UndefinedError(name, asked, f"the buffer was sized for {name} {sized}")

    def _check_limits(self, config: EPConfig, names: frozenset[str], num_sms: int, dtype: Dtype) -> None:
        for limit in limits(config, num_aivs=AIVS_PER_AI_CORE * num_sms, dtype=dtype):
            if limit.id in names and limit.severity == "error":
                if limit.field == "num_aivs":
                    rule = f"{limit.rule} in vector cores, {AIVS_PER_AI_CORE} of each AI core"
                    raise HostCheckError("num_sms", num_sms, rule)
                raise HostCheckError(limit.field, limit.value, limit.rule)

    def _check_nvidia(self, config: EPConfig, num_sms: int) -> None:
        found = {
            "ranks": config.ep_size,
            "experts": config.num_experts,
            "local experts": config.num_experts // config.ep_size,
            "topk": config.num_topk,
        }
        for name, value in found.items():
            if value > MAX_NVIDIA[name]:
                raise HostCheckError(f"num_{name.replace(' ', '_')}", value, f"at most {MAX_NVIDIA[name]}")
        is_hybrid = self.num_scaleup_ranks < config.ep_size
        if is_hybrid and not 2 <= num_sms <= MAX_HYBRID_SMS:
            raise HostCheckError("num_sms", num_sms, f"hybrid needs 2 to {MAX_HYBRID_SMS}")

    def _nvidia_bytes(self, config: EPConfig, dtype: Dtype, num_scale_packs: int) -> int:
        size = nvidia_buffer_bytes(
            num_scaleout_ranks=config.ep_size // self.num_scaleup_ranks,
            num_scaleup_ranks=self.num_scaleup_ranks,
            num_max_tokens_per_rank=config.num_max_tokens_per_rank,
            hidden=config.hidden,
            num_topk=config.num_topk,
            use_fp8=dtype == "fp8",
            num_scale_packs=num_scale_packs,
            allow_multiple_reduction=self.allow_multiple_reduction,
        )
        return max(size.dispatch_bytes, size.combine_bytes)

    def _check_bytes(self, operation: str, need: int) -> None:
        if need > self.num_bytes:
            raise HostCheckError("num_bytes", self.num_bytes, f"this {operation} needs {need}")
