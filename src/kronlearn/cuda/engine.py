"""The engine that runs passes and iterations on one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.codes import csr_codes
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Iteration, PassSums, Task, worst_first
from kronlearn.core.source import Source
from kronlearn.cuda.arrays import DeviceSource
from kronlearn.cuda.block_sums import BlockSums
from kronlearn.cuda.coder import ChunkCoder
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import Gpu, current_gpu
from kronlearn.cuda.iterations import Iterations, iterations_for
from kronlearn.cuda.samples import GpuSamples

__all__ = ["Cuda"]

_BLOCK_SIZE = 4096

#: Squared residuals in descending order, and the numbers of the samples that have them.
_Worst = tuple[NDArray[np.float64], NDArray[np.int64]]


class Cuda(Engine):
    """Codes samples and adds up moments on the current GPU.

    Parameters
    ----------
    source : Source
    block_size : int, optional
        Samples per summed block, by default 4096. For the same block size, sums have the same bits
        on all GPUs of the same model, however blocks are distributed.
    memory : int, optional
        Bytes that samples may take on the GPU, by default half of the free memory. Samples that do
        not fit are streamed in every pass.
    """

    def __init__(
        self, source: Source, block_size: int | None = None, memory: int | None = None
    ) -> None:
        self.gpu, self.source = current_gpu(), source
        self.block_size = block_size or _BLOCK_SIZE
        self.samples = GpuSamples(self.gpu, source, memory, self.block_size)
        # The kernels and the memory for the settings of the latest iterations.
        self._iterations: dict[Any, Iterations | None] = {}

    def run(self, task: Task, codes: GpuCodes | None = None) -> PassSums:
        """Run one pass over the samples; with ``codes``, sum these instead of coding."""
        tree = task.tree(-(-len(self.source) // self.block_size))
        (_, worst), kept = self.add(task, tree, codes)
        return PassSums.of_tree(tree, worst, kept)

    def add(
        self, task: Task, tree: Any, codes: GpuCodes | None = None, first: int = 0
    ) -> tuple[_Worst, GpuCodes | None]:
        """Add the sums of all samples to a tree that may also hold the sums of other sources.

        ``first``, a multiple of the block size, is the number of the source's first sample among
        all samples of the tree. Returns the largest squared residuals with the numbers of their
        samples, and the codes if the task keeps them.
        """
        coder, kept = None, codes
        if codes is None:
            coder = ChunkCoder(self.gpu, task, self.source, exact=False)
            kept = self._codes_of_all(task) if task.keeps_codes else None
        worst: _Worst = np.empty(0), np.empty(0, np.int64)
        sums = BlockSums(self.gpu, task, tree, self.block_size, has_residuals=coder is not None)
        for rows, samples in self.samples.chunks():
            own = self._codes_of_chunk(len(samples), task) if kept is None else kept[rows]
            if coder is not None:
                coder.code(rows, samples, own)
            sums.add(samples, own, (first + rows.start) // self.block_size)
            if coder is not None and task.n_worst:
                worst = _add_worst(self.gpu, worst, own.residual2, first + rows.start, task.n_worst)
        if coder is not None:
            coder.check()
        return worst, kept if task.keeps_codes else None

    def iterations(
        self, dictionary: Dictionary, coder: Coder, orthonormal: bool, count: int
    ) -> list[Iteration] | None:
        """Run up to ``count`` iterations without the host; None if no kernels can."""
        if coder.weights is not None or isinstance(coder.tol, np.ndarray):
            return None
        shapes = tuple(factor.shape for factor in dictionary.coding_factors)
        settings = shapes, dictionary.n_terms, coder, orthonormal
        if settings not in self._iterations:
            self._iterations.clear()
            try:
                iterations = iterations_for(self.samples, dictionary, coder, orthonormal)
            except MemoryError:
                # Passes may be able to sum full moments, and then keep no codes.
                iterations = None
            self._iterations[settings] = iterations
        iterations = self._iterations[settings]
        return None if iterations is None else iterations.run(dictionary, count)

    def codes(self, dictionary: Dictionary, coder: Coder) -> Any:
        """The codes ``(N, n_codes)`` of all samples.

        A ``csr_matrix`` of CuPy if the samples are on the GPU, otherwise a ``csr_array``.
        """
        task = Task(dictionary, coder)
        if isinstance(self.source, DeviceSource):
            from cupyx.scipy.sparse import csr_matrix

            codes = self._codes_of_all(task)
            for _ in self._coded_chunks(task, codes):
                pass
            value, index, starts = codes.packed()
            shape = len(self.source), dictionary.n_codes
            return csr_matrix((value, index, starts.astype(np.int32)), shape=shape)
        parts = []
        for chunk in self._coded_chunks(task):
            value, index, starts = map(self.gpu.download, chunk.packed())
            parts.append((np.diff(starts), index, value))
        return csr_codes(parts, dictionary.n_codes)

    def _coded_chunks(self, task: Task, codes: GpuCodes | None = None) -> Iterator[GpuCodes]:
        """Yield the codes of chunk after chunk, written into ``codes`` if they are given."""
        coder = ChunkCoder(self.gpu, task, self.source, exact=True)
        for rows, samples in self.samples.chunks():
            own = self._codes_of_chunk(len(samples), task) if codes is None else codes[rows]
            coder.code(rows, samples, own)
            yield own
        coder.check()

    def _codes_of_all(self, task: Task) -> GpuCodes:
        settings = len(self.source), task.coder.width, self.source.dtype
        return GpuCodes.empty(self.gpu, *settings, zeroed=False)

    def _codes_of_chunk(self, n_samples: int, task: Task) -> GpuCodes:
        settings = n_samples, task.coder.width, self.source.dtype
        return GpuCodes.empty(self.gpu, *settings, limited=False, zeroed=False)


def _add_worst(gpu: Gpu, worst: _Worst, residual2: Any, first: int, count: int) -> _Worst:
    """The ``count`` largest residuals above zero, of earlier samples and those from ``first`` on.

    Of equal residuals, those of the first samples.
    """
    order = gpu.xp.argsort(-residual2, kind="stable")[:count]
    largest = gpu.download(residual2[order]).astype(np.float64)
    samples = gpu.download(order).astype(np.int64) + first
    return worst_first(
        np.concatenate([worst[0], largest[largest > 0]]),
        np.concatenate([worst[1], samples[largest > 0]]),
        count,
    )
