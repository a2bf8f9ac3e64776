"""Before and after as tables, a list of faults by damage, and a stuck run as a report."""

import io
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from epsim.report.prediction import render_table
from epsim.whatif import Change, Damage

if TYPE_CHECKING:
    from rich.table import Table

    from epsim.sim.clock import StuckError

MOST_RANKS = 5
MOST_LINES = 20
HELD_US = 0.1
"""What the tables print as something."""


def changes_text(changes: Sequence[Change]) -> str:
    """Return what changes, in which term, for which ranks, and why, as plain text."""
    first = changes[0].before
    header = (
        f"{first.system}, {first.hardware} with {first.software}: {first.tokens_per_rank:,} tokens per rank, "
        f"hidden {first.hidden}, top-{first.num_topk} of {first.num_experts}, {first.routing}"
    )
    tables = [_times(changes), _terms(changes), _ranks(changes)]
    return "\n".join([header, *(render_table(table) for table in tables), *_notes(changes)])


def damages_text(damages: Sequence[Damage], most: int = MOST_LINES) -> str:
    """Return the faults that hurt most, the worst first."""
    operations = [change.after.operation for change in damages[0].changes] if damages else []
    for damage in damages:
        operations = operations or [change.after.operation for change in damage.changes]
    table = _table("", [("fault", False), *((name, True) for name in operations), ("explained by", False)])
    for damage in damages[:most]:
        if damage.changes:
            worst = max(damage.changes, key=lambda change: change.time_change)
            cells = [f"{change.time_change:+.2%}" for change in damage.changes]
            table.add_row(str(damage.fault), *cells, worst.explained_by)
        else:
            table.add_row(str(damage.fault), *["no end"] * len(operations), damage.refusal)
    rest = f"\nand {len(damages) - most} more" if len(damages) > most else ""
    return f"{len(damages)} faults tried, the worst first; growth of the time\n{render_table(table)}{rest}"


def stuck_text(error: "StuckError") -> str:
    """Return who waits for what, those that wait for the same together."""
    groups: dict[str, list[str]] = defaultdict(list)
    alone = []
    for line in error.blocked:
        who, waits, what = line.partition(" waits for ")
        if waits and "bytes" not in who:
            groups[what].append(who)
        else:
            alone.append(line)
    lines = [f"{_listed(who)} wait{'s' if len(who) == 1 else ''} for {what}" for what, who in groups.items()]
    lines += alone
    more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    when = f"{error.now_ps / 1e6:,.1f} us"
    head = f"stuck: after {when} nothing can happen any more, and {error.goal} has not come"
    return "\n  ".join([head, *lines[:MOST_LINES], *more])


def ranks_plot(changes: Sequence[Change], suffix: str) -> bytes:
    """Draw when each rank has sent and received everything, before and after, a panel per operation.

    Args:
      changes: one or more.
      suffix: png or svg.

    Returns:
      the file; equal changes give equal bytes.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6 * len(changes) + 0.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(changes), 1))
    for axes, change in zip(panels, changes, strict=True):
        rank = np.arange(change.before.ep_size)
        for shift, run, colour, label in (
            (-0.2, change.before, "#4477aa", "healthy"), (0.2, change.after, "#ee6677", "faulty"),
        ):  # fmt: skip
            axes.bar(rank + shift, run.ranks.finish_us, 0.4, color=colour, label=label)
        axes.set_title(f"{change.after.operation} EP{change.after.ep_size}, {change.after.level}", fontsize=9)
        axes.set_xlabel("rank")
        axes.set_ylabel("last byte, us")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle("; ".join(str(fault) for fault in changes[0].faults), fontsize=10)
    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "epsim"}):
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        figure.savefig(data, format=suffix, dpi=120, metadata=metadata)
    return data.getvalue()


def _table(title: str, columns: Sequence[tuple[str, bool]]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title or None, title_justify="left"
    )
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    return table


def _times(changes: Sequence[Change]) -> "Table":
    table = _table("logical GB/s per rank (mean), own rank included", [
        ("level", False), ("operation", False), ("EP", True), ("healthy\nus", True), ("faulty\nus", True),
        ("change", True), ("by arith-\nmetic us", True), ("healthy\nGB/s", True), ("faulty\nGB/s", True),
        ("change", True),
    ])  # fmt: skip
    for change in changes:
        before, after = change.before, change.after
        sums = change.by_arithmetic_us
        table.add_row(
            after.level, f"{after.operation} {after.dtype.upper()}", str(after.ep_size),
            f"{before.time_us:,.1f}", f"{after.time_us:,.1f}", f"{change.time_change:+.1%}",
            "-" if sums is None else f"{sums:,.1f}",
            f"{before.gb_per_s_mean:.1f}", f"{after.gb_per_s_mean:.1f}", f"{change.rate_change:+.1%}",
        )  # fmt: skip
    return table


def _terms(changes: Sequence[Change]) -> "Table":
    table = _table("where the time goes", [
        ("operation", False), ("EP", True), ("term", False), ("healthy\nus", True), ("faulty\nus", True),
        ("more\nus", True),
    ])  # fmt: skip
    for change in changes:
        for name, before, after in change.terms:
            table.add_row(
                change.after.operation, str(change.after.ep_size), name, f"{before:,.1f}", f"{after:,.1f}",
                f"{round(after - before, 1) + 0.0:+,.1f}",
            )  # fmt: skip
    return table


def _ranks(changes: Sequence[Change]) -> "Table":
    table = _table("ranks whose last byte moves most", [
        ("operation", False), ("EP", True), ("rank", True), ("healthy\nus", True), ("faulty\nus", True),
        ("later\nus", True),
    ])  # fmt: skip
    for change in changes:
        later = change.finish_change_us
        for rank in np.argsort(-np.abs(later), kind="stable")[:MOST_RANKS].tolist():
            table.add_row(
                change.after.operation, str(change.after.ep_size), str(rank),
                f"{change.before.ranks.finish_us[rank]:,.1f}", f"{change.after.ranks.finish_us[rank]:,.1f}",
                f"{round(later[rank], 1) + 0.0:+,.1f}",
            )  # fmt: skip
    return table


def _notes(changes: Sequence[Change]) -> list[str]:
    lines = [f"fault {fault}: {fault.meaning}" for fault in changes[0].faults]
    pairs = zip(changes[0].faults, changes[0].sums, strict=True)
    lines += [f"arithmetic, {fault}: {item.text}" for fault, item in pairs]
    lines += [f"the check of the cabling finds {finding}" for finding in changes[0].findings]
    for change in changes:
        name = f"{change.after.operation} EP{change.after.ep_size}"
        term = change.explained_by
        lines.append(f"{name}: most of it is {term}" if term else f"{name}: nothing changes")
        lines.append(f"{name}: held up by {change.before.binding} before, by {change.after.binding} after")
    lines += [line for change in changes if (line := _held(change))]
    lines.append("by arithmetic: the healthy time over the part of the rate that is left, plus delays")
    return lines


def _held(change: Change) -> str:
    """Say what waiting for room adds, which a fluid has not; empty when it is below the table's digits."""
    later = change.held_change_us
    rank = int(later.argmax())
    if later[rank] < HELD_US:
        return ""
    return (
        f"{change.after.operation} EP{change.after.ep_size}: the engine of rank {rank} waits "
        f"{later[rank]:,.1f} us more for room, as ranks out of step meet at one receiver; flow level and "
        "arithmetic have no queues, so they may say less"
    )


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
