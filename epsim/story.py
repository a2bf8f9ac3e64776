"""A token's whole story: where each choice goes, which rows hold it, what comes back and how it is summed.

R ranks, K top-k, M token capacity, N received rows of a rank, X expanded rows. gid = rank * M + token. The
master is the highest column of a token on a rank, which its record goes by: it travels there once.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from epsim.errors import InputError
from epsim.inspection import edition_limits
from reference.config import EPConfig
from reference.handle import DispatchMode, Handle
from reference.memory.limits import Limit
from reference.memory.sizes import Dtype, row_bytes
from reference.order import ReductionOrder, library_order
from reference.placement import local_expert_ids, plan_dispatch
from reference.plan import count_rows
from reference.topk import TopK


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One top-k column of the token.

    Args:
      k: the column.
      expert: global expert, -1 = masked.
      weight: its weight, None = the routing has none.
      rank: where the expert lives; None = masked.
      local_expert: its number there; None = masked.
      is_master: whether the token's record for that rank is filed under this column.
      row: expanded row at the rank; None = masked, or the layout has none.
    """

    k: int
    expert: int
    weight: float | None
    rank: int | None = None
    local_expert: int | None = None
    is_master: bool = False
    row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """What travels to one rank, and back.

    Args:
      rank: destination.
      is_local: the token's own rank: nothing crosses the wire.
      ks: columns whose experts live there, ascending; the last is the master.
      slot: place in the source's region at the destination; None = hybrid, where it is not one number.
      aiv: vector core that sends it (Ascend), None elsewhere.
      gather_idx: its gather pair in that core's descriptors; None = local or other edition.
      received_row: place in the received stream.
      rows: expanded rows, in the order of `ks`; () = the layout has none.
      dispatch_bytes: bytes of the record.
      dispatch_offset_bytes: where it lands in the receive region (Ascend); None elsewhere.
      combine_bytes: bytes of what comes back.
      combine_group: group of the combine region at home (Ascend); None elsewhere.
      combine_record: place in that region, group * M + token; None elsewhere.
    """

    rank: int
    is_local: bool
    ks: tuple[int, ...]
    slot: int | None
    aiv: int | None
    gather_idx: int | None
    received_row: int
    rows: tuple[int, ...]
    dispatch_bytes: int
    dispatch_offset_bytes: int | None
    combine_bytes: int
    combine_group: int | None
    combine_record: int | None


@dataclass(frozen=True, kw_only=True)
class SumPart:
    """One term of the final sum.

    Args:
      key: highest column in it; parts are added in ascending key.
      level: "row" as the expert gave it, "rank" a rank's sum, "domain" the sum of a scale-up domain's ranks.
      rank: where it is made; None for a domain.
      ks: columns in it, in the order in which they are added.
      is_rounded: whether it is a sum of its own, rounded to bf16 before the next one.
      members: for a domain, the ranks' parts.
    """

    key: int
    level: Literal["row", "rank", "domain"]
    rank: int | None
    ks: tuple[int, ...]
    is_rounded: bool
    members: tuple["SumPart", ...] = ()


@dataclass(frozen=True, kw_only=True)
class Story:
    """Everything about one token.

    Args:
      rank, token, gid: the token.
      edition, expand, dtype, recipe: what it was told for; the recipe is of combine's sum.
      choices: [K] by column.
      records: one per rank that it reaches, in the order of combine's sum.
      parts: terms of the final fp32 sum after the biases, in order; the result is rounded once more.
      wire_bytes_out: bytes of records that leave the token's rank.
      wire_bytes_back: bytes of what comes back from other ranks.
      limits: what the edition's library refuses of the group or comes close to; see `edition_limits`.
      notes: what to know of the routing before the story.
    """

    rank: int
    token: int
    gid: int
    edition: str
    expand: bool
    dtype: str
    recipe: str
    choices: tuple[Choice, ...]
    records: tuple[Record, ...]
    parts: tuple[SumPart, ...]
    wire_bytes_out: int
    wire_bytes_back: int
    limits: tuple[Limit, ...] = ()
    notes: tuple[str, ...] = ()


Stream = Literal["received", "expanded"]
RowKind = Literal["token", "padding"]


@dataclass(frozen=True, kw_only=True)
class RowStory:
    """Where one row of a rank comes from.

    Args:
      rank, row: the row.
      stream: "received" counts the records as they came, "expanded" the rows of recv_x.
      kind: "token", or "padding" of an expert's block.
      num_rows: rows that the rank has.
      expert: global expert of an expanded row or of the padding's block; None else.
      k: column that made the row (its master for a received row); None = no token.
      story: of the token; None = no token.
      limits: as the story's.
    """

    rank: int
    row: int
    stream: Stream
    kind: RowKind
    num_rows: int
    expert: int | None = None
    k: int | None = None
    story: Story | None = None
    limits: tuple[Limit, ...] = ()


class Storyteller:
    """Tells stories of one routing; the plan is made once."""

    def __init__(
        self,
        config: EPConfig,
        topk: TopK,
        *,
        mode: DispatchMode | None = None,
        dtype: Dtype = "fp8",
        order: ReductionOrder | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Plan the dispatch.

        Args:
          config: the group.
          topk: routing in physical ids.
          mode: the layout; None = `DispatchMode()`.
          dtype: of the payload of dispatch.
          order: of combine's sum; None = the libraries' one.
          notes: to be passed on.

        Raises:
          ConfigError: the routing does not fit the group, or the edition lacks layout or order.
        """
        self.config, self.topk, self.dtype, self.notes = config, topk, dtype, notes
        self.mode = DispatchMode() if mode is None else mode
        self.domain = self.mode.scaleup_ranks(config)
        is_hybrid = self.domain != config.ep_size
        self.order = order or library_order(
            expand=self.mode.expand, allow_multiple_reduction=True, is_hybrid=is_hybrid
        )
        self.order.check_edition(self.mode.rules, is_hybrid=is_hybrid)
        self.is_summed_first = self.order.in_rank or not self.mode.expand
        self.handles = plan_dispatch(config, topk, mode=self.mode)
        self.owner, self.local = config.expert_ranks(), local_expert_ids(config)
        self.limits = edition_limits(
            config,
            count_rows(config, topk),
            edition=self.mode.edition,
            dtype=dtype,
            num_aivs=self.mode.num_aivs,
        )
        is_ascend = self.mode.rules.has_gather_idx
        self.bytes = row_bytes(config, dtype=dtype, edition="ascend" if is_ascend else "nvidia-v2")

    def token(self, rank: int, token: int) -> Story:
        """Tell the story of a token.

        Raises:
          InputError: there is no such rank or token.
        """
        _check("rank", rank, self.config.ep_size, "ranks")
        _check("token", token, self.topk.tokens_per_rank[rank], f"tokens of rank {rank}")
        ids = self.topk.topk_idx[rank][token].tolist()
        reached: dict[int, list[int]] = {}
        for k, expert in enumerate(ids):
            if expert >= 0:
                reached.setdefault(int(self.owner[expert]), []).append(k)
        records = [self._record(rank, token, dst, tuple(ks)) for dst, ks in reached.items()]
        records.sort(key=lambda record: record.ks[-1])
        remote = [record for record in records if not record.is_local]
        return Story(
            rank=rank,
            token=token,
            gid=rank * self.config.num_max_tokens_per_rank + token,
            edition=self.mode.edition,
            expand=self.mode.expand,
            dtype=self.dtype,
            recipe=self.order.name,
            choices=self._choices(rank, token, ids, records),
            records=tuple(records),
            parts=self._parts(records),
            wire_bytes_out=sum(record.dispatch_bytes for record in remote),
            wire_bytes_back=sum(record.combine_bytes for record in remote),
            limits=self.limits,
            notes=self.notes,
        )

    def _choices(self, rank: int, token: int, ids: list[int], records: list[Record]) -> tuple[Choice, ...]:
        weights = None if self.topk.topk_weights is None else self.topk.topk_weights[rank][token].tolist()
        rows = {k: row for r in records if r.rows for k, row in zip(r.ks, r.rows, strict=True)}
        masters = {record.ks[-1] for record in records}
        return tuple(
            Choice(
                k=k,
                expert=expert,
                weight=None if weights is None else weights[k],
                rank=int(self.owner[expert]) if expert >= 0 else None,
                local_expert=int(self.local[expert]) if expert >= 0 else None,
                is_master=k in masters,
                row=rows.get(k),
            )
            for k, expert in enumerate(ids)
        )

    def _record(self, src: int, token: int, dst: int, ks: tuple[int, ...]) -> Record:
        config, home, there = self.config, self.handles[src], self.handles[dst]
        gid = src * config.num_max_tokens_per_rank + token
        place = int(np.flatnonzero(there.gids() == gid)[0])
        rows: tuple[int, ...] = ()
        if self.mode.expand:
            rows = tuple(int(there.expanded_rows()[place, k]) for k in ks)
        slot: int | None = None
        if self.domain == config.ep_size:
            slot = int(home.dst_buffer_slot_idx[token, ks[-1]])
            slot -= src * config.num_max_tokens_per_rank if self.mode.rules.slot_has_rank else 0
        aiv = gather = offset = group = None
        if self.mode.rules.has_gather_idx and slot is not None and home.dst_gsge_idx is not None:
            aiv = token // -(-config.num_max_tokens_per_rank // self.mode.num_aivs)
            found = int(home.dst_gsge_idx[token, ks[-1]])
            gather = None if found < 0 else found
            offset = (src * config.num_max_tokens_per_rank + slot) * self.bytes.dispatch_wire_bytes
            by_rank = self.mode.rules.groups_by_rank(config.ep_size, config.num_topk)
            group = dst if by_rank else ks[-1]
        return Record(
            rank=dst,
            is_local=src == dst,
            ks=ks,
            slot=slot,
            aiv=aiv,
            gather_idx=gather,
            received_row=place,
            rows=rows,
            dispatch_bytes=self.bytes.dispatch_wire_bytes,
            dispatch_offset_bytes=offset,
            # Without a sum on the expert's rank every row comes home by itself.
            combine_bytes=self.bytes.combine_wire_bytes * (1 if self.is_summed_first else len(ks)),
            combine_group=group,
            combine_record=None if group is None else group * config.num_max_tokens_per_rank + token,
        )

    def _parts(self, records: list[Record]) -> tuple[SumPart, ...]:
        """Return the terms of the final sum in their order."""
        if not self.is_summed_first:
            pairs = sorted((k, record.rank) for record in records for k in record.ks)
            return tuple(
                SumPart(key=k, level="row", rank=rank, ks=(k,), is_rounded=False) for k, rank in pairs
            )
        ranks = tuple(
            SumPart(key=r.ks[-1], level="rank", rank=r.rank, ks=r.ks, is_rounded=len(r.ks) > 1)
            for r in records
        )
        if not self.order.in_domain:
            return ranks
        domains: dict[int, list[SumPart]] = {}
        for part in ranks:
            domains.setdefault((part.rank or 0) // self.domain, []).append(part)
        grouped = [
            SumPart(
                key=members[-1].key,
                level="domain",
                rank=None,
                ks=tuple(k for member in members for k in member.ks),
                is_rounded=True,
                members=tuple(members),
            )
            for members in domains.values()
        ]
        return tuple(sorted(grouped, key=lambda part: part.key))

    def row(self, rank: int, row: int, *, is_received: bool = False) -> RowStory:
        """Tell where a row comes from.

        Args:
          rank: who has it.
          row: its number.
          is_received: counted in the received stream; else in recv_x, which is the same without expansion.

        Raises:
          InputError: there is no such rank or row.
        """
        _check("at rank", rank, self.config.ep_size, "ranks")
        handle = self.handles[rank]
        stream: Stream = "received" if is_received or not self.mode.expand else "expanded"
        num_rows = handle.num_real_recv_tokens if stream == "received" else int(handle.block_starts()[-1])
        _check("row", row, num_rows, f"{stream} rows at rank {rank}")
        found = RowStory(
            rank=rank, row=row, stream=stream, kind="padding", num_rows=num_rows, limits=self.limits
        )
        if stream == "received":
            gid, k = int(handle.gids()[row]), int(handle.masters()[row])
        else:
            origins = handle.row_origins()
            gid, k = int(origins.gid[row]), int(origins.k[row])
            found = replace(found, expert=self._block(handle, row))
        if gid < 0:
            return found
        src, token = divmod(gid, self.config.num_max_tokens_per_rank)
        return replace(found, kind="token", k=k, story=self.token(src, token))

    def _block(self, handle: Handle, row: int) -> int:
        """Return the global expert whose block holds an expanded row."""
        local = int(np.searchsorted(handle.block_starts(), row, side="right")) - 1
        return int(np.flatnonzero(self.owner == handle.rank)[local])


def _check(field: str, value: int, count: int, what: str) -> None:
    if not 0 <= value < count:
        rule = f"must be 0..{count - 1}, there are {count} {what}" if count else f"there are no {what}"
        raise InputError(field, value, rule)
