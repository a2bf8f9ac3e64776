"""Edition names as users write them."""

from epsim.deep_ep.errors import RefusedError
from reference.edition import Edition, find_edition
from reference.errors import ConfigError

NVIDIA = "nvidia"
"""Short for the newest NVIDIA edition."""
_SHORT = {NVIDIA: "nvidia-v2.5"}


def edition_of(name: str) -> Edition:
    """Return an edition by its name, or "nvidia".

    Raises:
      RefusedError: an unknown name.
    """
    try:
        return find_edition(_SHORT.get(name, name))
    except ConfigError as error:
        raise RefusedError("edition", name, f"{error.rule}, or {NVIDIA!r}") from None
