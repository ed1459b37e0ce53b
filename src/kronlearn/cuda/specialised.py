"""The choice between specialised and general kernels.

Specialised kernels exist for float32 samples without weights and two factors of one size:

- 8 × 8 atoms of 8 × 8 samples: ``pursuit_pairs.cu`` and, if the factors are orthonormal,
  ``threshold_fused.cu`` (:class:`TileKernels`); ``full_updates.cu`` updates these dictionaries.
- 16 × 16 or 32 × 32 atoms of 8 × 8, 16 × 16 or 32 × 32 samples: ``pursuit_lanes.cu``
  (:class:`LaneKernels`); ``mode_updates.cu`` updates these dictionaries.
- 8 × 8 or 16 × 16 atoms of 8 × 8 patches of an image: ``screen_patches.cu`` and
  ``code_patches.cu``, compiled for that number of atoms (:func:`specialised_patch_atoms`).

They code all samples that suit them (``coder.py``, ``image_passes.py``), and the first two run
whole iterations (``iterations.py``). Everything else is coded by ``coder.cu`` or
``code_patches.cu`` compiled for any shape, and summed by ``block_sums.cu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.cuda.device import Gpu, macros
from kronlearn.cuda.structs import METHODS
from kronlearn.cuda.updates import DeviceUpdate

__all__ = ["LaneKernels", "TileKernels", "specialised_kernels", "specialised_patch_atoms"]

_MOST_NONZEROS = 16
# Samples that a block of TileKernels processes at a time.
_TILE = 128
# The kernels use instructions of compute capability 8.0. All such GPUs have at least this much
# shared memory per block.
_LEAST_CAPABILITY, _LEAST_SHARED = (8, 0), 99 * 1024
_NULL = np.uint64(0)


class TileKernels:
    """Kernels for 8 × 8 atoms of 8 × 8 samples, with one or two lanes per sample.

    For an update, they leave the full moments of scaled samples.
    """

    #: The updates of an iteration, each of which needs sums over all samples.
    updates = ("update_both",)
    #: Whether the sums for later updates of an iteration read the codes of the first pass.
    reads_codes = False
    #: Whether the sums are those of samples that are multiplied by the scale of the task.
    scales_sums = True

    def __init__(self, gpu: Gpu, coder: Coder) -> None:
        self.gpu = gpu
        if coder.method == "threshold":
            self.file, self.options = "threshold_fused.cu", macros(WIDTH=coder.width)
        else:
            ols = int(coder.method == "ols")
            self.file, self.options = "pursuit_pairs.cu", macros(WIDTH=coder.width, OLS=ols)
        #: Of a block, the threads and the bytes of shared memory.
        self.threads, self.shared_bytes, self._most_per_multiprocessor = _needs(
            gpu, self.file, self.options, "fused_needs", 3
        )

    @cached_property
    def most_blocks(self) -> int:
        """The number of blocks that the GPU runs at the same time."""
        settings = self.file, "code_and_sum", self.threads, self.options, self.shared_bytes
        resident = self.gpu.resident_blocks(*settings)
        return min(self._most_per_multiprocessor, resident) * self.gpu.n_multiprocessors

    def blocks(self, n_samples: int) -> int:
        """The number of blocks that code these samples and leave sums: at most one per tile."""
        return min(-(-n_samples // _TILE), self.most_blocks)

    def code(
        self, task: NDArray[Any], tables: Any, partial: Any = _NULL, counts: Any = _NULL
    ) -> None:
        """Code the samples of a task and, unless they are null, leave each block's sums."""
        self.gpu.launch_blocks(
            self.file,
            "code_and_sum",
            self.blocks(int(task["count"])),
            self.threads,
            *(task, tables, partial, counts),
            options=self.options,
            shared=self.shared_bytes,
        )

    def sum_for_update(
        self, _: str, task: NDArray[Any], update: DeviceUpdate, partial: Any, counts: Any
    ) -> None:
        """Leave the sums of all blocks for the one update of an iteration."""
        self.code(task, update.single_tables, partial, counts)


class LaneKernels:
    """Kernels for 16 × 16 or 32 × 32 atoms of m × m samples, with several lanes per sample.

    For an update, they leave the sums of one mode. Each multiprocessor runs one block, with as many
    warps as fit into its shared memory.
    """

    file = "pursuit_lanes.cu"
    updates = ("update_left", "update_right")
    reads_codes = True
    scales_sums = False

    def __init__(self, gpu: Gpu, m: int, n: int, coder: Coder) -> None:
        self.gpu = gpu
        ols = coder.method == "ols"
        # OLS keeps two numbers per atom: with fewer atoms per lane they fit into the registers.
        block = 4 if ols and n == 16 else 8
        sizes = {"M": m, "N": n, "WIDTH": coder.width, "OLS": int(ols), "BLOCK": block}
        self.options = macros(**sizes, SHARED=gpu.shared_memory)

    @cached_property
    def needs(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Warps per block, and bytes of shared memory per block and per warp, for both kernels."""
        needs = _needs(self.gpu, self.file, self.options, "lanes_need", 6)
        return needs[:3], needs[3:]

    def blocks(self, _: int) -> int:
        """The number of blocks that leave sums, whatever the number of samples."""
        return self.gpu.n_multiprocessors

    def code(
        self, task: NDArray[Any], tables: Any, partial: Any = _NULL, counts: Any = _NULL
    ) -> None:
        """Code the samples of a task and, unless they are null, leave the left mode's sums."""
        self._launch("code_and_sum_left", self.needs[0], task, tables, partial, counts)

    def sum_for_update(
        self, name: str, task: NDArray[Any], update: DeviceUpdate, partial: Any, counts: Any
    ) -> None:
        """Leave the sums of all blocks for the update of the left or of the right mode."""
        if name == "update_left":
            self.code(task, update.single_tables, partial, counts)
        else:
            self._launch("sum_right", self.needs[1], task, update.unscaled, partial)

    def _launch(self, kernel: str, needs: tuple[int, ...], *arguments: Any) -> None:
        warps, of_block, of_warp = needs
        self.gpu.launch_blocks(
            self.file,
            kernel,
            self.gpu.n_multiprocessors,
            32 * warps,
            *arguments,
            options=self.options,
            shared=of_block + warps * of_warp,
        )


def specialised_kernels(
    gpu: Gpu, factors: Sequence[NDArray[Any]], dtype: np.dtype[Any], coder: Coder
) -> TileKernels | LaneKernels | None:
    """The kernels specialised for these factors, samples and codes, or None."""
    shapes = {factor.shape for factor in factors}
    if dtype != np.float32 or len(factors) != 2 or len(shapes) != 1:
        return None
    if gpu.capability < _LEAST_CAPABILITY or gpu.shared_memory < _LEAST_SHARED:
        return None
    if coder.method not in METHODS or coder.width > _MOST_NONZEROS or coder.weights is not None:
        return None
    ((m, n),) = shapes
    if m == n == 8:
        tiles = TileKernels(gpu, coder)
        return tiles if tiles.shared_bytes <= gpu.shared_memory else None
    if m in (8, 16, 32) and n in (16, 32) and coder.method != "threshold":
        return LaneKernels(gpu, m, n, coder)
    return None


def specialised_patch_atoms(
    factors: Sequence[NDArray[Any]], n_axes: int, method: int, weighted: bool
) -> int:
    """The atoms of a side for which ``code_patches.cu`` is compiled, or 0 for any number."""
    shapes = {factor.shape for factor in factors}
    two_modes = len(factors) == n_axes == 2 and shapes in ({(8, 8)}, {(8, 16)})
    if two_modes and not weighted and method != METHODS["threshold"]:
        return int(factors[0].shape[1])
    return 0


@lru_cache(64)
def _needs(
    gpu: Gpu, file: str, options: tuple[str, ...], kernel: str, count: int
) -> tuple[int, ...]:
    """The resources that the kernels of a file need, as one of them reports."""
    needs = gpu.xp.zeros(count, np.int32)
    gpu.launch_blocks(file, kernel, 1, 1, needs, options=options)
    return tuple(gpu.download(needs).tolist())
