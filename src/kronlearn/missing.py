"""Work on images and cubes in which some or all values are missing.

NaN is missing, and so is the value ``nodata`` unless it is None. Channels and bands are along
``channel_axis``, the last axis; it is None for images without channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn import hyperspectral, images
from kronlearn.images.noise import sigma_of_known

__all__ = ["denoise_cube", "denoise_image", "inpaint_image", "noise_of_cube", "noise_of_image"]


def _missing(values: NDArray[Any], nodata: float | int | None) -> NDArray[np.bool_]:
    """A mask of the missing values."""
    missing = np.isnan(values)
    return missing if nodata is None else missing | (values == nodata)


def denoise_cube(
    values: NDArray[Any],
    channel_axis: int,
    nodata: float | int | None,
    bad_bands: NDArray[np.bool_] | None,
    **parameters: Any,
) -> NDArray[Any]:
    """Denoise a cube with :func:`kronlearn.hyperspectral.denoise`; missing values stay missing."""
    missing = _missing(values, nodata)
    if missing.all():
        return values
    cube = _cube(values, channel_axis, nodata, bad_bands)
    return np.where(missing, values, hyperspectral.denoise(cube, **parameters))


def noise_of_cube(
    values: NDArray[Any],
    channel_axis: int,
    nodata: float | int | None,
    bad_bands: NDArray[np.bool_] | None,
) -> NDArray[np.float64]:
    """The noise of every band; NaN for bad bands, and if all values of the cube are missing."""
    if _missing(values, nodata).all():
        return np.full(values.shape[channel_axis], np.nan)
    return hyperspectral.estimate_noise(_cube(values, channel_axis, nodata, bad_bands))


def _cube(
    values: NDArray[Any],
    band_axis: int,
    nodata: float | int | None,
    bad_bands: NDArray[np.bool_] | None,
) -> hyperspectral.Cube:
    cube = hyperspectral.open_cube(values, band_axis, nodata=nodata)
    cube.bad_bands = bad_bands
    return cube


def denoise_image(
    values: NDArray[Any],
    channel_axis: int | None,
    nodata: float | int | None,
    sigma: ArrayLike | None,
    **parameters: Any,
) -> NDArray[Any]:
    """Denoise an image with :func:`kronlearn.images.denoise`; missing values stay missing."""
    missing = _missing(values, nodata)
    if missing.all():
        return values
    known = values
    if missing.any():
        spatial = tuple(range(values.ndim))[:channel_axis]
        # A channel that is missing altogether cannot be filled in: it counts as known zeros.
        empty = missing.all(axis=spatial, keepdims=True)
        known = np.where(empty, values.dtype.type(0), values)
        parameters["mask"] = missing & ~empty
    result = images.denoise(known, sigma, channel_axis=channel_axis, **parameters)
    return np.where(missing, values, result)


def noise_of_image(
    values: NDArray[Any], channel_axis: int | None, nodata: float | int | None
) -> NDArray[np.float64]:
    """The noise of an image, or of each of its channels; NaN if all values are missing."""
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
    """Fill in missing values with :func:`kronlearn.images.inpaint`, unless all are missing."""
    missing = _missing(values, nodata)
    if missing.all() or not missing.any():
        return values
    return np.asarray(images.inpaint(values, missing, channel_axis=channel_axis, **parameters))
