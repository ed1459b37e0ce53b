"""Numbers in another dtype, rounded and in range for integers, or with axes in another order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["bands_last", "converted", "fits", "floating", "in_range", "in_stored_order"]


def fits(number: float | int, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype can hold a number."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return math.isnan(number) or math.isfinite(dtype.type(number))
    if dtype.kind == "b" or not math.isfinite(number) or number != int(number):
        return False
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


def floating(dtype: DTypeLike) -> np.dtype[Any]:
    """A dtype of floats for results."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.kind != "f":
        raise ValueError(
            f"dtype={dtype!r} is not a floating-point type; pass float32 or float64, or leave it "
            "out to get that of the cube."
        )
    return found


def converted(
    values: NDArray[Any],
    dtype: np.dtype[Any],
    nodata: float | int | None = None,
    name: str = "The result",
) -> NDArray[Any]:
    """Values in a dtype: for integers rounded and kept in range, NaN as the value for no data."""
    values = np.asarray(values)
    dtype = np.dtype(dtype)
    if dtype.kind == "f" or values.dtype == dtype:
        return values.astype(dtype, copy=False)
    if values.dtype.kind == "b":
        return values.astype(dtype)
    if dtype.kind == "b":
        return values > 0.5
    if values.dtype.kind in "iu" and dtype.kind in "iu":
        kept, given = np.iinfo(dtype), np.iinfo(values.dtype)
        lowest, highest = max(kept.min, given.min), min(kept.max, given.max)
        return np.clip(values, lowest, highest).astype(dtype)
    values = np.array(values, np.float32 if values.itemsize < 4 else values.dtype)
    missing = np.isnan(values)
    if missing.any():
        if nodata is None or math.isnan(nodata):
            raise ValueError(
                f"{name}: the values contain NaN, which {dtype} cannot hold, and no nodata value "
                "is declared; pass nodata= to open_cube, or write floats."
            )
        values[missing] = 0
    result = in_range(values, dtype)
    if missing.any():
        result[missing] = nodata
    return result


def in_range(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Floats, used up, in a dtype: for integers rounded and kept in its range."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # The largest float that does not exceed the largest integer.
        highest = values.dtype.type(limits.max)
        if int(highest) > limits.max:
            highest = np.nextafter(highest, values.dtype.type(0))
        np.clip(np.rint(values, out=values), limits.min, highest, out=values)
    return values.astype(dtype, copy=False)


def bands_last(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Values as (rows, columns, bands), which are these of their axes; all others have length one.

    There is one band where only two axes are given.
    """
    values = np.moveaxis(values, axes, range(-len(axes), 0))
    values = values.reshape(values.shape[-len(axes) :])
    return values if len(axes) == 3 else values[..., None]


def in_stored_order(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Values (rows, columns, bands) with their axes in the order that they have in an array."""
    values = values if len(axes) == 3 else values[..., 0]
    return values.transpose(np.argsort(axes))
