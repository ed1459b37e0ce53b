"""Denoise images: measure the noise, choose how to remove it, and return what was done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from kronlearn.core.dictionary import Dictionary
from kronlearn.cuda.arrays import in_memory
from kronlearn.cuda.images import compile_ahead
from kronlearn.engines.workers import Workers
from kronlearn.images.dictionaries import spans_channels
from kronlearn.images.gaussian import GaussianDenoiser
from kronlearn.images.inpainting import inpaint
from kronlearn.images.masks import missing_pixels
from kronlearn.images.noise import sigma_of_known
from kronlearn.images.planes import Mask, from_channels, like_input, to_channels
from kronlearn.images.precision import checked_map, is_map, precision_of, raised
from kronlearn.images.stabilisation import check_noise, denoise_stabilised
from kronlearn.images.stages import Progress, Stages

__all__ = ["Denoised", "denoise"]


@dataclass(frozen=True)
class Denoised:
    """The result of :func:`denoise` with ``full=True``.

    Parameters
    ----------
    image : array
        The denoised image.
    sigma : float or tuple of float
        The standard deviation of the noise, one for each channel if there is a channel axis. For
        counts, that of the Gaussian part; for a map, the root mean square.
    dictionary : KroneckerDictionary or KroneckerSumDictionary or None
        The dictionary that patches were coded with; None if there was so little noise that none
        were.
    history : dict or None
        The history of learning; None if nothing was learned.
    settings : dict
        The settings, with the defaults filled in.
    seconds : dict
        The time of each stage, by name.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> noisy = np.random.default_rng(0).normal(100, 5, (64, 64))
    >>> result = kl.images.denoise(noisy, 5, full=True)
    >>> result.sigma, result.settings["patch_size"], list(result.seconds)
    (5.0, (8, 8), ['noise', 'learning', 'coding', 'similar patches'])
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
    mask: ArrayLike | None = None,
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
    image that is nearly clean, only groups are filtered: nothing is learned or coded.

    Parameters
    ----------
    image : array
        An image with any number of spatial axes, of any integer or floating dtype: grey images,
        colour images (with ``channel_axis``), stacks and volumes. It may be on a GPU, as a
        CuPy array, a PyTorch tensor or anything with DLPack; the result is then on that GPU, and
        the image is copied to the host only if there is a ``mask`` or a map of ``sigma``.
    sigma : float, sequence of float or array, optional
        The standard deviation of the noise in the image's own units: one number, one for each
        channel, or a map of the image's shape. Noise that is given is independent from channel to
        channel. By default it is estimated, and noise that channels have in common (unless there
        is a ``mask``) is taken into account.
    mask : array of bool, optional
        True where a pixel is missing, in the image's spatial shape or the image's shape. Missing
        pixels may have any value; :func:`inpaint` fills them in first.
    noise : {"gaussian", "poisson", "poisson-gaussian", "rician"}, default "gaussian"
        The kind of noise. "poisson" is that of counted photons, electrons or events: the image is
        ``noise_gain`` times counts. "poisson-gaussian" adds noise of ``sigma``, such as the
        read-out noise of a camera. "rician" is that of magnitudes of complex numbers with noise of
        ``sigma`` in both parts, as in magnetic resonance imaging. All kinds are independent from
        pixel to pixel; subtract any offset (black level) first.
    noise_gain : float, optional
        The value of one count in the image; estimated by default.
    channel_axis : int, optional
        The axis that holds channels, as in scikit-image. Channels are denoised together: similar
        patches are at the same positions in all their principal components.
    dictionary : KroneckerDictionary or KroneckerSumDictionary, optional
        A dictionary to use instead of one learned from the image, with one mode for each spatial
        axis. With one more mode, for the channels, these are coded together, with one sigma.
    patch_size : int or sequence of int, optional
        The size of a patch, for all spatial axes or one each; by default 8 × 8 pixels, or about as
        many in other numbers of dimensions.
    n_atoms : int or sequence of int, optional
        Atoms to learn, for all spatial axes or one each; by default twice the size of a patch
        along the axis.
    n_terms : int, default 1
        Learn a sum of this many Kronecker products: slower, and at most 0.02 dB better.
    gain : float, optional
        Patches are coded until the norm of their residual is ``gain`` times that of the noise; by
        default 1.08 for patches of 64 pixels, and closer to 1 for larger ones.
    quality : {"default", "fast", "best", "dictionary"}, default "default"
        How much is done with groups of similar patches: "fast" takes a quarter of the time and is
        up to 0.5 dB worse, "best" takes three times as long and is up to 0.2 dB better.
        "dictionary" leaves groups out: the paper's method alone, 0.4 to 2 dB worse.
    stride : int or sequence of int, optional
        Distance between coded patches in pixels; by default an eighth of the patch, or 2 if the
        contrast is more than 30 times the noise.
    method : {"ols", "omp", "exchange", "threshold"}, optional
        The coder; by default "threshold" for orthonormal factors, otherwise "ols".
    max_iter : int, default 8
        Iterations of learning.
    random_state : int, RandomState or None, default 0
        Chooses the patches to learn from and the initial dictionary.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    device : {"cpu", "cuda"}, default "cpu"
        Where to compute: on the processor, or on an NVIDIA GPU (with the extra ``cuda13`` or
        ``cuda12``). An image on a GPU is processed there.
    progress : callable, optional
        Called with the name of a stage and the fraction of it that is done; raising an exception
        stops the work.
    full : bool, default False
        Return a :class:`Denoised` with the image, its noise, the dictionary and more.

    Returns
    -------
    array or Denoised
        The denoised image, with the shape, dtype and library of the input. Integers are rounded
        and clipped to their range.

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
    workers = Workers.of(n_jobs, device, image)
    # Times of stages are returned only with full=True; without it, do not wait for the GPU.
    log = Stages(progress, workers.gpu.finish if full and workers.gpu is not None else None)
    check_noise(noise, sigma, noise_gain, has_mask=mask is not None)

    missing = None
    if mask is not None:
        channels = to_channels(in_memory(image), channel_axis)
        missing = missing_pixels(channels, mask, channel_axis)
        if sigma is None and noise == "gaussian":
            joint = spans_channels(dictionary, channels, channel_axis is not None)
            sigma = _sigma_of_known_pixels(channels, missing, joint or channel_axis is None)
        with log.stage("inpainting") as on_share:
            image = inpaint(
                image,
                mask,
                channel_axis=channel_axis,
                random_state=random_state,
                n_jobs=n_jobs,
                device=device,
                progress=_progress_of_inpainting(on_share),
            )

    uneven = noise == "gaussian" and is_map(sigma, channel_axis)
    if uneven:
        # Maps are prepared in host memory.
        channels = to_channels(in_memory(image), channel_axis)
    else:
        channels = to_channels(image, channel_axis, workers.gpu)
    if workers.gpu is not None:
        compile_ahead(workers.gpu, channels.dtype)

    denoiser = GaussianDenoiser(
        log,
        workers,
        channel_axis is not None,
        dictionary=dictionary,
        patch_size=patch_size,
        n_atoms=n_atoms,
        n_terms=n_terms,
        gain=gain,
        quality=quality,
        stride=stride,
        method=method,
        max_iter=max_iter,
        seed=0 if dictionary is not None else check_random_state(random_state).randint(2**31 - 1),
    )
    if noise != "gaussian":
        result, sigmas = denoise_stabilised(denoiser, channels, noise, sigma, noise_gain)
    elif uneven:
        deviations = checked_map(sigma, channels, channel_axis, missing)
        result, sigmas = _denoise_uneven(denoiser, channels, deviations)
    else:
        result, sigmas = denoiser.denoised(channels, sigma)

    denoised = Denoised(
        like_input(image, from_channels(result, channel_axis), workers.gpu),
        sigmas[0] if channel_axis is None or len(sigmas) < len(result) else tuple(sigmas),
        denoiser.used_dictionary,
        denoiser.history,
        denoiser.settings,
        log.seconds,
    )
    return denoised if full else denoised.image


def _denoise_uneven(
    denoiser: GaussianDenoiser, channels: NDArray[Any], deviations: NDArray[np.float64]
) -> tuple[NDArray[Any], list[float]]:
    """Return channels (C, *spatial) without noise of given deviations, and their root mean squares.

    A dictionary with a mode for channels needs one noise level for all of them.
    """
    has_channels = denoiser.has_channels
    joint = spans_channels(denoiser.dictionary, channels, has_channels)
    used = raised(deviations, channels)
    precision, sigmas = precision_of(used, joint)
    per_channel = has_channels and not joint
    result, _ = denoiser.denoised(channels, sigmas if per_channel else sigmas[0], precision)
    # Pixels that are known almost exactly stay as they are.
    known = used > deviations
    result[known] = channels[known]
    return result, [math.sqrt(np.mean(np.square(channel))) for channel in deviations]


def _sigma_of_known_pixels(
    channels: NDArray[Any], missing: Mask, single: bool
) -> float | list[float]:
    """Return the noise of channels with missing pixels: one for each, or a ``single`` one."""
    sigmas = [sigma_of_known(*pair) for pair in zip(channels, missing, strict=True)]
    return math.sqrt(np.mean(np.square(sigmas))) if single else sigmas


def _progress_of_inpainting(on_share: Callable[[float], None] | None) -> Progress | None:
    """Return the callback that reports the stages of inpainting as parts of a single one."""
    if on_share is None:
        return None
    stages = ("coding", "learning", "similar patches")
    return lambda name, share: on_share((stages.index(name) + share) / len(stages))
