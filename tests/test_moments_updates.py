"""Moments equal the reference's and add up; updates from moments equal the reference's."""

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.core import replacement, updates
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.structures import General, Orthonormal
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

SHAPES = [
    pytest.param((9,), (12,), id="one mode"),
    pytest.param((4, 5), (6, 5), id="two modes"),
    pytest.param((8, 8), (8, 8), id="two square modes"),
    pytest.param((2, 3, 4), (3, 4, 5), id="three modes"),
]


def problem(rng, patch_shape, n_atoms, n_samples=130):
    """Samples and factors that do not fit them."""
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, 3, noise=0.2)
    return Y, reference.random_factors(rng, patch_shape, n_atoms)


def sweep(factors, moments, structure):
    """Factors after one update of all modes, and the moments rescaled to fit them."""
    updated, scale = structure().update(kl.KroneckerDictionary(factors), moments)
    return updated.factors, moments.rescaled(scale)


def coded(Y, factors, n_jobs=1, block_size=32, sums="full", mode=-1):
    """The sums of a pass with the factors, and its codes as a dense array."""
    dictionary, coder = kl.KroneckerDictionary(factors), Coder("omp", 3)
    engine = Threads(ArraySource(Y, dictionary.patch_shape), n_jobs, block_size)
    task = Task(dictionary, coder, sums, mode)
    kind = Moments if mode < 0 else ModeMoments
    X = engine.codes(dictionary, coder).toarray().astype(np.float64)
    return kind.of_pass(task, engine.run(task)), X


def no_samples(patch_shape, n_atoms):
    """The moments of zero samples."""
    n, m = np.prod(n_atoms), np.prod(patch_shape)
    triangle = np.zeros(n * (n + 1) // 2)
    return Moments(patch_shape, n_atoms, 0.0, triangle, np.zeros((n, m)))


def assert_moments(moments, Y, X):
    """Assert that full moments are those of the samples and codes."""
    _, energy, s_xx, s_xy = reference.moments(Y, X)
    assert moments.energy == pytest.approx(energy, rel=1e-6 if Y.dtype == np.float32 else 1e-12)
    scale = np.abs(s_xx).max()
    np.testing.assert_allclose(moments.xx, s_xx, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(moments.xy, s_xy, rtol=0, atol=1e-12 * scale)


# Moments


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("instruction_set", kl.instruction_sets())
@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_moments_and_the_sums_of_every_mode_equal_the_reference(
    rng, patch_shape, n_atoms, instruction_set, dtype
):
    Y, factors = problem(rng, patch_shape, n_atoms)
    Y = Y.astype(dtype)
    with kl.use_instruction_set(instruction_set):
        moments, X = coded(Y, factors, n_jobs=2)
        assert_moments(moments, Y, X)
        for mode in range(len(patch_shape)):
            P, C = reference.normal_equations(factors, *reference.moments(Y, X)[2:], mode)
            summed, _ = coded(Y, factors, n_jobs=2, sums="mode", mode=mode)
            for sums in (summed, moments.mode([factor[None] for factor in factors], mode)):
                np.testing.assert_allclose(sums.p, P, rtol=0, atol=1e-12 * np.abs(P).max())
                np.testing.assert_allclose(sums.c, C.T, rtol=0, atol=1e-12 * np.abs(P).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("instruction_set", kl.instruction_sets())
@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_sums_for_procrustes_equal_the_reference(rng, patch_shape, n_atoms, instruction_set, dtype):
    Y, factors = problem(rng, patch_shape, n_atoms, n_samples=700)
    Y = Y.astype(dtype)
    tolerance = 3e-7 if dtype == np.float32 else 1e-12
    with kl.use_instruction_set(instruction_set):
        moments, X = coded(Y, factors, n_jobs=2, block_size=300, sums="xy")
    _, _, s_xx, s_xy = reference.moments(Y, X)
    # About a hundred samples at a time are summed in single precision, and these sums in double.
    np.testing.assert_allclose(moments.xy, s_xy, rtol=0, atol=tolerance * np.abs(s_xx).max())
    for mode in range(len(patch_shape)):
        with kl.use_instruction_set(instruction_set):
            sums, _ = coded(Y, factors, n_jobs=2, sums="mode-xy", mode=mode)
        P, C = reference.normal_equations(factors, s_xx, s_xy, mode)
        np.testing.assert_allclose(sums.c, C.T, rtol=0, atol=1e-12 * np.abs(P).max())
        assert sums.p is None


def test_moments_add_up(rng):
    Y, factors = problem(rng, (4, 5), (6, 5))
    whole, X = coded(Y, factors)
    total = coded(Y[:50], factors)[0] + coded(Y[50:], factors)[0]
    assert_moments(total, Y, X)
    assert np.trace(total.xx) == pytest.approx(np.sum(X**2))
    np.testing.assert_allclose(total.xx, whole.xx, rtol=0, atol=1e-12 * np.abs(whole.xx).max())


def test_moments_of_different_dictionaries_do_not_add_up():
    with pytest.raises(ValueError, match=r"\(4, 4\).*\(5, 4\)"):
        no_samples((3, 3), (4, 4)) + no_samples((3, 3), (5, 4))


def test_moments_times_a_number_are_scaled(rng):
    Y, factors = problem(rng, (4, 5), (6, 5))
    moments, X = coded(Y, factors)
    faded = moments * 0.25
    assert faded.energy == pytest.approx(np.sum(Y**2) / 4)
    assert np.trace(faded.xx) == pytest.approx(np.sum(X**2) / 4)
    np.testing.assert_array_equal(faded.xx, moments.xx / 4)
    np.testing.assert_array_equal(faded.xy, moments.xy / 4)


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_the_squared_error_follows_from_the_moments(rng, patch_shape, n_atoms):
    Y, factors = problem(rng, patch_shape, n_atoms)
    other = reference.random_factors(rng, patch_shape, n_atoms)
    moments, X = coded(Y, factors)
    for D in (factors, other):
        expected = np.sum(reference.residuals(Y, D, X) ** 2)
        assert moments.squared_error(kl.KroneckerDictionary(D)) == pytest.approx(
            expected, rel=1e-10
        )


# Updates


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_a_least_squares_sweep_equals_the_reference(rng, patch_shape, n_atoms):
    Y, factors = problem(rng, patch_shape, n_atoms)
    moments, X = coded(Y, factors)
    kept = [factor.copy() for factor in factors]
    expected, s_xx, s_xy = reference.least_squares_sweep(factors, *reference.moments(Y, X)[2:])
    found, rescaled = sweep(factors, moments, General)
    for factor, before in zip(factors, kept, strict=True):
        np.testing.assert_array_equal(factor, before)
    for factor, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-10)
    np.testing.assert_allclose(rescaled.xx, s_xx, rtol=0, atol=1e-9 * np.abs(s_xx).max())
    np.testing.assert_allclose(rescaled.xy, s_xy, rtol=0, atol=1e-9 * np.abs(s_xy).max())


@pytest.mark.parametrize("patch_shape", [(9,), (4, 5), (2, 3, 4)], ids=str)
def test_a_procrustes_sweep_equals_the_reference(rng, patch_shape):
    Y, _ = problem(rng, patch_shape, patch_shape)
    factors = reference.orthonormal_factors(rng, patch_shape)
    moments, X = coded(Y, factors)
    expected, _, _ = reference.procrustes_sweep(factors, *reference.moments(Y, X)[2:])
    found, _ = sweep(factors, moments, Orthonormal)
    for factor, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-10)


def test_unused_atoms_are_detected_and_stay_unchanged(rng):
    Y, factors = problem(rng, (4, 5), (6, 5))
    factors[0][:, 3] = factors[0][:, 1]  # a duplicate is never selected
    sums, X = coded(Y, factors, sums="mode", mode=0)
    assert not X.reshape(-1, 6, 5)[:, 3].any()
    assert np.diagonal(sums.p)[3] == 0.0
    moments = coded(Y, factors)[0]
    assert [atoms.tolist() for atoms in replacement.unused_by_mode(moments.used())] == [[3], []]
    (factor,), scale = updates.least_squares(factors[0][None], sums)
    largest = factors[0][np.abs(factors[0][:, 3]).argmax(), 3]
    np.testing.assert_allclose(factor[:, 3], np.sign(largest) * factors[0][:, 3], atol=1e-12)
    assert abs(scale[3]) == pytest.approx(1.0)


def test_unused_atoms_of_all_modes_are_replaced_by_the_worst_samples_in_order(rng):
    Y, factors = problem(rng, (4, 5), (6, 5))
    worst, unused = np.array([7, 3, 11, 2]), [np.array([2]), np.array([0, 4])]
    source, start = ArraySource(Y, (4, 5)), kl.KroneckerDictionary(factors)
    tol = rng.uniform(0.5, 2.0, len(Y))
    found, count = replacement.replace_unused(start, unused, worst, source, Coder("omp", 3, tol))
    assert count == 3
    codes = [reference.code(Y[k : k + 1], factors, "omp", 3, tol[k]) for k in worst]
    residuals = reference.residuals(Y[worst], factors, np.concatenate(codes)).reshape(-1, 4, 5)
    for (mode, atom), residual in zip([(0, 2), (1, 0), (1, 4)], residuals, strict=False):
        direction = np.linalg.svd(residual if mode == 0 else residual.T)[0][:, 0]
        assert abs(found.factors[mode][:, atom] @ direction) == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [0.0, 1e-6], ids=["exactly", "nearly"])
def test_the_scales_of_atoms_always_used_together_stay_small(rng, noise):
    factors = reference.random_factors(rng, (6,), (5,))
    X = np.zeros((40, 5))
    X[:, 0] = rng.standard_normal(40)
    X[:, 1] = 2.0 * X[:, 0] + noise * rng.standard_normal(40)
    X[:, 2:] = rng.standard_normal((40, 3))
    Y = rng.standard_normal((40, 6))
    P, C = X.T @ X, Y.T @ X
    sums = ModeMoments(P, C.T.copy())
    (factor,), scale = updates.least_squares(factors[0][None], sums)
    best = Y - X @ np.linalg.lstsq(X, Y, rcond=1e-5)[0]
    assert np.sum((Y - (X * scale) @ factor.T) ** 2) == pytest.approx(np.sum(best**2))
    assert np.all(np.abs(scale) < 100.0)


def test_zero_and_infinite_columns_are_taken_from_the_fallback(rng):
    columns, fallback = rng.standard_normal((4, 5)), reference.random_factors(rng, (4,), (5,))[0]
    columns[:, 1] = 0.0
    columns[2, 3] = np.inf
    columns *= [1.0, 1.0, 1e-200, 1.0, 1e200]  # their squares underflow and overflow
    units, scale = updates.canonical(columns, fallback)
    np.testing.assert_allclose(np.linalg.norm(units, axis=0), 1.0)
    np.testing.assert_allclose(units[:, [1, 3]], fallback[:, [1, 3]])
    np.testing.assert_allclose(scale[[1, 3]], 1.0)
    np.testing.assert_allclose((units * scale)[:, [0, 2, 4]], columns[:, [0, 2, 4]])


def test_moments_of_no_samples_change_only_signs_of_the_factors(rng):
    factors = reference.random_factors(rng, (4, 5), (6, 5))
    found, _ = sweep(factors, no_samples((4, 5), (6, 5)), General)
    for factor, start in zip(found, factors, strict=True):
        np.testing.assert_allclose(np.abs(factor), np.abs(start), atol=1e-12)
        assert np.all(factor.max(axis=0) >= -factor.min(axis=0))
