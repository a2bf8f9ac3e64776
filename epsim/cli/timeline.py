"""A timeline as the kind of file that its name asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epsim.trace.trace import Trace


def timeline(trace: "Trace", path: Path) -> str:
    """Return a page for .html, and what Perfetto opens for .json."""
    if path.suffix == ".html":
        from epsim.trace.html import html_page

        return html_page(trace)
    from epsim.trace.perfetto import perfetto_json

    return perfetto_json(trace)
