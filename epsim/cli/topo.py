"""`epsim topo`: look at networks, check them, convert and draw them.

Nothing heavy is imported before a command runs: `epsim --help` reads this file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.platform.systems import System
    from topology.summary import LayerSummary

Format = Literal["toml", "topo", "ranktable"]

app = App(
    name="topo",
    help="""Look at networks: list, show, check, convert, draw.

    A SYSTEM is a preset (`ubl128`, `clos:4096`, `mesh8`; see `epsim topo list`), your own cluster file
    (`lab.toml`), or HCCL files: a rank table or a topo JSON (`.json`).""",
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HcclOptions:
    """What goes with HCCL files only; presets and cluster files say it themselves."""

    topo_file: Annotated[
        Path | None, Parameter(help="topo JSON of a rank table; else the one that it names")
    ] = None
    rank_table: Annotated[Path | None, Parameter(help="rank table to go with a topo JSON")] = None
    port_rate: Annotated[
        str | None, Parameter(help="rate of one port, as 400Gbps (HCCL files have none)")
    ] = None
    switch_hop: Annotated[str | None, Parameter(help="time through a switch, as 200ns")] = None
    cable: Annotated[str | None, Parameter(help="time along a cable, as 50ns")] = None


SystemArgument = Annotated[str, Parameter(help="preset, cluster file (.toml) or HCCL file (.json)")]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="", help="print JSON for programs")]
Limit = Annotated[int, Whole, Parameter(help="findings to print per rule")]
DrawTarget = Annotated[Path, Parameter(help="file to write, ends in .svg or .dot")]
Hccl = Annotated[HcclOptions | None, Parameter(help="HCCL files")]


@app.command(name="list")
def list_presets(*, json: JsonFlag = False) -> None:
    """List the systems that are known by name.

    A number of cards may follow a name: `ubl128:64`, `clos:262144`.
    """
    from epsim.platform.systems import PRESETS

    if json:
        _print_json([{"name": p.name, "num_npus": p.num_npus, "help": p.help} for p in PRESETS.values()])
        return
    rows = [
        (p.name + ("[:N]" if p.takes_number else ""), f"{p.num_npus:,}", p.help) for p in PRESETS.values()
    ]
    _print_table(("system", "cards", "what it is"), rows)


@app.command
def show(system: SystemArgument, /, *, hccl: Hccl = None, json: JsonFlag = False) -> None:
    """Show a network in figures, per netlayer, with the source of each.

    - `epsim topo show ubl128`
    - `epsim topo show clos:262144 --json`
    - `epsim topo show rank_table.json --topo-file topo.json --port-rate 400Gbps`
    """
    from topology.summary import summarize

    loaded = _load(system, hccl)
    summary = summarize(loaded.topology)
    if json:
        import msgspec

        facts = msgspec.to_builtins(summary)
        _print_json(
            {"system": system, "kind": loaded.kind, "num_switches": loaded.topology.num_switches} | facts
        )
        return
    topology = loaded.topology
    print(f"{summary.name} ({loaded.kind})")
    print(
        f"{summary.num_npus:,} cards in servers of {summary.server_size} and supernodes of "
        f"{summary.supernode_size}, {topology.num_switches:,} switches, {topology.num_links:,} links\n"
    )
    if summary.layers:
        columns = ("per direction", *(f"netlayer {layer.netlayer}" for layer in summary.layers))
        facts_by_layer = [_layer_facts(layer) for layer in summary.layers]
        _print_table(columns, [(key, *(facts[key] for facts in facts_by_layer)) for key in facts_by_layer[0]])
    _print_sources(summary.layers)


@app.command
def check(system: SystemArgument, /, *, hccl: Hccl = None, limit: Limit = 8, json: JsonFlag = False) -> int:
    """Check a network: missing planes, odd cables, unreachable cards, suspicious tables.

    Exit code 1 when there is an error; warnings alone give 0.

    - `epsim topo check lab.toml`
    - `epsim topo check rank_table.json --topo-file topo.json`
    """
    from epsim.errors import InputError

    if limit < 1:
        raise InputError("limit", limit, "must be at least 1")
    findings = _load(system, hccl).findings(limit)
    errors = sum(finding.severity == "error" for finding in findings)
    if json:
        rows = [{"severity": f.severity, "rule": f.rule, "message": f.message} for f in findings]
        _print_json({"system": system, "errors": errors, "warnings": len(rows) - errors, "findings": rows})
    else:
        for finding in findings:
            print(finding)
        verdict = "FAILED" if errors else "OK"
        print(f"{system}: {verdict}, {errors} errors, {len(findings) - errors} warnings")
    return int(errors > 0)


@app.command
def convert(
    system: SystemArgument,
    out: Annotated[
        Path, Parameter(help='file to write: .toml, or .json with "rank" or "topo" in its name (or see --to)')
    ],
    /,
    *,
    to: Annotated[Format | None, Parameter(help="format to write, whatever the name is")] = None,
    topo_out: Annotated[
        Path | None, Parameter(help="with a rank table: also write its topo file, and name it in the table")
    ] = None,
    hccl: Hccl = None,
    json: JsonFlag = False,
) -> None:
    """Convert between cluster files, topo JSON and rank tables.

    HCCL files carry no rates or latencies, and know a switched network only as one switch per plane;
    a file that keeps its format keeps every field, also unknown ones.

    - `epsim topo convert ubl128 ranktable.json --topo-out topo.json`
    - `epsim topo convert rank_table.json lab.toml --topo-file topo.json --port-rate 400Gbps`
    """
    from epsim.files import check_outputs

    target = to or _format_of(out)
    if topo_out is not None and target != "ranktable":
        from epsim.errors import InputError

        raise InputError("topo-out", str(topo_out), "goes with a rank table only")
    check_outputs([out, topo_out])
    texts = _converted(_load(system, hccl), target, out, topo_out)
    _write(texts, json)


@app.command
def draw(system: SystemArgument, /, *, out: DrawTarget, hccl: Hccl = None, json: JsonFlag = False) -> None:
    """Draw a network as SVG or in the DOT language.

    Systems of any size fit a page: beyond 16 cards, servers or supernodes are boxes.

    - `epsim topo draw ubl128 --out ubl128.svg`
    - `epsim topo draw clos:8192 --out pod.dot`
    """
    from epsim.errors import InputError
    from epsim.files import check_outputs
    from topology.draw import to_dot, to_svg

    writers: dict[str, Callable[[Any], str]] = {".svg": to_svg, ".dot": to_dot, ".gv": to_dot}
    if out.suffix.lower() not in writers:
        raise InputError("out", str(out), "must end in .svg or .dot")
    check_outputs([out])
    _write([(out, writers[out.suffix.lower()](_load(system, hccl).topology))], json)


def _load(system: str, hccl: HcclOptions | None) -> "System":
    from epsim.platform.systems import load_system
    from topology.hccl_graph import FabricRates

    options = hccl or HcclOptions()
    names = ("port_rate", "switch_hop", "cable")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    rates = FabricRates(**given) if given else None
    return load_system(system, topo_path=options.topo_file, table_path=options.rank_table, rates=rates)


def _format_of(out: Path) -> Format:
    from epsim.errors import InputError

    if out.suffix == ".toml":
        return "toml"
    is_table, is_topo = "rank" in out.name.lower(), "topo" in out.name.lower()
    if out.suffix == ".json" and is_table != is_topo:
        return "ranktable" if is_table else "topo"
    raise InputError("output file", str(out), "does not tell its format; add --to toml, topo or ranktable")


def _converted(system: "System", target: Format, out: Path, topo_out: Path | None) -> list[tuple[Path, str]]:
    """Make all texts before any is written."""
    from topology.cluster import to_toml
    from topology.hccl_files import hccl_from_topology
    from topology.listing import list_links

    if target == "toml":
        return [(out, to_toml(system.config or list_links(system.topology)))]
    if target == "topo" and system.topo is not None:
        return [(out, system.topo.to_json())]
    if target == "ranktable" and system.table is not None and topo_out is None:
        return [(out, system.table.to_json())]
    named = None if topo_out is None else _relative(topo_out, out.parent)
    topo, table = hccl_from_topology(system.topology, named)
    if target == "topo":
        return [(out, topo.to_json())]
    texts = [(out, table.to_json())]
    return texts if topo_out is None else [(topo_out, topo.to_json()), *texts]


def _relative(path: Path, start: Path) -> str:
    import os

    return os.path.relpath(path, start)


def _write(texts: list[tuple[Path, str]], json: bool) -> None:
    from epsim.files import write_files

    write_files(texts)
    if json:
        _print_json({"written": [str(path) for path, _ in texts]})
    else:
        print("\n".join(f"wrote {path}" for path, _ in texts))


def _layer_facts(layer: "LayerSummary") -> dict[str, str]:
    from topology.graph import NETLAYER_NAMES
    from topology.units import format_rate, format_time

    over = ", ".join(f"{ratio:g}:1" for ratio in layer.oversubscription)
    return {
        "what": NETLAYER_NAMES.get(layer.netlayer, "wider network"),
        "cards": f"{layer.num_npus:,}",
        "cards that reach each other": f"{layer.domain_size:,}",
        "planes": str(layer.num_planes),
        "ports per card": _span(layer.ports_per_npu_min, layer.ports_per_npu_max, str),
        "rate per card": _span(layer.npu_bytes_per_s_min, layer.npu_bytes_per_s_max, format_rate),
        "links on a path": _span(layer.num_hops_min, layer.num_hops_max, str),
        "one-way latency": _span(layer.latency_ps_min, layer.latency_ps_max, format_time),
        "oversubscription": over or "none",
    }


def _span(low: int, high: int, text: Callable[[int], str]) -> str:
    return text(low) if low == high else f"{text(low)} to {text(high)}"


def _print_sources(layers: "tuple[LayerSummary, ...]") -> None:
    from topology.units import format_rate, format_time

    print("\nwhere the numbers come from")
    for layer in layers:
        names: dict[tuple[str, str, str], list[str]] = {}
        for c in layer.classes:
            speed = f"{format_rate(c.bandwidth_bytes_per_s)}, {format_time(c.latency_ps)}"
            names.setdefault((speed, c.source.kind, c.source.text), []).append(c.name)
        for (speed, kind, text), same in names.items():
            print(f"  netlayer {layer.netlayer} {', '.join(same)} ({speed}): {kind}")
            for part in text.split("; "):
                print(f"    {part}")


def _print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    # No markup: "[:N]" is text, not a style.
    Console(markup=False, highlight=False).print(table)


def _print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2))
