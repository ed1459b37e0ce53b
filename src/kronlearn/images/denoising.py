"""Denoising: image in, image out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from kronlearn.core.dictionary import Dictionary
from kronlearn.cuda.arrays import in_memory
from kronlearn.cuda.images import compile_ahead
from kronlearn.engines.workers import Workers
from kronlearn.images.dictionaries import spans_channels
from kronlearn.images.estimation import Denoising
from kronlearn.images.inpainting import inpaint, missing_pixels
from kronlearn.images.noise import sigma_of_known
from kronlearn.images.planes import as_image, image_array, returned
from kronlearn.images.precision import is_map, map_of, precision_of
from kronlearn.images.stabilisation import NOISES, denoise_stabilised
from kronlearn.images.stages import Progress, Stages

__all__ = ["Denoised", "denoise"]


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
    image that is nearly clean groups alone are filtered: nothing is learned or coded.

    Parameters
    ----------
    image : array
        An image with any number of spatial axes, of any integer or floating dtype: grey images,
        colour images (with ``channel_axis``), stacks and volumes. It may be on a GPU, as a
        CuPy array, a PyTorch tensor or anything with DLPack, and the result is there, too: nothing
        is copied unless there is a map of ``sigma`` or a ``mask``.
    sigma : float, sequence of float or array, optional
        The standard deviation of the noise in the image's own units: one number, one for each
        channel, or a map of the image's shape. Estimated by default.
    mask : array of bool, optional
        Of the image's spatial shape or of the image's shape: True where a pixel is missing, as in
        :func:`inpaint`, which fills them in first; the values there may be anything.
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
        The size of a patch, for all spatial axes or one each. By default 8 × 8 pixels,
        and about as many with other numbers of axes.
    n_atoms : int or sequence of int, optional
        Atoms to learn, for all spatial axes or one each; by default twice as many as a patch has
        pixels along the axis.
    n_terms : int, default 1
        Learn a sum of this many Kronecker products: slower, and better by 0.02 dB at most.
    gain : float, optional
        Patches are coded until the norm of their residual is ``gain`` times that of the noise; by
        default 1.08 for patches of 64 pixels, and closer to 1 for larger ones.
    quality : {"default", "fast", "best", "dictionary"}, default "default"
        How much is done with groups of similar patches: "fast" takes a quarter of the time and is
        up to 0.4 dB worse, "best" takes three times as long and is up to 0.1 dB better.
        "dictionary" leaves groups out: the paper's method alone, 0.4 to 2 dB worse.
    stride : int or sequence of int, optional
        Pixels from patch to patch in the first stage; by default an eighth of the patch, or 2
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
    workers = Workers.of(n_jobs, device, image)
    # Nobody else asks how long stages take.
    log = Stages(progress, workers.gpu.finish if full and workers.gpu is not None else None)
    if noise not in NOISES:
        raise ValueError(f"noise={noise!r} does not exist; choose one of {', '.join(NOISES)}.")
    missing = None
    if mask is not None:
        needs = {"poisson": ["noise_gain"], "poisson-gaussian": ["noise_gain", "sigma"]}
        needed = [] if noise == "gaussian" else needs.get(noise, ["sigma"])
        if any({"noise_gain": noise_gain, "sigma": sigma}[name] is None for name in needed):
            raise ValueError(
                f"noise={noise!r} is not estimated where there is a mask; pass "
                f"{' and '.join(needed)}."
            )
        holed = image_array(in_memory(image), channel_axis)
        missing = missing_pixels(holed, mask, channel_axis)
        joint = spans_channels(dictionary, holed, channel_axis is not None)
        if sigma is None and noise == "gaussian":
            found = [sigma_of_known(*pair) for pair in zip(holed, missing, strict=True)]
            one = joint or channel_axis is None
            sigma = math.sqrt(np.mean(np.square(found))) if one else found
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
    counted = noise != "gaussian" or noise_gain is not None
    uneven = not counted and is_map(sigma, channel_axis)
    # A map is prepared in the memory of the processor.
    where = None if uneven else workers.gpu
    channels = image_array(in_memory(image) if uneven else image, channel_axis, where)
    if workers.gpu is not None:
        compile_ahead(workers.gpu, channels.dtype)
    work = Denoising(
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
    if counted:
        result, sigmas, gains = denoise_stabilised(work, channels, sigma, noise, noise_gain)
        work.settings["noise"] = noise
        if gains:
            work.settings["noise_gain"] = gains[0] if channel_axis is None else tuple(gains)
    elif uneven:
        deviations = map_of(sigma, channels, channel_axis, missing)
        joint = spans_channels(dictionary, channels, channel_axis is not None)
        precision, scales = precision_of(deviations, joint)
        given = scales[0] if joint or channel_axis is None else scales
        result, _ = work.denoised(channels, given, precision)
        sigmas = [math.sqrt(np.mean(np.square(channel))) for channel in deviations]
    else:
        result, sigmas = work.denoised(channels, sigma)
    denoised = Denoised(
        returned(image, as_image(result, channel_axis), workers.gpu),
        sigmas[0] if channel_axis is None or len(sigmas) < len(result) else tuple(sigmas),
        work.learned,
        work.history,
        work.settings,
        log.seconds,
    )
    return denoised if full else denoised.image


def _progress_of_inpainting(on_share: Callable[[float], None] | None) -> Progress | None:
    """What tells of its stages as parts of one."""
    if on_share is None:
        return None
    stages = ("coding", "learning", "similar patches")
    return lambda name, share: on_share((stages.index(name) + share) / len(stages))
