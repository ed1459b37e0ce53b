"""Iterations that run on the GPU without a look from the processor."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.engine import Iteration
from kronlearn.cuda.chunk_sums import PARTS, ChunkSums
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.quick import LaneKernels, TileKernels, quick_kernels
from kronlearn.cuda.samples import GpuSamples
from kronlearn.cuda.tables import shape_of
from kronlearn.cuda.tasks import METHODS, NO_SAMPLE, new_task
from kronlearn.cuda.updates import DeviceUpdate

__all__ = ["Iterations", "iterations_for"]

# So many iterations are done without a look at most: callbacks come that much later.
_MOST_AT_ONCE = 16
# So many are one work for the GPU: between works it waits for 3 µs.
_TOGETHER = 4

# Scaled samples have no entry above this. Larger entries than the second, or only smaller ones than
# the third, cannot be squared and added up in single precision.
_SCALED = 1024.0
_TOO_LARGE = 1e17
_TOO_SMALL = 1e-14
# Scaled further, tiny samples would leave the range of single precision when squared.
_MOST_SCALE = 2.0**60


class Iterations(ABC):
    """Iterations of coding, sums and updates that one kernel after the other does on the GPU.

    Samples that are not all on the GPU are coded and added up as they come, chunk by chunk.

    Parameters
    ----------
    kernels : TileKernels or LaneKernels
    samples : GpuSamples
    scale : float
        A power of two; times it, no entry of a sample is above 1024.
    dictionary : KroneckerDictionary
    coder : Coder
    orthonormal : bool
    """

    #: The updates of an iteration, each of which needs sums over all samples.
    updates: tuple[str, ...]
    #: Whether later sums of an iteration read the codes of the first.
    needs_codes = False
    #: Whether sums are those of scaled samples.
    scales_sums = False

    def __init__(
        self,
        kernels: Any,
        samples: GpuSamples,
        scale: float,
        dictionary: KroneckerDictionary,
        coder: Coder,
        orthonormal: bool,
    ) -> None:
        self.kernels, self.samples, self.width = kernels, samples, coder.width
        gpu = self.gpu = kernels.gpu
        xp = gpu.xp
        #: The most samples that kernels are given at a time.
        self.at_once = len(samples.source) if samples.array is not None else samples.longest
        sums_scale = scale if self.scales_sums else 1.0
        rows, settings = kernels.blocks(self.at_once), (gpu, dictionary, orthonormal, _MOST_AT_ONCE)
        self.chunk_sums: ChunkSums | None = None
        if samples.array is not None:
            self.update = DeviceUpdate(*settings, rows, sums_scale)
            self.partial, self.partial_counts = self.update.partial, self.update.partial_counts
        else:
            self.update = DeviceUpdate(*settings, PARTS, sums_scale)
            self.chunk_sums = ChunkSums(gpu, self.update, rows)
            self.partial = self.chunk_sums.partial
            self.partial_counts = self.chunk_sums.partial_counts
        self.norms = xp.ones(max(dictionary.n_atoms))
        self.bad = xp.full(1, NO_SAMPLE, np.int64)
        self.codes: GpuCodes | None = None
        if self.needs_codes:
            self.codes = GpuCodes.empty(gpu, len(samples.source), coder.width, np.float32)
        self.task = new_task(
            shape=shape_of(dictionary.factors),
            method=METHODS[coder.method],
            width=coder.width,
            tol=-1.0 if coder.tol is None else float(coder.tol),
            scale=scale,
            norms1=gpu.address(self.norms),
            norms2=gpu.address(self.norms),
            stopped=gpu.address(self.update.stopped),
            first_bad=gpu.address(self.bad),
        )

    @abstractmethod
    def sum_for(self, update: str, task: NDArray[Any]) -> None:
        """Enqueue the sums that an update needs, over the samples of the task."""

    def run(self, dictionary: Dictionary, count: int) -> list[Iteration]:
        """So many iterations; fewer if one of them needs the processor."""
        if self.chunk_sums is None:
            works = self._recorded(min(count, _MOST_AT_ONCE))
            self.update.begin(dictionary.coding_factors)
            seconds = self.gpu.replayed(works)
        else:
            # Samples take long to come: there is nothing to gain from more than one.
            self.update.begin(dictionary.coding_factors)
            seconds = self._run_streamed()
        end = time.perf_counter()
        all_made = self.update.made()
        each, done = seconds / len(all_made), []
        for left, made in zip(reversed(range(len(all_made))), all_made, strict=True):
            if made.failed:
                break
            new = dictionary.with_stacks([factor[None] for factor in made.factors])
            finished = end - left * each
            done.append(Iteration(new, made.residual, made.nonzeros, finished=finished))
        return done

    def _recorded(self, count: int) -> list[Any]:
        """So many iterations over samples that lie on the GPU, to be replayed."""
        many, rest = divmod(count, _TOGETHER)
        return [self._some for _ in range(many)] + [self._one for _ in range(rest)]

    @cached_property
    def _some(self) -> Any:
        return self._record(_TOGETHER)

    @cached_property
    def _one(self) -> Any:
        return self._record(1)

    def _record(self, times: int) -> Any:
        task = self._task(slice(0, len(self.samples.source)), self.samples.array)
        # The recording is not to change anything.
        self.update.stop()
        return self.gpu.recorded(partial(self._iterate, task), times)

    def _iterate(self, task: NDArray[Any]) -> None:
        for update in self.updates:
            self.sum_for(update, task)
            self.update.run(update)

    def _run_streamed(self) -> float:
        """One iteration over samples that come chunk by chunk; the seconds that it took."""
        begin = time.perf_counter()
        for update in self.updates:
            self._sum_chunks(update)
            self.update.run(update)
        self.gpu.finish()
        return time.perf_counter() - begin

    def _sum_chunks(self, update: str) -> None:
        """Enqueue the sums that an update needs, over all samples as they come."""
        assert self.chunk_sums is not None
        is_first, count = update == self.updates[0], len(self.samples.source)
        for rows, chunk in self.samples.chunks():
            self.sum_for(update, self._task(rows, chunk))
            blocks = self.kernels.blocks(rows.stop - rows.start)
            self.chunk_sums.add(blocks, rows.start == 0, rows.stop == count, of_coding=is_first)

    def _task(self, rows: slice, samples: Any) -> NDArray[Any]:
        """What is done in an iteration with some of the samples."""
        task, address = self.task.copy(), self.gpu.address
        task["first"], task["count"] = rows.start, rows.stop - rows.start
        task["samples"] = address(samples)
        if self.codes is not None:
            for name, at in self.codes[rows].addresses(address).items():
                task[name] = at
        return task


class FullMoments(Iterations):
    """From the full moments of 8 × 8 atoms both factors are updated at once."""

    kernels: TileKernels
    updates = ("update_both",)
    scales_sums = True

    def sum_for(self, update: str, task: NDArray[Any]) -> None:
        """Code and sum."""
        self.kernels.code(task, self.update.single_tables, self.partial, self.partial_counts)


class SumsByMode(Iterations):
    """The left factor is updated from its sums, the right one from sums over the same codes."""

    kernels: LaneKernels
    updates = ("update_left", "update_right")
    needs_codes = True

    def sum_for(self, update: str, task: NDArray[Any]) -> None:
        """Code and sum for the left mode, or sum the codes for the right one."""
        if update == "update_right":
            self.kernels.sum_right(task, self.update.unscaled, self.partial)
            return
        self.kernels.code(task, self.update.single_tables, self.partial, self.partial_counts)


def iterations_for(
    gpu: Gpu, samples: GpuSamples, dictionary: Dictionary, coder: Coder, orthonormal: bool
) -> Iterations | None:
    """What runs iterations of this kind, or None."""
    if not isinstance(dictionary, KroneckerDictionary):
        return None
    kernels = quick_kernels(gpu, dictionary.factors, samples.source.dtype, coder)
    if kernels is None or orthonormal != (coder.method == "threshold"):
        return None
    scale = _scale(samples.largest())
    if scale is None:
        return None
    kind = FullMoments if isinstance(kernels, TileKernels) else SumsByMode
    return kind(kernels, samples, scale, dictionary, coder, orthonormal)


def _scale(largest: float) -> float | None:
    """A power of two that makes the largest entry 512 to 1024, or None.

    Samples that are not finite, or too large, are for passes to complain about, and those whose
    squares are too small for single precision are for passes to code.
    """
    if largest == 0:
        return 1.0
    if not _TOO_SMALL < largest < _TOO_LARGE:
        return None
    return min(_SCALED * 2.0 ** -math.frexp(largest)[1], _MOST_SCALE)
