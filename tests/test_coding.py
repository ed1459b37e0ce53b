"""Native coders: equality with the NumPy reference, and the properties of codes."""

import _thread
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import joblib
import numpy as np
import pytest
from scipy import sparse

import kronlearn as kl
import reference
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.engines.threads import Threads, resolve_n_jobs
from kronlearn.io.arrays import ArraySource

# Patch shape, atoms per mode, samples, nonzeros: one to four modes, unequal modes, odd sizes, and
# the square shapes that have their own kernels.
SHAPES = [
    ((7,), (7,), 45, 3),
    ((20,), (33,), 45, 4),
    ((64,), (64,), 33, 6),
    ((3, 5), (4, 7), 45, 4),
    ((9, 4), (6, 11), 45, 4),
    ((8, 8), (8, 8), 120, 6),
    ((8, 8), (16, 16), 120, 6),
    ((8, 8), (16, 8), 45, 5),
    ((16, 16), (16, 16), 35, 8),
    ((16, 16), (32, 32), 19, 8),
    ((32, 32), (32, 32), 17, 4),
    ((8, 8), (17, 16), 33, 6),
    ((2, 3, 4), (3, 5, 4), 45, 4),
    ((4, 4, 4), (8, 8, 8), 33, 5),
    ((2, 3, 2, 3), (3, 3, 4, 3), 45, 4),
]
SOME_SHAPES = [SHAPES[i] for i in (1, 5, 6, 12)]
DTYPES = [np.float64, np.float32]
METHODS = ["omp", "ols", "exchange", "threshold"]
PURSUITS = ["omp", "ols", "exchange"]
#: Threads and block size: smaller than a group of lanes, larger, and larger than the data.
SPLITS = [(5, 1), (2, 7), (3, 16), (2, 2**40)]
RESIDUAL_ERROR = {np.float64: 1e-9, np.float32: 1e-4}


@pytest.fixture(params=kl.instruction_sets())
def instruction_set(request):
    """Run a test once with every instruction set."""
    with kl.use_instruction_set(request.param):
        yield


def named(shape):
    m, n = ("x".join(map(str, sizes)) for sizes in shape[:2])
    return f"{m} by {n}"


@cache
def problem(patch_shape, n_atoms, n_samples, method):
    """Factors and noisy samples in float64; thresholding gets orthonormal factors."""
    rng = np.random.default_rng(sum(patch_shape) + sum(n_atoms))
    if method == "threshold":
        factors = [
            np.linalg.qr(rng.standard_normal((m, m)))[0][:, :n]
            for m, n in zip(patch_shape, n_atoms, strict=True)
        ]
    else:
        factors = reference.random_factors(rng, patch_shape, n_atoms)
    return factors, rng.standard_normal((n_samples, *patch_shape))


@cache
def reference_codes(patch_shape, n_atoms, n_samples, method, n_nonzero_coefs, tol=None, step=1):
    """The reference's codes of every ``step``-th sample."""
    factors, Y = problem(patch_shape, n_atoms, n_samples, method)
    return reference.code(Y[::step], factors, method, n_nonzero_coefs, tol)


def cast(arrays, dtype):
    return [array.astype(dtype) for array in arrays]


def assert_same_bits(codes, expected):
    np.testing.assert_array_equal(codes.indptr, expected.indptr)
    np.testing.assert_array_equal(codes.indices, expected.indices)
    np.testing.assert_array_equal(codes.data, expected.data)


def smooth_samples(rng, n_samples, patch_shape):
    """Samples like image patches: integrated noise without its mean."""
    Y = rng.standard_normal((n_samples, *patch_shape))
    for axis in range(1, Y.ndim):
        Y = np.cumsum(Y, axis=axis)
    return Y - Y.mean(axis=tuple(range(1, Y.ndim)), keepdims=True)


def winner_is_clear(factors, method, n_nonzero_coefs):
    """Whether no two atoms tie for all samples.

    In OLS, and so with exchanges, atoms tie once the selected ones leave a single dimension of a
    mode: all atoms of that mode then lower the error equally.
    """
    return method == "omp" or all(
        n <= m or n_nonzero_coefs < m for m, n in (factor.shape for factor in factors)
    )


def assert_codes_match(codes, expected, Y, factors, dtype, weights=None, clear=True, method=None):
    """Assert equal residual norms and supports for all samples (float64) or 99 % (float32).

    If no winner is clear, exchanges start from different supports and may end at different ones;
    then only the total error is compared.
    """
    root = 1.0 if weights is None else np.sqrt(weights.reshape(len(Y), -1))
    found = codes.toarray().astype(np.float64)
    norms = np.linalg.norm(root * reference.residuals(Y, factors, found), axis=1)
    expected_norms = np.linalg.norm(root * reference.residuals(Y, factors, expected), axis=1)
    size = np.linalg.norm(root * Y.reshape(len(Y), -1), axis=1)
    if method == "exchange" and not clear:
        assert np.linalg.norm(norms) == pytest.approx(np.linalg.norm(expected_norms), rel=0.02)
        return
    difference = np.abs(norms - expected_norms) / size
    share = 1.0 if dtype is np.float64 else 0.99
    assert np.mean(difference <= RESIDUAL_ERROR[dtype]) >= share
    assert np.max(difference) <= 0.05  # whichever way a near tie is decided
    same_support = np.all((found != 0) == (expected != 0), axis=1)
    if clear:
        assert np.mean(same_support) >= share
    coefficient_error = np.abs(found - expected)[same_support].max() / np.abs(expected).max()
    assert coefficient_error <= {np.float64: 1e-8, np.float32: 2e-3}[dtype]


# Equality with the reference


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_codes_equal_the_reference_for_any_threads_and_blocks(shape, method, dtype):
    patch_shape, n_atoms, n_samples, n_nonzero_coefs = shape
    if method == "threshold":
        n_atoms = tuple(np.minimum(patch_shape, n_atoms).tolist())
    factors, Y = problem(patch_shape, n_atoms, n_samples, method)
    # The reference is slow for many atoms.
    step = 1 if np.prod(n_atoms) <= 256 else 4
    expected = reference_codes(patch_shape, n_atoms, n_samples, method, n_nonzero_coefs, step=step)
    d = kl.KroneckerDictionary(cast(factors, dtype))
    samples = Y.astype(dtype)
    codes = kl.sparse_code(samples, d, n_nonzero_coefs, method=method)
    assert codes.dtype == dtype
    assert codes.shape == (n_samples, np.prod(n_atoms))
    np.testing.assert_array_equal(samples, Y.astype(dtype))  # unchanged
    clear = winner_is_clear(factors, method, n_nonzero_coefs)
    assert_codes_match(
        codes[::step], expected, Y[::step], factors, dtype, clear=clear, method=method
    )
    for n_jobs, block_size in SPLITS:
        split = {"n_jobs": n_jobs, "block_size": block_size}
        again = kl.sparse_code(samples, d, n_nonzero_coefs, method=method, **split)
        assert_same_bits(again, codes)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=named)
def test_codes_to_a_tolerance_equal_the_reference(shape, method, dtype):
    patch_shape, n_atoms, n_samples, _ = shape
    if method == "threshold":
        n_atoms = tuple(np.minimum(patch_shape, n_atoms).tolist())
    n_samples = min(n_samples, 45)
    factors, Y = problem(patch_shape, n_atoms, n_samples, method)
    tol = 0.85 * np.sqrt(np.prod(patch_shape))
    for cap in (None, 3):
        expected = reference_codes(patch_shape, n_atoms, n_samples, method, cap, tol)
        codes = kl.sparse_code(
            Y.astype(dtype), cast(factors, dtype), cap, tol=tol, method=method, n_jobs=2
        )
        counts = np.diff(codes.indptr)
        assert counts.min() < counts.max() <= (cap or np.inf)
        clear = winner_is_clear(factors, method, counts.max())
        assert_codes_match(codes, expected, Y, factors, dtype, clear=clear, method=method)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
def test_samples_can_have_individual_tolerances(rng, method, dtype):
    factors, Y = problem((8, 8), (8, 8), 45, method)
    tol = rng.uniform(0.6, 1.1, 45) * np.linalg.norm(Y.reshape(45, -1), axis=1)
    expected = reference.code(Y, factors, method, 10, tol)
    Y, d = Y.astype(dtype), kl.KroneckerDictionary(cast(factors, dtype))
    shuffled = rng.permutation(45)
    codes = kl.sparse_code(Y, d, 10, tol=tol, method=method)
    options = {"tol": tol[shuffled], "method": method, "n_jobs": 2, "block_size": 7}
    again = kl.sparse_code(Y[shuffled], d, 10, **options)
    assert_codes_match(codes, expected, Y, factors, dtype)
    assert_same_bits(again, codes[shuffled])


# Weights


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", PURSUITS)
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=named)
def test_weighted_codes_equal_the_weighted_reference(shape, method, dtype):
    patch_shape, n_atoms, _, n_nonzero_coefs = shape
    factors, Y = problem(patch_shape, n_atoms, 29, method)
    rng = np.random.default_rng(5)
    weights = rng.uniform(0.1, 3.0, Y.shape) * (rng.random(Y.shape) < 0.8)
    expected = reference.code(Y, factors, method, n_nonzero_coefs, weights=weights)
    d = kl.KroneckerDictionary(cast(factors, dtype))
    samples = Y.astype(dtype)
    codes = kl.sparse_code(samples, d, n_nonzero_coefs, method=method, weights=weights)
    clear = winner_is_clear(factors, method, n_nonzero_coefs)
    assert_codes_match(codes, expected, Y, factors, dtype, weights, clear, method)
    for n_jobs, block_size in SPLITS:
        split = {"weights": weights, "n_jobs": n_jobs, "block_size": block_size}
        again = kl.sparse_code(samples, d, n_nonzero_coefs, method=method, **split)
        assert_same_bits(again, codes)


@pytest.mark.parametrize("method", PURSUITS)
def test_the_tolerance_applies_to_the_weighted_residual(rng, method):
    factors, Y = problem((8, 8), (8, 8), 45, method)
    weights = rng.uniform(0.1, 3.0, Y.shape)
    expected = reference.code(Y, factors, method, tol=7.5, weights=weights)
    codes = kl.sparse_code(Y, factors, tol=7.5, method=method, weights=weights)
    assert_codes_match(codes, expected, Y, factors, np.float64, weights)
    left = np.sqrt(weights.reshape(45, -1)) * reference.residuals(Y, factors, codes.toarray())
    assert np.linalg.norm(left, axis=1).max() <= 7.5 * (1 + 1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("scale", [1e-12, 1e8])
@pytest.mark.parametrize("method", PURSUITS)
def test_only_the_proportions_of_weights_matter(rng, method, scale, dtype):
    factors, Y = problem((8, 8), (16, 16), 120, method)
    d = kl.KroneckerDictionary(cast(factors, dtype))
    weights = rng.uniform(0.1, 3.0, Y.shape)
    codes = kl.sparse_code(Y.astype(dtype), d, 6, method=method, weights=weights).toarray()
    scaled = kl.sparse_code(Y.astype(dtype), d, 6, method=method, weights=scale * weights).toarray()
    same = np.all((codes != 0) == (scaled != 0), axis=1)
    assert np.mean(same) >= (1.0 if dtype is np.float64 else 0.99)


@pytest.mark.parametrize("shape", [(3, 5), (1, 3, 5), (45, 1, 5), (45, 1, 1)])
def test_weights_are_broadcast_to_the_samples(rng, shape):
    factors, Y = problem((3, 5), (4, 7), 45, "omp")
    weights = rng.uniform(0.1, 3.0, shape)
    codes = kl.sparse_code(Y, factors, 3, weights=weights)
    full = kl.sparse_code(Y, factors, 3, weights=np.broadcast_to(weights, Y.shape).copy())
    assert_same_bits(codes, full)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", PURSUITS)
def test_entries_without_weight_are_ignored(rng, method, dtype):
    factors, Y = problem((8, 8), (16, 16), 40, method)
    weights = rng.random(Y.shape) > 0.3
    Y = Y.astype(dtype)
    codes = kl.sparse_code(Y, cast(factors, dtype), 4, method=method, weights=weights)
    Y[~weights] = np.nan
    holes = kl.sparse_code(Y, cast(factors, dtype), 4, method=method, weights=weights)
    np.testing.assert_array_equal(holes.toarray(), codes.toarray())
    masked = np.ma.masked_array(np.ones(Y.shape), ~weights)
    same = kl.sparse_code(Y, cast(factors, dtype), 4, method=method, weights=masked)
    np.testing.assert_array_equal(same.toarray(), codes.toarray())


@pytest.mark.parametrize("method", PURSUITS)
def test_a_sample_whose_weights_are_all_zero_gets_an_empty_code(method):
    factors, Y = problem((3, 5), (4, 7), 45, method)
    weights = np.ones(Y.shape)
    weights[7] = 0.0
    codes = kl.sparse_code(Y, factors, 3, method=method, weights=weights)
    counts = np.diff(codes.indptr)
    assert counts[7] == 0
    assert np.all(np.delete(counts, 7) == 3)


@pytest.mark.parametrize("method", PURSUITS)
def test_an_atom_whose_entries_have_no_weight_is_never_selected(method):
    factors = [np.eye(4), np.eye(4)]
    weights = np.ones((4, 4))
    weights[2, 1] = 0.0
    codes = kl.sparse_code(np.ones((5, 4, 4)), factors, 16, method=method, weights=weights)
    np.testing.assert_allclose(codes.toarray(), np.tile(weights.ravel(), (5, 1)))


# Properties of codes


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
def test_the_code_of_a_sample_does_not_depend_on_its_position(rng, method, dtype):
    factors, Y = problem((8, 8), (8, 8), 120, method)
    Y, d = Y.astype(dtype), kl.KroneckerDictionary(cast(factors, dtype))
    codes = kl.sparse_code(Y, d, 6, method=method)
    order = rng.permutation(len(Y))
    assert_same_bits(kl.sparse_code(Y[order], d, 6, method=method), codes[order])
    for k in (0, 15, 16, 119):
        assert_same_bits(kl.sparse_code(Y[k : k + 1], d, 6, method=method), codes[[k]])
        assert_same_bits(kl.sparse_code(Y[: k + 1], d, 6, method=method), codes[: k + 1])


def test_codes_are_a_canonical_csr_array_of_flat_indices(rng):
    factors, _ = problem((3, 5), (4, 7), 45, "omp")
    codes = kl.sparse_code(rng.standard_normal((19, 3, 5)), factors, 4)
    assert isinstance(codes, sparse.csr_array)
    assert codes.shape == (19, 28)
    assert codes.nnz == 19 * 4
    for start, stop in zip(codes.indptr[:-1], codes.indptr[1:], strict=True):
        assert np.all(np.diff(codes.indices[start:stop]) > 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", PURSUITS)
def test_noiseless_sparse_samples_are_recovered_exactly(rng, method, dtype):
    factors = reference.random_factors(rng, (16, 16), (16, 16))
    D = reference.dense(factors)
    Y = reference.sparse_samples(rng, factors, 50, 2)
    expected = np.linalg.solve(D, Y.reshape(50, -1).T).T
    codes = kl.sparse_code(Y.astype(dtype), cast(factors, dtype), 2, method=method).toarray()
    found = np.abs(codes - expected).max(axis=1) < (1e-10 if dtype is np.float64 else 1e-3)
    # Pursuits may fail if the two atoms of a sample are similar.
    assert np.mean(found) >= 0.9


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
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


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", PURSUITS)
@pytest.mark.parametrize("n_atoms", [(4, 3), (5, 4)], ids=["undercomplete", "square"])
def test_all_atoms_give_the_least_squares_solution(rng, n_atoms, method, dtype):
    factors = reference.random_factors(rng, (5, 4), n_atoms)
    Y = rng.standard_normal((21, 5, 4))
    D = reference.dense(factors)
    expected = np.linalg.lstsq(D, Y.reshape(21, -1).T, rcond=None)[0].T
    for request in ({"n_nonzero_coefs": D.shape[1]}, {"tol": 0.0}):
        codes = kl.sparse_code(Y.astype(dtype), cast(factors, dtype), method=method, **request)
        left = reference.residuals(Y, factors, codes.toarray())
        best = reference.residuals(Y, factors, expected)
        limit = 1e-8 if dtype is np.float64 else 2e-3
        np.testing.assert_allclose(left, best, atol=limit * np.abs(Y).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", PURSUITS)
def test_coding_stops_when_the_residual_is_zero(rng, method, dtype):
    factors = reference.random_factors(rng, (2, 3), (6, 6), dtype)
    Y = rng.standard_normal((40, 2, 3)).astype(dtype)
    codes = kl.sparse_code(Y, factors, 36, method=method)
    assert np.diff(codes.indptr).max() <= 6
    left = np.linalg.norm(reference.residuals(Y, factors, codes.toarray()), axis=1)
    size = np.linalg.norm(Y.reshape(40, -1), axis=1)
    # The last atoms of OLS tie, so it may select one that float32 barely resolves.
    limit = 1e-8 if dtype is np.float64 else 1e-5 if method == "omp" else 0.1
    assert np.max(left / size) <= limit


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("target", [{"n_nonzero_coefs": 3}, {"tol": 0.1}, {"tol": 0.0}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_zero_sample_has_an_empty_code(method, target, dtype):
    factors, Y = problem((8, 8), (8, 8), 45, method)
    Y = Y.astype(dtype)
    Y[[0, 17, 44]] = 0.0
    codes = kl.sparse_code(Y, cast(factors, dtype), method=method, **target)
    counts = np.diff(codes.indptr)
    assert counts[[0, 17, 44]].tolist() == [0, 0, 0]
    assert np.all(np.delete(counts, [0, 17, 44]) > 0)
    assert np.all(np.isfinite(codes.data))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", PURSUITS)
@pytest.mark.parametrize("n", [8, 16, 11])
def test_only_the_first_of_duplicate_atoms_is_used(rng, n, method, dtype):
    D1, D2 = reference.random_factors(rng, (8, 8), (n, n), dtype)
    D1[:, 5] = D1[:, 2]
    Y = rng.standard_normal((60, 8, 8)).astype(dtype)
    codes = kl.sparse_code(Y, [D1, D2], 12, method=method)
    used = codes.toarray().reshape(60, n, n) != 0
    assert used[:, 2].any()
    assert not used[:, 5].any()
    assert np.all(np.isfinite(codes.data))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
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
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
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
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
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
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [(8, 8), (16, 16), (5, 3), (9,)], ids=str)
def test_the_lowest_index_wins_ties(sizes, method, dtype):
    factors = [np.eye(m, dtype=dtype) for m in sizes]
    Y = np.zeros((3, np.prod(sizes)), dtype)
    Y[0] = 1.0
    Y[1] = np.where(np.arange(Y.shape[1]) % 2, 1.0, -1.0)
    Y[2, 3:] = -2.0
    codes = kl.sparse_code(Y, factors, 3, method=method)
    assert codes.indices.reshape(3, 3).tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(codes.data, [1, 1, 1, -1, 1, -1, -2, -2, -2])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("method", METHODS)
def test_the_error_includes_tied_atoms_that_were_not_selected(method):
    source = ArraySource(np.ones((20, 8, 8), np.float32), (8, 8))
    task = Task(kl.KroneckerDictionary([np.eye(8)] * 2), Coder(method, 5))
    assert Threads(source).run(task).residual == pytest.approx(20 * (64 - 5))


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


# Precision


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


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
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


# Memory layouts and dtypes of samples


def read_only(Y):
    Y = Y.copy()
    Y.setflags(write=False)
    return Y


LAYOUTS = {
    "rows": lambda Y: Y.reshape(len(Y), -1),
    "Fortran order": np.asfortranarray,
    "every other sample": lambda Y: np.repeat(Y, 2, axis=0)[::2],
    "reversed and transposed": lambda Y: Y.transpose(0, 2, 1).copy().transpose(0, 2, 1)[::-1][::-1],
    "read-only": read_only,
    "big-endian": lambda Y: Y.astype(Y.dtype.newbyteorder(">")),
    "list": list,
    "memory map": None,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
def test_the_memory_layout_of_samples_changes_no_bit(layout, dtype, tmp_path):
    factors, Y = problem((3, 5), (4, 7), 45, "omp")
    d = kl.KroneckerDictionary(cast(factors, dtype))
    Y = Y.astype(dtype)
    if layout == "memory map":
        np.save(tmp_path / "samples.npy", Y)
        samples = np.load(tmp_path / "samples.npy", mmap_mode="r")
    else:
        samples = LAYOUTS[layout](Y)
    codes = kl.sparse_code(samples, d, 4, n_jobs=2, block_size=7)
    assert codes.dtype == dtype
    assert codes.data.dtype.isnative
    assert_same_bits(codes, kl.sparse_code(Y, d, 4))


@pytest.mark.parametrize("method", PURSUITS)
def test_codes_packed_in_pieces_have_the_same_bits(rng, monkeypatch, method):
    factors, Y = problem((8, 8), (8, 8), 120, method)
    request = {
        "tol": rng.uniform(3.0, 9.0, 120),
        "weights": rng.uniform(0.1, 2.0, Y.shape),
        "method": method,
        "block_size": 8,
        "n_jobs": 2,
    }
    whole = kl.sparse_code(Y, factors, 20, **request)
    monkeypatch.setattr("kronlearn.engines.threads._ENTRIES_AT_A_TIME", 400)
    monkeypatch.setattr("kronlearn.core.source.BLOCK_NUMBERS", 1000)
    assert_same_bits(kl.sparse_code(Y, factors, 20, **request), whole)
    assert_same_bits(kl.sparse_code(np.asfortranarray(Y), factors, 20, **request), whole)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, bool])
def test_samples_of_other_dtypes_are_coded_in_float64(rng, dtype):
    factors = problem((3, 5), (4, 7), 45, "omp")[0]
    Y = rng.integers(0, 200, (45, 3, 5)).astype(dtype)
    codes = kl.sparse_code(Y, cast(factors, np.float32), 3)
    factors = cast(cast(factors, np.float32), np.float64)
    assert codes.dtype == np.float64
    assert_same_bits(codes, kl.sparse_code(Y.astype(np.float64), factors, 3))


# Exchanges


def exchanged_error(y, D, support):
    """The smallest squared error after an exchange of one atom, by brute force."""
    errors = []
    for i in range(len(support)):
        others = np.delete(support, i)
        basis = np.linalg.qr(D[:, others])[0]
        residual, left = y - basis @ (basis.T @ y), D - basis @ (basis.T @ D)
        remaining = np.sum(left**2, axis=0)
        gain = np.where(remaining > 1e-8, left.T @ residual, 0.0) ** 2
        errors.append(residual @ residual - np.max(gain / np.maximum(remaining, 1e-8)))
    return min(errors)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("shape", [SHAPES[i] for i in (1, 3, 6, 11, 13)], ids=named)
def test_no_exchange_of_one_atom_lowers_the_error(shape, weighted, dtype):
    patch_shape, n_atoms, _, n_nonzero_coefs = shape
    factors = cast(reference.dct_factors(patch_shape, n_atoms), dtype)
    rng = np.random.default_rng(4)
    Y = smooth_samples(rng, 50, patch_shape).astype(dtype)
    weights = (rng.random(Y.shape) < 0.8).astype(float) if weighted else np.ones(Y.shape)
    options = {"weights": weights} if weighted else {}
    ols, codes = (
        kl.sparse_code(Y, factors, n_nonzero_coefs, method=method, **options).toarray()
        for method in ("ols", "exchange")
    )
    root = np.sqrt(weights).reshape(50, -1)
    before, after = (
        np.sum((root * reference.residuals(Y, factors, X)) ** 2, axis=1) for X in (ols, codes)
    )
    energy = np.sum((root * Y.reshape(50, -1)) ** 2, axis=1)
    slack = {np.float64: 1e-13, np.float32: 1e-6}[dtype] * energy
    assert np.all(after <= before + slack)
    assert np.any(after < 0.99 * before)
    for k in range(0, 50, 3):
        D = root[k][:, None] * reference.dense(factors)
        y = root[k] * Y[k].ravel().astype(float)
        best = exchanged_error(y, D, np.flatnonzero(codes[k]))
        assert best >= after[k] * (1 - 1e-4) - slack[k]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("cap", [None, 8], ids=["no cap", "cap 8"])
def test_exchanges_meet_every_tolerance_that_ols_meets_with_no_more_atoms(
    rng, cap, weighted, dtype
):
    factors = cast(reference.dct_factors((8, 8), (12, 12)), dtype)
    Y = smooth_samples(rng, 300, (8, 8)).astype(dtype)
    weights = (rng.random(Y.shape) < 0.8).astype(float) if weighted else np.ones(Y.shape)
    options = {"weights": weights} if weighted else {}
    tol = 0.4 * np.linalg.norm((np.sqrt(weights) * Y).reshape(300, -1), axis=1)
    ols, exchange = (
        kl.sparse_code(Y, factors, cap, tol=tol, method=method, **options)
        for method in ("ols", "exchange")
    )
    root = np.sqrt(weights).reshape(300, -1)
    before, after = (
        np.linalg.norm(root * reference.residuals(Y, factors, X.toarray()), axis=1)
        for X in (ols, exchange)
    )
    within = tol * (1 + {np.float64: 1e-9, np.float32: 1e-5}[dtype])
    assert np.all(after[before <= tol] <= within[before <= tol])
    assert np.all(np.diff(exchange.indptr) <= np.diff(ols.indptr))
    assert exchange.nnz < ols.nnz


@pytest.mark.parametrize("width", [1, 19, 20])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
def test_exchanges_work_with_one_or_all_atoms(rng, dtype, width):
    factors = cast(reference.random_factors(rng, (5, 4), (5, 4)), dtype)
    factors[0][:, 3] = factors[0][:, 1]
    Y = rng.standard_normal((40, 5, 4)).astype(dtype)
    ols, codes = (kl.sparse_code(Y, factors, width, method=m) for m in ("ols", "exchange"))
    before, after = (
        np.linalg.norm(reference.residuals(Y, factors, X.toarray()), axis=1) for X in (ols, codes)
    )
    assert np.all(np.isfinite(codes.data))
    assert np.all(after <= before * (1 + 1e-5))


# Threads and signals


def test_python_threads_can_code_at_the_same_time():
    factors, Y = problem((8, 8), (16, 16), 120, "ols")
    Y = np.tile(Y, (20, 1, 1))
    expected = kl.sparse_code(Y, factors, 6, method="ols")
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(kl.sparse_code, Y, factors, 6, method="ols", n_jobs=2) for _ in range(8)
        ]
        for job in jobs:
            assert_same_bits(job.result(), expected)


def assert_interruptible(seconds, *arguments, **options):
    """Interrupt coding after some seconds; assert that it ends soon."""

    def code_for_seconds():
        kl.sparse_code(*arguments, n_jobs=2, **options)
        time.sleep(5)  # coding has ended before the interrupt, which comes here

    timer = threading.Timer(seconds, _thread.interrupt_main)
    timer.start()
    began = time.process_time()  # independent of other processes
    with pytest.raises(KeyboardInterrupt):
        code_for_seconds()
    assert time.process_time() - began < 1.5
    timer.join()


def test_coding_can_be_interrupted():
    factors = reference.dct_factors((8, 8), (16, 16), np.float32)
    Y = np.random.default_rng(0).standard_normal((200_000, 8, 8), dtype=np.float32)
    assert_interruptible(0.1, Y, factors, 50, method="ols")


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("method", ["ols", "exchange"])
def test_coding_of_few_samples_with_many_coefficients_can_be_interrupted(method, weighted):
    factors = reference.random_factors(np.random.default_rng(0), (24, 24), (40, 40))
    Y = np.random.default_rng(0).standard_normal((32, 24, 24))
    options = {"weights": np.ones(Y.shape)} if weighted else {}
    assert_interruptible(0.1, Y, factors, 500, method=method, **options)


@pytest.mark.parametrize(
    ("n_jobs", "limit", "expected"),
    [
        *((None, None, 1), (3, None, 3), (3, "1", 3), (np.int64(2), None, 2)),
        *((-1, "1", 1), (-1, "4096", joblib.cpu_count())),
    ],
)
def test_n_jobs_has_the_meaning_of_joblib(monkeypatch, n_jobs, limit, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if limit is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert resolve_n_jobs(n_jobs) == expected
    with joblib.parallel_config(backend="threading", n_jobs=3):
        assert resolve_n_jobs(None) == min(3, int(limit or 3))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
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
