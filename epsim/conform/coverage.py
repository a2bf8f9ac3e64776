"""What the programs of a run had in them, as names to count: a claim about sizes can then be looked up."""

from collections.abc import Iterator

from epsim.conform.program import Cached, Combine, Dispatch, Program


def traits(program: Program) -> frozenset[str]:
    """Return the names of all that a program has: "ranks 3", "hidden 64", "masked", "biases 2"..."""
    found = {f"ranks {program.num_ranks}", f"aivs {program.aivs}"}
    found.add("rank_reduced" if program.multiple_reduction else "one_rounding")
    for step in program.steps:
        found.add(f"hidden {step.hidden}")
        if isinstance(step, Combine):
            found.add(f"biases {step.biases}")
            continue
        found.add(step.payload)
        if isinstance(step, Cached):
            found.add("cached")
            continue
        found |= {f"topk {step.columns}", f"alignment {step.alignment}", *_of_routing(step)}
        if not step.cpu_sync:
            found.add("no_sync")
    return frozenset(found)


def _of_routing(step: Dispatch) -> Iterator[str]:
    """Yield what a routing has; one is skewed if it has several tokens, and other ranks than the chosen."""
    local = step.experts // len(step.topk)
    tokens = [row for rank in step.topk for row in rank]
    targets = [{expert // local for expert in row if expert >= 0} for row in tokens]
    if any(-1 in row for row in tokens):
        yield "masked"
    if tokens and not all(step.topk):
        yield "rank_without_tokens"
    if len(step.topk) > 1 and sum(map(bool, targets)) > 1 and len(set().union(*targets)) == 1:
        yield "skewed"
