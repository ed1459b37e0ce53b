"""Removal of noise that is white or varies from pixel to pixel."""

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
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager
from kronlearn.images.coarser import long_axes, spread, sums_over_blocks
from kronlearn.images.dictionaries import Choice, choose, learn, spans_channels
from kronlearn.images.groups import EFFORTS, refine
from kronlearn.images.noise import sigma_of_channel
from kronlearn.images.patch_grid import sizes_per_axis
from kronlearn.images.planes import Planes, contents_of, place_of
from kronlearn.images.precision import coarser, levelled, of_planes, to_learn_from
from kronlearn.images.stages import Stages

__all__ = ["Denoising"]

# Patches have about this many pixels.
_PATCH_PIXELS = 64
# Quality used for the half-size image when noise exceeds the contrast.
_COARSER = {"fast": "fast", "default": "fast", "best": "default"}
# Numbers that are learned from: 10,000 patches of 64.
_NUMBERS_LEARNED_FROM = 640_000
# Beyond this ratio of signal to noise patches are not coded: they would need more nonzeros than
# they may get, which takes long and loses more detail than noise.
_NEARLY_CLEAN = 300
# Beyond this one they need many: every second one along an axis is coded, and a quarter as many are
# learned from, which costs 0.05 dB at most.
_CLEAR = 30
# Beyond this one there is nothing that single precision could take away.
_CLEAN = 1e6
_QUALITIES = (*EFFORTS, "dictionary")


@dataclass
class Denoising:
    """Denoises channels (C, *spatial) with the given options; keeps what was learned and chosen."""

    log: Stages
    workers: Workers
    #: Whether channels are those of an image with a channel axis.
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
    learned: Dictionary | None = None
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
        """Channels without noise, and how much there was in each.

        With a ``precision`` of their pixels that is the noise where it is one.
        """
        joint = spans_channels(self.dictionary, channels, self.has_channels)
        if joint:
            channels = np.moveaxis(channels, 0, -1)[None]
            precision = None if precision is None else np.moveaxis(precision, 0, -1)[None]
        gpu = self.workers.gpu
        self._how(channels.shape[1:], precision is not None)
        with self.log.stage("noise"):
            contents = contents_of(channels, gpu)
            ranges = [(found.low, found.high) for found in contents]
            if sigma is None:
                sigmas = list(map(sigma_of_channel, channels, contents, [gpu] * len(channels)))
            else:
                several = self.has_channels and not joint
                sigmas = _given_sigmas(sigma, ranges, channels[0].size, several)
        noisy = [k for k, s in enumerate(sigmas) if _is_noisy(channels[k], s, ranges[k])]
        self.settings = {}
        if noisy:
            scales = [sigmas[k] for k in noisy]
            planes = Planes.from_channels(channels, scales, noisy, gpu=gpu, contents=contents)
            weights = None if precision is None else of_planes(precision[noisy], planes.basis)
            clear, nearly_clean = (
                all(_exceeds(ratio * sigmas[k], channels[k], ranges[k]) for k in noisy)
                for ratio in (_CLEAR, _NEARLY_CLEAN)
            )
            if nearly_clean and precision is None:
                estimate = self._filtered(planes.pixels, None, None, "fast")
            else:
                estimate = self._estimate(planes.pixels, weights, self.quality, clear)
            self.settings["quality"] = self.quality
        if len(noisy) < len(channels):
            result = channels.copy()
        else:
            result = place_of(channels, gpu).empty(channels.shape, channels.dtype)
        if noisy:
            planes.restore(estimate, result)
        if joint:
            result = np.moveaxis(result[0], -1, 0)
        return result, sigmas

    def _estimate(
        self,
        planes: NDArray[np.float32],
        precision: NDArray[np.float32] | None,
        quality: str,
        clear: bool,
    ) -> NDArray[np.float32]:
        """Planes (C, *spatial), with noise of one, without it.

        Where noise is strong, an image of half the size is denoised first: it guides the filter of
        groups in place of coded patches.
        """
        axes = long_axes(planes.shape)
        if quality == "dictionary":
            return self._coded(planes, precision, clear)
        if not axes or not _is_drowned(planes, precision):
            return self._filtered(planes, precision, self._coded(planes, precision, clear), quality)
        root = np.float32(math.sqrt(2 ** len(axes)))
        weights = None
        if precision is None:
            coarse = sums_over_blocks(planes, axes) / root
        else:
            coarse, weights = coarser(planes, precision, axes)
        guide = self._estimate(coarse, weights, _COARSER[quality], clear)
        guide = spread(guide, axes, planes.shape) / root
        return self._filtered(planes, precision, guide, quality)

    def _filtered(
        self,
        planes: NDArray[np.float32],
        precision: NDArray[np.float32] | None,
        estimate: NDArray[np.float32] | None,
        quality: str,
    ) -> NDArray[np.float32]:
        """What groups of similar patches make of an estimate, which is used up."""
        variance: float | NDArray[np.float32] = 1.0
        if precision is not None:
            assert estimate is not None
            planes, variance = levelled(planes, precision, estimate)
        with self.log.stage("similar patches") as on_share:
            # Of channels, the first principal component has nearly all of the structure.
            return refine(
                planes,
                estimate,
                EFFORTS[quality],
                self.workers,
                on_share,
                n_matched=1,
                variance=variance,
            )

    def _coded(
        self, planes: NDArray[np.float32], precision: NDArray[np.float32] | None, clear: bool
    ) -> NDArray[np.float32]:
        """Planes whose patches are coded, with a dictionary that is learned unless it was given."""
        how = self._how(planes.shape[1:], precision is not None)
        if self.stride is None and clear:
            how.stride = tuple(min(2, m) for m in how.choice.patch_size)
        choice = how.choice
        self.learned = choice.dictionary
        if self.learned is None:
            most = _NUMBERS_LEARNED_FROM // (4 if clear else 1)
            n_samples = min(most // choice.pixels, planes.size // 2)
            with self.log.stage("learning") as on_share:
                model = learn(
                    planes if precision is None else to_learn_from(planes, precision),
                    choice,
                    max(1, n_samples),
                    tol=how.tol,
                    max_iter=self.max_iter,
                    seed=self.seed,
                    workers=self.workers,
                    on_share=on_share,
                )
            self.learned, self.history = model.dictionary_, model.history_
        self.settings = {**how.settings(), "max_iter": int(self.max_iter)}
        with self.log.stage("coding") as on_share:
            coder = Averager(choice.patch_size, how.stride, self.workers, on_share)
            return coder.code_planes(
                planes, choice, self.learned, how.tol, how.method, known=precision
            )

    def _how(self, shape: Sequence[int], weighted: bool) -> _How:
        choice = choose(
            shape, self.dictionary, self.patch_size, self.n_atoms, _PATCH_PIXELS, self.n_terms
        )
        return _How(choice, self.gain, self.stride, self.method, weighted)


class _How:
    """How patches are coded where noise has a standard deviation of one."""

    def __init__(
        self, choice: Choice, gain: Any, stride: Any, method: str | None, weighted: bool
    ) -> None:
        self.choice = choice
        self.gain = 1 + 0.64 / math.sqrt(choice.pixels)
        if gain is not None:
            if not isinstance(gain, numbers.Real) or not 0 < float(gain) < math.inf:
                raise ValueError(f"gain={gain!r} is not a positive number.")
            self.gain = float(gain)
        self.stride = tuple(max(1, m // 8) for m in choice.patch_size)
        if stride is not None:
            self.stride = sizes_per_axis("stride", stride, choice.patch_size)
            if any(t > m for t, m in zip(self.stride, choice.patch_size, strict=True)):
                raise ValueError(
                    f"stride={stride} leaves pixels out between patches of {choice.patch_size}; "
                    "pass at most the patch's size."
                )
        orthonormal = choice.dictionary is not None and choice.dictionary.is_orthonormal
        self.method = method or ("threshold" if orthonormal and not weighted else "ols")
        if choice.dictionary is not None:
            check_method(self.method, choice.dictionary)
        elif self.method not in METHODS:
            raise ValueError(
                f"method={method!r} does not exist; choose one of {', '.join(METHODS)}."
            )
        elif self.method == "threshold":
            raise ValueError('method="threshold" needs an orthonormal dictionary; pass one.')
        if weighted and self.method not in ("ols", "omp"):
            raise ValueError(
                f'method="{self.method}" does not weigh pixels, as a map of sigma demands; pass '
                '"ols" or "omp".'
            )

    @property
    def tol(self) -> float:
        """The residual that a patch may have."""
        return self.gain * math.sqrt(self.choice.pixels)

    def settings(self) -> dict[str, Any]:
        """What was chosen, as plain values."""
        return {
            "patch_size": self.choice.patch_size,
            "n_atoms": self.choice.n_atoms,
            "n_terms": self.choice.n_terms,
            "gain": self.gain,
            "max_nonzeros": self.choice.max_nonzeros,
            "stride": self.stride,
            "method": self.method,
        }


def _given_sigmas(
    sigma: ArrayLike,
    ranges: list[tuple[float, float]],
    n_pixels: int,
    several: bool,
) -> list[float]:
    """The noise of every channel, with the range of its pixels, as it was given."""
    given = np.asarray(sigma)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"sigma={sigma!r} is not a number.")
    n_channels = len(ranges) if several else 0
    if given.ndim > 1 or (given.ndim == 1 and len(given) != n_channels):
        wanted = "a number" + (f" or {n_channels}, one per channel" if n_channels else "")
        raise ValueError(f"sigma has shape {given.shape}; pass {wanted}.")
    if not (np.isfinite(given).all() and (given >= 0).all()):
        raise ValueError(f"sigma={given} is not a standard deviation; pass zero or more.")
    sigmas = [float(s) for s in np.broadcast_to(given, len(ranges))]
    for s, (low, high) in zip(sigmas, ranges, strict=True):
        # Noise alone would spread that many pixels over several times its standard deviation.
        if n_pixels >= 64 and 0 < high - low < s:
            raise ValueError(
                f"sigma={s:g} exceeds the range of the image, {low:g} to {high:g}; it is the "
                "standard deviation of the noise in the image's own units."
            )
    return sigmas


def _is_noisy(channel: NDArray[Any], sigma: float, limits: tuple[float, float]) -> bool:
    """Whether there is noise in a channel, of pixels within limits, that can be taken away."""
    return sigma > 0 and not _exceeds(_CLEAN * sigma, channel, limits)


def _exceeds(span: float, channel: NDArray[Any], limits: tuple[float, float]) -> bool:
    """Whether nearly all pixels of a channel, which lie within limits, take more than a span."""
    return limits[1] - limits[0] >= span and _spread(channel) >= span


def _spread(channel: NDArray[Any]) -> float:
    """What nearly all pixels lie within; a few outliers do not count."""
    some = channel[tuple(slice(None, None, max(1, size // 256)) for size in channel.shape)]
    low, high = np.percentile(some.astype(np.float64), (1, 99))
    return float(high - low)


def _is_drowned(planes: NDArray[np.float32], precision: NDArray[np.float32] | None) -> bool:
    """Whether what varies in the strongest plane is less than its noise."""
    plane = planes[0]
    if precision is None:
        return float(np.var(plane, dtype=np.float64)) < 2
    mean = np.average(plane, weights=precision[0])
    return float(np.average((plane - mean) ** 2, weights=precision[0])) < 2
