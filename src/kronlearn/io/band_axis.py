"""The axes of a cube in a stored array: which has the bands, and how that was found out."""

from __future__ import annotations

import operator

from kronlearn.io.formats.conventions import BAND_NAMES, SPACE_NAMES
from kronlearn.io.stored import StoredArray

__all__ = ["cube_axes"]


def cube_axes(stored: StoredArray, band_axis: int | None) -> tuple[tuple[int, ...], str]:
    """The axes of the rows, the columns and, if there is one, the bands; and the reason for these.

    If there are more than three axes, those of length one are left out.
    """
    shape, ndim = stored.shape, stored.ndim
    if band_axis is not None and not -ndim <= operator.index(band_axis) < ndim:
        raise stored.error(
            f"has shape {shape}: band_axis={band_axis} does not exist; give a number from 0 to "
            f"{ndim - 1}"
        )
    bands = None if band_axis is None else band_axis % ndim
    axes = list(range(ndim))
    for axis in range(ndim):
        if len(axes) > 3 and shape[axis] == 1 and axis != bands:
            axes.remove(axis)
    if len(axes) not in (2, 3):
        raise stored.error(
            f"has shape {shape}; a cube has two or three dimensions besides those of length one"
        )
    if len(axes) == 2:
        if band_axis is not None:
            raise stored.error(
                f"has two dimensions, so it is one band; leave out band_axis={band_axis}"
            )
        return tuple(axes), "one band: there are two dimensions"
    reason = "given"
    if bands is None:
        bands, reason = _find_bands(stored, axes)
    elif stored.band_axis not in (None, bands):
        raise stored.error(
            f"has its bands along axis {stored.band_axis}, as its format says; leave out "
            f"band_axis={band_axis}"
        )
    return (*(axis for axis in axes if axis != bands), bands), reason


def _find_bands(stored: StoredArray, axes: list[int]) -> tuple[int, str]:
    """The axis of the bands, one of three axes, and the reason for it."""
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
    return _guess_bands({axis: stored.shape[axis] for axis in axes})


def _guess_bands(lengths: dict[int, int]) -> tuple[int, str]:
    """The most likely axis of the bands, given the lengths of three axes, and the reason for it."""
    others = {axis: [n for a, n in lengths.items() if a != axis] for axis in lengths}
    for axis, (one, other) in others.items():
        if one == other != lengths[axis]:
            return axis, "guessed: the other two axes are equally long"
    for axis in lengths:
        if 2 * lengths[axis] <= min(others[axis]):
            return axis, "guessed: the axis is by far the shortest"
    return max(lengths), "guessed: the last axis, because nothing suggests another"
