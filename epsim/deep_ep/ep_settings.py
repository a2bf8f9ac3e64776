"""What an EP buffer is made with, and what the editions refuse of it.

R ranks, SU ranks of a scale-up domain, SO domains.
"""

from dataclasses import dataclass
from typing import Any

from epsim.deep_ep.allocator import BufferAllocator
from epsim.deep_ep.base import check_timeout
from epsim.deep_ep.capacity import Room
from epsim.deep_ep.editions import edition_of
from epsim.deep_ep.errors import HostCheckError, RefusedError, UnsupportedError, raised_as
from epsim.deep_ep.tensor_checks import check_flags
from reference.config import whole_number
from reference.edition import Edition
from reference.handle import DispatchMode
from reference.memory.sizes import HINT_ALIGN_BYTES, ascend_buffer_bytes, nvidia_buffer_bytes


@dataclass(frozen=True, kw_only=True)
class SizeArguments:
    """The arguments of a size hint; see `EPBuffer.get_buffer_size_hint`."""

    num_ranks: int
    num_max_tokens_per_rank: int
    hidden: int
    num_topk: int
    use_fp8_dispatch: bool
    allow_hybrid_mode: bool
    allow_multiple_reduction: bool
    edition: str
    num_scaleup_ranks: int | None

    @property
    def rules(self) -> Edition:
        """The edition."""
        return edition_of(self.edition)

    @property
    def physical_domains(self) -> tuple[int, int]:
        """(SO, SU) as the ranks are connected."""
        scaleup = self.num_ranks if self.num_scaleup_ranks is None else self.num_scaleup_ranks
        return self.num_ranks // scaleup, scaleup

    @property
    def logical_domains(self) -> tuple[int, int]:
        """(SO, SU) as the operations use them."""
        return self.physical_domains if self.allow_hybrid_mode else (1, self.num_ranks)

    def check(self) -> None:
        """Refuse what the edition lacks.

        Raises:
          RefusedError: a single reduction where there is none, or domains that do not divide the group.
          UnsupportedError: several domains where there is one.
          HostCheckError: an odd group (Ascend), or a number that is none.
        """
        rules, size = self.rules, self.num_ranks
        for name in ("use_fp8_dispatch", "allow_hybrid_mode", "allow_multiple_reduction"):
            check_flags(**{name: getattr(self, name)})
        with raised_as(HostCheckError):
            for name in ("num_max_tokens_per_rank", "hidden", "num_topk"):
                whole_number(name, getattr(self, name), 0)
        if not self.allow_multiple_reduction and not rules.has_single_reduction:
            rule = f"edition {rules.name} always sums at the experts' rank first"
            raise RefusedError("allow_multiple_reduction", False, rule)
        scaleup = size if self.num_scaleup_ranks is None else self.num_scaleup_ranks
        if not isinstance(scaleup, int) or scaleup < 1 or size % scaleup:
            raise RefusedError("num_scaleup_ranks", scaleup, f"must divide the {size} ranks")
        if scaleup != size and not rules.has_hybrid:
            raise UnsupportedError("num_scaleup_ranks", scaleup, f"edition {rules.name} has one domain")
        if rules.has_gather_idx and size > 1 and size % 2:
            raise HostCheckError("group", f"{size} ranks", "must be 1 or even")

    def hint_bytes(self) -> int:
        """Return the size hint.

        Raises:
          HostCheckError: a number is out of range.
          Source: deepep-ascend.md section 1.4; deepep-v2.md section 1.4.
        """
        with raised_as(HostCheckError):
            if self.rules.has_gather_idx:
                size = ascend_buffer_bytes(
                    ep_size=self.num_ranks,
                    num_max_tokens_per_rank=self.num_max_tokens_per_rank,
                    hidden=self.hidden,
                    num_topk=self.num_topk,
                    use_fp8=self.use_fp8_dispatch,
                )
            else:
                num_scaleout, num_scaleup = self.logical_domains
                size = nvidia_buffer_bytes(
                    num_scaleout_ranks=num_scaleout,
                    num_scaleup_ranks=num_scaleup,
                    num_max_tokens_per_rank=self.num_max_tokens_per_rank,
                    hidden=self.hidden,
                    num_topk=self.num_topk,
                    use_fp8=self.use_fp8_dispatch,
                    is_all_nvlink=self.logical_domains == self.physical_domains,
                    allow_multiple_reduction=self.allow_multiple_reduction,
                )
        return size.hint_bytes


@dataclass(frozen=True, kw_only=True)
class EPSettings:
    """The arguments of an EP buffer beyond its size; see `EPBuffer`."""

    sizes: SizeArguments
    given_num_bytes: int | None
    lb_allocation_plan_or_num_bytes: BufferAllocator | int
    deterministic: bool
    sl_idx: int | None
    num_allocated_qps: int
    num_cpu_timeout_secs: float
    num_gpu_timeout_secs: float
    arrival_seed: int | None

    def check(self) -> None:
        """Refuse what the edition refuses, before any rank is waited for.

        Raises:
          RefusedError, UnsupportedError, HostCheckError: as `EPBuffer`.
        """
        self.sizes.check()
        check_flags(deterministic=self.deterministic)
        if self.sizes.rules.has_gather_idx:
            if self.sl_idx is not None:
                raise UnsupportedError("sl_idx", self.sl_idx, "service levels are not supported")
            if self.num_allocated_qps:
                raise UnsupportedError(
                    "num_allocated_qps", self.num_allocated_qps, "there are no queue pairs"
                )
        if self.arrival_seed is not None:
            with raised_as(RefusedError):
                whole_number("arrival_seed", self.arrival_seed, 0)
        for name in ("num_cpu_timeout_secs", "num_gpu_timeout_secs"):
            check_timeout(name, getattr(self, name))
        plan = self.lb_allocation_plan_or_num_bytes
        if isinstance(plan, BufferAllocator) and plan.materialized:
            raise RefusedError("lb_allocation_plan_or_num_bytes", "a materialised plan", "must be a new one")
        _check_bytes("lb_allocation_plan_or_num_bytes", self.num_lb_bytes)
        _check_bytes("num_bytes", self.num_bytes)

    @property
    def num_lb_bytes(self) -> int:
        """Bytes of load-balancing storage."""
        plan = self.lb_allocation_plan_or_num_bytes
        return plan.num_bytes if isinstance(plan, BufferAllocator) else plan

    @property
    def num_bytes(self) -> int:
        """Bytes of the EP region."""
        if self.given_num_bytes is not None:
            return self.given_num_bytes
        for name in ("num_max_tokens_per_rank", "hidden"):
            if not getattr(self.sizes, name):
                raise RefusedError(name, 0, "must be above 0 without num_bytes")
        return self.sizes.hint_bytes()

    def room(self) -> Room:
        """Return what calls are checked against."""
        return Room(
            edition=self.sizes.rules,
            num_bytes=self.num_bytes,
            num_scaleup_ranks=self.sizes.logical_domains[1],
            allow_multiple_reduction=self.sizes.allow_multiple_reduction,
            sized_hidden=self.sizes.hidden if self.given_num_bytes is None else None,
            sized_topk=(self.sizes.num_topk or None) if self.given_num_bytes is None else None,
        )

    def mode(self) -> DispatchMode:
        """Return how dispatches are laid out; expand and CPU sync are each call's own."""
        num_scaleout, num_scaleup = self.sizes.logical_domains
        return DispatchMode(
            edition=self.sizes.rules.name,
            num_scaleup_ranks=None if num_scaleout == 1 else num_scaleup,
            deterministic=self.deterministic,
            arrival_seed=self.arrival_seed,
        )

    def same(self) -> dict[str, Any]:
        """Return what must be equal on all ranks."""
        own = ("deterministic", "arrival_seed", "num_bytes", "num_lb_bytes")
        return vars(self.sizes) | {name: getattr(self, name) for name in own}


def _check_bytes(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value % HINT_ALIGN_BYTES:
        raise RefusedError(name, value, f"must be a multiple of {HINT_ALIGN_BYTES} of at least 0")
