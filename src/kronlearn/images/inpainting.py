"""Inpainting: an image with missing pixels in, a whole one out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import find_objects, label, maximum_filter
from sklearn.utils import check_random_state

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.init import dct_factor
from kronlearn.cuda.arrays import in_memory
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager
from kronlearn.images.coarser import filled
from kronlearn.images.dictionaries import Choice, choose, learn, spans_channels
from kronlearn.images.groups import GroupFilter
from kronlearn.images.planes import (
    Planes,
    as_image,
    contiguous,
    image_array,
    place_of,
    returned,
)
from kronlearn.images.stages import Progress, Stages, part_of

__all__ = ["Inpainted", "inpaint", "missing_pixels"]

# All noise levels are in units of the standard deviation of the known pixels.
#
# First stage: patches of about this many pixels, coded until the residual of what is known is this.
_FIRST_PATCH_PIXELS = 144
_FIRST_TOL = 0.08
# One in so many known pixels is held out. Estimates that differ by less there are the same.
_HELD_OUT = 10
_NOTHING = 1e-9
# Second stage: the missing pixels are treated as noise that fades from this to this, in so many
# steps, each going further than its estimate by this factor.
_FADE_FROM, _FADE_TO = 0.3, 0.03
_STEPS = 12
_RELAXATION = 2.0
_PATCH_PIXELS = 64
_SAMPLES = 5000
_GROUPS = GroupFilter(24, 121, 625, 0.7)


@dataclass(frozen=True)
class Inpainted:
    """What :func:`inpaint` returns with ``full=True``.

    Parameters
    ----------
    image : array
        The image with its missing pixels filled in.
    dictionary : KroneckerDictionary or KroneckerSumDictionary or None
        What patches were coded with in the last stage (for the last channel, if channels miss
        different pixels); None if nothing was missing.
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

    The first stage makes two estimates: a smooth surface, close to the solution of the biharmonic
    equation, and overlapping patches that are coded by their known pixels. Their weights are those
    that fit best where some known pixels are held out. The second stage learns a dictionary from
    the patches with the most known pixels, then treats errors in the missing pixels as noise: it
    denoises the image repeatedly, by coding and by groups of similar patches, for less and less
    noise, and puts the known pixels back each time. Only the surroundings of missing pixels are
    processed.

    Parameters
    ----------
    image : array
        An image with any number of spatial axes, of any integer or floating dtype. It may
        be on a GPU; the result then is, too.
    mask : array of bool, optional
        Of the image's spatial shape or of the image's shape: True where a pixel is missing, as in
        scikit-image. The values there may be anything. By default pixels that are NaN or infinite
        are missing.
    channel_axis : int, optional
        The axis that holds channels.
    dictionary : KroneckerDictionary or KroneckerSumDictionary, optional
        A dictionary with one mode for each spatial axis to code with in both stages, instead of
        cosines in the first and a learned one in the second; one more mode is for the channels.
    patch_size : int or sequence of int, optional
        The size of the patches that are learned from, for all spatial axes or one each; by default
        8 × 8, and as many pixels with other numbers of axes.
    n_atoms : int or sequence of int, optional
        Atoms to learn, for all spatial axes or one each; by default twice as many as a patch has
        pixels along the axis.
    n_terms : int, default 1
        Learn a sum of this many Kronecker products: slower, and better by 0.2 dB at most.
    stages : {2, 1}, default 2
        1 stops after the first stage: much faster, 1 to 4 dB worse.
    max_iter : int, default 8
        Iterations of learning.
    random_state : int, RandomState or None, default 0
        Chooses the pixels that are held out, the patches that are learned from and the initial
        dictionary.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    device : {"cpu", "cuda"}, default "cpu"
        Where to compute: on the processor, or on an NVIDIA GPU (the extra ``cuda13`` or
        ``cuda12``). An image on a GPU is worked on there.
    progress : callable, optional
        Called with the name of a stage and the fraction of it that is done; raising an exception
        stops the work.
    full : bool, default False
        Return an :class:`Inpainted` with the image, the dictionary and more.

    Returns
    -------
    array or Inpainted
        An image of the same shape and dtype. Known pixels are unchanged; the others are within
        their range.

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
    channels = image_array(in_memory(image), channel_axis)
    mask = ~np.isfinite(as_image(channels, channel_axis)) if mask is None else mask
    missing = missing_pixels(channels, mask, channel_axis)
    joint = spans_channels(dictionary, channels, channel_axis is not None)
    if joint:
        channels, missing = (np.moveaxis(array, 0, -1)[None] for array in (channels, missing))
    if stages not in (1, 2):
        raise ValueError(f"stages={stages!r} does not exist; pass 1 or 2.")
    shape = channels.shape[1:]
    first = choose(shape, dictionary, None, None, _FIRST_PATCH_PIXELS)
    choice = choose(shape, dictionary, patch_size, n_atoms, _PATCH_PIXELS, n_terms)
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    result = None
    last = _Inpainting(log, workers)
    for part in _parts(missing):
        gone = missing[part[0]]
        if not gone.any():
            continue
        scales = [_spread(channels[k], ~gone) for k in part]
        planes = Planes.from_channels(channels, scales, part, ~gone)
        last = _Inpainting(log, workers)
        last.fill(planes.pixels, ~gone, first, seed)
        if stages == 2:
            last.refine(planes.pixels, ~gone, choice, max_iter, seed)
        result = channels.copy() if result is None else result
        planes.restore(planes.pixels, result, gone)
        for k in part:
            known = channels[k][~gone]
            np.clip(result[k], known.min(), known.max(), out=result[k], where=gone)
    result = channels.copy() if result is None else result
    whole = as_image(np.moveaxis(result[0], -1, 0) if joint else result, channel_axis)
    inpainted = Inpainted(
        returned(image, whole, workers.gpu),
        last.dictionary,
        last.history,
        {
            "patch_size": (first if stages == 1 else choice).patch_size,
            "n_atoms": None if last.dictionary is None else last.dictionary.n_atoms,
            "n_terms": None if last.dictionary is None else last.dictionary.n_terms,
            "stages": int(stages),
            "max_iter": int(max_iter),
        },
        log.seconds,
    )
    return inpainted if full else inpainted.image


class _Inpainting:
    """The stages, on planes (C, *spatial), changed in place, that share their known pixels.

    ``dictionary`` is the one last used and ``history`` that of its learning, if there was any.
    """

    def __init__(self, log: Stages, workers: Workers) -> None:
        self.log, self.workers = log, workers
        self.dictionary: Dictionary | None = None
        self.history: dict[str, list[float]] | None = None

    def fill(
        self, planes: NDArray[np.float32], known: NDArray[np.bool_], choice: Choice, seed: int
    ) -> None:
        """First stage: a mean of a smooth surface and of patches coded by what is known of them.

        Some known pixels are held out to find the share of each that fits best.
        """
        self.dictionary = choice.dictionary or KroneckerDictionary(
            [dct_factor(m, m) for m in choice.patch_size]
        )
        rng = np.random.default_rng(seed)
        boxes = _boxes(~known, choice.patch_size, _first_stride(choice))
        with self.log.stage("coding") as on_share:
            for number, (plane, box) in enumerate(product(planes, boxes)):
                tell = part_of(on_share, number, len(planes) * len(boxes))
                given, seen = contiguous(plane[box]), known[box]
                place = rng.permutation(np.flatnonzero(seen))[: np.count_nonzero(seen) // _HELD_OUT]
                fewer = seen.copy()
                fewer.flat[place] = False
                smooth, change = self._first_estimates(given, fewer, choice, part_of(tell, 0, 2))
                error, change = (given - smooth).flat[place], change.flat[place]
                share = np.sum(change * error) / max(float(np.sum(change**2)), _NOTHING)
                smooth, change = self._first_estimates(given, seen, choice, part_of(tell, 1, 2))
                smooth += np.float32(np.clip(share, 0, 1)) * change
                np.copyto(plane[box], smooth, where=~seen)

    def _first_estimates(
        self,
        plane: NDArray[np.float32],
        known: NDArray[np.bool_],
        choice: Choice,
        on_share: Callable[[float], None] | None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A smooth surface, and by how much coded patches differ from it."""
        assert self.dictionary is not None
        weights = known.astype(np.float32)
        smooth = filled(np.where(known, plane, np.float32(0)), weights)
        coder = Averager(choice.patch_size, _first_stride(choice), self.workers, on_share)
        change = coder.code(
            plane,
            self.dictionary.coding_factors,
            method="omp",
            width=max(1, min(choice.pixels // 9, self.dictionary.n_codes)),
            tol=_FIRST_TOL * math.sqrt(choice.pixels),
            known=weights,
        )
        change -= smooth
        # Where no patch knows anything.
        change[~np.isfinite(change)] = 0
        return smooth, change

    def refine(
        self,
        planes: NDArray[np.float32],
        known: NDArray[np.bool_],
        choice: Choice,
        max_iter: int,
        seed: int,
    ) -> None:
        """Second stage: what is missing is noise that fades."""
        self.dictionary = choice.dictionary
        if self.dictionary is None:
            with self.log.stage("learning") as on_share:
                model = learn(
                    planes,
                    choice,
                    _SAMPLES,
                    tol=_FADE_FROM * math.sqrt(choice.pixels),
                    max_iter=max_iter,
                    seed=seed,
                    workers=self.workers,
                    on_share=on_share,
                    known=known,
                )
            self.dictionary, self.history = model.dictionary_, model.history_
        boxes = _boxes(~known, *_reach(choice, known.shape))
        with self.log.stage("similar patches") as on_share:
            for number, box in enumerate(boxes):
                tell = part_of(on_share, number, len(boxes))
                self._fade(planes[(slice(None), *box)], known[box], choice, tell)

    def _fade(
        self,
        planes: NDArray[np.float32],
        known: NDArray[np.bool_],
        choice: Choice,
        on_share: Callable[[float], None] | None,
    ) -> None:
        """Denoise planes again and again, for less and less noise, where pixels are missing."""
        gpu = self.workers.gpu
        # Small ones stay on the GPU for all steps.
        working = image_array(contiguous(planes), 0, gpu)
        missing = place_of(working, gpu).asarray(~known)
        for step, noise in enumerate(np.geomspace(_FADE_FROM, _FADE_TO, _STEPS)):
            tell = part_of(on_share, step, _STEPS)
            change = self._denoised(working, choice, float(noise), tell)
            change -= working
            change *= _RELAXATION
            change *= missing
            working += change
        planes[...] = in_memory(working)

    def _denoised(
        self,
        planes: NDArray[np.float32],
        choice: Choice,
        noise: float,
        on_share: Callable[[float], None] | None,
    ) -> NDArray[np.float32]:
        assert self.dictionary is not None
        coder = Averager(choice.patch_size, _stride(choice), self.workers)
        tol = noise * math.sqrt(choice.pixels)
        guide = coder.code_planes(planes, choice, self.dictionary, tol)
        return _GROUPS.run(planes, guide, guide[:1], self.workers, noise**2, on_share)


def missing_pixels(
    channels: NDArray[Any], mask: ArrayLike, channel_axis: int | None
) -> NDArray[np.bool_]:
    """Where pixels of the channels (C, *spatial) are missing; the others are finite."""
    given = np.asarray(in_memory(mask))
    if given.dtype.kind not in "biu":
        raise ValueError(f"mask has dtype {given.dtype}; pass booleans, True where missing.")
    given = given != 0
    if given.ndim == channels.ndim and channel_axis is not None:
        given = np.moveaxis(given, channel_axis, 0)
    if given.shape not in (channels.shape, channels.shape[1:]):
        raise ValueError(
            f"mask has shape {np.shape(mask)}; it must have the image's spatial shape "
            f"{channels.shape[1:]} or the shape of the image."
        )
    missing: NDArray[np.bool_] = np.broadcast_to(given, channels.shape)
    for channel, gone in zip(channels, missing, strict=True):
        if gone.all():
            raise ValueError("Every pixel of the image, or of a channel, is missing.")
        if not np.isfinite(channel).all(where=~gone):
            raise ValueError(
                "image contains NaN or infinity where mask says pixels are known; mark them as "
                "missing."
            )
    return missing


def _parts(missing: NDArray[np.bool_]) -> list[list[int]]:
    """Channels that can be worked on together: all, or each alone if they miss different pixels."""
    everything = list(range(len(missing)))
    if all(np.array_equal(missing[0], other) for other in missing[1:]):
        return [everything]
    return [[k] for k in everything]


def _first_stride(choice: Choice) -> tuple[int, ...]:
    """Pixels from patch to patch in the first stage."""
    return tuple(max(1, round(0.4 * m)) for m in choice.patch_size)


def _stride(choice: Choice) -> tuple[int, ...]:
    """Pixels from patch to patch in the second stage."""
    return tuple(min(3, m) for m in choice.patch_size)


def _reach(choice: Choice, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How far from a pixel its estimate in the second stage looks, and after what patches repeat.

    From a patch of a group to the one that it is similar to, and on to the others of the group,
    each of them covered by coded patches.
    """
    patch, stride, window = _GROUPS.sizes(shape)
    sizes = zip(choice.patch_size, patch, window, strict=True)
    steps = zip(_stride(choice), stride, strict=True)
    return tuple(m + 2 * (g + w) for m, g, w in sizes), tuple(math.lcm(*pair) for pair in steps)


def _boxes(
    missing: NDArray[np.bool_], halo: tuple[int, ...], step: tuple[int, ...]
) -> list[tuple[slice, ...]]:
    """Parts of an image, disjoint, with all missing pixels and as much around each as a halo.

    They begin at multiples of a step: patches stand where they would in the whole image.
    """
    near = maximum_filter(missing, [2 * h + 1 for h in halo], mode="constant")
    while True:
        boxes = find_objects(label(near)[0])
        boxes = [
            tuple(slice(a.start // t * t, a.stop) for a, t in zip(box, step, strict=True))
            for box in boxes
        ]
        filled = np.zeros_like(near)
        for box in boxes:
            filled[box] = True
        if np.array_equal(filled, near):
            return boxes
        near = filled


def _spread(channel: NDArray[Any], known: NDArray[np.bool_]) -> float:
    """The standard deviation of the known pixels; one if they are constant."""
    values = channel[known].astype(np.float64)
    # Numbers of any size may be squared after this.
    largest = float(np.abs(values).max()) or 1.0
    values /= largest
    spread = float(values.std()) * largest
    # What rounding leaves of a constant is nothing.
    return spread if spread > 1e-12 * largest else 1.0
