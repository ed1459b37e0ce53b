"""Run the specialised kernels emulated on the processor, and compute what they should give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kronlearn as kl
import reference
from emulated_gpu import EmulatedGpu, aligned
from kronlearn.core.coder import Coder
from kronlearn.cuda.specialised import LaneKernels, TileKernels
from kronlearn.cuda.structs import METHODS, new_task
from kronlearn.cuda.tables import Tables

#: Entries and atoms of a side, nonzeros, method.
Case = tuple[int, int, int, str]
NO_BAD_SAMPLE = 1 << 62
UNTOUCHED = 99
GPU = EmulatedGpu()
# The number of blocks of a run, and of warps per block of LaneKernels.
GRID, WARPS = 2, 2


def is_tiled(case: Case) -> bool:
    """Whether TileKernels run the case, which leave full moments instead of sums of one mode."""
    return case[:2] == (8, 8)


def kernels(case: Case) -> Any:
    """The kernels of a case."""
    m, n, width, method = case
    coder, gpu = Coder(method, width), GPU
    return TileKernels(gpu, coder) if is_tiled(case) else LaneKernels(gpu, m, n, coder)  # type: ignore[arg-type]


def scale_of(Y):
    """A power of two that scales all entries to at most 1024, except those that are too large."""
    largest = np.abs(Y[np.abs(Y) < 1e15], dtype=np.float64).max(initial=0.0)
    return 2.0 ** np.floor(np.log2(1024.0 / largest)) if largest else 1.0


@dataclass
class Run:
    """Samples (N, m, m) and their codes and sums, as the kernels compute them.

    ``sure`` tells which samples were coded, and not left to double precision. ``sums`` are
    ``Σ x xᵀ`` and ``Σ x yᵀ``, or ``P`` and ``C`` of the left mode, for the factors as given.
    """

    case: Case
    Y: np.ndarray
    factors: list[np.ndarray]
    tol: Any = None
    lists_doubtful: bool = True
    codes: bool = True
    summed: bool = True
    scale: float | None = None
    stopped: bool = False
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m, _, width, _ = self.case
        N, self.tables = len(self.Y), Tables.of(self.factors)
        self.scale = scale_of(self.Y) if self.scale is None else self.scale
        self.arrays = {
            "samples": aligned(np.asarray(self.Y, np.float32).reshape(N, m * m)),
            "norms1": self.tables.norms[0],
            "norms2": self.tables.norms[1],
            "first_bad": np.array([NO_BAD_SAMPLE]),
            "doubtful": np.zeros(N, np.int32),
            "doubtful_count": np.zeros(1, np.int32),
            "index": np.full((N, width), UNTOUCHED, np.int32),
            "value": np.full((N, width), UNTOUCHED, np.float32),
            "nonzeros": np.full(N, UNTOUCHED, np.int32),
            "residual2": np.full(N, UNTOUCHED, np.float32),
        }
        if np.ndim(self.tol):
            self.arrays["tols"] = np.asarray(self.tol, np.float32)
        if self.stopped:
            self.arrays["stopped"] = np.ones(1, np.int32)
        self._code()

    @property
    def task(self) -> np.ndarray:
        _, _, width, method = self.case
        left_out = set() if self.lists_doubtful else {"doubtful", "doubtful_count"}
        left_out |= set() if self.codes else {"index", "value", "nonzeros", "residual2"}
        return new_task(
            GPU,
            shape=self.tables.shape,
            method=METHODS[method],
            width=width,
            count=len(self.Y),
            tol=-1.0 if self.tol is None or np.ndim(self.tol) else self.tol,
            first=1000,
            scale=self.scale,
            **{name: array for name, array in self.arrays.items() if name not in left_out},
        )

    def _code(self) -> None:
        """Code all samples, with the blocks of the grid one after the other."""
        tables = aligned(self.tables.numbers.astype(np.float32))
        counts, partial = np.full((GRID, 4), np.nan), self._partial()
        arrays = (partial, counts) if self.summed else (None, None)
        if is_tiled(self.case):
            tiles = kernels(self.case)
            settings = tiles.threads, tiles.shared_bytes
            self._launch("code_and_sum", *settings, tables, *arrays)
        else:
            self._launch_lanes("code_and_sum_left", 0, tables, *arrays)
        self.partial, self.counts = partial, counts.sum(axis=0)
        self.sure = np.ones(len(self.Y), bool)
        self.sure[self.arrays["doubtful"][: self.arrays["doubtful_count"][0]]] = False
        if self.codes and not self.stopped:
            self._check_written()

    def _check_written(self) -> None:
        """Indices ascend, unused entries are zero, and nothing is written for doubtful samples."""
        index, value = self.arrays["index"], self.arrays["value"]
        unused = np.arange(index.shape[1]) >= self.nonzeros[:, None]
        for k in np.flatnonzero(self.sure):
            assert (np.diff(index[k, : self.nonzeros[k]]) > 0).all()
        for array in (index, value):
            assert not array[self.sure & unused.any(axis=1)][
                unused[self.sure & unused.any(axis=1)]
            ].any()
        for name in ("index", "value", "nonzeros", "residual2"):
            assert (self.arrays[name][~self.sure] == UNTOUCHED).all()

    @property
    def nonzeros(self) -> np.ndarray:
        return self.arrays["nonzeros"]

    @property
    def residual2(self) -> np.ndarray:
        return self.arrays["residual2"]

    @property
    def dense(self) -> np.ndarray:
        """Dense codes, zero for doubtful samples."""
        X = np.zeros((len(self.Y), self.case[1] ** 2), np.float32)
        for k in np.flatnonzero(self.sure & (self.nonzeros != UNTOUCHED)):
            s = self.nonzeros[k]
            X[k, self.arrays["index"][k, :s]] = self.arrays["value"][k, :s]
        return X

    @property
    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        n, tiled = self.case[1], is_tiled(self.case)
        total = self.partial.sum(axis=0, dtype=np.float64)
        norms = np.kron(*self.tables.norms) if tiled else self.tables.norms[0].copy()
        norms[norms == 0] = np.inf
        if not tiled:
            return total[:, :n] / np.outer(norms, norms), total[:, n:] / norms[:, None]
        total /= self.scale**2
        xx = total[0] / np.outer(norms, norms) if len(total) == 2 else np.zeros((64, 64))
        return xx, total[-1] / norms[:, None]

    def sums_right(self, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``P`` and ``C`` of the right mode; the codes of doubtful samples are set to zero."""
        self.arrays["index"][~self.sure] = self.arrays["value"][~self.sure] = 0
        partial = self._partial()
        self._launch_lanes("sum_right", 1, np.ascontiguousarray(factor, np.float32), partial)
        total = partial.sum(axis=0, dtype=np.float64)
        return total[:, : self.case[1]], total[:, self.case[1] :]

    def _launch_lanes(self, kernel: str, which: int, *arguments: Any) -> None:
        _, of_block, of_warp = kernels(self.case).needs[which]
        self._launch(kernel, 32 * WARPS, of_block + WARPS * of_warp, *arguments)

    def _launch(self, kernel: str, threads: int, shared: int, *arguments: Any) -> None:
        file, options = kernels(self.case).file, kernels(self.case).options
        settings = {"options": options, "shared": shared}
        GPU.launch_blocks(file, kernel, GRID, threads, self.task, *arguments, **settings)

    def _partial(self) -> np.ndarray:
        m, n, _, method = self.case
        tiled = (1 if method == "threshold" else 2, 64, 64)
        return np.full((GRID, *(tiled if is_tiled(self.case) else (n, n + m))), np.nan, np.float32)

    def check_sums(self, rows: Any = None) -> None:
        """Compare the sums with float64 ones of these samples, by default of the sure ones."""
        n, rows = self.case[1], self.sure if rows is None else rows
        Y, X = self.Y[rows].astype(np.float64), self.dense[rows]
        counted = X
        if is_tiled(self.case):
            # Codes as rounded for the tensor cores.
            halves = (X * self.scale).astype(np.float16).astype(np.float64) / self.scale
            xx, xy = self.sums
            assert_near(xy, halves.T @ Y.reshape(-1, 64), 2e-6)
            if len(self.partial[0]) == 2:
                assert_near(xx, halves.T @ halves, 2e-6)
                counted = halves
        else:
            check_mode_sums(self.sums, X.reshape(-1, n, n), Y, self.factors[1])
        residual2, nonzeros = self.residual2[rows].astype(np.float64), self.nonzeros[rows]
        expected = np.sum(Y**2), residual2.sum(), np.sum(counted**2.0), nonzeros.sum()
        np.testing.assert_allclose(self.counts, expected, rtol=1e-6)

    def check_right_sums(self, factor: np.ndarray, rows: Any = None) -> None:
        """The same for the right mode, with a left factor of any norms."""
        rows, n = self.sure if rows is None else rows, self.case[1]
        X, Y = self.dense[rows].reshape(-1, n, n), self.Y[rows].astype(np.float64)
        turned = np.ascontiguousarray(X.transpose(0, 2, 1)), Y.transpose(0, 2, 1)
        check_mode_sums(self.sums_right(factor), *turned, factor)


def assert_near(found, expected, tolerance):
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def check_mode_sums(sums, X, Y, factor):
    """Compare with sums in float64, of Z = X Fᵀ itself and of Z as rounded for the tensor cores."""
    exact = X.astype(np.float64) @ factor.astype(np.float64).T
    Z = np.zeros(exact.shape, np.float32)
    for j, atom in enumerate(factor.astype(np.float32).astype(np.float64).T):
        Z = (Z + X[:, :, j, None] * atom).astype(np.float32)
    bits = Z.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)
    for Z, tolerance in ((exact, 2e-3), (bits.view(np.float32).astype(np.float64), 1e-5)):
        assert_near(sums[0], np.einsum("kip,kjp->ij", Z, Z), tolerance)
        assert_near(sums[1], np.einsum("kiq,kpq->ip", Z, Y), tolerance)


def general_factors(rng, case):
    """Two factors of unit norm, far from orthogonal; for thresholds, orthonormal ones."""
    m, n, _, method = case
    if method == "threshold":
        return orthonormal_factors(rng)
    factors = reference.random_factors(rng, (m, m), (n, n))
    if is_tiled(case):
        factors = [np.eye(8) + 0.35 * rng.standard_normal((8, 8)) for _ in range(2)]
    return [(factor / np.linalg.norm(factor, axis=0)).astype(np.float32) for factor in factors]


def orthonormal_factors(rng):
    return [np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32) for _ in range(2)]


def all_kinds(rng, factors, count):
    """Smooth, white, exactly sparse, constant, zero and tiny samples."""
    m, D = len(factors[0]), reference.dense(factors)
    grid = np.linspace(0.0, 1.0, m)
    a, b, c, d = rng.uniform(-2.0, 2.0, (4, count, 1, 1))
    smooth = 100.0 + 20.0 * np.sin(2.0 * a * grid[:, None] + 3.0 * b * grid + c) + d * grid**2
    smooth += 0.5 * rng.standard_normal(smooth.shape)
    white = rng.standard_normal((count, m, m))
    codes = np.zeros((count, D.shape[1]))
    for code in codes:
        code[rng.choice(D.shape[1], 3, replace=False)] = rng.uniform(1.0, 3.0, 3)
    sparse = (codes @ D.T).reshape(count, m, m)
    constant = np.full((2, m, m), [[[7.0]], [[-0.1]]])
    zero, tiny = np.zeros((2, m, m)), 1e-20 * rng.standard_normal((3, m, m))
    parts = [smooth, white, sparse, constant, zero, tiny]
    return rng.permutation(np.concatenate(parts)).astype(np.float32)


def leads(Y, factors, case):
    """The smallest lead of a selected atom over the next best one, relative to the sample."""
    _, _, width, method = case
    D, flat = reference.dense(factors), Y.reshape(len(Y), -1).astype(np.float64)
    if method == "threshold":
        strengths = -np.sort(-np.abs(flat @ D), axis=1)
        sizes = np.maximum(np.linalg.norm(flat, axis=1), 1e-30)
        return (strengths[:, width - 1] - strengths[:, width]) / sizes
    least = np.full(len(Y), np.inf)
    for k, y in enumerate(flat):
        size, residual, Q = np.linalg.norm(y), y, np.zeros((D.shape[0], 0))
        norm2 = np.ones(D.shape[1])
        while Q.shape[1] < width and np.linalg.norm(residual) > 1e-7 * size:
            strength = np.abs(D.T @ residual)
            if method == "ols":
                strength /= np.sqrt(np.maximum(norm2, 1e-5))
            second, first = np.partition(strength, -2)[-2:]
            least[k] = min(least[k], (first - second - 1e-5 * first) / size)
            new = D[:, np.argmax(strength)]
            for _ in range(2):
                new = new - Q @ (Q.T @ new)
            if np.linalg.norm(new) < 1e-5:
                break
            Q = np.column_stack([Q, new / np.linalg.norm(new)])
            residual = residual - Q[:, -1] * (Q[:, -1] @ residual)
            norm2 = norm2 - (D.T @ Q[:, -1]) ** 2
    return least


def sizes_of(Y):
    return np.linalg.norm(Y.reshape(len(Y), -1).astype(np.float64), axis=1)


def residual_norms(Y, factors, X):
    flat = np.asarray(Y, np.float64).reshape(len(Y), -1)
    return np.linalg.norm(flat - X.astype(np.float64) @ reference.dense(factors).T, axis=1)


def same_supports(A, B, Y):
    """Where codes use the same atoms, apart from coefficients at the level of rounding."""
    least = 1e-5 * sizes_of(Y)[:, None]
    return ((np.abs(A) > least) == (np.abs(B) > least)).all(axis=1)


def coded_by_processor(Y, factors, case, tol=None):
    """Dense codes of the processor."""
    settings = {"n_nonzero_coefs": case[2], "method": case[3], "tol": tol}
    return kl.sparse_code(Y, factors, **settings).toarray()
