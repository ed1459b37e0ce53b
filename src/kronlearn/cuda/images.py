"""Averages of sparse approximations of an image's overlapping patches on a GPU.

They equal those of the native code (``native/images/image.cpp``) up to rounding. Patches are cut
out on the GPU and exist only for one part of the image at a time. They are added in an order that
does not depend on the parts: results have the same bits in every run and for any memory limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import METHODS as CODER_METHODS
from kronlearn.core.coder import Coder
from kronlearn.cuda.arrays import as_cupy, is_on_gpu
from kronlearn.cuda.device import C_TYPES, Gpu, c_type, macros
from kronlearn.cuda.groups import GROUPS_FILE
from kronlearn.cuda.image_passes import CodingPass, Progress, coding_options
from kronlearn.cuda.slabs import Axis, Grid, SlabArray
from kronlearn.cuda.specialised import specialised_kernels
from kronlearn.cuda.structs import METHODS, check_method

__all__ = ["code_image_on", "compile_ahead"]


@cache
def compile_ahead(gpu: Gpu, pixels: np.dtype[Any]) -> None:
    """Start compiling the kernels with which denoising by default processes images of a dtype.

    These are the kernels for patches of 8 × 8 pixels and 16 × 16 learned atoms. Others are compiled
    when they are launched.
    """
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    files: list[tuple[str, tuple[str, ...]]] = []
    if pixels in C_TYPES:
        options = macros(PIXEL=c_type(pixels))
        files = [("pixels.cu", options), ("noise.cu", options)]
    files.append((GROUPS_FILE, ()))
    learning = specialised_kernels(gpu, [np.empty((8, 16))] * 2, single, Coder("ols", 16))
    if learning is not None:
        files += [(learning.file, learning.options), ("mode_updates.cu", macros(M=8, N=16))]
    files += [
        ("code_patches.cu", coding_options(single, 16)),
        ("code_patches.cu", coding_options(double)),
        ("screen_patches.cu", ()),
        ("add_patches.cu", ()),
    ]
    gpu.compile_ahead(files)


def code_image_on(
    gpu: Gpu,
    factors: Sequence[NDArray[Any]],
    image: Any,
    axes: Sequence[Axis],
    method: str,
    width: int,
    tol: float,
    known: Any = None,
    favour_sparse: bool = True,
    progress: Progress = None,
    memory: int | None = None,
) -> Any:
    """The average of the sparse approximations of all patches, with their means added again.

    Parameters
    ----------
    gpu : Gpu
    factors : matrices (m_i, n_i) with unit-norm columns
    image : float32 array of the axes' sizes
        Of NumPy or on the GPU; the average is returned in the same place.
    axes : sequence of (size, patch, stride, window)
        One for each axis of the image.
    method : {"omp", "ols", "threshold"}
    width : int
        The most nonzeros.
    tol : float
        The ℓ2 norm that a patch's residual may have; negative for no error target.
    known : array like the image, optional
        Weights of the pixels, zero for missing ones.
    favour_sparse : bool
        Weigh patches by 1 / (1 + nonzeros).
    progress : callable, optional
        Called with the fraction that is done.
    memory : int, optional
        Bytes that may be taken on the GPU, besides arrays that are there already; by default half
        of the free memory, and no more than is useful. An image that needs more is processed in
        bands. The thinnest possible band, one patch high, is processed even if it needs more.
    """
    grid = Grid.of(axes)
    arrays = {"image": _checked(gpu, "image", image)}
    if arrays["image"].array.size != grid.pixels:
        raise ValueError("image does not fit the axes")
    if grid.features != np.prod([len(factor) for factor in factors]) or width < 1:
        raise ValueError("patches do not fit the dictionary")
    if method not in CODER_METHODS:
        raise ValueError(f"unknown method {method}")
    check_method(method)
    if known is not None:
        arrays["known"] = _checked(gpu, "known", known)
        entries = arrays["known"].array.size
        if entries != grid.pixels:
            raise ValueError(f"known has {entries} entries; expected {grid.pixels}")
    settings = {
        "method": METHODS[method],
        "width": width,
        "favour_sparse": favour_sparse,
        "tol": tol,
    }
    if arrays["image"].on_gpu:
        average = gpu.xp.empty_like(arrays["image"].array)
        arrays["average"] = SlabArray(gpu, average)
        CodingPass(gpu, factors, grid, arrays, settings).run(memory, progress)
        return average
    numerator, denominator = np.zeros_like(image), np.zeros_like(image)
    arrays["numerator"] = SlabArray(gpu, numerator)
    arrays["denominator"] = SlabArray(gpu, denominator)
    CodingPass(gpu, factors, grid, arrays, settings).run(memory, progress)
    with np.errstate(invalid="ignore"):
        return numerator / denominator


def _checked(gpu: Gpu, name: str, array: Any) -> SlabArray:
    if is_on_gpu(array):
        array = as_cupy(gpu.xp, array)
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise TypeError(
            f"{name} must be C-contiguous float32; it is {array.dtype}, "
            f"C-contiguous: {array.flags.c_contiguous}."
        )
    return SlabArray(gpu, array)
