"""The kernels of graphics cards for 16 × 16 and 32 × 32 atoms, run on the processor by emulation.

They code samples with several lanes each and add up the moments of one mode; they must agree with
``sparse_code`` and with sums in float64.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, TASK, new_task
from reference import dense

HERE = Path(__file__).parent
KERNELS = Path(kl.__file__).parent / "cuda" / "kernels"
NO_BAD_SAMPLE = 1 << 62
UNTOUCHED = 99
#: Entries and atoms of a side, nonzeros, method.
CASES = [
    (8, 16, 6, "omp"),
    (8, 16, 5, "ols"),
    (16, 16, 12, "omp"),
    (16, 32, 16, "omp"),
    (32, 32, 8, "ols"),
]
SMALL = CASES[0]

LAUNCHERS = """
#define KRONLEARN_M {m}
#define KRONLEARN_N {n}
#define KRONLEARN_WIDTH {width}
#define KRONLEARN_OLS {ols}
#include "{emulation}"
#include "{kernel}"

extern "C" void needs(int* numbers) {{ emulation::launch(lanes_need, 1, 1, 0, numbers); }}
extern "C" void run(int kernel, unsigned grid, unsigned warps, const kronlearn::Task<float>* task,
                    const float* table, float* partial, double* partial_counts) {{
  int numbers[9];
  needs(numbers);
  const auto launched = kernel == 0 ? code_and_sum_left : kernel == 1 ? sum_left : sum_right;
  const unsigned bytes = numbers[3 * kernel + 1] + warps * numbers[3 * kernel + 2];
  emulation::launch(launched, grid, 32 * warps, bytes, *task, table, partial, partial_counts);
}}
extern "C" void reduce(unsigned grid, const float* partial, const double* partial_counts,
                       int blocks, const double* norms, double* p, double* c, double* counts) {{
  emulation::launch(reduce_partials, grid, 256, 0, partial, partial_counts, blocks, norms, p, c,
                    counts);
}}
"""
CODE, SUM_LEFT, SUM_RIGHT = range(3)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles the kernels for the processor, once for every case."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile kernels for the processor with")

    @cache
    def built(case: tuple[int, int, int, str]) -> ctypes.CDLL:
        m, n, width, method = case
        folder = tmp_path_factory.mktemp("lanes")
        source = LAUNCHERS.format(
            m=m,
            n=n,
            width=width,
            ols=int(method == "ols"),
            emulation=HERE / "cuda_emulation.hpp",
            kernel=KERNELS / "pursuit_lanes.cu",
        )
        (folder / "kernel.cpp").write_text(source)
        # Kernels are not written for strict aliasing, which CUDA does not assume either.
        options = ["-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
        command = [compiler, *options, "-pthread", "kernel.cpp", "-o", "kernel.so"]
        subprocess.run(command, cwd=folder, check=True)
        return ctypes.CDLL(folder / "kernel.so")

    return built


def aligned(a: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 16 bytes, as memory on a graphics card does."""
    room = np.empty(a.nbytes + 16, np.uint8)
    first = -room.ctypes.data % 16
    copy = room[first : first + a.nbytes].view(a.dtype).reshape(a.shape)
    copy[...] = a
    return copy


def pointer(a: np.ndarray | None) -> Any:
    return None if a is None else ctypes.c_void_p(a.ctypes.data)


@dataclass
class Sums:
    """``P`` and ``C`` of a mode, and ``Σ‖y‖², Σ‖r‖², Σ‖x‖²`` and the number of nonzeros."""

    P: np.ndarray
    C: np.ndarray
    counts: np.ndarray


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

    def task(self, **given: np.ndarray) -> np.ndarray:
        assert TASK.itemsize % 8 == 0
        return new_task(
            shape=self.tables.shape,
            method=METHODS[self.case[3]],
            width=self.case[2],
            count=len(self.Y),
            tol=-1.0 if self.tol is None or np.ndim(self.tol) else self.tol,
            first=1000,
            **{name: array.ctypes.data for name, array in (self.arrays | given).items()},
        )

    def launch(self, kernel: int, task: np.ndarray, table: np.ndarray, norms: Any) -> Sums:
        m, n, _, _ = self.case
        partial = np.full((self.grid, n, n + m), np.nan, np.float32)
        partial_counts = np.full((self.grid, 4), np.nan)
        sums = Sums(np.zeros((n, n)), np.zeros((n, m)), np.zeros(4))
        parts = pointer(partial), pointer(partial_counts)
        table = np.ascontiguousarray(table, np.float32)
        self.library.run(kernel, self.grid, self.warps, pointer(task), pointer(table), *parts)
        totals = (pointer(total) for total in (sums.P, sums.C, sums.counts))
        self.library.reduce(n, *parts, self.grid, pointer(norms), *totals)
        return sums

    def code(self) -> Sums:
        sums = self.launch(CODE, self.task(), self.tables.numbers, self.tables.norms[0])
        count = self.arrays["doubtful_count"][0]
        self.sure = np.ones(len(self.Y), bool)
        self.sure[self.arrays["doubtful"][:count]] = False
        assert (~self.sure).sum() == count
        self.check_written()
        return sums

    def check_written(self) -> None:
        index, value, nonzeros = (self.arrays[name] for name in ("index", "value", "nonzeros"))
        for k in np.flatnonzero(self.sure):
            assert (np.diff(index[k, : nonzeros[k]]) > 0).all()
            assert not index[k, nonzeros[k] :].any()
            assert not value[k, nonzeros[k] :].any()
        for name in ("index", "value", "nonzeros", "residual2"):
            assert (self.arrays[name][~self.sure] == UNTOUCHED).all()

    def sum(self, kernel: int, factor: np.ndarray, rows: np.ndarray | None = None) -> Sums:
        """Sums of codes that have been written, of all samples or of some."""
        if rows is None:
            return self.launch(kernel, self.task(), factor, None)
        # Named, for the task only has their addresses.
        listed, count = np.asarray(rows, np.int32), np.array([len(rows)], np.int32)
        return self.launch(kernel, self.task(list=listed, list_count=count), factor, None)

    @property
    def dense_codes(self) -> np.ndarray:
        """Dense codes, zero where there are none."""
        X = np.zeros((len(self.Y), self.case[1] ** 2), np.float32)
        for k in np.flatnonzero(self.sure):
            s = self.arrays["nonzeros"][k]
            X[k, self.arrays["index"][k, :s]] = self.arrays["value"][k, :s]
        return X


def random_factors(rng, m, n):
    """Two factors with unit-norm columns, far from orthogonal where there is room for it."""
    return [factor.astype(np.float32) for factor in reference.random_factors(rng, (m, m), (n, n))]


def all_kinds(rng, m, factors, n_samples):
    """Smooth, white, exactly sparse, constant, zero and tiny samples."""
    grid = np.linspace(0.0, 1.0, m)
    a, b, c, d = rng.uniform(-2.0, 2.0, (4, n_samples, 1, 1))
    smooth = 100.0 + 20.0 * np.sin(2.0 * a * grid[:, None] + 3.0 * b * grid + c) + d * grid**2
    smooth += 0.5 * rng.standard_normal(smooth.shape)
    white = rng.standard_normal((n_samples, m, m))
    D = dense(factors)
    sparse = np.zeros((n_samples, D.shape[1]))
    for code in sparse:
        code[rng.choice(D.shape[1], 3, replace=False)] = rng.uniform(1.0, 3.0, 3)
    sparse = (sparse @ D.T).reshape(n_samples, m, m)
    constant = np.full((2, m, m), [[[7.0]], [[-0.1]]])
    zero, tiny = np.zeros((2, m, m)), 1e-20 * rng.standard_normal((3, m, m))
    parts = [smooth, white, sparse, constant, zero, tiny]
    return rng.permutation(np.concatenate(parts)).astype(np.float32)


def leads(Y, factors, case):
    """How clearly a pursuit's atoms win: the least lead over the second, relative to the sample."""
    _, _, width, method = case
    D = dense(factors)
    least = np.full(len(Y), np.inf)
    for k, y in enumerate(Y.reshape(len(Y), -1).astype(np.float64)):
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


def residual_norms(Y, factors, X):
    flat = np.asarray(Y, np.float64).reshape(len(Y), -1)
    return np.linalg.norm(flat - X.astype(np.float64) @ dense(factors).T, axis=1)


def same_supports(A, B, Y):
    """Where codes use the same atoms, but for coefficients that are rounding."""
    least = 1e-5 * np.linalg.norm(Y.reshape(len(Y), -1), axis=1, keepdims=True)
    return ((np.abs(A) > least) == (np.abs(B) > least)).all(axis=1)


def tf32(x):
    """Numbers as the tensor cores are given them."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def projected(X, n, factor):
    """``Z = X Fᵀ`` as the kernels compute it, an atom after the other in single precision."""
    X, F = X.reshape(-1, n, n).astype(np.float64), factor.astype(np.float32).astype(np.float64)
    Z = np.zeros((len(X), n, len(F)), np.float32)
    for j in range(n):
        Z = (Z + X[:, :, j, None] * F[:, j]).astype(np.float32)
    return Z


def check_sums(sums, run, side, factor, rows):
    """Against sums in float64, of Z as it was rounded and of Z itself."""
    m, n, _, _ = run.case
    X = run.dense_codes[rows].reshape(-1, n, n)
    Y = run.Y[rows].astype(np.float64).reshape(-1, m, m)
    if side == "right":
        X, Y = X.transpose(0, 2, 1), Y.transpose(0, 2, 1)
    exact = X.astype(np.float64) @ factor.astype(np.float64).T
    rounded = tf32(projected(np.ascontiguousarray(X), n, factor)).astype(np.float64)
    for Z, tolerance in ((exact, 2e-3), (rounded, 1e-6)):
        P, C = np.einsum("kip,kjp->ij", Z, Z), np.einsum("kiq,kpq->ip", Z, Y)
        assert np.abs(sums.P - P).max() <= tolerance * np.abs(P).max()
        assert np.abs(sums.C - C).max() <= tolerance * np.abs(C).max()
    residual2, nonzeros = (run.arrays[name][rows] for name in ("residual2", "nonzeros"))
    counts = np.sum(Y**2), residual2.astype(np.float64).sum(), np.sum(X**2.0), nonzeros.sum()
    np.testing.assert_allclose(sums.counts, counts, rtol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_and_sums_agree_with_the_processor(build, rng, case):
    m, n, width, method = case
    factors = random_factors(rng, m, n)
    Y = all_kinds(rng, m, factors, 65 if m < 32 else 25)
    run = Run(build(case), case, Y, factors)
    sums = run.code()
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, method=method).toarray()
    size = np.linalg.norm(Y.reshape(len(Y), -1).astype(np.float64), axis=1)
    assert not run.sure[(size > 0) & (size < 1e-18)].any()
    assert run.sure[size == 0].all()
    assert run.sure.sum() > 0.6 * len(Y)

    clear = run.sure & (leads(Y, factors, case) > 3e-6)
    assert clear.sum() > 0.4 * len(Y)
    X = run.dense_codes
    assert same_supports(X, expected, Y)[clear].all()
    norms, reached = residual_norms(Y, factors, X), residual_norms(Y, factors, expected)
    same = run.sure & same_supports(X, expected, Y)
    np.testing.assert_allclose(norms[same], reached[same], rtol=1e-3, atol=1e-6 * size.max())
    assert (np.abs(X[same] - expected[same]).max(axis=1) <= 1e-3 * size[same]).all()
    given = np.sqrt(run.arrays["residual2"][run.sure].astype(np.float64))
    assert (np.abs(given - norms[run.sure]) <= 1e-3 * (norms + size)[run.sure]).all()
    np.testing.assert_allclose(run.arrays["energy"][run.sure], size[run.sure] ** 2, rtol=1e-6)

    check_sums(sums, run, "left", factors[1], run.sure)
    rows = np.flatnonzero(run.sure)
    again = run.sum(SUM_LEFT, factors[1], rows)
    check_sums(again, run, "left", factors[1], rows)
    moved = factors[0] * rng.uniform(0.5, 2.0, n).astype(np.float32)
    check_sums(run.sum(SUM_RIGHT, moved, rows), run, "right", moved, rows)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[3]], ids=str)
@pytest.mark.parametrize("each", [False, True])
def test_coding_stops_at_an_error_target(build, rng, case, each):
    m, n, width, method = case
    factors = random_factors(rng, m, n)
    Y = all_kinds(rng, m, factors, 13)
    tol = rng.uniform(0.3, 6.0, len(Y)).astype(np.float32) if each else 4.0
    run = Run(build(case), case, Y, factors, tol)
    sums = run.code()
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, tol=tol, method=method).toarray()
    clear = run.sure & (leads(Y, factors, case) > 3e-6)
    assert clear.sum() > 0.4 * len(Y)
    assert same_supports(run.dense_codes, expected, Y)[clear].all()
    assert len(np.unique(run.arrays["nonzeros"][clear])) > 2
    check_sums(sums, run, "left", factors[1], run.sure)


def test_what_single_precision_cannot_decide_is_left_to_double(build, rng):
    factors = random_factors(rng, 8, 16)
    Y = all_kinds(rng, 8, factors, 13)
    size = np.linalg.norm(Y.reshape(len(Y), -1), axis=1)
    run = Run(build(SMALL), SMALL, Y, factors, 1e-5 * size)
    sums = run.code()
    np.testing.assert_array_equal(run.sure, size == 0)
    for total in (sums.P, sums.C, sums.counts):
        assert not total.any()


def test_atoms_that_are_nearly_the_same_are_left_to_double(build, rng):
    case = CASES[1]
    factors = random_factors(rng, 8, 16)
    first, aside = np.linalg.qr(factors[0][:, [3, 7]])[0].T
    factors[0][:, 3], factors[0][:, 12] = first, first + 0.01 * aside
    # Its second part is in the direction in which the two differ: OLS takes both.
    y = np.outer(10.0 * first + 2.0 * aside, factors[1][:, 5])
    Y = np.stack([y, np.outer(factors[0][:, 1], factors[1][:, 2]), y]).astype(np.float32)
    run = Run(build(case), case, Y, factors)
    sums = run.code()
    np.testing.assert_array_equal(run.sure[[0, 2]], False)
    check_sums(sums, run, "left", factors[1], run.sure)


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_bad_samples_are_reported_and_contribute_nothing(build, rng, case):
    m, n, width, method = case
    factors = random_factors(rng, m, n)
    Y = rng.standard_normal((21, m, m)).astype(np.float32)
    bad = [3, 4, 13, 20]
    Y[20, 0, 0], Y[3, 2, 1], Y[13, 7, 7], Y[4] = np.nan, np.inf, -np.inf, 1e30
    run = Run(build(case), case, Y, factors)
    sums = run.code()
    assert run.arrays["first_bad"][0] == 1003
    assert not run.dense_codes[bad].any()
    assert (run.arrays["nonzeros"][bad] == 0).all()
    assert (run.arrays["residual2"][bad] == 0).all()
    assert not np.isfinite(run.arrays["energy"][bad]).any()
    good = np.delete(np.arange(len(Y)), bad)
    check_sums(sums, run, "left", factors[1], good)
    assert run.sure.all()
    check_sums(run.sum(SUM_RIGHT, factors[0]), run, "right", factors[0], good)
    expected = kl.sparse_code(Y[good], factors, n_nonzero_coefs=width, method=method).toarray()
    np.testing.assert_allclose(run.dense_codes[good], expected, atol=1e-4)


@pytest.mark.parametrize("case", [(16, 16, 12, "omp"), (32, 32, 8, "ols")], ids=str)
def test_of_equal_correlations_the_first_atom_wins(build, rng, case):
    # Entries of equal magnitude: with unit vectors for atoms, correlations are those exactly.
    m, _, width, _ = case
    Y = rng.choice(np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32), (11, m, m))
    run = Run(build(case), case, Y, [np.eye(m, dtype=np.float32)] * 2)
    run.code()
    assert run.sure.all()
    for y, x in zip(Y.reshape(len(Y), -1), run.dense_codes, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")[:width]
        kept = np.zeros(m * m)
        kept[order] = y[order]
        np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("case", [CASES[0], CASES[1]], ids=str)
def test_of_duplicate_atoms_only_the_first_is_used(build, rng, case):
    factors = random_factors(rng, 8, 16)
    factors[0][:, 13], factors[1][:, 9] = factors[0][:, 2], factors[1][:, 8]
    factors[1][:, 15] = factors[1][:, 0]
    run = Run(build(case), case, all_kinds(rng, 8, factors, 20), factors)
    run.code()
    X = run.dense_codes.reshape(-1, 16, 16)
    assert not X[:, 13].any()
    assert not X[:, :, [9, 15]].any()
    assert run.sure.sum() > 30


def test_codes_and_sums_are_of_the_factors_as_given(build, rng):
    factors = random_factors(rng, 8, 16)
    Y = rng.standard_normal((43, 8, 8)).astype(np.float32)
    lengths = [2.0 ** rng.integers(-3, 4, 16) for _ in range(2)]
    scaled = [factor * length for factor, length in zip(factors, lengths, strict=True)]
    unit, run = (Run(build(SMALL), SMALL, Y, given) for given in (factors, scaled))
    sums = unit.code(), run.code()
    np.testing.assert_allclose(run.dense_codes * np.kron(*lengths), unit.dense_codes, rtol=1e-5)
    np.testing.assert_allclose(sums[1].P * np.outer(lengths[0], lengths[0]), sums[0].P, atol=1e-4)
    np.testing.assert_allclose(sums[1].C * lengths[0][:, None], sums[0].C, atol=1e-4)
    assert run.sure.all()
    check = run.sum(SUM_LEFT, scaled[1])
    np.testing.assert_allclose(check.P, sums[1].P, rtol=2e-3, atol=2e-3 * np.abs(check.P).max())
    np.testing.assert_allclose(check.counts, sums[1].counts, rtol=1e-6)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_sums_have_the_same_bits_in_every_run(build, rng, case):
    factors = random_factors(rng, case[0], case[1])
    Y = all_kinds(rng, case[0], factors, 13)
    runs = [Run(build(case), case, Y, factors) for _ in range(2)]
    coded = [run.code() for run in runs]
    summed = [run.sum(SUM_RIGHT, factors[0], np.flatnonzero(run.sure)) for run in runs]
    for first, second in (coded, summed):
        for name, total in vars(first).items():
            np.testing.assert_array_equal(total, getattr(second, name))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocks_fit_a_multiprocessor(build, case):
    numbers = np.zeros(9, np.int32)
    build(case).needs(pointer(numbers))
    for warps, fixed, each in numbers.reshape(3, 3):
        assert warps >= 6
        assert fixed + warps * each <= 227 * 1024
