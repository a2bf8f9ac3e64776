"""From a mismatch in an array to the choice it belongs to: source, token, k, destination, expert, slot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epsim.capture import Capture
from epsim.debug.fields import FIELDS
from reference.comparison.mismatch import Mismatch, Value

if TYPE_CHECKING:
    from epsim.debug.judge import Judge

SENDER = ("dst_buffer_slot_idx", "dst_gsge_idx")
HOME = tuple(n for n, f in FIELDS.items() if f.stage in ("input", "combine") or n.startswith("bias"))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something is wrong; None = does not apply or is not known.

    Args:
      field: the array.
      kind: what is wrong, see `mismatch.Kind`.
      source_rank: home of the token.
      token: its number there.
      k: top-k column of the choice.
      destination_rank: the rank that holds the expert.
      expert: global expert.
      slot: place of the token's record in its source's region at the destination.
      row: row in the captured array, or for a lost row where it belongs.
      column: column in the captured array.
      expected: what must stand there.
      actual: what stands there.
      ulp: steps of the float format between the two.
      text: the mismatch in words.
    """

    field: str
    kind: str
    source_rank: int | None = None
    token: int | None = None
    k: int | None = None
    destination_rank: int | None = None
    expert: int | None = None
    slot: int | None = None
    row: int | None = None
    column: int | None = None
    expected: Value = None
    actual: Value = None
    ulp: int | None = None
    text: str = ""


class Places:
    """Locates mismatches of one judged capture."""

    def __init__(self, capture: Capture, judge: "Judge") -> None:
        """Keep what the places are looked up in."""
        self.capture, self.judge = capture, judge
        self.config = judge.config
        self.owner = np.append(self.config.expert_ranks(), -1)

    def locate(self, mismatch: Mismatch) -> Place:
        """Return the choice that a mismatch belongs to, as far as its field tells."""
        if mismatch.field in SENDER:
            known = self._sender(mismatch)
        elif mismatch.field in HOME:
            known = self._home(mismatch)
        elif mismatch.field == "psum_num_recv_tokens_per_rank":
            known = {"destination_rank": mismatch.rank, "source_rank": _at(mismatch.index, 0)}
        elif mismatch.row is None:
            known = self._count(mismatch)
        else:
            known = self._received(mismatch, mismatch.row)
        return Place(
            field=mismatch.field,
            kind=mismatch.kind,
            row=_at(mismatch.index, 0),
            column=_at(mismatch.index, 1),
            expected=mismatch.expected,
            actual=mismatch.actual,
            ulp=mismatch.ulp,
            text=str(mismatch),
            **known,
        )

    def _sender(self, mismatch: Mismatch) -> dict[str, Any]:
        if len(mismatch.index) != 2:
            return {"source_rank": mismatch.rank}
        token, k = mismatch.index
        return {"source_rank": mismatch.rank, "token": token} | self._choice(mismatch.rank, token, k)

    def _home(self, mismatch: Mismatch) -> dict[str, Any]:
        found: dict[str, Any] = {"source_rank": mismatch.rank, "token": _at(mismatch.index, 0)}
        if mismatch.field == "combined_topk_weights" and len(mismatch.index) == 2:
            found |= self._choice(mismatch.rank, mismatch.index[0], mismatch.index[1])
        return found

    def _count(self, mismatch: Mismatch) -> dict[str, Any]:
        found: dict[str, Any] = {"destination_rank": mismatch.rank}
        local = _at(mismatch.index, 0)
        experts = np.flatnonzero(self.owner[:-1] == mismatch.rank)
        if mismatch.field.endswith(("per_expert", "expert_list")) and local is not None:
            found["expert"] = int(experts[local]) if local < len(experts) else None
        return found

    def _received(self, mismatch: Mismatch, row: tuple[int, int]) -> dict[str, Any]:
        source, token = row
        found: dict[str, Any] = {"destination_rank": mismatch.rank, "expert": mismatch.expert}
        if not 0 <= source < self.config.ep_size or token >= self.judge.topk.tokens_per_rank[source]:
            # Padding, or a source that does not exist.
            return found
        found |= {"source_rank": source, "token": token}
        k = self._column(mismatch, source, token)
        return found | (self._choice(source, token, k) if k is not None else {}) | self._slot(mismatch, row)

    def _column(self, mismatch: Mismatch, source: int, token: int) -> int | None:
        """Return the top-k column that a received row or element belongs to."""
        ids = self.judge.topk.topk_idx[source][token]
        if mismatch.expert is not None:
            return int(np.flatnonzero(ids == mismatch.expert)[0]) if mismatch.expert in ids else None
        column, num_topk = _at(mismatch.index, 1), self.config.num_topk
        if mismatch.field == "recv_src_metadata" and column is not None:
            k = column if self.judge.mode.rules.metadata_order == "rows_first" else column - 2
            if 0 <= k < num_topk:
                return k
        if mismatch.field in ("recv_topk_idx", "recv_topk_weights") and column is not None:
            return column
        return self._master(ids, mismatch.rank)

    def _master(self, ids: Sequence[Any], rank: int) -> int | None:
        here = np.flatnonzero(self.owner[np.asarray(ids)] == rank)
        return int(here[-1]) if here.size else None

    def _choice(self, source: int, token: int, k: int) -> dict[str, Any]:
        expert = int(self.judge.topk.topk_idx[source][token, k])
        if expert < 0:
            return {"k": k}
        rank = int(self.owner[expert])
        return {"k": k, "expert": expert, "destination_rank": rank} | self._slot_of(source, token, rank)

    def _slot(self, mismatch: Mismatch, row: tuple[int, int]) -> dict[str, Any]:
        return self._slot_of(row[0], row[1], mismatch.rank)

    def _slot_of(self, source: int, token: int, rank: int) -> dict[str, Any]:
        master = self._master(self.judge.topk.topk_idx[source][token], rank)
        if self.judge.is_hybrid or master is None:
            return {}
        slot = int(self.judge.slots[source][token, master])
        if self.judge.mode.rules.slot_has_rank:
            slot -= source * self.config.num_max_tokens_per_rank
        return {"slot": slot}


def _at(index: tuple[int, ...], place: int) -> int | None:
    return index[place] if len(index) > place else None
