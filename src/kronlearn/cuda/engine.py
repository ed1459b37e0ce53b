"""The engine of one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.codes import csr_codes
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Iteration, PassSums, Task
from kronlearn.core.source import Source
from kronlearn.cuda.arrays import DeviceSource
from kronlearn.cuda.block_sums import BlockSums
from kronlearn.cuda.coder import ChunkCoder
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import current_gpu
from kronlearn.cuda.iterations import Iterations, iterations_for
from kronlearn.cuda.samples import GpuSamples
from kronlearn.cuda.worst import WorstSamples

__all__ = ["Cuda"]

_BLOCK_SIZE = 4096


class Cuda(Engine):
    """Codes samples and adds up moments on the current GPU.

    Parameters
    ----------
    source : Source
    block_size : int, optional
        Samples per summed block, by default 4096: with the same one, sums have the same bits
        however the blocks are shared out, on GPUs of one kind.
    memory : int, optional
        Bytes that samples may take on the GPU; by default half of what is free. Those that do not
        fit are sent chunk by chunk in every pass.
    """

    def __init__(
        self, source: Source, block_size: int | None = None, memory: int | None = None
    ) -> None:
        self.gpu, self.source = current_gpu(), source
        self.block_size = block_size or _BLOCK_SIZE
        self.samples = GpuSamples(self.gpu, source, memory, self.block_size)
        # The kernels and the memory of the iterations that were asked for last.
        self._iterations: dict[Any, Iterations | None] = {}

    def run(self, task: Task, codes: GpuCodes | None = None) -> PassSums:
        """One pass over the samples; with ``codes`` the sums of these, and nothing is coded."""
        tree = task.tree(-(-len(self.source) // self.block_size))
        (_, worst), kept = self.add(task, tree, codes)
        return PassSums.of_tree(tree, worst, kept)

    def add(
        self, task: Task, tree: Any, codes: GpuCodes | None = None, first: int = 0
    ) -> tuple[tuple[NDArray[np.float64], NDArray[np.int64]], GpuCodes | None]:
        """Add the sums of all samples to a tree, of which they may be a part.

        ``first``, a multiple of the block size, is the number of the source's first sample among
        all samples of the tree. Returns the largest squared residuals and whose they are, by these
        numbers, and the codes if the task keeps them.
        """
        given, kept = codes is not None, codes
        if kept is None and task.keeps_codes:
            kept = self._all_codes(task)
        worst = WorstSamples(self.gpu, 0 if given else task.n_worst)
        sums = BlockSums(self.gpu, task, tree, self.block_size, given)
        coder = None if given else ChunkCoder(self.gpu, task, self.source, exact=False)
        for rows, samples in self.samples.chunks():
            own = self._chunk_codes(len(samples), task) if kept is None else kept[rows]
            if coder is not None:
                coder.code(rows, samples, own)
            sums.add(samples, own, (first + rows.start) // self.block_size)
            worst.add(own.residual2, first + rows.start)
        if coder is not None:
            coder.check()
        return (worst.residual2, worst.samples), kept if task.keeps_codes else None

    def iterations(
        self, dictionary: Dictionary, coder: Coder, orthonormal: bool, count: int
    ) -> list[Iteration] | None:
        """Up to so many iterations without a look from the processor, where there are kernels."""
        if coder.weights is not None or isinstance(coder.tol, np.ndarray):
            return None
        shapes = tuple(factor.shape for factor in dictionary.coding_factors)
        kind = shapes, dictionary.n_terms, coder, orthonormal
        if kind not in self._iterations:
            self._iterations.clear()
            settings = dictionary, coder, orthonormal
            try:
                self._iterations[kind] = iterations_for(self.gpu, self.samples, *settings)
            except MemoryError:
                # For passes, which sum full moments if they can and then keep no codes.
                self._iterations[kind] = None
        found = self._iterations[kind]
        return None if found is None else found.run(dictionary, count)

    def codes(self, dictionary: Dictionary, coder: Coder) -> Any:
        """The codes ``(N, n_codes)`` of all samples.

        A ``csr_matrix`` of CuPy for samples that lie on the GPU, otherwise a ``csr_array``.
        """
        task = Task(dictionary, coder)
        if isinstance(self.source, DeviceSource):
            from cupyx.scipy.sparse import csr_matrix

            whole = self._all_codes(task)
            for _ in self._coded(task, whole):
                pass
            value, index, starts = whole.packed()
            shape = len(self.source), dictionary.n_codes
            return csr_matrix((value, index, starts.astype(np.int32)), shape=shape)
        parts = []
        for chunk in self._coded(task):
            value, index, starts = map(self.gpu.download, chunk.packed())
            parts.append((np.diff(starts), index, value))
        return csr_codes(parts, dictionary.n_codes)

    def _coded(self, task: Task, codes: GpuCodes | None = None) -> Iterator[GpuCodes]:
        """The codes of chunk after chunk, parts of ``codes`` if there are any."""
        coder = ChunkCoder(self.gpu, task, self.source, exact=True)
        for rows, samples in self.samples.chunks():
            own = self._chunk_codes(len(samples), task) if codes is None else codes[rows]
            coder.code(rows, samples, own)
            yield own
        coder.check()

    def _all_codes(self, task: Task) -> GpuCodes:
        settings = len(self.source), task.coder.width, self.source.dtype
        return GpuCodes.empty(self.gpu, *settings, zeroed=False)

    def _chunk_codes(self, count: int, task: Task) -> GpuCodes:
        settings = count, task.coder.width, self.source.dtype
        return GpuCodes.empty(self.gpu, *settings, counted=False, zeroed=False)
