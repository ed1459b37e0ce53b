"""Inpainting: fill in the missing pixels of an image."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from kronlearn.core.dictionary import Dictionary
from kronlearn.cuda.arrays import in_memory
from kronlearn.engines.workers import Workers
from kronlearn.images.dictionaries import dictionary_spec, spans_channels
from kronlearn.images.inpainter import Inpainter
from kronlearn.images.masks import channel_groups, missing_pixels
from kronlearn.images.planes import Mask, Planes, from_channels, like_input, to_channels
from kronlearn.images.stages import Progress, Stages

__all__ = ["Inpainted", "inpaint"]

# Patches have about this many pixels in the first stage, and in the second.
_FIRST_PATCH_PIXELS, _SECOND_PATCH_PIXELS = 144, 64


@dataclass(frozen=True)
class Inpainted:
    """The result of :func:`inpaint` with ``full=True``.

    Parameters
    ----------
    image : array
        The image with its missing pixels filled in.
    dictionary : KroneckerDictionary or KroneckerSumDictionary or None
        The dictionary that patches were coded with in the last stage (for the last channel, if
        channels miss different pixels); None if nothing was missing.
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
    >>> image = np.add.outer(np.arange(32.0), np.arange(32.0))
    >>> image[5, 7] = np.nan
    >>> result = kl.images.inpaint(image, stages=1, full=True)
    >>> bool(abs(result.image[5, 7] - 12) < 1), list(result.seconds)
    (True, ['coding'])
    """

    image: Any
    dictionary: Dictionary | None
    history: dict[str, list[float]] | None
    settings: dict[str, Any]
    seconds: dict[str, float]


def inpaint(
    image: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    channel_axis: int | None = None,
    dictionary: Dictionary | None = None,
    patch_size: int | Sequence[int] | None = None,
    n_atoms: int | Sequence[int] | None = None,
    n_terms: int = 1,
    stages: int = 2,
    max_iter: int = 8,
    random_state: Any = 0,
    n_jobs: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    full: bool = False,
) -> Any:
    """Fill in the missing pixels of an image.

    The first stage averages two estimates: a smooth surface, close to the solution of the
    biharmonic equation, and overlapping patches that are coded by their known pixels. The weights
    of the two are those that best predict some known pixels, held out for this purpose. The second
    stage learns a dictionary from the patches with the most known pixels, then treats errors in the
    missing pixels as noise: it denoises the image repeatedly, by coding and by groups of similar
    patches, for less and less noise, and puts the known pixels back each time. Only the
    surroundings of missing pixels are processed.

    Parameters
    ----------
    image : array
        An image with any number of spatial axes, of any integer or floating dtype. If it is on a
        GPU, so is the result.
    mask : array of bool, optional
        True where a pixel is missing, as in scikit-image, in the image's spatial shape or the
        image's shape. Missing pixels may have any value. By default, pixels that are NaN or
        infinite are missing; without a mask, integers are returned unchanged, with a warning.
    channel_axis : int, optional
        The axis that holds channels.
    dictionary : KroneckerDictionary or KroneckerSumDictionary, optional
        A dictionary to code with in both stages, instead of cosines in the first and a learned
        dictionary in the second. It has one mode for each spatial axis, and may have one more for
        the channels.
    patch_size : int or sequence of int, optional
        The size of the patches in the second stage, for all spatial axes or one each; by default
        8 × 8 pixels, or about as many in other numbers of dimensions.
    n_atoms : int or sequence of int, optional
        Atoms to learn, for all spatial axes or one each; by default twice the size of a patch
        along the axis.
    n_terms : int, default 1
        Learn a sum of this many Kronecker products: slower, and at most 0.2 dB better.
    stages : {2, 1}, default 2
        With 1, stop after the first stage: much faster, 1 to 4 dB worse.
    max_iter : int, default 8
        Iterations of learning.
    random_state : int, RandomState or None, default 0
        Chooses the pixels to hold out, the patches to learn from and the initial dictionary.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    device : {"cpu", "cuda"}, default "cpu"
        Where to compute: on the processor, or on an NVIDIA GPU (with the extra ``cuda13`` or
        ``cuda12``). An image on a GPU is processed there.
    progress : callable, optional
        Called with the name of a stage and the fraction of it that is done; raising an exception
        stops the work.
    full : bool, default False
        Return an :class:`Inpainted` with the image, the dictionary and more.

    Returns
    -------
    array or Inpainted
        The image, with the same shape and dtype. Known pixels are unchanged; missing pixels lie
        within the range of the known ones.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> from skimage.data import camera
    >>> clean = camera()[100:228, 180:308]
    >>> missing = np.random.default_rng(0).random(clean.shape) < 0.5
    >>> filled = kl.images.inpaint(np.where(missing, 0, clean), missing)
    >>> bool(np.std(filled[missing] - clean[missing].astype(float)) < 12)
    True
    """
    log = Stages(progress)
    workers = Workers.of(n_jobs, device, image)
    channels = to_channels(in_memory(image), channel_axis)
    if mask is None:
        if channels.dtype.kind != "f":
            warnings.warn(
                f"Nothing is filled in: image has dtype {channels.dtype}, which has no NaN to mark "
                "missing pixels; pass a mask.",
                stacklevel=2,
            )
        mask = ~np.isfinite(from_channels(channels, channel_axis))
    missing = missing_pixels(channels, mask, channel_axis)
    joint = spans_channels(dictionary, channels, channel_axis is not None)
    if joint:
        channels, missing = (np.moveaxis(array, 0, -1)[None] for array in (channels, missing))
    if stages not in (1, 2):
        raise ValueError(f"stages={stages!r} does not exist; pass 1 or 2.")
    shape = channels.shape[1:]
    first = dictionary_spec(shape, dictionary, None, None, _FIRST_PATCH_PIXELS)
    second = dictionary_spec(shape, dictionary, patch_size, n_atoms, _SECOND_PATCH_PIXELS, n_terms)
    seed = int(check_random_state(random_state).randint(2**31 - 1))

    inpainter = Inpainter(log, workers, first, second if stages == 2 else None, max_iter, seed)
    filled = [
        inpainter.filled_planes(channels, group, ~missing[group[0]])
        for group in channel_groups(missing)
        if missing[group[0]].any()
    ]
    result = channels.copy()
    for planes in filled:
        _write(planes, result, channels, missing[planes.indices[0]])
    result = from_channels(np.moveaxis(result[0], -1, 0) if joint else result, channel_axis)
    used = inpainter.used_dictionary
    inpainted = Inpainted(
        like_input(image, result, workers.gpu),
        used,
        inpainter.history,
        {
            "patch_size": (first if stages == 1 else second).patch_size,
            "n_atoms": None if used is None else used.n_atoms,
            "n_terms": None if used is None else used.n_terms,
            "stages": int(stages),
            "max_iter": int(max_iter),
        },
        log.seconds,
    )
    return inpainted if full else inpainted.image


def _write(planes: Planes, result: NDArray[Any], channels: NDArray[Any], missing: Mask) -> None:
    """Write the missing pixels of planes to a result, within the range of the known pixels."""
    planes.restore(planes.pixels, result, missing)
    for k in planes.indices:
        known = channels[k][~missing]
        np.clip(result[k], known.min(), known.max(), out=result[k], where=missing)
