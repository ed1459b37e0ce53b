"""The fused kernels of graphics cards, run on the processor by tests/cuda_emulation.hpp.

They code tiles of 128 samples of 8 × 8 and add up moments at once; they must agree with
``sparse_code`` and with sums in float64.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kronlearn as kl
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, TASK, WORK, new_task
from reference import dense, refit_codes

HERE = Path(__file__).parent
KERNELS = Path(kl.__file__).parent / "cuda" / "kernels"
TILE = 128
NO_BAD_SAMPLE = 1 << 62

LAUNCHERS = """
#define KRONLEARN_WIDTH {width}
#define KRONLEARN_OLS {ols}
#include "{emulation}"
#include "{kernel}"

extern "C" void needs(int* needs) {{ emulation::launch(fused_needs, 1, 1, 0, needs); }}
extern "C" void code(unsigned grid, unsigned threads, unsigned shared_bytes,
                     const kronlearn::Task<float>* task, const float* tables, float* partial,
                     double* partial_counts) {{
  emulation::launch(code_and_sum, grid, threads, shared_bytes, *task, tables, partial,
                    partial_counts);
}}
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles a kernel for the processor, once for every number of nonzeros."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile kernels for the processor with")

    @cache
    def built(method: str, width: int) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp(f"{method}{width}")
        name = "threshold_fused" if method == "threshold" else "pursuit_pairs"
        source = LAUNCHERS.format(
            width=width,
            ols=int(method == "ols"),
            emulation=HERE / "cuda_emulation.hpp",
            kernel=KERNELS / f"{name}.cu",
        )
        (folder / "kernel.cpp").write_text(source)
        # Kernels are not written for strict aliasing, which CUDA does not assume either.
        options = ["-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
        command = [compiler, *options, "-pthread", "kernel.cpp", "-o", "kernel.so"]
        subprocess.run(command, cwd=folder, check=True)
        return ctypes.CDLL(folder / "kernel.so")

    return built


@dataclass
class Result:
    """What a kernel made of samples; ``sure`` are those that it coded itself."""

    X: np.ndarray
    nonzeros: np.ndarray
    residual2: np.ndarray
    energy: np.ndarray
    sure: np.ndarray
    first_bad: int
    xx: np.ndarray
    xy: np.ndarray
    counts: np.ndarray
    rounded: np.ndarray  # X as it is in the sums
    support: np.ndarray  # where X has entries, zero or not


def aligned(a: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 16 bytes, as memory on a graphics card does."""
    room = np.empty(a.nbytes + 16, np.uint8)
    first = -room.ctypes.data % 16
    copy = room[first : first + a.nbytes].view(a.dtype).reshape(a.shape)
    copy[...] = a
    return copy


def pointer(a: np.ndarray | None) -> Any:
    return None if a is None else ctypes.c_void_p(a.ctypes.data)


def needs(library):
    """Threads and bytes of shared memory per block, and blocks per multiprocessor."""
    numbers = np.zeros(3, np.int32)
    library.needs(pointer(numbers))
    return numbers.tolist()


def scale_of(Y):
    """A power of two: times it, no entry that is not far too large is above 1024."""
    largest = np.abs(Y[np.abs(Y) < 1e15], dtype=np.float64).max(initial=0.0)
    return 2.0 ** np.floor(np.log2(1024.0 / largest)) if largest else 1.0


def halves(X, scale):
    """Codes as the tensor cores are given them."""
    return (X * scale).astype(np.float32).astype(np.float16).astype(np.float64) / scale


def run(
    library,
    Y,
    factors,
    width,
    method="omp",
    *,
    tol=None,
    grid=2,
    codes=True,
    sums=True,
    scale=None,
    stopped=None,
    previous=None,
    work="fresh",
    half=-1,
    values=True,
):
    """Codes samples with a fused kernel, in blocks that take turns; ``previous`` are codes."""
    N, scale = len(Y), scale_of(Y) if scale is None else scale
    tables = Tables.of(factors)
    numbers = tables.numbers.astype(np.float32)
    samples = aligned(np.asarray(Y, np.float32).reshape(N, 64))
    index, value = np.full((N, width), 99, np.int32), np.full((N, width), 99, np.float32)
    nonzeros, residual2 = np.full(N, -1, np.int32), np.full(N, -1, np.float32)
    energy, first_bad = np.full(N, -1.0), np.array([NO_BAD_SAMPLE])
    doubtful, doubtful_count = np.zeros(N, np.int32), np.zeros(1, np.int32)
    if previous is not None:
        nonzeros[:] = (previous != 0).sum(axis=1)
        index[:] = np.argsort(previous == 0, axis=1, kind="stable")[:, :width]
    tols = np.asarray(tol, np.float32) if np.ndim(tol) else None
    given = {"samples": samples, "norms1": tables.norms[0], "norms2": tables.norms[1]}
    given |= {"doubtful": doubtful, "doubtful_count": doubtful_count, "first_bad": first_bad}
    if codes:
        given |= {"index": index, "value": value, "nonzeros": nonzeros}
        given |= {"residual2": residual2, "energy": energy}
    if not values:
        del given["value"]
    if tols is not None:
        given["tols"] = tols
    if stopped is not None:
        given["stopped"] = stopped
    task = new_task(
        shape=tables.shape,
        method=METHODS[method],
        work=WORK[work],
        half=half,
        width=width,
        count=N,
        tol=-1.0 if tol is None or tols is not None else tol,
        first=1000,
        scale=scale,
        **{name: array.ctypes.data for name, array in given.items()},
    )
    assert TASK.itemsize % 8 == 0
    parts = 1 if method == "threshold" else 2
    partial = np.full((grid, parts, 64, 64), np.nan, np.float32) if sums else None
    partial_counts = np.full((grid, 4), np.nan) if sums else None
    threads, shared_bytes, _ = needs(library)
    arrays = task, numbers, partial, partial_counts
    library.code(grid, threads, shared_bytes, *map(pointer, arrays))
    xx, xy, counts = np.zeros((64, 64)), np.zeros((64, 64)), np.zeros(4)
    if sums:
        norms = np.kron(*tables.norms)
        norms[norms == 0] = np.inf
        total = partial.astype(np.float64).sum(axis=0) / scale**2
        xy, counts = total[-1] / norms[:, None], partial_counts.sum(axis=0)
        xx = total[0] / np.outer(norms, norms) if parts == 2 else xx
    sure = np.ones(N, bool)
    sure[doubtful[: doubtful_count[0]]] = False
    X, supports = np.zeros((N, 64)), np.zeros((N, 64), bool)
    for k in np.flatnonzero(sure & (nonzeros >= 0)):
        support = index[k, : nonzeros[k]]
        assert (np.diff(support) > 0).all()
        assert not index[k, nonzeros[k] :].any()
        supports[k, support] = True
        if values:
            assert not value[k, nonzeros[k] :].any()
            X[k, support] = value[k, : nonzeros[k]]
    if codes and previous is None:
        assert (index[~sure] == 99).all()
        assert (nonzeros[~sure] == -1).all()
    report = nonzeros, residual2, energy, sure, int(first_bad[0])
    return Result(X, *report, xx, xy, counts, halves(X, scale), supports)


def general_factors(rng):
    """Two factors whose atoms are far from orthogonal."""
    factors = [np.eye(8) + 0.35 * rng.standard_normal((8, 8)) for _ in range(2)]
    return [(factor / np.linalg.norm(factor, axis=0)).astype(np.float32) for factor in factors]


def orthonormal_factors(rng):
    return [np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32) for _ in range(2)]


def all_kinds(rng, factors, n=40):
    """Smooth, white, exactly sparse, constant, zero and tiny samples."""
    grid = np.linspace(0.0, 1.0, 8)
    a, b, c, d = rng.uniform(-2.0, 2.0, (4, n, 1, 1))
    smooth = 100.0 + 20.0 * np.sin(2.0 * a * grid[:, None] + 3.0 * b * grid + c) + d * grid**2
    smooth += 0.5 * rng.standard_normal(smooth.shape)
    white = rng.standard_normal((n, 8, 8))
    sparse = np.zeros((n, 64))
    for code in sparse:
        code[rng.choice(64, 3, replace=False)] = rng.uniform(1.0, 3.0, 3)
    sparse = (sparse @ dense(factors).T).reshape(n, 8, 8)
    constant = np.full((2, 8, 8), [[[7.0]], [[-0.1]]])
    zero, tiny = np.zeros((2, 8, 8)), 1e-20 * rng.standard_normal((3, 8, 8))
    parts = [smooth, white, sparse, constant, zero, tiny]
    return rng.permutation(np.concatenate(parts)).astype(np.float32)


def gaps(Y, factors, width, method="omp"):
    """How clearly pursuit's atoms win, relative to the sample: the least lead over the second."""
    D = dense(factors)
    least = np.full(len(Y), np.inf)
    for k, y in enumerate(Y.reshape(len(Y), 64).astype(np.float64)):
        size, residual, Q, norm2 = np.linalg.norm(y), y, np.zeros((64, 0)), np.ones(64)
        while Q.shape[1] < width and np.linalg.norm(residual) > 1e-7 * size:
            strength = np.abs(D.T @ residual)
            if method == "ols":
                strength /= np.sqrt(np.maximum(norm2, 1e-5))
            second, first = np.sort(strength)[-2:]
            least[k] = min(least[k], (first - second - 1e-5 * first) / size)
            new = D[:, np.argmax(strength)]
            for _ in range(2):
                new = new - Q @ (Q.T @ new)
            Q = np.column_stack([Q, new / max(np.linalg.norm(new), 1e-12)])
            residual = residual - Q[:, -1] * (Q[:, -1] @ residual)
            norm2 = norm2 - (D.T @ Q[:, -1]) ** 2
    return least


def residual_norms(Y, factors, X):
    flat = np.asarray(Y, np.float64).reshape(len(Y), 64)
    return np.linalg.norm(flat - X @ dense(factors).T, axis=1)


def same_supports(A, B):
    return ((A != 0) == (B != 0)).all(axis=1)


def check_sums(result, Y):
    """Sums in float64 over the rounded codes, of samples that were coded and are finite."""
    X = result.rounded
    used = result.sure & np.isfinite(Y).all(axis=(1, 2))
    X, Y = X[used], Y[used].astype(np.float64).reshape(-1, 64)
    xy = X.T @ Y
    assert np.abs(result.xy - xy).max() <= 2e-6 * np.abs(xy).max()
    if result.xx.any():
        xx = X.T @ X
        assert np.abs(result.xx - xx).max() <= 2e-6 * np.abs(xx).max()
    residual2 = result.residual2[used].astype(np.float64).sum()
    counts = np.sum(Y**2), residual2, np.sum(X**2), result.support[used].sum()
    np.testing.assert_allclose(result.counts, counts, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "width"), [*(("omp", s) for s in (1, 4, 8, 12, 15, 16)), ("ols", 4), ("ols", 16)]
)
def test_pursuit_agrees_with_the_processor(build, rng, method, width):
    factors = general_factors(rng)
    Y = all_kinds(rng, factors)
    assert len(Y) % TILE
    result = run(build(method, width), Y, factors, width, method)
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, method=method).toarray()
    size = np.linalg.norm(Y.reshape(len(Y), 64).astype(np.float64), axis=1)
    sure = result.sure
    assert not sure[(size > 0) & (size < 1e-18)].any()
    # Of exactly sparse samples OLS leaves the choice of the atom after the last to rounding.
    assert sure.sum() > (0.9 if method == "omp" else 0.6) * len(Y) or width > 8
    assert (result.nonzeros[sure] <= width).all()

    clear = sure & (gaps(Y, factors, width, method) > 3e-6)
    assert clear.sum() > 0.6 * len(Y)
    assert same_supports(result.X[clear], expected[clear]).all()
    norms = residual_norms(Y, factors, result.X)
    reached = residual_norms(Y, factors, expected)
    same = sure & same_supports(result.X, expected)
    np.testing.assert_allclose(norms[same], reached[same], rtol=1e-3, atol=1e-6 * size.max())
    np.testing.assert_allclose(result.X[same], expected[same], atol=1e-4 * size.max())
    given = np.sqrt(result.residual2[sure].astype(np.float64))
    assert (np.abs(given - norms[sure]) <= 1e-3 * norms[sure] + 1e-6 * size[sure]).all()
    np.testing.assert_allclose(result.energy[sure], size[sure] ** 2, rtol=1e-6)
    check_sums(result, Y)


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 16), ("ols", 16)])
@pytest.mark.parametrize("each", [False, True])
def test_pursuit_stops_at_an_error_target(build, rng, method, width, each):
    factors = general_factors(rng)
    Y = all_kinds(rng, factors)
    tol = rng.uniform(0.3, 6.0, len(Y)).astype(np.float32) if each else 4.0
    result = run(build(method, width), Y, factors, width, method, tol=tol)
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, tol=tol, method=method).toarray()
    sure = result.sure & (gaps(Y, factors, width, method) > 3e-6)
    assert sure.sum() > 0.5 * len(Y)
    assert same_supports(result.X[sure], expected[sure]).all()
    assert len(np.unique(result.nonzeros[sure])) > 2
    check_sums(result, Y)


def test_pursuit_leaves_to_double_precision_what_single_cannot_decide(build, rng):
    factors = general_factors(rng)
    factors[0][:, 1] = factors[0][:, 0] + np.float32(1e-3) * factors[0][:, 2]
    factors[0][:, 1] /= np.linalg.norm(factors[0][:, 1])
    Y = all_kinds(rng, factors)
    size = np.linalg.norm(Y.reshape(len(Y), 64), axis=1)
    # A target that is out of single precision's reach, and one that is met to the last bit.
    out_of_reach = run(build("omp", 4), Y, factors, 4, tol=1e-5 * size)
    assert not out_of_reach.sure[size > 0].any()
    assert out_of_reach.sure[size == 0].all()
    assert not out_of_reach.X.any()
    assert not out_of_reach.xx.any()
    assert not out_of_reach.counts.any()
    # Two atoms that are nearly the same.
    result = run(build("omp", 16), Y, factors, 16)
    both = (result.X[:, :8] != 0) & (result.X[:, 8:16] != 0)
    assert not both[result.sure].any()
    assert not result.sure.all()
    check_sums(result, Y)


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 16), ("threshold", 16)])
def test_bad_samples_are_reported_and_contribute_nothing(build, rng, method, width):
    factors = orthonormal_factors(rng)
    Y = rng.standard_normal((150, 8, 8)).astype(np.float32)
    Y[140, 0, 0], Y[3, 2, 1], Y[131, 7, 7], Y[4] = np.nan, np.inf, -np.inf, 1e30
    result = run(build(method, width), Y, factors, width, method)
    assert result.first_bad == 1003
    bad = [3, 4, 131, 140]
    assert not result.X[bad].any()
    assert not np.isfinite(result.energy[bad]).any()
    assert (result.nonzeros[bad] == 0).all()
    assert (result.residual2[bad] == 0).all()
    good = np.delete(np.arange(150), bad)
    assert np.isfinite(result.X).all()
    check_sums(Result(**{**vars(result), "sure": result.sure & np.isin(np.arange(150), good)}), Y)
    expected = kl.sparse_code(Y[good], factors, n_nonzero_coefs=width, method=method).toarray()
    np.testing.assert_allclose(result.X[good], expected, atol=1e-5)


@pytest.mark.parametrize(("method", "width"), [("omp", 8), ("omp", 16), ("threshold", 8)])
def test_of_equal_correlations_the_first_atom_wins(build, rng, method, width):
    # Entries of equal magnitude: with unit vectors for atoms, correlations are those exactly.
    factors = [np.eye(8, dtype=np.float32)] * 2
    Y = rng.choice(np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32), (40, 8, 8))
    result = run(build(method, width), Y, factors, width, method)
    assert result.sure.all()
    for y, x in zip(Y.reshape(40, 64), result.X, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")[:width]
        kept = np.zeros(64)
        kept[order] = y[order]
        np.testing.assert_array_equal(x, kept)
    check_sums(result, Y)


@pytest.mark.parametrize("width", [4, 12])
def test_of_duplicate_atoms_only_the_first_is_used(build, rng, width):
    factors = general_factors(rng)
    factors[0][:, 5], factors[1][:, 7] = factors[0][:, 2], factors[1][:, 0]
    factors[1][:, 3] = 0  # and of none that is zero
    Y = all_kinds(rng, factors, n=30)
    result = run(build("omp", width), Y, factors, width)
    X = result.X.reshape(-1, 8, 8)
    assert not X[:, 5].any()
    assert not X[:, :, [3, 7]].any()
    assert np.isfinite(result.xx).all()
    assert result.sure.sum() > 60


def previous_codes(rng, Y, factors, width):
    """Supports of which some are better than a pursuit's, some worse, and some empty."""
    good = kl.sparse_code(Y, factors, n_nonzero_coefs=width, method="ols").toarray()
    X = np.zeros((len(Y), 64))
    for k, code in enumerate(X):
        support = np.flatnonzero(good[k])
        if k % 3 == 1:
            support = rng.choice(64, rng.integers(1, width + 1), replace=False)
        if k % 13 == 0 or not Y[k].any():
            support = support[:0]
        code[support] = 1.0
    return X


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 16), ("ols", 16)])
def test_previous_supports_are_kept_where_they_are_better(build, rng, method, width):
    factors = general_factors(rng)
    Y = all_kinds(rng, factors)
    previous = previous_codes(rng, Y, factors, width)
    result = run(
        build(method, width), Y, factors, width, method, previous=previous, work="keep better"
    )
    fresh = kl.sparse_code(Y, factors, n_nonzero_coefs=width, method=method).toarray()
    refitted = refit_codes(Y, factors, previous)
    size = np.linalg.norm(Y.reshape(len(Y), 64).astype(np.float64), axis=1)
    norms = [residual_norms(Y, factors, X) for X in (result.X, fresh, refitted)]
    clear = result.sure & (gaps(Y, factors, width, method) > 3e-6) & (size > 0)
    assert clear.sum() > 0.4 * len(Y)
    least = np.where(previous.any(axis=1), np.minimum(norms[1], norms[2]), norms[1])
    assert (norms[0] <= least + 1e-3 * norms[1] + 1e-6 * size)[clear].all()
    was_better = previous.any(axis=1) & (norms[2] < norms[1] - 1e-3 * size)
    was_worse = norms[2] > norms[1] + 1e-2 * size
    for kept, X in ((was_better, refitted), (was_worse, fresh)):
        rows = clear & kept
        assert rows.sum() > 5 or method == "ols"
        np.testing.assert_array_equal(result.support[rows], X[rows] != 0)
        np.testing.assert_allclose(result.X[rows], X[rows], atol=1e-3 * size.max())
    check_sums(result, Y)


@pytest.mark.parametrize("half", [0, 1])
def test_halves_take_turns(build, rng, half):
    factors = general_factors(rng)
    Y = all_kinds(rng, factors, n=140)
    width = 4
    previous = previous_codes(rng, Y, factors, width)
    given = {"previous": previous, "work": "keep better", "half": half}
    result = run(build("omp", width), Y, factors, width, **given)
    alone = run(build("omp", width), Y, factors, width, previous=previous, work="keep better")
    # Samples are numbered from 1000 on.
    turn = (1000 + np.arange(len(Y))) // 256 % 2 == half
    assert 100 < turn.sum() < len(Y) - 100
    sure = result.sure
    np.testing.assert_array_equal(result.X[turn & sure], alone.X[turn & sure])
    rest = sure & ~turn
    np.testing.assert_array_equal(result.support[rest], previous[rest] != 0)
    size = np.linalg.norm(Y.reshape(len(Y), 64), axis=1).max()
    refitted = refit_codes(Y[rest], factors, previous[rest])
    np.testing.assert_allclose(result.X[rest], refitted, atol=1e-4 * size)
    check_sums(result, Y)

    refits = run(build("omp", width), Y, factors, width, previous=previous, work="refit")
    np.testing.assert_array_equal(refits.X[rest], result.X[rest])
    # Where only supports are wanted.
    supports = run(build("omp", width), Y, factors, width, values=False, **given)
    np.testing.assert_array_equal(supports.support, result.support)
    np.testing.assert_array_equal(supports.xx, result.xx)


@pytest.mark.parametrize("width", [1, 3, 8, 16])
def test_thresholds_agree_with_the_processor(build, rng, width):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors)
    result = run(build("threshold", width), Y, factors, width, "threshold")
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, method="threshold").toarray()
    size = np.linalg.norm(Y.reshape(len(Y), 64).astype(np.float64), axis=1)
    sure = result.sure
    np.testing.assert_array_equal(sure, (size == 0) | (size > 1e-15))
    strengths = -np.sort(-np.abs(Y.reshape(len(Y), 64) @ dense(factors)), axis=1)
    clear = sure & (strengths[:, width - 1] - strengths[:, width] > 1e-6 * size)
    assert clear.sum() > 0.6 * len(Y)
    assert same_supports(result.X[clear], expected[clear]).all()
    norms = residual_norms(Y, factors, result.X)
    np.testing.assert_allclose(
        np.sqrt(result.residual2[sure]), norms[sure], rtol=2e-3, atol=1e-6 * size.max()
    )
    check_sums(result, Y)


def test_thresholds_stop_at_an_error_target(build, rng):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors)
    Y *= np.float32(1.0) / np.maximum(np.linalg.norm(Y, axis=(1, 2), keepdims=True), 1e-3)
    tol = rng.uniform(0.005, 1.1, len(Y)).astype(np.float32)
    result = run(build("threshold", 16), Y, factors, 16, "threshold", tol=tol)
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=16, tol=tol, method="threshold").toarray()
    strengths = -np.sort(-np.abs(Y.reshape(len(Y), 64).astype(np.float64) @ dense(factors)), axis=1)
    left = np.sqrt(np.maximum(np.sum(strengths**2, 1)[:, None] - np.cumsum(strengths**2, 1), 0))
    clear = result.sure & (np.abs(left[:, :16] - tol[:, None]) > 1e-4).all(axis=1)
    clear &= (strengths[:, :16] - strengths[:, 1:17]).min(axis=1) > 1e-6
    assert clear.sum() > 0.5 * len(Y)
    assert same_supports(result.X[clear], expected[clear]).all()
    assert len(np.unique(result.nonzeros)) > 8
    check_sums(result, Y)


@pytest.mark.parametrize("width", [1, 5, 16])
def test_thresholds_tell_apart_what_is_equal_in_half_precision(build, rng, width):
    factors = [np.eye(8, dtype=np.float32)] * 2
    Y = (1.0 + 1e-5 * rng.integers(0, 40, (60, 8, 8))) * rng.choice([-1.0, 1.0], (60, 8, 8))
    Y[::3] *= rng.uniform(0.5, 1.5, (20, 8, 8))
    Y[1] *= 1e-9  # no half is as small as this, beside the others
    Y = Y.astype(np.float32)
    result = run(build("threshold", width), Y, factors, width, "threshold")
    for y, x, residual2 in zip(Y.reshape(60, 64), result.X, result.residual2, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")
        np.testing.assert_array_equal(np.flatnonzero(x), np.sort(order[:width]))
        left = np.sum(y[order[width:]].astype(np.float64) ** 2)
        np.testing.assert_allclose(residual2, left, rtol=1e-5)
    check_sums(result, Y)


def test_thresholds_leave_to_double_precision_what_halves_cannot_hold(build, rng):
    factors = orthonormal_factors(rng)
    Y = rng.standard_normal((140, 8, 8)).astype(np.float32)
    Y[[5, 130]] *= 1e4
    result = run(build("threshold", 8), Y, factors, 8, "threshold", scale=256.0)
    np.testing.assert_array_equal(np.flatnonzero(~result.sure), [5, 130])
    check_sums(result, Y)


def test_nothing_is_done_once_an_iteration_went_wrong(build, rng):
    Y, factors = rng.standard_normal((10, 8, 8)), orthonormal_factors(rng)
    stopped = np.ones(1, np.int32)
    result = run(build("threshold", 8), Y, factors, 8, "threshold", sums=False, stopped=stopped)
    assert (result.nonzeros == -1).all()
    assert (result.energy == -1.0).all()


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 16), ("threshold", 8)])
def test_sums_are_the_same_bits_whatever_else_is_wanted(build, rng, method, width):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors, n=90)
    assert len(Y) > 2 * TILE
    results = [
        run(build(method, width), Y, factors, width, method, codes=codes, sums=sums, grid=grid)
        for codes, sums, grid in ((True, True, 2), (False, True, 2), (True, False, 1))
    ]
    np.testing.assert_array_equal(results[0].xx, results[1].xx)
    np.testing.assert_array_equal(results[0].xy, results[1].xy)
    np.testing.assert_array_equal(results[0].counts, results[1].counts)
    np.testing.assert_array_equal(results[0].X, results[2].X)
    np.testing.assert_array_equal(results[0].residual2, results[2].residual2)


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("threshold", 8)])
def test_codes_and_sums_are_of_the_factors_as_given(build, rng, method, width):
    factors = orthonormal_factors(rng)
    Y = rng.standard_normal((100, 8, 8)).astype(np.float32)
    lengths = [2.0 ** rng.integers(-3, 4, 8) for _ in range(2)]
    scaled = [factor * length for factor, length in zip(factors, lengths, strict=True)]
    unit = run(build(method, width), Y, factors, width, method)
    result = run(build(method, width), Y, scaled, width, method)
    norms = np.kron(*lengths)
    np.testing.assert_allclose(result.X * norms, unit.X, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.xy * norms[:, None], unit.xy, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(result.xx * np.outer(norms, norms), unit.xx, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("method", "width"), [("omp", 12), ("omp", 16), ("threshold", 16)])
def test_blocks_fit_a_multiprocessor(build, method, width):
    # 228 KB, of which every block takes 1 KB for itself.
    threads, shared_bytes, blocks = needs(build(method, width))
    assert blocks >= 2
    assert blocks * (shared_bytes + 1024) <= 228 * 1024
    assert blocks * threads <= 2048


@pytest.mark.parametrize("file", sorted(path.name for path in KERNELS.glob("*.cu")))
def test_kernels_compile(tmp_path, file):
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc to compile kernels with")
    command = [
        compiler,
        "-std=c++17",
        "-arch=sm_90",
        "-cubin",
        KERNELS / file,
        "-o",
        "kernel.cubin",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
