"""Stories, inspections and diagnoses as plain text."""

import math
from collections.abc import Mapping, Sequence

from epsim.debug.places import Place
from epsim.diagnose import Diagnosis
from epsim.inspection import Dropped, Inspection
from epsim.report.prediction import plain_table
from epsim.story import Record, RowStory, Story, SumPart
from reference.comparison.mismatch import NUM_SHOWN
from reference.memory.limits import Limit

BAR_WIDTH = 32
MAX_BARS = 32
"""Experts or ranks to list; of more, the busiest and the idlest are shown."""


def story_text(story: Story) -> str:
    """Return a token's story as text."""
    lines = [f"token {story.token} of rank {story.rank} (source index {story.gid})", "", "choices"]
    lines.append(_indented(_choices(story)))
    if not story.records:
        nowhere = "goes nowhere: combine returns the biases, or zeros without them"
        return "\n".join([*lines, "", nowhere, *_notes(story.limits, story.notes)])
    way = f"dispatch, {story.dtype} ({story.edition})"
    lines += ["", f"{way}: one record per rank, {story.wire_bytes_out:,} bytes cross the wire"]
    lines += [f"  {_sent(record, story)}" for record in story.records]
    lines += ["", f"combine, bf16: {story.wire_bytes_back:,} bytes cross the wire"]
    is_apart = any(part.level == "row" for part in story.parts)
    lines += [f"  {_returned(record, is_apart)}" for record in story.records]
    return "\n".join([*lines, "", *_sum_lines(story), *_notes(story.limits, story.notes)])


def _notes(limits: Sequence[Limit], notes: Sequence[str]) -> list[str]:
    """Return the last lines: what upstream refuses, though the reference defines it, and other notes."""
    said = {"error": "note: DeepEP-Ascend refuses this", "warning": "note: DeepEP-Ascend, a warning"}
    lines = [f"{said[hit.severity]}: {hit.field} {hit.value:,} {hit.rule}" for hit in limits]
    return [*lines, *(f"note: {note}" for note in notes)]


def _choices(story: Story) -> str:
    columns = ["k", "expert", "weight", "rank", "local expert", "master", *(["row"] if story.expand else [])]
    rows = []
    for choice in story.choices:
        cells = [
            str(choice.k),
            "none" if choice.expert < 0 else str(choice.expert),
            "-" if choice.weight is None else f"{choice.weight:.6g}",
            _or_dash(choice.rank),
            _or_dash(choice.local_expert),
            "yes" if choice.is_master else "",
        ]
        rows.append([*cells, _or_dash(choice.row)] if story.expand else cells)
    return plain_table(columns, rows).strip("\n")


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _indented(text: str) -> str:
    return "\n".join(f"  {line.strip() if not line.strip() else line}".rstrip() for line in text.split("\n"))


def _sent(record: Record, story: Story) -> str:
    how = "stays, copied locally" if record.is_local else f"{record.dispatch_bytes:,} bytes"
    parts = [f"rank {record.rank}: {how}"]
    if record.slot is not None:
        parts.append(f"slot {record.slot} of rank {story.rank}'s region")
    if record.dispatch_offset_bytes is not None:
        parts.append(f"at byte {record.dispatch_offset_bytes:,}")
    if record.aiv is not None:
        pair = "" if record.gather_idx is None else f", gather pair {record.gather_idx}"
        parts.append(f"sent by AIV {record.aiv}{pair}")
    parts.append(f"received row {record.received_row}")
    if record.rows:
        rows = ", ".join(f"{row} (k {k})" for row, k in zip(record.rows, record.ks, strict=True))
        parts.append(f"expanded row{'s' if len(record.rows) > 1 else ''} {rows}")
    return "; ".join(parts)


def _returned(record: Record, is_apart: bool) -> str:
    how = "stays" if record.is_local else f"{record.combine_bytes:,} bytes"
    where = ""
    if record.combine_record is not None:
        where = (
            f"; group {record.combine_group}, record {record.combine_record} of the combine region at home"
        )
    what = f"k {' and k '.join(map(str, record.ks))}" if is_apart else _columns(record.ks)
    return f"from rank {record.rank}: {how}, {what}{where}"


def _columns(ks: Sequence[int]) -> str:
    return "k " + " + k ".join(map(str, ks))


def _sum_lines(story: Story) -> list[str]:
    lines = [f"sum, recipe {story.recipe}"]
    steps = [text for part in story.parts for text in _roundings(part, story.expand)]
    lines += [f"  first {text}" for text in steps]
    terms = ", ".join(_term(part) for part in story.parts)
    lines.append(f"  at rank {story.rank} in fp32: biases if any, then {terms}; rounded once to bf16")
    return lines


def _term(part: SumPart) -> str:
    if part.level == "row":
        return f"k {part.key} (rank {part.rank})"
    if part.level == "domain":
        return f"domain of {_columns(part.ks)}"
    return f"rank {part.rank} ({_columns(part.ks)})"


def _roundings(part: SumPart, expand: bool) -> list[str]:
    """Name the sums before the final one."""
    lines = [line for member in part.members for line in _roundings(member, expand)]
    if part.level == "domain":
        terms = ", ".join(_term(member) for member in part.members)
        return [*lines, f"in the scale-up domain in fp32: {terms}; rounded to bf16"]
    if part.level == "rank" and part.is_rounded:
        how = "in fp32" if expand else "by the caller"
        return [f"at rank {part.rank} {how}: {_columns(part.ks)}; rounded to bf16"]
    return []


def row_text(found: RowStory) -> str:
    """Return where a row comes from, and the token's story."""
    name = f"{found.stream} row {found.row} at rank {found.rank}"
    if found.kind == "padding" or found.story is None:
        padding = f"{name}: padding of expert {found.expert}, no token"
        return "\n".join([padding, *_notes(found.limits, ())])
    story, via = found.story, f"k {found.k}"
    via += f", expert {found.expert}" if found.expert is not None else ", the master"
    return f"{name}: token {story.token} of rank {story.rank}, via {via}\n\n{story_text(story)}"


def inspection_text(found: Inspection, title: str) -> str:
    """Return a routing's load as text.

    Args:
      found: what was counted.
      title: how the routing was made.
    """
    tokens, choices = sum(found.tokens_per_rank), sum(found.expert_choices)
    lines = [
        f"{title}: {tokens:,} tokens of {found.ep_size} ranks, top-{found.num_topk} of "
        f"{found.num_experts} experts, {choices:,} choices, {sum(found.received_rows):,} rows",
        "",
        f"masked choices         {found.masked_share:.1%}; tokens without expert: {found.num_idle_tokens:,}",
        f"ranks per token        {found.mean_distinct_ranks:.3g} on average; "
        f"{_histogram(found.distinct_ranks)}",
        f"rows that stay local   {found.local_share:.1%}",
        f"rows with more experts {found.multi_hit_share:.1%}; they travel once for several experts",
        f"active experts         {_span(found.active_experts)} of "
        f"{found.num_experts // found.ep_size} per rank",
        f"imbalance, max / mean  {found.expert_imbalance:.3g} over experts, "
        f"{found.rank_imbalance:.3g} over ranks",
        "",
        "received rows per rank",
        *_bars(found.received_rows, found.rank_imbalance),
        "",
        "choices per expert",
        *_bars(found.expert_choices, found.expert_imbalance),
        "",
        *_padding(found),
    ]
    for what, drop in (("expert", found.expert_drop), ("rank", found.rank_drop)):
        if drop is not None:
            lines.append(_drop(what, drop))
    return "\n".join([*lines, *_notes(found.limits, found.notes)])


def _histogram(counts: Sequence[int]) -> str:
    return ", ".join(f"{count:,} reach {ranks}" for ranks, count in enumerate(counts) if count)


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _bars(loads: Sequence[int], imbalance: float) -> list[str]:
    """Return one line per load; of many, the busiest and the idlest."""
    most = max(loads)
    places = list(range(len(loads)))
    cut = len(places) > MAX_BARS
    if cut:
        by_load = sorted(places, key=lambda place: (-loads[place], place))
        places = by_load[: MAX_BARS // 2] + by_load[-MAX_BARS // 2 :]
    wide, digits = len(str(len(loads) - 1)), len(f"{most:,}")
    lines = []
    for at, place in enumerate(places):
        if cut and at == MAX_BARS // 2:
            lines.append(f"  ... {len(loads) - MAX_BARS} between")
        bar = "#" * (round(BAR_WIDTH * loads[place] / most) if most else 0)
        lines.append(f"  {place:>{wide}} {loads[place]:>{digits},} {bar}".rstrip())
    return lines


def _padding(found: Inspection) -> list[str]:
    rows, aligned = sum(found.expanded_rows), sum(found.aligned_rows)
    share = 1 - rows / aligned if aligned else 0.0
    text = (
        f"expanded rows {rows:,}, {aligned:,} with blocks of {found.expert_alignment}: {share:.1%} is padding"
    )
    return [f"{text}; busiest rank {max(found.aligned_rows):,}"]


def _drop(what: str, drop: Dropped) -> str:
    if drop.worst is None:
        return f"a limit of {drop.limit:,} rows per {what} drops nothing"
    worst = f"most at {what} {drop.worst}"
    return f"a limit of {drop.limit:,} rows per {what} drops {drop.num_rows:,} ({drop.share:.1%}), {worst}"


def diagnosis_text(found: Diagnosis, title: str) -> str:
    """Return a diagnosis as text.

    Args:
      found: it.
      title: what was diagnosed.
    """
    report = found.report
    lines = [f"{title}: {_verdict(found)}"]
    lines += ["", f"compared {report.num_elements:,} elements in {len(found.compared)} fields, in this order"]
    rows = [
        (c.field, str(len(c.ranks)), f"{c.num_elements:,}", f"{c.num_mismatches:,}") for c in found.compared
    ]
    if rows:
        table = plain_table(("field", "ranks", "elements", "#wrong"), rows).strip("\n")
        lines.append(_indented(table))
    lines += [f"  not compared: {name}, {reason}" for name, reason in found.not_compared.items()]
    lines += [f"  note: {note}" for note in found.notes]
    if found.place is not None:
        lines += ["", "first wrong place", *_place_lines(found.place)]
        if found.token_place is not None and found.token_place != found.place:
            lines += ["", "first wrong place that names a token", *_place_lines(found.token_place)]
        lines += ["", "in words", *(f"  {m}" for m in report.mismatches[:NUM_SHOWN])]
        if len(report.mismatches) > NUM_SHOWN:
            lines.append(f"  ... and {len(report.mismatches) - NUM_SHOWN} more located ones")
        lines += ["", "counts", *(f"  {count}" for count in report.counts)]
    return "\n".join(lines)


def _verdict(found: Diagnosis) -> str:
    """Return in one line what is wrong and where, or what the verdict rests on."""
    if found.verdict == "proved nothing":
        return f"proved nothing: {'; '.join(found.vacuous)}"
    if found.verdict == "equal":
        left_out = ", ".join(found.not_compared)
        return f"equal, but not compared: {left_out}" if left_out else "equal"
    texts = [place.text for place in (found.place, found.token_place) if place is not None]
    lost = next((m for m in found.report.mismatches if m.kind == "lost_row" and str(m) in texts), None)
    if lost is not None:
        # What came instead says more than that a row is gone.
        others = [m for m in found.report.mismatches if m.kind in ("unexpected_row", "doubled_row")]
        others = [m for m in others if (m.field, m.rank) == (lost.field, lost.rank)]
        texts += [str(m) for m in sorted(others, key=lambda m: m.index != lost.index)[:1]]
    return f"not equal; {'; '.join(dict.fromkeys(texts))}"


def diagnosis_summary(found: Diagnosis) -> dict[str, object]:
    """Return a diagnosis as plain values for JSON."""
    return {
        "verdict": found.verdict,
        "vacuous": found.vacuous,
        "place": _known(found.place),
        "token_place": _known(found.token_place),
        "compared": found.compared,
        "not_compared": dict(found.not_compared),
        "notes": found.notes,
        "report": found.report.to_dict(),
    }


def _known(place: Place | None) -> dict[str, object] | None:
    if place is None:
        return None
    known = {name: value for name, value in vars(place).items() if value is not None}
    if place.ulp is not None and place.ulp < 0:
        del known["ulp"]
    # JSON has no NaN; the text says which one it is.
    return {n: str(v) if isinstance(v, float) and not math.isfinite(v) else v for n, v in known.items()}


def _place_lines(place: Place) -> list[str]:
    names: Mapping[str, object] = {
        "field": place.field,
        "what": place.kind.replace("_", " "),
        "source rank": place.source_rank,
        "token": place.token,
        "k": place.k,
        "destination rank": place.destination_rank,
        "expert": place.expert,
        "slot": place.slot,
        "row": place.row,
        "column": place.column,
        "expected": place.expected,
        "actual": place.actual,
        "ulp apart": None if place.ulp is None or place.ulp < 0 else place.ulp,
    }
    return [f"  {name:<18}{value}" for name, value in names.items() if value is not None]
