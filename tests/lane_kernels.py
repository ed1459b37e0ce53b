"""Runs the kernels with several lanes per sample on the processor, by emulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emulated_gpu import EmulatedGpu, aligned
from kronlearn.core.coder import Coder
from kronlearn.cuda.quick import LaneKernels
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, new_task

NO_BAD_SAMPLE = 1 << 62
UNTOUCHED = 99
GPU = EmulatedGpu()


def kernels(case: tuple[int, int, int, str]) -> LaneKernels:
    """The kernels for entries and atoms of a side, nonzeros and a method."""
    m, n, width, method = case
    return LaneKernels(GPU, [(m, n)] * 2, Coder(method, width))  # type: ignore[arg-type]


@dataclass
class Sums:
    """``P`` and ``C`` of a mode; of coding also ``Σ‖y‖², Σ‖r‖², Σ‖x‖²`` and the nonzeros."""

    P: np.ndarray
    C: np.ndarray
    counts: np.ndarray | None = None


@dataclass
class Run:
    """Samples, and what the kernels make of them; ``sure`` are those that they code themselves."""

    case: tuple[int, int, int, str]
    Y: np.ndarray
    factors: list[np.ndarray]
    tol: Any = None
    lists_doubtful: bool = True
    grid: int = 3
    warps: int = 2
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m, _, width, _ = self.case
        N = len(self.Y)
        self.tables = Tables.of(self.factors)
        self.arrays = {
            "samples": aligned(np.asarray(self.Y, np.float32).reshape(N, m * m)),
            "norms1": self.tables.norms[0],
            "norms2": self.tables.norms[1],
            "doubtful": np.zeros(N, np.int32),
            "doubtful_count": np.zeros(1, np.int32),
            "index": np.full((N, width), UNTOUCHED, np.int32),
            "value": np.full((N, width), UNTOUCHED, np.float32),
            "nonzeros": np.full(N, UNTOUCHED, np.int32),
            "residual2": np.full(N, UNTOUCHED, np.float32),
            "first_bad": np.array([NO_BAD_SAMPLE]),
        }
        if np.ndim(self.tol):
            self.arrays["tols"] = np.asarray(self.tol, np.float32)

    @property
    def task(self) -> np.ndarray:
        addresses = {name: array.ctypes.data for name, array in self.arrays.items()}
        if not self.lists_doubtful:
            addresses["doubtful"] = 0
        values = {
            "shape": self.tables.shape,
            "method": METHODS[self.case[3]],
            "width": self.case[2],
            "count": len(self.Y),
            "tol": -1.0 if self.tol is None or np.ndim(self.tol) else self.tol,
            "first": 1000,
        }
        return new_task(**(values | addresses))

    def code(self) -> Sums:
        """Codes all samples."""
        _, n, _, _ = self.case
        self.before = {name: array.copy() for name, array in self.arrays.items()}
        self.arrays["doubtful_count"][:] = 0
        partial, partial_counts = self._partial(), np.full((self.grid, 4), np.nan)
        tables = aligned(self.tables.numbers.astype(np.float32))
        self.launch("code_and_sum_left", self.task, tables, partial, partial_counts)
        count = self.arrays["doubtful_count"][0]
        self.sure = np.ones(len(self.Y), bool)
        self.sure[self.arrays["doubtful"][:count]] = False
        assert (~self.sure).sum() == count
        self.check_written()
        total = partial.sum(axis=0, dtype=np.float64) / self.tables.norms[0][:, None]
        P, C = total[:, :n] / self.tables.norms[0], total[:, n:]
        return Sums(P, C, partial_counts.sum(axis=0))

    def check_written(self) -> None:
        index, value, nonzeros = (self.arrays[name] for name in ("index", "value", "nonzeros"))
        for k in np.flatnonzero(self.sure):
            assert (np.diff(index[k, : nonzeros[k]]) > 0).all()
            assert not index[k, nonzeros[k] :].any()
            assert not value[k, nonzeros[k] :].any()
        for name in ("index", "value", "nonzeros", "residual2"):
            unchanged = self.arrays[name][~self.sure] == self.before[name][~self.sure]
            assert unchanged.all()

    def sum_right(self, factor: np.ndarray) -> Sums:
        """Sums of the right mode over written codes; those of doubtful samples are made zero."""
        _, n, _, _ = self.case
        self.arrays["index"][~self.sure] = self.arrays["value"][~self.sure] = 0
        partial, factor = self._partial(), np.ascontiguousarray(factor, np.float32)
        self.launch("sum_right", self.task, factor, partial)
        total = partial.sum(axis=0, dtype=np.float64)
        return Sums(total[:, :n], total[:, n:])

    def launch(self, kernel: str, *arguments: Any) -> None:
        """Runs a kernel with as many blocks and warps as this run has."""
        made = kernels(self.case)
        needs = made.coding_needs if kernel == "code_and_sum_left" else made.summing_needs
        shared = needs[1] + self.warps * needs[2]
        made.launch(kernel, self.grid, 32 * self.warps, shared, *arguments)

    def _partial(self) -> np.ndarray:
        m, n, _, _ = self.case
        return np.full((self.grid, n, n + m), np.nan, np.float32)

    @property
    def dense_codes(self) -> np.ndarray:
        """Dense codes, zero where there are none."""
        X = np.zeros((len(self.Y), self.case[1] ** 2), np.float32)
        for k in np.flatnonzero(self.sure):
            s = self.arrays["nonzeros"][k]
            X[k, self.arrays["index"][k, :s]] = self.arrays["value"][k, :s]
        return X
