"""One rank of a library: a process that serves calls until its pipe closes. Torch is imported here, late.

Arrays come and go with their strides; whatever a call throws goes back as text.
"""

import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.conform.backends.library import Library

Array = npt.NDArray[Any]
START_TIMEOUT_SECS = 120
HANDLE_FIELDS = (
    "num_recv_tokens",
    "num_expanded_tokens",
    "num_recv_tokens_per_expert_list",
    "psum_num_recv_tokens_per_expert",
    "num_unaligned_recv_tokens_per_expert",
    "recv_src_metadata",
    "dst_buffer_slot_idx",
    "dst_gsge_idx",
)


def serve(pipe: Connection, library: Library, rank: int, num_ranks: int, folder: str) -> None:
    """Join the others, then answer (command, arguments) with (worked, result) until the pipe closes."""
    # A parent that has ended in the middle of a call reads no answer, and needs none.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            worker = Worker(library, rank, num_ranks, folder)
        except Exception:
            pipe.send((False, traceback.format_exc(limit=-3)))
            return
        pipe.send((True, None))
        while True:
            command, arguments = pipe.recv()
            try:
                answer = True, getattr(worker, command)(**arguments)
            except Exception:
                answer = False, traceback.format_exc(limit=-3)
            pipe.send(answer)


@dataclass(kw_only=True)
class Open:
    """A buffer and the handles of its dispatches."""

    buffer: Any
    handles: list[Any] = field(default_factory=list)


class Worker:
    """One rank; a command of the parent is a method here."""

    def __init__(self, library: Library, rank: int, num_ranks: int, folder: str) -> None:
        """Join the process group, and make one group for each number of ranks below."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if library.extension:
            import_module(library.extension)
        if library.device != "cpu":
            getattr(torch, library.device).set_device(rank)
        dist.init_process_group(
            library.process_group, init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks
        )
        self.library, self.rank = library, rank
        self.device = library.device if library.device == "cpu" else f"{library.device}:{rank}"
        self.module = import_module(library.module)
        self.groups = {n: dist.new_group(range(n)) for n in range(1, num_ranks + 1)}
        self.opened: Open | None = None

    def open(self, *, num_ranks: int, options: dict[str, Any]) -> None:
        """Make a buffer between the first ranks."""
        maker = getattr(self.module, self.library.buffer)
        made = maker(
            self.groups[num_ranks], explicitly_destroy=True, **(dict(self.library.options) | options)
        )
        self.opened = Open(buffer=made)

    def close(self) -> None:
        """End the buffer."""
        assert self.opened is not None
        self.opened.buffer.destroy()
        self.opened = None

    def dispatch(
        self,
        *,
        x: Array,
        scales: Array | None,
        topk_idx: Array | None,
        topk_weights: Array | None,
        stats: Array | None,
        handle: int | None,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        """Run a dispatch, cached if `handle` is a number; return arrays, handle fields and its number."""
        assert self.opened is not None
        rows, packs, counts = self._tensor(x), self._tensor(scales), self._tensor(stats)
        ids, weights = self._tensor(topk_idx), self._tensor(topk_weights)
        old = None if handle is None else self.opened.handles[handle]
        data, local_ids, recv_weights, new, event = self.opened.buffer.dispatch(
            rows if packs is None else (rows, packs),
            topk_idx=ids,
            topk_weights=weights,
            cumulative_local_expert_recv_stats=counts,
            handle=old,
            **options,
        )
        del event  # a call that is not asynchronous has waited
        self._unchanged((rows, x), (packs, scales), (ids, topk_idx), (weights, topk_weights))
        self.opened.handles.append(new)
        recv_x, recv_scales = data if isinstance(data, tuple) else (data, None)
        return {
            "recv_x": _sent(recv_x),
            "recv_scales": _sent(recv_scales),
            "recv_topk_idx": _sent(local_ids),
            "recv_topk_weights": _sent(recv_weights),
            "cumulative_local_expert_recv_stats": _sent(counts),
            "handle": _handle_fields(new),
            "number": len(self.opened.handles) - 1,
        }

    def combine(
        self, *, y: Array, handle: int, topk_weights: Array | None, bias: list[Array]
    ) -> dict[str, Any]:
        """Run a combine; return its arrays."""
        assert self.opened is not None
        rows, weights = self._tensor(y), self._tensor(topk_weights)
        added = tuple(self._tensor(one) for one in bias)
        x, home_weights, event = self.opened.buffer.combine(
            rows,
            self.opened.handles[handle],
            topk_weights=weights,
            bias=None if not added else added[0] if len(added) == 1 else added,
        )
        del event
        self._unchanged((rows, y), (weights, topk_weights), *zip(added, bias, strict=True))
        return {"combined_x": _sent(x), "combined_topk_weights": _sent(home_weights)}

    def _tensor(self, array: Array | None) -> Any:  # noqa: ANN401 - torch's type
        from epsim.deep_ep.arrays import tensor_of

        return None if array is None else tensor_of(array.copy(order="K")).to(self.device)

    def _unchanged(self, *pairs: tuple[Any, Array | None]) -> None:
        """Refuse a library that writes to what it was given."""
        from epsim.deep_ep.arrays import array_of

        for tensor, before in pairs:
            if before is not None and array_of(tensor.cpu()).tobytes() != before.tobytes():
                raise RuntimeError("the library wrote to a tensor that it was given")


def _handle_fields(handle: Any) -> dict[str, Any]:  # noqa: ANN401 - the library's type
    found = {name: getattr(handle, name, None) for name in HANDLE_FIELDS}
    # V2 of NVIDIA knows scale-up ranks only; in one domain they are all ranks (deepep-v2.md section 2.6).
    psum = getattr(handle, "psum_num_recv_tokens_per_rank", None)
    found["psum_num_recv_tokens_per_rank"] = (
        handle.psum_num_recv_tokens_per_scaleup_rank if psum is None else psum
    )
    return {name: _sent(value) if hasattr(value, "cpu") else value for name, value in found.items()}


def _sent(tensor: Any) -> tuple[Array, tuple[int, ...]] | None:  # noqa: ANN401 - torch's type
    """Return a tensor as (array, strides in bytes): a pipe keeps no strides."""
    from epsim.deep_ep.arrays import array_of

    if tensor is None:
        return None
    strides = tuple(int(stride) * tensor.element_size() for stride in tensor.stride())
    return np.ascontiguousarray(array_of(tensor.cpu())), strides
