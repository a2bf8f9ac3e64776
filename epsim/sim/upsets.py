"""What disturbs a run by chance: retries on lossy links and jitter; and receivers that never drain.

Draws come from `random.Random.random`, whose values are the same on every platform, seeded by the run's
seed and the name of the thing, so a fault elsewhere does not change them.
"""

from collections.abc import Sequence
from math import log
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from epsim.platform.machine import LINK_RETRY_PS, Machine

if TYPE_CHECKING:
    from epsim.sim.lanes import Lanes


class Retries:
    """Losses on the links of one port, as a Poisson process in the bytes that they deliver.

    The links take equal parts of what the port sends, and the slowest part ends last.

    Args:
      losses_per_byte: of each link, 0 = a link that loses nothing.
      seed: of the draws.
    """

    def __init__(self, losses_per_byte: Sequence[float], seed: str) -> None:
        """Draw where the first losses are."""
        self.num_links = len(losses_per_byte)
        self.losses_per_byte = [rate for rate in losses_per_byte if rate > 0]
        self.random = Random(seed)
        self.bytes_left = [self._gap(rate) for rate in self.losses_per_byte]

    def __call__(self, num_bytes: int) -> int:
        """Return the picoseconds that losses among the next bytes cost."""
        part = num_bytes / self.num_links
        most = 0
        for i, rate in enumerate(self.losses_per_byte):
            losses = 0
            self.bytes_left[i] -= part
            while self.bytes_left[i] < 0:
                losses += 1
                self.bytes_left[i] += self._gap(rate)
            most = max(most, losses)
        return most * LINK_RETRY_PS

    def _gap(self, rate: float) -> float:
        return -log(1 - self.random.random()) / rate


class Jitter:
    """The service of a chunk, its read and its sending, takes more or less than it should.

    The difference is in the read: ports send at the rate of their clock and never faster.

    Args:
      part: most that it differs by, as a part of the service.
      seed: of the run.
      rank: whose engine.
    """

    def __init__(self, part: float, seed: int, rank: int) -> None:
        """Seed the draws of one rank."""
        self.part = part
        self.random = Random(f"{seed} jitter {rank}")

    def draw(self, service_ps: int) -> int:
        """Return the picoseconds, of either sign, that a service differs by; the mean is 0."""
        return round(service_ps * self.part * (2 * self.random.random() - 1))


def upset_ports(
    lanes: "Lanes", machine: Machine, stuck_npus: npt.NDArray[np.int64], credit_bytes: int, seed: int
) -> None:
    """Give ports of lossy links their retries, and those into stuck cards a buffer that nobody drains.

    Args:
      lanes: whose ports.
      machine: says what links lose.
      stuck_npus: cards that take nothing out of their buffers.
      credit_bytes: room behind one link.
      seed: of the run.
    """
    losses = machine.link_losses_per_byte
    for port, links in zip(lanes.ports, lanes.links_of, strict=True):
        if losses is not None and losses[links].any():
            port.upset = Retries(losses[links].tolist(), f"{seed} losses {port.name}")
        if int(machine.topology.link_dst[links[0]]) in stuck_npus:
            port.drains = False
            port.credit = port.room_bytes = credit_bytes * len(links)
