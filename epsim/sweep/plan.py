"""The points of a sweep: axes, their product in a fixed order, and a digest that says what was asked."""

import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import epsim
from epsim.errors import InputError
from epsim.sweep.ranges import expand
from epsim.sweep.targets import (
    BY_WORKLOAD,
    FILES,
    Target,
    check_name,
    check_value,
    find_target,
)
from reference.routing.readable import kind_of, read_regular

MAX_POINTS = 2**18
"""Points of one sweep; their rows are held in memory while the table is written, some 4 KB each."""

SEED_RULE = "is of the draw, and goes with a sample (--sample N); that of a routing is an axis, --grid seed=9"


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sweep file says.

    Args:
      target: function to evaluate, see `targets.TARGETS`.
      grid: parameter -> value, list of values, or a text that is a range (see `ranges.expand`). One value
        fixes the parameter; tables `set` and `topology` hold those of profiles and of the cluster file.
      zip: groups of axes that walk together, value by value, instead of being multiplied.
      sample: number of points to draw from the grid without repetition; None = all.
      seed: of the draw; goes with a sample.
    """

    target: str = "predict"
    grid: dict[str, Any] = {}
    zip: list[list[str]] = []
    sample: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Checked points of a sweep.

    A point's number is its place in the full product, whose last dimension runs fastest; a sample keeps
    these numbers.

    Args:
      target_name: of the function.
      axes: parameter -> its values, in order.
      dimensions: groups of axes that walk together, mostly of one; the product runs over these.
      point_ids: numbers of the points, rising.
      digest: of target, axes, points, the files that are named, epsim's version and its profiles.
    """

    target_name: str
    axes: Mapping[str, tuple[Any, ...]]
    dimensions: tuple[tuple[str, ...], ...]
    point_ids: tuple[int, ...]
    digest: str

    @property
    def target(self) -> Target:
        """The function with its parameters and columns."""
        return find_target(self.target_name)

    @property
    def is_complete(self) -> bool:
        """Whether the points are the whole product."""
        return len(self.point_ids) == math.prod(self.shape)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each dimension."""
        return tuple(len(self.axes[names[0]]) for names in self.dimensions)

    def levels(self, point_id: int) -> tuple[int, ...]:
        """Return the place of a point's value in each dimension."""
        found = []
        for length in reversed(self.shape):
            point_id, level = divmod(point_id, length)
            found.append(level)
        return tuple(reversed(found))

    def values(self, point_id: int) -> dict[str, Any]:
        """Return the parameters of a point, in the order of the axes."""
        level_of = {
            name: level
            for names, level in zip(self.dimensions, self.levels(point_id), strict=True)
            for name in names
        }
        return {name: values[level_of[name]] for name, values in self.axes.items()}

    def point_digest(self, point_id: int) -> str:
        """Return a digest of what a point asks, whatever else the sweep asks."""
        return _digest([self.target_name, self.values(point_id)])


def read_sweep(path: str | Path) -> Sweep:
    """Read a sweep file.

    Raises:
      InputError: it cannot be read, or a key or type breaks a rule.
    """
    try:
        data = tomllib.loads(read_regular(path).decode())
        return msgspec.convert(data, Sweep)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("sweep file", str(path), f"must be TOML; {error}") from None
    except msgspec.ValidationError as error:
        text = str(error)
        raise InputError("sweep file", str(path), f"{text[0].lower()}{text[1:]}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("sweep file", str(path), f"cannot be read: {reason}") from None


def make_plan(sweep: Sweep) -> Plan:
    """Check a sweep and lay out its points; evaluates none.

    Raises:
      InputError: an unknown parameter, a value that no point could have, axes that do not fit together,
        or too many points.
    """
    target = find_target(sweep.target)
    axes = {name: _axis_values(target, name, value) for name, value in flat_grid(sweep.grid).items()}
    if not axes:
        raise InputError("grid", "empty", "must name at least one parameter, as --grid ep=8,16,32")
    _check_workload(axes)
    for name, default in target.defaults.items():
        if name not in axes and not ("workload" in axes and name in BY_WORKLOAD):
            axes[name] = tuple(default)
    dimensions = _dimensions(axes, sweep.zip)
    point_ids = _choose(math.prod(len(axes[names[0]]) for names in dimensions), sweep.sample, sweep.seed)
    asked = [sweep.target, list(axes.items()), dimensions, _digest(point_ids), list(target.columns.items())]
    return Plan(
        target_name=sweep.target,
        axes=axes,
        dimensions=dimensions,
        point_ids=point_ids,
        digest=_digest([asked, _inputs(axes), epsim.__version__, _packaged_profiles()]),
    )


def flat_grid(grid: Mapping[str, Any]) -> dict[str, Any]:
    """Undo tables: in TOML, set.hbm_rate is key hbm_rate of table set.

    Raises:
      InputError: the same axis stands in a table and under its full name.
    """
    found: dict[str, Any] = {}
    for name, value in grid.items():
        is_table = name in ("set", "topology") and isinstance(value, dict)
        for key, inner in (
            {f"{name}.{k}": v for k, v in value.items()}.items() if is_table else [(name, value)]
        ):
            if key in found:
                raise InputError("axis", key, "is given twice")
            found[key] = inner
    return found


def _axis_values(target: Target, name: str, value: Any) -> tuple[Any, ...]:  # noqa: ANN401
    check_name(target, name)
    listed = value if isinstance(value, list) else [value]
    values = [number for item in listed for number in expand(name, item)]
    if not values:
        raise InputError(name, value, "must have at least one value")
    for word in values:
        check_value(target, name, word)
    word, count = Counter(_text(word) for word in values).most_common(1)[0]
    if count > 1:
        raise InputError(name, word, f"is named {count} times: every point must differ from the others")
    return tuple(values)


def _check_workload(axes: Mapping[str, Any]) -> None:
    clash = [name for name in axes if name in BY_WORKLOAD]
    if "workload" in axes and clash:
        raise InputError(
            clash[0], list(axes[clash[0]]), "is said by the workload, and cannot stand beside it"
        )


def _dimensions(
    axes: Mapping[str, tuple[Any, ...]], groups: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """Put the axes of a group at the place of its first one."""
    group_of: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for name in group:
            if name not in axes or name in group_of:
                rule = "is in two groups" if name in group_of else f"is no axis; there are {', '.join(axes)}"
                raise InputError("zip", name, rule)
            if len(axes[name]) != len(axes[group[0]]):
                counts = f"{len(axes[group[0]])} and {len(axes[name])} values"
                raise InputError("zip", "+".join(group), f"must have equally many values, not {counts}")
            group_of[name] = tuple(group)
    return tuple(dict.fromkeys(group_of.get(name, (name,)) for name in axes))


def _choose(num_points: int, sample: int | None, seed: int) -> tuple[int, ...]:
    if sample is not None and sample < 1:
        raise InputError("sample", sample, "must be at least 1")
    if seed < 0:
        raise InputError("seed", seed, "must not be negative")
    if seed and sample is None:
        raise InputError("seed", seed, SEED_RULE)
    num_chosen = num_points if sample is None else min(sample, num_points)
    if num_chosen > MAX_POINTS or num_points >= 2**63:
        rule = f"must be at most {MAX_POINTS:,}; --sample N draws N of them (of up to 2^63)"
        raise InputError("number of points", num_points, rule)
    if num_chosen == num_points:
        return tuple(range(num_points))
    drawn = np.random.default_rng(seed).choice(num_points, num_chosen, replace=False, shuffle=False)
    return tuple(sorted(drawn.tolist()))


def _inputs(axes: Mapping[str, tuple[Any, ...]]) -> list[list[str]]:
    """Return name and digest of every file that a value names; a folder's files count one by one."""
    found = []
    for word in (word for name in FILES for word in axes.get(name, ())):
        paths = sorted(Path(word).iterdir()) if kind_of(word) == "folder" else [Path(word)]
        if "*" in word:
            paths = sorted(Path().glob(word)) if not Path(word).is_absolute() else []
        for path in paths:
            if kind_of(path) == "file":
                found.append([str(path), hashlib.sha256(read_regular(path)).hexdigest()])
    return found


def _packaged_profiles() -> list[list[str]]:
    """Return name and text of every profile that comes with epsim: a point may use any of them."""
    files = sorted(resources.files("epsim.profiles").iterdir(), key=lambda entry: entry.name)
    return [[entry.name, entry.read_text()] for entry in files if entry.name.endswith(".toml")]


def _text(value: Any) -> str:  # noqa: ANN401
    return json.dumps(value, sort_keys=True)


def _digest(value: Any) -> str:  # noqa: ANN401
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]
