"""Measures of how close a cube is to a reference: PSNR, SSIM and spectral angle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.hyperspectral.blocks import read_height
from kronlearn.io.cubes import Cube, open_cube

__all__ = [
    "Comparison",
    "compare",
    "psnr_per_band",
    "spectral_angle",
    "spectral_angle_map",
    "ssim_per_band",
]

# The side of the window of scikit-image's SSIM.
_SSIM_SIDE = 7
# Approximate number of values read at a time.
_BAND_NUMBERS = 1 << 22

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`: how close a cube is to a reference.

    Parameters
    ----------
    psnr : array of shape (bands,)
        The peak signal-to-noise ratio of every band, in decibels; infinite for equal bands, NaN for
        bad ones.
    ssim : array of shape (bands,)
        The structural similarity of every band; NaN for bad ones, and if the cube is smaller than
        the window of 7 × 7 pixels.
    angles : array of shape (rows, columns)
        The angle between the two spectra of every pixel, in degrees; NaN where data are missing.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> cube = np.random.default_rng(0).random((16, 16, 4)) + 0.1
    >>> found = kl.hyperspectral.compare(cube, cube, band_axis=2)
    >>> found.mean_psnr, found.mean_ssim, found.mean_angle
    (inf, 1.0, 0.0)
    """

    psnr: Values
    ssim: Values
    angles: Values

    @property
    def mean_psnr(self) -> float:
        """The mean PSNR of the bands, in decibels."""
        return _mean(self.psnr)

    @property
    def mean_ssim(self) -> float:
        """The mean SSIM of the bands."""
        return _mean(self.ssim)

    @property
    def mean_angle(self) -> float:
        """The mean angle of the pixels, in degrees."""
        return _mean(self.angles)

    def __str__(self) -> str:
        return (
            f"PSNR {self.mean_psnr:.2f} dB, SSIM {self.mean_ssim:.4f}, "
            f"spectral angle {self.mean_angle:.3f}°"
        )


def compare(
    reference: Any,
    estimate: Any,
    *,
    data_range: ArrayLike | None = None,
    band_axis: int | None = None,
) -> Comparison:
    """Compare two cubes: PSNR and SSIM of every band, the spectral angle of every pixel.

    Parameters
    ----------
    reference, estimate : array, path or Cube
        Two cubes of the same shape (see :func:`open_cube`). Values that are missing in one of them
        do not count, nor do bands that one of them marks as bad; their PSNR and SSIM are NaN.
    data_range : float or sequence of float, optional
        What PSNR and SSIM are relative to, one number or one for each band; by default the range of
        the reference's values in the band.
    band_axis : int, optional
        The axis of the bands, in both.

    Returns
    -------
    Comparison
        The measures and their means.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> cube = np.random.default_rng(0).random((16, 16, 4))
    >>> print(kl.hyperspectral.compare(cube, cube + 0.1, band_axis=2, data_range=1))
    PSNR 20.00 dB, SSIM 0.9...
    """
    pair = _pair(reference, estimate, band_axis)
    return Comparison(
        psnr_per_band(*pair, data_range=data_range),
        ssim_per_band(*pair, data_range=data_range),
        spectral_angle_map(*pair),
    )


def spectral_angle(reference: Any, estimate: Any, *, band_axis: int | None = None) -> float:
    """Compute the mean angle between the spectra of two cubes.

    Parameters
    ----------
    reference, estimate : array, path or Cube
        Two cubes of the same shape.
    band_axis : int, optional
        The axis of the bands, in both.

    Returns
    -------
    float
        The mean over the pixels with data, in degrees.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> a = np.zeros((3, 5, 2)) + [1, 0]
    >>> kl.hyperspectral.spectral_angle(a, a + [0, 1], band_axis=2)
    45.0
    """
    return _mean(spectral_angle_map(reference, estimate, band_axis=band_axis))


def spectral_angle_map(reference: Any, estimate: Any, *, band_axis: int | None = None) -> Values:
    """Compute the angle between the two spectra of every pixel.

    Parameters
    ----------
    reference, estimate : array, path or Cube
        Two cubes of the same shape.
    band_axis : int, optional
        The axis of the bands, in both.

    Returns
    -------
    array of shape (rows, columns)
        The angles in degrees; NaN where a spectrum is zero or incomplete.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> a = np.zeros((1, 2, 2)) + [1, 0]
    >>> b = np.array([[[1.0, 1.0], [0.0, 2.0]]])
    >>> kl.hyperspectral.spectral_angle_map(a, b, band_axis=2).round(6).tolist()
    [[45.0, 90.0]]
    """
    a, b = _pair(reference, estimate, band_axis)
    angles = np.full(a.shape[:2], np.nan)
    good = _good_bands(a, b)
    if not good.any():
        return angles
    for rows, x, y, valid in _row_pairs(a, b):
        u, v = _directions(x[..., good]), _directions(y[..., good])
        # Unlike an arc cosine, this is accurate for small angles, too.
        across, along = np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1)
        angles[rows] = np.degrees(2 * np.arctan2(across, along))
        if valid is not None:
            angles[rows][~valid[..., good].all(axis=-1)] = np.nan
    return angles


def _directions(spectra: Values) -> Values:
    """Scale spectra to norm one; zero spectra become NaN."""
    # First by the maximum, so that squares neither overflow nor underflow.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        spectra = spectra / np.abs(spectra).max(axis=-1, keepdims=True)
        return np.asarray(spectra / np.linalg.norm(spectra, axis=-1, keepdims=True))


def psnr_per_band(
    reference: Any,
    estimate: Any,
    *,
    data_range: ArrayLike | None = None,
    band_axis: int | None = None,
) -> Values:
    """Compute the peak signal-to-noise ratio of every band, with scikit-image.

    Parameters
    ----------
    reference, estimate : array, path or Cube
        Two cubes of the same shape.
    data_range : float or sequence of float, optional
        What the measure is relative to, as for :func:`compare`.
    band_axis : int, optional
        The axis of the bands, in both.

    Returns
    -------
    array of shape (bands,)
        The PSNR in decibels: infinite for equal bands; NaN for bad bands, for those without data
        and, unless ``data_range`` is given, for other bands that are constant in the reference.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> a = np.zeros((3, 5, 2))
    >>> found = kl.hyperspectral.psnr_per_band(a, a + [0, 0.1], band_axis=2, data_range=1)
    >>> found.round(6).tolist()
    [inf, 20.0]
    """
    from skimage.metrics import peak_signal_noise_ratio

    a, b = _pair(reference, estimate, band_axis)
    psnr = np.full(a.shape[2], np.nan)
    for band, x, y, known, span in _band_pairs(a, b, data_range):
        if np.array_equal(x[known], y[known]):
            psnr[band] = np.inf
        elif span > 0:
            psnr[band] = peak_signal_noise_ratio(x[known], y[known], data_range=span)
    return psnr


def ssim_per_band(
    reference: Any,
    estimate: Any,
    *,
    data_range: ArrayLike | None = None,
    band_axis: int | None = None,
) -> Values:
    """Compute the structural similarity of every band, with scikit-image.

    Parameters
    ----------
    reference, estimate : array, path or Cube
        Two cubes of the same shape.
    data_range : float or sequence of float, optional
        What the measure is relative to, as for :func:`compare`.
    band_axis : int, optional
        The axis of the bands, in both.

    Returns
    -------
    array of shape (bands,)
        The SSIM; NaN for bad bands and those without data, or if the cube is smaller than the
        window of 7 × 7 pixels.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> a = np.random.default_rng(0).random((16, 16, 2))
    >>> kl.hyperspectral.ssim_per_band(a, a, band_axis=2).tolist()
    [1.0, 1.0]
    """
    from skimage.metrics import structural_similarity

    a, b = _pair(reference, estimate, band_axis)
    ssim = np.full(a.shape[2], np.nan)
    if min(a.shape[:2]) < _SSIM_SIDE:
        return ssim
    # As in scikit-image, the border does not count.
    border = _SSIM_SIDE // 2
    inside = (slice(border, -border),) * 2
    for band, x, y, known, span in _band_pairs(a, b, data_range):
        # Unknown pixels are made equal in both, and do not count themselves.
        x[~known] = y[~known] = x[known].mean()
        _, similarity = structural_similarity(x, y, data_range=span or 1.0, full=True)
        if known[inside].any():
            ssim[band] = similarity[inside].mean(where=known[inside])
    return ssim


def _pair(reference: Any, estimate: Any, band_axis: int | None) -> tuple[Cube, Cube]:
    """Open two cubes of the same shape."""
    a, b = open_cube(reference, band_axis), open_cube(estimate, band_axis)
    if a.shape != b.shape:
        raise ValueError(
            f"{a.name} has (rows, columns, bands) = {a.shape} and {b.name} {b.shape}; pass cubes "
            "of the same shape, and band_axis if the bands are along another axis."
        )
    return a, b


def _good_bands(a: Cube, b: Cube) -> NDArray[np.bool_]:
    """A mask (bands,) of the bands that neither cube marks as bad."""
    good = np.ones(a.shape[2], bool)
    for cube in (a, b):
        if cube.bad_bands is not None:
            good &= ~cube.bad_bands
    return good


def _row_pairs(
    a: Cube, b: Cube
) -> Iterator[tuple[slice, Values, Values, NDArray[np.bool_] | None]]:
    """Yield blocks of rows of two cubes, and which values both have; None for all."""
    height = max(1, min(read_height(a), read_height(b)) // 4)
    for start in range(0, a.shape[0], height):
        rows = slice(start, min(start + height, a.shape[0]))
        yield rows, *_values(a, b, rows)


def _band_pairs(
    a: Cube, b: Cube, data_range: ArrayLike | None
) -> Iterator[tuple[int, Values, Values, NDArray[np.bool_], float]]:
    """Yield the good bands with data: number, values of both, pixels that both have, and range."""
    rows, columns, n_bands = a.shape
    good = _good_bands(a, b)
    ranges = None if data_range is None else _checked_ranges(data_range, n_bands)
    step = max(1, _BAND_NUMBERS // (rows * columns))
    for start in range(0, n_bands, step):
        part = slice(start, min(start + step, n_bands))
        x, y, valid = _values(a, b, slice(0, rows), part)
        for k in range(x.shape[2]):
            known = np.ones((rows, columns), bool) if valid is None else valid[..., k]
            if known.any() and good[start + k]:
                span = np.ptp(x[..., k][known]) if ranges is None else ranges[start + k]
                yield start + k, x[..., k], y[..., k], known, float(span)


def _values(
    a: Cube, b: Cube, rows: slice, bands: slice | None = None
) -> tuple[Values, Values, NDArray[np.bool_] | None]:
    """Read the same part of two cubes, and which of the values both have; None for all."""
    x, in_a = a.read_checked(rows, bands=bands)
    y, in_b = b.read_checked(rows, bands=bands)
    masks = [mask for mask in (in_a, in_b) if mask is not None]
    valid = np.logical_and.reduce(masks) if masks else None
    return x.astype(np.float64), y.astype(np.float64), valid


def _checked_ranges(data_range: ArrayLike, n_bands: int) -> Values:
    """Check ``data_range``, and return that of every band."""
    ranges = np.asarray(data_range, np.float64)
    if ranges.shape not in ((), (n_bands,)) or not (np.isfinite(ranges) & (ranges > 0)).all():
        raise ValueError(
            f"data_range={data_range!r} is neither a positive number nor {n_bands} of them, one "
            "for each band."
        )
    return np.broadcast_to(ranges, n_bands)


def _mean(values: Values) -> float:
    """The mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
