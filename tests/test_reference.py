"""The NumPy reference agrees with scikit-learn, brute force and textbook formulas."""

from itertools import combinations, product

import numpy as np
import pytest
from sklearn.linear_model import orthogonal_mp

import reference

SHAPES = [
    pytest.param((12,), (20,), id="one mode"),
    pytest.param((4, 5), (6, 5), id="two modes"),
    pytest.param((3, 2, 4), (4, 3, 4), id="three modes"),
]


def relative_error(value, expected):
    return np.linalg.norm(value - expected) / np.linalg.norm(expected)


def least_squares_error(y, D, support):
    coefficients = np.linalg.lstsq(D[:, support], y, rcond=None)[0]
    return np.linalg.norm(y - D[:, support] @ coefficients)


def random_moments(rng, factors, n_samples=60, n_nonzero_coefs=3):
    """Samples, sparse codes from other factors, these factors, and the moments."""
    Y = reference.sparse_samples(rng, factors, n_samples, n_nonzero_coefs, noise=0.3)
    other = reference.random_factors(
        rng, [f.shape[0] for f in factors], [f.shape[1] for f in factors]
    )
    X = reference.code(Y, other, "omp", n_nonzero_coefs)
    return Y, X, other, *reference.moments(Y, X)[1:]


def test_the_dense_dictionary_of_three_factors_multiplies_every_mode(rng):
    D1, D2, D3 = reference.random_factors(rng, (2, 3, 4), (3, 4, 5))
    X = rng.standard_normal((3, 4, 5))
    Y = (reference.dense([D1, D2, D3]) @ X.ravel()).reshape(2, 3, 4)
    np.testing.assert_allclose(Y, np.einsum("ua,vb,wc,abc->uvw", D1, D2, D3, X), atol=1e-12)


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_omp_with_a_tolerance_agrees_with_scikit_learn(rng, patch_shape, n_atoms):
    factors = reference.random_factors(rng, patch_shape, n_atoms)
    Y = rng.standard_normal((20, *patch_shape))
    tol = 0.5 * np.sqrt(np.prod(patch_shape))
    expected = orthogonal_mp(reference.dense(factors), Y.reshape(20, -1).T, tol=tol**2).T
    np.testing.assert_allclose(reference.code(Y, factors, "omp", tol=tol), expected, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("method", ["omp", "ols"])
def test_every_step_of_a_pursuit_selects_the_atom_that_brute_force_finds(rng, method, weighted):
    factors = reference.random_factors(rng, (3, 4), (5, 4))
    root = np.sqrt(rng.uniform(0.0, 2.0, 12)) if weighted else np.ones(12)
    D = root[:, None] * reference.dense(factors)
    for y in rng.standard_normal((8, 12)):
        support, _, _ = getattr(reference, method)(y, factors, 5, None, root**2)
        for step, selected in enumerate(support):
            before = support[:step]
            residual = reference.refit(y, factors, before, root**2)[1]
            if method == "ols":
                left = [least_squares_error(root * y, D, [*before, p]) for p in range(D.shape[1])]
                assert left[selected] == pytest.approx(min(left), rel=1e-12)
            else:
                scores = np.abs(D.T @ residual) / np.linalg.norm(D, axis=0)
                assert selected == np.argmax(scores)


def test_the_best_exchange_is_made_first(rng):
    factors = reference.random_factors(rng, (3, 4), (5, 4))
    D = reference.dense(factors)
    for y in rng.standard_normal((20, 12)):
        support = sorted(reference.omp(y, factors, 3)[0])
        error = least_squares_error(y, D, support) ** 2
        others = [[*support[:i], *support[i + 1 :], new] for new, i in product(range(20), range(3))]
        best = min(others, key=lambda other: least_squares_error(y, D, other))
        exchanged = reference._after_the_best_exchange(D, y, support, error)
        if exchanged is None:
            assert least_squares_error(y, D, best) ** 2 >= error * (1 - 1e-9)
        else:
            assert exchanged == best


def test_exchanges_end_as_soon_as_the_tolerance_is_met(rng):
    factors = reference.random_factors(rng, (3, 4), (6, 7))
    for y in rng.standard_normal((30, 12)):
        capped = reference.ols(y, factors, 3)
        tol = np.linalg.norm(capped[2]) * 0.999
        support, _, residual = reference.exchange(y, factors, 3, tol)
        further = reference.exchange(y, factors, 3)
        if np.linalg.norm(further[2]) <= tol:
            assert np.linalg.norm(residual) <= tol
        else:
            assert sorted(support) == sorted(further[0])


@pytest.mark.parametrize("n", [1, 3])
def test_exchanges_end_when_gains_are_rounding_errors(rng, n):
    factors = [reference.random_factors(rng, (29,), (n,))[0]]
    support = reference.exchange(rng.standard_normal(29), factors, n)[0]
    assert sorted(support) == list(range(n))


def test_thresholding_finds_the_best_support_for_orthonormal_factors(rng):
    factors = reference.orthonormal_factors(rng, (2, 3))
    D = reference.dense(factors)
    for y in rng.standard_normal((10, 6)):
        support, _, residual = reference.threshold(y, factors, 3)
        errors = [least_squares_error(y, D, list(s)) for s in combinations(range(6), 3)]
        assert np.linalg.norm(residual) == pytest.approx(min(errors))
        assert len(support) == 3


def test_the_normal_equations_of_two_modes_are_those_of_the_paper(rng):
    factors = reference.random_factors(rng, (3, 4), (5, 6))
    Y, X, (D1, D2), _, s_xx, s_xy = random_moments(rng, factors)
    X = X.reshape(-1, 5, 6)
    P, C = reference.normal_equations([D1, D2], s_xx, s_xy, 0)
    M, S = reference.normal_equations([D1, D2], s_xx, s_xy, 1)
    np.testing.assert_allclose(P, sum(x @ D2.T @ D2 @ x.T for x in X))
    np.testing.assert_allclose(C, sum(y @ D2 @ x.T for x, y in zip(X, Y, strict=True)))
    np.testing.assert_allclose(M, sum(x.T @ D1.T @ D1 @ x for x in X))
    np.testing.assert_allclose(S, sum(y.T @ D1 @ x for x, y in zip(X, Y, strict=True)))


def test_a_sweep_over_one_mode_is_the_method_of_optimal_directions(rng):
    factors = reference.random_factors(rng, (6,), (8,))
    Y, X, other, _, s_xx, s_xy = random_moments(rng, factors)
    D = Y.T @ X @ np.linalg.inv(X.T @ X)
    D /= np.linalg.norm(D, axis=0) * np.sign(D[np.abs(D).argmax(axis=0), range(8)])
    np.testing.assert_allclose(reference.least_squares_sweep(other, s_xx, s_xy)[0][0], D)


def test_a_procrustes_sweep_finds_a_planted_rotation(rng):
    D1, D2 = reference.orthonormal_factors(rng, (4, 5))
    X = rng.standard_normal((40, 20))
    Y = (X @ reference.dense([D1, D2]).T).reshape(-1, 4, 5)
    start = reference.orthonormal_factors(rng, (4, 5))[0]
    found = reference.procrustes_sweep([start, D2], *reference.moments(Y, X)[2:])[0]
    np.testing.assert_allclose(found[0], D1, atol=1e-10)
    np.testing.assert_allclose(found[1], D2, atol=1e-10)
