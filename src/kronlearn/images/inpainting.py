"""Inpainting: fill in the missing pixels of an image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.init import dct_factor
from kronlearn.cuda.arrays import in_memory
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager
from kronlearn.images.dictionaries import (
    DictionarySpec,
    dictionary_spec,
    given_or_learned,
    spans_channels,
)
from kronlearn.images.groups import GroupFilter
from kronlearn.images.masks import boxes_around, channel_groups, missing_pixels
from kronlearn.images.planes import (
    Float32,
    Mask,
    Planes,
    array_module,
    contiguous,
    from_channels,
    like_input,
    to_channels,
)
from kronlearn.images.pyramid import fill_smoothly
from kronlearn.images.stages import Progress, Stages, part_of

__all__ = ["Inpainted", "inpaint"]

# All noise levels are in units of the standard deviation of the known pixels.
#
# First stage: about this many pixels per patch, and the residual that known pixels may have.
_FIRST_PATCH_PIXELS = 144
_FIRST_TOL = 0.08
# One known pixel in this many is held out to weigh the two estimates of the first stage, which
# count as equal if the squares of their differences add up to less than _EQUAL there.
_HELD_OUT = 10
_EQUAL = 1e-9
# Second stage: errors in missing pixels are treated as noise that fades from the first level to the
# second in _STEPS steps, each of which moves by _RELAXATION times the change it estimates.
_FADE_FROM, _FADE_TO = 0.3, 0.03
_STEPS = 12
_RELAXATION = 2.0
_PATCH_PIXELS = 64
_SAMPLES = 5000
_GROUPS = GroupFilter(24, 121, 625, 0.7)


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
        infinite are missing.
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
    mask = ~np.isfinite(from_channels(channels, channel_axis)) if mask is None else mask
    missing = missing_pixels(channels, mask, channel_axis)
    joint = spans_channels(dictionary, channels, channel_axis is not None)
    if joint:
        channels, missing = (np.moveaxis(array, 0, -1)[None] for array in (channels, missing))
    if stages not in (1, 2):
        raise ValueError(f"stages={stages!r} does not exist; pass 1 or 2.")
    shape = channels.shape[1:]
    first = dictionary_spec(shape, dictionary, None, None, _FIRST_PATCH_PIXELS)
    second = dictionary_spec(shape, dictionary, patch_size, n_atoms, _PATCH_PIXELS, n_terms)
    seed = int(check_random_state(random_state).randint(2**31 - 1))

    inpainter = _Inpainter(log, workers, first, second if stages == 2 else None, max_iter, seed)
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


@dataclass
class _Inpainter:
    """Fills in the missing pixels of channels that share them, in the stages asked for.

    ``used_dictionary`` is the last one that patches were coded with, and ``history`` that of its
    learning, if it was learned.
    """

    log: Stages
    workers: Workers
    first: DictionarySpec
    #: None if there is no second stage.
    second: DictionarySpec | None
    max_iter: int
    seed: int
    used_dictionary: Dictionary | None = None
    history: dict[str, list[float]] | None = None

    def filled_planes(self, channels: NDArray[Any], indices: list[int], known: Mask) -> Planes:
        """Return the channels ``indices`` of (C, *spatial) as planes without missing pixels."""
        scales = [_deviation(channels[k][known]) for k in indices]
        planes = Planes.from_channels(channels, scales, indices, known)
        self._fill(planes.pixels, known)
        if self.second is not None:
            self._refine(planes.pixels, known, self.second)
        return planes

    def _fill(self, planes: Float32, known: Mask) -> None:
        """First stage: fill in planes, box by box."""
        spec = self.first
        self.used_dictionary = spec.dictionary or KroneckerDictionary(
            [dct_factor(m, m) for m in spec.patch_size]
        )
        rng = np.random.default_rng(self.seed)
        boxes = boxes_around(~known, spec.patch_size, _first_stride(spec))
        with self.log.stage("coding") as on_share:
            for number, (plane, box) in enumerate(product(planes, boxes)):
                on_share_of_box = part_of(on_share, number, len(planes) * len(boxes))
                self._fill_box(plane[box], known[box], rng, on_share_of_box)

    def _fill_box(
        self,
        plane: Float32,
        known: Mask,
        rng: np.random.Generator,
        on_share: Callable[[float], None] | None,
    ) -> None:
        """Fill in a weighted mean of two estimates."""
        pixels = contiguous(plane)
        share = self._share_of_patches(pixels, known, rng, part_of(on_share, 0, 2))
        smooth, change = self._first_estimates(pixels, known, part_of(on_share, 1, 2))
        change *= np.float32(share)
        smooth += change
        np.copyto(plane, smooth, where=~known)

    def _share_of_patches(
        self,
        plane: Float32,
        known: Mask,
        rng: np.random.Generator,
        on_share: Callable[[float], None] | None,
    ) -> float:
        """Return the weight of coded patches that fits best where known pixels are held out."""
        n_held_out = np.count_nonzero(known) // _HELD_OUT
        held_out = rng.permutation(np.flatnonzero(known))[:n_held_out].copy()
        used = known.copy()
        used.flat[held_out] = False
        smooth, change = self._first_estimates(plane, used, on_share)
        error, change = plane.flat[held_out] - smooth.flat[held_out], change.flat[held_out]
        share = np.sum(change * error) / max(float(np.sum(change**2)), _EQUAL)
        return float(np.clip(share, 0, 1))

    def _first_estimates(
        self, plane: Float32, known: Mask, on_share: Callable[[float], None] | None
    ) -> tuple[Float32, Float32]:
        """Return a smooth surface, and by how much coded patches differ from it."""
        assert self.used_dictionary is not None
        spec, smooth = self.first, fill_smoothly(plane, known)
        coder = Averager(spec.patch_size, _first_stride(spec), self.workers, on_share)
        change = coder.code(
            plane,
            self.used_dictionary.coding_factors,
            method="omp",
            width=max(1, min(spec.pixels // 9, self.used_dictionary.n_codes)),
            tol=_FIRST_TOL * math.sqrt(spec.pixels),
            known=known.astype(np.float32),
        )
        change -= smooth
        # Pixels that no patch with known pixels covers are NaN.
        change[~np.isfinite(change)] = 0
        return smooth, change

    def _refine(self, planes: Float32, known: Mask, spec: DictionarySpec) -> None:
        """Second stage: improve the missing pixels of planes, box by box."""
        self.used_dictionary, self.history = given_or_learned(
            spec,
            lambda: planes,
            _SAMPLES,
            tol=_FADE_FROM * math.sqrt(spec.pixels),
            max_iter=self.max_iter,
            seed=self.seed,
            workers=self.workers,
            log=self.log,
            known=known,
        )
        boxes = boxes_around(~known, *_reach_and_period(spec, known.shape))
        with self.log.stage("similar patches") as on_share:
            for number, box in enumerate(boxes):
                on_share_of_box = part_of(on_share, number, len(boxes))
                self._refine_box(planes[(slice(None), *box)], known[box], spec, on_share_of_box)

    def _refine_box(
        self,
        planes: Float32,
        known: Mask,
        spec: DictionarySpec,
        on_share: Callable[[float], None] | None,
    ) -> None:
        """Denoise planes again and again where pixels are missing, for less and less noise."""
        gpu = self.workers.gpu
        # Small planes stay on the GPU for all steps.
        working = to_channels(contiguous(planes), 0, gpu)
        missing = array_module(working, gpu).asarray(~known)
        for step, noise in enumerate(np.geomspace(_FADE_FROM, _FADE_TO, _STEPS)):
            change = self._denoised(working, spec, float(noise), part_of(on_share, step, _STEPS))
            change -= working
            change *= _RELAXATION
            change *= missing
            working += change
        planes[...] = in_memory(working)

    def _denoised(
        self,
        planes: Float32,
        spec: DictionarySpec,
        noise: float,
        on_share: Callable[[float], None] | None,
    ) -> Float32:
        """Denoise planes by coding their patches, then by groups of similar patches."""
        assert self.used_dictionary is not None
        coder = Averager(spec.patch_size, _second_stride(spec), self.workers)
        tol = noise * math.sqrt(spec.pixels)
        guide = coder.code_planes(planes, spec, self.used_dictionary, tol)
        return _GROUPS.run(planes, guide, guide[:1], self.workers, noise**2, on_share)


def _first_stride(spec: DictionarySpec) -> tuple[int, ...]:
    """Return the distance between patches in the first stage."""
    return tuple(max(1, round(0.4 * m)) for m in spec.patch_size)


def _second_stride(spec: DictionarySpec) -> tuple[int, ...]:
    """Return the distance between coded patches in the second stage."""
    return tuple(min(3, m) for m in spec.patch_size)


def _reach_and_period(
    spec: DictionarySpec, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how far from a pixel its second estimate depends on others, and the grids' period.

    A pixel depends on the patches of its groups; those may be a window away from the patch that
    they are similar to; and all their pixels depend on the coded patches that cover them.
    """
    patch, stride, window = _GROUPS.sizes(shape)
    sizes = zip(spec.patch_size, patch, window, strict=True)
    strides = zip(_second_stride(spec), stride, strict=True)
    return tuple(m + 2 * (g + w) for m, g, w in sizes), tuple(math.lcm(*pair) for pair in strides)


def _deviation(known: NDArray[Any]) -> float:
    """Return the standard deviation of the known pixels; one if they are constant."""
    values = known.astype(np.float64)
    # Without units, so that squares of numbers of any size neither overflow nor underflow.
    largest = float(np.abs(values).max()) or 1.0
    values /= largest
    deviation = float(values.std()) * largest
    # Anything less is the rounding error of a constant.
    return deviation if deviation > 1e-12 * largest else 1.0
