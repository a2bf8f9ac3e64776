"""What can go wrong when native code is compiled, loaded or run on the twin.

`epsim.cli` turns them into exit codes: NativeInputError is bad input (2), NativeEnvironmentError is a machine
that lacks something (3), CompileError and TwinViolation are failures of the kernel (1).
"""

import signal
from collections.abc import Mapping, Sequence
from typing import Any

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


class TwinViolation(RuntimeError):
    """A kernel broke a rule of the machine, in the run that the twin just made.

    Args of the report, which become attributes:
      rule: name of the rule, as "data_race".
      text: what that rule asks for, one sentence.
      message: what happened, one sentence.
      file, line: in the kernel's source.
      rank, aiv, lane: where on the machine; -1 where it means nothing.
      pipe: name of the pipe.
      others: the other access, or the fibers of a deadlock; same keys and `what`.
    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        """Take over what the twin reports."""
        self.report = dict(report)
        self.rule: str = report["rule"]
        self.text: str = report["text"]
        self.message: str = report["message"]
        self.file: str = report["file"]
        self.line: int = report["line"]
        self.rank: int = report["rank"]
        self.aiv: int = report["aiv"]
        self.lane: int = report["lane"]
        self.pipe: str = report["pipe"]
        self.others: tuple[Mapping[str, Any], ...] = tuple(report["others"])
        places = [f"  {other['what']} ({_place(other)})" for other in self.others]
        super().__init__(
            "\n".join([f"{self.rule}: {self.message} ({_place(report)})", *places, f"  {self.text}"])
        )


def _place(site: Mapping[str, Any]) -> str:
    parts = [f"{name} {site[name]}" for name in ("rank", "aiv", "lane") if site[name] >= 0]
    return ", ".join([f"{site['file']}:{site['line']}", *parts, f"pipe {site['pipe']}"])
