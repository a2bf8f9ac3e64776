"""Our kernels on the CPU twin: all ranks in one process, one schedule per seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from native.backends.protocol import BufferSpec, Capabilities, Schedule
from native.backends.twin_session import TwinSession
from native.settings import JitSettings
from native.twin import Twin, build_twin

STRATEGIES = ("random", "pct", "delay_pipe", "late")


@dataclass(frozen=True)
class TwinBackend:
    """Our kernels on machines of a loaded twin.

    Args:
      twin: the library, of our kernels or of changed ones.
      switches: fields of RuntimeConfig to set in every launch, as barrier_in_prologue.
      machine: more parameters of the machine, as {"strategy": "inorder"}.
      trace: file for the operations of a session, one JSON text per line, written when it closes; None = none
        are kept.
    """

    twin: Twin
    switches: Mapping[str, int] = field(default_factory=dict)
    machine: Mapping[str, int | str] = field(default_factory=dict)
    trace: Path | None = None
    name: str = "twin"

    def capabilities(self) -> Capabilities:
        """Say what the kernels have."""
        return Capabilities(
            edition="ascend",
            num_ranks=tuple(range(1, 17)),
            unsupported={
                "deduplicated": "edition ascend has the expanded layout only",
                "hybrid": "edition ascend has one flat domain",
            },
            num_aivs=(2, 3, 4, 5, 8),
            hidden=32,
            strategies=STRATEGIES,
        )

    def open(self, spec: BufferSpec, schedule: Schedule) -> "TwinSession":
        """Open a buffer on a new machine."""
        params: dict[str, int | str] = {"seed": schedule.seed, "strategy": schedule.strategy or STRATEGIES[0]}
        params |= {"trace": int(self.trace is not None)}
        return TwinSession(self.twin, spec, params | dict(self.machine), self.switches, self.trace)

    def shutdown(self) -> None:
        """Give back nothing: machines end with their sessions."""


def twin_backend(settings: JitSettings) -> TwinBackend:
    """Build the twin, or find it in the cache, and return its backend.

    Raises:
      NativeEnvironmentError: there is no compiler; exit code 3.
      CompileError: the sources do not compile with it.
    """
    return TwinBackend(Twin(build_twin(settings)))
