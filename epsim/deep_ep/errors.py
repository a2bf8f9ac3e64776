"""What the drop-in raises: the kinds of exception that `deep_ep` has, each with a sentence.

Every refusal is also a `ConfigError`: field, value and rule in one sentence.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from reference.errors import ConfigError
from reference.handle import StaleHandleError as _StaleHandleError

_REASON_CHARS = 600
"""What of a reason travels: at most 6 bytes per character fit a header with room to spare."""


def reason_of(error: Exception) -> str:
    """Return why a rank refuses, for its peers: the sentence, with the kind if it is none of ours."""
    text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    return text[:_REASON_CHARS]


class RefusedError(ConfigError, AssertionError):
    """A call that the Python front end of `deep_ep` refuses with an assertion.

    Read the rule in the message; the same program would fail on the device.
    """


class UnsupportedError(ConfigError, NotImplementedError):
    """Something that `deep_ep` says it does not have: queue pairs, service levels, CPU storage."""


class HostCheckError(ConfigError, RuntimeError):
    """A call that native code of `deep_ep` refuses: on the host, when it compiles, or on the device.

    On the device such a check may stop the process or corrupt a buffer; here it is always this error.
    """


class UndefinedError(ConfigError, RuntimeError):
    """A call whose outcome `deep_ep` leaves open: it would return something, and it need not be right."""


@contextmanager
def raised_as(kind: type[ConfigError]) -> Iterator[None]:
    """Turn the `ConfigError` of a check in `reference` into the kind that `deep_ep` raises in its place."""
    try:
        yield
    except ConfigError as error:
        raise kind(error.field, error.value, error.rule) from None


class StaleHandleError(_StaleHandleError, AssertionError):
    """The topk_idx that a handle keeps was written to after its dispatch.

    Do not reuse the routing tensor before the last combine, or give dispatch a copy of it.
    """


class RankMismatchError(RuntimeError):
    """Ranks made different calls, or the same call with arguments that must be equal everywhere.

    Every rank gets the same sentence.

    Attributes:
      argument: what differs; "operation" = the calls themselves.
      values: the two values.
      ranks: the two ranks, in the order of `values`.
    """

    def __init__(
        self, call: str, argument: str, values: tuple[object, object], ranks: tuple[int, int]
    ) -> None:
        """Say which argument of which call differs between which ranks."""
        self.argument, self.values, self.ranks = argument, values, ranks
        super().__init__(
            f"{call}: {argument} is {values[0]!r} on rank {ranks[0]} and {values[1]!r} on rank {ranks[1]}; "
            "it must be the same on every rank"
        )


class PeerRefusedError(RuntimeError):
    """Another rank refused its part of a collective call, or failed in it, so this rank's cannot complete.

    Attributes:
      rank: who refused.
    """

    def __init__(self, call: str, rank: int, reason: str) -> None:
        """Repeat what the other rank said."""
        self.rank = rank
        super().__init__(f"{call}: rank {rank} refused it: {reason}")


class PeerLostError(RuntimeError):
    """A peer died, or did not come to a collective call in time; the buffer cannot be used any more.

    Look at the output of the rank that is named first: the one that stopped knows why.

    Attributes:
      ranks: who is lost, as places in the group; several = at least one of them; empty = not known.
      global_ranks: the same as ranks of the default group.
    """

    def __init__(self, text: str, ranks: tuple[int, ...] = (), global_ranks: tuple[int, ...] = ()) -> None:
        """Keep who is lost."""
        self.ranks, self.global_ranks = ranks, global_ranks
        super().__init__(text)


class MissingArgumentError(ConfigError, TypeError, AttributeError):
    """An argument that `deep_ep` needs here is None; upstream stumbles over it with one of these kinds."""
