"""What happened, and when: spans on tracks, simulated or measured.

A track is one resource of one group ("rank 3", "URMA engine"). Arrays are sorted by everything that a span
holds, so that equal runs give equal bytes, in whatever order they were told. Times are integers in ps.

Dimension legend: T tracks, N names, S spans, L links, B time bins.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

COLUMNS = ("track", "name", "start_ps", "end_ps", "size_bytes", "peer")
"""What a span holds."""
NO_PEER = -1
_INT32_MAX = 2**31 - 1
_WAITS = frozenset({"wait", "waiting", "idle"})


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkLoad:
    """Bytes that each link carried over time.

    Args:
      labels: one per link, as a person reads it.
      carried_bytes: [L, B] float64, at least 0; fractions where a transfer spans bins.
      edges_ps: [B+1] int64, strictly rising, the first at least 0.
      capacity_bytes_per_s: [L] float64, above 0.

    Raises:
      InputError: a shape or a value is none of these.
    """

    labels: tuple[str, ...]
    carried_bytes: Floats
    edges_ps: Int64s
    capacity_bytes_per_s: Floats

    def __post_init__(self) -> None:
        """Check shapes and values, and keep private read-only copies."""
        carried = np.array(self.carried_bytes, dtype=np.float64)
        edges = np.array(self.edges_ps, dtype=np.int64)
        capacity = np.array(self.capacity_bytes_per_s, dtype=np.float64)
        if edges.ndim != 1 or len(edges) < 2 or edges[0] < 0 or (np.diff(edges) <= 0).any():
            raise InputError(
                "edges_ps", edges.tolist()[:8], "must be at least two rising times, none below 0"
            )
        shape = (len(self.labels), len(edges) - 1)
        if carried.shape != shape:
            raise InputError("carried_bytes.shape", carried.shape, f"must be {shape}: links by time bins")
        if not (np.isfinite(carried).all() and (carried >= 0).all()):
            raise InputError("carried_bytes", "an array", "must be finite and at least 0 everywhere")
        if capacity.shape != shape[:1] or not (np.isfinite(capacity).all() and (capacity > 0).all()):
            raise InputError("capacity_bytes_per_s", capacity.tolist()[:8], "must be above 0, one per link")
        for field, value in (
            ("carried_bytes", carried),
            ("edges_ps", edges),
            ("capacity_bytes_per_s", capacity),
        ):
            value.setflags(write=False)
            object.__setattr__(self, field, value)
        object.__setattr__(self, "labels", tuple(self.labels))

    @property
    def utilisation(self) -> Floats:
        """[L, B] share of the capacity of each bin that was used; 1 is full."""
        full = self.capacity_bytes_per_s[:, None] * (np.diff(self.edges_ps) / 1e12)
        return self.carried_bytes / full


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A run: tables of texts and one row per span; made by `TraceBuilder`.

    Args:
      title: one line that says what ran.
      meta: facts of the run, sorted by key.
      groups: distinct groups in natural order ("rank 2" before "rank 10").
      track_group: [T] int32, position in `groups`; rising.
      track_names: [T] names of the resources, in natural order within a group.
      names: [N] distinct names of spans, sorted.
      track: [S] int32, position in the tracks.
      name: [S] int32, position in `names`.
      start_ps, end_ps: [S] int64, 0 <= start <= end.
      size_bytes: [S] int64, at least 0.
      peer: [S] int32, rank at the other end, -1 = none.
      links: load of the links, None when unknown.
    """

    title: str
    meta: Mapping[str, str]
    groups: tuple[str, ...]
    track_group: Int32s
    track_names: tuple[str, ...]
    names: tuple[str, ...]
    track: Int32s
    name: Int32s
    start_ps: Int64s
    end_ps: Int64s
    size_bytes: Int64s
    peer: Int32s
    links: LinkLoad | None = None

    @property
    def num_spans(self) -> int:
        """Spans in all."""
        return len(self.track)

    @property
    def last_end_ps(self) -> int:
        """Latest end of all spans, 0 when there are none."""
        return int(self.end_ps.max(initial=0))

    @property
    def tracks(self) -> tuple[tuple[str, str], ...]:
        """[T] pairs of group and resource."""
        return tuple(
            (self.groups[group], name) for group, name in zip(self.track_group, self.track_names, strict=True)
        )

    def digest(self) -> str:
        """Return the SHA-256 of the canonical bytes, in hexadecimal; equal for equal runs on any platform."""
        head: dict[str, Any] = {
            "title": self.title,
            "meta": sorted(self.meta.items()),
            "tracks": self.tracks,
            "names": self.names,
            "links": self.links.labels if self.links else None,
        }
        # Lengths are in the text, so no two traces share one sequence of bytes.
        arrays = [(column, getattr(self, column), "<i8") for column in COLUMNS]
        if self.links is not None:
            arrays.append(("edges_ps", self.links.edges_ps, "<i8"))
            arrays.append(("carried_bytes", self.links.carried_bytes, "<f8"))
            arrays.append(("capacity", self.links.capacity_bytes_per_s, "<f8"))
        head["arrays"] = [(name, array.shape) for name, array, _ in arrays]
        found = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        for _, array, kind in arrays:
            # Adding 0 turns a negative zero into a positive one: equal numbers, equal bytes.
            found.update((array.astype(kind) + 0).tobytes())
        return found.hexdigest()


class TraceBuilder:
    """Collects spans in any order; `build` sorts and checks them."""

    def __init__(self) -> None:
        """Start with no tracks and no spans."""
        self._tracks: dict[tuple[str, str], int] = {}
        self._names: dict[str, int] = {}
        self._rows: list[int] = []  # six per span, as COLUMNS; one flat list is the quickest to extend
        self._chunks: list[Int64s] = []  # [S, 6] each

    def track(self, group: str, name: str) -> int:
        """Return the number of a track, the same one each time.

        Args:
          group: whose resource, e.g. "rank 3".
          name: resource, e.g. "URMA engine".
        """
        return self._tracks.setdefault((group, name), len(self._tracks))

    def span(
        self, track: int, name: str, start_ps: int, end_ps: int, *, size_bytes: int = 0, peer: int = NO_PEER
    ) -> None:
        """Add one span; its values are checked by `build`.

        Args:
          track: as of `track`.
          name: phase or kind of work.
          start_ps: from the start of the run.
          end_ps: the same, not before the start.
          size_bytes: payload that it moved, 0 = none.
          peer: rank at the other end, -1 = none.
        """
        names = self._names
        self._rows.extend((track, names.setdefault(name, len(names)), start_ps, end_ps, size_bytes, peer))

    def spans(
        self,
        track: npt.ArrayLike,
        names: str | Sequence[str],
        start_ps: npt.ArrayLike,
        end_ps: npt.ArrayLike,
        size_bytes: npt.ArrayLike = 0,
        peer: npt.ArrayLike = NO_PEER,
    ) -> None:
        """Add many spans at once; each argument is one value for all or [n] values.

        Raises:
          InputError: lengths differ, or a column holds something else than integers.
        """
        texts = [names] if isinstance(names, str) else list(names)
        ids = [self._names.setdefault(text, len(self._names)) for text in texts]
        given = (track, ids[0] if isinstance(names, str) else ids, start_ps, end_ps, size_bytes, peer)
        columns = [_whole(column, values) for column, values in zip(COLUMNS, given, strict=True)]
        try:
            self._chunks.append(np.stack(np.broadcast_arrays(*columns), axis=-1).reshape(-1, len(COLUMNS)))
        except ValueError:
            raise InputError(
                "spans", [column.shape for column in columns], "must be one length in every column"
            ) from None

    def build(self, *, title: str, meta: Mapping[str, str], links: LinkLoad | None = None) -> Trace:
        """Check everything and return the trace; the builder may go on afterwards.

        Args:
          title: one line that says what ran.
          meta: facts of the run; texts.
          links: load of the links, if known.

        Raises:
          InputError: a span ends before it starts, a time or size is negative, or its track is unknown.
        """
        for key, value in meta.items():
            if not (isinstance(key, str) and isinstance(value, str)):
                raise InputError("meta", {key: value}, "must hold texts only")
        rows = np.concatenate([_whole("span", self._rows).reshape(-1, len(COLUMNS)), *self._chunks])
        _check(rows, len(self._tracks))
        tracks = sorted(self._tracks, key=lambda pair: (*natural_key(pair[0]), *natural_key(pair[1])))
        rows[:, 0] = _places(self._tracks, tracks)[rows[:, 0]]
        used = np.unique(rows[:, 1])
        all_names = list(self._names)
        names = sorted(all_names[idx] for idx in used)
        rows[:, 1] = _places(self._names, names)[rows[:, 1]]
        rows = rows[np.lexsort(rows.T[_SORT_KEYS])]
        groups = tuple(dict.fromkeys(group for group, _ in tracks))
        place = {group: idx for idx, group in enumerate(groups)}
        return Trace(
            title=title,
            meta=dict(sorted(meta.items())),
            groups=groups,
            track_group=_frozen(np.array([place[group] for group, _ in tracks], dtype=np.int32)),
            track_names=tuple(name for _, name in tracks),
            names=tuple(names),
            links=links,
            **{column: _frozen(rows[:, idx].astype(_DTYPES[idx])) for idx, column in enumerate(COLUMNS)},
        )


_DTYPES = (np.int32, np.int32, np.int64, np.int64, np.int64, np.int32)
# np.lexsort sorts by its last key first: track, start, end, name, size, peer. Rows equal in all of them are
# the same, so the order in which they were added cannot show.
_SORT_KEYS = [5, 4, 1, 3, 2, 0]


def natural_key(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a key that sorts numbers within texts by value, and never calls different texts equal."""
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts], text


def is_wait(name: str) -> bool:
    """Whether a resource only waits in a phase: "wait", "waiting" or "idle" is a word of its name."""
    return not _WAITS.isdisjoint(name.lower().split())


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array


def _places(old: Iterable[str] | Iterable[tuple[str, str]], new: Sequence[Any]) -> Int64s:
    """[len(old)] position in `new` of each of `old`, -1 where it is not there."""
    place = {value: idx for idx, value in enumerate(new)}
    return np.array([place.get(value, -1) for value in old], dtype=np.int64)


def _whole(column: str, values: npt.ArrayLike) -> Int64s:
    """Return an int64 array; refuse fractions and what does not fit."""
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" or int(array.max()) > np.iinfo(np.int64).max:
        raise InputError(column, str(array.dtype), "must hold integers of 64 bits only")
    return array.astype(np.int64)


def _check(rows: Int64s, num_tracks: int) -> None:
    """Refuse the first row that breaks a rule.

    Args:
      rows: [S, 6] as COLUMNS.
      num_tracks: tracks that exist.
    """
    track, _, start, end, size, peer = rows.T
    rules = (
        ("track", track, (track < 0) | (track >= num_tracks), "must be a number that track() has returned"),
        ("start_ps", start, start < 0, "must be at least 0"),
        ("end_ps", end, end < start, "must not lie before the span's start"),
        ("size_bytes", size, size < 0, "must be at least 0"),
        ("peer", peer, (peer < NO_PEER) | (peer > _INT32_MAX), "must be a rank, or -1 for none"),
    )
    for field, values, is_wrong, rule in rules:
        if is_wrong.any():
            raise InputError(field, int(values[np.argmax(is_wrong)]), rule)
