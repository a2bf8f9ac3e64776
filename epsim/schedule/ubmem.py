"""Load/store over UBMEM: a core sends requests of 512 B, and only so many may be on their way.

Request i leaves at t(i) = max(t(i - 1) + interval, t(i - limit) + round trip) and is answered a round trip
later. Below the limit n requests take a round trip and n - 1 intervals; above it they go in waves of a round
trip (or of the limit's intervals, where those take longer). The link's rate bounds both from below.
Stores are posted: a core does not wait for them, so they know no limit.

Source: the remote-copy cost model that ascend.md section 1.3 cites.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from epsim.errors import InputError
from topology.source import Source

_MODEL = "catccos A5 model (ascend.md section 1.3)"
SOURCES: Final[Mapping[str, Source]] = MappingProxyType({
    "load_ps": Source("secondary", f"remote read round trip 662.657 ns: {_MODEL}"),
    "store_ps": Source("secondary", f"remote write round trip 87.88 ns: {_MODEL}"),
    "issue_ps": Source("secondary", f"13.685 ns between requests of 512 B: {_MODEL}"),
    "request_bytes": Source("secondary", f"unit of the issue interval: {_MODEL}"),
    "most_outstanding": Source("secondary", f"outstanding reads are bounded by 128: {_MODEL}"),
    "link_bytes_per_s": Source("secondary", f"link of 35.1495 GiB/s: {_MODEL}"),
})  # fmt: skip
"""Where each constant came from, by name."""


@dataclass(frozen=True, kw_only=True)
class UbmemCosts:
    """Constants of one core's remote requests; `SOURCES` says where each came from.

    Args:
      load_ps: from a load's issue to its answer.
      store_ps: from a store's issue until it is visible, on a free network.
      issue_ps: between two requests of a core.
      request_bytes: of one request.
      most_outstanding: hard bound on unanswered loads of a core.
      link_bytes_per_s: what one core's link carries.

    Raises:
      InputError: a constant is not positive.
    """

    load_ps: int = 662_657
    store_ps: int = 87_880
    issue_ps: int = 13_685
    request_bytes: int = 512
    most_outstanding: int = 128
    link_bytes_per_s: int = 37_741_488_242

    def __post_init__(self) -> None:
        """Refuse what cannot be a cost."""
        for spec in fields(self):
            if getattr(self, spec.name) < 1:
                raise InputError(spec.name, getattr(self, spec.name), "must be at least 1")

    @property
    def outstanding_limit(self) -> int:
        """Unanswered loads of a core: rate x round trip / request, at least 1, at most the hard bound."""
        in_flight = self.link_bytes_per_s * self.load_ps // (10**12 * self.request_bytes)
        return max(1, min(self.most_outstanding, in_flight))

    def num_requests(self, size_bytes: int) -> int:
        """Return requests of so many contiguous bytes."""
        return -(-size_bytes // self.request_bytes)

    def read_ps(self, size_bytes: int) -> int:
        """Return from the first load's issue until all bytes are there, on a free network; 0 for none."""
        count, limit = self.num_requests(size_bytes), self.outstanding_limit
        if count == 0:
            return 0
        waves, rest = divmod(count - 1, limit)
        last = waves * max(self.load_ps, limit * self.issue_ps) + rest * self.issue_ps
        return max(last + self.load_ps, self.link_ps(size_bytes))

    def write_ps(self, size_bytes: int) -> int:
        """Return from the first store's issue until all bytes are visible, on a free network."""
        count = self.num_requests(size_bytes)
        if count == 0:
            return 0
        return max((count - 1) * self.issue_ps + self.store_ps, self.link_ps(size_bytes))

    def link_ps(self, size_bytes: int) -> int:
        """Return what the link needs for the bytes alone, rounded up."""
        return -(-size_bytes * 10**12 // self.link_bytes_per_s)


assert set(SOURCES) == {spec.name for spec in fields(UbmemCosts)}
