"""Where a number came from: every constant of the project carries a `Source`."""

from dataclasses import dataclass
from typing import Literal, get_args

from topology.errors import TopologyError

SourceKind = Literal["official", "secondary", "derived", "assumed", "fitted", "given"]
"""How far to trust a number, best first; `given` means that the user said it."""

SOURCE_KINDS: tuple[str, ...] = get_args(SourceKind)


@dataclass(frozen=True)
class Source:
    """The origin of a number.

    Args:
      kind: official (vendor), secondary (a third party quoting the vendor or its code), derived
        (arithmetic on the former), assumed (engineering guess), fitted (on named measurements) or
        given (by the user).
      text: document and section, formula, or data set; never empty.

    Raises:
      TopologyError: the kind is unknown or the text is empty.
    """

    kind: SourceKind
    text: str

    def __post_init__(self) -> None:
        """Refuse an anonymous number."""
        if self.kind not in SOURCE_KINDS:
            raise TopologyError("source kind", self.kind, f"must be one of {', '.join(SOURCE_KINDS)}")
        if not self.text.strip():
            raise TopologyError("source text", self.text, "must name where the number came from")
