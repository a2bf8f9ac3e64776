"""One rank's arrays in one file, .safetensors or .npz; nothing is ever unpickled."""

import io
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.files import write_atomically

Arrays = dict[str, npt.NDArray[Any]]
SUFFIXES = (".safetensors", ".npz")
SMALL_BYTES = 1 << 20
"""Files up to this size are read, larger ones mapped: a map holds a file descriptor, of which 1024 is a usual
limit. Source: assumed; thousands of small files fit into memory."""

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
_DTYPES: dict[str, npt.DTypeLike] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "BF16": BF16,
    "F8_E4M3": FP8,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
}
"""Names in the safetensors format, of what can be compared; its own NumPy reader knows no bf16 and no fp8."""


def read_arrays(path: Path) -> Arrays:
    """Return all arrays of a file.

    Args:
      path: .safetensors (a large one is mapped, read when used) or .npz (a bf16 array in it is two raw
        bytes per element).

    Raises:
      InputError: the file is missing, cannot be opened, is cut short, of another format, or holds pickled
        objects.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(str(path), path.suffix, f"a file of arrays must end in {' or '.join(SUFFIXES)}")
    if not path.is_file():
        raise InputError(str(path), "missing", "must be an ordinary file")
    if not path.stat().st_size:
        raise InputError(str(path), "empty", f"must be a whole {path.suffix} file")
    try:
        return _read_safetensors(path) if path.suffix == ".safetensors" else _read_npz(path)
    except InputError:
        raise
    except Exception as error:
        # Damaged content makes the readers raise a dozen kinds.
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(str(path), "unreadable", f"cannot be opened: {error.strerror}") from None
        text = " ".join(str(error).split())
        if any(word in text for word in ("pickle", "Object arrays", "Python objects")):
            raise InputError(str(path), "pickled objects", "only plain number arrays are read") from None
        rule = f"must be a whole {path.suffix} file ({text or type(error).__name__})"
        raise InputError(str(path), "damaged", rule) from None


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write all arrays of one rank, whole or not at all.

    Raises:
      InputError: unknown suffix, or the file cannot be written.
    """
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if path.suffix == ".safetensors":
        from safetensors.numpy import save

        write_atomically(path, save(dense))
    elif path.suffix == ".npz":
        stream = io.BytesIO()
        plain: dict[str, Any] = {name: _as_plain(array) for name, array in dense.items()}
        np.savez(stream, **plain)
        write_atomically(path, stream.getvalue())
    else:
        raise InputError(str(path), path.suffix, f"a file of arrays must end in {' or '.join(SUFFIXES)}")


def _as_plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return narrow floats as unsigned bits, which every NumPy can read."""
    if array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1:
        return array
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _read_npz(path: Path) -> Arrays:
    # Opened here, because NumPy leaves a file that is no archive open.
    with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as members:
        return {name: members[name] for name in members.files}


def _read_safetensors(path: Path) -> Arrays:
    from safetensors import safe_open

    with safe_open(path, framework="numpy"):
        pass  # checks the header, and the length of the file against it
    with open(path, "rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(header_bytes))
    header.pop("__metadata__", None)
    is_small = path.stat().st_size <= SMALL_BYTES
    held = np.frombuffer(path.read_bytes(), np.uint8) if is_small else np.memmap(path, np.uint8, mode="r")
    return {name: _array(path, name, entry, held[8 + header_bytes :]) for name, entry in header.items()}


def _array(path: Path, name: str, entry: dict[str, Any], held: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Return one array of a file without copying it."""
    if entry["dtype"] not in _DTYPES:
        rule = f"must be one of {', '.join(_DTYPES)}"
        raise InputError(f"{path}: {name}.dtype", entry["dtype"], rule)
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if 0 in shape:
        return np.empty(shape, dtype=dtype)
    return np.ndarray(shape, dtype, buffer=held, offset=entry["data_offsets"][0])
