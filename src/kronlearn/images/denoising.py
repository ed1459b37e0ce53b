"""Denoising: image in, image out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from kronlearn.dictionary import KroneckerDictionary
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.images.aggregation import Averager, similar_patches
from kronlearn.images.dictionaries import (
    LARGE_PATCH,
    as_dictionary,
    atoms_to_learn,
    check_patch,
    coding_method,
    default_patch,
    draw_patches,
    learn_from_patches,
    sizes_per_axis,
)
from kronlearn.images.noise import estimate_sigma
from kronlearn.images.planes import Planes, as_image, check_finite, image_array, work_dtype
from kronlearn.images.stages import Progress, Stages, part_of

__all__ = ["Denoised", "denoise"]

# Patches have about this many pixels; where the noise exceeds this share of the contrast, more.
_PATCH_PIXELS, _LARGE_PATCH_PIXELS = 64, 256
_NOISY = 0.75
# Numbers that are learned from: 20,000 patches of 64, 5,000 of 256.
_NUMBERS_LEARNED_FROM = 1_280_000
# Beyond this ratio of signal to noise single precision has nothing to take away.
_CLEAN = 1e6


@dataclass(frozen=True)
class Denoised:
    """What :func:`denoise` did.

    ``sigma`` is the standard deviation of the noise, one for each channel if there is a channel
    axis; ``dictionary`` what patches were coded with, None if there was nothing to do; ``history``
    that of its learning, None if it was not learned; ``settings`` what was chosen; ``seconds`` how
    long each stage took.
    """

    image: NDArray[Any]
    sigma: float | tuple[float, ...]
    dictionary: KroneckerDictionary | None
    history: dict[str, list[float]] | None
    settings: dict[str, Any]
    seconds: dict[str, float]


@dataclass(frozen=True)
class _Settings:
    """How patches are coded: all choices made."""

    patch_size: tuple[int, ...]
    n_atoms: tuple[int, ...]
    gain: float
    max_nonzeros: int
    stride: tuple[int, ...]
    stages: int

    @property
    def tol(self) -> float:
        """The residual a patch may have where noise has a standard deviation of one."""
        return self.gain * math.sqrt(math.prod(self.patch_size))


def denoise(
    image: ArrayLike,
    sigma: float | Sequence[float] | None = None,
    *,
    channel_axis: int | None = None,
    dictionary: KroneckerDictionary | None = None,
    patch_size: int | Sequence[int] | None = None,
    n_atoms: int | Sequence[int] | None = None,
    gain: float | None = None,
    stages: int = 2,
    stride: int | Sequence[int] | None = None,
    method: str | None = None,
    max_iter: int = 10,
    random_state: Any = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    full: bool = False,
) -> Any:
    """An image without its noise.

    A separable dictionary is learned from patches of the noisy image itself and every patch is
    coded with as few atoms as leave a residual of the noise's size; the patches are averaged. The
    second stage takes groups of similar patches, as samples with one more mode, and shrinks what
    the first estimate says is not signal.

    Parameters
    ----------
    image : array with any number of spatial axes, of any integer or floating dtype
        Grey images, colour images (with ``channel_axis``), stacks and volumes.
    sigma : float or one for each channel, optional
        The standard deviation of the noise in the image's own units; estimated if not given.
    channel_axis : int, optional
        The axis that holds channels, as in scikit-image. Channels are denoised together: their
        principal components share the places of similar patches.
    dictionary : KroneckerDictionary, optional
        To code with, instead of one learned from the image; one mode for each spatial axis.
    patch_size : int or one for each spatial axis, optional
        By default patches of 8 × 8 pixels, 16 × 16 where the noise is nearly as strong as the
        image's contrast, and about as many pixels with other numbers of axes.
    n_atoms : int or one for each spatial axis, optional
        Atoms to learn; by default twice as many as a patch has pixels along the axis, for large
        patches half as many more.
    gain : float, optional
        Patches are coded until the norm of their residual is ``gain`` times that of the noise;
        1.08 for patches of 64 pixels and 1.04 for 256 by default.
    stages : {2, 1}
        1 leaves out the groups: faster, about 0.5 dB worse.
    stride : int or one for each spatial axis, optional
        Pixels from patch to patch in the first stage; 1 by default, 2 for large patches.
    method : {"ols", "omp", "threshold"}, optional
        The coder; by default "threshold" for orthonormal factors, otherwise "ols".
    max_iter : int
        Iterations of learning.
    random_state : int, RandomState or None
        Chooses the patches that are learned from and the start.
    n_jobs : int or None
        Threads; -1 for all processors. The result has the same bits for any number.
    progress : callable, optional
        Called with the name of a stage and the share of it that is done, between 0 and 1.
    full : bool
        Return a :class:`Denoised` with the image, the noise found, the dictionary and more.

    Returns
    -------
    array of the image's shape and dtype (integers are rounded and kept in range), or Denoised

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> from skimage.data import camera
    >>> clean = camera()[100:228, 180:308].astype(np.float32)
    >>> noisy = clean + np.random.default_rng(0).normal(0, 20, clean.shape)
    >>> result = kl.images.denoise(noisy)
    >>> bool(np.std(result - clean) < 0.5 * np.std(noisy - clean))
    True
    """
    log = Stages(progress)
    channels = image_array(image, channel_axis)
    dictionary = as_dictionary(dictionary, patch_size, n_atoms, channels.shape[1:])
    if stages not in (1, 2):
        raise ValueError(f"stages={stages!r} does not exist; pass 1 or 2.")
    if gain is not None and not (math.isfinite(gain) and gain > 0):
        raise ValueError(f"gain={gain!r} is not a positive number.")
    with log.stage("noise"):
        sigmas = _sigmas(sigma, channels, channel_axis)
    result = channels.astype(work_dtype(channels.dtype), copy=True)
    noisy = [k for k, s in enumerate(sigmas) if s > 0 and _contrast(channels[k]) < _CLEAN * s]
    history, settings = None, {}
    if noisy:
        planes = Planes.from_channels(channels[noisy], np.array([sigmas[k] for k in noisy]))
        chosen = _choose(planes, dictionary, patch_size, n_atoms, gain, stages, stride)
        rng = check_random_state(random_state)
        job = _Denoising(planes.pixels, chosen, resolve_n_jobs(n_jobs), log)
        if dictionary is None:
            dictionary, history = job.learn(max_iter, int(rng.randint(2**31 - 1)))
        method = coding_method(method, dictionary)
        result[noisy] = planes.channels(job.run(dictionary, method), result.dtype)
        settings = {**asdict(chosen), "method": method, "max_iter": max_iter}
    denoised = Denoised(
        as_image(result, channels.dtype, channel_axis),
        sigmas[0] if channel_axis is None else tuple(sigmas),
        dictionary,
        history,
        settings,
        log.seconds,
    )
    return denoised if full else denoised.image


class _Denoising:
    """The stages, on planes (C, *spatial) with noise of standard deviation one."""

    def __init__(
        self, planes: NDArray[np.float32], settings: _Settings, n_threads: int, log: Stages
    ) -> None:
        self.planes, self.settings, self.n_threads, self.log = planes, settings, n_threads, log

    def learn(self, max_iter: int, seed: int) -> tuple[KroneckerDictionary, dict[str, list[float]]]:
        """A dictionary from patches of the planes, and the history of its learning."""
        choice = self.settings
        most = _NUMBERS_LEARNED_FROM // math.prod(choice.patch_size)
        n_samples = max(1, min(most, self.planes.size // 2))
        with self.log.stage("learning") as on_share:
            rng = np.random.default_rng(seed)
            model = learn_from_patches(
                draw_patches(self.planes, choice.patch_size, n_samples, rng),
                choice.n_atoms,
                tol=choice.tol,
                width=min(choice.max_nonzeros, math.prod(choice.n_atoms)),
                max_iter=max_iter,
                random_state=seed,
                n_jobs=self.n_threads,
                on_share=on_share,
            )
        return model.dictionary_, model.history_

    def run(self, dictionary: KroneckerDictionary, method: str) -> NDArray[np.float32]:
        """The denoised planes."""
        estimate = self._code(dictionary, method)
        if self.settings.stages == 1:
            return estimate
        with self.log.stage("similar patches") as on_share:
            return similar_patches(self.planes, estimate, 1.0, self.n_threads, on_share)

    def _code(self, dictionary: KroneckerDictionary, method: str) -> NDArray[np.float32]:
        choice = self.settings
        estimate = np.empty_like(self.planes)
        with self.log.stage("coding") as on_share:
            for k, plane in enumerate(self.planes):
                tell = part_of(on_share, k, len(self.planes))
                averager = Averager(choice.patch_size, choice.stride, self.n_threads, tell)
                estimate[k], _ = averager.code(
                    plane,
                    dictionary.factors,
                    method=method,
                    width=min(choice.max_nonzeros, dictionary.n_codes),
                    tol=choice.tol,
                )
        return estimate


def _sigmas(
    sigma: float | Sequence[float] | None, channels: NDArray[Any], channel_axis: int | None
) -> list[float]:
    """The noise of every channel; raises if a pixel is not finite."""
    if sigma is None:
        found = estimate_sigma(channels, channel_axis=0)
        assert isinstance(found, tuple)
        return list(found)
    check_finite(channels)
    try:
        given = np.asarray(sigma, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"sigma={sigma!r} is not a number.") from None
    n_channels = 0 if channel_axis is None else len(channels)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != n_channels):
        wanted = "a number" + (f" or {n_channels}, one per channel" if n_channels else "")
        raise ValueError(f"sigma has shape {given.shape}; pass {wanted}.")
    if not (np.isfinite(given).all() and (given >= 0).all()):
        raise ValueError(f"sigma={sigma} is not a standard deviation; pass zero or more.")
    return [float(s) for s in np.broadcast_to(given, len(channels))]


def _contrast(channel: NDArray[Any]) -> float:
    return float(np.max(channel)) - float(np.min(channel))


def _choose(
    planes: Planes,
    dictionary: KroneckerDictionary | None,
    patch_size: int | Sequence[int] | None,
    n_atoms: int | Sequence[int] | None,
    gain: float | None,
    stages: int,
    stride: int | Sequence[int] | None,
) -> _Settings:
    shape = planes.pixels.shape[1:]
    if dictionary is not None:
        patch, atoms = dictionary.patch_shape, dictionary.n_atoms
    else:
        if patch_size is not None:
            patch = sizes_per_axis("patch_size", patch_size, shape)
            check_patch(patch, shape)
        else:
            contrast2 = float(np.var(planes.pixels[0], dtype=np.float64)) - 1
            noisy = contrast2 * _NOISY**2 < 1
            patch = default_patch(shape, _LARGE_PATCH_PIXELS if noisy else _PATCH_PIXELS)
        atoms = atoms_to_learn(patch, n_atoms)
    pixels = math.prod(patch)
    return _Settings(
        patch_size=patch,
        n_atoms=atoms,
        gain=1 + 0.64 / math.sqrt(pixels) if gain is None else float(gain),
        max_nonzeros=max(1, min(pixels // 2, 64)),
        stride=sizes_per_axis("stride", stride or (2 if pixels > LARGE_PATCH else 1), shape),
        stages=stages,
    )
