"""Max-min fair rates and finish times of flow classes, in fractions: no rounding anywhere."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Resource:
    """Something with a rate that flow classes share.

    Args:
      capacity: bytes/s.
      shares: {flow class: bytes over this resource for each byte of a single flow of the class}; a class
        of many flows through one link counts each of them.
      link_idx: the link it stands for, -1 when it is none.
      name: for people.
    """

    capacity: Fraction
    shares: dict[int, Fraction]
    link_idx: int
    name: str

    def seconds(self, flow_bytes: list[int]) -> Fraction:
        """Time that its own bytes take."""
        carried = sum((share * flow_bytes[flow] for flow, share in self.shares.items()), Fraction(0))
        return carried / self.capacity


@dataclass(frozen=True)
class Solved:
    """Of each flow class: its rate at the start (bytes/s) and when it ends (seconds)."""

    first_rate: list[Fraction]
    finish: list[Fraction]


def solve_quotient(flow_bytes: list[Fraction], resources: list[Resource]) -> Solved:
    """Run flow classes to completion; what ends frees its share.

    Args:
      flow_bytes: of one flow of each class, positive; each class uses at least one resource.
      resources: with what classes use.
    """
    left = dict(enumerate(flow_bytes))
    finish, first_rate = [Fraction(0)] * len(flow_bytes), [Fraction(0)] * len(flow_bytes)
    now = Fraction(0)
    while left:
        rates = fair_rates(list(left), resources)
        if not now:
            first_rate = [rates[flow] for flow in range(len(flow_bytes))]
        step = min(left[flow] / rates[flow] for flow in left)
        now += step
        for flow, rate in rates.items():
            left[flow] -= step * rate
            if not left[flow]:
                finish[flow] = now
                del left[flow]
    return Solved(first_rate, finish)


def fair_rates(flows: list[int], resources: list[Resource]) -> dict[int, Fraction]:
    """Raise all rates together; a full resource stops its flows, the others rise on."""
    rates: dict[int, Fraction] = {}
    active = set(flows)
    free = [one.capacity for one in resources]
    weight = [sum((s for f, s in one.shares.items() if f in active), Fraction(0)) for one in resources]
    while active:
        level = min(free[i] / weight[i] for i in range(len(resources)) if weight[i])
        stopped: set[int] = set()
        for i, one in enumerate(resources):
            if weight[i] and free[i] == level * weight[i]:
                stopped |= one.shares.keys() & active
        for i, one in enumerate(resources):
            taken = sum((one.shares[flow] for flow in one.shares.keys() & stopped), Fraction(0))
            free[i] -= level * taken
            weight[i] -= taken
        rates |= dict.fromkeys(sorted(stopped), level)
        active -= stopped
    return rates
