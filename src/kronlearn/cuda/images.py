"""Passes over the overlapping patches of an image on a GPU, as the native code has them.

Patches are cut out on the GPU and exist only for a part of the image at a time. What they become
is added up in an order, or in a way, that does not depend on how the image is cut: results have the
same bits in every run and with any limit on the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import METHODS as CODER_METHODS
from kronlearn.core.coder import Coder
from kronlearn.cuda.arrays import adopted, is_on_gpu
from kronlearn.cuda.device import C_TYPES, Gpu, c_type, defined
from kronlearn.cuda.groups import GROUPS_FILE
from kronlearn.cuda.image_passes import Coding, Tell, coding_options
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.quick import quick_kernels
from kronlearn.cuda.slabs import Axis, Grid, PlacedArray
from kronlearn.cuda.tables import gpu_tables
from kronlearn.cuda.tasks import METHODS, check_method

__all__ = ["GpuImages", "compile_ahead"]

# More memory than this does not make passes faster; this much is free on any GPU that is of use.
_USEFUL_MEMORY, _SMALL_MEMORY = 1 << 30, 1 << 29


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


class GpuImages:
    """What a native dictionary does with images, on a GPU.

    Images and weights, of float32, may be arrays of NumPy or on the GPU; averages lie where the
    images do.

    Parameters
    ----------
    gpu : Gpu
    factors : matrices (m_i, n_i) with unit-norm columns
    memory : int, optional
        Bytes that a pass may take on the GPU besides arrays that lie there already; by default
        half of what is free, and no more than is of use. Images that need more are worked on in
        bands. The thinnest possible band, one patch or window high, is taken whatever it needs.
    """

    def __init__(
        self, gpu: Gpu, factors: Sequence[NDArray[Any]], memory: int | None = None
    ) -> None:
        self.gpu, self.factors = gpu, list(factors)
        self._memory = memory
        self.tables = gpu_tables(gpu, self.factors)
        self.features = math.prod(factor.shape[0] for factor in self.factors)
        self.atoms = math.prod(factor.shape[1] for factor in self.factors)

    def code_average(
        self,
        image: Any,
        axes: Sequence[Axis],
        method: str,
        width: int,
        tol: float,
        known: Any = None,
        favour_sparse: bool = True,
        progress: Tell = None,
    ) -> Any:
        """The average of sparse approximations of all patches, each with its mean added again.

        Parameters
        ----------
        image : array of the axes' sizes
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
        """
        grid = Grid.of(axes)
        arrays, average = self._arrays(grid, image)
        size = arrays["image"].array.size
        if grid.features != self.features or size != grid.pixels or width < 1:
            raise ValueError("patches do not fit the dictionary")
        if method not in CODER_METHODS:
            raise ValueError(f"unknown method {method}")
        check_method(method)
        if known is not None:
            arrays["known"] = self._array("known", known)
            entries = arrays["known"].array.size
            if entries != size:
                raise ValueError(f"known has {entries} entries; expected {size}")
        settings = {
            "method": METHODS[method],
            "width": width,
            "favour_sparse": favour_sparse,
            "tol": tol,
        }
        Coding(self, grid, arrays, settings).run(progress)
        return average()

    def memory_for(self, needed: int) -> int:
        """Bytes that a pass may take which needs so many to do everything at once."""
        if self._memory is not None:
            return self._memory
        if needed <= _SMALL_MEMORY and current_limit() is None:
            # To ask how much is free takes as long as such a pass.
            return needed
        return min(self.gpu.free_memory() // 2, _USEFUL_MEMORY)

    def _arrays(self, grid: Grid, image: Any) -> tuple[dict[str, PlacedArray], Callable[[], Any]]:
        """The image and what a pass adds to, and what gives the average afterwards.

        The image has the size of the axes, or a multiple of it.
        """
        placed = self._array("image", image)
        if placed.array.size < grid.pixels or placed.array.size % grid.pixels:
            raise ValueError("image does not fit the axes")
        if placed.on_gpu:
            average = self.gpu.xp.empty_like(placed.array)
            return {
                "image": placed,
                "average": PlacedArray(self.gpu, average, True),
            }, lambda: average
        sums = {name: np.zeros_like(placed.array) for name in ("numerator", "denominator")}

        def divided() -> NDArray[Any]:
            with np.errstate(invalid="ignore"):
                return np.divide(*sums.values())

        places = {name: PlacedArray(self.gpu, array, False) for name, array in sums.items()}
        return {"image": placed, **places}, divided

    def _array(self, name: str, array: Any) -> PlacedArray:
        on_gpu = is_on_gpu(array)
        if on_gpu:
            array = adopted(self.gpu.xp, array)
        if array.dtype != np.float32 or not array.flags.c_contiguous:
            raise TypeError(
                f"{name} must be C-contiguous float32; it is {array.dtype}, "
                f"C-contiguous: {array.flags.c_contiguous}."
            )
        return PlacedArray(self.gpu, array, on_gpu)
