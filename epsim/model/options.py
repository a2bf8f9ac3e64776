"""Words that an option of `epsim.predict` may be; the command line offers the same ones."""

from typing import Literal

TokenCounts = Literal["equal", "stepped"]
"""equal: every rank sends as many tokens; stepped: rank r sends r fewer, as the published tests do."""

TwoLayer = Literal["dedup", "flat"]
"""dedup: a token crosses the scale-out network once per supernode; flat: once per rank, as upstream does."""
