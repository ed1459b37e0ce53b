"""Codes samples on the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.source import Source, raise_not_finite
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import Gpu, c_type, defined
from kronlearn.cuda.quick import quick_kernels
from kronlearn.cuda.tables import SHAPE, gpu_tables
from kronlearn.cuda.tasks import METHODS, NO_SAMPLE, check_method, new_task

__all__ = ["ChunkCoder"]

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# The most bytes of scratch that teams have together, but for those of a block.
_MOST_SCRATCH = 1 << 30


class ChunkCoder:
    """Codes chunks of samples for one pass, by quick kernels where there are some.

    Parameters
    ----------
    gpu : Gpu
    task : Task
    source : Source
    exact : bool
        Whether samples that single precision cannot be trusted with are coded again in double
        precision after quick kernels, which otherwise give them fewer nonzeros.
    """

    def __init__(self, gpu: Gpu, task: Task, source: Source, exact: bool) -> None:
        check_method(task.coder.method)
        self.gpu, self.task, self.source = gpu, task, source
        self.dtype, self.exact = source.dtype, exact
        self.quick = quick_kernels(gpu, task.factors, self.dtype, task.coder)
        self.tables = gpu_tables(gpu, task.factors)
        #: The number of the first sample that is not finite.
        self.bad = gpu.upload(np.array([NO_SAMPLE]))
        # Files that code for any shape, by the type of the arithmetic.
        kinds = [self.dtype] if self.quick is None else []
        if self.dtype == _SINGLE and (exact or self.quick is None):
            kinds.append(_DOUBLE)
        weighted = int(task.coder.weights is not None)
        self.options = {
            kind: defined(S=c_type(self.dtype), T=c_type(kind), WEIGHTED=weighted) for kind in kinds
        }
        gpu.compile_ahead(("coder.cu", options) for options in self.options.values())

    def code(self, rows: slice, samples: Any, codes: GpuCodes) -> None:
        """Code consecutive samples of the source into codes of their own."""
        xp, count = self.gpu.xp, len(samples)
        targets = _targets(self.gpu, self.task.coder, rows, self.dtype)
        address = self.gpu.address
        values: dict[str, Any] = {
            "shape": self.tables.shape,
            "method": METHODS[self.task.coder.method],
            "width": self.task.coder.width,
            "first": rows.start,
            "count": count,
            "samples": address(samples),
            "norms1": address(self.tables.norms[0]),
            "norms2": address(self.tables.norms[1]),
            "first_bad": address(self.bad),
            **codes.addresses(address),
            **{name: part if name == "tol" else address(part) for name, part in targets.items()},
        }
        if self.quick is not None and not self.exact:
            self.quick.code(new_task(**values, scale=0.0), self.tables.numbers[_SINGLE])
            return
        if self.quick is None and len(self.options) == 1:
            self._launch(self.dtype, values, count)
            return
        doubtful, doubtful_count = xp.empty(count, np.int32), xp.zeros(1, np.int32)
        places = {"doubtful": address(doubtful), "doubtful_count": address(doubtful_count)}
        if self.quick is not None:
            self.quick.code(new_task(**values, **places, scale=0.0), self.tables.numbers[_SINGLE])
        else:
            self._launch(_SINGLE, values | places, count)
        places = {"list": address(doubtful), "list_count": address(doubtful_count)}
        self._launch(_DOUBLE, values | places, count)

    def check(self) -> None:
        """Raise if a sample that was coded is not finite; waits for the GPU."""
        bad = int(self.gpu.download(self.bad)[0])
        if bad != NO_SAMPLE:
            sample = self.source.read(bad, bad + 1)
            raise_not_finite(sample, self.source.first + bad, self.source.name)

    def _launch(self, kind: np.dtype[Any], values: dict[str, Any], count: int) -> None:
        """Code with kernels for any shape, whose arithmetic is of a kind."""
        task, options = new_task(**values), self.options[kind]
        size = _scratch_size(self.gpu, options, task["shape"].tobytes(), int(task["width"]))
        affordable = _MOST_SCRATCH // (4 * size * kind.itemsize) * 4
        # Twice as many as work at a time: a little faster for most shapes.
        teams = min(2 * self.gpu.n_teams, count, max(4, affordable))
        scratch = self.gpu.xp.empty(size * teams, kind)
        task["scratch"], task["scratch_size"] = self.gpu.address(scratch), size
        tables = self.tables.numbers[kind]
        self.gpu.launch("coder.cu", "code_samples", teams, task, tables, options=options)


@lru_cache(256)
def _scratch_size(gpu: Gpu, options: tuple[str, ...], shape: bytes, width: int) -> int:
    """Numbers that a team needs for itself, as the kernel counts them."""
    numbers = gpu.xp.zeros(1, np.int64)
    task = new_task(shape=np.frombuffer(shape, SHAPE)[0], width=width)
    gpu.launch("coder.cu", "count_scratch", 1, task, numbers, options=options)
    return int(gpu.download(numbers)[0])


def _targets(gpu: Gpu, coder: Coder, rows: slice, dtype: np.dtype[Any]) -> dict[str, Any]:
    targets: dict[str, Any] = {}
    if coder.tol is not None:
        if np.ndim(coder.tol) == 0:
            targets["tol"] = float(coder.tol)
        else:
            targets["tols"] = gpu.upload(np.ascontiguousarray(np.asarray(coder.tol)[rows], dtype))
    if coder.weights is not None:
        # Booleans are a fourth of what they become.
        given = gpu.upload(np.ascontiguousarray(coder.weights[rows]))
        targets["weights"] = given.astype(dtype, copy=False)
    return targets
