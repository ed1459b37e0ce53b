"""The noise level of every band of a cube."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.blas import single_threaded_blas
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.hyperspectral.blocks import usable_bands
from kronlearn.hyperspectral.statistics import Statistics, gather
from kronlearn.images.noise import sigma_of_channel
from kronlearn.images.planes import contents_of
from kronlearn.io.cubes import Cube, open_cube

__all__ = ["estimate_noise", "noise_of", "signal_edge"]

# With fewer bands, or fewer differences per band, each band is estimated alone.
_FEWEST_BANDS = 8
_DIFFERENCES_PER_BAND = 4
_ITERATIONS = 4
# The median magnitude of a normal variable, in standard deviations.
_MEDIAN_MAGNITUDE = 0.6744897501960817
# At most this fraction of a band's noise is assumed to be in the span of the common components.
_MOST_LEVERAGE = 0.95
# Bands estimated alone are read in strips of this many rows, and at most this many pixels.
_PIXELS, _STRIP = 1 << 22, 64


def estimate_noise(
    cube: Any,
    *,
    band_axis: int | None = None,
    dataset: str | None = None,
    nodata: float | int | None = None,
    n_jobs: int | None = None,
) -> NDArray[np.float64]:
    """Estimate the standard deviation of the noise in every band of a cube.

    Noise is what varies from pixel to pixel in one band and in no other. Differences of
    neighbouring pixels remove what pixels have in common; the leading eigenvectors of the
    correlations of these differences span what bands have in common; the remaining variance of a
    band is its noise. The cube is read once, in blocks of rows. With fewer than 8 bands, or few
    pixels, each band is estimated alone, by :func:`kronlearn.images.estimate_sigma`.

    Parameters
    ----------
    cube : array, path or Cube
        Anything that :func:`open_cube` takes.
    band_axis : int, optional
        The axis of the bands; by default that stated in the file, or guessed from the shape.
    dataset : str, optional
        The name of the array in a file that holds several.
    nodata : float or int, optional
        The value that marks missing data; by default that stated in the file.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.

    Returns
    -------
    array of shape (bands,)
        In the units of the cube; NaN for bands with little or no data and for bands marked as bad.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> rng = np.random.default_rng(0)
    >>> clean = np.add.outer(np.arange(64), np.arange(64))[..., None] * rng.random(20)
    >>> noisy = clean + np.linspace(1, 5, 20) * rng.standard_normal((64, 64, 20))
    >>> kl.hyperspectral.estimate_noise(noisy)[[0, 19]].round().tolist()
    [1.0, 5.0]
    """
    opened = open_cube(cube, band_axis, dataset, nodata)
    bands = usable_bands(opened)
    n_threads = resolve_n_jobs(n_jobs)
    with single_threaded_blas():
        statistics = gather(opened, bands, with_differences=True, n_threads=n_threads)
        return noise_of(opened, bands, statistics.checked(opened.name))


def noise_of(cube: Cube, bands: NDArray[np.bool_], statistics: Statistics) -> NDArray[np.float64]:
    """The noise of every band, NaN for those not used, from the statistics of the others."""
    result = np.full(len(bands), np.nan)
    differences = np.concatenate(statistics.differences)
    n, n_bands = differences.shape
    if n_bands < _FEWEST_BANDS or n < _DIFFERENCES_PER_BAND * n_bands:
        result[bands] = _band_by_band(cube, bands)
        return result
    spread = np.sqrt(np.mean(np.square(differences), axis=0))
    # The rounding errors of a constant band are not noise.
    varies = spread > 1e-12 * np.abs(statistics.mean)
    sigma = np.zeros(n_bands)
    sigma[varies] = spread[varies] * _uncommon(differences[:, varies] / spread[varies])
    result[bands] = sigma
    return result


def signal_edge(n_bands: int, n_samples: int) -> float:
    """The largest eigenvalue to expect of the sample covariance of white noise of variance one.

    This is the edge of the Marchenko–Pastur distribution.
    """
    return float((1 + np.sqrt(n_bands / n_samples)) ** 2)


def _uncommon(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard deviation of the part of each column (N, m) that it shares with no other."""
    n, m = samples.shape
    if not m:
        return np.zeros(0)
    covariance = samples.T @ samples / n
    # The residual of the regression of each column on all others. Because the others are noisy,
    # too, it is too large; the iterations correct it.
    inverse = np.linalg.inv(covariance + 1e-10 * np.eye(m))
    sigma = np.sqrt(n / (n - m + 1) / np.diag(inverse))
    for _ in range(_ITERATIONS):
        values, vectors = np.linalg.eigh(covariance / np.multiply.outer(sigma, sigma))
        first = int(np.searchsorted(values, signal_edge(m, n)))
        common = vectors[:, first:]
        squares = np.square(common)
        own = np.sqrt(1 - np.minimum(squares.sum(axis=1), _MOST_LEVERAGE))
        rest = np.diag(covariance) / sigma**2 - squares @ values[first:]
        sigma = sigma * np.sqrt(np.maximum(rest, 1e-10)) / own
    scaled = (samples / sigma).astype(np.float32)
    common = common.astype(np.float32)
    scaled -= (scaled @ common) @ common.T
    # The median ignores outliers and regions with more noise than most.
    median = np.partition(np.abs(scaled, out=scaled), n // 2, axis=0)[n // 2]
    return np.asarray(sigma * median / (_MEDIAN_MAGNITUDE * own), np.float64)


def _band_by_band(cube: Cube, bands: NDArray[np.bool_]) -> list[float]:
    """The noise of each band estimated alone, from strips of rows all over the cube."""
    n_rows, columns, _ = cube.shape
    strips = max(1, min(_PIXELS // (_STRIP * columns), n_rows // _STRIP))
    starts = np.linspace(0, n_rows - min(_STRIP, n_rows), strips).astype(int)
    if n_rows * columns <= _PIXELS:
        parts = [slice(0, n_rows)]
    else:
        parts = [slice(int(a), int(a) + _STRIP) for a in starts]
    read = [cube.read_checked(rows) for rows in parts]
    sigmas = []
    for band in np.flatnonzero(bands):
        plane = np.concatenate([values[..., band] for values, _ in read]).astype(np.float64)
        if cube.may_miss_values:
            masks = [np.ones(v.shape[:2], bool) if m is None else m[..., band] for v, m in read]
            valid = np.concatenate(masks)
            # The estimate leaves out flat patches.
            plane[~valid] = plane[valid].mean() if valid.any() else 0.0
        (contents,) = contents_of(plane[None])
        sigmas.append(sigma_of_channel(plane, contents, name=f"band {band} of the cube"))
    return sigmas
