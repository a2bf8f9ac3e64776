"""Which terms a prediction lacks, by stated rules on the case; for the rows that it misses by far."""

from collections.abc import Callable
from dataclasses import dataclass

from epsim.calibration.measured import Measurement
from epsim.prediction import Prediction

SMALL_BATCH_TOKENS = 512
"""Tokens per rank up to which a kernel's fixed costs are of the order of its data (decode batches)."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A term that a class of cases lacks.

    Args:
      holds: tells from row and prediction whether the case is of the class.
      when_fast: what a prediction that is too fast lacks; None = the rule does not explain that.
      when_slow: what a prediction that is too slow lacks; None = likewise.
    """

    holds: Callable[[Measurement, Prediction], bool]
    when_fast: str | None = None
    when_slow: str | None = None


RULES: tuple[Rule, ...] = (
    Rule(
        holds=lambda row, item: row.tokens_per_rank <= SMALL_BATCH_TOKENS,
        when_fast="small batch: fixed costs of a fused kernel (start, flags, waiting for the last peer), "
        "quantisation, and growth per peer are not modelled",
    ),
    Rule(
        holds=lambda row, item: row.generation == "Atlas A3" and item.scaleout_gb_per_s is not None,
        when_slow="HCCS across servers is not modelled: the profile knows 16 dies of one server and sends "
        "the rest through RoCE ports",
    ),
    Rule(
        holds=lambda row, item: row.generation == "Atlas A3" and row.tokens_per_rank > SMALL_BATCH_TOKENS,
        when_fast="the kernels of the A3 library are not modelled: staging, flags, growth per peer",
    ),
    Rule(
        holds=lambda row, item: row.generation == "Atlas A3" and item.scaleout_gb_per_s is None,
        when_fast="HCCS of a server is taken as one flat rate per die",
    ),
    Rule(
        holds=lambda row, item: row.generation.startswith("NVIDIA"),
        when_fast="SM-limited: the kernel stage of the NVIDIA library (copies by few SMs, per-channel "
        "forwarding) is not modelled",
        when_slow="payload_efficiency of the profile is a rule of thumb for the link rate, and HBM service "
        "is added in full, although the NVIDIA kernels overlap the two",
    ),
    Rule(
        holds=lambda row, item: (
            "whole operation" in f"{row.kernel}; {row.conditions}" and "64 AIVs" in row.kernel
        ),
        when_fast="the row times a chain of kernels; counting, prefix sums, payload moves, validation, "
        "output copies and the final sum are not modelled",
    ),
    Rule(
        holds=lambda row, item: row.kernel == "72 vector blocks",
        when_fast="copy rates are scaled by the number of blocks; what the blocks share (memory, one service "
        "queue) is not modelled, nor the rest of the operation",
    ),
    Rule(
        holds=lambda row, item: row.kernel == "one vector block",
        when_fast="the copy rates come from two ranks; growth of the remaining kernel work with the "
        "number of peers is not modelled",
    ),
)


def missing_terms(row: Measurement, item: Prediction, *, is_fast: bool) -> tuple[str, ...]:
    """Name what a prediction lacks.

    Args:
      row: the measurement.
      item: the prediction for it.
      is_fast: whether the prediction is faster than the measurement.

    Returns:
      At least one sentence; the last resort admits that nothing is known.
    """
    found = list(_impossible(row, item))
    for rule in RULES:
        sentence = rule.when_fast if is_fast else rule.when_slow
        if sentence is not None and rule.holds(row, item):
            found.append(sentence)
    if not found:
        word = "fast" if is_fast else "slow"
        found.append(f"no term is known that would explain why the prediction is too {word}")
    return tuple(found)


def implied_wire_gb_per_s(row: Measurement, item: Prediction) -> float | None:
    """Return what the measured time means for the ports of a card; None where that cannot be said.

    The bytes are those that the prediction sends; a token once per rank is the least there is.
    """
    if row.latency is None or item.wire_gb_per_s == 0 or item.scaleout_gb_per_s is not None:
        return None
    return item.wire_gb_per_s * item.time_us / row.latency.high


def _impossible(row: Measurement, item: Prediction) -> tuple[str, ...]:
    """Say when the measured time would need more than the ports can carry."""
    needed = implied_wire_gb_per_s(row, item)
    if needed is None or needed <= item.payload_limit_gb_per_s:
        return ()
    return (
        "the measured time would need more than the payload limit of the ports "
        f"({item.payload_limit_gb_per_s:.0f} GB/s): the timed interval, the routing or the ports of that run "
        "are others than assumed here",
    )
