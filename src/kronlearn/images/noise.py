"""How noisy an image is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.init import dct_factor
from kronlearn.cuda.arrays import is_on_gpu
from kronlearn.cuda.device import Gpu, current_gpu
from kronlearn.cuda.pixels import Contents, Pixels
from kronlearn.images.patch_grid import PatchGrid
from kronlearn.images.planes import contents_of, contiguous, image_array, knows, place_of

__all__ = ["estimate_sigma", "means_and_variances", "sigma_of_channel", "sigma_of_known"]

# Patches have about this many pixels, and about this many of them are looked at.
_PATCH_PIXELS = 64
_PATCHES = 40000
# The share of patches, those with the least structure, from which the noise is read; and what
# counts as structure and as noise, as fractions of the highest frequency.
_QUIET = 0.15
_LOW, _HIGH = 0.43, 0.64
# Noise that depends on brightness is read from so many classes of it.
_CLASSES = 16
# The share of patches that suffices to leave out the others.
_ENOUGH = 0.02
# And the fewest that are looked at, if there are so many.
_FEWEST = 50
# Noise is taken for correlated if the quietest patches vary so many times as much at low
# frequencies, up to what smooth images do, and by this share of the contrast. White noise has 0.9,
# photographs and textures without noise up to 5.3 with 9 % of the contrast, or 3.6 with 34 %; noise
# that was blurred by one pixel has 4.5 or more with 19 % or more.
_CORRELATED, _SMOOTH, _STRONG = 4.0, 200.0, 0.1
# Where pixels are missing, patches are made smaller until so many are complete.
_COMPLETE = 500
# A normal variable is as often below as above this many standard deviations in magnitude.
_MEDIAN_MAGNITUDE = 0.6744897501960817


def estimate_sigma(
    image: ArrayLike, *, channel_axis: int | None = None
) -> float | tuple[float, ...]:
    """Estimate the standard deviation of white noise in an image.

    The estimate is a median over the high frequencies of small patches that have little structure
    at low ones, so edges and textures hardly disturb it. Noise that is correlated from pixel to
    pixel is underestimated; a warning says so (unless the image is on a GPU).

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
    there = current_gpu() if is_on_gpu(image) else None
    channels = image_array(image, channel_axis, there)
    contents = contents_of(channels, there)
    found = tuple(map(sigma_of_channel, channels, contents, [there] * len(contents)))
    return found[0] if channel_axis is None else found


def sigma_of_channel(
    channel: NDArray[Any], contents: Contents, gpu: Gpu | None = None, size: int | None = None
) -> float:
    """The standard deviation of white noise in one channel, from patches of a size.

    The channel is finite, or in memory with NaN for missing pixels.
    """
    plane = np.squeeze(channel)
    if plane.size < 2:
        return 0.0
    shape, frequency = _patch(plane, size)
    if gpu is not None and knows(plane) and shape == (8, 8):
        found = _found_by_kernels(gpu, plane, contents, frequency)
    else:
        found = _found(plane, shape, frequency, place_of(channel, gpu))
    # What rounding leaves of a constant is no noise.
    rounding = 1e-12 * max(abs(contents.low), abs(contents.high))
    return found if found > rounding else 0.0


def sigma_of_known(channel: NDArray[Any], missing: NDArray[np.bool_]) -> float:
    """The same of a channel with missing pixels, not all, from patches without any.

    Where missing pixels are scattered, only small patches are complete: with a fifth of the pixels
    missing 1 in 10^6 of 8 × 8, but 1 in 36 of 4 × 4, whose estimate is within 6 % on photographs.
    """
    known = np.where(missing, np.nan, channel.astype(np.float64))
    contents = Contents(float(np.nanmin(known)), float(np.nanmax(known)), None)
    plane = np.squeeze(known)
    size = max(_patch(plane)[0]) if plane.size > 1 else 2
    while size > 2 and not _enough_complete(plane, _patch(plane, size)[0]):
        size -= 1
    return sigma_of_channel(known, contents, size=size)


def _enough_complete(plane: NDArray[np.float64], shape: tuple[int, ...]) -> bool:
    """Whether many patches of a shape, or half of all, have no missing pixel."""
    patches = _grid(plane, shape).cut(np.isfinite(plane))
    complete = patches.all(axis=tuple(range(1, patches.ndim)))
    return int(np.count_nonzero(complete)) >= min(_COMPLETE, len(complete) / 2)


def _found_by_kernels(
    gpu: Gpu, plane: NDArray[Any], contents: Contents, frequency: NDArray[np.float64]
) -> float:
    """What :func:`_found` finds, of a plane on a GPU with patches of 8 × 8 pixels."""
    uses = np.where(frequency >= _HIGH, np.cumsum(frequency >= _HIGH).reshape(8, 8) - 1, -2)
    uses[(frequency > 0) & (frequency < _LOW)] = -1
    stride = _stride([size - 7 for size in plane.shape])
    pixels = Pixels(gpu, contiguous(plane)[None])
    middle = pixels.middle_magnitude(0, contents, uses, stride, (_QUIET, _ENOUGH), _FEWEST)
    return middle / _MEDIAN_MAGNITUDE


def _found(
    plane: NDArray[Any], shape: tuple[int, ...], frequency: NDArray[np.float64], xp: Any
) -> float:
    """The noise of a plane, from patches of a shape."""
    patches = _patches(plane, shape, xp)
    if not len(patches):
        return 0.0
    # Numbers of any size may be squared after this.
    largest = float(np.max(np.abs(patches)))
    patches /= largest
    patches = _cosines(patches, xp)
    low, high = _parts(frequency, xp)
    structure = np.sum(np.square(patches[:, low]), axis=1)
    n_quiet = max(min(_FEWEST, len(patches)), math.ceil(_QUIET * len(patches)))
    quiet = patches[np.argsort(structure, kind="stable")[:n_quiet]]
    fast = _deviation(quiet[:, high]) * largest
    # Patches of two pixels a side have no low frequencies.
    if len(quiet) >= _FEWEST and len(low):
        _check_correlation(fast, _deviation(quiet[:, low]) * largest, plane, largest)
    return fast


def means_and_variances(
    channel: NDArray[Any], gpu: Gpu | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means, and variances of the noise, of classes of patches that are about equally bright.

    Variances are those of high frequencies, in the patches of every class with the least structure
    at low ones. Patches that are mostly as bright as the image can be tell nothing about noise.
    """
    plane = np.squeeze(channel)
    if plane.size < 2:
        return np.zeros(0), np.zeros(0)
    shape, frequency = _patch(plane)
    stride = _stride([size - m + 1 for size, m in zip(plane.shape, shape, strict=True)])
    grid = PatchGrid(plane.shape, shape, (stride,) * plane.ndim, border=False)
    xp = place_of(channel, gpu)
    patches = grid.cut(plane, xp=xp).astype(np.float64)
    saturated = np.mean(patches == plane.max(), axis=tuple(range(1, patches.ndim))) > 0.5
    patches = _cosines(patches[~saturated], xp)
    low, high = _parts(frequency, xp)
    means = patches[:, 0] / math.sqrt(math.prod(shape))
    structure = np.sum(np.square(patches[:, low]), axis=1)
    noise = np.mean(np.square(patches[:, high]), axis=1)
    if is_on_gpu(means):
        assert gpu is not None
        means, structure, noise = map(gpu.download, (means, structure, noise))
    order = np.argsort(means, kind="stable")
    # What rounding leaves of a constant is no noise.
    order = order[noise[order] > 1e-24 * np.max(np.square(means), initial=0)]
    found = []
    for some in np.array_split(order, max(1, min(_CLASSES, len(order) // _FEWEST))):
        if not len(some):
            continue
        n_quiet = max(min(_FEWEST, len(some)), math.ceil(_QUIET * len(some)))
        quiet = some[np.argsort(structure[some], kind="stable")[:n_quiet]]
        found.append((means[quiet].mean(), noise[quiet].mean()))
    return tuple(np.array(found).reshape(-1, 2).T)  # type: ignore[return-value]


def _patch(
    plane: NDArray[Any], size: int | None = None
) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """The shape of patches of a plane, and how high the frequency of each cosine is, at most 1."""
    size = size or max(2, round(_PATCH_PIXELS ** (1 / plane.ndim)))
    shape = tuple(min(size, length) for length in plane.shape)
    frequency = sum(np.ix_(*(np.arange(m) / m for m in shape)))
    return shape, frequency / np.max(frequency)


def _cosines(patches: NDArray[np.float64], xp: Any) -> NDArray[np.float64]:
    """Coefficients (N, pixels) of patches (N, *shape) in orthonormal cosines."""
    for axis, m in enumerate(patches.shape[1:], start=1):
        moved = np.moveaxis(patches, axis, -1)
        # Not a BLAS product: its rounding depends on the number of threads.
        factor = xp.asarray(dct_factor(m, m))
        patches = np.moveaxis(np.einsum("...i,ij->...j", moved, factor), -1, axis)
    return patches.reshape(len(patches), math.prod(patches.shape[1:]))


def _parts(frequency: NDArray[np.float64], xp: Any) -> tuple[Any, Any]:
    """Which cosines count as structure, and which as noise."""
    low, high = (frequency > 0) & (frequency < _LOW), frequency >= _HIGH
    return xp.asarray(np.flatnonzero(low)), xp.asarray(np.flatnonzero(high))


def _deviation(coefficients: NDArray[Any]) -> float:
    """The standard deviation of normal variables, outliers aside."""
    return float(np.median(np.abs(coefficients)) / _MEDIAN_MAGNITUDE)


def _check_correlation(fast: float, slow: float, plane: NDArray[Any], unit: float) -> None:
    """Warn if the quietest parts of a plane vary far more slowly than white noise does."""
    some = plane[tuple(slice(None, None, max(1, size // 256)) for size in plane.shape)]
    # Numbers of any size may be squared in that unit.
    contrast = float(np.std(some.astype(np.float64) / unit)) * unit
    if _CORRELATED * fast < slow < _SMOOTH * fast and slow > _STRONG * contrast:
        warnings.warn(
            "The noise seems to be correlated from pixel to pixel, or a texture fills the image: "
            f"its quietest parts vary by {slow:.3g} at low frequencies, but by only {fast:.3g} at "
            "the high ones that the noise is estimated from. Pass sigma if you know it.",
            stacklevel=5,
        )


def _stride(places: Sequence[int]) -> int:
    """How far apart patches are of which there are about as many as are wanted."""
    stride = 1
    while math.prod(-(-n // stride) for n in places) > _PATCHES:
        stride += 1
    return stride


def _grid(plane: NDArray[Any], shape: tuple[int, ...]) -> PatchGrid:
    """The patches of a plane that are looked at."""
    stride = _stride([size - m + 1 for size, m in zip(plane.shape, shape, strict=True)])
    return PatchGrid(plane.shape, shape, (stride,) * plane.ndim, border=False)


def _patches(plane: NDArray[Any], shape: tuple[int, ...], xp: Any) -> NDArray[np.float64]:
    """Patches (N, *shape), without their means, on a grid with about as many points as are wanted.

    Those that tell nothing about noise are left out: flat ones, ones with missing pixels (NaN),
    and, if enough others remain, those with pixels at the ends of the image's range, where noise
    may have been cut off.
    """
    patches = _grid(plane, shape).cut(plane, xp=xp).astype(np.float64)
    pixels = tuple(range(1, patches.ndim))
    if plane.dtype.kind == "f":
        patches = patches[np.isfinite(patches).all(axis=pixels)]
        if not len(patches):
            raise ValueError("Too many pixels are missing to estimate the noise; pass sigma.")
    low, high = patches.min(axis=pixels), patches.max(axis=pixels)
    uneven = low < high
    uncut = uneven & (low > np.nanmin(plane)) & (high < np.nanmax(plane))
    enough = max(_FEWEST, _ENOUGH * int(np.count_nonzero(uneven)))
    patches = patches[uncut if int(np.count_nonzero(uncut)) >= enough else uneven]
    return patches - patches.mean(axis=pixels, keepdims=True)
