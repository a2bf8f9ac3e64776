"""Why the bandwidth falls beyond EP32: hypotheses on the event simulator, with no fan-out parameter.

    python examples/fan_out.py [--quick] [--jobs N] [--plot DIR]

Prints the tables of docs/fan-out.md. Full cards run without any mechanism at the automatic grain. A mechanism
runs on a part of every card: 1 of n AIVs with 1 of n tokens (and 1 of n context slots), so that an AIV has
the same rows, tasks and descriptors as on a full card. The time that the part loses to the same part without
the mechanism, times n, is added to the full card's. A mechanism has constants only; none depends on the
group size. Uniform routing, seed 0, top-6 of 256, hidden 7,168, as published.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from epsim.calibration.measured import Range, packaged_measurements
from epsim.inputs.counting import describe_law
from epsim.model.answer import Case
from epsim.model.closedform import Operation
from epsim.platform.machine import make_machine
from epsim.platform.platform import make_platform
from epsim.schedule.grain import Grain
from epsim.schedule.work import count_work
from epsim.sim.card import EngineCosts
from epsim.sim.run import EventOptions, run_operation
from reference.config import EPConfig
from reference.memory.sizes import Dtype

SIZES = (8, 16, 32, 64, 128)
TOKENS, NUM_AIVS = 16_384, 64
FINE: Mapping[Operation, str] = {"dispatch": "sqe", "combine": "chunk:8"}
"""One descriptor of dispatch; one task of combine, whose eight rows go to one rank from one jetty."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One simulated call.

    Args:
      ep: ranks.
      operation: dispatch or combine.
      grain: as the command line writes it.
      part: 1 of so many AIVs, tokens and context slots.
      aivs: of a full card.
      dtype: of dispatch.
      post_time: of one descriptor by one lane.
      options: the mechanism.
    """

    ep: int
    operation: Operation
    grain: str = "chunk"
    part: int = 1
    aivs: int = NUM_AIVS
    dtype: Dtype = "fp8"
    post_time: str = "1.226us"
    options: EventOptions = field(default_factory=EventOptions)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a call gave.

    Args:
      time_us: entry to exit barrier.
      gigabytes: logical, mean over ranks.
      misses: contexts looked up again, mean over ranks.
    """

    time_us: float
    gigabytes: float
    misses: float

    @property
    def gb_per_s(self) -> float:
        """Logical bandwidth of the mean rank."""
        return self.gigabytes / self.time_us * 1e6


def simulate(run: Run) -> Outcome:
    """Simulate one call."""
    tokens = TOKENS // run.part
    platform = make_platform("ubl128", settings={"post_time": run.post_time})
    config = EPConfig(
        ep_size=run.ep, num_experts=256, num_topk=6, hidden=7168,
        num_max_tokens_per_rank=tokens, expert_alignment=128,
    )  # fmt: skip
    topk = describe_law(config, (tokens,) * run.ep, "uniform", 0, 0.0, run.dtype).topk()
    work = count_work(config, topk, run.aivs // run.part)
    case = Case(
        platform=platform, config=config, operation=run.operation, dtype=run.dtype, pod_size=None,
        two_layer="dedup",
    )  # fmt: skip
    engine = run.options.engine
    engine = replace(engine, context_slots=-(-engine.context_slots // run.part))
    options = replace(run.options, grain=Grain.parse(run.grain), engine=engine)
    machine = make_machine(platform, run.ep, "none")
    packet = int(platform.hardware.packet_payload.value)
    got = run_operation(machine, platform.software, run.operation, work, case.row, packet, options)
    return Outcome(
        time_us=got.time_ps / 1e6,
        gigabytes=float(work.rows.sum()) / run.ep * case.row.logical / 1e9,
        misses=float(got.num_context_misses.mean()) * run.part,
    )


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One hypothesis.

    Args:
      name: key.
      title: for the table, with its constants.
      options: of the simulator.
      cases: operation -> sizes to run.
      grain: operation -> grain.
      part: see `Run`.
      aivs: see `Run`.
      dtype: see `Run`.
      post_time: see `Run`.
    """

    name: str
    title: str
    cases: Mapping[Operation, Sequence[int]]
    options: EventOptions = field(default_factory=EventOptions)
    grain: Mapping[Operation, str] = field(default_factory=lambda: FINE)
    part: int = 8
    aivs: int = NUM_AIVS
    dtype: Dtype = "fp8"
    post_time: str = "1.226us"

    def runs(self, ep: int, operation: Operation) -> tuple[Run, Run, Run]:
        """Return the full card and the part without the mechanism, and the part with it."""
        full = Run(ep=ep, operation=operation, aivs=self.aivs, dtype=self.dtype)
        part = replace(full, grain=self.grain[operation], part=self.part)
        return full, part, replace(part, options=self.options, post_time=self.post_time)


SLOTS, LOOKUP_PS = 1_750, 90_000
"""The two constants that were fitted: slots of the context table, time of a look-up."""
CONTEXTS = EngineCosts(
    context_slots=SLOTS, context_miss_ps=LOOKUP_PS, context_replacement="random", hides_lookups=True
)
NOTHING = Mechanism(
    name="none", title="no mechanism", part=1, grain={"dispatch": "chunk", "combine": "chunk"},
    cases={"dispatch": SIZES, "combine": SIZES},
)  # fmt: skip
BOTH: Mapping[Operation, Sequence[int]] = {"dispatch": SIZES, "combine": SIZES}
CONTEXT = Mechanism(
    name="contexts", title="contexts: 1,750 pairs, any makes room, hidden look-ups of 90 ns",
    cases=BOTH, part=4, options=EventOptions(engine=CONTEXTS),
)  # fmt: skip
SQES: Mapping[Operation, str] = {"dispatch": "sqe", "combine": "sqe"}
SWITCHES: tuple[tuple[Mapping[Operation, Sequence[int]], int], ...] = (
    ({"dispatch": (8, 32)}, 1),
    ({"combine": (8, 16, 32)}, 16),
)
"""What queues in switches is tried on. Dispatch on full cards: it visits rank after rank, and a visit of a
part would be short beside a buffer that is not."""
MECHANISMS = (
    NOTHING,
    Mechanism(
        name="skew-off", title="dispatch: every AIV starts at its own rank",
        cases={"dispatch": (8, 32)}, part=1, options=EventOptions(rotates_by_aiv=True),
    ),
    Mechanism(
        name="by-home", title="combine: rank by rank, as dispatch",
        cases={"combine": (8, 32, 64)}, options=EventOptions(walks_by_home=True),
    ),
    *(
        Mechanism(name=name, title=title, cases=cases, part=part, options=options, grain=SQES)
        for cases, part in SWITCHES
        for name, title, options in (
            ("credit", "buffers of 64 KiB per link, not 128",
             EventOptions(credit_bytes=65_536, chunks_of_room=1)),
            ("fifo", "one queue per switch input (head of line), 128 KiB per link",
             EventOptions(fifo_inputs=True, chunks_of_room=1)),
        )
    ),
    Mechanism(
        name="hash", title="every flow on one hashed plane, not sprayed",
        cases={"combine": (8, 32)}, options=EventOptions(policy="flow-hash"),
    ),
    Mechanism(
        name="descriptor", title="40 ns per descriptor of dispatch (its fill falls)",
        cases={"dispatch": (8, 32, 64)}, options=EventOptions(engine=EngineCosts(descriptor_ps=40_000)),
    ),
    Mechanism(
        name="posts", title="posting a descriptor takes 12 us, not 1.2 (more of them per AIV)",
        cases=BOTH, post_time="12.26us", part=1, grain=NOTHING.grain,
    ),
    Mechanism(
        name="oldest", title="contexts: 1,750 pairs, the oldest makes room, look-up 90 ns hidden",
        cases={"combine": (32, 64)},
        options=EventOptions(engine=replace(CONTEXTS, context_replacement="oldest")),
    ),
    Mechanism(
        name="open", title="contexts: as fitted, but look-ups of 50 ns that hide behind nothing",
        cases={"dispatch": (32, 64, 128)},
        options=EventOptions(engine=replace(CONTEXTS, hides_lookups=False, context_miss_ps=50_000)),
    ),
    CONTEXT,
)  # fmt: skip
FORECASTS = (
    replace(CONTEXT, name="32 AIVs", title="32 AIVs", aivs=32, part=8,
            cases={"dispatch": (64, 128), "combine": (64, 128)}),
    replace(CONTEXT, name="BF16", title="BF16 dispatch", dtype="bf16", part=8, cases={"dispatch": (64, 128)}),
    replace(CONTEXT, name="full card", title="full card", part=1, cases={"combine": (32,)}),
)  # fmt: skip
QUICK = (
    replace(NOTHING, cases={"dispatch": (8, 64), "combine": (8, 64)}),
    replace(CONTEXT, cases={"combine": (16, 32, 64)}, part=16),
)


def all_runs(mechanisms: Iterable[Mechanism]) -> list[Run]:
    """List every call that mechanisms need, once, the long ones first."""
    runs = {
        run: None
        for mechanism in mechanisms
        for operation, sizes in mechanism.cases.items()
        for ep in sizes
        for run in mechanism.runs(ep, operation)
    }
    return sorted(runs, key=lambda run: (-run.ep, run.part == 1))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One mechanism at one size.

    Args:
      gb_per_s: of the full card with the mechanism.
      lost_us: against no mechanism.
      misses: contexts looked up again by a card.
    """

    gb_per_s: float
    lost_us: float
    misses: float

    def place(self, published: Range) -> str:
        """Say where it lies: inside the range as printed, or by how much outside."""
        rounded = round(self.gb_per_s)
        if published.low <= rounded <= published.high:
            return "inside"
        edge = published.low if rounded < published.low else published.high
        return f"{self.gb_per_s / edge - 1:+.1%}"


Figures = Mapping[tuple[str, Operation, int], Figure]


def figures_of(mechanisms: Iterable[Mechanism], outcomes: Mapping[Run, Outcome]) -> Figures:
    """Put full cards and what their parts lose together."""
    found: dict[tuple[str, Operation, int], Figure] = {}
    for mechanism in mechanisms:
        for operation, sizes in mechanism.cases.items():
            for ep in sizes:
                full, before, after = (outcomes[run] for run in mechanism.runs(ep, operation))
                lost = (after.time_us - before.time_us) * mechanism.part
                gb_per_s = full.gigabytes / (full.time_us + lost) * 1e6
                figure = Figure(gb_per_s=gb_per_s, lost_us=lost, misses=after.misses)
                found[mechanism.name, operation, ep] = figure
    return found


@cache
def published() -> Mapping[tuple[Operation, int], Range]:
    """Return the ten published ranges by operation and size."""
    return {
        (row.op, row.ep_size): row.bandwidth
        for row in packaged_measurements("published")
        if row.use == "calibrate" and row.bandwidth is not None
    }


def study(mechanisms: Sequence[Mechanism], jobs: int = 1) -> Figures:
    """Simulate all that mechanisms need."""
    runs = all_runs(mechanisms)
    if jobs == 1:
        return figures_of(mechanisms, {run: simulate(run) for run in runs})
    with ProcessPoolExecutor(jobs) as pool:
        return figures_of(mechanisms, dict(zip(runs, pool.map(simulate, runs), strict=True)))


def table(mechanisms: Iterable[Mechanism], figures: Figures, operation: Operation) -> list[str]:
    """Return a markdown table of one operation."""
    lines = [f"| {operation} |" + "".join(f" EP{ep} |" for ep in SIZES), "|---|" + "---|" * len(SIZES)]
    lines.append("| published |" + "".join(f" {published()[operation, ep].text} |" for ep in SIZES))
    for mechanism in mechanisms:
        if operation in mechanism.cases:
            cells = [_cell(figures.get((mechanism.name, operation, ep)), operation, ep) for ep in SIZES]
            lines.append(f"| {mechanism.title} |" + "".join(f" {cell} |" for cell in cells))
    return lines


def _cell(figure: Figure | None, operation: Operation, ep: int) -> str:
    if figure is None:
        return ""
    place = figure.place(published()[operation, ep])
    return f"{figure.gb_per_s:.1f} ({place})"


def losses(mechanisms: Iterable[Mechanism], figures: Figures) -> list[str]:
    """Return a markdown table of what look-ups cost."""
    lines = ["| case | misses of a card | lost us | GB/s |", "|---|---:|---:|---:|"]
    for mechanism in mechanisms:
        for operation, sizes in mechanism.cases.items():
            for ep in sizes:
                figure = figures[mechanism.name, operation, ep]
                if mechanism.options.engine.context_slots:
                    case = f"{mechanism.name}, {operation} EP{ep}"
                    lines.append(
                        f"| {case} | {figure.misses:,.0f} | {figure.lost_us:,.0f} | {figure.gb_per_s:.1f} |"
                    )
    return lines


def picture(figures: Figures) -> bytes:
    """Draw published ranges, no mechanism and contexts over the group size; SVG, equal runs equal bytes."""
    import io

    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(canvas)
    operations: tuple[Operation, ...] = ("dispatch", "combine")
    for axes, operation in zip(canvas.subplots(1, 2), operations, strict=True):
        for index, ep in enumerate(SIZES):
            known = published()[operation, ep]
            axes.bar(index, known.high - known.low, 0.3, bottom=known.low, color="#bbbbbb")
        for name, colour in (("none", "#ee6677"), ("contexts", "#4477aa")):
            values = [figures[name, operation, ep].gb_per_s for ep in SIZES]
            axes.plot(range(len(SIZES)), values, "o-", color=colour, label=name)
        axes.set_xticks(range(len(SIZES)), [f"EP{ep}" for ep in SIZES])
        axes.set_title(f"{operation}, logical GB/s; grey: published")
        axes.legend()
    out = io.BytesIO()
    # A fixed salt and no date: equal runs give equal bytes. Text stays text, which keeps the file small.
    with mpl.rc_context({"svg.hashsalt": "epsim", "svg.fonttype": "none"}):
        canvas.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def main() -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few cases, under half a minute")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--plot", type=Path, help="folder for fan-out.svg")
    arguments = parser.parse_args()
    mechanisms = QUICK if arguments.quick else (*MECHANISMS, *FORECASTS)
    figures = study(mechanisms, arguments.jobs)
    shown = [mechanism for mechanism in mechanisms if mechanism not in FORECASTS]
    operations: tuple[Operation, ...] = ("dispatch", "combine")
    blocks = [table(shown, figures, operation) for operation in operations]
    blocks.append(losses(mechanisms, figures))
    print("\n\n".join("\n".join(block) for block in blocks))
    if arguments.plot and not arguments.quick:
        (arguments.plot / "fan-out.svg").write_bytes(picture(figures))


if __name__ == "__main__":
    main()
