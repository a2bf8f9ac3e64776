"""Programs of every kind that a backend can run, as strategies of hypothesis; the cells that they fill."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, cast

from epsim.conform.program import Cached, Combine, Dispatch, PayloadType, Program, Step
from epsim.testing.extra import load_hypothesis
from epsim.testing.strategies import ALIGNMENTS, draw_config, draw_routing
from native.backends.protocol import Capabilities, Feature

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

Scenario = Literal[
    "dispatch", "no_sync", "cached", "combine", "round_trip", "handles", "sequence", "wide", "many"
]
AXES: Mapping[Scenario, Mapping[str, tuple[str, ...]]] = {
    "dispatch": {"layout": ("expanded", "deduplicated", "hybrid"), "payload": ("bf16", "fp8", "fp8_columns")},
    "no_sync": {"layout": ("expanded", "deduplicated"), "payload": ("bf16", "fp8", "fp8_columns")},
    "cached": {"layout": ("expanded", "deduplicated"), "payload": ("bf16", "fp8", "fp8_columns")},
    "combine": {
        "layout": ("expanded", "deduplicated"),
        "reduction": ("rank_reduced", "one_rounding"),
        "biases": ("0", "1", "2"),
    },
    "round_trip": {"layout": ("expanded", "deduplicated"), "payload": ("bf16", "fp8")},
    "handles": {"layout": ("expanded", "deduplicated"), "call": ("combine", "cached")},
    "sequence": {"layout": ("expanded", "deduplicated"), "reduction": ("rank_reduced", "one_rounding")},
    "wide": {"payload": ("bf16", "fp8")},
    "many": {"layout": ("expanded", "deduplicated")},
}
"""What is tried of each scenario: every combination is a cell."""
NEEDS: Mapping[str, tuple[Feature, ...]] = {
    "expanded": ("expanded",),
    "deduplicated": ("deduplicated",),
    "hybrid": ("hybrid",),
    "bf16": ("bf16",),
    "fp8": ("fp8",),
    "fp8_columns": ("fp8", "column_major_scales"),
    "rank_reduced": ("rank_reduced",),
    "one_rounding": ("one_rounding",),
    "1": ("bias",),
    "2": ("bias",),
    "no_sync": ("no_cpu_sync",),
    "cached": ("cached",),
}
NOT_TRIED: Mapping[Feature, str] = {"hybrid": "this suite has no programs of two domains"}
WIDE_HIDDEN = 7168
"""Hidden of DeepSeek-V3 and of all published figures (deepep-ascend.md section 6)."""
MANY_TOKENS = (1, 2, 4, 8, 16, *(30,) * 11)
"""Of every rank in a program with many, mostly 30: dozens of entries of an AIV, several requests to one
destination, more rows than stages. The others are for shrinking, which goes to the front."""
MANY_RANKS, MANY_EXPERTS_PER_RANK = 2, 8
"""Such programs stay small in everything else, but K goes up to 8."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination: a scenario and a value of each of its axes."""

    scenario: Scenario
    values: tuple[str, ...]

    def __str__(self) -> str:
        """Name it."""
        return f"{self.scenario}[{', '.join(self.values)}]"

    def has(self, value: str) -> bool:
        """Whether it stands on a value of one of its axes."""
        return value in self.values

    def why_not(self, capabilities: Capabilities) -> str | None:
        """Return why a backend does not run it; None = it does."""
        for value in (self.scenario, *self.values):
            for feature in NEEDS.get(value, ()):
                reason = NOT_TRIED.get(feature) or capabilities.unsupported.get(feature)
                if reason:
                    return reason
        if self.scenario == "wide" and capabilities.max_hidden < WIDE_HIDDEN:
            return f"hidden is at most {capabilities.max_hidden}"
        return None


def cells(*, wide: bool, many: bool = True) -> Iterator[Cell]:
    """Yield all cells; those of wide rows and of many tokens only when asked for."""
    left_out = {name for name, is_asked in (("wide", wide), ("many", many)) if not is_asked}
    for scenario, axes in AXES.items():
        if scenario not in left_out:
            for values in product(*axes.values()):
                yield Cell(scenario=scenario, values=values)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large programs get.

    Args:
      max_ranks: R.
      max_tokens: of a rank.
      max_hidden: elements.
      max_experts_per_rank: local experts.
      max_steps: calls of a sequence.
    """

    max_ranks: int = 4
    max_tokens: int = 4
    max_hidden: int = 128
    max_experts_per_rank: int = 3
    max_steps: int = 6


def programs(cell: Cell, capabilities: Capabilities, sizes: Sizes) -> "SearchStrategy[Program]":
    """Return a strategy of programs of a cell.

    Raises:
      MissingExtraError: no hypothesis.
    """
    st = load_hypothesis().strategies
    writer = _Writer(cell=cell, can=capabilities, sizes=sizes, st=st)
    strategy: SearchStrategy[Program] = st.composite(writer.program)()
    return strategy


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """Draws the programs of one cell."""

    cell: Cell
    can: Capabilities
    sizes: Sizes
    st: Any  # the module hypothesis.strategies

    def program(self, draw: "DrawFn") -> Program:
        """Draw one program."""
        scenario = self.cell.scenario
        first = self._dispatch(draw, self._ranks())
        steps: list[Step] = [first]
        if scenario == "cached":
            steps.append(self._cached(draw, 0, self._payload("bf16")))
        elif scenario in ("combine", "round_trip", "wide", "many"):
            steps.append(self._combine(draw, 0, first))
        elif scenario == "handles":
            # The older of two handles is used, then the newer one.
            steps.append(self._dispatch(draw, (len(first.topk),)))
            for of in (0, 1):
                if self.cell.has("cached"):
                    steps.append(self._cached(draw, of, self._any_payload(draw)))
                else:
                    steps.append(self._combine(draw, of, cast("Dispatch", steps[of])))
        elif scenario == "sequence":
            steps += self._more(draw, steps)
        return Program(
            steps=tuple(steps),
            aivs=draw(self.st.sampled_from(self.can.num_aivs)),
            multiple_reduction=not self.cell.has("one_rounding"),
        )

    def _ranks(self) -> tuple[int, ...]:
        if self.cell.scenario == "many":
            return tuple(n for n in self.can.num_ranks if n == MANY_RANKS) or self.can.num_ranks[-1:]
        fitting = tuple(n for n in self.can.num_ranks if n <= self.sizes.max_ranks)
        return fitting or self.can.num_ranks[:1]

    def _more(self, draw: "DrawFn", steps: list[Step]) -> list[Step]:
        """Draw further calls: any handle that is alive, other shapes, other dtypes."""
        fresh = [cast("Dispatch", steps[0])]
        ranks = (len(fresh[0].topk),)
        kinds = ["combine", "dispatch"] + (["cached"] if "cached" not in self.can.unsupported else [])
        more: list[Step] = []
        for kind in draw(
            self.st.lists(self.st.sampled_from(kinds), min_size=1, max_size=self.sizes.max_steps)
        ):
            of = draw(self.st.integers(0, len(fresh) - 1))
            if kind == "dispatch":
                fresh.append(self._dispatch(draw, ranks))
                more.append(fresh[-1])
            elif kind == "cached":
                more.append(self._cached(draw, of, self._any_payload(draw)))
            else:
                more.append(self._combine(draw, of, fresh[of]))
        return more

    def _payload(self, default: PayloadType) -> PayloadType:
        for value in self.cell.values:
            if value in ("bf16", "fp8", "fp8_columns"):
                return cast("PayloadType", value)
        return default

    def _any_payload(self, draw: "DrawFn") -> PayloadType:
        """Draw a payload that the backend takes."""
        names = [p for p in ("bf16", "fp8", "fp8_columns") if not set(NEEDS[p]) & set(self.can.unsupported)]
        return cast("PayloadType", draw(self.st.sampled_from(names)))

    def _hidden(self, draw: "DrawFn") -> int:
        if self.cell.scenario == "wide":
            return WIDE_HIDDEN
        if self.cell.scenario == "many":
            return self.can.hidden
        step, most = self.can.hidden, min(self.sizes.max_hidden, self.can.max_hidden)
        sizes = [step * n for n in (1, 2, 3, 5, 16) if step * n <= most]
        return int(draw(self.st.sampled_from(sizes or [step])))

    def _packs(self, draw: "DrawFn", payload: PayloadType, hidden: int) -> int:
        """Draw P; a buffer has room for a pack per 32 elements (deepep-ascend.md section 1.4)."""
        if payload == "bf16":
            return 1
        return int(draw(self.st.integers(1, min(3, max(1, hidden // 32)))))

    def _dispatch(self, draw: "DrawFn", ranks: tuple[int, ...]) -> Dispatch:
        is_many = self.cell.scenario == "many"
        config = draw_config(
            draw,
            num_ranks=ranks,
            hidden=(1,),  # drawn per call: several shapes share a buffer
            max_topk=self.can.max_topk,
            max_tokens=self.sizes.max_tokens,
            max_experts_per_rank=MANY_EXPERTS_PER_RANK if is_many else self.sizes.max_experts_per_rank,
            alignments=ALIGNMENTS if self.can.power_of_two_alignment else (*ALIGNMENTS, 3),
        )
        if is_many:
            config = replace(config, num_max_tokens_per_rank=draw(self.st.sampled_from(MANY_TOKENS)))
        topk = draw_routing(draw, config, weights=False, is_full=is_many)
        flag = self.st.booleans()
        is_sequence = self.cell.scenario in ("sequence", "combine", "handles", "many")
        is_open = is_sequence or self.cell.scenario == "cached"
        payload = self._any_payload(draw) if is_open else self._payload("bf16")
        hidden = self._hidden(draw)
        expand = not self.cell.has("deduplicated")
        may_skip_sync = is_sequence and "no_cpu_sync" not in self.can.unsupported
        return Dispatch(
            topk=tuple(tuple(tuple(row) for row in idx.tolist()) for idx in topk.topk_idx),
            experts=config.num_experts,
            columns=config.num_topk,
            capacity=config.num_max_tokens_per_rank,
            hidden=hidden,
            alignment=config.expert_alignment,
            payload=payload,
            packs=self._packs(draw, payload, hidden),
            values=draw(self.st.sampled_from(("plain", "special"))),
            weights="weights" not in self.can.unsupported and draw(flag),
            stats="stats" not in self.can.unsupported and draw(flag),
            zero_padding=expand and draw(flag),
            cpu_sync=self.cell.scenario != "no_sync" and not (may_skip_sync and draw(flag)),
            expand=expand,
        )

    def _cached(self, draw: "DrawFn", of: int, payload: PayloadType) -> Cached:
        hidden = self._hidden(draw)
        return Cached(
            of=of,
            hidden=hidden,
            payload=payload,
            packs=self._packs(draw, payload, hidden),
            values=draw(self.st.sampled_from(("plain", "special"))),
            weights="weights" not in self.can.unsupported and draw(self.st.booleans()),
            zero_padding=not self.cell.has("deduplicated") and draw(self.st.booleans()),
        )

    def _combine(self, draw: "DrawFn", of: int, dispatch: Dispatch) -> Combine:
        received = self.cell.scenario == "round_trip"
        most = 0 if "bias" in self.can.unsupported else 2
        biases = [int(v) for v in self.cell.values if v in ("0", "1", "2")]
        # Upstream returns no weights when expanded rows are not summed per rank first.
        has_weights = "weights" not in self.can.unsupported and not (
            dispatch.expand and self.cell.has("one_rounding")
        )
        return Combine(
            of=of,
            hidden=dispatch.hidden if received else self._hidden(draw),
            biases=biases[0] if biases else draw(self.st.integers(0, most)),
            weights=has_weights and (dispatch.weights if received else draw(self.st.booleans())),
            values=draw(self.st.sampled_from(("plain", "special"))),
            received=received,
        )
