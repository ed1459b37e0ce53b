"""AK-SVD, K-SVD, TKSVD and PairAK-SVD, whose updates need codes, equal their references."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

import kronlearn as kl
import reference
import reference_comparators as rc
from kronlearn import _native
from kronlearn.comparators import AKSVD, KSVD, MOD, TKSVD, PairAKSVD
from kronlearn.io.arrays import ArraySource
from learning_problems import assert_factors, planted

UNSTRUCTURED = [
    pytest.param(AKSVD, rc.aksvd_update, id="AK-SVD"),
    pytest.param(KSVD, rc.ksvd_update, id="K-SVD"),
]
SEPARABLE = [
    pytest.param(TKSVD, rc.tksvd_update, id="TKSVD"),
    pytest.param(PairAKSVD, rc.pair_aksvd_update, id="PairAK-SVD"),
]


def updated(method, Y, factors, X, dtype=np.float64):
    """Return the factors and dense codes after an update."""
    codes = sparse.csr_array(X.astype(dtype))
    source = ArraySource(np.asarray(Y, dtype), Y.shape[1:])
    dictionary = method()._update(source, kl.KroneckerDictionary(factors), codes)
    return dictionary.factors, codes.toarray()


def assert_updated_as(method, update, Y, factors, X, dtype=np.float64, atol=1e-9):
    is_matrix = method in (AKSVD, KSVD)
    wanted, wanted_codes = update(Y, factors[0] if is_matrix else factors, X)
    found, codes = updated(method, Y, factors, X, dtype)
    # Rounding grows along a sweep of rank-1 fits.
    atol = atol if dtype == np.float64 else 1e-3
    assert_factors(found, [wanted] if is_matrix else wanted, atol)
    np.testing.assert_allclose(codes, wanted_codes, rtol=0, atol=atol)


def squared_error(Y, factors, X):
    return np.sum(reference.residuals(Y, factors, X) ** 2)


# Equality with the reference


@pytest.mark.parametrize(
    ("method", "update"),
    [*UNSTRUCTURED, pytest.param(MOD, rc.mod_update, id="MOD"), *SEPARABLE],
)
def test_two_iterations_equal_the_reference(rng, method, update):
    is_matrix = method in (AKSVD, KSVD, MOD)
    Y, start = planted(rng, (5, 4), (7, 6), 300 if is_matrix else 100)
    init = reference.dense(start) if is_matrix else start
    expected, rmse = rc.learn(update, Y, init, 3, 2, lambda D: [D] if is_matrix else D)
    model = method(42 if is_matrix else (7, 6), n_nonzero_coefs=3, init=init, max_iter=2)
    found = rc.last_dictionary(model, Y)
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-10)
    assert_factors(found.factors, [expected] if is_matrix else expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("method", "update"), [*UNSTRUCTURED, *SEPARABLE])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), rc.SHAPES[::2])
def test_an_update_with_any_numbers_of_nonzeros_equals_the_reference(
    rng, patch_shape, n_atoms, method, update, dtype
):
    if method in (AKSVD, KSVD):
        patch_shape, n_atoms = (int(np.prod(patch_shape)),), (int(np.prod(n_atoms)),)
    Y, factors = planted(rng, patch_shape, n_atoms, 60)
    X = np.zeros((60, np.prod(n_atoms)))
    for k, x in enumerate(X):
        chosen = rng.choice(len(x), k % 6, replace=False)
        x[chosen] = rng.standard_normal(len(chosen))
    X.reshape(60, *n_atoms)[:, 2] = 0  # an atom that no code uses
    assert_updated_as(method, update, Y, factors, X, dtype)
    found, _ = updated(method, Y, factors, X, dtype)
    np.testing.assert_array_equal(found[0][:, 2], factors[0][:, 2])


@pytest.mark.parametrize("name", kl.instruction_sets())
@pytest.mark.parametrize(("m", "n"), [(1, 2), (7, 9), (33, 20), (131, 12)])
def test_a_sweep_of_aksvd_equals_the_reference_for_all_instruction_sets_and_sizes(rng, name, m, n):
    D = reference.random_factors(rng, (m,), (n,))[0]
    Y = rng.standard_normal((90, m))
    X = rc.code(Y, [D], min(m, 3))
    codes, atoms = sparse.csr_array(X), np.ascontiguousarray(D.T)
    _native.sweep_atoms(Y, codes.indptr, codes.indices, codes.data, atoms, name)
    wanted_D, wanted_X = rc.aksvd_update(Y, D, X)
    np.testing.assert_allclose(atoms.T, wanted_D, rtol=0, atol=1e-12)
    np.testing.assert_allclose(codes.toarray(), wanted_X, rtol=0, atol=1e-11)


def test_pair_aksvd_changes_coefficients_of_equal_atoms_as_little_as_possible(rng):
    Y, factors = planted(rng, (5, 4), (7, 6), 100)
    factors[1][:, 3] = factors[1][:, 0]
    X = np.zeros((100, 7, 6))
    X[:, 2, [0, 3, 4]] = rng.standard_normal((100, 3))
    X[:, 5, 1] = rng.standard_normal(100)
    assert_updated_as(PairAKSVD, rc.pair_aksvd_update, Y, factors, X.reshape(100, -1))


# Errors after an update


@pytest.mark.parametrize("method", [AKSVD, KSVD, PairAKSVD, TKSVD])
def test_only_an_update_of_tksvd_can_raise_the_error(rng, method):
    patch_shape, n_atoms = ((20,), (42,)) if method in (AKSVD, KSVD) else ((5, 4), (7, 6))
    factors = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, factors, 120, 3, noise=0.1)
    X = rc.code(Y, factors, 3)
    new, codes = updated(method, Y, factors, X)
    raised = squared_error(Y, new, codes) > squared_error(Y, factors, X)
    assert raised == (method is TKSVD)


# Atoms without samples, and samples without atoms


@pytest.mark.parametrize("method", [AKSVD, KSVD, TKSVD, PairAKSVD])
def test_an_atom_whose_samples_are_zero_stays(method):
    D = np.array([[0.48], [0.6], [0.64], [0.0]])
    (found,), X = updated(method, np.zeros((3, 4)), [D], np.ones((3, 1)))
    np.testing.assert_array_equal(found, D)
    np.testing.assert_allclose(X, 0, atol=1e-15)


@pytest.mark.parametrize("method", [AKSVD, KSVD, PairAKSVD, TKSVD])
def test_the_worst_represented_sample_becomes_an_atom(rng, method):
    start = np.repeat(np.eye(10)[:, :3], 2, axis=1)
    Y = 0.01 * rng.standard_normal((200, 10))
    Y[:, :3] += rng.standard_normal((200, 3))
    Y[17] = 50.0 * np.eye(10)[9]
    n_atoms = 6 if method in (AKSVD, KSVD) else (6,)
    model = method(n_atoms, n_nonzero_coefs=1, init=[start], max_iter=1)
    assert np.abs(rc.last_dictionary(model, Y).factors[0][9]).max() == pytest.approx(1.0, abs=1e-3)


# Memory


def test_pair_aksvd_needs_memory_for_a_few_copies_of_the_samples(rng):
    Y = rng.standard_normal((20000, 8, 8)).astype(np.float32)
    start = kl.KroneckerDictionary(reference.random_factors(rng, (8, 8), (16, 16)))
    index = np.sort(rng.integers(0, 64, (len(Y), 4)) + np.arange(0, 256, 64), axis=1)
    starts = np.arange(0, 4 * len(Y) + 1, 4)
    codes = sparse.csr_array((np.ones(index.size, np.float32), index.ravel(), starts), (20000, 256))
    tracemalloc.start()
    PairAKSVD()._update(ArraySource(Y, (8, 8)), start, codes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * Y.nbytes
