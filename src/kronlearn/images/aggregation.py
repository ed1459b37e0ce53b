"""Overlapping patches taken out of an image, changed and averaged, in native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.init import dct_factor
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.cuda.images import GpuImages
from kronlearn.engines.threads import native_dictionary
from kronlearn.engines.workers import Workers
from kronlearn.images.dictionaries import Choice, default_patch
from kronlearn.images.planes import contiguous
from kronlearn.images.stages import part_of

__all__ = ["Averager", "group_sizes", "overlapping", "similar_patches"]

# float32 or float64, C-contiguous.
Image = NDArray[Any]
Factors = Sequence[NDArray[Any]]

# Patches that are shrunk together have about this many pixels each and are so many; about so many
# are compared to find them.
_GROUP_PATCH_PIXELS = 64
_GROUP = 16
_CANDIDATES = 1700
_SHORT_ROW = 64
# How much less the edge of a patch counts than its middle: the shape of a Kaiser window.
_KAISER = 2.0


@dataclass(frozen=True)
class Averager:
    """Takes all patches on a grid, changes each, and averages what they say about every pixel.

    ``patch`` and ``stride`` have one number for every axis of the image; the last patch along an
    axis touches its end. The image is worked on in bands whose sums are added in order, so results
    have the same bits for any number of threads. ``on_share`` is told now and then which share is
    done. With a GPU it does the work: images may lie on it, and results lie where the image
    does.
    """

    patch: tuple[int, ...]
    stride: tuple[int, ...]
    workers: Workers = Workers()  # noqa: RUF009  (it is not changed)
    on_share: Callable[[float], None] | None = None

    def code(
        self,
        image: Image,
        factors: Factors,
        *,
        method: str,
        width: int,
        tol: float | None,
        known: Image | None = None,
        favour_sparse: bool = True,
    ) -> Image:
        """Patches become their sparse approximations.

        ``tol`` is the ℓ2 norm a patch's residual may have. ``known`` holds weights of the pixels,
        zero where one is missing; a pixel of which no patch knows anything becomes NaN. Patches
        count ``1 / (1 + nonzeros)``, or all the same.
        """
        dictionary = self._dictionary(factors, image.dtype)
        axes = self._axes(image, [0] * image.ndim)
        target = -1.0 if tol is None else tol
        options = {"known": known, "favour_sparse": favour_sparse, "progress": self.on_share}
        if self.workers.gpu is not None:
            return dictionary.code_average(image, axes, method, width, target, **options)
        sums, weights = np.zeros_like(image), np.zeros_like(image)
        settings = (axes, method, width, target)
        dictionary.code_image(image, sums, weights, *settings, **options, **self._threads)
        with np.errstate(invalid="ignore"):
            sums /= weights
        return sums

    def code_planes(
        self, planes: Image, choice: Choice, dictionary: Dictionary, tol: float, method: str = "ols"
    ) -> Image:
        """The same for planes (C, *spatial), one after the other, all of whose pixels are known."""
        estimate = np.empty_like(planes)
        for k, plane in enumerate(planes):
            coder = replace(self, on_share=part_of(self.on_share, k, len(planes)))
            factors, width = dictionary.coding_factors, choice.max_nonzeros
            estimate[k] = coder.code(plane, factors, method=method, width=width, tol=tol)
        return estimate

    def shrink_groups(
        self, planes: Image, guide: Image, *, group: int, window: tuple[int, ...], noise: float
    ) -> Image:
        """Groups of similar patches are shrunk towards what a guide says is signal.

        Around every patch of the grid the ``group`` most similar ones within ``window`` are found
        on the guide's first plane; as one sample, whose first mode runs over the group, they are
        transformed by cosines and every coefficient c becomes ``c g² / (g² + noise²)`` where g is
        the guide's. ``planes`` and ``guide`` are (C, *spatial); so is the result.
        """
        factors = _cosines((group, *self.patch))
        analysis, synthesis = (
            self._dictionary(part, planes.dtype)
            for part in (factors, [factor.T for factor in factors])
        )
        taper = _taper(self.patch).astype(planes.dtype)
        settings = (self._axes(planes[0], window), group, noise, taper)
        if self.workers.gpu is not None:
            progress = self.on_share
            return analysis.shrink_average(synthesis, planes, guide, *settings, progress=progress)
        sums, weights = np.zeros_like(planes), np.zeros_like(planes)
        arrays = (planes, guide, sums, weights)
        options = {"progress": self.on_share, **self._threads}
        analysis.shrink_image(synthesis, *arrays, *settings, **options)
        sums /= weights
        return sums

    @property
    def _threads(self) -> dict[str, Any]:
        return {"threads": self.workers.n_threads, "instruction_set": instruction_set()}

    def _dictionary(self, factors: Factors, dtype: Any) -> Any:
        if self.workers.gpu is None:
            return native_dictionary(factors, dtype)
        return GpuImages(self.workers.gpu, factors, dtype)

    def _axes(self, image: Image, window: Sequence[int]) -> list[tuple[int, int, int, int]]:
        return list(zip(image.shape, self.patch, self.stride, window, strict=True))


def similar_patches(
    planes: Image,
    guide: Image,
    noise: float,
    workers: Workers,
    on_share: Callable[[float], None] | None = None,
) -> Image:
    """Planes (C, *spatial) with white noise, denoised by groups of similar patches.

    ``guide`` is an estimate of what they are without it.
    """
    shape = planes.shape[1:]
    if shape[-1] < min(max(shape), _SHORT_ROW):
        # Places along the last axis are compared many at a time.
        longest = 1 + int(np.argmax(shape))
        planes, guide = (contiguous(np.moveaxis(array, longest, -1)) for array in (planes, guide))
        estimate = similar_patches(planes, guide, noise, workers, on_share)
        return contiguous(np.moveaxis(estimate, -1, longest))
    patch, window = group_sizes(shape)
    averager = Averager(patch, overlapping(patch), workers, on_share)
    return averager.shrink_groups(planes, guide, group=_GROUP, window=window, noise=noise)


def group_sizes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The patches of groups in an image of a shape, and how far apart those of a group may be."""
    axes = max(1, sum(size > 1 for size in shape))
    reach = round((_CANDIDATES ** (1 / axes) - 1) / 2)
    window = tuple(min(reach, size - 1) for size in shape)
    return default_patch(shape, _GROUP_PATCH_PIXELS), window


@lru_cache(16)
def _cosines(sizes: tuple[int, ...]) -> tuple[NDArray[np.float64], ...]:
    """Square factors of these sizes."""
    return tuple(dct_factor(m, m) for m in sizes)


@lru_cache(16)
def _taper(patch: tuple[int, ...]) -> NDArray[np.float64]:
    """Weights of the pixels of a patch."""
    taper = np.ones(1)
    for m in patch:
        taper = np.multiply.outer(taper, np.kaiser(m, _KAISER))
    return taper[0]


def overlapping(patch: tuple[int, ...]) -> tuple[int, ...]:
    """A stride with which patches overlap by a good half."""
    return tuple(max(1, round(0.4 * m)) for m in patch)
