"""A capture: what all ranks of one dispatch (and combine) had and got, in a folder that epsim can judge.

The folder holds one .safetensors or .npz per rank, and `capture.json`, which names the group, the options of
the call, and the files. Every rank gives `topk_idx`; every other field may be left out by all ranks, or by
some if `capture.json` says by which.

R ranks, E experts, K top-k, H hidden, M token capacity, L local experts, P scale packs, T tokens of a rank, N
received rows, X expanded rows. "rows" is X in the expanded layout, N in the other one.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from epsim.debug.fields import FIELDS
from epsim.debug.files import BF16, FP8, SUFFIXES, Arrays, read_arrays, write_arrays
from epsim.debug.folder import check_others, rank_files
from epsim.errors import InputError
from epsim.files import write_atomically
from reference.config import EPConfig, ExpertMap
from reference.edition import EditionName
from reference.errors import ConfigError
from reference.formats.dtypes import is_float
from reference.handle import DEFAULT_NUM_AIVS, DispatchMode
from reference.memory.limits import DISPATCH_LIMITS, limits
from reference.order import RECIPES, ReductionOrder, library_order
from reference.topk import TopK

FORMAT = "epsim-capture"
VERSION = 1
INDEX = "capture.json"
MAX_RANKS = 4096
MAX_EXPERTS = 2048
"""Most experts of any edition's kernels; deepep-v2.md section 7. Those of Ascend take fewer, see `limits`."""


class CaptureGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fixed numbers of the group; see `EPConfig`. `expert_ranks` is for groups with an expert map."""

    ep_size: int
    num_experts: int
    num_topk: int
    hidden: int
    num_max_tokens_per_rank: int
    expert_alignment: int = 1
    expert_ranks: tuple[int, ...] | None = None

    def config(self) -> EPConfig:
        """Return the checked group.

        Raises:
          ConfigError: a number is out of range, or the map does not fit.
        """
        numbers = {name: getattr(self, name) for name in self.__struct_fields__ if name != "expert_ranks"}
        experts = None if self.expert_ranks is None else ExpertMap(expert_ranks=self.expert_ranks)
        return EPConfig(**numbers, expert_map=experts)


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the calls were made; the defaults are those of `deep_ep` on Ascend.

    Args: `dtype` is that of the payload of dispatch; `order` the recipe that combine used (see
      `order.RECIPES`), None = the libraries' one; the others are as in `DispatchMode` and `dispatch`.
    """

    edition: EditionName = "ascend"
    expand: bool = True
    dtype: Literal["bf16", "fp8"] = "bf16"
    zero_padding: bool = False
    cpu_sync: bool = True
    deterministic: bool = False
    order: str | None = None
    num_scaleup_ranks: int | None = None
    num_aivs: int = DEFAULT_NUM_AIVS

    def mode(self) -> DispatchMode:
        """Return the layout in its canonical form.

        Raises:
          ConfigError: the edition lacks it.
        """
        return DispatchMode(
            edition=self.edition,
            expand=self.expand,
            cpu_sync=self.cpu_sync,
            num_scaleup_ranks=self.num_scaleup_ranks,
            num_aivs=self.num_aivs,
        )

    def reduction_order(self, config: EPConfig) -> ReductionOrder:
        """Return combine's recipe.

        Raises:
          ConfigError: unknown name.
        """
        if self.order is None:
            is_hybrid = self.num_scaleup_ranks not in (None, config.ep_size)
            return library_order(expand=self.expand, allow_multiple_reduction=True, is_hybrid=is_hybrid)
        if self.order not in RECIPES:
            raise InputError("options.order", self.order, f"must be one of {', '.join(RECIPES)}")
        return RECIPES[self.order]


class _Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What capture.json holds."""

    format: str = ""
    version: int = 0
    group: CaptureGroup
    options: CaptureOptions = CaptureOptions()
    files: tuple[str, ...] | None = None
    fields: dict[str, tuple[int, ...]] | tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture:
    """What the ranks of one group had and got.

    Args:
      group: its numbers.
      options: of the calls.
      ranks: per rank its arrays by name, see FIELDS; narrow floats have their ml_dtypes dtype, ids are int64,
        and every negative id of `topk_idx` is -1.
      partial: fields that some ranks are said to leave out, and the ranks that give them.
      num_other_masks: ids below -1 that were given; they mask as -1 does, as in deep_ep.

    Raises:
      InputError: dispatch takes no such group, a rank is missing, a field is unknown, or something given to
        dispatch or combine has the wrong dtype or number of tokens. What a run got may have any shape and
        number type: it is judged.
      ConfigError: the routing does not fit the group.
    """

    group: CaptureGroup
    options: CaptureOptions
    ranks: tuple[Arrays, ...]
    partial: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    num_other_masks: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Check all arrays against the group and each other."""
        config = self.config
        check_possible(config, self.options)
        if len(self.ranks) != config.ep_size:
            raise InputError("ranks", len(self.ranks), f"must be one per rank, ep_size is {config.ep_size}")
        named = tuple(
            {
                name: _checked(f"rank {r}: {name}", name, array, self.options.dtype)
                for name, array in a.items()
            }
            for r, a in enumerate(self.ranks)
        )
        object.__setattr__(self, "ranks", named)
        for rank, arrays in enumerate(named):
            if "topk_idx" not in arrays:
                raise InputError(f"rank {rank}: topk_idx", "missing", "every rank must give its routing")
            _check_tokens(rank, arrays, config)
            other_masks = int(np.count_nonzero(arrays["topk_idx"] < -1))
            if other_masks:
                arrays["topk_idx"] = np.maximum(arrays["topk_idx"], -1)
                object.__setattr__(self, "num_other_masks", self.num_other_masks + other_masks)
        self.topk().check_against(config)

    @property
    def config(self) -> EPConfig:
        """The group."""
        return self.group.config()

    def topk(self) -> TopK:
        """Return the routing, with weights if all ranks gave them."""
        weights = self.column("topk_weights")
        return TopK(
            num_experts=self.group.num_experts,
            topk_idx=tuple(np.ascontiguousarray(a["topk_idx"], dtype=np.int64) for a in self.ranks),
            topk_weights=None if weights is None else tuple(weights),
        )

    def column(self, name: str) -> list[npt.NDArray[Any]] | None:
        """Return one field of all ranks; None unless every rank has it."""
        if not all(name in arrays for arrays in self.ranks):
            return None
        return [np.ascontiguousarray(arrays[name]) for arrays in self.ranks]

    def givers(self, name: str) -> tuple[int, ...]:
        """Return the ranks that give a field."""
        return tuple(rank for rank, arrays in enumerate(self.ranks) if name in arrays)

    def holes(self) -> dict[str, tuple[int, ...]]:
        """Return, per field that some ranks give, those that lack it although nothing says so."""
        found = {}
        for name in FIELDS:
            givers = set(self.givers(name))
            wanted = self.partial.get(name, range(len(self.ranks)))
            lacking = tuple(rank for rank in wanted if rank not in givers)
            if givers and lacking:
                found[name] = lacking
        return found


def check_possible(config: EPConfig, options: CaptureOptions) -> None:
    """Refuse a group that no dispatch of its edition takes, so that nothing of it can have been dumped.

    Raises:
      InputError: names the number and the limit.
      ConfigError: unknown edition.
      Source: `limits`; all editions count expanded rows in int32.
    """
    for name, most in (("ep_size", MAX_RANKS), ("num_experts", MAX_EXPERTS)):
        if getattr(config, name) > most:
            raise InputError(f"group.{name}", getattr(config, name), f"must be at most {most}")
    is_ascend = options.mode().rules.has_gather_idx
    asserted = DISPATCH_LIMITS if is_ascend else {"max-expanded"}
    for limit in limits(config, num_aivs=options.num_aivs):
        if limit.id in asserted and limit.severity == "error":
            raise InputError(limit.field, limit.value, f"{limit.rule}; dispatch refuses it")


def _checked(where: str, name: str, array: npt.NDArray[Any], payload: str) -> npt.NDArray[Any]:
    """Return an array in the dtype of its field, raw bits seen as the narrow floats that they are."""
    if name not in FIELDS:
        near = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(where, "unknown", f"must be one of {', '.join(FIELDS)}{hint}")
    allowed, is_result = FIELDS[name].dtypes, FIELDS[name].stage in ("dispatch", "combine")
    if array.ndim < 1 and not is_result:
        raise InputError(f"{where}.shape", array.shape, f"must be {FIELDS[name].shape}")
    if is_result and array.dtype.kind not in "biuV" and not is_float(array.dtype):
        raise InputError(f"{where}.dtype", str(array.dtype), "must be numbers")
    if allowed == ("payload",):
        allowed = ("bfloat16",) if payload == "bf16" else ("float8_e4m3fn",)
    if allowed == ("scales",):
        if not is_result and (array.dtype.itemsize > 4 or array.dtype == np.bool_):
            raise InputError(f"{where}.dtype", str(array.dtype), "scales must have 1, 2 or 4 bytes")
        return array
    is_raw = array.dtype.type is np.void  # ml_dtypes' own are of kind V too, but floats
    for narrow in (BF16, FP8):
        # Files that know no narrow floats carry their bits.
        if (
            allowed == (str(narrow),)
            and array.dtype.itemsize == narrow.itemsize
            and (is_raw or array.dtype.kind in "iu")
        ):
            array = array.view(narrow)
    if str(array.dtype) not in allowed:
        if is_result and array.dtype.type is not np.void:
            return array  # a wrong result is a finding of the comparison
        raise InputError(f"{where}.dtype", str(array.dtype), f"must be {' or '.join(allowed)}")
    return np.asarray(array, dtype=np.int64) if "int64" in allowed else array


def _check_tokens(rank: int, arrays: Arrays, config: EPConfig) -> None:
    """Refuse inputs that do not fit the rank's routing; outputs are for the comparison to judge."""
    idx = arrays["topk_idx"]
    wanted = {"topk_idx": (len(idx), config.num_topk)}
    for name, array in arrays.items():
        if name in ("topk_weights", "x", "bias_0", "bias_1"):
            wanted[name] = (len(idx), config.num_topk if name == "topk_weights" else config.hidden)
        if name == "sf" and array.ndim == 2:
            wanted[name] = (len(idx), array.shape[1])
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            rule = f"must be {list(shape)}, {FIELDS[name].shape} with the {len(idx)} tokens of topk_idx"
            raise InputError(f"rank {rank}: {name}.shape", list(arrays[name].shape), rule)


def read_capture(folder: str | Path) -> Capture:
    """Read a capture.

    Args:
      folder: with capture.json and one file per rank.

    Raises:
      InputError: names the file, what it holds and the rule.
      ConfigError: the numbers of the group do not fit each other.
    """
    folder = Path(folder)
    index = _read_index(folder)
    config = index.group.config()
    check_possible(config, index.options)
    names = rank_files(folder, config.ep_size, index.files)
    ranks = [read_arrays(folder / name) for name in names]
    partial = _check_promised(index, names, ranks)
    try:
        return Capture(group=index.group, options=index.options, ranks=tuple(ranks), partial=partial)
    except (InputError, ConfigError) as error:
        raise InputError(f"{folder}: {error.field}", error.value, error.rule) from None


def _read_index(folder: Path) -> _Index:
    path = folder / INDEX
    if not folder.is_dir():
        raise InputError("capture", str(folder), "must be a folder with capture.json and a file per rank")
    try:
        index = msgspec.json.decode(path.read_bytes(), type=_Index)
    except OSError as error:
        rule = f"cannot be read ({error.strerror}); it is written last, so the capture may be unfinished"
        raise InputError("capture", str(path), rule) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(str(path), "unreadable", str(error)) from None
    if index.format != FORMAT or index.version != VERSION:
        raise InputError(f"{path}: format", f"{index.format} {index.version}", f"must be {FORMAT} {VERSION}")
    return index


def _check_promised(
    index: _Index, names: tuple[str, ...], ranks: list[Arrays]
) -> Mapping[str, tuple[int, ...]]:
    """Refuse files without the fields that capture.json lists; return the fields that it lists by rank.

    Half a dump must not pass for a whole one.
    """
    promised = index.fields or {}
    everywhere = tuple(range(len(ranks)))
    table = promised if isinstance(promised, Mapping) else dict.fromkeys(promised, everywhere)
    for name, places in table.items():
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError("fields", name, f"must be one of {', '.join(FIELDS)}{hint}")
        for rank in places:
            if not 0 <= rank < len(ranks):
                raise InputError(f"fields.{name}", rank, f"must be a rank 0..{len(ranks) - 1}")
            if name not in ranks[rank]:
                rule = f"capture.json lists it for rank {rank}, {names[rank]} lacks it"
                raise InputError(f"fields.{name}", "missing", rule)
    return promised if isinstance(promised, Mapping) else {}


def _promise(capture: Capture) -> dict[str, tuple[int, ...]] | tuple[str, ...]:
    """Return the names of all fields without holes, with their ranks if some are said to be partial."""
    holes = capture.holes()
    found = {n: ranks for n in FIELDS if n not in holes and (ranks := capture.givers(n))}
    is_whole = all(len(ranks) == len(capture.ranks) for ranks in found.values())
    return tuple(found) if is_whole else found


def write_capture(folder: str | Path, capture: Capture, *, suffix: str = ".safetensors") -> Path:
    """Write a capture; each file whole or not at all, capture.json last.

    Args:
      folder: made when it does not exist.
      capture: what to write.
      suffix: .safetensors or .npz.

    Returns:
      path of capture.json.

    Raises:
      InputError: unknown suffix, the folder has a rank file that would not be replaced, or cannot be written.
    """
    if suffix not in SUFFIXES:
        raise InputError("suffix", suffix, f"must be {' or '.join(SUFFIXES)}")
    folder = Path(folder)
    path = folder / INDEX
    names = tuple(f"rank{rank}{suffix}" for rank in range(len(capture.ranks)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_others(folder, names)
        # Without its index a half-replaced capture cannot be taken for a whole one.
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("capture", str(folder), f"cannot be written: {error.strerror}") from None
    for name, arrays in zip(names, capture.ranks, strict=True):
        write_arrays(folder / name, arrays)
    index = _Index(
        format=FORMAT,
        version=VERSION,
        group=capture.group,
        options=capture.options,
        files=names,
        fields=_promise(capture),
    )
    write_atomically(path, msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n")
    return path
