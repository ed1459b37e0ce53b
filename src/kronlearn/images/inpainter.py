"""The two stages of inpainting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.init import dct_factor
from kronlearn.cuda.arrays import in_memory
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager
from kronlearn.images.dictionaries import DictionarySpec, given_or_learned
from kronlearn.images.groups import GroupFilter
from kronlearn.images.masks import boxes_around
from kronlearn.images.planes import Float32, Mask, Planes, array_module, contiguous, to_channels
from kronlearn.images.pyramid import fill_smoothly
from kronlearn.images.stages import Stages, part_of

__all__ = ["Inpainter"]

# All noise levels are in units of the standard deviation of the known pixels.
#
# First stage: the residual that known pixels may have.
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
_SAMPLES = 5000
_GROUPS = GroupFilter(24, 121, 625, 0.7)


@dataclass
class Inpainter:
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
    """Return the standard deviation of the known pixels; their magnitude if they are constant."""
    values = known.astype(np.float64)
    # Without units, so that squares of numbers of any size neither overflow nor underflow.
    largest = float(np.abs(values).max()) or 1.0
    values /= largest
    deviation = float(values.std()) * largest
    # Anything less is the rounding error of a constant.
    return deviation if deviation > 1e-12 * largest else largest
