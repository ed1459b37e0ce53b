"""The fused kernels of GPUs, run on the processor by tests/cuda_emulation.hpp.

They code tiles of 128 samples of 8 × 8 and add up moments at once; they must agree with
``sparse_code`` and with sums in float64.
"""

from __future__ import annotations

import numpy as np
import pytest

import kronlearn as kl
from fused_kernels import (
    Result,
    all_kinds,
    check_sums,
    gaps,
    general_factors,
    kernels,
    orthonormal_factors,
    residual_norms,
    run,
    same_supports,
)
from reference import dense

TILE = 128


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("method", "width"),
    [slow("omp", 1), ("omp", 4), ("omp", 15), slow("omp", 16), ("ols", 4), slow("ols", 16)],
)
def test_pursuit_agrees_with_the_processor(rng, method, width):
    factors = general_factors(rng)
    Y = all_kinds(rng, factors)
    assert len(Y) % TILE
    result = run(Y, factors, width, method)
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
    check_sums(result, Y)


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 15), slow("ols", 16)])
@pytest.mark.parametrize("each", [False, True])
def test_pursuit_stops_at_an_error_target(rng, method, width, each):
    factors = general_factors(rng)
    Y = all_kinds(rng, factors)
    tol = rng.uniform(0.3, 6.0, len(Y)).astype(np.float32) if each else 4.0
    result = run(Y, factors, width, method, tol=tol)
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, tol=tol, method=method).toarray()
    sure = result.sure & (gaps(Y, factors, width, method) > 3e-6)
    assert sure.sum() > 0.5 * len(Y)
    assert same_supports(result.X[sure], expected[sure]).all()
    assert len(np.unique(result.nonzeros[sure])) > 2
    check_sums(result, Y)


def test_pursuit_leaves_to_double_precision_what_single_cannot_decide(rng):
    factors = general_factors(rng)
    factors[0][:, 1] = factors[0][:, 0] + np.float32(1e-3) * factors[0][:, 2]
    factors[0][:, 1] /= np.linalg.norm(factors[0][:, 1])
    Y = all_kinds(rng, factors)
    size = np.linalg.norm(Y.reshape(len(Y), 64), axis=1)
    # A target that is out of single precision's reach, and one that is met to the last bit.
    out_of_reach = run(Y, factors, 4, tol=1e-5 * size)
    assert not out_of_reach.sure[size > 0].any()
    assert out_of_reach.sure[size == 0].all()
    assert not out_of_reach.X.any()
    assert not out_of_reach.xx.any()
    assert not out_of_reach.counts.any()
    # Two atoms that are nearly the same.
    result = run(Y, factors, 15)
    both = (result.X[:, :8] != 0) & (result.X[:, 8:16] != 0)
    assert not both[result.sure].any()
    assert not result.sure.all()
    check_sums(result, Y)
    # Where nobody asks for doubtful samples they have codes without the second one.
    shorter = run(Y, factors, 15, lists_doubtful=False)
    assert not ((shorter.X[:, :8] != 0) & (shorter.X[:, 8:16] != 0)).any()
    assert (shorter.nonzeros <= 15).all()
    assert (shorter.nonzeros < 15).any()
    check_sums(shorter, Y)


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 15), ("threshold", 16)])
def test_bad_samples_are_reported_and_contribute_nothing(rng, method, width):
    factors = orthonormal_factors(rng)
    Y = rng.standard_normal((150, 8, 8)).astype(np.float32)
    Y[140, 0, 0], Y[3, 2, 1], Y[131, 7, 7], Y[4] = np.nan, np.inf, -np.inf, 1e30
    result = run(Y, factors, width, method)
    assert result.first_bad == 1003
    bad = [3, 4, 131, 140]
    assert not result.X[bad].any()
    assert (result.nonzeros[bad] == 0).all()
    assert (result.residual2[bad] == 0).all()
    good = np.delete(np.arange(150), bad)
    assert np.isfinite(result.X).all()
    check_sums(Result(**{**vars(result), "sure": result.sure & np.isin(np.arange(150), good)}), Y)
    expected = kl.sparse_code(Y[good], factors, n_nonzero_coefs=width, method=method).toarray()
    np.testing.assert_allclose(result.X[good], expected, atol=1e-5)


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 15), ("threshold", 5)])
def test_of_equal_correlations_the_first_atom_wins(rng, method, width):
    # Entries of equal magnitude: with unit vectors for atoms, correlations are those exactly.
    factors = [np.eye(8, dtype=np.float32)] * 2
    Y = rng.choice(np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32), (40, 8, 8))
    result = run(Y, factors, width, method)
    assert result.sure.all()
    for y, x in zip(Y.reshape(40, 64), result.X, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")[:width]
        kept = np.zeros(64)
        kept[order] = y[order]
        np.testing.assert_array_equal(x, kept)
    check_sums(result, Y)


@pytest.mark.parametrize("width", [4, 15])
def test_of_duplicate_atoms_only_the_first_is_used(rng, width):
    factors = general_factors(rng)
    factors[0][:, 5], factors[1][:, 7] = factors[0][:, 2], factors[1][:, 0]
    factors[1][:, 3] = 0  # and of none that is zero
    Y = all_kinds(rng, factors, n=30)
    result = run(Y, factors, width)
    X = result.X.reshape(-1, 8, 8)
    assert not X[:, 5].any()
    assert not X[:, :, [3, 7]].any()
    assert np.isfinite(result.xx).all()
    assert result.sure.sum() > 60


@pytest.mark.parametrize("width", [slow(1), 5, 16])
def test_thresholds_agree_with_the_processor(rng, width):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors)
    result = run(Y, factors, width, "threshold")
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


def test_thresholds_stop_at_an_error_target(rng):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors)
    Y *= np.float32(1.0) / np.maximum(np.linalg.norm(Y, axis=(1, 2), keepdims=True), 1e-3)
    tol = rng.uniform(0.005, 1.1, len(Y)).astype(np.float32)
    result = run(Y, factors, 16, "threshold", tol=tol)
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=16, tol=tol, method="threshold").toarray()
    strengths = -np.sort(-np.abs(Y.reshape(len(Y), 64).astype(np.float64) @ dense(factors)), axis=1)
    left = np.sqrt(np.maximum(np.sum(strengths**2, 1)[:, None] - np.cumsum(strengths**2, 1), 0))
    clear = result.sure & (np.abs(left[:, :16] - tol[:, None]) > 1e-4).all(axis=1)
    clear &= (strengths[:, :16] - strengths[:, 1:17]).min(axis=1) > 1e-6
    assert clear.sum() > 0.5 * len(Y)
    assert same_supports(result.X[clear], expected[clear]).all()
    assert len(np.unique(result.nonzeros)) > 8
    check_sums(result, Y)


@pytest.mark.parametrize("width", [slow(1), 5, 16])
def test_thresholds_tell_apart_what_is_equal_in_half_precision(rng, width):
    factors = [np.eye(8, dtype=np.float32)] * 2
    Y = (1.0 + 1e-5 * rng.integers(0, 40, (60, 8, 8))) * rng.choice([-1.0, 1.0], (60, 8, 8))
    Y[::3] *= rng.uniform(0.5, 1.5, (20, 8, 8))
    Y[1] *= 1e-9  # no half is as small as this, beside the others
    Y = Y.astype(np.float32)
    result = run(Y, factors, width, "threshold")
    for y, x, residual2 in zip(Y.reshape(60, 64), result.X, result.residual2, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")
        np.testing.assert_array_equal(np.flatnonzero(x), np.sort(order[:width]))
        left = np.sum(y[order[width:]].astype(np.float64) ** 2)
        np.testing.assert_allclose(residual2, left, rtol=1e-5)
    check_sums(result, Y)


def test_thresholds_leave_to_double_precision_what_halves_cannot_hold(rng):
    factors = orthonormal_factors(rng)
    Y = rng.standard_normal((140, 8, 8)).astype(np.float32)
    Y[[5, 130]] *= 1e4
    result = run(Y, factors, 5, "threshold", scale=256.0)
    np.testing.assert_array_equal(np.flatnonzero(~result.sure), [5, 130])
    check_sums(result, Y)


def test_nothing_is_done_once_an_iteration_went_wrong(rng):
    Y, factors = rng.standard_normal((10, 8, 8)), orthonormal_factors(rng)
    stopped = np.ones(1, np.int32)
    result = run(Y, factors, 5, "threshold", sums=False, stopped=stopped)
    assert (result.nonzeros == -1).all()


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("omp", 15), ("threshold", 5)])
def test_sums_are_the_same_bits_whatever_else_is_wanted(rng, method, width):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors, n=90)
    assert len(Y) > 2 * TILE
    results = [
        run(Y, factors, width, method, codes=codes, sums=sums, grid=grid)
        for codes, sums, grid in ((True, True, 2), (False, True, 2), (True, False, 1))
    ]
    np.testing.assert_array_equal(results[0].xx, results[1].xx)
    np.testing.assert_array_equal(results[0].xy, results[1].xy)
    np.testing.assert_array_equal(results[0].counts, results[1].counts)
    np.testing.assert_array_equal(results[0].X, results[2].X)
    np.testing.assert_array_equal(results[0].residual2, results[2].residual2)


@pytest.mark.parametrize(("method", "width"), [("omp", 4), ("threshold", 5)])
def test_codes_and_sums_are_of_the_factors_as_given(rng, method, width):
    factors = orthonormal_factors(rng)
    Y = rng.standard_normal((100, 8, 8)).astype(np.float32)
    lengths = [2.0 ** rng.integers(-3, 4, 8) for _ in range(2)]
    scaled = [factor * length for factor, length in zip(factors, lengths, strict=True)]
    unit = run(Y, factors, width, method)
    result = run(Y, scaled, width, method)
    norms = np.kron(*lengths)
    np.testing.assert_allclose(result.X * norms, unit.X, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.xy * norms[:, None], unit.xy, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(result.xx * np.outer(norms, norms), unit.xx, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("method", "width"), [("omp", 15), slow("omp", 16), ("threshold", 16)])
def test_blocks_fit_a_multiprocessor(method, width):
    # 228 KB, of which every block takes 1 KB for itself.
    made = kernels(method, width)
    blocks = made.most_blocks
    assert blocks >= 2
    assert blocks * (made.shared_bytes + 1024) <= 228 * 1024
    assert blocks * made.threads <= 2048
