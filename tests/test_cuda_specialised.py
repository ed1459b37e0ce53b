"""The specialised kernels, emulated on the processor by tests/cuda_emulation.hpp.

They code samples and add up moments in one go: full moments for 8 × 8 atoms, those of one mode for
16 × 16 and 32 × 32 atoms. They must agree with ``sparse_code`` and with sums in float64.
"""

import numpy as np
import pytest

from reference import dense
from specialised_kernels import (
    UNTOUCHED,
    Run,
    all_kinds,
    coded_by_processor,
    general_factors,
    is_tiled,
    kernels,
    leads,
    orthonormal_factors,
    residual_norms,
    same_supports,
    sizes_of,
)


def slow(*case):
    return pytest.param(case, marks=pytest.mark.slow)


OMP, LONG, OLS = (8, 8, 4, "omp"), (8, 8, 15, "omp"), (8, 8, 4, "ols")
FEW, MOST = (8, 8, 5, "threshold"), (8, 8, 16, "threshold")
SMALL, SMALL_OLS, LARGE = (8, 16, 6, "omp"), (8, 16, 5, "ols"), (32, 32, 8, "ols")
MIDDLE, WIDE, LONGEST = slow(16, 16, 12, "omp"), slow(16, 32, 16, "omp"), slow(8, 8, 16, "ols")
MORE = [slow(8, 8, 1, "omp"), slow(8, 8, 16, "omp"), slow(8, 8, 1, "threshold")]
CASES = [OMP, LONG, OLS, FEW, MOST, SMALL, SMALL_OLS, LARGE, MIDDLE, WIDE, LONGEST, *MORE]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_and_sums_agree_with_the_processor(rng, case):
    _, n, width, method = case
    factors = general_factors(rng, case)
    Y = all_kinds(rng, factors, 40 if is_tiled(case) else 65 if n == 16 else 9)
    run, expected, size = Run(case, Y, factors), coded_by_processor(Y, factors, case), sizes_of(Y)
    assert not run.sure[(size > 0) & (size < 1e-18)].any()
    assert run.sure[size == 0].all()
    assert (run.nonzeros[run.sure] <= width).all()
    # For exactly sparse samples, rounding decides which atom OLS selects after the last one.
    most = {"omp": 0.9, "ols": 0.6, "threshold": 0.95}[method]
    assert run.sure.sum() > (most if width < 8 else 0.5) * len(Y)
    clear = run.sure & (leads(Y, factors, case) > 3e-6)
    assert clear.sum() > (0.6 if is_tiled(case) else 0.4) * len(Y)
    X = run.dense
    assert same_supports(X, expected, Y)[clear].all()
    norms, reached = residual_norms(Y, factors, X), residual_norms(Y, factors, expected)
    same = run.sure & same_supports(X, expected, Y)
    np.testing.assert_allclose(norms[same], reached[same], rtol=1e-3, atol=1e-6 * size.max())
    assert (np.abs(X[same] - expected[same]).max(axis=1) <= 1e-3 * size[same]).all()
    given = np.sqrt(run.residual2[run.sure].astype(np.float64))
    assert (np.abs(given - norms[run.sure]) <= (1e-3 * norms + 1e-6 * size.max())[run.sure]).all()
    run.check_sums()
    if not is_tiled(case):
        run.check_right_sums(factors[0] * rng.uniform(0.5, 2.0, n).astype(np.float32))


@pytest.mark.parametrize("case", [OMP, LONG, SMALL, SMALL_OLS, WIDE, LONGEST], ids=str)
@pytest.mark.parametrize("each", [False, True])
def test_pursuit_stops_at_an_error_target(rng, case, each):
    factors = general_factors(rng, case)
    Y = all_kinds(rng, factors, 40 if is_tiled(case) else 13)
    tol = rng.uniform(0.3, 6.0, len(Y)).astype(np.float32) if each else 4.0
    run = Run(case, Y, factors, tol)
    clear = run.sure & (leads(Y, factors, case) > 3e-6)
    assert clear.sum() > 0.4 * len(Y)
    expected = coded_by_processor(Y, factors, case, tol)
    assert same_supports(run.dense, expected, Y)[clear].all()
    assert len(np.unique(run.nonzeros[clear])) > 2
    run.check_sums()


def test_thresholds_stop_at_an_error_target(rng):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors, 40)
    Y *= np.float32(1.0) / np.maximum(np.linalg.norm(Y, axis=(1, 2), keepdims=True), 1e-3)
    tol = rng.uniform(0.005, 1.1, len(Y)).astype(np.float32)
    run = Run(MOST, Y, factors, tol)
    expected = coded_by_processor(Y, factors, MOST, tol)
    strengths = -np.sort(-np.abs(Y.reshape(len(Y), 64).astype(np.float64) @ dense(factors)), axis=1)
    left = np.sqrt(np.maximum(np.sum(strengths**2, 1)[:, None] - np.cumsum(strengths**2, 1), 0))
    clear = run.sure & (np.abs(left[:, :16] - tol[:, None]) > 1e-4).all(axis=1)
    clear &= (strengths[:, :16] - strengths[:, 1:17]).min(axis=1) > 1e-6
    assert clear.sum() > 0.5 * len(Y)
    assert same_supports(run.dense, expected, Y)[clear].all()
    assert len(np.unique(run.nonzeros[run.sure])) > 8
    run.check_sums()


@pytest.mark.parametrize("case", [OMP, SMALL], ids=str)
def test_targets_out_of_the_reach_of_single_precision_are_left_to_double(rng, case):
    factors = general_factors(rng, case)
    Y = all_kinds(rng, factors, 13)
    run = Run(case, Y, factors, 1e-5 * sizes_of(Y))
    np.testing.assert_array_equal(run.sure, sizes_of(Y) == 0)
    for total in (*run.sums, run.counts):
        assert not total.any()


@pytest.mark.parametrize("case", [OLS, SMALL_OLS], ids=str)
@pytest.mark.parametrize("listed", [True, False])
def test_atoms_that_are_nearly_the_same_are_left_to_double_or_left_out(rng, case, listed):
    factors = general_factors(rng, case)
    first, aside = np.linalg.qr(rng.standard_normal((8, 2)))[0].T
    factors[0][:, 3], factors[0][:, 7] = first, np.cos(0.01) * first + np.sin(0.01) * aside
    # The second part of y is in the direction in which the two atoms differ: OLS selects both.
    y = np.outer(10.0 * first + 2.0 * aside, factors[1][:, 5])
    Y = np.stack([y, np.outer(factors[0][:, 1], factors[1][:, 2]), y]).astype(np.float32)
    run = Run(case, Y, factors, lists_doubtful=listed)
    np.testing.assert_array_equal(run.sure[[0, 2]], not listed)
    run.check_sums()
    if not listed:
        np.testing.assert_array_equal(run.nonzeros[[0, 2]], 1)
        assert (run.residual2[[0, 2]] > 3).all()


def test_thresholds_leave_samples_that_halves_cannot_hold_to_double_precision(rng):
    Y = rng.standard_normal((140, 8, 8)).astype(np.float32)
    Y[[5, 130]] *= 1e4
    run = Run(FEW, Y, orthonormal_factors(rng), scale=256.0)
    np.testing.assert_array_equal(np.flatnonzero(~run.sure), [5, 130])
    run.check_sums()


@pytest.mark.parametrize("case", [OMP, LONG, MOST, SMALL, LARGE], ids=str)
def test_bad_samples_are_reported_and_contribute_nothing(rng, case):
    m, tiled = case[0], is_tiled(case)
    factors = orthonormal_factors(rng) if tiled else general_factors(rng, case)
    Y = rng.standard_normal((150 if tiled else 21, m, m)).astype(np.float32)
    bad = [3, 4, 13, len(Y) - 1]
    Y[-1, 0, 0], Y[3, 2, 1], Y[13, 7, 7], Y[4] = np.nan, np.inf, -np.inf, 1e30
    run = Run(case, Y, factors)
    assert run.arrays["first_bad"][0] == 1003
    assert not run.dense[bad].any()
    assert (run.nonzeros[bad] == 0).all()
    assert (run.residual2[bad] == 0).all()
    good = run.sure & ~np.isin(np.arange(len(Y)), bad)
    run.check_sums(good)
    if not tiled:
        run.check_right_sums(factors[0], good)
    expected = coded_by_processor(Y[good], factors, case)
    np.testing.assert_allclose(run.dense[good], expected, atol=1e-4)


@pytest.mark.parametrize("case", [OMP, LONG, FEW, LARGE, MIDDLE], ids=str)
def test_of_equal_correlations_the_first_atom_wins(rng, case):
    # With unit vectors as atoms, correlations are exactly the entries, many of equal magnitude.
    m, _, width, _ = case
    Y = rng.choice(np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32), (40 if m == 8 else 11, m, m))
    run = Run(case, Y, [np.eye(m, dtype=np.float32)] * 2)
    assert run.sure.all()
    for y, x in zip(Y.reshape(len(Y), -1), run.dense, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")[:width]
        kept = np.zeros(m * m)
        kept[order] = y[order]
        np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("case", [OMP, LONG, SMALL, SMALL_OLS], ids=str)
def test_of_duplicate_atoms_only_the_first_is_used_and_none_that_is_zero(rng, case):
    n, factors = case[1], general_factors(rng, case)
    factors[0][:, n - 3], factors[1][:, n - 1] = factors[0][:, 2], factors[1][:, 0]
    factors[1][:, 3] = 0
    run = Run(case, all_kinds(rng, factors, 25), factors)
    X = run.dense.reshape(-1, n, n)
    assert not X[:, n - 3].any()
    assert not X[:, :, [3, n - 1]].any()
    assert np.isfinite(run.sums[0]).all()
    assert run.sure.sum() > 30


@pytest.mark.parametrize("case", [slow(8, 8, 1, "threshold"), FEW, MOST], ids=str)
def test_thresholds_distinguish_magnitudes_that_are_equal_in_half_precision(rng, case):
    width = case[2]
    Y = (1.0 + 1e-5 * rng.integers(0, 40, (60, 8, 8))) * rng.choice([-1.0, 1.0], (60, 8, 8))
    Y[::3] *= rng.uniform(0.5, 1.5, (20, 8, 8))
    Y[1] *= 1e-9  # underflows in half precision, relative to the others
    Y = Y.astype(np.float32)
    run = Run(case, Y, [np.eye(8, dtype=np.float32)] * 2)
    for y, x, residual2 in zip(Y.reshape(60, 64), run.dense, run.residual2, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")
        np.testing.assert_array_equal(np.flatnonzero(x), np.sort(order[:width]))
        left = np.sum(y[order[width:]].astype(np.float64) ** 2)
        np.testing.assert_allclose(residual2, left, rtol=1e-5)
    run.check_sums()


@pytest.mark.parametrize("case", [FEW, SMALL], ids=str)
def test_kernels_do_nothing_after_a_failed_iteration(rng, case):
    factors = general_factors(rng, case)
    run = Run(case, all_kinds(rng, factors, 13), factors, stopped=True)
    assert np.isnan(run.partial).all()
    assert np.isnan(run.counts).all()
    for name in ("index", "value", "nonzeros", "residual2"):
        assert (run.arrays[name] == UNTOUCHED).all()
    if not is_tiled(case):
        assert np.isnan(run.sums_right(factors[0])[0]).all()


@pytest.mark.parametrize("case", [OMP, LONG, FEW], ids=str)
def test_codes_and_sums_have_the_same_bits_whatever_else_is_wanted(rng, case):
    factors = orthonormal_factors(rng)
    Y = all_kinds(rng, factors, 90)
    both, summed, coded = (
        Run(case, Y, factors, **left_out) for left_out in ({}, {"codes": False}, {"summed": False})
    )
    np.testing.assert_array_equal(both.partial, summed.partial)
    np.testing.assert_array_equal(both.counts, summed.counts)
    np.testing.assert_array_equal(both.dense, coded.dense)
    np.testing.assert_array_equal(both.residual2, coded.residual2)


@pytest.mark.parametrize("case", [OMP, FEW, SMALL], ids=str)
def test_codes_and_sums_are_of_the_factors_as_given(rng, case):
    n, factors = case[1], general_factors(rng, case)
    Y = rng.standard_normal((100, 8, 8)).astype(np.float32)
    lengths = [2.0 ** rng.integers(-3, 4, n) for _ in range(2)]
    scaled = [factor * length for factor, length in zip(factors, lengths, strict=True)]
    unit, run = Run(case, Y, factors), Run(case, Y, scaled)
    np.testing.assert_allclose(run.dense * np.kron(*lengths), unit.dense, rtol=1e-5, atol=1e-6)
    norms = np.kron(*lengths) if is_tiled(case) else lengths[0]
    for found, expected, each in zip(run.sums, unit.sums, (norms, 1.0), strict=True):
        np.testing.assert_allclose(found * norms[:, None] * each, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocks_fit_a_multiprocessor(case):
    made = kernels(case)
    if is_tiled(case):
        # A multiprocessor has 228 KB, of which the system takes 1 KB per block.
        assert made.most_blocks >= 2
        assert made.most_blocks * (made.shared_bytes + 1024) <= 228 * 1024
        assert made.most_blocks * made.threads <= 2048
        return
    for warps, fixed, each in made.needs:
        assert warps >= 6
        assert fixed + warps * each <= 227 * 1024
