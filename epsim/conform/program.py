"""A program: one buffer and what is done with it, small enough to print on one line and run again.

R ranks, T tokens of a rank, K top-k, E experts, H hidden, P scale packs, M token capacity.
"""

from typing import Literal

import msgspec
import numpy as np

from epsim.errors import InputError
from epsim.testing.identity import Kind
from epsim.testing.strategies import token_weights
from reference.config import EPConfig
from reference.topk import TopK

PayloadType = Literal["bf16", "fp8", "fp8_columns"]
"""fp8_columns: fp8 whose scales are given and wanted column by column."""


class _Plain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is written without its defaults, and read without guessing."""


class Dispatch(_Plain, tag_field="op", tag="dispatch", frozen=True, kw_only=True):
    """A fresh dispatch.

    Args:
      topk: per rank, token and column an expert, -1 = none.
      experts: E of the group.
      columns: K.
      capacity: M.
      hidden: H.
      alignment: of expert blocks.
      payload: dtype of the rows.
      packs: P, of fp8.
      values: see `testing.identity.Kind`.
      weights, stats, zero_padding, cpu_sync, expand: as `DispatchCall` of the protocol.
    """

    topk: tuple[tuple[tuple[int, ...], ...], ...]
    experts: int
    columns: int
    capacity: int
    hidden: int
    alignment: int = 1
    payload: PayloadType = "bf16"
    packs: int = 1
    values: Kind = "plain"
    weights: bool = False
    stats: bool = False
    zero_padding: bool = False
    cpu_sync: bool = True
    expand: bool = True

    def config(self) -> EPConfig:
        """Return the group."""
        return EPConfig(
            ep_size=len(self.topk),
            num_experts=self.experts,
            num_topk=self.columns,
            hidden=self.hidden,
            num_max_tokens_per_rank=self.capacity,
            expert_alignment=self.alignment,
        )

    def routing(self, call: int, *, weights: bool) -> TopK:
        """Return the routing, with weights that name themselves if asked for."""
        idx = tuple(np.array(rank, np.int64).reshape(len(rank), self.columns) for rank in self.topk)
        given = tuple(token_weights(r, i, call) for r, i in enumerate(idx)) if weights else None
        return TopK(num_experts=self.experts, topk_idx=idx, topk_weights=given)


class Cached(_Plain, tag_field="op", tag="cached", frozen=True, kw_only=True):
    """A cached dispatch over dispatch number `of`, counted around; the other fields as in `Dispatch`."""

    of: int = 0
    hidden: int
    payload: PayloadType = "bf16"
    packs: int = 1
    values: Kind = "plain"
    weights: bool = False
    zero_padding: bool = False


class Combine(_Plain, tag_field="op", tag="combine", frozen=True, kw_only=True):
    """A combine over dispatch number `of`, counted around.

    Args:
      of: which dispatch.
      hidden: H of the rows, unless they are received ones.
      biases: 0 to 2.
      weights: whether rows bring weights.
      values: plain, or special: zeros of both signs, NaN, Inf, extremes and denormals among them.
      received: combine what the dispatch delivered, as identity experts would; else made-up rows.
    """

    of: int = 0
    hidden: int
    biases: int = 0
    weights: bool = False
    values: Kind = "plain"
    received: bool = False


Step = Dispatch | Cached | Combine


class Program(_Plain, frozen=True, kw_only=True):
    """What is done with one buffer; the first step is a dispatch.

    Args:
      steps: one after the other.
      aivs: vector cores of a rank.
      multiple_reduction: of the buffer.
    """

    steps: tuple[Step, ...]
    aivs: int = 64
    multiple_reduction: bool = True

    def dispatches(self) -> list[Dispatch]:
        """Return the fresh dispatches, in order."""
        return [step for step in self.steps if isinstance(step, Dispatch)]

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.dispatches()[0].topk)

    @property
    def most_tokens(self) -> int:
        """Tokens of the group in the dispatch that has most."""
        return max(sum(map(len, step.topk)) for step in self.dispatches())


def program_text(program: Program) -> str:
    """Return a program as one line of JSON."""
    return msgspec.json.encode(program).decode()


def read_program(text: str) -> Program:
    """Return the program of such a line.

    Raises:
      InputError: no JSON, no program, or one whose groups do not belong together.
    """
    try:
        program = msgspec.json.decode(text, type=Program)
    except msgspec.MsgspecError as error:
        raise InputError("example", text, f"must be a program as a failure prints it ({error})") from None
    if not program.steps or not isinstance(program.steps[0], Dispatch):
        raise InputError("example", text, "must begin with a dispatch")
    if len({len(step.topk) for step in program.dispatches()}) != 1:
        raise InputError("example", text, "all its dispatches must have one number of ranks")
    for number, step in enumerate(program.steps):
        if isinstance(step, Dispatch):
            _check_routing(f"example.steps[{number}]", step)
    return program


def _check_routing(field: str, step: Dispatch) -> None:
    """Refuse a routing that is none, or not one of the step's group."""
    config = step.config()
    for rank, rows in enumerate(step.topk):
        for token, row in enumerate(rows):
            place = f"{field}.topk[{rank}][{token}]"
            if len(row) != step.columns:
                raise InputError(place, list(row), f"must have {step.columns} experts, as columns says")
            if any(expert >= step.experts for expert in row):
                raise InputError(place, list(row), f"must be of the {step.experts} experts, -1 = none")
    step.routing(0, weights=False).check_against(config)
