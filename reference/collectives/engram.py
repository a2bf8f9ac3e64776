"""Engram: a table of entries spread over all ranks, read by id.

R ranks, Y layers, N entries of a layer on each rank, H hidden, T tokens, J entries per token, P scale packs.
Entry g of a layer lives on rank g // N as its row g % N. A negative id means "leave this place as it is".
Source: deepep-ascend.md sections 1.12 and 4.8; deepep-v2.md sections 1.5 and 6.3.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError
from reference.memory.sizes import HINT_ALIGN_BYTES, RECORD_ALIGN_BYTES, Dtype, align, element_bytes

Array = npt.NDArray[Any]
Storage = Literal["device", "cpu"]
"""Where a rank keeps its shard: in its own memory, or in its host's. Results are the same; bytes are
counted apart. Ascend upstream refuses "cpu"."""
STORAGES: tuple[str, ...] = get_args(Storage)
PACK_DTYPE = np.dtype(np.int16)
NUMPY_DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp8": np.dtype(ml_dtypes.float8_e4m3fn)}

Fetched = Array | tuple[Array, Array]
FetchHook = Callable[[], Fetched]
"""Returns data [T, J H], or for fp8 (data, scales [T, J P]); does no waiting."""


@dataclass(frozen=True, kw_only=True)
class EngramConfig:
    """What every rank sets alike.

    Args:
      num_entries_per_layer: [Y] N of each layer, per rank.
      hidden: H.
      num_max_tokens: most T of a fetch.
      num_entries_per_token: J.
      dtype: fp8 exactly when there are scale packs.
      num_sf_packs: P, 2-byte packs of an entry.

    Raises:
      ConfigError: a number is out of range, no layer, or dtype and packs contradict each other.
    """

    num_entries_per_layer: tuple[int, ...]
    hidden: int
    num_max_tokens: int
    num_entries_per_token: int
    dtype: Dtype = "bf16"
    num_sf_packs: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        entries = tuple(
            whole_number(f"num_entries_per_layer[{i}]", n, 1)
            for i, n in enumerate(self.num_entries_per_layer)
        )
        object.__setattr__(self, "num_entries_per_layer", entries)
        if not entries:
            raise ConfigError("num_entries_per_layer", entries, "must name at least one layer")
        for name in ("hidden", "num_max_tokens", "num_entries_per_token"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        packs = whole_number("num_sf_packs", self.num_sf_packs, 0)
        if (element_bytes(self.dtype) == 1) != (packs > 0):
            raise ConfigError(
                "num_sf_packs", packs, f"fp8 needs scale packs and bf16 has none, not {self.dtype}"
            )

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry without scales."""
        return self.hidden * element_bytes(self.dtype)

    @property
    def fetch_bytes(self) -> int:
        """Bytes of the receive area: every layer, every token, every entry."""
        places = len(self.num_entries_per_layer) * self.num_max_tokens * self.num_entries_per_token
        return places * self.entry_bytes

    @property
    def scale_bytes(self) -> int:
        """Bytes of this rank's shard of the scale tables, which lie in the buffer behind the receive area."""
        return sum(self.num_entries_per_layer) * self.num_sf_packs * PACK_DTYPE.itemsize

    @property
    def storage_bytes(self) -> int:
        """Bytes of this rank's entries."""
        return sum(self.num_entries_per_layer) * self.entry_bytes


@dataclass(frozen=True, kw_only=True)
class EngramSize:
    """Bytes of one rank, multiples of 2 MiB.

    Args:
      buffer_bytes: of the buffer that is fetched into (`num_gpu_bytes`).
      storage_bytes: of the shard that others read (`num_rdma_storage_bytes`, `num_cpu_bytes`).
    """

    buffer_bytes: int
    storage_bytes: int


def engram_size_hint(config: EngramConfig) -> EngramSize:
    """Return the size hint of `EngramBuffer`.

    Source: deepep-ascend.md section 1.12.
    """
    return EngramSize(
        buffer_bytes=align(config.fetch_bytes + config.scale_bytes, HINT_ALIGN_BYTES),
        storage_bytes=align(config.storage_bytes, HINT_ALIGN_BYTES),
    )


def engram_size_hint_v2(*, num_entries: int, hidden: int, num_max_tokens: int, dtype: Dtype) -> EngramSize:
    """Return the size hint of `ElasticBuffer`, whose table has one layer and entries padded to 32 bytes.

    Args:
      num_entries: N.
      hidden: H.
      num_max_tokens: tokens times entries per token, which is what callers pass.
      dtype: of the entries.

    Raises:
      ConfigError: a number is out of range.
      Source: deepep-v2.md section 1.5.
    """
    entry = align(whole_number("hidden", hidden, 1) * element_bytes(dtype), RECORD_ALIGN_BYTES)
    return EngramSize(
        buffer_bytes=align(entry * whole_number("num_max_tokens", num_max_tokens, 1), HINT_ALIGN_BYTES),
        storage_bytes=align(entry * whole_number("num_entries", num_entries, 1), HINT_ALIGN_BYTES),
    )


class EngramTable:
    """The shards and fetch buffers of all ranks.

    Args:
      num_ranks: R.
      config: see `set_config`.
      storage: where shards are kept.

    Raises:
      ConfigError: a number is out of range, or storage is neither device nor cpu.
    """

    def __init__(self, *, num_ranks: int, config: EngramConfig, storage: Storage = "device") -> None:
        """Allocate what the config asks for."""
        if storage not in STORAGES:
            raise ConfigError("storage", storage, f"must be one of {', '.join(STORAGES)}")
        self.num_ranks = whole_number("num_ranks", num_ranks, 1)
        self.storage: Storage = storage
        self.set_config(config)

    def set_config(self, config: EngramConfig) -> None:
        """Set new shapes; entries must be written again, and fetch areas start as NaN.

        The buffer of a fetch area is [layer, num_max_tokens J, H]; so a fetch of fewer tokens leaves the
        end of each layer's area alone.
        """
        self.config = config
        layers, places = (
            len(config.num_entries_per_layer),
            config.num_max_tokens * config.num_entries_per_token,
        )
        fill = np.full((self.num_ranks, layers, places * config.entry_bytes), 0xFF, dtype=np.uint8)
        self._areas = fill.view(NUMPY_DTYPES[config.dtype])  # 0xff.. is NaN in bf16 and in e4m3fn
        self._entries: list[list[Array]] | None = None
        self._scales: list[list[Array]] | None = None

    @property
    def device_bytes(self) -> int:
        """Bytes that a rank needs in its own memory."""
        size = engram_size_hint(self.config)
        return size.buffer_bytes + (size.storage_bytes if self.storage == "device" else 0)

    @property
    def host_bytes(self) -> int:
        """Bytes that a rank needs in its host's memory."""
        return engram_size_hint(self.config).storage_bytes if self.storage == "cpu" else 0

    def write(
        self, storages: Sequence[Sequence[Array]], sfs: Sequence[Sequence[Array]] | None = None
    ) -> None:
        """Store every rank's entries, copied.

        Args:
          storages: per rank and layer, [N, H] of the config's dtype.
          sfs: for fp8, per rank and layer, the whole table [R N, P] of 2-byte packs, alike on all ranks;
            a rank keeps rows [rank N, (rank + 1) N) of its own table.

        Raises:
          ConfigError: a shape or dtype does not fit, or scales are given exactly when they must not be;
            nothing has been written then.
        """
        config = self.config
        if (sfs is None) != (config.num_sf_packs == 0):
            raise ConfigError("sfs", "none" if sfs is None else "given", "fp8 needs scales and bf16 has none")
        dtype = NUMPY_DTYPES[config.dtype]
        shapes = [(n, config.hidden) for n in config.num_entries_per_layer]
        self._check("storages", storages, shapes, dtype.itemsize, dtype)
        if sfs is not None:
            tables = [(self.num_ranks * n, config.num_sf_packs) for n in config.num_entries_per_layer]
            self._check("sfs", sfs, tables, PACK_DTYPE.itemsize, None)
            self._scales = [
                [
                    t[r * n : (r + 1) * n].copy().view(PACK_DTYPE)
                    for t, (n, _) in zip(rank, shapes, strict=True)
                ]
                for r, rank in enumerate(sfs)
            ]
        self._entries = [[np.array(table) for table in rank] for rank in storages]

    def _check(
        self,
        name: str,
        arrays: Sequence[Sequence[Array]],
        shapes: Sequence[tuple[int, int]],
        num_bytes: int,
        dtype: np.dtype[Any] | None,
    ) -> None:
        if len(arrays) != self.num_ranks:
            raise ConfigError(name, f"{len(arrays)} ranks", f"must be one list per rank, {self.num_ranks}")
        for rank, layers in enumerate(arrays):
            if len(layers) != len(shapes):
                raise ConfigError(f"{name}[rank {rank}]", f"{len(layers)} layers", f"must be {len(shapes)}")
            for layer, (array, shape) in enumerate(zip(layers, shapes, strict=True)):
                fits = array.dtype.itemsize == num_bytes if dtype is None else array.dtype == dtype
                if array.shape != shape or not fits:
                    rule = f"must be {dtype or f'{num_bytes}-byte packs'} of shape {shape}"
                    raise ConfigError(
                        f"{name}[rank {rank}, layer {layer}]", f"{array.dtype} {array.shape}", rule
                    )

    def fetch(
        self, rank: int, indices: npt.NDArray[np.int32], *, column_major_scales: bool = True
    ) -> list[FetchHook]:
        """Read entries into a rank's buffer; return one hook per layer.

        Args:
          rank: that reads.
          indices: [Y, T, J] int32, contiguous; global id in 0 .. R N - 1, negative = skip: the data of
            that place keeps what an earlier fetch left there, its scales are undefined (here -1).
          column_major_scales: strides of the scales count (1, T) elements, else (J P, 1); no padding.

        Returns:
          per layer a hook. Its data is a VIEW of the rank's buffer: the next fetch overwrites it.

        Raises:
          ConfigError: nothing was written, or indices of a wrong shape, dtype or range; upstream does
            not check the range.
        """
        if whole_number("rank", rank, 0) >= self.num_ranks:
            raise ConfigError("rank", rank, f"must be below num_ranks {self.num_ranks}")
        if self._entries is None:
            raise ConfigError("fetch", "before write", "entries must be written first")
        self._check_indices(indices)
        return [self._fetch_layer(rank, layer, ids, column_major_scales) for layer, ids in enumerate(indices)]

    def _check_indices(self, indices: npt.NDArray[np.int32]) -> None:
        config = self.config
        layers, per_token = len(config.num_entries_per_layer), config.num_entries_per_token
        fits = indices.ndim == 3 and (indices.shape[0], indices.shape[2]) == (layers, per_token)
        if indices.dtype != np.int32 or not fits or not indices.flags.c_contiguous:
            rule = f"must be contiguous int32 of shape ({layers}, tokens, {per_token})"
            raise ConfigError("indices", f"{indices.dtype} {indices.shape}", rule)
        if indices.shape[1] > config.num_max_tokens:
            raise ConfigError(
                "indices", f"{indices.shape[1]} tokens", f"num_max_tokens is {config.num_max_tokens}"
            )
        limits = self.num_ranks * np.array(config.num_entries_per_layer)
        bad = np.argwhere(indices >= limits[:, None, None])
        if len(bad):
            layer, token, place = (int(i) for i in bad[0])
            field = f"indices[layer {layer}, token {token}, entry {place}]"
            rule = f"must be below {int(limits[layer])}, or negative to skip"
            raise ConfigError(field, int(indices[layer, token, place]), rule)

    def _fetch_layer(
        self, rank: int, layer: int, ids: npt.NDArray[np.int32], column_major: bool
    ) -> FetchHook:
        config = self.config
        assert self._entries is not None, "fetch checks this"
        num_entries = config.num_entries_per_layer[layer]
        tokens, per_token = ids.shape
        taken = ids >= 0
        owner, row = np.divmod(ids[taken].astype(np.int64), num_entries)
        area = self._areas[rank, layer, : math.prod(ids.shape) * config.hidden]
        places = area.reshape(tokens, per_token, config.hidden)
        places[taken] = _gather(self._entries, layer, owner, row, config.hidden)
        data = area.reshape(tokens, per_token * config.hidden)
        if self._scales is None:
            return lambda: data
        packs = config.num_sf_packs
        # Scales are a fresh tensor each time; skipped ones are as undefined as fresh memory.
        scales = np.full((tokens, per_token, packs), -1, dtype=PACK_DTYPE)
        scales[taken] = _gather(self._scales, layer, owner, row, packs)
        flat = np.array(scales.reshape(tokens, per_token * packs), order="F" if column_major else "C")
        return lambda: (data, flat)


def _gather(
    shards: Sequence[Sequence[Array]],
    layer: int,
    owner: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    width: int,
) -> Array:
    """Return rows [len(owner), width] read from their owners' shards."""
    rows = np.empty((len(owner), width), dtype=shards[0][layer].dtype)
    for rank, layers in enumerate(shards):
        mine = owner == rank
        rows[mine] = layers[layer][row[mine]]
    return rows
