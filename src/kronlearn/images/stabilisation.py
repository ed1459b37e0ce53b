"""Noise that is not Gaussian made white noise of one, and undone."""

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
from kronlearn.images.coarser import long_axes, spread, sums_over_blocks
from kronlearn.images.estimation import Denoising
from kronlearn.images.groups import EFFORTS, refine
from kronlearn.images.noise import means_and_variances, sigma_of_channel
from kronlearn.images.planes import Planes, contents_of, place_of
from kronlearn.io.conversion import in_range

__all__ = ["NOISES", "CountNoise", "RicianNoise", "denoise_stabilised"]

NOISES = ("gaussian", "poisson", "poisson-gaussian", "rician")

# Counts below this many, on average, are first summed over blocks of pixels.
_FEW = 16.0
# So few tell little about the noise, and less about the image without a guide.
_VERY_FEW = 1.5
# What an estimate of no counts may be wrong by.
_LEAST_COUNT = 0.01
# Tables go on to here in a straight line.
_FAR = 1e9
# The least gain, in standard deviations of the Gaussian part: with less it alone is to be seen.
_LEAST_GAIN = 1 / 300
# Estimates are repeated, each on what the one before it says about the noise.
_FITS = 20
# The share of patches without any structure.
_BELOW = 0.3


@dataclass(frozen=True)
class CountNoise:
    """Counts times a gain, and Gaussian noise: the variance of a value y is gain · y + sigma².

    ``forward`` is the generalised Anscombe transform, ``inverse`` the closed-form approximation of
    its exact unbiased inverse [1]_, [2]_: what comes out of an average of transformed values is
    the value whose transform has that mean.

    References
    ----------
    .. [1] M. Mäkitalo and A. Foi, "A closed-form approximation of the exact unbiased inverse of
       the Anscombe variance-stabilizing transformation", IEEE Trans. Image Process., 2011.
    .. [2] M. Mäkitalo and A. Foi, "Optimal inversion of the generalized Anscombe transformation
       for Poisson-Gaussian noise", IEEE Trans. Image Process., 2013.
    """

    gain: float
    sigma: float = 0.0

    def forward(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Values, of any dtype, as ones whose noise has about variance one."""
        counts = (values / np.float64(self.gain)).astype(np.float32)
        counts += np.float32(3 / 8 + self._variance)
        return 2 * np.sqrt(np.maximum(counts, 0, out=counts), out=counts)

    def inverse(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """What is expected of an image whose transform is expected to have these values."""
        values = np.maximum(values, np.float32(2 * math.sqrt(3 / 8)))
        part = math.sqrt(3 / 2) / values
        counts = values**2 / 4 + part / 4 - 11 / 12 * part**2 + 5 / 12 * part**3
        return np.maximum(counts - (1 / 8 + self._variance), 0) * np.float32(self.gain)

    def tangent(self, estimate: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Value and slope, at an estimate of the image, of a transform to noise of one."""
        counts = estimate / np.float32(self.gain) + np.float32(_LEAST_COUNT + self._variance)
        deviation = np.sqrt(counts)
        return 2 * deviation, 1 / (deviation * np.float32(self.gain))

    def counts(self, mean: float) -> float:
        """How many counts without other noise would be as uncertain as a mean is."""
        counts = mean / self.gain
        return counts**2 / (counts + self._variance) if counts > 0 else 0.0

    @property
    def _variance(self) -> float:
        """Of the Gaussian part, in counts."""
        return (self.sigma / self.gain) ** 2


@dataclass(frozen=True)
class RicianNoise:
    """The magnitude of a complex image with Gaussian noise of sigma in both of its parts.

    The transform has slope one over the standard deviation of the value, corrected until the noise
    it leaves has variance one; both it and the inverse of its mean are tabulated from the
    distribution [1]_.

    References
    ----------
    .. [1] A. Foi, "Noise estimation and removal in MR imaging: the variance-stabilization
       approach", IEEE Int. Symp. Biomedical Imaging, 2011.
    """

    sigma: float

    def forward(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Values, of any dtype, as ones whose noise has about variance one."""
        return _interpolated(values / np.float64(self.sigma), *_rician()[0])

    def inverse(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The magnitudes without noise whose transforms are expected to have these values."""
        return _interpolated(values, *_rician()[1]) * np.float32(self.sigma)


@lru_cache(1)
def _rician() -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]:
    """For sigma of one: values and their transforms, and means of transforms and magnitudes."""
    clean, values = np.linspace(0, 12, 241), np.linspace(0, 18, 901)
    density = values * np.exp(-((values - clean[:, None]) ** 2) / 2)
    density *= ive(0, values * clean[:, None])
    density /= density.sum(axis=1, keepdims=True)

    def moments(of: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean = np.einsum("cv,v->c", density, of)
        return mean, np.sqrt(np.einsum("cv,v->c", density, of**2) - mean**2)

    slope = np.ones_like(values)
    means, deviation = moments(values)
    for _ in range(8):
        slope = slope / np.interp(values, means, deviation)
        steps = (slope[1:] + slope[:-1]) / 2 * np.diff(values)
        transformed = np.concatenate([[0], np.cumsum(steps)])
        expected, deviation = moments(transformed)
    return (values, transformed), (expected, clean)


def _interpolated(
    values: NDArray[Any], known: NDArray[np.float64], wanted: NDArray[np.float64]
) -> NDArray[np.float32]:
    """What a function, wanted at known points and then of slope one, is at values."""
    x, y = (np.asarray([*points, points[-1] + _FAR], like=values) for points in (known, wanted))
    found: NDArray[Any] = np.interp(values, x, y)
    return found.astype(np.float32)


def denoise_stabilised(
    work: Denoising,
    channels: NDArray[Any],
    sigma: Any,
    noise: str,
    noise_gain: float | None,
) -> tuple[NDArray[Any], list[float], list[float]]:
    """Channels (C, *spatial) without noise of this kind, and their noise: sigmas, gains of counts.

    Gains are empty unless the noise is that of counts; sigmas are zero if there is no noise.
    """
    gpu = work.workers.gpu
    lows = [contents.low for contents in contents_of(channels, gpu)]
    if noise in ("poisson", "rician") and min(lows) < 0:
        raise ValueError(
            f"noise={noise!r} leaves no negative values, but the image goes down to {min(lows):g}; "
            "subtract its offset"
            + (', or pass noise="poisson-gaussian".' if noise == "poisson" else ".")
        )
    with work.log.stage("noise"):
        models = _models(channels, sigma, noise, noise_gain, gpu)
    if not models:
        return channels.copy(), [0.0] * len(channels), []
    estimate = _Stabilised(work).estimate(channels, models)
    result = place_of(channels, gpu).empty(channels.shape, channels.dtype)
    for k, channel in enumerate(estimate):
        result[k] = in_range(channel, channels.dtype)
    gains = [model.gain for model in models if isinstance(model, CountNoise)]
    return result, [model.sigma for model in models], gains


@dataclass(frozen=True)
class _Stabilised:
    """Denoises channels (C, *spatial) that have noise of a model each."""

    work: Denoising

    def estimate(self, channels: NDArray[Any], models: Sequence[Any]) -> NDArray[np.float32]:
        """The channels without noise.

        Where there are few counts, transformed ones are far from Gaussian. Sums over blocks of
        pixels are not: they are denoised first, and guide the filter of groups of similar patches,
        whose transform is the tangent at that guide: the variance is known, and there is no bias.
        """
        axes = long_axes(channels.shape)
        if axes and self.work.quality != "dictionary" and _n_counts(channels, models) < _FEW:
            n_summed = 2 ** len(axes)
            wider = [replace(model, sigma=model.sigma * n_summed**0.5) for model in models]
            guide = self.estimate(sums_over_blocks(channels, axes), wider)
            guide = spread(guide, axes, channels.shape) / np.float32(n_summed)
            return self._refined(channels, models, guide)
        stable = np.stack([m.forward(c) for m, c in zip(models, channels, strict=True)])
        if stable[0].size >= 64 and any(0 < float(np.ptp(plane)) < 1 for plane in stable):
            raise ValueError(
                "There would be more noise than the image varies; noise_gain and sigma are in the "
                "image's own units."
            )
        found, _ = self.work.denoised(stable, 1.0)
        return np.stack([m.inverse(plane) for m, plane in zip(models, found, strict=True)])

    def _refined(
        self, channels: NDArray[Any], models: Sequence[Any], guide: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The channels without noise, by groups of similar patches, of which a guide is known."""
        pairs = [model.tangent(plane) for model, plane in zip(models, guide, strict=True)]
        start, slope = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
        every, gpu = range(len(guide)), self.work.workers.gpu
        stable = ((channels - guide) * slope + start).astype(np.float32)
        planes = Planes.from_channels(stable, [1.0] * len(guide), every, gpu=gpu)
        # More than that takes noise for structure.
        effort, share = EFFORTS["fast" if self.work.quality == "fast" else "default"], 1 / 2
        if _n_counts(channels, models) < _VERY_FEW:
            effort, share = replace(effort, rounds=1, extra_rounds=0), 0.15
        with self.work.log.stage("similar patches") as on_share:
            images = planes.pixels, planes.project(start)
            found = refine(*images, effort, self.work.workers, on_share, n_matched=1, share=share)
        planes.restore(found, stable)
        return np.maximum(guide + (stable - start) / slope, 0)


def _n_counts(channels: NDArray[Any], models: Sequence[Any]) -> float:
    """How many counts per pixel there are in the channel with most of them, if these are counts."""
    if not isinstance(models[0], CountNoise):
        return math.inf
    return max(m.counts(float(c.mean())) for c, m in zip(channels, models, strict=True))


def _models(
    channels: NDArray[Any],
    sigma: Any,
    noise: str,
    noise_gain: float | None,
    gpu: Gpu | None,
) -> list[Any]:
    """The noise of every channel, as it was given or estimated; none if there is no noise."""
    if noise_gain is not None:
        if not noise.startswith("poisson"):
            raise ValueError(f"noise_gain is for counts; noise={noise!r} has none.")
        if not isinstance(noise_gain, numbers.Real) or not 0 < float(noise_gain) < math.inf:
            raise ValueError(f"noise_gain={noise_gain!r} is not a positive number.")
    if noise == "poisson":
        if sigma not in (None, 0):
            raise ValueError('noise="poisson" has no sigma; leave it out, or pass noise_gain.')
        sigma = 0.0
    if sigma is not None:
        if not isinstance(sigma, numbers.Real) or not 0 <= float(sigma) < math.inf:
            raise ValueError(
                f"sigma={sigma!r} is not a standard deviation; noise={noise!r} has one, of zero or "
                "more, for the whole image."
            )
        sigma = float(sigma)
    if noise == "rician":
        sigmas = [sigma if sigma is not None else _rician_sigma(c, gpu) for c in channels]
        return [RicianNoise(s or max(sigmas)) for s in sigmas] if any(sigmas) else []
    found = [count_noise(channel, noise_gain, sigma, gpu) for channel in channels]
    # A channel of zeros says nothing about its noise; it has what the others have.
    known = [model for model in found if model.gain > 0]
    return [model if model.gain > 0 else known[0] for model in found] if known else []


def count_noise(
    channel: NDArray[Any], gain: float | None, sigma: float | None, gpu: Gpu | None = None
) -> CountNoise:
    """The noise of a channel, of which what is None is estimated; its gain is 0 if there is none.

    A line through variances against means of patches with little structure, with less than half
    of them below it: structure adds to the variance. Very few counts are summed over blocks first.
    """
    if gain is not None and sigma is not None:
        return CountNoise(float(gain), sigma)
    means, variances = means_and_variances(channel, gpu)
    known_gain = gain
    known = (gain or 0.0) * means + (sigma or 0.0) ** 2
    unknown = np.stack([means * (gain is None), np.full_like(means, sigma is None)], axis=1)
    slope = base = 0.0
    fitted, trust = variances, np.ones_like(means)
    for _ in range(_FITS if len(means) else 0):
        weights = np.sqrt(trust) / fitted
        slope, base = nnls(unknown * weights[:, None], (variances - known) * weights)[0]
        fitted = np.maximum(known + unknown @ (slope, base), 1e-6 * variances)
        above = variances / fitted - 1
        trust = np.where(above > 0, _BELOW, 1 - _BELOW) / np.maximum(np.abs(above), 0.01)
    if gain is None:
        gain = max(slope, _LEAST_GAIN * (sigma if sigma is not None else math.sqrt(base)))
    found = CountNoise(float(gain), math.sqrt(base) if sigma is None else sigma)
    axes = long_axes(channel[None].shape)
    if not axes or gain == 0 or found.counts(float(channel.mean())) > _VERY_FEW:
        return found
    root = 2 ** (len(axes) / 2)
    wider = None if sigma is None else sigma * root
    found = count_noise(sums_over_blocks(channel[None], axes)[0], known_gain, wider, gpu)
    return replace(found, sigma=found.sigma / root)


def _rician_sigma(channel: NDArray[Any], gpu: Gpu | None) -> float:
    """The noise of a magnitude channel: the one for which transformed values have noise of one."""
    sigma = sigma_of_channel(channel, contents_of(channel[None], gpu)[0], gpu)
    for _ in range(_FITS if sigma > 0 else 0):
        stable = RicianNoise(sigma).forward(channel)
        sigma *= sigma_of_channel(stable, contents_of(stable[None], gpu)[0], gpu)
    return sigma
