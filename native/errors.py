"""What can go wrong when native code is compiled, loaded or run on the twin.

`epsim.cli` turns them into exit codes: NativeInputError is bad input (2), NativeEnvironmentError is a machine
that lacks something (3), CompileError and TwinViolation are failures of the kernel (1).
"""

import signal
from collections.abc import Sequence

MAX_SHOWN_LINES = 60
"""Lines of compiler output in the text of an error: the first ones name the cause; `output` holds all."""


class NativeInputError(ValueError):
    """A setting, source or argument breaks a rule; one sentence with the field, its value and the rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        """Say that `field` holds `value` and breaks `rule`."""
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field} is {value!r}: {rule}")


class NativeEnvironmentError(RuntimeError):
    """The machine lacks a compiler, a writable cache or disk space; one sentence."""


class CompileError(RuntimeError):
    """A compiler or linker refused; the text carries what it said."""

    def __init__(self, what: str, command: Sequence[str], returncode: int, output: str) -> None:
        """Describe a failed command.

        Args:
          what: what was being built, as "object twin/capi.cpp".
          command: the words of the command.
          returncode: of the process; -n when signal n ended it.
          output: everything it printed.
        """
        self.what, self.command, self.returncode, self.output = what, tuple(command), returncode, output
        end = (
            f"exit code {returncode}" if returncode >= 0 else f"killed by {signal.Signals(-returncode).name}"
        )
        lines = output.rstrip().splitlines() or ["(it printed nothing)"]
        if (num_more := len(lines) - MAX_SHOWN_LINES) > 0:
            lines = [*lines[:MAX_SHOWN_LINES], f"({num_more} more lines)"]
        super().__init__("\n".join([f"{what} does not compile ({command[0]}: {end})", *lines]))
