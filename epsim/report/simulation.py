"""Simulated operations as tables for people and JSON for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epsim.report.prediction import render_table
from epsim.simulation import Simulation

if TYPE_CHECKING:
    from rich.table import Table


def simulations_text(items: Sequence[Simulation]) -> str:
    """Return times and bandwidths, the busiest ports, and what they rest on, as plain text."""
    if not items:
        return "no simulations"
    parts = [_header(items[0]), render_table(_times(items)), render_table(_ports(items))]
    return "\n".join([*parts, *_notes(items)])


def simulations_json(items: Sequence[Simulation]) -> str:
    """Return everything but traces as JSON text; NaN and Inf become null."""
    import msgspec

    return msgspec.json.format(
        msgspec.json.encode([dict(item.to_dict()) for item in items]), indent=2
    ).decode()


def _header(first: Simulation) -> str:
    return (
        f"{first.system}, {first.hardware} with {first.software}: {first.tokens_per_rank:,} tokens per rank, "
        f"hidden {first.hidden}, top-{first.num_topk} of {first.num_experts}, {first.routing}"
    )


def _table(title: str, columns: Sequence[tuple[str, bool]]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title, title_justify="left"
    )
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    return table


def _times(items: Sequence[Simulation]) -> "Table":
    columns = [
        ("level", False), ("operation", False), ("EP", True), ("min", True), ("mean", True), ("max", True),
        ("time\nus", True), ("first\nbyte us", True), ("busiest\nlink us", True), ("closed\nform us", True),
        ("epilogue\nus", True), ("held up by", False),
    ]  # fmt: skip
    table = _table("logical GB/s per rank, own rank included", columns)
    for item in items:
        bandwidths = (item.gb_per_s_min, item.gb_per_s_mean, item.gb_per_s_max)
        table.add_row(
            item.level, f"{item.operation} {item.dtype.upper()}", str(item.ep_size),
            *(f"{value:.4g}" if value < 100 else f"{value:.1f}" for value in bandwidths),
            f"{item.time_us:,.1f}", f"{float(item.ranks.first_byte_us.max(initial=0.0)):,.1f}",
            f"{item.bound_us:,.1f}", f"{item.predicted_us:,.1f}", f"{item.epilogue_us:,.0f}", item.binding,
        )  # fmt: skip
    return table


def _ports(items: Sequence[Simulation], most: int = 3) -> "Table":
    table = _table("busiest ports", [("level", False), ("operation", False), ("EP", True), ("busy", True),
                                     ("GB", True), ("port", False)])  # fmt: skip
    for item in items:
        for port in item.ports[:most]:
            table.add_row(
                item.level, item.operation, str(item.ep_size), f"{port.busy:.1%}", f"{port.gbytes:.4g}",
                port.name,
            )  # fmt: skip
    return table


def _notes(items: Sequence[Simulation]) -> list[str]:
    lines = []
    for item in items:
        lines += [f"fault: {fault}" for fault in item.faults]
    lines.append("busiest link: what it needs for its bytes alone; no schedule is faster")
    lines.append("closed form: what epsim predict says to the same rows on the healthy system")
    if any((item.level, item.operation) == ("flow", "combine") for item in items):
        lines.append("first byte, flow: combine's sums all come before it; events send while they still sum")
    for item in items:
        lines.append(
            f"{item.level}, {item.operation} EP{item.ep_size}: {item.wire_gb_per_s:.4g} GB/s on the wire "
            f"of an average card, {item.policy}, {item.method}"
        )
    lines += [f"assumes: {text}" for item in items for text in item.assumptions]
    return list(dict.fromkeys(lines))
