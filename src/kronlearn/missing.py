"""Restoring images and cubes in which some values, or all, are missing and stay so.

Missing are NaN and the value ``nodata``, if there is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import distance_transform_edt

from kronlearn import hyperspectral, images

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
    whole = _with_nearest(values, missing, channel_axis) if missing.any() else values
    if missing.any() and sigma is None and parameters.get("noise", "gaussian") == "gaussian":
        # What is filled in has no noise of its own.
        sigma = np.nan_to_num(noise_of_image(values, channel_axis, nodata))
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
    # Flat patches tell nothing of noise and are left out.
    whole = np.where(missing, values[~missing].mean(), values) if missing.any() else values
    return np.array(images.estimate_sigma(whole))


def _with_nearest(
    values: NDArray[Any], missing: NDArray[np.bool_], channel_axis: int | None
) -> NDArray[Any]:
    """An image in which what is missing is as the nearest of what is not; zero if all is."""
    if channel_axis is not None:
        planes, masks = (np.moveaxis(array, channel_axis, 0) for array in (values, missing))
        filled = [_with_nearest(*pair, None) for pair in zip(planes, masks, strict=True)]
        return np.stack(filled, channel_axis)
    if missing.all():
        return np.zeros_like(values)
    nearest = distance_transform_edt(missing, return_distances=False, return_indices=True)
    return values[tuple(nearest)]


def inpaint_image(
    values: NDArray[Any], channel_axis: int | None, nodata: float | int | None, **parameters: Any
) -> NDArray[Any]:
    """An image as :func:`kronlearn.images.inpaint` makes it; unchanged if all is missing."""
    missing = _missing(values, nodata)
    if missing.all() or not missing.any():
        return values
    return np.asarray(images.inpaint(values, missing, channel_axis=channel_axis, **parameters))
