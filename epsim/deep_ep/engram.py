"""`EngramBuffer`: a table of entries spread over all ranks, read by id.

R ranks, Y layers, N entries of a layer on each rank, H hidden, T tokens, J entries per token, P scale packs.
Source: deepep-ascend.md sections 1.12 and 4.8; deepep-v2.md section 6.3.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import torch

from epsim.deep_ep.arrays import array_of, tensor_of
from epsim.deep_ep.base import BufferBase
from epsim.deep_ep.comm import barrier, get_comm_stream, get_logical_domain_size, get_physical_domain_size
from epsim.deep_ep.editions import edition_of
from epsim.deep_ep.entries import TORCH_DTYPES, EngramMemory, Fetched, FetchHook, check_tables, entry_dtype
from epsim.deep_ep.errors import HostCheckError, RefusedError, UndefinedError, UnsupportedError, raised_as
from epsim.deep_ep.meeting import group_of, telling_peers
from epsim.deep_ep.tensor_checks import check_flags
from epsim.deep_ep.turns import one_at_a_time
from reference.collectives.engram import EngramConfig
from reference.config import whole_number
from reference.edition import Edition
from reference.errors import ConfigError
from reference.memory.sizes import HINT_ALIGN_BYTES, align

P = ParamSpec("P")
OLD_NAME, NEW_NAME = "num_rdma_storage_size", "num_rdma_storage_bytes"


def _takes_old_name(init: Callable[Concatenate["EngramBuffer", P], None]) -> Callable[..., None]:
    """Accept the older keyword of the storage's size too."""

    @functools.wraps(init)
    def wrapped(self: "EngramBuffer", *args: P.args, **kwargs: P.kwargs) -> None:
        if OLD_NAME in kwargs:
            if NEW_NAME in kwargs:
                raise TypeError(f"{NEW_NAME} and {OLD_NAME} are one argument: give only the first")
            kwargs[NEW_NAME] = kwargs.pop(OLD_NAME)
        init(self, *args, **kwargs)

    return wrapped


class EngramBuffer(BufferBase):
    """Entries of all ranks, read one-sidedly into this rank's buffer.

    On a device a fetch reads its owner's memory. Here `write` gives every rank a copy of all shards, because
    gloo cannot read without the owner's help; so a rank takes R times num_rdma_storage_bytes of memory, and
    may fetch as often as it likes whatever the others do.

    Args:
      group: process group.
      num_gpu_bytes: of the buffer that is fetched into; see `get_storage_size_hint`.
      num_rdma_storage_bytes: of this rank's entries; `num_rdma_storage_size` is its older name.
      use_cpu_rdma_storage: keep entries in host memory; Ascend: must be False.
      num_allocated_qps, qp_depth: Ascend: must be 0, which is what `get_theoretical_config` says.
      restrict_rd_atomic: Ascend: must be False.
      allow_hybrid_mode: stored.
      sl_idx: Ascend: must be None.
      num_gpu_timeout_secs: longest wait for a peer.
      explicitly_destroy: see `BufferBase`.
      use_huge1g_page: accepted and ignored.
      edition: "ascend"; or "nvidia", which has 4-byte scale packs and refuses none of the above. Not an
        argument of the real library.

    Attributes:
      storage: [num_gpu_bytes] uint8, what is fetched into.

    Raises:
      TypeError: both names of the storage's size.
      UnsupportedError: what the Ascend edition does not have.
      RefusedError: a size is no positive multiple of 2 MiB, or a timeout of 0 or less.
      RankMismatchError, PeerRefusedError: arguments differ between ranks, or another rank's are refused.
    """

    barrier = barrier
    get_comm_stream = get_comm_stream
    get_physical_domain_size = get_physical_domain_size
    get_logical_domain_size = get_logical_domain_size

    @_takes_old_name
    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch's type
        num_gpu_bytes: int,
        num_rdma_storage_bytes: int,
        use_cpu_rdma_storage: bool,
        num_allocated_qps: int,
        qp_depth: int,
        restrict_rd_atomic: bool = False,
        allow_hybrid_mode: bool = True,
        sl_idx: int | None = None,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
        *,
        use_huge1g_page: bool = True,
        edition: str = "ascend",
    ) -> None:
        """Allocate the buffer; collective."""
        del use_huge1g_page
        sizes = {"num_gpu_bytes": num_gpu_bytes, NEW_NAME: num_rdma_storage_bytes}
        with telling_peers(group_of(group)):
            self.edition = edition_of(edition)
            if self.edition.name == "ascend":
                _refuse_others(
                    use_cpu_rdma_storage=(use_cpu_rdma_storage, False),
                    num_allocated_qps=(num_allocated_qps, 0),
                    qp_depth=(qp_depth, 0),
                    restrict_rd_atomic=(restrict_rd_atomic, False),
                    sl_idx=(sl_idx, None),
                )
            _check_sizes(sizes)
        super().__init__(
            group,
            timeout_secs=num_gpu_timeout_secs,
            explicitly_destroy=explicitly_destroy,
            num_bytes=num_gpu_bytes + num_rdma_storage_bytes,
        )
        self.num_gpu_bytes, self.num_rdma_storage_bytes = num_gpu_bytes, num_rdma_storage_bytes
        self.use_cpu_rdma_storage, self.allow_hybrid_mode = use_cpu_rdma_storage, allow_hybrid_mode
        self.num_allocated_qps = num_allocated_qps
        self.exchange.agree("EngramBuffer", same={**sizes, "edition": self.edition.name})
        self.storage = torch.zeros(num_gpu_bytes, dtype=torch.uint8)
        self._memory: EngramMemory | None = None

    @staticmethod
    def get_storage_size_hint(
        group: Any,  # noqa: ANN401 - torch's type
        num_entries_per_layer: Sequence[int],
        hidden: int,
        num_max_tokens: int,
        num_entries_per_token: int,
        dtype: torch.dtype = torch.bfloat16,
        num_sf_packs: int = 0,
        *,
        edition: str = "ascend",
    ) -> tuple[int, int]:
        """Return the bytes to give the constructor: of the buffer, and of this rank's entries.

        Args:
          group: ignored.
          num_entries_per_layer: [Y] N of each layer.
          hidden: H.
          num_max_tokens: most T.
          num_entries_per_token: J.
          dtype: torch.bfloat16, or torch.float8_e4m3fn, which has scale packs.
          num_sf_packs: P.
          edition: see the class.

        Raises:
          HostCheckError: a number is out of range, or dtype and packs contradict each other.
        """
        del group
        config = _config(
            num_entries_per_layer, hidden, num_max_tokens, num_entries_per_token, dtype, num_sf_packs
        )
        buffer_bytes = config.fetch_bytes + _scale_bytes(config, edition_of(edition))
        return align(buffer_bytes, HINT_ALIGN_BYTES), align(config.storage_bytes, HINT_ALIGN_BYTES)

    @staticmethod
    def get_theoretical_config(
        group: Any,  # noqa: ANN401 - torch's type
        num_layers: int,
        num_max_tokens: int,
        num_entries_per_token: int,
        num_max_read_requests_per_qp: int = 16,
    ) -> tuple[int, int, bool]:
        """Return (0, 0, False): no queue pairs, no depth, no restriction. Arguments are ignored."""
        del group, num_layers, num_max_tokens, num_entries_per_token, num_max_read_requests_per_qp
        return 0, 0, False

    @one_at_a_time
    def set_config(
        self,
        num_entries_per_layer: Sequence[int],
        hidden: int,
        num_max_tokens: int,
        num_entries_per_token: int,
        dtype: torch.dtype = torch.bfloat16,
        num_sf_packs: int = 0,
    ) -> None:
        """Set the shapes of the table; collective. Entries must be written after it.

        Args:
          num_entries_per_layer: this and the following as in `get_storage_size_hint`.
          hidden: H.
          num_max_tokens: most T.
          num_entries_per_token: J.
          dtype: of the entries.
          num_sf_packs: P.

        Raises:
          HostCheckError: as `get_storage_size_hint`, the buffer is too small, or so many layers that their
            numbers take more than the 4 kB in which ranks compare them.
          RankMismatchError: a number differs between ranks.
        """
        numbers = (num_entries_per_layer, hidden, num_max_tokens, num_entries_per_token, dtype, num_sf_packs)
        with self.exchange.telling("set_config"):
            config = _config(*numbers)
            self._check_room(config)
        same = {"num_entries_per_layer": list(num_entries_per_layer), "hidden": hidden, "dtype": str(dtype)}
        same |= {"num_max_tokens": num_max_tokens, "num_entries_per_token": num_entries_per_token}
        self.exchange.agree("set_config", same={**same, "num_sf_packs": num_sf_packs})
        self._memory = EngramMemory(config, self.num_ranks, self.storage, self.edition.scale_column_rows)

    def _check_room(self, config: EngramConfig) -> None:
        for field, has, needs in (
            ("num_gpu_bytes", self.num_gpu_bytes, config.fetch_bytes + _scale_bytes(config, self.edition)),
            (NEW_NAME, self.num_rdma_storage_bytes, config.storage_bytes),
        ):
            if needs > has:
                raise HostCheckError(field, has, f"this configuration needs {needs} bytes")

    @one_at_a_time
    def write(self, storages: Sequence[torch.Tensor], sfs: Sequence[torch.Tensor] | None = None) -> None:
        """Store this rank's entries for all ranks to read, copied; collective.

        Args:
          storages: per layer [N, H] of the configured dtype, contiguous.
          sfs: for fp8 only, per layer [R N, P] packs of 2 bytes (NVIDIA: 4), contiguous, the same table on
            every rank; a rank keeps its rows [rank N, (rank + 1) N) and nobody looks at the others.

        Raises:
          HostCheckError: before set_config, a table that does not fit, or scales given or missing against
            the dtype.
          PeerRefusedError: another rank's tables do not fit.
        """
        with self.exchange.telling("write"):
            memory = self._check_write(storages, sfs)
        self.exchange.agree("write")
        memory.scales = None
        if sfs is not None:
            counts = memory.config.num_entries_per_layer
            mine = [table.split(n)[self.rank_idx] for table, n in zip(sfs, counts, strict=True)]
            memory.scales = [self._gathered(table) for table in mine]
        memory.entries = [self._gathered(table) for table in storages]

    def _check_write(
        self, storages: Sequence[torch.Tensor], sfs: Sequence[torch.Tensor] | None
    ) -> EngramMemory:
        if self._memory is None:
            raise HostCheckError("write", "before set_config", "first set_config, then write, then fetch")
        config = self._memory.config
        if (sfs is None) != (config.num_sf_packs == 0):
            raise HostCheckError("sfs", "none" if sfs is None else "given", "fp8 needs scales, bf16 has none")
        dtype = TORCH_DTYPES[config.dtype]
        shapes = [(n, config.hidden) for n in config.num_entries_per_layer]
        check_tables("storages", storages, shapes, dtype, dtype.itemsize)
        if sfs is not None:
            tables = [(self.num_ranks * n, config.num_sf_packs) for n in config.num_entries_per_layer]
            check_tables("sfs", sfs, tables, None, self.edition.scale_pack_bytes)
        return self._memory

    def _gathered(self, table: torch.Tensor) -> torch.Tensor:
        """Return [R N, ...]: the tables of all ranks one after the other."""
        rows = array_of(table.contiguous().view(torch.uint8))
        parts = self.exchange.all_gather(rows, [len(rows)] * self.num_ranks)
        return torch.cat([tensor_of(part) for part in parts]).view(table.dtype)

    @one_at_a_time
    def fetch(
        self, indices: torch.Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = True
    ) -> list[FetchHook]:
        """Read entries into this rank's buffer; the other ranks need not take part.

        Args:
          indices: [Y, T, J] int32, contiguous: owner rank * N + row; negative = leave the place as an
            earlier fetch left it, its scales are undefined (here -1).
          num_qps: Ascend: must be 0; else accepted and ignored.
          use_tma_aligned_col_major_sf: scales have strides (1, T), on NVIDIA (1, al(T, 4)); else (J P, 1).

        Returns:
          per layer a hook without arguments, to be called in any order. It returns [T, J H], a VIEW of the
          buffer that the next fetch overwrites; for fp8 also fresh scales [T, J P].

        Raises:
          UnsupportedError: queue pairs (Ascend).
          HostCheckError: before set_config or write, or indices of another shape or dtype.
          UndefinedError: an id beyond the table; from a hook, that set_config came after its fetch.
        """
        if self.edition.name == "ascend":
            _refuse_others(num_qps=(num_qps, 0))
        check_flags(use_tma_aligned_col_major_sf=use_tma_aligned_col_major_sf)
        memory = self._memory
        if memory is None:
            raise HostCheckError("fetch", "before set_config", "first set_config, then write, then fetch")
        if memory.entries is None:
            raise HostCheckError("fetch", "before write", "set_config emptied the table, write entries first")
        memory.check_indices(indices)
        column_major = use_tma_aligned_col_major_sf
        hooks = [memory.fetch(layer, ids, column_major=column_major) for layer, ids in enumerate(indices)]
        return [functools.partial(self._fetched, memory, hook) for hook in hooks]

    def _fetched(self, memory: EngramMemory, hook: FetchHook) -> Fetched:
        if self._memory is not memory:
            raise UndefinedError(
                "hook", "stale", "set_config came after its fetch, so its memory is used anew"
            )
        return hook()


def _refuse_others(**arguments: tuple[object, object]) -> None:
    """Refuse every argument, given as (value, the only value there is), that has another value."""
    for field, (value, only) in arguments.items():
        if value != only:
            raise UnsupportedError(field, value, f"edition ascend has only {only}")


def _check_sizes(sizes: dict[str, int]) -> None:
    with raised_as(RefusedError):
        for field, num_bytes in sizes.items():
            if whole_number(field, num_bytes, 1) % HINT_ALIGN_BYTES:
                raise ConfigError(field, num_bytes, f"must be a multiple of {HINT_ALIGN_BYTES}")


def _config(
    num_entries_per_layer: Sequence[int],
    hidden: int,
    num_max_tokens: int,
    num_entries_per_token: int,
    dtype: torch.dtype,
    num_sf_packs: int,
) -> EngramConfig:
    if not isinstance(num_entries_per_layer, Sequence):
        found = type(num_entries_per_layer).__name__
        raise HostCheckError("num_entries_per_layer", found, "must be a sequence with a number per layer")
    with raised_as(HostCheckError):
        return EngramConfig(
            num_entries_per_layer=tuple(num_entries_per_layer),
            hidden=hidden,
            num_max_tokens=num_max_tokens,
            num_entries_per_token=num_entries_per_token,
            dtype=entry_dtype(dtype),
            num_sf_packs=num_sf_packs,
        )


def _scale_bytes(config: EngramConfig, edition: Edition) -> int:
    """Bytes of this rank's shard of the scale tables."""
    return sum(config.num_entries_per_layer) * config.num_sf_packs * edition.scale_pack_bytes
