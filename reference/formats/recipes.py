"""Quantisation recipes: what is stored, which elements share a scale, and how the scale is computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from reference.config import whole_number
from reference.errors import ConfigError
from reference.formats.dtypes import E2M1, E4M3FN, E4M3FNUZ, E5M2, FloatFormat
from reference.formats.scales import SCALE_RULES, ScaleRule

ElementName = Literal["e4m3fn", "e5m2", "e4m3fnuz", "e2m1", "int8"]
ScaleName = Literal["fp32", "e8m0"]
Arithmetic = Literal["ieee", "reciprocal", "kernel_v1"]
"""How fp32 scales come from a group's maximum a and the bound b; every step rounds to float32.

ieee: codes of x * (b / a), scale a / b; the strict reading, and the default.
reciprocal: codes of x * ((1 / a) * b), scale a / b; how torch evaluates the upstream helper's 448.0 / a.
About a quarter of the multipliers differ from ieee by one ulp, and about 0.1 % of the codes.
kernel_v1: codes of x * (b / a), scale a * (1 / b); the V1 low-latency kernel.
Source: deepep-v2.md section 4, tooling.md section 0.
"""
NonFinite = Literal["isolate", "saturate", "poison"]
"""What NaN and Inf in the input do (cases.md G28).

isolate: they do not enter the maximum, so the rest of their group is coded as if they were 0. Each keeps
its own code: NaN stays NaN, Inf stays Inf where the format has one and becomes NaN where not. A format
without NaN (int8, e2m1) refuses.
saturate: they do not enter the maximum either; each becomes the largest code of its sign.
poison: they enter the maximum, so the group's scale is NaN or Inf and all that is decoded from it is NaN;
what the upstream helper's expression does.
"""

_ELEMENTS: Mapping[str, FloatFormat | None] = MappingProxyType(
    {"e4m3fn": E4M3FN, "e5m2": E5M2, "e4m3fnuz": E4M3FNUZ, "e2m1": E2M1, "int8": None}
)
_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "element": tuple(_ELEMENTS),
        "scale": ("fp32", "e8m0"),
        "arithmetic": ("ieee", "reciprocal", "kernel_v1"),
        "rule": SCALE_RULES,
        "nonfinite": ("isolate", "saturate", "poison"),
    }
)
INT8_MAX = 127.0
"""int8 is symmetric: -128 is never produced."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to quantise rows; also the format tag that quantised data carry.

    Args:
      element: stored format.
      group: neighbouring elements of a row that share a scale; None = the whole row.
      scale: "fp32", or "e8m0" for powers of two.
      arithmetic: see Arithmetic; only fp32 scales have a choice.
      rule: see ScaleRule; only e8m0 scales have a choice.
      bound: value to which a group's maximum is mapped; None = the largest of the format. Another one is
        legal (cases.md G30: 224 and 240 are in use); codes never exceed the format, they saturate.
      floor: the maximum counts as at least this much, so that no group divides by zero. 0 only with e8m0.
      nonfinite: see NonFinite.

    Raises:
      ConfigError: an unknown name, a number out of range, or a floor so small that bound / floor overflows.
    """

    element: ElementName
    group: int | None
    scale: ScaleName
    arithmetic: Arithmetic = "ieee"
    rule: ScaleRule = "ceil"
    bound: float | None = None
    floor: float = 1e-4
    nonfinite: NonFinite = "isolate"

    def __post_init__(self) -> None:
        """Check every choice."""
        for field, allowed in _CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ConfigError(field, getattr(self, field), f"must be one of {', '.join(allowed)}")
        if self.group is not None:
            object.__setattr__(self, "group", whole_number("group", self.group, 1))
        if self.bound is not None and not 1 <= self.bound < 2.0**127:
            raise ConfigError("bound", self.bound, "must be at least 1 and below 2^127")
        if not 0 <= self.floor < 2.0**127:
            raise ConfigError("floor", self.floor, "must not be negative, and below 2^127")
        if self.scale == "fp32":
            smallest = float(np.float32(self.floor))
            if smallest < self.largest_code * 2.0**-127:
                rule = f"fp32 scales need at least {self.largest_code:g} * 2^-127, or a multiplier overflows"
                raise ConfigError("floor", self.floor, rule)

    @property
    def format(self) -> FloatFormat | None:
        """The float format of the elements, None for int8."""
        return _ELEMENTS[self.element]

    @property
    def format_max(self) -> float:
        """Largest value of the element format."""
        return INT8_MAX if self.format is None else self.format.max_finite

    @property
    def largest_code(self) -> float:
        """The bound in use."""
        return self.format_max if self.bound is None else self.bound

    @property
    def may_saturate(self) -> bool:
        """Whether a finite value may exceed the largest code by more than rounding takes back."""
        return self.largest_code > self.format_max or (self.scale == "e8m0" and self.rule != "ceil")


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "fp8-128": Recipe(element="e4m3fn", group=128, scale="fp32"),
        "fp8-128-ue8m0": Recipe(element="e4m3fn", group=128, scale="e8m0"),
        "mxfp8-e4m3": Recipe(element="e4m3fn", group=32, scale="e8m0", rule="floor", floor=0.0),
        "mxfp8-e5m2": Recipe(element="e5m2", group=32, scale="e8m0", rule="floor", floor=0.0),
        "mxfp4": Recipe(element="e2m1", group=32, scale="e8m0", rule="floor", floor=0.0),
        "fp8-token": Recipe(element="e4m3fn", group=None, scale="fp32"),
        "int8-token": Recipe(element="int8", group=None, scale="fp32"),
    }
)
"""Recipes by name: upstream's 128-groups, OCP MX (floor rule), and one scale per token.

Change one with `dataclasses.replace`, for example to the ceil rule. Source: deepep-v2.md section 4, ascend.md
section 9 (quantisation modes of the public Ascend port), OCP MX v1.0.
"""


def recipe_of(recipe: str | Recipe) -> Recipe:
    """Return a recipe, or the one of that name.

    Raises:
      ConfigError: no recipe has this name.
    """
    if isinstance(recipe, str) and recipe not in RECIPES:
        raise ConfigError("recipe", recipe, f"must be one of {', '.join(RECIPES)}")
    return RECIPES[recipe] if isinstance(recipe, str) else recipe
