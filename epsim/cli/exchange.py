"""`epsim exchange`: the same case in other simulators, and their results beside ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from epsim.cli.routing import GroupOptions, JsonFlag, RoutingText, print_json
from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.exchange.case import ExchangeCase, Imported
    from epsim.exchange.compare import Row
    from epsim.exchange.folder import CaseRecord

app = App(
    name="exchange",
    help="""Give the same case to other simulators, and put their results beside ours.

    ns-3-UB and htsim are packet simulators, SimGrid is a fluid one, and ASTRA-sim reads Chakra traces.""",
)

PolicyOption = Annotated[
    Literal["spray", "flow-hash", "pinned"], Parameter(help="how packets choose among equal paths")
]


@app.command
def export(
    folder: Annotated[Path, Parameter(help="new folder to write")],
    /,
    *,
    to: Annotated[Literal["ns-3-ub", "htsim", "chakra", "simgrid"], Parameter(help="whose format")],
    system: Annotated[
        str, Parameter(help="preset (ubl128, leaf-spine), cluster .toml or HCCL .json")
    ] = "ubl128",
    routing: RoutingText = "uniform",
    op: Annotated[Literal["dispatch", "combine"], Parameter(help="which way rows travel")] = "dispatch",
    dtype: Annotated[Literal["fp8", "bf16"], Parameter(help="of dispatch; combine is always bf16")] = "fp8",
    policy: PolicyOption = "spray",
    path_seed: Annotated[int | None, Whole, Parameter(help="of flow-hash; without: 0")] = None,
    group: Annotated[GroupOptions | None, Parameter(help="group")] = None,
) -> None:
    """Write one dispatch or combine for another simulator; rank r sits on card r.

    - `epsim exchange export case/ --to ns-3-ub --ep 16 --tokens 128`
    - `epsim exchange export case/ --to htsim --system leaf-spine --ep 128 --tokens 128 --routing zipf:0.5`
    """
    import msgspec

    from epsim.exchange.folder import (
        RECORD_FILE,
        check_folder,
        check_path_seed,
        files_for,
        record_of,
        write_folder,
    )

    check_path_seed(policy, path_seed)
    check_folder(folder)
    seed = path_seed or 0
    case = _case(folder, system, routing, op, dtype, group or GroupOptions())
    files = dict(files_for(case, to, policy=policy, seed=seed))
    record = record_of(case, simulator=to, system=system, policy=policy, seed=seed)
    files[RECORD_FILE] = msgspec.json.encode(record)
    write_folder(folder, files)
    total = int(case.transfers().num_bytes.sum())
    print(f"wrote {folder}: {len(case.transfers()):,} transfers, {total:,} bytes, {len(files)} files")


@app.command(name="import")
def import_results(
    folder: Annotated[Path, Parameter(help="folder that export wrote")],
    results: Annotated[
        Path | None, Parameter(help="what the simulator wrote; without: where ns-3-UB puts it, or the traces")
    ] = None,
    /,
    *,
    transport: Annotated[str | None, Parameter(help="what the run used, for the table")] = None,
    json: JsonFlag = False,
) -> None:
    """Read results and compare their makespan with ours; the folder of a case says which case it was.

    - `epsim exchange import case/`
    - `epsim exchange import case/ htsim.log --transport "RoCE, ECMP"`

    Our times are those of the lines alone: no headers or software, and latency only in the events.
    """
    from epsim.errors import InputError
    from epsim.exchange.compare import EVENTS, compare, events_makespan, our_makespans
    from epsim.exchange.folder import read_record
    from epsim.platform.systems import load_system

    record = read_record(folder)
    case = record.case(load_system(record.system).topology)
    imported = _imported(folder, results, record, case, transport)
    ours = our_makespans(case, record.policy, seed=record.seed)
    missing = ""
    try:
        if (time_ps := events_makespan(case, record.policy, seed=record.seed)) is not None:
            ours[EVENTS] = time_ps
    except InputError as error:
        missing = f"no events: {error}"
    rows = compare(ours, imported)
    if json:
        print_json(rows)
        return
    print(_table(case.name, rows))
    if missing:
        print(missing)
    if record.simulator == "chakra":
        print("the traces send and receive the bytes of the case; they have no times")


def _case(
    folder: Path, system: str, routing: str, op: str, dtype: Literal["fp8", "bf16"], group: GroupOptions
) -> "ExchangeCase":
    """Return the case that options describe."""
    import numpy as np

    from epsim.errors import InputError
    from epsim.exchange.case import ExchangeCase
    from epsim.platform.systems import load_system
    from reference.memory.sizes import row_bytes
    from reference.plan import count_rows

    topology = load_system(system).topology
    routed = group.load(routing)
    config = routed.config
    if config.ep_size > topology.num_npus:
        raise InputError("ep", config.ep_size, f"must not exceed the {topology.num_npus} cards of {system}")
    rows = count_rows(config, routed.topk).rows
    sizes = row_bytes(config, dtype=dtype)
    is_dispatch = op == "dispatch"
    matrix = rows * sizes.dispatch_wire_bytes if is_dispatch else rows.T * sizes.combine_wire_bytes
    np.fill_diagonal(matrix, 0)
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in folder.name) or "case"
    return ExchangeCase(
        name=name, topology=topology, npus=np.arange(config.ep_size), bytes_matrix=matrix.astype(np.int64)
    )


def _imported(
    folder: Path, results: Path | None, record: "CaseRecord", case: "ExchangeCase", transport: str | None
) -> "list[Imported]":
    """Read the results of the simulator that the folder was written for."""
    from epsim.errors import InputError
    from epsim.exchange.folder import read_text

    if record.simulator == "chakra":
        from epsim.exchange.chakra import check_chakra, read_chakra
        from epsim.exchange.folder import read_bytes

        place = results or folder
        traces = [read_bytes(place / f"{case.name}.{rank}.et") for rank in range(case.num_ranks)]
        check_chakra(case, read_chakra(traces, name=str(place)))
        return []
    if record.simulator == "ns-3-ub":
        from epsim.exchange.ns3ub import RESULTS_FILE, read_task_statistics

        path = results or folder / RESULTS_FILE
        used = transport or f"URMA write, {record.policy}"
        return [read_task_statistics(case, read_text(path), file=path.name, transport=used)]
    if results is None:
        raise InputError("results", "not given", f"must name what {record.simulator} printed")
    if record.simulator == "htsim":
        from epsim.exchange.htsim import check_connection_matrix, read_log

        matrix = folder / f"{case.name}.cm"
        check_connection_matrix(case, read_text(matrix), file=matrix.name)
        return [read_log(case, read_text(results), file=results.name, transport=transport)]
    from epsim.exchange.simgrid import read_simgrid

    return [read_simgrid(case, read_text(results), file=results.name)]


def _table(name: str, rows: "list[Row]") -> str:
    """Return the comparison for people."""
    cells = [("simulator", "model", "makespan", "gap")]
    cells += [(r.simulator, r.model, f"{r.makespan_ps / 1e6:,.3f} us", f"{r.gap:+.2%}") for r in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
        for a, b, c, d in cells
    ]
    return "\n".join([f"case {name}", *lines])
