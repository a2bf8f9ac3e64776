"""Options of the commands that simulate: the case, the platform and the level."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from epsim.cli.wholes import Whole, parse_cards

if TYPE_CHECKING:
    from epsim.schedule.grain import Grain
    from epsim.simulation import Simulation

Flag = Parameter(negative="")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """What is simulated, on what, and how."""

    level: Annotated[
        Literal["flow", "events"],
        Parameter(help="flow: links shared fairly; events: cores, jetties, ports and switches in time"),
    ] = "events"
    system: Annotated[str, Parameter(help="preset (ubl128, clos:1024), cluster .toml, HCCL .json")] = "ubl128"
    model: Annotated[str, Parameter(help="shape: benchmark, v3, v4-flash, v4-pro, v4.1-flash")] = "benchmark"
    ep: Annotated[str, Parameter(help="group sizes, separated by commas")] = "8"
    tokens: Annotated[
        int | None, Whole, Parameter(help="tokens per rank; without: 16384, or a file's own")
    ] = None
    stepped: Annotated[
        bool, Flag, Parameter(help="rank r sends r tokens fewer, as the published tests do")
    ] = False
    op: Annotated[str, Parameter(help="dispatch, cached-dispatch, combine, separated by commas")] = (
        "dispatch,combine"
    )
    dtype: Annotated[Literal["fp8", "bf16"], Parameter(help="of dispatch; combine is always bf16")] = "fp8"
    hidden: Annotated[int | None, Whole, Parameter(help="elements of a token, instead of the model's")] = None
    experts: Annotated[int | None, Whole, Parameter(help="physical experts, instead of the model's")] = None
    topk: Annotated[int | None, Whole, Parameter(help="choices of a token, instead of the model's")] = None
    routing: Annotated[str, Parameter(help="uniform, zipf:1.1, lognormal:0.5, ..., or a file")] = "uniform"
    seed: Annotated[
        int | None, Whole, Parameter(help="of sampled routing and of the flow hash; without: 0")
    ] = None
    masked_ratio: Annotated[float, Parameter(help="chance that a choice is masked")] = 0.0
    policy: Annotated[
        Literal["spray", "flow-hash", "pinned"], Parameter(help="path choice: per packet, per flow, per peer")
    ] = "spray"
    no_slope: Annotated[
        bool, Flag, Parameter(help="without the software's fitted fan-out loss: mechanism alone")
    ] = False
    grain: Annotated[
        str, Parameter(help="events: packet, sqe (one descriptor), chunk (chosen), chunk:N descriptors")
    ] = "chunk"
    mode: Annotated[
        Literal["auto", "exact", "bounded"],
        Parameter(help="flow: exact, or faster with a bounded error; auto: exact up to 65,536 flows"),
    ] = "auto"
    epsilon: Annotated[float, Parameter(help="flow, bounded: step as a part of the elapsed time")] = 0.01
    hardware: Annotated[str | None, Parameter(help="profile name or .toml file")] = None
    software: Annotated[str | None, Parameter(help="profile name or .toml file")] = None
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="NAME=VALUE, replaces one profile number")
    ] = None
    npus: Annotated[
        str | None, Parameter(help="card of each rank, as 0,8,16 or 0:128:16; without: rank r on card r")
    ] = None
    port_rate: Annotated[str | None, Parameter(help="rate of one port, for HCCL files")] = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Group sizes."""
        from epsim.cli.predict import parse_numbers

        return parse_numbers("ep", self.ep)

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations."""
        return tuple(word.strip() for word in self.op.split(","))

    def check(self, *, has_jitter: bool = False) -> None:
        """Refuse options that would be ignored, before any work.

        Args:
          has_jitter: a fault that draws is added.
        """
        from epsim.errors import InputError
        from epsim.inputs.counting import is_table
        from epsim.simulation import check_level

        check_level(self.level, self.grain, self.mode)
        if self.mode != "bounded" and self.epsilon != CaseOptions.epsilon:
            raise InputError("epsilon", self.epsilon, "belongs to --level flow --mode bounded")
        draws = has_jitter or self.policy == "flow-hash" or not is_table(self.routing)
        if self.seed is not None and not draws:
            raise InputError("seed", self.seed, "goes with a law or a histogram, or with --policy flow-hash")

    def arguments(self, grain: "Grain | None" = None, **events: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return the keywords of `epsim.simulate`.

        Args:
          grain: instead of the option's.
          events: further fields of `EventOptions`.
        """
        from epsim.cli.predict import parse_settings
        from epsim.schedule.grain import Grain
        from epsim.sim.run import EventOptions
        from epsim.simulate import FlowOptions

        return {
            "system": self.system, "level": self.level, "model": self.model, "ep": self.sizes,
            "tokens": self.tokens, "token_counts": "stepped" if self.stepped else "equal",
            "operations": self.operations, "dtype": self.dtype, "hidden": self.hidden,
            "num_experts": self.experts, "num_topk": self.topk, "routing": self.routing,
            "seed": self.seed or 0, "masked_ratio": self.masked_ratio,
            "policy": self.policy, "with_slope": not self.no_slope,
            "hardware": self.hardware, "software": self.software, "settings": parse_settings(self.settings),
            "port_rate": self.port_rate,
            "npus": None if self.npus is None else parse_cards("npus", self.npus),
            "flow": FlowOptions(mode=self.mode, epsilon=self.epsilon),
            "events": EventOptions(grain=grain or Grain.parse(self.grain), **events),
        }  # fmt: skip


def check_pictures(level: str, **paths: tuple[Path | None, tuple[str, ...]]) -> None:
    """Refuse files of unknown kind, or that cannot be written, before any work.

    Args:
      level: only events have a timeline.
      paths: option -> file and suffixes that it may have.
    """
    from epsim.errors import InputError
    from epsim.files import check_outputs

    for name, (path, suffixes) in paths.items():
        if path is None:
            continue
        field = name.replace("_", "-")
        if level == "flow":
            raise InputError(field, str(path), "belongs to --level events")
        if path.suffix not in suffixes:
            raise InputError(field, str(path), f"must end in {' or '.join(suffixes)}")
    check_outputs([path for path, _ in paths.values()])


def check_one_trace(options: CaseOptions, **paths: Path | None) -> None:
    """Refuse a timeline of several runs.

    Args:
      options: the case.
      paths: option -> file.
    """
    from epsim.errors import InputError

    for name, path in paths.items():
        field = name.replace("_", "-")
        if path is not None and len(options.sizes) * len(options.operations) != 1:
            rule = "a timeline shows one run; name one group size and one operation"
            raise InputError(field, str(path), rule)


def trace_file(item: "Simulation", path: Path) -> tuple[Path, str]:
    """Return the timeline of a run as the file that a path's suffix asks for."""
    from epsim.cli.timeline import timeline

    assert item.trace is not None
    return path, timeline(item.trace, path)
