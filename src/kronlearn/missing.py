"""Restoring images and cubes in which some values, or all, are missing and stay so.

Missing are NaN and the value ``nodata``, if there is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn import hyperspectral, images
from kronlearn.images.noise import sigma_of_known

__all__ = ["denoise_cube", "denoise_image", "inpaint_image", "noise_of_cube", "noise_of_image"]


def _missing(values: NDArray[Any], nodata: float | int | None) -> NDArray[np.bool_]:
    """Where values are missing."""
    declared = np.zeros(values.shape, bool) if nodata is None else values == nodata
    return declared | np.isnan(values)


def denoise_cube(
    values: NDArray[Any], channel_axis: int, nodata: float | int | None, **parameters: Any
) -> NDArray[Any]:
    """A cube as :func:`kronlearn.hyperspectral.denoise` makes it."""
    missing = _missing(values, nodata)
    if missing.all():
        return values
    result = hyperspectral.denoise(values, band_axis=channel_axis, nodata=nodata, **parameters)
    return np.where(missing, values, result)


def noise_of_cube(
    values: NDArray[Any], channel_axis: int, nodata: float | int | None
) -> NDArray[np.float64]:
    """The noise of every band; NaN where there are no data."""
    if _missing(values, nodata).all():
        return np.full(values.shape[channel_axis], np.nan)
    return hyperspectral.estimate_noise(values, band_axis=channel_axis, nodata=nodata)


def denoise_image(
    values: NDArray[Any],
    channel_axis: int | None,
    nodata: float | int | None,
    sigma: ArrayLike | None,
    **parameters: Any,
) -> NDArray[Any]:
    """An image as :func:`kronlearn.images.denoise` makes it."""
    missing = _missing(values, nodata)
    if missing.all():
        return values
    if missing.any():
        spatial = tuple(range(values.ndim))
        if channel_axis is not None:
            spatial = tuple(np.delete(spatial, channel_axis))
        # Nothing can be filled in where a whole channel is missing: it counts as known zeros.
        empty = missing.all(axis=spatial, keepdims=True)
        whole = np.where(empty, values.dtype.type(0), values)
        parameters["mask"] = missing & ~empty
    else:
        whole = values
    result = images.denoise(whole, sigma, channel_axis=channel_axis, **parameters)
    return np.where(missing, values, result)


def noise_of_image(
    values: NDArray[Any], channel_axis: int | None, nodata: float | int | None
) -> NDArray[np.float64]:
    """The noise of an image, or of its channels; NaN where there are no data."""
    if channel_axis is not None:
        channels = np.moveaxis(values, channel_axis, 0)
        return np.array([noise_of_image(channel, None, nodata) for channel in channels])
    missing = _missing(values, nodata)
    if missing.all():
        return np.array(np.nan)
    if missing.any():
        return np.array(sigma_of_known(values, missing))
    return np.array(images.estimate_sigma(values))


def inpaint_image(
    values: NDArray[Any], channel_axis: int | None, nodata: float | int | None, **parameters: Any
) -> NDArray[Any]:
    """An image as :func:`kronlearn.images.inpaint` makes it; unchanged if all is missing."""
    missing = _missing(values, nodata)
    if missing.all() or not missing.any():
        return values
    return np.asarray(images.inpaint(values, missing, channel_axis=channel_axis, **parameters))
