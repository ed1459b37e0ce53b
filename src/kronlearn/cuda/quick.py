"""Kernels made for common shapes: 8 × 8 atoms, and 16 × 16 or 32 × 32 ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.cuda.device import Gpu, defined
from kronlearn.cuda.tasks import METHODS

__all__ = ["LaneKernels", "QuickKernels", "TileKernels", "quick_kernels"]

_MOST_NONZEROS = 16
# Samples that a block of the kernels for 8 × 8 atoms takes at a time.
_TILE = 128
# The kernels use instructions of GPUs of this compute capability and later ones, of which all have
# so many bytes of shared memory for a block.
_LEAST_CAPABILITY, _LEAST_SHARED = (8, 0), 99 * 1024
_NOWHERE = np.uint64(0)


class QuickKernels(ABC):
    """Kernels that code samples of float32, without weights, and may sum on the way.

    Parameters
    ----------
    gpu : Gpu
    sizes : pair of (m, n)
        Of both factors.
    coder : Coder
    """

    def __init__(self, gpu: Gpu, sizes: Sequence[tuple[int, int]], coder: Coder) -> None:
        self.gpu = gpu
        #: The file with the kernels, and what it is compiled with.
        self.file, self.options = self.choose(sizes[0], coder)

    @staticmethod
    @abstractmethod
    def suit(sizes: Sequence[tuple[int, int]], method: str) -> bool:
        """Whether the kernels are made for this."""

    @abstractmethod
    def choose(self, size: tuple[int, int], coder: Coder) -> tuple[str, tuple[str, ...]]:
        """A file, and options to compile it with."""

    @property
    @abstractmethod
    def fits(self) -> bool:
        """Whether the GPU has the shared memory that a block needs."""

    @abstractmethod
    def blocks(self, count: int) -> int:
        """How many blocks work on so many samples, and leave sums of them."""

    @abstractmethod
    def code(
        self, task: NDArray[Any], tables: Any, partial: Any = _NOWHERE, counts: Any = _NOWHERE
    ) -> None:
        """Enqueue the coding of the samples of a task, and sums over them where they are wanted."""

    def launch(self, kernel: str, blocks: int, threads: int, shared: int, *arguments: Any) -> None:
        """Enqueue a kernel of the file."""
        self.gpu.launch_blocks(
            self.file, kernel, blocks, threads, *arguments, options=self.options, shared=shared
        )


class TileKernels(QuickKernels):
    """8 × 8 atoms of 8 × 8 samples, one or two lanes per sample; full moments."""

    @staticmethod
    def suit(sizes: Sequence[tuple[int, int]], method: str) -> bool:
        """Whether the kernels are made for this."""
        return list(sizes) == [(8, 8), (8, 8)] and method in METHODS

    def choose(self, size: tuple[int, int], coder: Coder) -> tuple[str, tuple[str, ...]]:
        """Pursuit, or the largest coefficients of orthonormal atoms."""
        if coder.method == "threshold":
            return "threshold_fused.cu", defined(WIDTH=coder.width)
        ols = int(coder.method == "ols")
        return "pursuit_pairs.cu", defined(WIDTH=coder.width, OLS=ols)

    @cached_property
    def _needs(self) -> tuple[int, ...]:
        return _needs(self.gpu, self.file, self.options, "fused_needs", 3)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self._needs[0]

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self._needs[1]

    @property
    def fits(self) -> bool:
        """Whether the GPU has the shared memory that a block needs."""
        return self.shared_bytes <= self.gpu.shared_memory

    @cached_property
    def most_blocks(self) -> int:
        """How many blocks the GPU has room for, up to as many as the kernels are made for."""
        settings = self.file, "code_and_sum", self.threads, self.options, self.shared_bytes
        each = min(self._needs[2], self.gpu.blocks_at_once(*settings))
        return each * self.gpu.n_multiprocessors

    def blocks(self, count: int) -> int:
        """As many as the GPU has room for, or fewer: one for every tile."""
        return min(-(-count // _TILE), self.most_blocks)

    def code(
        self, task: NDArray[Any], tables: Any, partial: Any = _NOWHERE, counts: Any = _NOWHERE
    ) -> None:
        """Code, and sum."""
        blocks, arguments = self.blocks(int(task["count"])), (task, tables, partial, counts)
        self.launch("code_and_sum", blocks, self.threads, self.shared_bytes, *arguments)


class LaneKernels(QuickKernels):
    """16 × 16 or 32 × 32 atoms of square samples, several lanes per sample; sums by mode."""

    @staticmethod
    def suit(sizes: Sequence[tuple[int, int]], method: str) -> bool:
        """Whether the kernels are made for this."""
        if method not in ("omp", "ols") or len(sizes) != 2 or sizes[0] != sizes[1]:
            return False
        m, n = sizes[0]
        return m in (8, 16, 32) and n in (16, 32)

    def choose(self, size: tuple[int, int], coder: Coder) -> tuple[str, tuple[str, ...]]:
        """Pursuit for this size; a block has as many warps as find room in the shared memory."""
        ols = coder.method == "ols"
        sizes = {"M": size[0], "N": size[1], "WIDTH": coder.width, "OLS": int(ols)}
        # OLS has twice as much to keep of every atom: with fewer of them for a lane it fits.
        sizes |= {"BLOCK": 4 if ols and size[1] == 16 else 8, "SHARED": self.gpu.shared_memory}
        return "pursuit_lanes.cu", defined(**sizes)

    @property
    def fits(self) -> bool:
        """Always: the number of warps is made to fit."""
        return True

    @property
    def coding_needs(self) -> tuple[int, ...]:
        """Warps of a block that codes, its bytes of shared memory, and those of each warp."""
        return self._needs[:3]

    @property
    def summing_needs(self) -> tuple[int, ...]:
        """The same for a block that sums the right mode."""
        return self._needs[3:]

    @cached_property
    def _needs(self) -> tuple[int, ...]:
        return _needs(self.gpu, self.file, self.options, "lanes_need", 6)

    def blocks(self, count: int) -> int:
        """One for every multiprocessor."""
        return self.gpu.n_multiprocessors

    def code(
        self, task: NDArray[Any], tables: Any, partial: Any = _NOWHERE, counts: Any = _NOWHERE
    ) -> None:
        """Code, and sum for the left mode."""
        arguments = task, tables, partial, counts
        self._launch("code_and_sum_left", self.coding_needs, *arguments)

    def sum_right(self, task: NDArray[Any], factor: Any, partial: Any) -> None:
        """Enqueue the sums of the right mode over the codes of a task."""
        self._launch("sum_right", self.summing_needs, task, factor, partial)

    def _launch(self, kernel: str, needs: tuple[int, ...], *arguments: Any) -> None:
        warps, fixed, each = needs
        blocks, shared = self.blocks(int(arguments[0]["count"])), fixed + warps * each
        self.launch(kernel, blocks, 32 * warps, shared, *arguments)


def quick_kernels(
    gpu: Gpu, factors: Sequence[NDArray[Any]], dtype: np.dtype[Any], coder: Coder
) -> TileKernels | LaneKernels | None:
    """Those that suit these factors, samples and codes, or None."""
    if dtype != np.float32 or gpu.capability < _LEAST_CAPABILITY:
        return None
    if gpu.shared_memory < _LEAST_SHARED:
        return None
    if coder.width > _MOST_NONZEROS or coder.weights is not None:
        return None
    sizes = [factor.shape for factor in factors]
    for kind in (TileKernels, LaneKernels):
        if kind.suit(sizes, coder.method):
            found = kind(gpu, sizes, coder)
            return found if found.fits else None
    return None


@lru_cache(64)
def _needs(
    gpu: Gpu, file: str, options: tuple[str, ...], kernel: str, count: int
) -> tuple[int, ...]:
    """What the kernels of a file say that they need."""
    needs = gpu.xp.zeros(count, np.int32)
    gpu.launch_blocks(file, kernel, 1, 1, needs, options=options)
    return tuple(gpu.download(needs).tolist())
