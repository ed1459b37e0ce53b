"""Denoising: image in, image out."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from kronlearn.core.coder import METHODS, check_method
from kronlearn.core.dictionary import Dictionary
from kronlearn.cuda.images import compile_ahead
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager
from kronlearn.images.dictionaries import Choice, choose, learn, spans_channels
from kronlearn.images.groups import EFFORTS, refine
from kronlearn.images.noise import sigma_of_channel
from kronlearn.images.patch_grid import sizes_per_axis
from kronlearn.images.planes import Planes, as_image, contents_of, image_array, place_of, returned
from kronlearn.images.stabilisation import denoise_stabilised, is_map
from kronlearn.images.stages import Progress, Stages

__all__ = ["Denoised", "denoise"]

# Patches have about this many pixels; where the noise exceeds this share of the contrast, more.
_PATCH_PIXELS, _LARGE_PATCH_PIXELS = 64, 256
_NOISY = 0.75
# Numbers that are learned from: 10,000 patches of 64, 2,500 of 256.
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


@dataclass(frozen=True)
class Denoised:
    """What :func:`denoise` returns with ``full=True``.

    Parameters
    ----------
    image : array
        The denoised image.
    sigma : float or tuple of float
        The standard deviation of the noise, one for each channel if there is a channel axis; of
        the Gaussian part if there are counts, of a map the root mean square.
    dictionary : KroneckerDictionary or KroneckerSumDictionary or None
        What patches were coded with; None if nothing was coded because there is hardly any noise.
    history : dict or None
        The history of learning; None if nothing was learned.
    settings : dict
        The settings that were chosen.
    seconds : dict
        The time that each stage took.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> noisy = np.random.default_rng(0).normal(100, 5, (64, 64))
    >>> result = kl.images.denoise(noisy, 5, full=True)
    >>> result.sigma, result.settings["patch_size"], list(result.seconds)
    (5.0, (16, 16), ['noise', 'learning', 'coding', 'similar patches'])
    """

    image: Any
    sigma: float | tuple[float, ...]
    dictionary: Dictionary | None
    history: dict[str, list[float]] | None
    settings: dict[str, Any]
    seconds: dict[str, float]


def denoise(
    image: ArrayLike,
    sigma: ArrayLike | None = None,
    *,
    noise: str = "gaussian",
    noise_gain: float | None = None,
    channel_axis: int | None = None,
    dictionary: Dictionary | None = None,
    patch_size: int | Sequence[int] | None = None,
    n_atoms: int | Sequence[int] | None = None,
    n_terms: int = 1,
    gain: float | None = None,
    quality: str = "default",
    stride: int | Sequence[int] | None = None,
    method: str | None = None,
    max_iter: int = 8,
    random_state: Any = 0,
    n_jobs: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    full: bool = False,
) -> Any:
    """Denoise an image.

    A separable dictionary is learned from patches of the noisy image itself, every patch is coded
    with the fewest atoms that leave only the noise, and the coded patches are averaged. Then
    groups of similar patches are filtered: each patch becomes a linear combination of all patches
    of its group, by a ridge regression whose coefficients come from the estimate so far. In an
    image that is nearly clean groups alone are filtered: nothing is learned or coded.

    Parameters
    ----------
    image : array
        An image with any number of spatial axes, of any integer or floating dtype: grey images,
        colour images (with ``channel_axis``), stacks and volumes. It may be on a GPU, as a
        CuPy array, a PyTorch tensor or anything with DLPack: nothing is copied, and the result is
        there, too.
    sigma : float, sequence of float or array, optional
        The standard deviation of the noise in the image's own units: one number, one for each
        channel, or a map of the image's shape. Estimated by default.
    noise : {"gaussian", "poisson", "poisson-gaussian", "rician"}, default "gaussian"
        The kind of noise. "poisson" is that of counted photons, electrons or events: an image is
        ``noise_gain`` times counts. "poisson-gaussian" is that and noise of ``sigma``, as of a
        camera that reads them out. "rician" is that of magnitudes of complex numbers with noise of
        ``sigma`` in both parts, as in magnetic resonance imaging. All are noise that is independent
        from pixel to pixel, in values from which no offset (black level) was left.
    noise_gain : float, optional
        The value that one count has in the image; estimated by default.
    channel_axis : int, optional
        The axis that holds channels, as in scikit-image. Channels are denoised together: their
        principal components share the places of similar patches.
    dictionary : KroneckerDictionary or KroneckerSumDictionary, optional
        A dictionary with one mode for each spatial axis, used instead of one learned from the
        image. One more mode is for the channels: they are then coded together, with one sigma.
    patch_size : int or sequence of int, optional
        The size of a patch, for all spatial axes or one each. By default 8 × 8 pixels, 16 × 16
        where the noise is nearly as strong as the image's contrast, and about as many pixels with
        other numbers of axes.
    n_atoms : int or sequence of int, optional
        Atoms to learn, for all spatial axes or one each; by default twice as many as a patch has
        pixels along the axis, for large patches one and a half times as many.
    n_terms : int, default 1
        Learn a sum of this many Kronecker products: slower, and better by 0.02 dB at most.
    gain : float, optional
        Patches are coded until the norm of their residual is ``gain`` times that of the noise; by
        default 1.08 for patches of 64 pixels and 1.04 for patches of 256.
    quality : {"default", "fast", "best", "dictionary"}, default "default"
        How much is done with groups of similar patches: "fast" takes a quarter of the time and is
        up to 0.4 dB worse, "best" takes three times as long and is up to 0.1 dB better.
        "dictionary" leaves groups out: the paper's method alone, 0.4 to 2 dB worse.
    stride : int or sequence of int, optional
        Pixels from patch to patch in the first stage; by default 1, or 2 for large patches and
        where the contrast is more than 30 times the noise.
    method : {"ols", "omp", "exchange", "threshold"}, optional
        The coder; by default "threshold" for orthonormal factors, otherwise "ols".
    max_iter : int, default 8
        Iterations of learning.
    random_state : int, RandomState or None, default 0
        Chooses the patches that are learned from and the initial dictionary.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    device : {"cpu", "cuda"}, default "cpu"
        Where to compute: on the processor, or on an NVIDIA GPU (the extra ``cuda13`` or
        ``cuda12``). An image on a GPU is worked on there.
    progress : callable, optional
        Called with the name of a stage and the fraction of it that is done; raising an exception
        stops the work.
    full : bool, default False
        Return a :class:`Denoised` with the image, the noise found, the dictionary and more.

    Returns
    -------
    array or Denoised
        The denoised image, of the shape, dtype and library of the one given; integers are rounded
        and kept in range.

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
    given = locals()
    if noise != "gaussian" or noise_gain is not None or is_map(sigma, channel_axis):
        return denoise_stabilised(denoise, **given)
    workers = Workers.of(n_jobs, device, image)
    # Nobody else asks how long stages take.
    log = Stages(progress, workers.gpu.finish if full and workers.gpu is not None else None)
    channels = image_array(image, channel_axis, workers.gpu)
    if workers.gpu is not None:
        compile_ahead(workers.gpu, channels.dtype)
    joint = spans_channels(dictionary, channels, channel_axis)
    if joint:
        channels = np.moveaxis(channels, 0, -1)[None]
    shape = channels.shape[1:]
    if quality not in _QUALITIES:
        raise ValueError(
            f"quality={quality!r} does not exist; choose one of {', '.join(_QUALITIES)}."
        )
    choice = choose(shape, dictionary, patch_size, n_atoms, _PATCH_PIXELS, n_terms)
    how = _How(choice, gain, stride, method)
    seed = 0
    if choice.dictionary is None:
        seed = int(check_random_state(random_state).randint(2**31 - 1))
    with log.stage("noise"):
        contents = contents_of(channels, workers.gpu)
        ranges = [(found.low, found.high) for found in contents]
        if sigma is None:
            gpus = [workers.gpu] * len(channels)
            sigmas = list(map(sigma_of_channel, channels, contents, gpus))
        else:
            sigmas = _given_sigmas(sigma, ranges, channels[0].size, None if joint else channel_axis)
    noisy = [k for k, s in enumerate(sigmas) if _is_noisy(channels[k], s, ranges[k])]
    dictionary, history = None, None
    settings: dict[str, Any] = {}
    if noisy:
        scales = [sigmas[k] for k in noisy]
        planes = Planes.from_channels(channels, scales, noisy, gpu=workers.gpu, contents=contents)
        estimate = None
        clear, nearly_clean = (
            all(_exceeds(ratio * sigmas[k], channels[k], ranges[k]) for k in noisy)
            for ratio in (_CLEAR, _NEARLY_CLEAN)
        )
        if not nearly_clean:
            if patch_size is None and choice.dictionary is None and _drowned(planes):
                choice = choose(shape, None, None, n_atoms, _LARGE_PATCH_PIXELS, n_terms)
                how = _How(choice, gain, stride, method)
            elif stride is None and clear:
                how.stride = tuple(min(2, m) for m in choice.patch_size)
            dictionary = choice.dictionary
            if dictionary is None:
                most = _NUMBERS_LEARNED_FROM // (4 if clear else 1)
                n_samples = min(most // choice.pixels, planes.pixels.size // 2)
                with log.stage("learning") as on_share:
                    model = learn(
                        planes.pixels,
                        choice,
                        max(1, n_samples),
                        tol=how.tol,
                        max_iter=max_iter,
                        seed=seed,
                        workers=workers,
                        on_share=on_share,
                    )
                dictionary, history = model.dictionary_, model.history_
            with log.stage("coding") as on_share:
                coder = Averager(choice.patch_size, how.stride, workers, on_share)
                estimate = coder.code_planes(planes.pixels, choice, dictionary, how.tol, how.method)
            settings = {**how.settings(), "max_iter": int(max_iter)}
        settings["quality"] = quality
        if quality != "dictionary" or estimate is None:
            with log.stage("similar patches") as on_share:
                effort = EFFORTS["fast" if estimate is None else quality]
                # Of channels, the first principal component has nearly all of the structure.
                estimate = refine(planes.pixels, estimate, effort, workers, on_share, n_matched=1)
    if len(noisy) < len(channels):
        result = channels.copy()
    else:
        result = place_of(channels, workers.gpu).empty(channels.shape, channels.dtype)
    if noisy:
        assert estimate is not None
        planes.restore(estimate, result)
    if joint:
        result = np.moveaxis(result[0], -1, 0)
    denoised = Denoised(
        returned(image, as_image(result, channel_axis), workers.gpu),
        sigmas[0] if joint or channel_axis is None else tuple(sigmas),
        dictionary,
        history,
        settings,
        log.seconds,
    )
    return denoised if full else denoised.image


class _How:
    """How patches are coded where noise has a standard deviation of one."""

    def __init__(self, choice: Choice, gain: Any, stride: Any, method: str | None) -> None:
        self.choice = choice
        self.gain = 1 + 0.64 / math.sqrt(choice.pixels)
        if gain is not None:
            if not isinstance(gain, numbers.Real) or not 0 < float(gain) < math.inf:
                raise ValueError(f"gain={gain!r} is not a positive number.")
            self.gain = float(gain)
        self.stride = tuple(min(2 if choice.is_large else 1, m) for m in choice.patch_size)
        if stride is not None:
            self.stride = sizes_per_axis("stride", stride, choice.patch_size)
            if any(t > m for t, m in zip(self.stride, choice.patch_size, strict=True)):
                raise ValueError(
                    f"stride={stride} leaves pixels out between patches of {choice.patch_size}; "
                    "pass at most the patch's size."
                )
        orthonormal = choice.dictionary is not None and choice.dictionary.is_orthonormal
        self.method = method or ("threshold" if orthonormal else "ols")
        if choice.dictionary is not None:
            check_method(self.method, choice.dictionary)
        elif self.method not in METHODS:
            raise ValueError(
                f"method={method!r} does not exist; choose one of {', '.join(METHODS)}."
            )
        elif self.method == "threshold":
            raise ValueError('method="threshold" needs an orthonormal dictionary; pass one.')

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
    channel_axis: int | None,
) -> list[float]:
    """The noise of every channel, with the range of its pixels, as it was given."""
    given = np.asarray(sigma)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"sigma={sigma!r} is not a number.")
    n_channels = 0 if channel_axis is None else len(ranges)
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


def _drowned(planes: Planes) -> bool:
    """Whether noise of one is strong beside what varies in the strongest plane."""
    contrast2 = float(np.var(planes.pixels[0], dtype=np.float64)) - 1
    return contrast2 * _NOISY**2 < 1
