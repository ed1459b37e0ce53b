"""Updates of a dictionary with two modes of one size, from sums on the GPU and without the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.cuda.device import Gpu, macros
from kronlearn.cuda.structs import UPDATE, new_struct
from kronlearn.cuda.tables import Tables

__all__ = ["THREADS", "DeviceUpdate", "IterationResult", "partial_sums"]

#: Threads of a block that adds up sums.
THREADS = 256
# Numbers that a block adds up at a time.
_NUMBERS_AT_ONCE = 32


@dataclass(frozen=True)
class IterationResult:
    """New factors, with ``Σ‖y − ŷ‖²`` and the number of nonzeros of the codes of the old ones.

    If it ``failed``, the processor has to repeat the iteration, and no further one was run.
    """

    factors: list[NDArray[np.float64]]
    residual: float
    nonzeros: int
    failed: bool


class DeviceUpdate:
    """Updates a dictionary of two factors ``(m, n)`` on the GPU.

    For 8 × 8 atoms of 8 × 8 samples, both modes are updated from the full moments (for orthonormal
    factors from ``S_xy`` alone). For other sizes, each mode is updated from its sums P and C.

    Parameters
    ----------
    gpu : Gpu
    dictionary : KroneckerDictionary
    orthonormal : bool
    capacity : int
        The most iterations between :meth:`begin` and :meth:`results`.
    rows : int
        The number of blocks that leave sums.
    scale : float
        The factor by which samples and codes are multiplied in these sums.

    Attributes
    ----------
    partial, partial_counts : arrays on the GPU
        Each block's sums (rows, numbers) and the four counts of its pass (rows, 4).
    stopped : array on the GPU, of one int32
        If not zero, kernels return at once.
    single_tables, double_tables : arrays on the GPU
        The tables of the current dictionary.
    unscaled : array on the GPU
        The left factor to which the codes belong, for the sums of the right mode.
    """

    def __init__(
        self,
        gpu: Gpu,
        dictionary: KroneckerDictionary,
        orthonormal: bool,
        capacity: int,
        rows: int,
        scale: float = 1.0,
    ) -> None:
        self.gpu = gpu
        (m, n), xp = dictionary.factors[0].shape, gpu.xp
        self.shape = m, n
        self.options = macros(M=m, N=n)
        if m == n == 8:
            self.file, numbers = "full_updates.cu", (1 if orthonormal else 2) * (n * n) * (m * m)
        else:
            self.file, numbers = "mode_updates.cu", n * (n + m)
        self.partial, self.partial_counts = partial_sums(gpu, rows, numbers)
        size = Tables.of(dictionary.factors).numbers.size
        self.single_tables, self.double_tables = xp.zeros(size, np.float32), xp.zeros(size)
        self.stopped, self.unscaled = xp.zeros(1, np.int32), xp.zeros((m, n), np.float32)
        self._iteration, self._arrived = xp.zeros(1, np.int32), xp.zeros(1, np.int32)
        self._sums, self._counts = xp.zeros(numbers), xp.zeros(4)
        self._history = xp.zeros((capacity, 3))
        self._all_factors = xp.zeros((capacity, 2 * m * n))
        #: The number of blocks that add up sums.
        self.blocks = 1 + min(numbers // _NUMBERS_AT_ONCE, 2 * gpu.n_multiprocessors)
        self._task = new_struct(
            gpu,
            UPDATE,
            orthonormal=orthonormal,
            kept=capacity,
            rows=rows,
            factor=scale**-2.0,
            partial=self.partial,
            partial_counts=self.partial_counts,
            sums=self._sums,
            counts=self._counts,
            single_tables=self.single_tables,
            double_tables=self.double_tables,
            history=self._history,
            all_factors=self._all_factors,
            iteration=self._iteration,
            arrived=self._arrived,
            stopped=self.stopped,
            unscaled=self.unscaled,
        )
        needs = xp.zeros(1, np.int32)
        gpu.launch_blocks(self.file, "update_needs", 1, 1, needs, options=self.options)
        self._shared_bytes = int(needs[0])

    def begin(self, factors: Sequence[NDArray[Any]]) -> None:
        """Prepare for iterations that start from these factors."""
        exact = np.concatenate([np.asarray(factor, np.float64).ravel() for factor in factors])
        self.double_tables[: exact.size] = self.gpu.upload(exact)
        self._launch("tabulate", 1)
        self._iteration.fill(0)
        self.stopped.fill(0)

    def stop(self) -> None:
        """Make all kernels return at once, until :meth:`begin`."""
        self.stopped.fill(1)

    def run(self, kernel: str) -> None:
        """Enqueue ``update_both``, or ``update_left`` or ``update_right``."""
        self._launch(kernel, self.blocks)

    def results(self) -> list[IterationResult]:
        """Wait for the iterations since :meth:`begin` and return their results."""
        history = self.gpu.download(self._history)
        factors = self.gpu.download(self._all_factors)
        count = int(self.gpu.download(self._iteration)[0])
        return [self._result(history[row], factors[row]) for row in range(count)]

    def _launch(self, kernel: str, blocks: int) -> None:
        shared, options = self._shared_bytes, self.options
        self.gpu.launch_blocks(
            self.file, kernel, blocks, THREADS, self._task, options=options, shared=shared
        )

    def _result(
        self, numbers: NDArray[np.float64], entries: NDArray[np.float64]
    ) -> IterationResult:
        factors = list(entries.reshape(2, *self.shape))
        residual, nonzeros, flag = numbers.tolist()
        return IterationResult(factors, residual, int(nonzeros), bool(flag))


def partial_sums(gpu: Gpu, rows: int, numbers: int) -> tuple[Any, Any]:
    """Zeroed memory for the sums and the four counts that blocks leave."""
    return gpu.xp.zeros((rows, numbers), np.float32), gpu.xp.zeros((rows, 4))
