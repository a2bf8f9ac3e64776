"""A bar with the time left, for commands that take a while; plain lines where there is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PLAIN_SECS = 10.0
"""Between two lines in a log: short commands print none, and an hour prints no book."""


@contextmanager
def progress(
    name: str, *, is_share: bool = False, is_quiet: bool = False, has_lines: bool = False
) -> Iterator[Callable[[int, int], Any] | None]:
    """Show a bar on stderr, where somebody looks at it.

    Args:
      name: of the things that are counted.
      is_share: show per cent instead of counts.
      is_quiet: show nothing.
      has_lines: where stderr is no terminal, print a line to it every `PLAIN_SECS`.

    Yields:
      what is called with (done, all); None to show nothing.
    """
    if is_quiet or not sys.stderr.isatty():
        yield _plain(name) if has_lines else None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = TaskProgressColumn() if is_share else MofNCompleteColumn()
    columns = (TextColumn(name), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain(name: str) -> Callable[[int, int], None]:
    """Return what prints a line when it is called and the last one is old enough."""
    start = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < PLAIN_SECS:
            return
        last = now
        print(f"{name}: {done:,} of {total:,} after {now - start:.0f} s", file=sys.stderr, flush=True)

    return tell
