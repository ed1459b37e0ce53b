"""Coding of samples on the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.source import Source, raise_not_finite
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import Gpu, c_type, macros
from kronlearn.cuda.specialised import specialised_kernels
from kronlearn.cuda.structs import METHODS, NO_SAMPLE, SHAPE, check_method, new_task, set_fields
from kronlearn.cuda.tables import gpu_tables

__all__ = ["ChunkCoder"]

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# The most bytes of scratch for all teams together, unless one block needs more.
_MOST_SCRATCH = 1 << 30


class ChunkCoder:
    """Codes chunks of samples in one pass, with specialised kernels where they exist.

    Samples are coded in the precision that they have. Those for which single precision cannot be
    trusted are coded again in double precision.

    Parameters
    ----------
    gpu : Gpu
    task : Task
    source : Source
    exact : bool
        If False, specialised kernels stop with fewer nonzeros where single precision cannot be
        trusted, and no sample is coded again after them.
    """

    def __init__(self, gpu: Gpu, task: Task, source: Source, exact: bool) -> None:
        check_method(task.coder.method)
        self.gpu, self.coder, self.source = gpu, task.coder, source
        self.specialised = specialised_kernels(gpu, task.factors, source.dtype, task.coder)
        self.tables = gpu_tables(gpu, task.factors)
        #: The number of the first sample that is not finite.
        self.first_bad = gpu.upload(np.array([NO_SAMPLE]))
        general = [] if self.specialised else [source.dtype]
        if source.dtype == _SINGLE and (exact or not self.specialised):
            general.append(_DOUBLE)
        #: Compiler options of the general kernels that are needed, by the dtype of the arithmetic.
        self.options = {
            dtype: macros(
                S=c_type(source.dtype),
                T=c_type(dtype),
                WEIGHTED=int(task.coder.weights is not None),
            )
            for dtype in general
        }
        gpu.compile_ahead(("coder.cu", options) for options in self.options.values())

    def code(self, rows: slice, samples: Any, codes: GpuCodes) -> None:
        """Code consecutive samples of the source into the given codes."""
        # An array that the task points to must live until the kernels are enqueued.
        targets = _targets(self.gpu, self.coder, rows, self.source.dtype)
        task = new_task(
            self.gpu,
            shape=self.tables.shape,
            method=METHODS[self.coder.method],
            width=self.coder.width,
            # Specialised kernels choose a scale for every sample.
            scale=0.0,
            first=rows.start,
            count=len(samples),
            samples=samples,
            norms1=self.tables.norms[0],
            norms2=self.tables.norms[1],
            first_bad=self.first_bad,
            **codes.arrays,
            **targets,
        )
        codes_again = self.source.dtype == _SINGLE and _DOUBLE in self.options
        if codes_again:
            xp, count = self.gpu.xp, len(samples)
            doubtful, doubtful_count = xp.empty(count, np.int32), xp.zeros(1, np.int32)
            set_fields(self.gpu, task, doubtful=doubtful, doubtful_count=doubtful_count)
        if self.specialised is not None:
            self.specialised.code(task, self.tables.numbers[_SINGLE])
        else:
            self._code_any_shape(task, self.source.dtype)
        if codes_again:
            set_fields(self.gpu, task, list=doubtful, list_count=doubtful_count)
            set_fields(self.gpu, task, doubtful=None, doubtful_count=None)
            self._code_any_shape(task, _DOUBLE)

    def check(self) -> None:
        """Wait for the GPU; raise ValueError if a sample that was coded is not finite."""
        bad = int(self.gpu.download(self.first_bad)[0])
        if bad != NO_SAMPLE:
            sample = self.source.read(bad, bad + 1)
            weights = self.coder.of_rows(slice(bad, bad + 1)).weights
            raise_not_finite(sample, self.source.first + bad, self.source.name, weights)

    def _code_any_shape(self, task: Any, dtype: np.dtype[Any]) -> None:
        """Launch the general kernel with arithmetic of this dtype."""
        options, count = self.options[dtype], int(task["count"])
        size = _scratch_size(self.gpu, options, task["shape"].tobytes(), int(task["width"]))
        affordable = _MOST_SCRATCH // (4 * size * dtype.itemsize) * 4
        # Twice as many teams as run at the same time is a little faster for most shapes.
        teams = min(2 * self.gpu.n_teams, count, max(4, affordable))
        scratch = self.gpu.xp.empty(size * teams, dtype)
        set_fields(self.gpu, task, scratch=scratch, scratch_size=size)
        tables = self.tables.numbers[dtype]
        self.gpu.launch("coder.cu", "code_samples", teams, task, tables, options=options)


@lru_cache(256)
def _scratch_size(gpu: Gpu, options: tuple[str, ...], shape: bytes, width: int) -> int:
    """The numbers of scratch that a team needs, as the kernel counts them."""
    numbers = gpu.xp.zeros(1, np.int64)
    task = new_task(gpu, shape=np.frombuffer(shape, SHAPE)[0], width=width)
    gpu.launch("coder.cu", "count_scratch", 1, task, numbers, options=options)
    return int(gpu.download(numbers)[0])


def _targets(gpu: Gpu, coder: Coder, rows: slice, dtype: np.dtype[Any]) -> dict[str, Any]:
    """The fields of a task for error targets and weights, of these samples."""
    targets: dict[str, Any] = {}
    if coder.tol is not None:
        if np.ndim(coder.tol) == 0:
            targets["tol"] = float(coder.tol)
        else:
            targets["tols"] = gpu.upload(np.ascontiguousarray(np.asarray(coder.tol)[rows], dtype))
    if coder.weights is not None:
        # Copied before the conversion: booleans are a fourth of the size.
        weights = gpu.upload(np.ascontiguousarray(coder.weights[rows]))
        targets["weights"] = weights.astype(dtype, copy=False)
    return targets
