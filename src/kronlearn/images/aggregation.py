"""Code or filter the overlapping patches of an image, and average them, in native code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.core.coder import native_dictionary
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.cuda.groups import filter_groups_on
from kronlearn.cuda.images import code_image_on
from kronlearn.engines.workers import Workers
from kronlearn.images.dictionaries import DictionarySpec
from kronlearn.images.matches import current_matches
from kronlearn.images.patch_grid import PatchGrid
from kronlearn.images.planes import Float32
from kronlearn.images.stages import part_of

__all__ = ["Averager", "energies_of_patches"]


# Parameter of the Kaiser window that lowers the weights of a patch towards its edges.
_KAISER = 2.0


@dataclass(frozen=True)
class Averager:
    """Takes all patches on a grid out of an image, changes each, and averages them again.

    ``patch`` and ``stride`` have one number for every axis of the image; the last patch along an
    axis touches its end. The image is processed in bands, whose sums are added in order, so results
    have the same bits for any number of threads. ``on_share`` is called from time to time with the
    fraction done. Images may lie on the GPU of the workers; results lie where the image does.
    """

    patch: tuple[int, ...]
    stride: tuple[int, ...]
    workers: Workers = Workers()  # noqa: RUF009  (immutable)
    on_share: Callable[[float], None] | None = None

    def code(
        self,
        image: Float32,
        factors: Sequence[NDArray[Any]],
        *,
        method: str,
        width: int,
        tol: float | None,
        known: Float32 | None = None,
        favour_sparse: bool = True,
    ) -> Float32:
        """Replace patches by sparse approximations with at most ``width`` nonzeros.

        ``tol`` is the ℓ2 norm that a patch's residual may have. ``known`` weights the squared
        residuals of the pixels: one over the variance of the noise, zero where a pixel is missing.
        A pixel that no patch with known pixels covers becomes NaN. In the average, patches have
        weight ``1 / (1 + nonzeros)``, or one without ``favour_sparse``, times the mean weight of
        their pixels.
        """
        settings: dict[str, Any] = {
            "axes": self._axes(image, [0] * image.ndim),
            "method": method,
            "width": width,
            "tol": -1.0 if tol is None else tol,
            "known": known,
            "favour_sparse": favour_sparse,
            "progress": self.on_share,
        }
        if self.workers.gpu is not None:
            return code_image_on(self.workers.gpu, factors, image, **settings)
        dictionary = native_dictionary(factors, np.float32)
        sums, weights = np.zeros_like(image), np.zeros_like(image)
        _native.code_image(dictionary, image, sums, weights, **settings, **self._threads)
        with np.errstate(invalid="ignore"):
            sums /= weights
        return sums

    def code_planes(
        self,
        planes: Float32,
        spec: DictionarySpec,
        dictionary: Dictionary,
        tol: float,
        method: str = "ols",
        known: Float32 | None = None,
    ) -> Float32:
        """Code planes (C, *spatial) one after the other; ``known`` has the same shape."""
        estimate = np.empty_like(planes)
        for k, plane in enumerate(planes):
            coder = replace(self, on_share=part_of(self.on_share, k, len(planes)))
            estimate[k] = coder.code(
                plane,
                dictionary.coding_factors,
                method=method,
                width=spec.max_nonzeros,
                tol=tol,
                known=None if known is None else known[k],
            )
        return estimate

    def filter_groups(
        self,
        planes: Float32,
        guide: Float32 | None,
        matched: Float32,
        *,
        group: int,
        window: tuple[int, ...],
        variance: float | Float32 = 1.0,
        over_pixels: bool = False,
    ) -> Float32:
        """Replace the patches of groups of similar ones by linear combinations of each other.

        For every patch of the grid, the ``group`` most similar patches within ``window`` are found
        by the sum of their distances on all planes of ``matched``. Their coefficients come from a
        ridge regression on a ``guide``, an estimate of the image, or on the patches themselves.
        With ``over_pixels``, the result is the mean of this and of a second regression on the
        guide, which combines the pixels of each patch, in the same way for all patches of a group.
        ``variance`` is that of the noise, one number or one per pixel. ``planes``, ``guide`` and
        ``matched`` are (C, *spatial), and so is the result.
        """
        taper = _taper(self.patch).astype(planes.dtype)
        noise = energies_of_patches(variance, self.patch)
        settings = (self._axes(planes[0], window), group, taper, noise, over_pixels)
        if self.workers.gpu is not None:
            return filter_groups_on(
                self.workers.gpu, planes, guide, matched, *settings, self.on_share
            )
        sums, weights = np.zeros_like(planes), np.zeros_like(planes)
        arrays = (planes, guide, matched, sums, weights)
        kept = current_matches.get()
        grid = PatchGrid(planes.shape[1:], self.patch, self.stride)
        matches = None if kept is None else kept.of_next_pass(grid, window, group)
        _native.filter_groups(*arrays, *settings, matches, progress=self.on_share, **self._threads)
        sums /= weights
        return sums

    @property
    def _threads(self) -> dict[str, Any]:
        return {"threads": self.workers.n_threads, "instruction_set": instruction_set()}

    def _axes(self, image: Float32, window: Sequence[int]) -> list[tuple[int, int, int, int]]:
        return list(zip(image.shape, self.patch, self.stride, window, strict=True))


@lru_cache(16)
def _taper(patch: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the weights of the pixels of a patch."""
    taper = np.ones(1)
    for m in patch:
        taper = np.multiply.outer(taper, np.kaiser(m, _KAISER))
    return taper[0]


def energies_of_patches(variance: float | Float32, patch: tuple[int, ...]) -> Float32:
    """Sum variances over patches: (1,), or (C, *spatial) by the first pixel of each patch."""
    if isinstance(variance, float):
        return np.full(1, variance * math.prod(patch), np.float32)
    sums = variance.astype(np.float64)
    for axis, m in enumerate(patch, start=1):
        last = sums.shape[axis] - m
        along = np.moveaxis(sums, axis, 0)
        cumulated = np.cumsum(along, axis=0)
        along[: last + 1] = cumulated[m - 1 :]
        along[1 : last + 1] -= cumulated[:last]
    return sums.astype(np.float32)
