"""One colour per phase, the same in every picture of a trace."""

from collections.abc import Sequence

import numpy as np

from epsim.trace.trace import Trace, is_wait

PALETTE = (
    *("#4477aa", "#ee8866", "#228833", "#66ccee", "#aa3377"),
    *("#ccbb44", "#44bb99", "#ee6677", "#8877cc", "#999933"),
)
"""Colour-blind safe in this order; after Paul Tol's qualitative schemes (sronpersonalpages.nl/~pault)."""
IDLE = ("#b4b8bf", "#8d939c")
"""Of phases that are named a wait: time in which nothing moves."""
_TINTS = (0.0, 0.45, -0.35)


def phase_order(trace: Trace) -> tuple[int, ...]:
    """Return positions in `trace.names`, earliest first start first."""
    first = np.full(len(trace.names), np.iinfo(np.int64).max)
    np.minimum.at(first, trace.name, trace.start_ps)
    return tuple(np.lexsort((np.arange(len(first)), first)).tolist())


def phase_colours(trace: Trace) -> tuple[str, ...]:
    """Return a colour "#rrggbb" for each of `trace.names`; neighbours in time differ."""
    colours = [""] * len(trace.names)
    used = {PALETTE: 0, IDLE: 0}
    for idx in phase_order(trace):
        palette = IDLE if is_wait(trace.names[idx]) else PALETTE
        colours[idx] = _shade(palette, used[palette])
        used[palette] += 1
    return tuple(colours)


def ink_on(colour: str) -> str:
    """Return black or white, whichever is read more easily on a colour (WCAG relative luminance)."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def _shade(palette: Sequence[str], number: int) -> str:
    """Colour of a number; each round through the palette is lighter or darker than the one before."""
    colour, tint = palette[number % len(palette)], _TINTS[number // len(palette) % len(_TINTS)]
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(
        f"{round(part + (255 - part) * tint if tint > 0 else part * (1 + tint)):02x}" for part in parts
    )
