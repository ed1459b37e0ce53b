"""Properties that hold for codes of random shapes, sparsities and samples."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import kronlearn as kl
import reference


@st.composite
def problems(draw, methods=("omp", "ols", "threshold"), dtypes=(np.float64,), atoms_from=1):
    """Samples, factors, a method and a number of nonzeros."""
    patch_shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    method = draw(st.sampled_from(methods))
    dtype = draw(st.sampled_from(dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if method == "threshold":
        factors = reference.orthonormal_factors(rng, patch_shape, dtype)
    else:
        n_atoms = [draw(st.integers(atoms_from, 9)) for _ in patch_shape]
        factors = reference.random_factors(rng, patch_shape, n_atoms, dtype)
    n_samples = draw(st.integers(1, 20))
    Y = rng.standard_normal((n_samples, *patch_shape)).astype(dtype)
    n_codes = int(np.prod([factor.shape[1] for factor in factors]))
    return Y, factors, method, draw(st.integers(1, min(n_codes, 8)))


def norms(rows):
    return np.linalg.norm(np.reshape(rows, (len(rows), -1)).astype(np.float64), axis=1)


def errors_of(Y, factors, codes):
    return norms(reference.residuals(Y, factors, codes.toarray()))


@given(problems())
def test_more_nonzeros_extend_the_support(problem):
    Y, factors, method, s = problem
    fewer = kl.sparse_code(Y, factors, max(1, s - 1), method=method).toarray() != 0
    more = kl.sparse_code(Y, factors, s, method=method).toarray() != 0
    assert np.all(more | ~fewer)


@given(problems())
def test_the_residual_is_orthogonal_to_the_selected_atoms(problem):
    Y, factors, method, s = problem
    X = kl.sparse_code(Y, factors, s, method=method).toarray()
    products = reference.residuals(Y, factors, X) @ reference.dense(factors)
    assert np.all(np.abs(products[X != 0]) <= 1e-7 * norms(Y).max())


@given(problems(dtypes=(np.float64, np.float32)), st.integers(-20, 20))
def test_scaling_samples_by_a_power_of_two_scales_codes_to_the_last_bit(problem, exponent):
    Y, factors, method, s = problem
    codes = kl.sparse_code(Y, factors, s, method=method)
    scaled = kl.sparse_code(np.ldexp(Y, exponent), factors, s, method=method)
    np.testing.assert_array_equal(scaled.indices, codes.indices)
    np.testing.assert_array_equal(scaled.data, np.ldexp(codes.data, exponent))


@given(problems(), st.floats(0.0, 1.5))
def test_the_error_target_is_met_unless_all_atoms_together_miss_it(problem, fraction):
    Y, factors, method, _ = problem
    tol = fraction * norms(Y)
    codes = kl.sparse_code(Y, factors, tol=tol, method=method)
    errors = errors_of(Y, factors, codes)
    D = reference.dense(factors)
    best = Y.reshape(len(Y), -1)
    best = norms(best - best @ np.linalg.pinv(D.T) @ D.T)
    assert np.all(errors <= np.maximum(tol, best) + 1e-7 * norms(Y))
    assert np.all(np.diff(codes.indptr)[tol > norms(Y) * (1 + 1e-9)] == 0)


@given(problems(methods=("omp", "ols"), atoms_from=2))
def test_float32_codes_have_the_error_of_float64_codes(problem):
    Y, factors, method, s = problem
    s = min(s, int(np.prod(Y.shape[1:])) // 2)
    if s == 0:
        return
    double = errors_of(Y, factors, kl.sparse_code(Y, factors, s, method=method))
    single = kl.sparse_code(
        Y.astype(np.float32), [f.astype(np.float32) for f in factors], s, method=method
    )
    difference = np.abs(errors_of(Y, factors, single) - double)
    assert np.mean(difference <= 1e-3 * norms(Y)) >= 0.9
