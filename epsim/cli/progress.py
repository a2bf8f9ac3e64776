"""A bar with the time left, for commands that take a while."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(
    name: str, *, is_share: bool = False, is_quiet: bool = False
) -> Iterator[Callable[[int, int], Any] | None]:
    """Show a bar on stderr, where somebody looks at it.

    Args:
      name: of the things that are counted.
      is_share: show per cent instead of counts.
      is_quiet: show nothing.

    Yields:
      what is called with (done, all); None when nobody looks.
    """
    if is_quiet or not sys.stderr.isatty():
        yield None
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
