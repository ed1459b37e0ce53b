"""Which axis of a stored array is that of the bands, and why."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from kronlearn.io.formats.conventions import BAND_NAMES, SPACE_NAMES
from kronlearn.io.stored import StoredArray, StoredArrayError

__all__ = ["BandAxis", "find_band_axis"]


@dataclass(frozen=True)
class BandAxis:
    """The axes of a cube."""

    #: None for one band in two dimensions.
    axis: int | None
    #: Rows and columns.
    space: tuple[int, int]
    #: How the axis was found, for the user.
    reason: str
    #: Whether only the shape speaks for it.
    is_guess: bool = False


def find_band_axis(stored: StoredArray, given: int | None) -> BandAxis:
    """The axes of rows, columns and bands: those given, or what speaks for them.

    Raises
    ------
    StoredArrayError
        If the array does not have two or three dimensions, not counting those of length one.
    """
    axes = _long_axes(stored, given)
    if len(axes) == 2 and given is None:
        return BandAxis(None, (axes[0], axes[1]), "one band: there are two dimensions")
    if len(axes) == 2:
        raise stored.error(
            f"has two dimensions, {stored.shape}, and so one band; leave out band_axis={given}"
        )
    if len(axes) != 3:
        raise stored.error(
            f"has shape {stored.shape}; a cube has two or three dimensions, or more of length one"
        )
    if given is not None:
        axis, reason, is_guess = operator.index(given) % stored.ndim, "given", False
        if stored.band_axis is not None and axis != stored.band_axis:
            raise stored.error(
                f"has its bands along axis {stored.band_axis}, as its format says; leave out "
                f"band_axis={given}"
            )
    else:
        axis, reason, is_guess = _found(stored, axes)
    rows, columns = (a for a in axes if a != axis)
    return BandAxis(axis, (rows, columns), reason, is_guess)


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


def _found(stored: StoredArray, axes: list[int]) -> tuple[int, str, bool]:
    if stored.band_axis is not None:
        order = str(stored.attributes.get("interleave", stored.format.replace("_", " ")))
        return stored.band_axis, f"the file says so ({order.lower()})", False
    if stored.axes is not None:
        names = {axis: stored.axes[axis] for axis in axes}
        bands = [axis for axis, name in names.items() if name.lower() in BAND_NAMES]
        others = [axis for axis, name in names.items() if name.lower() not in SPACE_NAMES]
        if len(bands) == 1:
            return bands[0], f"named {names[bands[0]]!r}", False
        if len(others) == 1:
            space = " and ".join(repr(names[axis]) for axis in axes if axis != others[0])
            return others[0], f"the other axes are named {space}", False
    if stored.wavelengths is not None:
        count = len(stored.wavelengths)
        fitting = [axis for axis in axes if stored.shape[axis] == count]
        if len(fitting) == 1:
            return fitting[0], f"as long as the list of {count} wavelengths", False
    return _guessed({axis: stored.shape[axis] for axis in axes})


def _guessed(lengths: dict[int, int]) -> tuple[int, str, bool]:
    """The axis that the shape alone suggests."""
    for axis in lengths:
        one, other = (n for a, n in lengths.items() if a != axis)
        if one == other != lengths[axis]:
            return axis, "guessed: the other two axes are equally long", True
    for axis in lengths:
        if 2 * lengths[axis] <= min(n for a, n in lengths.items() if a != axis):
            return axis, "guessed: the axis is by far the shortest", True
    return max(lengths), "guessed: the last axis, as nothing speaks for another", True
