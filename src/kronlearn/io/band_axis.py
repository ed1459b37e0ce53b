"""Which axis of a stored array is that of the bands, and why."""

from __future__ import annotations

import operator
from typing import NamedTuple

from kronlearn.io.formats.conventions import BAND_NAMES, SPACE_NAMES
from kronlearn.io.stored import StoredArray, StoredArrayError

__all__ = ["CubeAxes", "find_axes"]


class CubeAxes(NamedTuple):
    """The axes of a cube in the array that it is stored in."""

    rows: int
    columns: int
    #: None for one band in two dimensions.
    bands: int | None
    #: How that of the bands was found, for the user.
    reason: str


def find_axes(stored: StoredArray, given: int | None) -> CubeAxes:
    """The axes of rows, columns and bands: those given, or what speaks for them.

    Raises
    ------
    StoredArrayError
        If the array does not have two or three dimensions, not counting those of length one.
    """
    axes = _long_axes(stored, given)
    if len(axes) == 2 and given is None:
        return CubeAxes(axes[0], axes[1], None, "one band: there are two dimensions")
    if len(axes) == 2:
        raise stored.error(
            f"has two dimensions, {stored.shape}, and so one band; leave out band_axis={given}"
        )
    if len(axes) != 3:
        raise stored.error(
            f"has shape {stored.shape}; a cube has two or three dimensions, or more of length one"
        )
    if given is None:
        axis, reason = _found(stored, axes)
    else:
        axis, reason = operator.index(given) % stored.ndim, "given"
        if stored.band_axis not in (None, axis):
            raise stored.error(
                f"has its bands along axis {stored.band_axis}, as its format says; leave out "
                f"band_axis={given}"
            )
    rows, columns = (a for a in axes if a != axis)
    return CubeAxes(rows, columns, axis, reason)


def _long_axes(stored: StoredArray, given: int | None) -> list[int]:
    """The axes that count: all, but of more than three only those longer than one."""
    ndim = stored.ndim
    if given is not None and not -ndim <= operator.index(given) < ndim:
        raise StoredArrayError(
            f"band_axis={given} does not exist in {stored.name} of shape {stored.shape}; give a "
            f"number from 0 to {ndim - 1}."
        )
    axes = list(range(ndim))
    bands = None if given is None else given % ndim
    for axis in range(ndim):
        if len(axes) > 3 and stored.shape[axis] == 1 and axis != bands:
            axes.remove(axis)
    return axes


def _found(stored: StoredArray, axes: list[int]) -> tuple[int, str]:
    if stored.band_axis is not None:
        order = str(stored.attributes.get("interleave", stored.format.replace("_", " ")))
        return stored.band_axis, f"the file says so ({order.lower()})"
    if stored.axes is not None:
        names = {axis: stored.axes[axis] for axis in axes}
        bands = [axis for axis, name in names.items() if name.lower() in BAND_NAMES]
        others = [axis for axis, name in names.items() if name.lower() not in SPACE_NAMES]
        if len(bands) == 1:
            return bands[0], f"named {names[bands[0]]!r}"
        if len(others) == 1:
            space = " and ".join(repr(names[axis]) for axis in axes if axis != others[0])
            return others[0], f"the other axes are named {space}"
    if stored.wavelengths is not None:
        count = len(stored.wavelengths)
        fitting = [axis for axis in axes if stored.shape[axis] == count]
        if len(fitting) == 1:
            return fitting[0], f"as long as the list of {count} wavelengths"
    return _guessed({axis: stored.shape[axis] for axis in axes})


def _guessed(lengths: dict[int, int]) -> tuple[int, str]:
    """The axis that the shape alone suggests."""
    for axis in lengths:
        one, other = (n for a, n in lengths.items() if a != axis)
        if one == other != lengths[axis]:
            return axis, "guessed: the other two axes are equally long"
    for axis in lengths:
        if 2 * lengths[axis] <= min(n for a, n in lengths.items() if a != axis):
            return axis, "guessed: the axis is by far the shortest"
    return max(lengths), "guessed: the last axis, as nothing speaks for another"
