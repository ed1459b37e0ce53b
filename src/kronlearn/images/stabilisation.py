"""Transform noise that is not Gaussian to Gaussian noise of variance one, denoise, and undo it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ive

from kronlearn.cuda.device import Gpu
from kronlearn.cuda.pixels import Contents
from kronlearn.images.gaussian import GaussianDenoiser
from kronlearn.images.groups import EFFORTS, refine
from kronlearn.images.noise import means_and_variances, sigma_of_channel
from kronlearn.images.planes import Float32, Planes, array_module, contents_of, contiguous
from kronlearn.images.pyramid import axes_to_halve, interpolate, sum_pairs
from kronlearn.io.conversion import in_range

__all__ = ["CountNoise", "RicianNoise", "check_noise", "denoise_stabilised"]

_NOISES = ("gaussian", "poisson", "poisson-gaussian", "rician")
# What must be passed if there is a mask: these are not estimated from images with missing pixels.
_NEEDED_WITH_MASK = {
    "gaussian": (),
    "poisson": ("noise_gain",),
    "poisson-gaussian": ("noise_gain", "sigma"),
    "rician": ("sigma",),
}

# Fewer counts per pixel, on average, are first summed over blocks of pixels.
_FEW_COUNTS = 16.0
# Fewer say little about the noise, and less about the image without a guide.
_VERY_FEW_COUNTS = 1.5
# The mean of results for few counts is corrected by at most this fraction.
_TOO_DARK = 0.1
# Images whose largest pixel is not between these are scaled: squares in single precision would
# overflow or underflow.
_USUAL = 1e-15, 1e15
# The possible error of an estimate of zero counts.
_MIN_COUNT = 0.01
# Tables are continued to here as straight lines.
_FAR = 1e9
# The least gain in units of the Gaussian noise, which hides any less.
_MIN_GAIN = 1 / 300
# Estimates of the noise are repeated this many times, each weighted by the one before.
_FITS = 20
# The line of variances against means is fitted to this quantile: structure only adds to variances.
_QUANTILE = 0.3
# Magnitudes have a mean square of at least 2σ². Its smallest value over blocks of 2^8 pixels or
# more is a little smaller by chance. Sigma is lowered by at most a quarter to respect it.
_BLOCK_HALVINGS, _BY_CHANCE, _LEAST_SHARE = 8, 1.03, 0.75


@dataclass(frozen=True)
class CountNoise:
    """Poisson counts times a gain plus Gaussian noise: values around y vary by gain · y + sigma².

    ``forward`` is the generalised Anscombe transform, ``inverse`` the closed-form approximation of
    its exact unbiased inverse [1]_, [2]_: it maps the mean of transformed values to the value that
    was measured.

    References
    ----------
    .. [1] M. Mäkitalo and A. Foi, "A closed-form approximation of the exact unbiased inverse of
       the Anscombe variance-stabilizing transformation", IEEE Trans. Image Process., 2011.
    .. [2] M. Mäkitalo and A. Foi, "Optimal inversion of the generalized Anscombe transformation
       for Poisson-Gaussian noise", IEEE Trans. Image Process., 2013.
    """

    gain: float
    sigma: float = 0.0

    def forward(self, values: NDArray[Any]) -> Float32:
        """Transform values of any dtype so that their noise has a variance of about one."""
        counts = (values / np.float64(self.gain)).astype(np.float32)
        counts += np.float32(3 / 8 + self._variance)
        return 2 * np.sqrt(np.maximum(counts, 0, out=counts), out=counts)

    def inverse(self, values: Float32) -> Float32:
        """Return the values without noise whose transforms have these means."""
        values = np.maximum(values, np.float32(2 * math.sqrt(3 / 8)))
        part = math.sqrt(3 / 2) / values
        counts = values**2 / 4 + part / 4 - 11 / 12 * part**2 + 5 / 12 * part**3
        return np.maximum(counts - (1 / 8 + self._variance), 0) * np.float32(self.gain)

    def tangent(self, estimate: Float32) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return value and slope, at an estimate of the image, of a transform to noise of one."""
        counts = estimate / np.float32(self.gain) + np.float32(_MIN_COUNT + self._variance)
        deviation = np.sqrt(counts)
        return 2 * deviation, 1 / (deviation * np.float32(self.gain))

    def counts(self, mean: float) -> float:
        """Return how many counts without Gaussian noise are relatively as uncertain as a mean."""
        counts = mean / self.gain
        return counts**2 / (counts + self._variance) if counts > 0 else 0.0

    @property
    def _variance(self) -> float:
        """The variance of the Gaussian noise, in counts."""
        return (self.sigma / self.gain) ** 2


@dataclass(frozen=True)
class RicianNoise:
    """The magnitude of a complex image with Gaussian noise of sigma in both of its parts.

    The slope of the transform is the inverse of the standard deviation of the value, corrected
    until the noise has variance one. The transform and the inverse of its mean are tabulated from
    the Rice distribution [1]_.

    References
    ----------
    .. [1] A. Foi, "Noise estimation and removal in MR imaging: the variance-stabilization
       approach", IEEE Int. Symp. Biomedical Imaging, 2011.
    """

    sigma: float

    def forward(self, values: NDArray[Any]) -> Float32:
        """Transform values of any dtype so that their noise has a variance of about one."""
        return _interpolated(values / np.float64(self.sigma), *_rician()[0])

    def inverse(self, values: Float32) -> Float32:
        """Return the magnitudes without noise whose transforms have these means."""
        return _interpolated(values, *_rician()[1]) * np.float32(self.sigma)


@lru_cache(1)
def _rician() -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]:
    """Tabulate, for a sigma of one, the transform and the inverse of its mean.

    Each is a pair of arrays: values and transforms, means of transforms and clean magnitudes.
    """
    clean, values = np.linspace(0, 12, 241), np.linspace(0, 18, 901)
    density = values * np.exp(-((values - clean[:, None]) ** 2) / 2)
    density *= ive(0, values * clean[:, None])
    density /= density.sum(axis=1, keepdims=True)

    def moments(function: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean = np.einsum("cv,v->c", density, function)
        return mean, np.sqrt(np.einsum("cv,v->c", density, function**2) - mean**2)

    slope = np.ones_like(values)
    means, deviation = moments(values)
    for _ in range(8):
        slope = slope / np.interp(values, means, deviation)
        steps = (slope[1:] + slope[:-1]) / 2 * np.diff(values)
        transformed = np.concatenate([[0], np.cumsum(steps)])
        expected, deviation = moments(transformed)
    return (values, transformed), (expected, clean)


def _interpolated(
    values: NDArray[Any], points: NDArray[np.float64], at_points: NDArray[np.float64]
) -> Float32:
    """Evaluate a tabulated function at values; beyond the table its slope is one."""
    x, y = (np.asarray([*table, table[-1] + _FAR], like=values) for table in (points, at_points))
    result: NDArray[Any] = np.interp(values, x, y)
    return result.astype(np.float32)


def check_noise(noise: str, sigma: Any, noise_gain: Any, has_mask: bool) -> None:
    """Raise unless a kind of noise exists and its parameters fit."""
    if noise not in _NOISES:
        raise ValueError(f"noise={noise!r} does not exist; choose one of {', '.join(_NOISES)}.")
    if noise_gain is not None:
        if not noise.startswith("poisson"):
            raise ValueError(f"noise_gain is for counts; noise={noise!r} has none.")
        if not isinstance(noise_gain, numbers.Real) or not 0 < float(noise_gain) < math.inf:
            raise ValueError(f"noise_gain={noise_gain!r} is not a positive number.")
    if noise == "poisson" and sigma is not None and (np.ndim(sigma) > 0 or sigma != 0):
        raise ValueError('noise="poisson" has no sigma; leave it out, or pass noise_gain.')
    is_deviation = isinstance(sigma, numbers.Real) and 0 <= float(sigma) < math.inf
    if noise in ("poisson-gaussian", "rician") and sigma is not None and not is_deviation:
        raise ValueError(
            f"sigma={sigma!r} is not a standard deviation; noise={noise!r} has one, of zero or "
            "more, for the whole image."
        )
    parameters = {"sigma": sigma, "noise_gain": noise_gain}
    needed = _NEEDED_WITH_MASK[noise]
    if has_mask and any(parameters[name] is None for name in needed):
        raise ValueError(
            f"noise={noise!r} is not estimated where there is a mask; pass {' and '.join(needed)}."
        )


def denoise_stabilised(
    denoiser: GaussianDenoiser,
    channels: NDArray[Any],
    noise: str,
    sigma: Any,
    noise_gain: float | None,
) -> tuple[NDArray[Any], list[float]]:
    """Return channels (C, *spatial) without noise of a kind, and the sigma of each.

    Parameters have passed :func:`check_noise`; those that are None are estimated. Sigmas are zero
    if there is no noise.
    """
    gpu = denoiser.workers.gpu
    contents = contents_of(channels, gpu)
    lowest = min(channel.low for channel in contents)
    if noise in ("poisson", "rician") and lowest < 0:
        raise ValueError(
            f"noise={noise!r} leaves no negative values, but the image goes down to {lowest:g}; "
            "subtract its offset"
            + (', or pass noise="poisson-gaussian".' if noise == "poisson" else ".")
        )
    unit = _unit_of(contents)
    scaled = channels
    if unit != 1:
        scaled = channels.astype(np.float64) / unit
        sigma, noise_gain = (None if x is None else float(x) / unit for x in (sigma, noise_gain))
    with denoiser.log.stage("noise"):
        models = _noise_models(scaled, noise, sigma, noise_gain, gpu)
    if models:
        result = array_module(channels, gpu).empty(channels.shape, channels.dtype)
        for k, channel in enumerate(_denoised(denoiser, scaled, models)):
            values = channel if unit == 1 else channel.astype(np.float64) * unit
            result[k] = in_range(values, channels.dtype)
    else:
        result = channels.copy()
    denoiser.settings["noise"] = noise
    gains = [model.gain * unit for model in models if isinstance(model, CountNoise)]
    if gains:
        denoiser.settings["noise_gain"] = tuple(gains) if denoiser.has_channels else gains[0]
    return result, [model.sigma * unit for model in models] or [0.0] * len(channels)


def _unit_of(contents: Sequence[Contents]) -> float:
    """Return one or, where single precision does not suffice, a power of two near the maximum."""
    largest = max(max(abs(channel.low), abs(channel.high)) for channel in contents)
    if largest == 0 or _USUAL[0] < largest < _USUAL[1]:
        return 1.0
    return 2.0 ** max(math.floor(math.log2(largest)), -1022)


def _denoised(denoiser: GaussianDenoiser, channels: NDArray[Any], models: Sequence[Any]) -> Float32:
    """Denoise channels (C, *spatial), each with its own model of the noise.

    Where there are few counts, transformed counts are far from Gaussian. Sums over blocks of pixels
    are closer: they are denoised first and guide the filter of groups of similar patches. At that
    guide, the transform is replaced by its tangent: then the variance is known and there is no
    bias.
    """
    axes = axes_to_halve(channels.shape)
    if axes and denoiser.quality != "dictionary" and _n_counts(channels, models) < _FEW_COUNTS:
        n_summed = 2 ** len(axes)
        models_of_sums = [replace(model, sigma=model.sigma * n_summed**0.5) for model in models]
        guide = _denoised(denoiser, sum_pairs(channels, axes), models_of_sums)
        guide = interpolate(guide, axes, channels.shape) / np.float32(n_summed)
        return _filtered_at_guide(denoiser, channels, models, guide)
    stable = np.stack([m.forward(c) for m, c in zip(models, channels, strict=True)])
    if stable[0].size >= 64 and any(0 < float(np.ptp(plane)) < 1 for plane in stable):
        raise ValueError(
            "There would be more noise than the image varies; noise_gain and sigma are in the "
            "image's own units."
        )
    means, _ = denoiser.denoised(stable, 1.0)
    return np.stack([m.inverse(plane) for m, plane in zip(models, means, strict=True)])


def _filtered_at_guide(
    denoiser: GaussianDenoiser,
    channels: NDArray[Any],
    models: Sequence[Any],
    guide: Float32,
) -> Float32:
    """Filter groups of similar patches of channels, transformed by the tangent at a guide."""
    tangents = [model.tangent(plane) for model, plane in zip(models, guide, strict=True)]
    start, slope = (np.stack(arrays) for arrays in zip(*tangents, strict=True))
    stable = ((channels - guide) * slope + start).astype(np.float32)
    n_channels, workers = len(guide), denoiser.workers
    planes = Planes.from_channels(stable, [1.0] * n_channels, range(n_channels), gpu=workers.gpu)
    # More rounds would take noise for structure.
    effort = EFFORTS["fast" if denoiser.quality == "fast" else "default"]
    if _n_counts(channels, models) < _VERY_FEW_COUNTS:
        effort = replace(effort, rounds=1, extra_rounds=0, share=0.15)
    with denoiser.log.stage("similar patches") as on_share:
        images = planes.pixels, planes.project(start)
        pixels = refine(*images, effort, workers, on_share)
    planes.restore(pixels, stable)
    result = np.maximum(guide + (stable - start) / slope, 0)
    # The guide contains some of the noise that its tangents weight, so that results are a little
    # too dark: they get the mean of the channel.
    axes = tuple(range(1, result.ndim))
    means, wanted = (
        np.mean(contiguous(array), axis=axes, dtype=np.float64, keepdims=True)
        for array in (result, channels)
    )
    factors = wanted / np.maximum(means, np.finfo(np.float32).tiny)
    return result * np.clip(factors, 1 - _TOO_DARK, 1 + _TOO_DARK).astype(np.float32)


def _n_counts(channels: NDArray[Any], models: Sequence[Any]) -> float:
    """Return the counts per pixel in the brightest channel; infinity unless these are counts."""
    if not isinstance(models[0], CountNoise):
        return math.inf
    return max(m.counts(float(c.mean())) for c, m in zip(channels, models, strict=True))


def _noise_models(
    channels: NDArray[Any],
    noise: str,
    sigma: float | None,
    noise_gain: float | None,
    gpu: Gpu | None,
) -> list[Any]:
    """Return a model of the noise of every channel, or none at all if there is no noise."""
    if noise == "rician":
        sigmas = [sigma if sigma is not None else _rician_sigma(c, gpu) for c in channels]
        return [RicianNoise(float(s or max(sigmas))) for s in sigmas] if any(sigmas) else []
    if noise == "poisson":
        sigma = 0.0
    models = [count_noise(channel, noise_gain, sigma, gpu) for channel in channels]
    # A channel of zeros says nothing about its noise, and gets that of another.
    noisy = [model for model in models if model.gain > 0]
    return [model if model.gain > 0 else noisy[0] for model in models] if noisy else []


def count_noise(
    channel: NDArray[Any], gain: float | None, sigma: float | None, gpu: Gpu | None = None
) -> CountNoise:
    """Return the noise of a channel of counts; what is None is estimated, and a gain may be 0.

    Estimates come from a line fitted to the variances and means of patches with little structure,
    by quantile regression: structure adds to the variance, so most patches lie above the line.
    Very few counts are summed over blocks first.
    """
    if gain is not None and sigma is not None:
        return CountNoise(float(gain), float(sigma))
    means, variances = means_and_variances(channel, gpu)
    known = (gain or 0.0) * means + (sigma or 0.0) ** 2
    unknown = np.stack([means * (gain is None), np.full_like(means, sigma is None)], axis=1)
    slope = intercept = 0.0
    fitted, weights = variances, np.ones_like(means)
    for _ in range(_FITS if len(means) else 0):
        roots = np.sqrt(weights) / fitted
        slope, intercept = nnls(unknown * roots[:, None], (variances - known) * roots)[0]
        fitted = np.maximum(known + unknown @ (slope, intercept), 1e-6 * variances)
        above = variances / fitted - 1
        quantile = np.where(above > 0, _QUANTILE, 1 - _QUANTILE)
        weights = quantile / np.maximum(np.abs(above), 0.01)
    deviation = float(sigma) if sigma is not None else math.sqrt(intercept)
    model = CountNoise(float(gain or max(slope, _MIN_GAIN * deviation)), deviation)
    axes = axes_to_halve(channel[None].shape)
    if not axes or model.gain == 0 or model.counts(float(channel.mean())) > _VERY_FEW_COUNTS:
        return model
    root = 2 ** (len(axes) / 2)
    sigma_of_sums = None if sigma is None else sigma * root
    model = count_noise(sum_pairs(channel[None], axes)[0], gain, sigma_of_sums, gpu)
    return replace(model, sigma=model.sigma / root)


def _rician_sigma(channel: NDArray[Any], gpu: Gpu | None) -> float:
    """Return the sigma of a magnitude channel with which the transform leaves noise of one."""
    sigma = sigma_of_channel(channel, contents_of(channel[None], gpu)[0], gpu)
    for _ in range(_FITS if sigma > 0 else 0):
        stable = RicianNoise(sigma).forward(channel)
        sigma *= sigma_of_channel(stable, contents_of(stable[None], gpu)[0], gpu)
    if sigma == 0:
        return sigma
    # Where noise is about as strong as the signal, its variance hardly depends on sigma.
    return sigma * min(1.0, max(_darkest(channel / np.float64(sigma)), _LEAST_SHARE))


def _darkest(magnitudes: NDArray[Any]) -> float:
    """Return the sigma that would explain the darkest block of magnitudes without any signal.

    Zeros, with which images are padded, do not count.
    """
    squares = np.square(magnitudes)[None]
    counts, axes = squares > 0, range(1, squares.ndim)
    for _ in range(math.ceil(_BLOCK_HALVINGS / len(axes))):
        squares, counts = sum_pairs(squares, axes), sum_pairs(counts, axes)
    full = 2 * counts > counts.max()
    return _BY_CHANCE * math.sqrt(float((squares[full] / counts[full]).min()) / 2)
