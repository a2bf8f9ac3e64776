"""A target that answers at once and counts its calls, for tests of sweeps."""

from epsim.sweep import Sweep, make_plan
from epsim.sweep.targets import TARGETS, Target
from topology.errors import TopologyError

CALLS: list[dict] = []


def answer(arguments):
    """Return 10 ep + tokens; EP13 is impossible, and 13 tokens are a fault of ours."""
    arguments = {name: value for name, value in arguments.items() if name != "system"}
    CALLS.append(arguments)
    if arguments["ep"] == 13:
        raise TopologyError("ep", 13, "brings bad luck")
    if arguments["tokens"] == 13:
        raise ZeroDivisionError("thirteen tokens")
    return [10.0 * arguments["ep"] + arguments["tokens"], arguments["tokens"], f"EP{arguments['ep']}"]


FAKE = Target(
    parameters={"ep": int, "tokens": int, "routing": str},
    defaults={},
    columns={"time_us": "float", "peak": "int", "bound": "text"},
    call=answer,
)


def fake_plan(monkeypatch, **sweep):
    """Return a plan over the target above, whose calls are forgotten."""
    monkeypatch.setitem(TARGETS, "fake", FAKE)
    CALLS.clear()
    return make_plan(Sweep(target="fake", **sweep))
