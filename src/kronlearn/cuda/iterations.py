"""Whole iterations of learning that run on the GPU without the host."""

from __future__ import annotations

import math
import time
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.engine import Iteration
from kronlearn.cuda.chunk_sums import PARTS, ChunkSums
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.samples import GpuSamples
from kronlearn.cuda.specialised import LaneKernels, TileKernels, specialised_kernels
from kronlearn.cuda.structs import METHODS, NO_SAMPLE, new_task, set_fields
from kronlearn.cuda.tables import shape_of
from kronlearn.cuda.updates import DeviceUpdate

__all__ = ["Iterations", "iterations_for"]

# The most iterations that run before callbacks are notified of them.
_MOST_AT_ONCE = 16
# Iterations of one recording. The GPU idles for 3 µs between recordings.
_PER_RECORDING = 4

# Samples are scaled to have entries of at most this magnitude.
_LARGEST_SCALED = 1024.0
# Outside this range, sums of squared entries overflow or underflow in single precision.
_TOO_SMALL, _TOO_LARGE = 1e-14, 1e17
# With a larger scale, the squares of tiny samples would leave the range of single precision.
_LARGEST_SCALE = 2.0**60


class Iterations:
    """Iterations of coding, sums and updates, one kernel after the other on the GPU.

    Samples that are not all on the GPU are streamed, coded and summed chunk by chunk.

    Parameters
    ----------
    kernels : TileKernels or LaneKernels
    samples : GpuSamples
    scale : float
        A power of two that scales all entries of samples to at most 1024.
    dictionary : KroneckerDictionary
    coder : Coder
    orthonormal : bool
    """

    def __init__(
        self,
        kernels: TileKernels | LaneKernels,
        samples: GpuSamples,
        scale: float,
        dictionary: KroneckerDictionary,
        coder: Coder,
        orthonormal: bool,
    ) -> None:
        self.kernels, self.samples, self.gpu = kernels, samples, kernels.gpu
        gpu, xp, n_samples = kernels.gpu, kernels.gpu.xp, len(samples.source)
        self.streams = samples.array is None
        rows = kernels.blocks(samples.longest if self.streams else n_samples)
        self.update = DeviceUpdate(
            gpu,
            dictionary,
            orthonormal,
            _MOST_AT_ONCE,
            PARTS if self.streams else rows,
            scale if kernels.scales_sums else 1.0,
        )
        self.chunk_sums = ChunkSums(gpu, self.update, rows) if self.streams else None
        self.codes: GpuCodes | None = None
        if kernels.reads_codes:
            self.codes = GpuCodes.empty(gpu, n_samples, coder.width, np.float32)
        # Kernels code with factors of unit norm, which are also those of the codes.
        self._norms = xp.ones(max(dictionary.n_atoms))
        self._first_bad = xp.full(1, NO_SAMPLE, np.int64)
        self._common_task = new_task(
            gpu,
            shape=shape_of(dictionary.factors),
            method=METHODS[coder.method],
            width=coder.width,
            tol=-1.0 if coder.tol is None else float(coder.tol),
            scale=scale,
            norms1=self._norms,
            norms2=self._norms,
            stopped=self.update.stopped,
            first_bad=self._first_bad,
        )

    def run(self, dictionary: Dictionary, count: int) -> list[Iteration]:
        """Run up to ``count`` iterations, fewer if one of them needs the processor."""
        if self.streams:
            # An iteration waits for samples: running several at once would gain nothing.
            self.update.begin(dictionary.coding_factors)
            seconds = self._run_streamed()
        else:
            recordings = self._recordings(min(count, _MOST_AT_ONCE))
            self.update.begin(dictionary.coding_factors)
            seconds = self.gpu.replay(recordings)
        end = time.perf_counter()
        results = self.update.results()
        each, done = seconds / len(results), []
        for later, result in zip(reversed(range(len(results))), results, strict=True):
            if result.failed:
                break
            new = dictionary.with_stacks([factor[None] for factor in result.factors])
            finished = end - later * each
            done.append(Iteration(new, result.residual, result.nonzeros, finished=finished))
        return done

    def _recordings(self, count: int) -> list[Any]:
        """Recordings of so many iterations over samples that are on the GPU."""
        several, single = divmod(count, _PER_RECORDING)
        recordings = [self._recording_of_several for _ in range(several)]
        return recordings + [self._recording_of_one for _ in range(single)]

    @cached_property
    def _recording_of_several(self) -> Any:
        return self._record(_PER_RECORDING)

    @cached_property
    def _recording_of_one(self) -> Any:
        return self._record(1)

    def _record(self, times: int) -> Any:
        task = self._task(slice(0, len(self.samples.source)), self.samples.array)
        # Recording runs the kernels once, which must not change anything.
        self.update.stop()
        return self.gpu.record(partial(self._iterate, task), times)

    def _iterate(self, task: NDArray[Any]) -> None:
        for name in self.kernels.updates:
            self._sum_for_update(name, task)
            self.update.run(name)

    def _sum_for_update(self, name: str, task: NDArray[Any]) -> None:
        """Enqueue the sums that an update needs, over the samples of a task."""
        sums = self.chunk_sums or self.update
        self.kernels.sum_for_update(name, task, self.update, sums.partial, sums.partial_counts)

    def _run_streamed(self) -> float:
        """Run one iteration over streamed samples; return the seconds that it took."""
        begin = time.perf_counter()
        for name in self.kernels.updates:
            self._sum_chunks(name)
            self.update.run(name)
        self.gpu.finish()
        return time.perf_counter() - begin

    def _sum_chunks(self, name: str) -> None:
        """Enqueue the sums that an update needs, over all samples as they arrive."""
        assert self.chunk_sums is not None
        codes, n_samples = name == self.kernels.updates[0], len(self.samples.source)
        for rows, chunk in self.samples.chunks():
            self._sum_for_update(name, self._task(rows, chunk))
            blocks = self.kernels.blocks(rows.stop - rows.start)
            begins, ends = rows.start == 0, rows.stop == n_samples
            self.chunk_sums.add(blocks, begins, ends, of_coding=codes)

    def _task(self, rows: slice, samples: Any) -> NDArray[Any]:
        """The task of an iteration for some of the samples."""
        task = self._common_task.copy()
        codes = {} if self.codes is None else self.codes[rows].arrays
        values = {"first": rows.start, "count": rows.stop - rows.start, "samples": samples}
        set_fields(self.gpu, task, **values, **codes)
        return task


def iterations_for(
    samples: GpuSamples, dictionary: Dictionary, coder: Coder, orthonormal: bool
) -> Iterations | None:
    """The iterations for these samples and settings, or None if no kernels can run them."""
    if not isinstance(dictionary, KroneckerDictionary):
        return None
    kernels = specialised_kernels(samples.gpu, dictionary.factors, samples.source.dtype, coder)
    if kernels is None or orthonormal != (coder.method == "threshold"):
        return None
    scale = _scale(samples.largest())
    if scale is None:
        return None
    return Iterations(kernels, samples, scale, dictionary, coder, orthonormal)


def _scale(largest: float) -> float | None:
    """A power of two that scales the largest entry to 512 to 1024, or None.

    Passes run instead if samples are not finite or too large, which they report, or so small that
    single precision cannot hold their squares.
    """
    if largest == 0:
        return 1.0
    if not _TOO_SMALL < largest < _TOO_LARGE:
        return None
    return min(_LARGEST_SCALED * 2.0 ** -math.frexp(largest)[1], _LARGEST_SCALE)
