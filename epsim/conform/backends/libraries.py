"""Libraries with the interface of `deep_ep` behind the protocol: the drop-in on gloo, and the real ones.

A backend starts one process per rank itself; on devices, rank r uses device r. What upstream refuses is
unsupported here, for the reason that it gives (deepep-ascend.md sections 1.10 and 2, deepep-v2.md section 7).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from epsim.conform.backends.library import Library
from epsim.conform.backends.pool import Pool
from epsim.errors import MissingExtraError
from native.backends.protocol import (
    Array,
    BackendFailure,
    BufferSpec,
    CachedCall,
    Capabilities,
    CombineCall,
    Combined,
    DispatchCall,
    Dispatched,
    Feature,
    PerRank,
    Received,
    Schedule,
)
from reference.config import EPConfig
from reference.edition import EditionName, find_edition
from reference.handle import DispatchMode, Handle, topk_digest
from reference.topk import TopK

CANONICAL, SHUFFLED = "canonical", "shuffled"
MIN_AIVS, MAX_AIVS = 16, 64
"""Vector cores that dispatch can be told to use (deepep-ascend.md section 1.3)."""
AIVS_PER_AI_CORE = 2
MAX_EXPERTS, MAX_NVIDIA_EXPERTS = 512, 2048
"""One dispatch thread per expert (deepep-ascend.md section 1.10); deepep-v2.md section 7."""
ROW_ELEMENTS = 256
"""Combine takes multiples of 128 or 256 elements, zero padding rows of 256 bytes, so 256 serves fp8 too.
Source: deepep-ascend.md sections 1.6 and 3.7; deepep-v2.md section 7."""


def gloo_backend(edition: EditionName = "ascend", *, max_ranks: int = 4) -> "LibraryBackend":
    """Return `epsim.deep_ep` in processes on this machine.

    Raises:
      MissingExtraError: no torch.
    """
    _need("torch", "--backend gloo needs torch: python -m pip install 'epsim[torch]'")
    is_ascend = edition == "ascend"
    library = Library(
        name="gloo" if is_ascend else "gloo-nvidia",
        module="epsim.deep_ep",
        buffer="EPBuffer",
        edition=edition,
        device="cpu",
        process_group="gloo",
        options=() if is_ascend else (("edition", "nvidia"),),
        takes_arrival_seed=True,
    )
    return LibraryBackend(library, max_ranks=max_ranks)


def npu_backend() -> "LibraryBackend":
    """Return an installed DeepEP-Ascend on the NPUs of this host.

    Raises:
      MissingExtraError: torch_npu or deep_ep is missing, or there is no NPU.
    """
    where = "docs/hardware-status.md has the command for a machine with Ascend 950"
    _need("torch_npu", f"--backend npu-deep-ep needs torch_npu and a DeepEP-Ascend deep_ep; {where}")
    _need(
        "deep_ep",
        f"--backend npu-deep-ep drives an installed deep_ep (DeepEP-Ascend), which is missing; {where}",
    )
    library = Library(
        name="npu-deep-ep",
        module="deep_ep",
        buffer="EPBuffer",
        edition="ascend",
        device="npu",
        process_group="hccl",
        extension="torch_npu",
    )
    return LibraryBackend(library, max_ranks=_num_devices(library))


def cuda_backend() -> "LibraryBackend":
    """Return an installed NVIDIA DeepEP V2 on the GPUs of this host.

    Raises:
      MissingExtraError: torch or deep_ep is missing, or there is no GPU.
    """
    where = "docs/hardware-status.md has the command for a machine with NVIDIA GPUs"
    _need("torch", f"--backend cuda needs torch with CUDA; {where}")
    _need("deep_ep", f"--backend cuda drives an installed deep_ep (NVIDIA V2), which is missing; {where}")
    library = Library(
        name="cuda",
        module="deep_ep",
        buffer="ElasticBuffer",
        edition="nvidia-v2",
        device="cuda",
        process_group="nccl",
    )
    return LibraryBackend(library, max_ranks=_num_devices(library))


def _need(module: str, sentence: str) -> None:
    spec = find_spec(module)
    if spec is None or spec.origin is None:  # a folder of that name is no package
        raise MissingExtraError(sentence)


def _num_devices(library: Library) -> int:
    from importlib import import_module

    torch = import_module("torch")
    try:
        if library.extension:
            import_module(library.extension)
        count = int(getattr(torch, library.device).device_count())
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise MissingExtraError(f"torch cannot use {library.device} devices here: {reason}") from None
    if not count:
        sentence = f"--backend {library.name} needs {library.device} devices, there are none here"
        raise MissingExtraError(f"{sentence}; docs/hardware-status.md has the command for such a machine")
    return count


class LibraryBackend:
    """One library; its processes start with the first session."""

    def __init__(self, library: Library, *, max_ranks: int) -> None:
        """Start nothing yet."""
        self.library, self.max_ranks = library, max_ranks
        self.name = library.name
        self._pool: Pool | None = None

    def capabilities(self) -> Capabilities:
        """Return what the library's edition has."""
        rules = find_edition(self.library.edition)
        is_ascend = rules.name == "ascend"
        unsupported: dict[Feature, str] = {}
        if not rules.has_deduplicated:
            unsupported["deduplicated"] = f"edition {rules.name} has the expanded layout only"
        if not rules.has_single_reduction:
            unsupported["one_rounding"] = f"edition {rules.name} reduces on the rank that holds the experts"
        # R must be 1 or even: idle channels of a Jetty pair with rank XOR 1 (deepep-ascend.md section 3.5).
        ranks = [n for n in range(1, self.max_ranks + 1) if not is_ascend or n == 1 or n % 2 == 0]
        return Capabilities(
            edition=rules.name,
            num_ranks=tuple(ranks),
            unsupported=unsupported,
            num_aivs=(MIN_AIVS, MAX_AIVS) if is_ascend else (MAX_AIVS,),
            # An AI core has two of them; the others leave the number to the library.
            aivs=range(MIN_AIVS, MAX_AIVS + 1, AIVS_PER_AI_CORE) if is_ascend else range(1, MAX_AIVS + 1),
            hidden=ROW_ELEMENTS,
            max_experts=MAX_EXPERTS if is_ascend else MAX_NVIDIA_EXPERTS,
            strategies=(SHUFFLED, CANONICAL) if self.library.takes_arrival_seed else (),
        )

    def open(self, spec: BufferSpec, schedule: Schedule) -> "LibrarySession":
        """Make a buffer between the first R processes."""
        if self._pool is None or not self._pool.is_running:
            self._pool = Pool(self.library, self.max_ranks)
        return LibrarySession(self.library, self._pool, spec, schedule)

    def shutdown(self) -> None:
        """End the processes."""
        if self._pool is not None and self._pool.is_running:
            self._pool.stop()
        self._pool = None


class LibrarySession:
    """One buffer of a library, on all its ranks."""

    def __init__(self, library: Library, pool: Pool, spec: BufferSpec, schedule: Schedule) -> None:
        """Open the buffer."""
        self.library, self.pool, self.spec = library, pool, spec
        self.is_ascend = library.edition == "ascend"
        options: dict[str, Any] = {
            "num_max_tokens_per_rank": spec.num_max_tokens_per_rank,
            "hidden": spec.hidden,
            "num_topk": spec.num_topk,
            "allow_multiple_reduction": spec.multiple_reduction,
        }
        if library.takes_arrival_seed:
            options["arrival_seed"] = schedule.seed if schedule.strategy == SHUFFLED else None
        self._call("open", [{"num_ranks": spec.num_ranks, "options": options}] * spec.num_ranks)

    def dispatch(self, call: DispatchCall) -> Dispatched:
        """Run a dispatch."""
        options = {
            "num_experts": call.config.num_experts,
            "num_max_tokens_per_rank": call.config.num_max_tokens_per_rank,
            "expert_alignment": call.config.expert_alignment,
            "do_expand": call.expand,
            "do_cpu_sync": call.cpu_sync,
            "do_handle_copy": False,
            "do_zero_padding": call.zero_padding,
            "use_tma_aligned_col_major_sf": call.column_major_scales,
        }
        if self.is_ascend:
            options["num_sms"] = self.spec.num_aivs // AIVS_PER_AI_CORE
        mode = DispatchMode(
            edition=self.library.edition,
            expand=call.expand,
            cpu_sync=call.cpu_sync,
            num_aivs=self.spec.num_aivs,
        )
        given = self._given(call.x, call.scales, call.topk.topk_weights)
        for rank, one in enumerate(given):
            one |= {
                "topk_idx": call.topk.topk_idx[rank],
                "stats": None if call.stats is None else call.stats[rank],
                "handle": None,
                "options": options,
            }
        return self._dispatched(self._call("dispatch", given), call.config, call.topk, mode)

    def dispatch_cached(self, before: Dispatched, call: CachedCall) -> Dispatched:
        """Run a cached dispatch."""
        first = before.handles[0]
        options = {
            "do_expand": first.mode.expand,
            "do_handle_copy": False,
            "do_zero_padding": call.zero_padding,
            "use_tma_aligned_col_major_sf": call.column_major_scales,
        }
        given = self._given(call.x, call.scales, call.topk_weights)
        for rank, one in enumerate(given):
            number = _numbers(before)[rank]
            one |= {"topk_idx": None, "stats": None, "handle": number, "options": options}
        topk = TopK(num_experts=first.num_experts, topk_idx=tuple(h.topk_idx for h in before.handles))
        return self._dispatched(self._call("dispatch", given), first.config, topk, first.mode)

    def combine(self, before: Dispatched, call: CombineCall) -> tuple[Combined, ...]:
        """Run a combine."""
        given = [
            {
                "y": call.y[rank],
                "handle": _numbers(before)[rank],
                "topk_weights": None if call.topk_weights is None else call.topk_weights[rank],
                "bias": [one[rank] for one in call.bias],
            }
            for rank in range(self.spec.num_ranks)
        ]
        return tuple(
            Combined(**{name: _strided(value) for name, value in answer.items()})
            for answer in self._call("combine", given)
        )

    def close(self) -> None:
        """End the buffer; a pool that has failed has no buffers any more."""
        if self.pool.is_running:
            try:
                self._call("close", [{}] * self.spec.num_ranks)
            except BackendFailure:
                # Nothing is known of its processes any more: the next session gets new ones.
                if self.pool.is_running:
                    self.pool.stop()

    def _call(self, command: str, arguments: Sequence[dict[str, Any]]) -> list[Any]:
        if not self.pool.is_running:
            raise BackendFailure("a rank has failed before; its session is over")
        return self.pool.call(command, arguments)

    def _given(self, x: PerRank, scales: PerRank | None, weights: PerRank | None) -> list[dict[str, Any]]:
        return [
            {
                "x": x[rank],
                "scales": None if scales is None else scales[rank],
                "topk_weights": None if weights is None else weights[rank],
            }
            for rank in range(self.spec.num_ranks)
        ]

    def _dispatched(
        self, answers: list[dict[str, Any]], config: EPConfig, topk: TopK, mode: DispatchMode
    ) -> Dispatched:
        received, handles = [], []
        for rank, answer in enumerate(answers):
            fields = answer.pop("handle")
            number = answer.pop("number")
            received.append(Received(**{name: _strided(value) for name, value in answer.items()}))
            handles.append(_handle(fields, rank, config, topk, mode))
        return Dispatched(received=tuple(received), handles=tuple(handles), key=(number,) * len(handles))


def _numbers(before: Dispatched) -> tuple[int, ...]:
    assert isinstance(before.key, tuple)
    return before.key


def _handle(fields: dict[str, Any], rank: int, config: EPConfig, topk: TopK, mode: DispatchMode) -> Handle:
    """Return what a library's handle holds, in the reference's form."""
    values: dict[str, Any] = {
        name: _strided(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }
    values["num_recv_tokens_per_expert_list"] = tuple(values["num_recv_tokens_per_expert_list"])
    return Handle(
        rank=rank,
        config=config,
        mode=mode,
        source_topk_idx=topk.topk_idx[rank],
        source_digest=topk_digest(topk.topk_idx[rank]),
        **values,
    )


def _strided(sent: tuple[Array, tuple[int, ...]] | None) -> Any:  # noqa: ANN401 - an array or None
    """Return an array as its process had it: column-major where its strides say so."""
    if sent is None:
        return None
    array, strides = sent
    width = array.dtype.itemsize
    if array.ndim != 2 or min(array.shape) < 2 or strides[0] != width:
        return array
    columns = np.zeros((array.shape[1], strides[1] // width), array.dtype)
    columns[:, : len(array)] = array.T
    return columns[:, : len(array)].T
