"""What planted faults of a backend share: their table, and helpers that spoil results in one place.

A fault gets what the reference gave and returns what a broken machine would give. One that finds nothing to
spoil, such as no second row to swap with, leaves all as it is.
"""

from dataclasses import replace

import numpy as np

FAULTS = {}
"""Name -> (stage, function)."""


def fault(stage):
    """Register a function under its own name: stage received, handle, cached, combined, or session."""

    def register(function):
        FAULTS[function.__name__] = stage, function
        return function

    return register


def spoil_rows(have, field, change, *, least=1, only=lambda handle, result: True):
    """Apply change(array, real rows) to a copy of `field` at the first rank that has enough real rows."""
    for rank, (handle, result) in enumerate(zip(have.handles, have.received, strict=True)):
        real = np.flatnonzero(handle.row_origins().gid >= 0)
        array = getattr(result, field)
        if array is None or len(real) < least or not only(handle, result):
            continue
        copy = array.copy(order="K")
        change(copy, real)
        received = list(have.received)
        received[rank] = replace(result, **{field: copy})
        return replace(have, received=tuple(received))
    return have


def spoil_handle(have, field, change, *, applies=lambda handle: True):
    """Apply value = change(copy of the value, handle) at the first rank where it applies."""
    for rank, handle in enumerate(have.handles):
        if not applies(handle):
            continue
        value = getattr(handle, field)
        handles = list(have.handles)
        new = change(value.copy() if isinstance(value, np.ndarray) else value, handle)
        handles[rank] = replace(handle, **{field: new})
        return replace(have, handles=tuple(handles))
    return have


def swap(rows, one, other):
    """Exchange two rows of anything in place."""
    raw = rows if rows.ndim == 1 else rows.view(np.uint8)
    raw[[one, other]] = raw[[other, one]]


def row_of_other_token(handle):
    """Return a real row of another token than the first real row's, None = there is none."""
    gid = handle.row_origins().gid
    real = np.flatnonzero(gid >= 0)
    others = real[gid[real] != gid[real[:1]]]
    return int(others[0]) if len(others) else None


def has_two_tokens(handle, _result):
    """Whether rows of two tokens arrived."""
    return row_of_other_token(handle) is not None


def spoil_two_tokens(have, change):
    """Apply change(recv_x, row, row of another token)."""
    other = next((row for row in map(row_of_other_token, have.handles) if row is not None), None)
    return spoil_rows(have, "recv_x", lambda x, real: change(x, int(real[0]), other), only=has_two_tokens)


def padding_of(handle):
    """Return the rows of alignment gaps."""
    gid = handle.row_origins().gid
    return np.flatnonzero(gid[: handle.block_starts()[-1]] < 0)


def spoil_elements(have, mask):
    """Zero the elements of recv_x that mask(values) picks, in every rank."""
    received = []
    for result in have.received:
        x = result.recv_x.copy()
        x[mask(x)] = 0
        received.append(replace(result, recv_x=x))
    return replace(have, received=tuple(received))
