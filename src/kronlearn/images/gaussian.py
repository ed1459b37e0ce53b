"""Remove Gaussian noise that is white or varies from pixel to pixel."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.coder import METHODS, check_method
from kronlearn.core.dictionary import Dictionary
from kronlearn.cuda.pixels import Contents
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager
from kronlearn.images.dictionaries import (
    DictionarySpec,
    dictionary_spec,
    given_or_learned,
    spans_channels,
)
from kronlearn.images.groups import EFFORTS, refine
from kronlearn.images.noise import sigma_of_channel
from kronlearn.images.patch_grid import sizes_per_axis
from kronlearn.images.planes import Float32, Planes, array_module, contents_of
from kronlearn.images.precision import equalised, halved, precision_of_planes, training_planes
from kronlearn.images.pyramid import axes_to_halve, interpolate, sum_pairs
from kronlearn.images.stages import Stages

__all__ = ["GaussianDenoiser"]

# Patches have about this many pixels.
_PATCH_PIXELS = 64
# Quality used for the half-size image when noise exceeds the contrast.
_COARSE_QUALITY = {"fast": "fast", "default": "fast", "best": "default"}
# Pixels of the patches to learn from: 10,000 patches of 64.
_PIXELS_TO_LEARN_FROM = 640_000
# Ratios of the contrast to the noise. Above the first, noise is weak and patches need many
# nonzeros: every second patch along an axis is coded and a quarter as many are learned from, which
# costs at most 0.05 dB.
_WEAK_NOISE = 30
# Above this one, patches are not coded: they would need more nonzeros than they may get, which
# takes long and loses more detail than noise.
_FAINT_NOISE = 300
# Above this one, single precision cannot remove anything.
_NO_NOISE = 1e6
# The noise of channels is independent if that of every plane is this close to one: texture and
# errors of the estimate explain the difference.
_INDEPENDENT = 0.25
# The least noise of a plane in units of that of the channels: where these have all of their noise
# in common, some planes have none.
_LEAST_NOISE = 0.05
_QUALITIES = (*EFFORTS, "dictionary")


@dataclass
class GaussianDenoiser:
    """Denoises channels (C, *spatial) with options of :func:`~kronlearn.images.denoise`.

    Afterwards ``used_dictionary``, ``history`` and ``settings`` tell what was learned and chosen.
    """

    log: Stages
    workers: Workers
    #: Whether the image has a channel axis.
    has_channels: bool
    dictionary: Any
    patch_size: Any
    n_atoms: Any
    n_terms: int
    gain: Any
    quality: str
    stride: Any
    method: str | None
    max_iter: int
    seed: int
    used_dictionary: Dictionary | None = None
    history: dict[str, list[float]] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.quality not in _QUALITIES:
            raise ValueError(
                f"quality={self.quality!r} does not exist; choose one of {', '.join(_QUALITIES)}."
            )

    def denoised(
        self,
        channels: NDArray[Any],
        sigma: ArrayLike | None,
        precision: NDArray[np.float64] | None = None,
    ) -> tuple[NDArray[Any], list[float]]:
        """Return the channels without noise, and the standard deviation of the noise in each.

        ``sigma`` is estimated if it is None. With the ``precision`` of the pixels it is the noise
        of those whose precision is one.
        """
        joint = spans_channels(self.dictionary, channels, self.has_channels)
        if joint:
            channels = np.moveaxis(channels, 0, -1)[None]
            precision = None if precision is None else np.moveaxis(precision, 0, -1)[None]
        # Options that do not fit are refused before any work is done.
        self._coding(channels.shape[1:], precision is not None)
        gpu = self.workers.gpu
        with self.log.stage("noise"):
            contents = contents_of(channels, gpu)
            if sigma is None:
                sigmas = list(map(sigma_of_channel, channels, contents, [gpu] * len(channels)))
            else:
                per_channel = self.has_channels and not joint
                sigmas = _checked_sigmas(sigma, contents, channels[0].size, per_channel)
        result = self._denoised_channels(channels, contents, sigmas, precision, sigma is None)
        return np.moveaxis(result[0], -1, 0) if joint else result, sigmas

    def _denoised_channels(
        self,
        channels: NDArray[Any],
        contents: Sequence[Contents],
        sigmas: Sequence[float],
        precision: NDArray[np.float64] | None,
        may_correlate: bool,
    ) -> NDArray[Any]:
        """Denoise the channels in which there is noise to remove, all together.

        Their noise is independent or, if it ``may_correlate``, estimated again in every plane.
        """

        def contrast_exceeds(ratio: float, k: int) -> bool:
            return _contrast_is_at_least(ratio * sigmas[k], channels[k], contents[k])

        noisy = [k for k, s in enumerate(sigmas) if s > 0 and not contrast_exceeds(_NO_NOISE, k)]
        if not noisy:
            return channels.copy()
        gpu, scales = self.workers.gpu, [sigmas[k] for k in noisy]
        planes = Planes.from_channels(channels, scales, noisy, gpu=gpu, contents=contents)
        if may_correlate and len(noisy) > 1:
            planes.rescale(_noise_of_planes(planes))
        weak, faint = (
            all(contrast_exceeds(ratio, k) for k in noisy) for ratio in (_WEAK_NOISE, _FAINT_NOISE)
        )
        if precision is None and faint:
            estimate = self._filtered(planes.pixels, None, None, "fast")
        else:
            weights = None
            if precision is not None:
                weights = precision_of_planes(precision[noisy], planes.basis)
            estimate = self._denoised_planes(planes.pixels, weights, self.quality, weak)
        self.settings["quality"] = self.quality
        if len(noisy) < len(channels):
            result = channels.copy()
        else:
            result = array_module(channels, gpu).empty(channels.shape, channels.dtype)
        planes.restore(estimate, result)
        return result

    def _denoised_planes(
        self,
        planes: Float32,
        precision: Float32 | None,
        quality: str,
        weak: bool,
    ) -> Float32:
        """Denoise planes (C, *spatial) whose noise has standard deviation one.

        Where noise exceeds the contrast, an image of half the size is denoised first: it guides the
        filter of groups in place of coded patches.
        """
        axes = axes_to_halve(planes.shape)
        if quality == "dictionary":
            return self._coded(planes, precision, weak)
        if not axes or not _noise_exceeds_contrast(planes, precision):
            coded = self._coded(planes, precision, weak)
            return self._filtered(planes, precision, coded, quality)
        root = np.float32(math.sqrt(2 ** len(axes)))
        weights = None
        if precision is None:
            coarse = sum_pairs(planes, axes) / root
        else:
            coarse, weights = halved(planes, precision, axes)
        guide = self._denoised_planes(coarse, weights, _COARSE_QUALITY[quality], weak)
        guide = interpolate(guide, axes, planes.shape) / root
        return self._filtered(planes, precision, guide, quality)

    def _filtered(
        self,
        planes: Float32,
        precision: Float32 | None,
        estimate: Float32 | None,
        quality: str,
    ) -> Float32:
        """Improve an estimate, which is overwritten, by groups of similar patches."""
        variance: float | Float32 = 1.0
        if precision is not None:
            assert estimate is not None
            planes, variance = equalised(planes, precision, estimate)
        with self.log.stage("similar patches") as on_share:
            return refine(planes, estimate, EFFORTS[quality], self.workers, on_share, variance)

    def _coded(self, planes: Float32, precision: Float32 | None, weak: bool) -> Float32:
        """Denoise planes by coding their patches, with a dictionary given or learned from them."""
        coding = self._coding(planes.shape[1:], precision is not None, weak)
        spec = coding.spec
        n_pixels = _PIXELS_TO_LEARN_FROM // (4 if weak else 1)
        self.used_dictionary, self.history = given_or_learned(
            spec,
            lambda: planes if precision is None else training_planes(planes, precision),
            max(1, min(n_pixels // spec.pixels, planes.size // 2)),
            tol=coding.tol,
            max_iter=self.max_iter,
            seed=self.seed,
            workers=self.workers,
            log=self.log,
        )
        self.settings = {**coding.settings(), "max_iter": int(self.max_iter)}
        with self.log.stage("coding") as on_share:
            coder = Averager(spec.patch_size, coding.stride, self.workers, on_share)
            return coder.code_planes(
                planes, spec, self.used_dictionary, coding.tol, coding.method, known=precision
            )

    def _coding(self, shape: Sequence[int], weighted: bool, weak: bool = False) -> _Coding:
        """Check the options for coding planes of a spatial shape, and fill in defaults.

        Pixels may be weighted, and the noise may be weak.
        """
        spec = dictionary_spec(
            shape, self.dictionary, self.patch_size, self.n_atoms, _PATCH_PIXELS, self.n_terms
        )
        gain = _checked_gain(self.gain, spec)
        stride = _checked_stride(self.stride, spec, weak)
        return _Coding(spec, gain, stride, _checked_method(self.method, spec, weighted))


@dataclass(frozen=True)
class _Coding:
    """How to code the patches of planes whose noise has standard deviation one."""

    spec: DictionarySpec
    gain: float
    stride: tuple[int, ...]
    method: str

    @property
    def tol(self) -> float:
        """The ℓ2 norm that the residual of a patch may have."""
        return self.gain * math.sqrt(self.spec.pixels)

    def settings(self) -> dict[str, Any]:
        """Return the choices as plain values."""
        return {
            "patch_size": self.spec.patch_size,
            "n_atoms": self.spec.n_atoms,
            "n_terms": self.spec.n_terms,
            "gain": self.gain,
            "max_nonzeros": self.spec.max_nonzeros,
            "stride": self.stride,
            "method": self.method,
        }


def _noise_of_planes(planes: Planes) -> list[float]:
    """Return the standard deviation of the noise in every plane of several channels.

    It is one if the noise of the channels is independent. Noise that they have in common is in the
    first planes, and the others have less.
    """
    contents = contents_of(planes.pixels, planes.gpu)
    sigmas = [
        # Of correlated noise the estimates of the channels have warned.
        sigma_of_channel(plane, content, planes.gpu, name=None)
        for plane, content in zip(planes.pixels, contents, strict=True)
    ]
    if all(abs(sigma - 1) < _INDEPENDENT for sigma in sigmas):
        return [1.0] * len(sigmas)
    return [max(sigma, _LEAST_NOISE) for sigma in sigmas]


def _checked_gain(gain: Any, spec: DictionarySpec) -> float:
    if gain is None:
        return 1 + 0.64 / math.sqrt(spec.pixels)
    if not isinstance(gain, numbers.Real) or not 0 < float(gain) < math.inf:
        raise ValueError(f"gain={gain!r} is not a positive number.")
    return float(gain)


def _checked_stride(stride: Any, spec: DictionarySpec, weak_noise: bool) -> tuple[int, ...]:
    if stride is None:
        return tuple(min(2, m) if weak_noise else max(1, m // 8) for m in spec.patch_size)
    strides = sizes_per_axis("stride", stride, spec.patch_size)
    if any(t > m for t, m in zip(strides, spec.patch_size, strict=True)):
        raise ValueError(
            f"stride={stride} leaves pixels out between patches of {spec.patch_size}; pass at most "
            "the patch's size."
        )
    return strides


def _checked_method(method: str | None, spec: DictionarySpec, weighted: bool) -> str:
    orthonormal = spec.dictionary is not None and spec.dictionary.is_orthonormal
    method = method or ("threshold" if orthonormal and not weighted else "ols")
    if spec.dictionary is not None:
        check_method(method, spec.dictionary)
    elif method not in METHODS:
        raise ValueError(f"method={method!r} does not exist; choose one of {', '.join(METHODS)}.")
    elif method == "threshold":
        raise ValueError('method="threshold" needs an orthonormal dictionary; pass one.')
    if weighted and method not in ("ols", "omp"):
        raise ValueError(
            f'method="{method}" does not weigh pixels, as a map of sigma demands; pass "ols" or '
            '"omp".'
        )
    return method


def _checked_sigmas(
    sigma: ArrayLike, contents: Sequence[Contents], n_pixels: int, per_channel: bool
) -> list[float]:
    """Return the noise of every channel as given: one number for all, or one ``per_channel``."""
    array = np.asarray(sigma)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"sigma={sigma!r} is not a number.")
    n_channels = len(contents) if per_channel else 0
    if array.ndim > 1 or (array.ndim == 1 and len(array) != n_channels):
        wanted = "a number" + (f" or {n_channels}, one per channel" if n_channels else "")
        raise ValueError(f"sigma has shape {array.shape}; pass {wanted}.")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise ValueError(f"sigma={array} is not a standard deviation; pass zero or more.")
    sigmas = [float(s) for s in np.broadcast_to(array, len(contents))]
    for s, channel in zip(sigmas, contents, strict=True):
        # Noise alone would spread this many pixels over several standard deviations.
        if n_pixels >= 64 and 0 < channel.high - channel.low < s:
            raise ValueError(
                f"sigma={s:g} exceeds the range of the image, {channel.low:g} to "
                f"{channel.high:g}; it is the standard deviation of the noise in the image's own "
                "units."
            )
    return sigmas


def _contrast_is_at_least(span: float, channel: NDArray[Any], contents: Contents) -> bool:
    """Whether the values of a channel, apart from a few outliers, spread over a span."""
    if contents.high - contents.low < span:
        return False
    subset = channel[tuple(slice(None, None, max(1, size // 256)) for size in channel.shape)]
    low, high = np.percentile(subset.astype(np.float64), (1, 99))
    return float(high - low) >= span


def _noise_exceeds_contrast(planes: Float32, precision: Float32 | None) -> bool:
    """Whether the signal varies less in the strongest plane than its noise of variance one."""
    plane = planes[0]
    if precision is None:
        return float(np.var(plane, dtype=np.float64)) < 2
    mean = np.average(plane, weights=precision[0])
    return float(np.average((plane - mean) ** 2, weights=precision[0])) < 2
