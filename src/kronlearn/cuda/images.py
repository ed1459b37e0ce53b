"""Sparse approximations of the overlapping patches of an image on a GPU, as the native code has it.

Patches are cut out on the GPU and exist only for a part of the image at a time. What they become
is added up in an order that does not depend on how the image is cut: results have the same bits in
every run and with any limit on the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import METHODS as CODER_METHODS
from kronlearn.core.coder import Coder
from kronlearn.cuda.arrays import adopted, is_on_gpu
from kronlearn.cuda.device import C_TYPES, Gpu, c_type, defined
from kronlearn.cuda.groups import GROUPS_FILE
from kronlearn.cuda.image_passes import CodingPass, Tell, coding_options
from kronlearn.cuda.quick import quick_kernels
from kronlearn.cuda.slabs import Axis, Grid, PlacedArray
from kronlearn.cuda.tasks import METHODS, check_method

__all__ = ["code_image_on", "compile_ahead"]


@cache
def compile_ahead(gpu: Gpu, pixels: np.dtype[Any]) -> None:
    """Begin to compile all that usual images, with pixels of a dtype, are denoised with.

    Usual are patches of 8 × 8 pixels, and 16 × 16 atoms that are learned. What others need is
    compiled when it is launched.
    """
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    files: list[tuple[str, tuple[str, ...]]] = [(GROUPS_FILE, ())]
    if pixels in C_TYPES:
        kind = defined(PIXEL=c_type(pixels))
        files = [("pixels.cu", kind), ("noise.cu", kind), *files]
    learning = quick_kernels(gpu, [np.empty((8, 16))] * 2, single, Coder("ols", 16))
    if learning is not None:
        files += [(learning.file, learning.options), ("mode_updates.cu", defined(M=8, N=16))]
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
    progress: Tell = None,
    memory: int | None = None,
) -> Any:
    """The average of sparse approximations of all patches, each with its mean added again.

    Parameters
    ----------
    gpu : Gpu
    factors : matrices (m_i, n_i) with unit-norm columns
    image : float32 array of the axes' sizes
        Of NumPy, or on the GPU, as is then the average.
    axes : sequence of (size, patch, stride, window)
        One for each axis of the image.
    method : {"omp", "ols", "threshold"}
    width : int
        The most nonzeros.
    tol : float
        The ℓ2 norm that a patch's residual may have; negative for no such target.
    known : array like the image, optional
        Weights of the pixels, zero where one is missing.
    favour_sparse : bool
        Weigh patches by 1 / (1 + nonzeros).
    progress : callable, optional
        Called with the share that is done.
    memory : int, optional
        Bytes that may be taken on the GPU besides arrays that lie there already; by default half
        of what is free, and no more than is of use. Images that need more are worked on in bands.
        The thinnest possible band, one patch or window high, is taken whatever it needs.
    """
    grid = Grid.of(axes)
    placed = _placed(gpu, "image", image)
    if placed.array.size != grid.pixels:
        raise ValueError("image does not fit the axes")
    if grid.features != np.prod([len(factor) for factor in factors]) or width < 1:
        raise ValueError("patches do not fit the dictionary")
    if method not in CODER_METHODS:
        raise ValueError(f"unknown method {method}")
    check_method(method)
    arrays = {"image": placed}
    if known is not None:
        arrays["known"] = _placed(gpu, "known", known)
        entries = arrays["known"].array.size
        if entries != grid.pixels:
            raise ValueError(f"known has {entries} entries; expected {grid.pixels}")
    settings = {
        "method": METHODS[method],
        "width": width,
        "favour_sparse": favour_sparse,
        "tol": tol,
    }
    if placed.on_gpu:
        average = gpu.xp.empty_like(placed.array)
        arrays["average"] = PlacedArray(gpu, average, on_gpu=True)
        CodingPass(gpu, factors, grid, arrays, settings).run(memory, progress)
        return average
    numerator, denominator = np.zeros_like(image), np.zeros_like(image)
    arrays["numerator"] = PlacedArray(gpu, numerator, on_gpu=False)
    arrays["denominator"] = PlacedArray(gpu, denominator, on_gpu=False)
    CodingPass(gpu, factors, grid, arrays, settings).run(memory, progress)
    with np.errstate(invalid="ignore"):
        return numerator / denominator


def _placed(gpu: Gpu, name: str, array: Any) -> PlacedArray:
    on_gpu = is_on_gpu(array)
    if on_gpu:
        array = adopted(gpu.xp, array)
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise TypeError(
            f"{name} must be C-contiguous float32; it is {array.dtype}, "
            f"C-contiguous: {array.flags.c_contiguous}."
        )
    return PlacedArray(gpu, array, on_gpu)
