"""Estimate how noisy an image is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.init import dct_factor
from kronlearn.cuda.arrays import is_on_gpu
from kronlearn.cuda.device import Gpu, current_gpu
from kronlearn.cuda.pixels import Contents, Pixels
from kronlearn.images.caller import warn_caller
from kronlearn.images.patch_grid import PatchGrid
from kronlearn.images.planes import (
    Mask,
    array_module,
    contents_of,
    contiguous,
    has_kernels,
    to_channels,
)

__all__ = ["estimate_sigma", "means_and_variances", "sigma_of_channel", "sigma_of_known"]

# Patches have about this many pixels, and about this many of them are examined.
_PATCH_PIXELS = 64
_N_PATCHES = 40000
# The fraction of patches, those with the least structure, that the noise is estimated from.
_QUIET = 0.15
# Frequencies below the first number count as structure, those from the second on as noise, as
# fractions of the highest.
_LOW, _HIGH = 0.43, 0.64
# Noise that depends on brightness is estimated for this many classes of brightness.
_CLASSES = 16
# Clipped patches are left out if at least this fraction of the patches remains.
_ENOUGH = 0.02
# The fewest patches to estimate noise from, if there are as many.
_MIN_PATCHES = 50
# Warn of correlated noise if the deviation of the quietest patches at low frequencies is from
# _CORRELATED to _SMOOTH times that at high ones and more than _STRONG times the contrast. White
# noise has a ratio of 0.9, and up to 2.3 on textures; photographs and textures without noise have
# up to 5.3 with 9 % of the contrast, or 3.61 with 34 %; strong noise blurred by 0.7 pixels has 3.64
# or more on photographs (3.0 on grass), blurred by one pixel 6 or more (3.63). Above _SMOOTH the
# image itself is smooth.
_CORRELATED, _SMOOTH, _STRONG = 3.62, 200.0, 0.1
# Where pixels are missing, patches are made smaller until this many are complete.
_MIN_COMPLETE = 500
# The median magnitude of a standard normal variable.
_MEDIAN_MAGNITUDE = 0.6744897501960817


def estimate_sigma(
    image: ArrayLike, *, channel_axis: int | None = None
) -> float | tuple[float, ...]:
    """Estimate the standard deviation of white noise in an image.

    The estimate is a median over the high frequencies of small patches that have little structure
    at low ones, so edges and textures hardly disturb it. Noise that is correlated from pixel to
    pixel is underestimated; a warning often says so (unless the image is on a GPU), but not where
    the correlation is weak or a texture hides it.

    Parameters
    ----------
    image : array
        An image with any number of spatial axes, of any real dtype; it may be on a GPU.
    channel_axis : int, optional
        The axis that holds channels.

    Returns
    -------
    float or tuple of float
        The standard deviation in the image's own units; with a channel axis, one per channel.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> from skimage.data import camera
    >>> noisy = camera() + np.random.default_rng(0).normal(0, 20, (512, 512))
    >>> abs(kl.images.estimate_sigma(noisy) - 20) < 1
    True
    """
    gpu = current_gpu() if is_on_gpu(image) else None
    channels = to_channels(image, channel_axis, gpu)
    contents = contents_of(channels, gpu)
    sigmas = tuple(map(sigma_of_channel, channels, contents, [gpu] * len(contents)))
    return sigmas[0] if channel_axis is None else sigmas


def sigma_of_channel(
    channel: NDArray[Any],
    contents: Contents,
    gpu: Gpu | None = None,
    size: int | None = None,
    name: str | None = "the image",
) -> float:
    """Return the standard deviation of white noise in one channel.

    The channel is finite, or in host memory with NaN for missing pixels. ``size`` is that of a
    patch along every axis. A warning calls the channel ``name``; without one there is none.
    """
    plane = np.squeeze(channel)
    if plane.size < 2:
        return 0.0
    shape, frequency = _patch_frequencies(plane, size)
    if gpu is not None and has_kernels(plane) and shape == (8, 8):
        sigma = _sigma_by_kernels(gpu, plane, contents, frequency)
    else:
        sigma = _sigma_of_plane(plane, shape, frequency, array_module(channel, gpu), name)
    # Anything less is the rounding error of a constant image.
    rounding = 1e-12 * max(abs(contents.low), abs(contents.high))
    return sigma if sigma > rounding else 0.0


def sigma_of_known(channel: NDArray[Any], missing: Mask) -> float:
    """Return the noise of a channel from patches without missing pixels; some pixel is known.

    Where missing pixels are scattered, only small patches are complete: with a fifth of the pixels
    missing 1 in 10^6 of 8 × 8, but 1 in 36 of 4 × 4, whose estimate is within 6 % on photographs.
    """
    known = np.where(missing, np.nan, channel.astype(np.float64))
    contents = Contents(float(np.nanmin(known)), float(np.nanmax(known)), None)
    plane = np.squeeze(known)
    size = max(_patch_frequencies(plane)[0]) if plane.size > 1 else 2
    while size > 2 and not _enough_complete(plane, _patch_frequencies(plane, size)[0]):
        size -= 1
    return sigma_of_channel(known, contents, size=size)


def _enough_complete(plane: NDArray[np.float64], shape: tuple[int, ...]) -> bool:
    """Whether many patches of a shape, or half of all, have no missing pixel."""
    patches = _grid(plane, shape).cut(np.isfinite(plane))
    complete = patches.all(axis=tuple(range(1, patches.ndim)))
    return int(np.count_nonzero(complete)) >= min(_MIN_COMPLETE, len(complete) / 2)


def _sigma_by_kernels(
    gpu: Gpu, plane: NDArray[Any], contents: Contents, frequency: NDArray[np.float64]
) -> float:
    """Do what :func:`_sigma_of_plane` does, for a plane on a GPU and patches of 8 × 8 pixels."""
    high = frequency >= _HIGH
    uses = np.where(high, np.cumsum(high).reshape(8, 8) - 1, -2)
    uses[(frequency > 0) & (frequency < _LOW)] = -1
    stride = _grid(plane, (8, 8)).stride[0]
    pixels = Pixels(gpu, contiguous(plane)[None])
    median = pixels.middle_magnitude(0, contents, uses, stride, (_QUIET, _ENOUGH), _MIN_PATCHES)
    return median / _MEDIAN_MAGNITUDE


def _sigma_of_plane(
    plane: NDArray[Any],
    shape: tuple[int, ...],
    frequency: NDArray[np.float64],
    xp: Any,
    name: str | None = None,
) -> float:
    """Return the noise of a plane from patches of a shape; warn if it seems to be correlated."""
    patches = _informative_patches(plane, shape, xp)
    if not len(patches):
        return 0.0
    # Without units, so that squares of numbers of any size neither overflow nor underflow.
    largest = float(np.max(np.abs(patches)))
    patches /= largest
    coefficients = _cosine_coefficients(patches, xp)
    low, high = _low_and_high(frequency, xp)
    structure = np.sum(np.square(coefficients[:, low]), axis=1)
    quiet = coefficients[_quietest(structure)]
    sigma = _robust_deviation(quiet[:, high]) * largest
    # Patches with two pixels a side have no low frequencies.
    if name is not None and len(quiet) >= _MIN_PATCHES and len(low):
        at_low = _robust_deviation(quiet[:, low]) * largest
        _warn_if_correlated(sigma, at_low, plane, largest, name)
    return sigma


def means_and_variances(
    channel: NDArray[Any], gpu: Gpu | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the noise variance of classes of about equally bright patches.

    The variance of a class is that of the high frequencies of its patches with the least structure
    at low ones. Patches most of whose pixels are saturated are left out.
    """
    plane = np.squeeze(channel)
    if plane.size < 2:
        return np.zeros(0), np.zeros(0)
    shape, frequency = _patch_frequencies(plane)
    xp = array_module(channel, gpu)
    patches = _grid(plane, shape).cut(plane, xp=xp).astype(np.float64)
    saturated = np.mean(patches == plane.max(), axis=tuple(range(1, patches.ndim))) > 0.5
    coefficients = _cosine_coefficients(patches[~saturated], xp)
    low, high = _low_and_high(frequency, xp)
    means = coefficients[:, 0] / math.sqrt(math.prod(shape))
    structure = np.sum(np.square(coefficients[:, low]), axis=1)
    noise = np.mean(np.square(coefficients[:, high]), axis=1)
    if is_on_gpu(means):
        assert gpu is not None
        means, structure, noise = map(gpu.download, (means, structure, noise))
    by_mean = np.argsort(means, kind="stable")
    # Anything less is the rounding error of constant patches.
    by_mean = by_mean[noise[by_mean] > 1e-24 * np.max(np.square(means), initial=0)]
    if not len(by_mean):
        return np.zeros(0), np.zeros(0)
    classes = []
    for members in np.array_split(by_mean, max(1, min(_CLASSES, len(by_mean) // _MIN_PATCHES))):
        quiet = members[_quietest(structure[members])]
        classes.append((means[quiet].mean(), noise[quiet].mean()))
    class_means, class_variances = np.array(classes).T
    return class_means, class_variances


def _quietest(structure: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of the patches with the least structure."""
    n_quiet = max(min(_MIN_PATCHES, len(structure)), math.ceil(_QUIET * len(structure)))
    return np.argsort(structure, kind="stable")[:n_quiet]


def _patch_frequencies(
    plane: NDArray[Any], size: int | None = None
) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """Return the shape of a plane's patches and the frequency of each cosine, at most 1."""
    size = size or max(2, round(_PATCH_PIXELS ** (1 / plane.ndim)))
    shape = tuple(min(size, length) for length in plane.shape)
    frequency = sum(np.ix_(*(np.arange(m) / m for m in shape)))
    return shape, frequency / np.max(frequency)


def _cosine_coefficients(patches: NDArray[np.float64], xp: Any) -> NDArray[np.float64]:
    """Return the coefficients (N, pixels) of patches (N, *shape) in orthonormal cosines."""
    for axis, m in enumerate(patches.shape[1:], start=1):
        moved = np.moveaxis(patches, axis, -1)
        # Not a BLAS product, whose rounding depends on the number of threads.
        factor = xp.asarray(dct_factor(m, m))
        patches = np.moveaxis(np.einsum("...i,ij->...j", moved, factor), -1, axis)
    return patches.reshape(len(patches), math.prod(patches.shape[1:]))


def _low_and_high(frequency: NDArray[np.float64], xp: Any) -> tuple[Any, Any]:
    """Return the indices of the cosines that count as structure, and of those that are noise."""
    low, high = (frequency > 0) & (frequency < _LOW), frequency >= _HIGH
    return xp.asarray(np.flatnonzero(low)), xp.asarray(np.flatnonzero(high))


def _robust_deviation(coefficients: NDArray[Any]) -> float:
    """Return the standard deviation of normal variables from their median magnitude."""
    return float(np.median(np.abs(coefficients)) / _MEDIAN_MAGNITUDE)


def _warn_if_correlated(
    high: float, low: float, plane: NDArray[Any], unit: float, name: str
) -> None:
    """Warn if quiet patches vary more at low frequencies than at high ones, unlike white noise.

    ``high`` and ``low`` are their standard deviations there.
    """
    subset = plane[tuple(slice(None, None, max(1, size // 256)) for size in plane.shape)]
    # In a unit in which squares of numbers of any size neither overflow nor underflow.
    contrast = float(np.std(subset.astype(np.float64) / unit)) * unit
    if _CORRELATED * high < low < _SMOOTH * high and low > _STRONG * contrast:
        warn_caller(
            f"The noise seems to be correlated from pixel to pixel, or a texture fills {name}: "
            f"its quietest parts vary by {low:.3g} at low frequencies, but by only {high:.3g} at "
            "the high ones that the noise is estimated from. Pass sigma if you know it."
        )


def _grid(plane: NDArray[Any], shape: tuple[int, ...]) -> PatchGrid:
    """Return a grid of about as many patches of a plane as are to be examined."""
    n_positions = [size - m + 1 for size, m in zip(plane.shape, shape, strict=True)]
    stride = 1
    while math.prod(-(-n // stride) for n in n_positions) > _N_PATCHES:
        stride += 1
    return PatchGrid(plane.shape, shape, (stride,) * plane.ndim, border=False)


def _informative_patches(
    plane: NDArray[Any], shape: tuple[int, ...], xp: Any
) -> NDArray[np.float64]:
    """Return those patches (N, *shape), without their means, that tell something about noise.

    Left out are flat patches, those with missing pixels (NaN) and, if enough others remain, those
    that touch the ends of the image's range, where noise may have been clipped.
    """
    patches = _grid(plane, shape).cut(plane, xp=xp).astype(np.float64)
    pixel_axes = tuple(range(1, patches.ndim))
    if plane.dtype.kind == "f":
        patches = patches[np.isfinite(patches).all(axis=pixel_axes)]
        if not len(patches):
            raise ValueError("Too many pixels are missing to estimate the noise; pass sigma.")
    low, high = patches.min(axis=pixel_axes), patches.max(axis=pixel_axes)
    uneven = low < high
    unclipped = uneven & (low > np.nanmin(plane)) & (high < np.nanmax(plane))
    enough = max(_MIN_PATCHES, _ENOUGH * int(np.count_nonzero(uneven)))
    patches = patches[unclipped if int(np.count_nonzero(unclipped)) >= enough else uneven]
    return patches - patches.mean(axis=pixel_axes, keepdims=True)
