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
from epsim.deep_ep.roll_call import RollCall, missing_ranks

HERE, GAVE_UP, REFUSED = "here", "gave up", "refused "
DOING = "creating a buffer"


def group_of(group: Any) -> dist.ProcessGroup:  # noqa: ANN401 - judged here
    """Return a process group, None = the default one.

    Raises:
      RefusedError: something else, a group without this rank, or one that was destroyed.
    """
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, dist.ProcessGroup):
        rule = "must be a process group of torch.distributed that this rank belongs to"
        raise RefusedError("group", type(found).__name__, rule)
    try:
        members_of(found)
    except KeyError:
        rule = "torch.distributed does not know it, it was destroyed"
        raise RefusedError("group", found.group_name, rule) from None
    return found


def members_of(group: dist.ProcessGroup) -> list[int]:
    """Return the global ranks of a group's members, by place in the group."""
    return list(dist.get_process_group_ranks(group))


def meet(group: dist.ProcessGroup, timeout: timedelta, roll_call: RollCall) -> dist.Store:
    """Wait until all ranks construct a buffer.

    Args:
      group: whose ranks.
      timeout: longest wait.
      roll_call: names who does not come.

    Returns:
      a store that only this construction uses.

    Raises:
      PeerRefusedError: a peer refused its arguments.
      PeerLostError: a peer did not come.
      RuntimeError: the store is gone.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    names = [f"rank {rank}" for rank in range(group.size())]
    own = names[group.rank()]
    while True:
        store = _next_store(group)
        store.set(own, HERE)
        missing = missing_ranks(store, names, timedelta(seconds=deadline - time.monotonic()))
        if missing is None:
            raise RuntimeError("the group's store does not answer")
        if missing:
            store.set(own, GAVE_UP)
            raise roll_call.named(DOING, *roll_call.absent(missing))
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
    """Return the store of this rank's next meeting.

    torch repeats the names of groups after destroy_process_group. So the members belong to the key, and the
    store itself counts the meetings: a new store starts anew on all ranks, one that stays goes on on all.
    """
    members = "-".join(str(rank) for rank in members_of(group))
    store = dist.PrefixStore(f"deep_ep/{group.group_name}/{members}", group.get_group_store())
    idx = store.add(f"meetings of rank {group.rank()}", 1)
    return dist.PrefixStore(f"meeting {idx}", store)
