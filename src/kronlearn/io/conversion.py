"""Conversion of arrays: to another dtype, with rounding and clipping, or another order of axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["bands_last", "converted", "fits", "float_dtype", "in_range", "in_stored_order"]


def fits(number: float | int, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype can hold a number; floats need not hold it exactly."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return math.isnan(number) or math.isfinite(dtype.type(number))
    if dtype.kind == "b" or not math.isfinite(number) or number != int(number):
        return False
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


def float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype that was asked for; ValueError unless it is a floating-point type."""
    try:
        result = np.dtype(dtype)
    except TypeError:
        result = None
    if result is None or result.kind != "f":
        raise ValueError(
            f"dtype={dtype!r} is not a floating-point type; pass float32 or float64, or leave it "
            "out to get that of the cube."
        )
    return result


def converted(
    values: NDArray[Any],
    dtype: np.dtype[Any],
    nodata: float | int | None = None,
    name: str = "The result",
) -> NDArray[Any]:
    """Values in a dtype: for integers rounded and clipped, with ``nodata`` in place of NaN.

    If there is NaN but no nodata value, the error calls the values ``name``.
    """
    values = np.asarray(values)
    dtype = np.dtype(dtype)
    if dtype.kind == "f" or values.dtype == dtype:
        return values.astype(dtype, copy=False)
    if dtype.kind == "b":
        return values > 0.5
    if values.dtype.kind in "iu":
        new, old = np.iinfo(dtype), np.iinfo(values.dtype)
        lowest, highest = max(new.min, old.min), min(new.max, old.max)
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
    """Floats in a dtype: for integers rounded and clipped, which overwrites ``values``."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # The largest float that does not exceed the largest integer.
        highest = values.dtype.type(limits.max)
        if int(highest) > limits.max:
            highest = np.nextafter(highest, values.dtype.type(0))
        np.clip(np.rint(values, out=values), limits.min, highest, out=values)
    return values.astype(dtype, copy=False)


def bands_last(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Values as (rows, columns, bands), given which of their axes these are.

    Two axes mean that there is one band. Any other axes have length one and are dropped.
    """
    values = np.moveaxis(values, axes, range(-len(axes), 0))
    values = values.reshape(values.shape[-len(axes) :])
    return values if len(axes) == 3 else values[..., None]


def in_stored_order(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Values (rows, columns, bands) in the axis order of the stored array, whose axes these are."""
    values = values if len(axes) == 3 else values[..., 0]
    return values.transpose(np.argsort(axes))
