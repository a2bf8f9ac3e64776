"""Refusing a program before any work: too large for a machine, or not what a backend says that it can do.

R ranks, K top-k, H hidden, P scale packs, L local experts.
"""

from collections import Counter
from collections.abc import Iterator

from epsim.conform.program import Cached, Combine, Dispatch, PayloadType, Program, Step
from epsim.errors import InputError
from native.backends.protocol import BufferSpec, Capabilities, Feature, Schedule
from native.buffers import align, region_bytes, worst_case

MAX_BYTES = 1 << 29
"""Of buffers and rows of a program. The largest of profile full need a third of it. The twin, which knows of
every byte who wrote it, takes 20 times as much memory (measured: 5.2 GB for 0.26 GB)."""
MAX_SEED = 2**63 - 1
"""The twin's seeds have 64 bits; the schedules of a search count up from the first."""
FEATURES_OF: dict[PayloadType, tuple[Feature, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8",),
    "fp8_columns": ("fp8", "column_major_scales"),
}


def buffer_spec(program: Program) -> BufferSpec:
    """Return the buffer that serves all steps of a program."""
    fresh = program.dispatches()
    return BufferSpec(
        num_ranks=program.num_ranks,
        num_max_tokens_per_rank=max(step.capacity for step in fresh),
        hidden=max(step.hidden for step in program.steps),
        num_topk=max(step.columns for step in fresh),
        num_aivs=program.aivs,
        multiple_reduction=program.multiple_reduction,
    )


def needed_bytes(program: Program) -> int:
    """Return about how many bytes the buffers of all ranks and the rows of all steps take."""
    buffers = program.num_ranks * region_bytes(buffer_spec(program))
    fresh: list[Dispatch] = []
    rows = 0
    for step in program.steps:
        if isinstance(step, Dispatch):
            fresh.append(step)
        source = step if isinstance(step, Dispatch) else fresh[step.of % len(fresh)]
        rows += 2 * step.hidden * _num_rows(source)
        if isinstance(step, Combine):
            # Outputs of experts are drawn as float64, for every choice of a token.
            rows += 8 * step.hidden * source.columns * sum(map(len, source.topk))
    tables = 4 * sum(step.experts * len(step.topk) for step in fresh)
    return buffers + rows + tables


def _num_rows(step: Dispatch) -> int:
    """Return the rows of all ranks: those that are chosen and the gaps, or the worst case."""
    if not step.cpu_sync:
        return len(step.topk) * worst_case(step.config())[1]
    chosen = Counter(expert for rank in step.topk for row in rank for expert in row if expert >= 0)
    return sum(align(count, step.alignment) for count in chosen.values())


def check_size(program: Program) -> None:
    """Refuse a program that would not fit the machine's memory.

    Raises:
      InputError: it needs more than `MAX_BYTES`.
    """
    need = needed_bytes(program)
    if need > MAX_BYTES:
        what = "capacity, hidden, experts and alignment make it"
        raise InputError("bytes of the example", need, f"must be at most {MAX_BYTES} ({what})")


def check_program(program: Program, can: Capabilities) -> None:
    """Refuse a program that a backend cannot run.

    Raises:
      InputError: the first field that is not what the backend says of itself.
    """
    for field, value, rule in _faults(program, can):
        raise InputError(f"example.{field}", value, rule)


def choose_schedule(can: Capabilities, strategy: str, seed: int) -> Schedule:
    """Return the schedule of one program; without a strategy the first that the backend has.

    Raises:
      InputError: the backend has no such strategy, or nothing that a seed could choose.
    """
    if strategy and strategy not in can.strategies:
        known = f"must be one of {', '.join(can.strategies)}" if can.strategies else "this backend has none"
        raise InputError("strategy", strategy, known)
    check_schedule_seed(can, seed)
    return Schedule(strategy=strategy or next(iter(can.strategies), ""), seed=seed)


def check_schedule_seed(can: Capabilities, seed: int) -> None:
    """Refuse a seed that would choose nothing.

    Raises:
      InputError: the backend runs as it runs.
    """
    if seed and not can.strategies:
        raise InputError("schedule_seed", seed, "must be 0: this backend has no schedules to choose from")


Fault = tuple[str, object, str]


def _faults(program: Program, can: Capabilities) -> Iterator[Fault]:
    """Yield (field, value, rule) of what a backend cannot run."""
    if program.num_ranks not in can.num_ranks:
        groups = ", ".join(map(str, can.num_ranks))
        yield "number of ranks in topk", program.num_ranks, f"must be one of {groups} on this backend"
    if program.aivs not in can.aivs:
        yield "aivs", program.aivs, f"must be {_range_text(can.aivs)} on this backend"
    reduction: Feature = "rank_reduced" if program.multiple_reduction else "one_rounding"
    yield from _lacks("multiple_reduction", program.multiple_reduction, (reduction,), can)
    fresh: list[Dispatch] = []
    for number, step in enumerate(program.steps):
        if isinstance(step, Dispatch):
            fresh.append(step)
            found = _dispatch_faults(step, can)
        elif isinstance(step, Cached):
            found = _lacks("op", "cached", ("cached",), can)
        else:
            found = _combine_faults(step, fresh[step.of % len(fresh)], program, can)
        for field, value, rule in (*_hidden_faults(step, can), *found, *_payload_faults(step, can)):
            yield f"steps[{number}].{field}", value, rule


def _hidden_faults(step: Step, can: Capabilities) -> Iterator[Fault]:
    if step.hidden < 1 or step.hidden % can.hidden or step.hidden > can.max_hidden:
        rule = f"must be a multiple of {can.hidden}, at most {can.max_hidden}, on this backend"
        yield "hidden", step.hidden, rule


def _payload_faults(step: Step, can: Capabilities) -> Iterator[Fault]:
    if step.weights:
        yield from _lacks("weights", True, ("weights",), can)
    if isinstance(step, Combine):
        return
    yield from _lacks("payload", step.payload, FEATURES_OF[step.payload], can)
    # A buffer has room for a pack per 32 elements (deepep-ascend.md section 1.4).
    most = max(1, step.hidden // 32)
    if not 1 <= step.packs <= most:
        yield "packs", step.packs, f"must be 1 to {most}, one per 32 elements"


def _dispatch_faults(step: Dispatch, can: Capabilities) -> Iterator[Fault]:
    if step.columns > can.max_topk:
        yield "columns", step.columns, f"must be at most {can.max_topk} on this backend"
    if step.experts > can.max_experts:
        yield "experts", step.experts, f"must be at most {can.max_experts} on this backend"
    if can.power_of_two_alignment and step.alignment & (step.alignment - 1):
        yield "alignment", step.alignment, "must be a power of two on this backend"
    yield from _lacks("expand", step.expand, ("expanded" if step.expand else "deduplicated",), can)
    if step.zero_padding and not step.expand:
        yield "zero_padding", True, "needs the expanded layout: no other has gaps"
    if step.stats:
        yield from _lacks("stats", True, ("stats",), can)
    if not step.cpu_sync:
        yield from _lacks("cpu_sync", False, ("no_cpu_sync",), can)


def _combine_faults(step: Combine, of: Dispatch, program: Program, can: Capabilities) -> Iterator[Fault]:
    if not 0 <= step.biases <= 2:
        yield "biases", step.biases, "must be 0, 1 or 2"
    if step.biases:
        yield from _lacks("biases", step.biases, ("bias",), can)
    if step.received and step.hidden != of.hidden:
        yield "hidden", step.hidden, f"must be {of.hidden}, that of the received rows"
    if step.weights and of.expand and not program.multiple_reduction:
        yield "weights", True, "combine returns none where expanded rows are not summed per rank first"


def _lacks(field: str, value: object, features: tuple[Feature, ...], can: Capabilities) -> Iterator[Fault]:
    yield from ((field, value, can.unsupported[name]) for name in features if name in can.unsupported)


def _range_text(numbers: range) -> str:
    text = f"{numbers[0]} to {numbers[-1]}"
    return text if numbers.step == 1 else f"{text} in steps of {numbers.step}"
