"""Sampling with unequal popularity: weighted draws without replacement, and systematic sampling of loads.

E experts, K top-k, T tokens. All weights are integers that sum to 2^40, so that every comparison is exact.
"""

from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError
from reference.routing.draws import Draws, insert_sorted

WEIGHT_BITS = 40
TOTAL_WEIGHT = 2**WEIGHT_BITS
_EXACT = Context(prec=40)


def integer_weights(popularity: Sequence[Decimal]) -> npt.NDArray[np.int64]:
    """Return [E] int64 weights that sum to 2^40, in proportion, each at least 1.

    What rounding leaves over goes to the most popular expert.
    """
    total = sum(popularity)
    weights = [max(1, int(_EXACT.divide(p * TOTAL_WEIGHT, total))) for p in popularity]
    weights[weights.index(max(weights))] += TOTAL_WEIGHT - sum(weights)
    return np.array(weights, dtype=np.int64)


def zipf_popularity(count: int, exponent: float) -> list[Decimal]:
    """Return [count] popularities: 1 / (i + 1)^exponent for the i-th most popular expert."""
    power = -Decimal(repr(exponent))
    return [_EXACT.power(Decimal(i + 1), power) for i in range(count)]


def lognormal_factors(draws: Draws, count: int, sigma: float) -> list[Decimal]:
    """Return [count] factors exp(sigma * z) with z standard normal (Marsaglia's polar method).

    Decimal instead of libm, so that the last digit does not depend on the machine.
    """
    factors: list[Decimal] = []
    scale = Decimal(repr(sigma))
    while len(factors) < count:
        u, v = (Decimal(int(w)) / 2**63 - 1 for w in draws.words(2))
        s = u * u + v * v
        if 0 < s < 1:
            z = u * _EXACT.sqrt(_EXACT.divide(-2 * _EXACT.ln(s), s))
            factors.append(_EXACT.exp(scale * z))
    return factors


def weighted_distinct(
    draws: Draws, weights: npt.NDArray[np.int64], width: int, count: int
) -> npt.NDArray[np.int32]:
    """Draw tuples one by one without replacement, each time in proportion to the weights that are left.

    This is the law of a Gumbel top-k with log-weights as logits. The experts lie end to end on a line
    of 2^40; a point on what is left of it moves right past every earlier expert that starts before it.
    No draw is ever rejected, so a strong skew costs no more than a weak one.

    Args:
      draws: stream; 53 bits of one word give one point.
      weights: [E] int64, sum 2^40, each at least 1.
      width: K, at most E.
      count: T.

    Returns:
      [K, T] int32.
    """
    ends = np.cumsum(weights)
    starts = ends - weights
    left = np.full(count, TOTAL_WEIGHT, dtype=np.int64)
    result = np.empty((width, count), dtype=np.int32)
    taken = np.empty((width, count), dtype=np.int32)  # ascending, first k rows valid
    for k in range(width):
        fraction = (draws.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        point = (fraction * left).astype(
            np.int64
        )  # below left: the product is rounded to a multiple of 1 ulp
        for earlier in taken[:k]:
            point += np.where(point >= starts[earlier], weights[earlier], 0)
        expert = np.searchsorted(ends, point, side="right").astype(np.int32)
        left -= weights[expert]
        result[k] = expert
        insert_sorted(taken, k, expert)
    return result


def inclusion_weights(loads: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.int64]:
    """Turn a load histogram into the share of tokens that choose each expert.

    A share above 1 cannot be met when an expert is chosen once per token: it becomes 1, and the others
    share the rest in proportion.

    Args:
      loads: [E] load of each expert in any unit, not negative.
      width: K.

    Returns:
      [E] int64, share * 2^40, each at most 2^40, sum K * 2^40.

    Raises:
      ConfigError: fewer than K experts have a load.
    """
    if int((loads > 0).sum()) < width:
        rule = f"at least num_topk = {width} experts need a load above 0"
        raise ConfigError("loads", f"{int((loads > 0).sum())} experts", rule)
    exact = [Decimal(float(load)) for load in loads]
    full: set[int] = set()
    while True:
        rest = sum(v for e, v in enumerate(exact) if e not in full)
        room = (width - len(full)) * TOTAL_WEIGHT
        shares = [
            TOTAL_WEIGHT if e in full else int(_EXACT.divide(v * room, rest)) for e, v in enumerate(exact)
        ]
        over = {e for e, share in enumerate(shares) if e not in full and share >= TOTAL_WEIGHT}
        if not over or len(full) + len(over) >= width:
            break
        full |= over
    return _settle(shares, width)


def _settle(shares: list[int], width: int) -> npt.NDArray[np.int64]:
    """Cap shares at one and give what is missing to the largest that have room."""
    capped = [min(share, TOTAL_WEIGHT) for share in shares]
    missing = width * TOTAL_WEIGHT - sum(capped)
    for e in sorted(range(len(capped)), key=lambda e: (-capped[e], e)):
        if not missing:
            break
        if capped[e]:
            step = min(missing, TOTAL_WEIGHT - capped[e])
            capped[e] += step
            missing -= step
    return np.array(capped, dtype=np.int64)


def systematic_distinct(
    draws: Draws, shares: npt.NDArray[np.int64], width: int, count: int
) -> npt.NDArray[np.int32]:
    """Draw tuples whose first-order inclusion probabilities are exactly the shares.

    The experts are laid end to end in random order (a new order for every 32 tokens); a comb of K teeth
    one unit apart, at a random offset, picks one expert per tooth, never one twice.

    Args:
      draws: stream.
      shares: [E] int64 from `inclusion_weights`.
      width: K.
      count: T.

    Returns:
      [K, T] int32.
      Source: Madow's systematic sampling with unequal probabilities.
    """
    orders = max(1, -(-count // 32))
    order = np.argsort(draws.words(orders * shares.size).reshape(orders, -1), axis=1, kind="stable")
    ends = np.cumsum(shares[order], axis=1)  # [orders, E], last = K * 2^40
    block = np.arange(count) // 32
    offset = (draws.words(count) >> np.uint64(64 - WEIGHT_BITS)).astype(np.int64)
    span = width * TOTAL_WEIGHT
    flat = (ends + span * np.arange(orders)[:, None]).ravel()
    teeth = np.arange(width, dtype=np.int64)[:, None] * TOTAL_WEIGHT + offset + span * block  # [K, T]
    place = np.searchsorted(flat, teeth.ravel(), side="right")
    return np.asarray(order.ravel()[place].reshape(width, count), dtype=np.int32)
