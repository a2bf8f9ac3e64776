"""`epsim workload`: other traffic on the same machine: collectives, pipelines, Engram, hybrid exchange."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.schedule.workloads import Value

Flag = Parameter(negative="")


def workload(
    name: Annotated[str | None, Parameter(help="which one; without a name they are listed")] = None,
    *,
    system: Annotated[
        str | None, Parameter(help="preset (clos:1024), cluster .toml, HCCL .json; without: ubl128")
    ] = None,
    ranks: Annotated[int | None, Whole, Parameter(help="cards that take part; without: 8")] = None,
    values: Annotated[
        list[str] | None,
        Parameter(name="--with", negative="", help="NAME=VALUE, a parameter of the workload, as size=1GiB"),
    ] = None,
    policy: Annotated[
        Literal["spray", "flow-hash", "pinned"] | None, Parameter(help="path choice; without: spray")
    ] = None,
    seed: Annotated[int | None, Whole, Parameter(help="of --policy flow-hash; without: 0")] = None,
    chunk: Annotated[
        str | None, Parameter(help="bytes that an engine takes at once, as 256KiB; without: chosen")
    ] = None,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="NAME=VALUE, replaces one profile number")
    ] = None,
    trace: Annotated[
        Path | None, Parameter(help="write the timeline: .json opens in Perfetto, .html in a browser")
    ] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """Simulate other traffic than dispatch and combine on the same cards, ports and switches.

    - `epsim workload` lists what there is, with all parameters
    - `epsim workload all-reduce --ranks 16 --with size=1GiB --with algorithm=ring`
    - `epsim workload hybrid-dispatch --system clos:256 --ranks 256 --with pod_size=128 --with tokens=1024`
    - `epsim workload pp --ranks 4 --with microbatches=16 --trace pipeline.html`
    """
    from epsim.errors import InputError
    from epsim.report.workload import catalogue_text, run_json, run_text

    if name is None:
        options = (system, ranks, values, policy, seed, chunk, settings, trace, json or None)
        if any(option is not None for option in options):
            raise InputError("name", "not given", "options go with a workload; without both they are listed")
        print(catalogue_text())
        return
    if trace is not None and trace.suffix not in (".json", ".html"):
        raise InputError("trace", str(trace), "must end in .json or .html")
    if seed is not None and seed >= 0 and policy != "flow-hash":
        raise InputError("seed", seed, "goes with --policy flow-hash; a workload's own is --with seed=9")
    from epsim.cli.predict import parse_settings
    from epsim.files import check_outputs, write_files
    from epsim.platform.machine import make_machine
    from epsim.platform.platform import make_platform
    from epsim.schedule.transfers import whole
    from epsim.schedule.workloads import check_fit, make_workload, read_values
    from epsim.sim.transfers import TransferOptions, run_transfers
    from topology.units import parse_size

    check_outputs([trace])
    platform = make_platform("ubl128" if system is None else system, settings=parse_settings(settings))
    ranks, given = 8 if ranks is None else ranks, _values(values)
    machine = make_machine(platform, ranks, "none")
    topology = machine.topology
    domain = topology.npu_server if platform.network.is_mesh else topology.npu_supernode
    check_fit(read_values(name, given), domain[machine.npus], int(platform.hardware.num_aivs.value))
    transfers = make_workload(name, ranks, given)
    choices = TransferOptions(
        chunk_bytes=0 if chunk is None else parse_size(chunk, "chunk"),
        policy=policy or "spray", seed=whole("seed", 0 if seed is None else seed, 0),
        packet_bytes=int(platform.hardware.packet_payload.value), with_trace=trace is not None,
    )  # fmt: skip
    run = run_transfers(machine, transfers, choices)
    if trace is not None and run.trace is not None:
        from epsim.cli.timeline import timeline

        write_files([(trace, timeline(run.trace, trace))])
    if json:
        print(run_json(name, ranks, platform, transfers, run))
        return
    print(run_text(name, ranks, platform, transfers, run))
    if trace is not None:
        print(f"wrote {trace}")


def _values(words: list[str] | None) -> "dict[str, Value]":
    """Read NAME=VALUE words; yes and no are flags."""
    from epsim.errors import InputError

    found: dict[str, Value] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise InputError("with", word, "must have the form NAME=VALUE")
        if name in found:
            raise InputError("with", word, f"gives {name} a second time")
        found[name] = {"yes": True, "no": False}.get(value, value)
    return found
