"""Codes are accurate, and targets met, where rounding or dependent atoms make it hard."""

from functools import cache

import numpy as np
import pytest

import kronlearn as kl
import reference
from coding_problems import METHODS, PURSUITS, both_dtypes, cast, problem, with_or_without_weights
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource
from learning_problems import smooth_samples


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("fraction", [0.1, 0.001])
@pytest.mark.parametrize("method", METHODS)
def test_small_tolerances_are_met_in_float32(rng, method, fraction):
    if method == "threshold":
        factors = reference.orthonormal_factors(rng, (8, 8))
    else:
        factors = reference.dct_factors((16, 16), (32, 32))
    n_samples = 2 if method == "exchange" else 50  # exchanges of many atoms are slow
    Y = smooth_samples(rng, n_samples, [factor.shape[0] for factor in factors])
    tol = fraction * np.linalg.norm(Y.reshape(n_samples, -1), axis=1)
    codes = kl.sparse_code(Y.astype(np.float32), cast(factors, np.float32), tol=tol, method=method)
    norms = np.linalg.norm(reference.residuals(Y, factors, codes.toarray()), axis=1)
    assert np.max(norms / tol) <= 1.01


@both_dtypes
@pytest.mark.parametrize("distance", [1e-5, 3e-3, 1e-2])
@pytest.mark.parametrize("method", PURSUITS)
def test_nearly_equal_atoms_do_not_end_coding_early(rng, method, distance, dtype):
    D1, D2 = reference.random_factors(rng, (8, 8), (8, 8))
    D1[:, 5] = D1[:, 2] + distance * rng.standard_normal(8)
    D1 /= np.linalg.norm(D1, axis=0)
    Y = rng.standard_normal((1000, 8, 8)).astype(dtype)
    codes = kl.sparse_code(Y, cast([D1, D2], dtype), 8, method=method)
    assert np.diff(codes.indptr).min() == 8
    double = kl.sparse_code(Y.astype(np.float64), [D1, D2], 8, method=method)
    error, best = (
        np.linalg.norm(reference.residuals(Y, [D1, D2], X.toarray())) for X in (codes, double)
    )
    assert error <= 1.002 * best


@pytest.mark.parametrize("distance", [3e-6, 1e-4])
@with_or_without_weights
@pytest.mark.parametrize("method", PURSUITS)
def test_tolerances_are_met_with_nearly_dependent_atoms(rng, method, weighted, distance):
    D1, D2 = reference.random_factors(rng, (4, 4), (4, 5))
    D1 = np.column_stack([D1, D1[:, 1] + distance * rng.standard_normal(4)])
    D1 /= np.linalg.norm(D1, axis=0)
    Y = rng.standard_normal((200, 4, 4))
    weights = rng.uniform(0.5, 1.0, Y.shape) if weighted else np.ones(Y.shape)
    options = {"weights": weights} if weighted else {}
    codes = kl.sparse_code(Y, [D1, D2], tol=1e-6, method=method, **options)
    left = reference.residuals(Y, [D1, D2], codes.toarray()) * np.sqrt(weights).reshape(200, -1)
    assert np.linalg.norm(left, axis=1).max() <= 1.001e-6


@pytest.mark.usefixtures("instruction_set")
@with_or_without_weights
@pytest.mark.parametrize("method", PURSUITS)
def test_tolerances_that_need_coefficients_as_small_as_float32_rounding_are_met(
    rng, method, weighted
):
    factors = cast(reference.orthonormal_factors(rng, (8, 8)), np.float32)
    X = np.full((20, 64), 1.5e-6)
    X[np.arange(20), rng.integers(0, 64, 20)] = 1.0
    Y = kl.KroneckerDictionary(factors).reconstruct(X).astype(np.float32)
    weights = rng.uniform(0.99, 1.0, Y.shape) if weighted else np.ones(Y.shape)
    options = {"weights": weights} if weighted else {}
    codes = kl.sparse_code(Y, factors, tol=6e-6, method=method, **options)
    left = reference.residuals(Y, factors, codes.toarray().astype(np.float64))
    assert np.linalg.norm(left * np.sqrt(weights).reshape(20, -1), axis=1).max() <= 1.01 * 6e-6


def test_ols_meets_small_tolerances_with_gaussian_factors(rng):
    for _ in range(9):
        factors = reference.random_factors(rng, (7, 7), (9, 9))
        Y = rng.standard_normal((100, 7, 7))
        codes = kl.sparse_code(Y, factors, tol=1e-3, method="ols")
        left = reference.residuals(Y, factors, codes.toarray())
        assert np.linalg.norm(left, axis=1).max() <= 1.001e-3


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("method", PURSUITS)
def test_weighted_float32_codes_of_nearly_equal_atoms_are_as_good_as_float64_ones(rng, method):
    start = rng.standard_normal((15, 1)) + 1e-4 * rng.standard_normal((15, 61))
    factors = [start / np.linalg.norm(start, axis=0)]
    Y, weights = rng.standard_normal((30, 15)), rng.uniform(0.01, 1.0, (30, 15))
    codes, double = (
        kl.sparse_code(Y.astype(dtype), factors, 8, method=method, weights=weights)
        for dtype in (np.float32, np.float64)
    )
    assert np.mean(np.diff(codes.indptr) == np.diff(double.indptr)) >= 0.9
    error, best = (
        np.linalg.norm(np.sqrt(weights) * reference.residuals(Y, factors, X.toarray()), axis=1)
        for X in (codes, double)
    )
    assert np.sum(error**2) <= 1.01 * np.sum(best**2)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(np.float32, 3e-3), (np.float32, 1e-5), (np.float64, 1e-6), (np.float64, 1e-11)],
)
def test_the_error_of_thresholding_includes_what_no_atom_represents(rng, dtype, size):
    factors = cast([f[:, :6] for f in reference.orthonormal_factors(rng, (8, 8))], dtype)
    Y = reference.sparse_samples(rng, factors, 40, 5)
    Y = (Y + size * rng.standard_normal(Y.shape)).astype(dtype)
    codes = kl.sparse_code(Y, factors, 5, method="threshold").toarray().astype(np.float64)
    left = reference.residuals(Y.astype(np.float64), factors, codes)
    task = Task(kl.KroneckerDictionary(factors), Coder("threshold", 5))
    found = Threads(ArraySource(Y, (8, 8))).run(task).residual
    assert found == pytest.approx(np.sum(left**2), rel=0.02)
    tol = 1.1 * np.sqrt(np.max(np.sum(left**2, axis=1)))
    enough = kl.sparse_code(Y, factors, tol=tol, method="threshold")
    assert np.all(np.diff(enough.indptr) <= 5)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("target", [{"n_nonzero_coefs": 28}, {"tol": 0.0}], ids=str)
@pytest.mark.parametrize("method", PURSUITS)
def test_more_atoms_than_a_sample_needs_do_not_raise_the_error(method, target, dtype):
    rng = np.random.default_rng(73)
    factors = reference.random_factors(rng, (6, 6), (12, 12))
    Y = reference.sparse_samples(rng, factors, 300, 3).reshape(300, 36)
    few = kl.sparse_code(Y.astype(dtype), cast(factors, dtype), 3, method=method)
    more = kl.sparse_code(Y.astype(dtype), cast(factors, dtype), method=method, **target)
    before, after = (
        np.linalg.norm(reference.residuals(Y, factors, codes.toarray()), axis=1)
        for codes in (few, more)
    )
    assert np.all(after <= before + (1e-12 if dtype is np.float64 else 1e-5))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("method", PURSUITS)
@pytest.mark.parametrize("sizes", [(16, 32, 16, 30), (8, 16, 16, 60)], ids=str)
def test_float32_codes_of_coherent_dictionaries_are_accurate(sizes, method):
    m, n, n_nonzero_coefs, n_samples = sizes
    if method == "exchange":
        n_samples //= 3  # the exchanges of the reference are slow
    factors = reference.dct_factors((m, m), (n, n))
    Y = smooth_samples(np.random.default_rng(3), n_samples, (m, m))
    expected = coherent_reference_error(m, n, n_nonzero_coefs, n_samples, method)
    codes = kl.sparse_code(
        Y.astype(np.float32), cast(factors, np.float32), n_nonzero_coefs, method=method
    )
    left = reference.residuals(Y, factors, codes.toarray())
    assert np.linalg.norm(left) <= 1.001 * expected
    assert np.linalg.norm(left) >= 0.99 * expected


def nearly_equal_atoms(rng, m, n, group, distance):
    """A factor of groups of ``group`` nearly equal atoms."""
    columns = rng.standard_normal((m, -(-n // group))).repeat(group, axis=1)[:, :n]
    columns /= np.linalg.norm(columns, axis=0)
    columns += distance * rng.standard_normal(columns.shape)
    return columns / np.linalg.norm(columns, axis=0)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(
    ("m", "n", "group", "distance", "slack"),
    [
        pytest.param(15, 61, 4, 1e-2, 1e-2, id="inaccurate coefficients"),
        pytest.param(30, 60, 2, 1.5e-3, 1e-6, id="exchanges select similar atoms"),
    ],
)
def test_float32_exchanges_of_nearly_equal_atoms_end_at_the_error_of_float64_ones(
    m, n, group, distance, slack
):
    rng = np.random.default_rng(1)
    factor = nearly_equal_atoms(rng, m, n, group, distance).astype(np.float32)
    Y = rng.standard_normal((3000, m)).astype(np.float32)
    error, best = (
        np.sum(reference.residuals(Y, [factor], X.toarray().astype(np.float64)) ** 2)
        for dtype in (np.float32, np.float64)
        for X in [kl.sparse_code(Y.astype(dtype), [factor], 8, method="exchange")]
    )
    assert error <= (1 + slack) * best


@pytest.mark.usefixtures("instruction_set")
def test_float64_exchanges_continue_when_coefficients_are_refined():
    rng = np.random.default_rng(1)
    factor = nearly_equal_atoms(rng, 15, 30, 4, 1e-4)
    Y = rng.standard_normal((1000, 15))
    before, after = (
        np.sum(reference.residuals(Y, [factor], X.toarray()) ** 2, axis=1)
        for method in ("ols", "exchange")
        for X in [kl.sparse_code(Y, [factor], 12, method=method)]
    )
    assert np.sum(after) < 0.4 * np.sum(before)
    assert np.all(after <= before + 1e-9)  # even if exchanges gain rounding errors only


@pytest.mark.usefixtures("instruction_set")
def test_float32_tolerances_are_met_with_nearly_equal_atoms():
    rng = np.random.default_rng(1)
    factor = nearly_equal_atoms(rng, 20, 30, 4, 0.03).astype(np.float32)
    Y = rng.standard_normal((5000, 20)).astype(np.float32)
    tol = 1.5e-3 * np.linalg.norm(Y, axis=1)
    codes = kl.sparse_code(Y, [factor], tol=tol, method="ols")
    left = reference.residuals(Y, [factor], codes.toarray().astype(np.float64))
    assert np.max(np.linalg.norm(left, axis=1) / tol) <= 1.001


def test_sums_include_samples_that_were_coded_again_in_double_precision(rng):
    factor = nearly_equal_atoms(rng, 15, 20, 4, 1e-3)
    Y = (100 * rng.standard_normal((200, 15))).astype(np.float32)
    dictionary, coder = kl.KroneckerDictionary([factor]), Coder("ols", 6)
    engine = Threads(ArraySource(Y, (15,)))
    found, codes = engine.run(Task(dictionary, coder)), engine.codes(dictionary, coder)
    left = reference.residuals(Y, [factor], codes.toarray().astype(np.float64))
    assert found.energy == pytest.approx(np.sum(Y.astype(np.float64) ** 2), rel=1e-5)
    assert found.residual == pytest.approx(np.sum(left**2), rel=1e-3)


@cache
def coherent_reference_error(m, n, n_nonzero_coefs, n_samples, method):
    factors = reference.dct_factors((m, m), (n, n))
    Y = smooth_samples(np.random.default_rng(3), n_samples, (m, m))
    X = reference.code(Y, factors, method, n_nonzero_coefs)
    return np.linalg.norm(reference.residuals(Y, factors, X))


@both_dtypes
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_very_small_and_very_large_samples_get_the_same_supports(scale, method, dtype):
    factors, Y = problem((8, 8), (8, 8), 120, method)
    d = kl.KroneckerDictionary(cast(factors, dtype))
    codes = kl.sparse_code(Y.astype(dtype), d, 6, method=method)
    scaled = kl.sparse_code((scale * Y).astype(dtype), d, 6, method=method)
    np.testing.assert_array_equal(scaled.indices, codes.indices)
    rtol = 1e-9 if dtype is np.float64 else 1e-3
    np.testing.assert_allclose(scaled.data / scale, codes.data, rtol=rtol, atol=rtol)
    relative = kl.sparse_code((scale * Y).astype(dtype), d, tol=4.0 * scale, method=method)
    assert relative.nnz == kl.sparse_code(Y.astype(dtype), d, tol=4.0, method=method).nnz


@with_or_without_weights
@pytest.mark.parametrize("exponent", [-500, -560, -1000])
@pytest.mark.parametrize("method", METHODS)
def test_samples_whose_squares_underflow_are_coded(rng, method, exponent, weighted):
    factors, Y = problem((8, 8), (8, 8), 45, method)
    if weighted and method == "threshold":
        pytest.skip("thresholding takes no weights")
    weights = rng.uniform(0.5, 1.0, Y.shape)
    weights[:, 3, 4] = 0
    options = {"weights": weights} if weighted else {}
    codes = kl.sparse_code(Y, factors, 4, method=method, **options)
    tiny = np.ldexp(Y, exponent)
    if weighted:
        tiny[:, 3, 4] = 1e300  # entries without weight are ignored
    small = kl.sparse_code(tiny, factors, 4, method=method, **options)
    np.testing.assert_array_equal(small.indices, codes.indices)
    np.testing.assert_allclose(np.ldexp(small.data, -exponent), codes.data, rtol=1e-9)
    target = kl.sparse_code(tiny, factors, tol=np.ldexp(5.0, exponent), method=method, **options)
    assert target.nnz == kl.sparse_code(Y, factors, tol=5.0, method=method, **options).nnz


def test_coefficients_compensate_norms_that_are_not_quite_one(rng):
    factors, Y = problem((8, 8), (8, 8), 45, "omp")
    expected = kl.sparse_code(Y, factors, 4)
    codes = kl.sparse_code(Y, [factors[0] * (1 + 5e-5), factors[1] * (1 - 2e-5)], 4)
    np.testing.assert_array_equal(codes.indices, expected.indices)
    np.testing.assert_allclose(codes.data * (1 + 5e-5) * (1 - 2e-5), expected.data, rtol=1e-12)


@pytest.mark.slow
def test_float32_distinguishes_millions_of_atoms(rng):
    factors = [rng.standard_normal((4, 3000)) for _ in range(2)]
    factors = [(factor / np.linalg.norm(factor, axis=0)).astype(np.float32) for factor in factors]
    Y = rng.standard_normal((16, 4, 4)).astype(np.float32)
    single = kl.sparse_code(Y, factors, 2)
    double = kl.sparse_code(Y.astype(np.float64), cast(factors, np.float64), 2)
    np.testing.assert_array_equal(single.indices, double.indices)


def test_coding_leaves_the_callers_subnormal_numbers_alone():
    tiny = np.full(4, 1e-30, np.float32)
    rng = np.random.default_rng(0)
    kl.sparse_code(rng.standard_normal((20, 8, 8), dtype=np.float32), [np.eye(8)] * 2, 3)
    # Kernels flush subnormal numbers to zero, but only while they run.
    assert (tiny * np.float32(1e-10) > 0).all()
