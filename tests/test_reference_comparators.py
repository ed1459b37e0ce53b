"""The references of the comparators have the properties that their papers prove."""

import numpy as np
import pytest

import reference
import reference_comparators as rc
import reference_comparators_sums as sums
from learning_problems import planted, random_terms

# These tests check the references, so they need not run with every change of the library.
pytestmark = pytest.mark.slow

SHAPES = [
    pytest.param((8,), (12,), id="one mode"),
    pytest.param((4, 5), (6, 5), id="two modes"),
    pytest.param((3, 2, 4), (4, 3, 4), id="three modes"),
]


def problem(rng, patch_shape, n_atoms, n_samples=80, s=3):
    """Return noisy samples, a dictionary other than theirs, and codes for it."""
    Y, factors = planted(rng, patch_shape, n_atoms, n_samples, s)
    return Y, factors, rc.code(Y, factors, s)


def unit_sum(terms):
    return [sums.unit_columns(sums.dense_sum(terms))]


# Separable dictionaries, atom by atom


def test_pair_aksvd_of_one_mode_is_aksvd(rng):
    Y, (D,), X = problem(rng, (8,), (12,))
    (new,), codes = rc.pair_aksvd_update(Y, [D], X)
    expected, expected_codes = rc.aksvd_update(Y, D, X)
    np.testing.assert_allclose(new, expected, atol=1e-12)
    np.testing.assert_allclose(codes, expected_codes, atol=1e-12)


def test_pair_aksvd_is_gauss_seidel_on_the_normal_equations(rng):
    Y, factors, X = problem(rng, (4, 5), (6, 5))
    new, _ = rc.pair_aksvd_update(Y, factors, X)
    D1, _ = factors
    P, C = reference.normal_equations(factors, *reference.moments(Y, X)[2:], mode=0)
    F = C[:, 0] - D1 @ P[:, 0] + P[0, 0] * D1[:, 0]
    np.testing.assert_allclose(new[0][:, 0], rc.canonical(F, None), atol=1e-12)


# SeDiL


def sedil_problem(rng, patch_shape, n_atoms, n_samples=40):
    """Return samples of norm 1, a point with nonzero codes, and weights of similar influence."""
    Y, factors, _ = problem(rng, patch_shape, n_atoms, n_samples)
    Y = Y / np.linalg.norm(rc.flat(Y), axis=1).reshape(-1, *[1] * len(patch_shape))
    X = rng.uniform(0.2, 1, (n_samples, np.prod(n_atoms)))
    X *= rng.choice([-1, 1], X.shape)
    return Y, [*factors, X], rc.SeDiLWeights(sparsity=0.5, coherence=0.3, sharpness=10.0)


def tangent(rng, point):
    """Return random directions, orthogonal to the columns of factors."""
    vectors = [rng.standard_normal(part.shape) for part in point]
    for D, V in zip(point[:-1], vectors[:-1], strict=True):
        V -= D * np.sum(D * V, axis=0)
    return vectors


def test_transport_preserves_inner_products_and_maps_velocities_to_velocities(rng):
    D = reference.random_factors(rng, (5,), (7,))[0]
    H, V, W = (tangent(rng, [D, D])[0] for _ in range(3))
    H[:, 3] = 0
    t = 0.7
    end = rc.geodesic(D, H, t)
    moved_v, moved_w = rc.transport(D, H, t, V), rc.transport(D, H, t, W)
    np.testing.assert_allclose(np.sum(moved_v * end, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.sum(moved_v * moved_w, axis=0), np.sum(V * W, axis=0), atol=1e-12)
    velocity = (rc.geodesic(D, H, t + 1e-5) - rc.geodesic(D, H, t - 1e-5)) / 2e-5
    np.testing.assert_allclose(rc.transport(D, H, t, H), velocity, atol=1e-8)


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_sedil_descends_in_the_non_monotone_sense(rng, patch_shape, n_atoms):
    Y, point, weights = sedil_problem(rng, patch_shape, n_atoms)
    state = rc.sedil_start(Y, point[:-1], weights)
    values = [rc.sedil_objective(Y, state.point, weights)]
    levels = [state.level]
    for _ in range(25):
        state = rc.sedil_iteration(Y, state, weights)
        values.append(rc.sedil_objective(Y, state.point, weights))
        levels.append(state.level)
        assert values[-1] < levels[-2]
        assert rc.inner(state.gradient, state.direction) < 0
    assert (np.diff(levels) < 0).all()
    assert values[-1] < 0.9 * values[0]
    for D in state.point[:-1]:
        np.testing.assert_allclose(np.linalg.norm(D, axis=0), 1, atol=1e-12)


# Sums of Kronecker products


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_sukro_with_one_term_is_the_separable_least_squares_sweep(rng, patch_shape, n_atoms):
    Y, factors, X = problem(rng, patch_shape, n_atoms)
    (term,), codes = sums.sukro_als_update(Y, [factors], X)
    expected, s_xx, _ = reference.least_squares_sweep(factors, *reference.moments(Y, X)[2:])
    for factor, wanted in zip(term, expected, strict=True):
        found = np.stack([rc.canonical(column, None) for column in factor.T], axis=1)
        np.testing.assert_allclose(found, wanted, atol=1e-8)
    np.testing.assert_allclose(np.abs(codes.T @ codes), np.abs(s_xx), atol=1e-7)


# TeFDiL


@pytest.mark.parametrize(
    ("patch_shape", "n_atoms", "n_terms"), [((3, 4), (3, 2), 8), ((2, 2, 2), (2, 2, 2), 16)]
)
def test_tefdil_of_full_rank_without_ridge_is_the_least_squares_dictionary(
    rng, patch_shape, n_atoms, n_terms
):
    Y, _, _ = problem(rng, patch_shape, n_atoms, n_samples=200)
    terms = random_terms(rng, patch_shape, n_atoms, n_terms)
    X = rc.code(Y, unit_sum(terms), 3)
    new, codes = sums.tefdil_update(Y, terms, X, ridge=0.0)
    expected = np.linalg.lstsq(X, rc.flat(Y), rcond=None)[0].T
    np.testing.assert_allclose(sums.dense_sum(new), expected, atol=1e-8)
    np.testing.assert_allclose(codes @ unit_sum(new)[0].T, X @ expected.T, atol=1e-8)


def test_tefdil_of_three_modes_recovers_a_kronecker_product(rng):
    factors = reference.random_factors(rng, (3, 2, 4), (3, 2, 3))
    X = rng.standard_normal((60, 18))
    Y = (X @ reference.dense(factors).T).reshape(60, 3, 2, 4)
    start = reference.random_factors(rng, (3, 2, 4), (3, 2, 3))
    new, codes = sums.tefdil_update(Y, [start], X, ridge=0.0)
    np.testing.assert_allclose(sums.dense_sum(new), reference.dense(factors), atol=1e-10)
    np.testing.assert_allclose(codes, X, atol=1e-9)


# SuKro and STARK with nuclear norms


def assert_subgradient(S, M, weight, rtol=1e-6):
    """Assert that S is a subgradient of ``weight·‖·‖_*`` at the matrix M."""
    assert np.linalg.norm(S, 2) <= weight * (1 + rtol)
    np.testing.assert_allclose(np.sum(S * M), weight * np.linalg.norm(M, "nuc"), rtol=rtol)


def test_sukro_with_a_penalty_ends_at_the_minimum(rng):
    Y, factors, X = problem(rng, (4, 5), (6, 5))
    alpha, u = 0.3, 10.0
    state, _ = sums.sukro_admm_update(
        Y, sums.sukro_admm_start(factors), X, (4, 5), (6, 5), alpha, u, 3000, 1e-12
    )
    weight = alpha * np.linalg.norm(rc.flat(Y), 2)
    assert_subgradient(u * state.Z, sums.rearrange(state.D, (4, 5), (6, 5)), weight)
    slope = (X @ state.D.T - rc.flat(Y)).T @ X
    np.testing.assert_allclose(slope, -u * sums.arrange(state.Z, (4, 5), (6, 5)), atol=1e-8)


def test_stark_of_two_modes_ends_where_sukro_with_twice_the_weight_ends(rng):
    Y, factors, X = problem(rng, (4, 5), (6, 5))
    weight, penalty = 5.0, 5.0
    stark, _ = sums.stark_update(
        Y, sums.stark_start(factors), X, (4, 5), (6, 5), weight, penalty, n_steps=300
    )
    alpha = 2 * weight / np.linalg.norm(rc.flat(Y), 2)
    sukro, _ = sums.sukro_admm_update(
        Y, sums.sukro_admm_start(factors), X, (4, 5), (6, 5), alpha, 2 * penalty, 300, 1e-12
    )
    np.testing.assert_allclose(stark.D, sukro.D, atol=1e-8)
    np.testing.assert_allclose(stark.W[0], stark.W[1], atol=1e-12)
    np.testing.assert_allclose(stark.A[0], -penalty * sukro.Z, atol=1e-6)


def test_stark_of_three_modes_ends_at_the_minimum(rng):
    patch_shape, n_atoms = (3, 2, 2), (3, 3, 2)
    Y, factors, X = problem(rng, patch_shape, n_atoms)
    weight = 2.0
    state, _ = sums.stark_update(
        Y, sums.stark_start(factors), X, patch_shape, n_atoms, weight, 5.0, n_steps=1000
    )
    T = sums.rearrange(state.D, patch_shape, n_atoms)[None]
    for mode, A in enumerate(state.A):
        assert_subgradient(rc.unfold(-A[None], mode)[0], rc.unfold(T, mode)[0], weight, 1e-4)
    slope = (X @ state.D.T - rc.flat(Y)).T @ X
    np.testing.assert_allclose(slope, sums.arrange(sum(state.A), patch_shape, n_atoms), atol=1e-6)
