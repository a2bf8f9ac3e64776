"""For tests of whoever uses dispatch and combine: strategies of hypothesis, payloads that name themselves."""

from epsim.testing.identity import Identity, marked_rows, read_columns, read_identity
from epsim.testing.strategies import ep_configs, payloads, routings

__all__ = [
    "Identity",
    "ep_configs",
    "marked_rows",
    "payloads",
    "read_columns",
    "read_identity",
    "routings",
]
