"""Kernels made for common shapes: 8 × 8 atoms, and 16 × 16 or 32 × 32 ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.cuda.device import Gpu, defined
from kronlearn.cuda.tasks import METHODS

__all__ = ["LaneKernels", "TileKernels", "quick_kernels"]

_MOST_NONZEROS = 16
# Samples that a block of the kernels for 8 × 8 atoms takes at a time.
_TILE = 128
# The kernels use instructions of GPUs of this compute capability and later ones, of which all have
# so many bytes of shared memory for a block.
_LEAST_CAPABILITY, _LEAST_SHARED = (8, 0), 99 * 1024
_NOWHERE = np.uint64(0)


class _QuickKernels:
    """Kernels of a file that code samples of float32, without weights, and may sum on the way."""

    def __init__(self, gpu: Gpu, file: str, **defined_as: int) -> None:
        self.gpu, self.file, self.options = gpu, file, defined(**defined_as)

    def launch(self, kernel: str, blocks: int, threads: int, shared: int, *arguments: Any) -> None:
        """Enqueue a kernel of the file."""
        self.gpu.launch_blocks(
            self.file, kernel, blocks, threads, *arguments, options=self.options, shared=shared
        )


class TileKernels(_QuickKernels):
    """8 × 8 atoms of 8 × 8 samples, one or two lanes per sample; full moments."""

    def __init__(self, gpu: Gpu, coder: Coder) -> None:
        if coder.method == "threshold":
            super().__init__(gpu, "threshold_fused.cu", WIDTH=coder.width)
        else:
            ols = int(coder.method == "ols")
            super().__init__(gpu, "pursuit_pairs.cu", WIDTH=coder.width, OLS=ols)
        #: Of a block: its threads and bytes of shared memory; and the most on a multiprocessor.
        self.threads, self.shared_bytes, self._most_each = _needs(
            gpu, self.file, self.options, "fused_needs", 3
        )

    @cached_property
    def most_blocks(self) -> int:
        """How many blocks the GPU has room for, up to as many as the kernels are made for."""
        settings = self.file, "code_and_sum", self.threads, self.options, self.shared_bytes
        each = min(self._most_each, self.gpu.blocks_at_once(*settings))
        return each * self.gpu.n_multiprocessors

    def blocks(self, count: int) -> int:
        """How many blocks work on so many samples, and leave sums: no more than there are tiles."""
        return min(-(-count // _TILE), self.most_blocks)

    def code(
        self, task: NDArray[Any], tables: Any, partial: Any = _NOWHERE, counts: Any = _NOWHERE
    ) -> None:
        """Enqueue the coding of the samples of a task, and sums over them where they are wanted."""
        blocks, arguments = self.blocks(int(task["count"])), (task, tables, partial, counts)
        self.launch("code_and_sum", blocks, self.threads, self.shared_bytes, *arguments)


class LaneKernels(_QuickKernels):
    """16 × 16 or 32 × 32 atoms of m × m samples, several lanes per sample; sums by mode.

    A block has as many warps as find room in the shared memory.
    """

    def __init__(self, gpu: Gpu, m: int, n: int, coder: Coder) -> None:
        ols = coder.method == "ols"
        sizes = {"M": m, "N": n, "WIDTH": coder.width, "OLS": int(ols)}
        # OLS has twice as much to keep of every atom: with fewer of them for a lane it fits.
        sizes |= {"BLOCK": 4 if ols and n == 16 else 8, "SHARED": gpu.shared_memory}
        super().__init__(gpu, "pursuit_lanes.cu", **sizes)

    @cached_property
    def needs(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Warps of a block, its bytes of shared memory, and those of each warp.

        These are for a block that codes, and for one that sums the right mode.
        """
        needs = _needs(self.gpu, self.file, self.options, "lanes_need", 6)
        return needs[:3], needs[3:]

    def blocks(self, _: int) -> int:
        """One for every multiprocessor."""
        return self.gpu.n_multiprocessors

    def code(
        self, task: NDArray[Any], tables: Any, partial: Any = _NOWHERE, counts: Any = _NOWHERE
    ) -> None:
        """Enqueue the coding of the samples of a task, and sums for the left mode."""
        arguments = task, tables, partial, counts
        self._launch("code_and_sum_left", self.needs[0], *arguments)

    def sum_right(self, task: NDArray[Any], factor: Any, partial: Any) -> None:
        """Enqueue the sums of the right mode over the codes of a task."""
        self._launch("sum_right", self.needs[1], task, factor, partial)

    def _launch(self, kernel: str, needs: tuple[int, ...], *arguments: Any) -> None:
        warps, fixed, each = needs
        blocks = self.gpu.n_multiprocessors
        self.launch(kernel, blocks, 32 * warps, fixed + warps * each, *arguments)


def quick_kernels(
    gpu: Gpu, factors: Sequence[NDArray[Any]], dtype: np.dtype[Any], coder: Coder
) -> TileKernels | LaneKernels | None:
    """Those that suit these factors, samples and codes, or None."""
    sizes = {factor.shape for factor in factors}
    if dtype != np.float32 or len(factors) != 2 or len(sizes) != 1:
        return None
    if gpu.capability < _LEAST_CAPABILITY or gpu.shared_memory < _LEAST_SHARED:
        return None
    if coder.method not in METHODS or coder.width > _MOST_NONZEROS or coder.weights is not None:
        return None
    ((m, n),) = sizes
    if m == n == 8:
        tiles = TileKernels(gpu, coder)
        return tiles if tiles.shared_bytes <= gpu.shared_memory else None
    if m in (8, 16, 32) and n in (16, 32) and coder.method != "threshold":
        return LaneKernels(gpu, m, n, coder)
    return None


@lru_cache(64)
def _needs(
    gpu: Gpu, file: str, options: tuple[str, ...], kernel: str, count: int
) -> tuple[int, ...]:
    """What the kernels of a file say that they need."""
    needs = gpu.xp.zeros(count, np.int32)
    gpu.launch_blocks(file, kernel, 1, 1, needs, options=options)
    return tuple(gpu.download(needs).tolist())
