"""How close a cube is to a reference: spectral angle, PSNR and SSIM."""

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

# The window of scikit-image's SSIM.
_SSIM_SIDE = 7
# Bands of about so many numbers are read at a time.
_BAND_NUMBERS = 1 << 22

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """How close a cube is to a reference: what :func:`compare` returns.

    Parameters
    ----------
    psnr : array of shape (bands,)
        In decibels; infinite for equal bands.
    ssim : array of shape (bands,)
        NaN if the cube is smaller than the window of 7 × 7 pixels.
    angles : array of shape (rows, columns)
        Between the spectra of a pixel, in degrees; NaN where there are none.

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
        """The mean over the bands, in decibels."""
        return _mean(self.psnr)

    @property
    def mean_ssim(self) -> float:
        """The mean over the bands."""
        return _mean(self.ssim)

    @property
    def mean_angle(self) -> float:
        """The mean over the pixels, in degrees."""
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
        Two cubes of the same shape (see :func:`open_cube`). Values that mean no
        data in one of them do not count.
    data_range : float or sequence of float, optional
        What PSNR and SSIM are relative to, one number or one for each band; by
        default the largest minus the smallest value of the reference's band.
    band_axis : int, optional
        The axis of the bands, in both.

    Returns
    -------
    Comparison
        The measures, and their means.

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
    """Compute the angle between the spectra of every pixel.

    Parameters
    ----------
    reference, estimate : array, path or Cube
        Two cubes of the same shape.
    band_axis : int, optional
        The axis of the bands, in both.

    Returns
    -------
    array of shape (rows, columns)
        Angles in degrees; NaN where a spectrum is zero or misses data.

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
    for rows, wanted, found, valid in _row_pairs(a, b):
        u, v = _directions(wanted), _directions(found)
        # Exact for small angles, too, where an arc cosine is not.
        across, along = np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1)
        angles[rows] = np.degrees(2 * np.arctan2(across, along))
        if valid is not None:
            angles[rows][~valid.all(axis=-1)] = np.nan
    return angles


def _directions(spectra: Values) -> Values:
    """Spectra of length one; NaN for those that are zero."""
    # Scaled first: squares of very large and very small values would be lost.
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
        In decibels. Infinite for equal bands, NaN for bands without data and for those that are
        constant in the reference only, unless ``data_range`` says what the error is relative to.

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
    found = np.full(a.shape[2], np.nan)
    for band, wanted, image, seen, span in _band_pairs(a, b, data_range):
        if np.array_equal(wanted[seen], image[seen]):
            found[band] = np.inf
        elif span > 0:
            found[band] = peak_signal_noise_ratio(wanted[seen], image[seen], data_range=span)
    return found


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
        NaN for bands without data, or if the cube is smaller than the window of 7 × 7 pixels.

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
    found = np.full(a.shape[2], np.nan)
    if min(a.shape[:2]) < _SSIM_SIDE:
        return found
    for band, wanted, image, seen, span in _band_pairs(a, b, data_range):
        # Where there are no data the two are alike, and what that gives is not counted.
        wanted[~seen] = image[~seen] = wanted[seen].mean()
        _, map_ = structural_similarity(wanted, image, data_range=span or 1.0, full=True)
        found[band] = _inner(map_, seen)
    return found


def _inner(similarity: Values, seen: NDArray[np.bool_]) -> float:
    """The mean over what is seen; as scikit-image does, without the border."""
    pad = _SSIM_SIDE // 2
    inside = (slice(pad, -pad),) * 2
    if not seen[inside].any():
        return float("nan")
    return float(similarity[inside].mean(where=seen[inside]))


def _pair(reference: Any, estimate: Any, band_axis: int | None) -> tuple[Cube, Cube]:
    a, b = open_cube(reference, band_axis), open_cube(estimate, band_axis)
    if a.shape != b.shape:
        raise ValueError(
            f"{a.name} has (rows, columns, bands) = {a.shape} and {b.name} {b.shape}; cubes of one "
            "shape can be compared (say which axis holds the bands with band_axis)."
        )
    return a, b


def _row_pairs(
    a: Cube, b: Cube
) -> Iterator[tuple[slice, Values, Values, NDArray[np.bool_] | None]]:
    """Blocks of rows of two cubes, and where both have data, None for everywhere."""
    height = max(1, min(read_height(a), read_height(b)) // 4)
    for start in range(0, a.shape[0], height):
        rows = slice(start, min(start + height, a.shape[0]))
        yield rows, *_values(a, b, (rows, None, None))


def _band_pairs(
    a: Cube, b: Cube, data_range: ArrayLike | None
) -> Iterator[tuple[int, Values, Values, NDArray[np.bool_], float]]:
    """Bands of two cubes with data: their numbers, values, where both have data, and the range."""
    rows, columns, n_bands = a.shape
    ranges = None if data_range is None else _checked_range(data_range, n_bands)
    step = max(1, _BAND_NUMBERS // (rows * columns))
    for start in range(0, n_bands, step):
        part = slice(start, min(start + step, n_bands))
        wanted, found, valid = _values(a, b, (slice(0, rows), None, part))
        for k in range(wanted.shape[2]):
            seen = np.ones((rows, columns), bool) if valid is None else valid[..., k]
            if seen.any():
                values = wanted[..., k]
                span = np.ptp(values[seen]) if ranges is None else ranges[start + k]
                yield start + k, values, found[..., k], seen, float(span)


def _values(
    a: Cube, b: Cube, part: tuple[slice, None, slice | None]
) -> tuple[Values, Values, NDArray[np.bool_] | None]:
    wanted, valid = a.read_checked(*part)
    found, also = b.read_checked(*part)
    known = [mask for mask in (valid, also) if mask is not None]
    valid = np.logical_and.reduce(known) if known else None
    return wanted.astype(np.float64), found.astype(np.float64), valid


def _checked_range(data_range: ArrayLike, n_bands: int) -> Values:
    """From black to white, for every band."""
    given = np.asarray(data_range, np.float64)
    if given.shape not in ((), (n_bands,)) or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError(
            f"data_range={data_range!r} is not a positive number, nor {n_bands} of them, one "
            "for each band."
        )
    return np.broadcast_to(given, n_bands)


def _mean(values: Values) -> float:
    """The mean of what is not NaN."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
