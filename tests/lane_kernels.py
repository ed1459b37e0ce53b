"""Runs the kernels with several lanes per sample on the processor, by emulation."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from emulated_card import EMULATION, KERNELS, aligned, compiled, pointer
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, TASK, new_task

NO_BAD_SAMPLE = 1 << 62
UNTOUCHED = 99
LAUNCHERS = """
#define KRONLEARN_M {m}
#define KRONLEARN_N {n}
#define KRONLEARN_WIDTH {width}
#define KRONLEARN_OLS {ols}
#include "{emulation}"
#include "{kernel}"

extern "C" void needs(int* numbers) {{ emulation::launch(lanes_need, 1, 1, 0, numbers); }}
extern "C" void code(unsigned grid, unsigned warps, const kronlearn::Task<float>* task,
                     const float* tables, float* partial, double* partial_counts) {{
  int numbers[6];
  needs(numbers);
  const unsigned bytes = numbers[1] + warps * numbers[2];
  emulation::launch(code_and_sum_left, grid, 32 * warps, bytes, *task, tables, partial,
                    partial_counts);
}}
extern "C" void sum(unsigned grid, unsigned warps, const kronlearn::Task<float>* task,
                    const float* factor, float* partial) {{
  int numbers[6];
  needs(numbers);
  const unsigned bytes = numbers[4] + warps * numbers[5];
  emulation::launch(sum_right, grid, 32 * warps, bytes, *task, factor, partial);
}}
"""


@cache
def built(case: tuple[int, int, int, str], folder: Path) -> ctypes.CDLL:
    """The kernels compiled for the processor."""
    m, n, width, method = case
    source = LAUNCHERS.format(
        m=m,
        n=n,
        width=width,
        ols=int(method == "ols"),
        emulation=EMULATION,
        kernel=KERNELS / "pursuit_lanes.cu",
    )
    return compiled(source, folder, f"lanes_{m}_{n}_{width}_{method}")


@dataclass
class Sums:
    """``P`` and ``C`` of a mode; of coding also ``Σ‖y‖², Σ‖r‖², Σ‖x‖²`` and the nonzeros."""

    P: np.ndarray
    C: np.ndarray
    counts: np.ndarray | None = None


@dataclass
class Run:
    """Samples, and what the kernels make of them; ``sure`` are those that they code themselves."""

    library: ctypes.CDLL
    case: tuple[int, int, int, str]
    Y: np.ndarray
    factors: list[np.ndarray]
    tol: Any = None
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
            "energy": np.full(N, -1.0),
            "first_bad": np.array([NO_BAD_SAMPLE]),
        }
        if np.ndim(self.tol):
            self.arrays["tols"] = np.asarray(self.tol, np.float32)

    def task(self, **given: Any) -> np.ndarray:
        assert TASK.itemsize % 8 == 0
        addresses = {name: array.ctypes.data for name, array in self.arrays.items()}
        values = {
            "shape": self.tables.shape,
            "method": METHODS[self.case[3]],
            "width": self.case[2],
            "count": len(self.Y),
            "tol": -1.0 if self.tol is None or np.ndim(self.tol) else self.tol,
            "first": 1000,
        }
        return new_task(**(values | addresses | given))

    def code(self, **given: Any) -> Sums:
        """Codes all samples, as a task with these values says."""
        _, n, _, _ = self.case
        self.before = {name: array.copy() for name, array in self.arrays.items()}
        self.arrays["doubtful_count"][:] = 0
        partial, partial_counts = self._partial(), np.full((self.grid, 4), np.nan)
        tables = aligned(self.tables.numbers.astype(np.float32))
        task = self.task(**given)
        arguments = pointer(task), pointer(tables), pointer(partial), pointer(partial_counts)
        self.library.code(self.grid, self.warps, *arguments)
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
        arguments = pointer(self.task()), pointer(factor), pointer(partial)
        self.library.sum(self.grid, self.warps, *arguments)
        total = partial.sum(axis=0, dtype=np.float64)
        return Sums(total[:, :n], total[:, n:])

    def _partial(self) -> np.ndarray:
        m, n, _, _ = self.case
        return np.full((self.grid, n, n + m), np.nan, np.float32)

    def remember(self, supports: np.ndarray) -> None:
        """Previous codes with these supports, boolean ``(N, atoms)``, of whatever values."""
        width = self.case[2]
        nonzeros = supports.sum(axis=1).astype(np.int32)
        index = np.argsort(~supports, axis=1, kind="stable")[:, :width].astype(np.int32)
        index[np.arange(width) >= nonzeros[:, None]] = 0
        self.arrays |= {"index": index, "nonzeros": nonzeros}

    @property
    def supports(self) -> np.ndarray:
        """Where codes have entries, zero ones among them."""
        where = np.zeros((len(self.Y), self.case[1] ** 2), bool)
        for k, s in enumerate(self.arrays["nonzeros"]):
            where[k, self.arrays["index"][k, :s]] = True
        return where

    @property
    def dense_codes(self) -> np.ndarray:
        """Dense codes, zero where there are none."""
        X = np.zeros((len(self.Y), self.case[1] ** 2), np.float32)
        for k in np.flatnonzero(self.sure):
            s = self.arrays["nonzeros"][k]
            X[k, self.arrays["index"][k, :s]] = self.arrays["value"][k, :s]
        return X
