"""How the ranks of a group come together to make a buffer: through the group's store, before any connection.

Each construction of a buffer is one meeting. A rank writes in the store that it is here, that it refuses its
arguments and why, or that it gave up waiting. So a refusal is heard at once, and the k-th construction of
one rank always meets the k-th of the others.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from epsim.deep_ep.errors import PeerRefusedError, RefusedError, reason_of

HERE, GAVE_UP, REFUSED = "here", "gave up", "refused "
DOING = "creating a buffer"
_SHORTEST = timedelta(milliseconds=1)
"""Some stores take 0 for no limit."""
_num_meetings: dict[str, int] = {}
"""Per group, meetings so far: they give each a name, as the library's registration tags do."""


def group_of(group: Any) -> dist.ProcessGroup:  # noqa: ANN401 - judged here
    """Return a process group, None = the default one.

    Raises:
      RefusedError: something else, or a group without this rank.
    """
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, dist.ProcessGroup):
        rule = "must be a process group of torch.distributed that this rank belongs to"
        raise RefusedError("group", type(found).__name__, rule)
    return found


def meet(group: dist.ProcessGroup, timeout: timedelta) -> dist.Store:
    """Wait until all ranks construct a buffer.

    Args:
      group: whose ranks.
      timeout: longest wait.

    Returns:
      a store that only this construction uses.

    Raises:
      PeerRefusedError: a peer refused its arguments.
      RuntimeError: a peer did not come, or the store is gone; from torch, as gloo's.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    names = [f"rank {rank}" for rank in range(group.size())]
    own = names[group.rank()]
    while True:
        store = _next_store(group)
        store.set(own, HERE)
        try:
            store.wait(names, max(_SHORTEST, timedelta(seconds=deadline - time.monotonic())))
        except RuntimeError:
            store.set(own, GAVE_UP)
            raise
        said = [store.get(name).decode() for name in names]
        for rank, word in enumerate(said):
            if word.startswith(REFUSED):
                raise PeerRefusedError(DOING, rank, word.removeprefix(REFUSED))
        # Whoever came too late for a meeting goes on to the next, where the others may try again.
        if GAVE_UP not in said:
            return store


@contextmanager
def telling_peers(*groups: Any) -> Iterator[None]:  # noqa: ANN401 - as the caller gave them
    """Run what comes before a constructor's meeting; whatever it raises is told to the peers, who raise too.

    Args:
      groups: whose next meeting this rank will not attend then; what is no group is nobody's.
    """
    try:
        yield
    except Exception as error:
        for group in groups:
            if isinstance(group, dist.ProcessGroup):
                _next_store(group).set(f"rank {group.rank()}", REFUSED + reason_of(error))
        raise


def _next_store(group: dist.ProcessGroup) -> dist.Store:
    name = group.group_name
    idx = _num_meetings[name] = _num_meetings.get(name, -1) + 1
    return dist.PrefixStore(f"deep_ep/{name}/{idx}", group.get_group_store())
