"""Routing and load histograms in files. Nothing is ever unpickled; a bad file is refused in one sentence.

R ranks, T tokens of a rank, K top-k, E experts. One file for all ranks holds either `topk_idx` [R, T, K]
or `topk_idx_0` .. `topk_idx_{R-1}` [T_r, K]; one file per rank holds `topk_idx` [T_r, K]. Weights are
optional, named alike. A .npy file is the `topk_idx` array itself.
"""

import contextlib
import csv
import glob
import os
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save as safetensors_bytes

from reference.config import EPConfig
from reference.errors import ConfigError
from reference.routing.generate import check_loads
from reference.routing.readable import kind_of, read_regular
from reference.topk import IdArray, IdSpace, TopK, WeightArray

Arrays = dict[str, npt.NDArray[Any]]
RoutingSource = str | Path | Sequence[str | Path]
"""One path, a folder or glob pattern with one file per rank, or a list of paths in rank order."""

ROUTING_SUFFIXES = (".safetensors", ".npz", ".npy")
LOAD_SUFFIXES = (".npy", ".csv", ".json", ".toml")
_MAGIC = {".safetensors": b"", ".npz": b"PK", ".npy": b"\x93NUMPY"}
_PICKLE = b"\x80"
_NAME = re.compile(r"(topk_idx|topk_weights)(?:_(\d+))?")


def read_routing(source: RoutingSource, config: EPConfig, *, id_space: IdSpace = "physical") -> TopK:
    """Read and check the routing of all ranks.

    Args:
      source: see `RoutingSource`; in a folder or pattern the last number of a file's name is its rank.
      config: the group that the routing must fit.
      id_space: what the ids of the file are; logical ones still need `replicas.to_physical`.

    Returns:
      TopK; ids of narrower signed integers are widened to int64.

    Raises:
      ConfigError: names the file, the entry, its value and the rule.
    """
    ids, weights = read_ranks(source)
    with _naming(_label(source)):
        experts = config.num_experts if id_space == "physical" else config.num_logical_experts
        topk = TopK(num_experts=experts, topk_idx=ids, topk_weights=weights, id_space=id_space)
        if not any(topk.tokens_per_rank):
            raise ConfigError("topk_idx", "no tokens", "a routing needs at least one")
        if id_space == "physical":
            topk.check_against(config)
        elif topk.ep_size != config.ep_size or topk.num_topk != config.num_topk:
            rule = f"the group's ep_size is {config.ep_size} and its num_topk is {config.num_topk}"
            raise ConfigError("topk_idx", f"{topk.ep_size} ranks of {topk.num_topk} columns", rule)
    return topk


def read_ranks(source: RoutingSource) -> tuple[tuple[IdArray, ...], tuple[WeightArray, ...] | None]:
    """Read what a routing file holds, before a group is known; `read_routing` also checks it.

    Args:
      source: see `RoutingSource`.

    Returns:
      per rank ids, int64, and weights as they are in the file, None = it has none.

    Raises:
      ConfigError: names the file and the rule; ids are neither range-checked nor compared with the weights.
    """
    paths = _paths(source)
    with _naming(_label(source)):
        return _split_ranks(_load(paths)) if isinstance(paths, Path) else _join_ranks(paths)


def _label(source: RoutingSource) -> str:
    return str(source) if isinstance(source, str | Path) else ", ".join(map(str, source[:2])) + ", ..."


def write_routing(path: str | Path, topk: TopK) -> None:
    """Write a routing as one file, whole or not at all.

    Args:
      path: .safetensors or .npz hold any routing; .npy one without weights and with equal token counts.
      topk: routing.

    Raises:
      ConfigError: unknown suffix, or a routing that the format cannot hold.
      OSError: the file cannot be written; an older one is left as it was.
    """
    path = Path(path)
    arrays: Arrays = {f"topk_idx_{r}": np.ascontiguousarray(a) for r, a in enumerate(topk.topk_idx)}
    for rank, weight in enumerate(topk.topk_weights or ()):
        arrays[f"topk_weights_{rank}"] = np.ascontiguousarray(weight)
    if path.suffix == ".safetensors":
        # safetensors stores little-endian rows in the order of its own sorting: equal routing, equal bytes.
        write_atomically(path, safetensors_bytes(arrays))
    elif path.suffix == ".npz":
        with _replacing(path) as stream:
            np.savez(stream, **cast("dict[str, Any]", arrays))
    elif path.suffix == ".npy":
        if topk.topk_weights is not None or len(set(topk.tokens_per_rank)) > 1:
            rule = "needs equal token counts and no weights; use .safetensors"
            raise ConfigError(str(path), "a .npy file", rule)
        with _replacing(path) as stream:
            np.save(stream, np.stack(topk.topk_idx), allow_pickle=False)
    else:
        raise ConfigError(str(path), path.suffix, f"must end in {', '.join(ROUTING_SUFFIXES)}")


def read_loads(path: str | Path, config: EPConfig) -> npt.NDArray[np.float64]:
    """Read a load histogram: one number per logical expert, in any unit.

    Args:
      path: .npy [E]; .csv with lines `load` or `expert,load` (a heading is skipped); .json or .toml with
        the list under `loads` (.json may be the bare list).
      config: the group that the histogram must fit.

    Returns:
      [E] float64.

    Raises:
      ConfigError: names the file, the value and the rule.
    """
    path = Path(path)
    if path.suffix not in LOAD_SUFFIXES:
        raise ConfigError(str(path), path.suffix, f"a histogram must end in {', '.join(LOAD_SUFFIXES)}")
    with _naming(str(path)):
        if path.suffix == ".npy":
            return check_loads(config, _load(path)["topk_idx"])
        raw = _bytes(path)
        if path.suffix == ".csv":
            return check_loads(config, _csv_loads(raw))
        try:
            table = msgspec.json.decode(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
        except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError("content", "unreadable", str(error)) from None
        loads = table.get("loads") if isinstance(table, Mapping) else table
        if not isinstance(loads, list) or not all(type(v) in (int, float) for v in loads):
            raise ConfigError("loads", type(loads).__name__, "must be one list of numbers")
        return check_loads(config, loads)


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all: a temporary file beside it, then a rename."""
    with _replacing(Path(path)) as stream:
        stream.write(content)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    # Not tempfile: its files are private, and the result should have the mode of an ordinary new file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _naming(label: str) -> Iterator[None]:
    """Put the file in front of the field of an error raised inside, unless the error's value names it."""
    try:
        yield
    except ConfigError as error:
        if isinstance(error.value, str) and error.value.startswith(label):
            raise
        raise ConfigError(f"{label}: {error.field}", error.value, error.rule) from None


def _bytes(path: Path, most: int = -1) -> bytes:
    try:
        return read_regular(path, most)
    except FileNotFoundError:
        raise ConfigError("file", str(path), "does not exist") from None
    except OSError as error:
        raise ConfigError("file", str(path), f"cannot be read ({error.strerror})") from None


def _paths(source: RoutingSource) -> Path | list[Path]:
    """Return one file that holds all ranks, or one file per rank in rank order."""
    if not isinstance(source, str | Path):
        if not source:
            raise ConfigError("routing files", "empty list", "must hold one file per rank")
        return [Path(p) for p in source]
    path = Path(source)
    kind = kind_of(path)
    if kind == "folder":
        try:
            found = [p for p in path.iterdir() if p.suffix in ROUTING_SUFFIXES]
        except OSError as error:
            raise ConfigError("folder", str(path), f"cannot be read ({error.strerror})") from None
    elif glob.has_magic(str(source)) and kind == "absent":
        found = [Path(p) for p in glob.glob(str(source))]
    else:
        return path
    by_rank: dict[int, Path] = {}
    for file in sorted(found):
        numbers = re.findall(r"\d+", file.stem)
        if not numbers:
            raise ConfigError(str(source), file.name, "a file per rank needs the rank number in its name")
        other = by_rank.setdefault(int(numbers[-1]), file)
        if other != file:
            raise ConfigError(str(source), file.name, f"{other.name} has the same rank {int(numbers[-1])}")
    if not by_rank:
        raise ConfigError(str(source), "no file", f"needs one {', '.join(ROUTING_SUFFIXES)} file per rank")
    missing = next((r for r in range(max(by_rank) + 1) if r not in by_rank), None)
    if missing is not None:
        raise ConfigError(str(source), f"{len(by_rank)} files", f"the file of rank {missing} is missing")
    return [by_rank[r] for r in sorted(by_rank)]


def _load(path: Path) -> Arrays:
    """Return the routing arrays of one file by name; other arrays in it are not read."""
    if path.suffix not in ROUTING_SUFFIXES:
        raise ConfigError("file name", path.name, f"must end in {', '.join(ROUTING_SUFFIXES)}")
    start = _bytes(path, 8)
    if not start:
        raise ConfigError("file", str(path), "is empty")
    if not start.startswith(_MAGIC[path.suffix]) and not start.startswith(_PICKLE):
        raise ConfigError("file", str(path), f"is no {path.suffix} file, whatever its name says")
    try:
        if path.suffix == ".npy":
            # Mapping checks the header against the length before any memory is taken.
            return {"topk_idx": np.array(np.load(path, mmap_mode="r", allow_pickle=False))}
        if path.suffix == ".npz":
            # Opened here, because NumPy leaves a file that is no archive open.
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as members:
                return {name: members[name] for name in members.files if _NAME.fullmatch(name)}
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys() if _NAME.fullmatch(name)}  # noqa: SIM118
    except Exception as error:
        # Damaged content makes the readers raise a dozen kinds, tokenizer errors among them (fuzz test).
        text = " ".join(str(error).split())
        if any(word in text for word in ("pickle", "Object arrays", "Python objects")):
            raise ConfigError("content", "pickled objects", "only plain number arrays are read") from None
        rule = f"is not a whole {path.suffix} file ({text or type(error).__name__})"
        raise ConfigError("file", str(path), rule) from None


def _split_ranks(
    arrays: Arrays,
) -> tuple[tuple[npt.NDArray[np.int64], ...], tuple[npt.NDArray[np.float32], ...] | None]:
    """Return ids and weights by rank from one file of all ranks."""
    stacked = {name: array for name, array in arrays.items() if name in ("topk_idx", "topk_weights")}
    if "topk_idx" in stacked and len(stacked) < len(arrays):
        raise ConfigError("names", ", ".join(sorted(arrays)[:3]), "use topk_idx or topk_idx_<rank>, not both")
    if "topk_idx" in stacked:
        for name, array in stacked.items():
            if array.ndim != 3:
                raise ConfigError(
                    name, array.shape, "a file of all ranks needs the shape [rank, token, top-k]"
                )
        ranks = {f"{name}_{r}": array[r] for name, array in stacked.items() for r in range(array.shape[0])}
    else:
        ranks = arrays
    ids = _numbered(ranks, "topk_idx")
    if not ids:
        raise ConfigError(
            "names", ", ".join(sorted(arrays)[:3]) or "none", "needs topk_idx or topk_idx_<rank>"
        )
    weights = _numbered(ranks, "topk_weights")
    return tuple(map(_widened, range(len(ids)), ids)), tuple(weights) if weights else None


def _numbered(arrays: Arrays, name: str) -> list[npt.NDArray[Any]]:
    matches = {int(m[2]): a for n, a in arrays.items() if (m := _NAME.fullmatch(n)) and m[1] == name and m[2]}
    for rank in range(len(matches)):
        if rank not in matches:
            raise ConfigError(name, f"{len(matches)} ranks", f"{name}_{rank} is missing")
    return [matches[rank] for rank in range(len(matches))]


def _join_ranks(
    paths: Sequence[Path],
) -> tuple[tuple[npt.NDArray[np.int64], ...], tuple[npt.NDArray[np.float32], ...] | None]:
    """Return ids and weights by rank from one file per rank."""
    ids, weights = [], []
    for rank, path in enumerate(paths):
        arrays = _load(path)
        if "topk_idx" not in arrays:
            raise ConfigError(path.name, ", ".join(sorted(arrays)[:3]) or "none", "needs an array topk_idx")
        ids.append(_widened(rank, arrays["topk_idx"]))
        if "topk_weights" in arrays:
            weights.append(arrays["topk_weights"])
    if weights and len(weights) != len(ids):
        raise ConfigError(
            "topk_weights", f"{len(weights)} files", f"all {len(ids)} ranks or none must have them"
        )
    return tuple(ids), tuple(weights) if weights else None


def _widened(rank: int, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Widen signed integers, so that -1 stays -1; anything else is not an id."""
    if array.dtype.kind != "i":
        rule = "ids must be signed integers, because -1 means none"
        raise ConfigError(f"topk_idx[rank {rank}]", str(array.dtype), rule)
    return np.ascontiguousarray(array, dtype=np.int64)


def _csv_loads(raw: bytes) -> npt.NDArray[np.float64]:
    """Return loads from lines `load` or `expert,load`."""
    try:
        lines = [line for line in csv.reader(raw.decode("utf-8-sig").splitlines()) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("content", "unreadable", str(error)) from None
    if lines and not lines[0][-1].strip().replace(".", "", 1).lstrip("+-").isdigit():
        lines = lines[1:]
    loads: dict[int, float] = {}
    for number, line in enumerate(lines):
        try:
            expert = int(line[0]) if len(line) == 2 else number
            loads[expert] = float(line[-1]) if len(line) <= 2 else float("x")
        except ValueError:
            raise ConfigError(
                f"line {number + 1}", ",".join(line), "must be `load` or `expert,load`"
            ) from None
    if sorted(loads) != list(range(len(lines))):
        raise ConfigError("experts", f"{len(loads)} of {len(lines)} lines", "must be 0, 1, 2 .. once each")
    return np.array([loads[expert] for expert in range(len(lines))], dtype=np.float64)
