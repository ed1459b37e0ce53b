"""AK-SVD, K-SVD and TKSVD: equal to their references, and what they promise or do not."""

import numpy as np
import pytest
from sklearn.base import clone

import kronlearn as kl
import reference
import reference_comparators as rc
from kronlearn import _native
from kronlearn.comparators import AKSVD, KSVD, MOD, TKSVD, OSubDil, PairAKSVD, SeDiL
from kronlearn.comparators.aksvd import PowerIterations
from kronlearn.comparators.atoms import AtomCodes, samples_as_rows
from kronlearn.comparators.ksvd import SingularPairs
from kronlearn.comparators.tksvd import TupleByTuple
from kronlearn.core.engine import Codes
from kronlearn.io.arrays import ArraySource

UNSTRUCTURED = [
    pytest.param(AKSVD, rc.aksvd_update, id="AKSVD"),
    pytest.param(KSVD, rc.ksvd_update, id="KSVD"),
]
SEPARABLE_SHAPES = [
    pytest.param((8,), (12,), id="one mode"),
    pytest.param((5, 4), (7, 6), id="two modes"),
    pytest.param((4, 3, 4), (5, 4, 5), id="three modes"),
]
METHODS = [AKSVD, KSVD, TKSVD]


def planted(rng, patch_shape, n_atoms, n_samples=300, s=3, noise=0.1):
    """Noisy sparse samples of a separable dictionary, and another to start from."""
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, s, noise=noise)
    return Y, reference.random_factors(rng, patch_shape, n_atoms)


def learner(method, /, **options):
    """An estimator for samples of shape (5, 4)."""
    n_atoms = (7, 6) if method is TKSVD else 42
    defaults = {"n_nonzero_coefs": 3, "max_iter": 3, "n_jobs": 1, "random_state": 0}
    return method(n_atoms, **(defaults | options))


def last_dictionary(model, Y):
    """The dictionary of the last iteration, which need not be the best; the model is fitted."""
    seen = []
    model.set_params(callback=lambda progress: seen.append(progress.dictionary)).fit(Y)
    return seen[-1]


def codes_of(X, width, dtype=np.float64):
    """Dense codes as the fixed-width ones that updates get; what does not count is rubbish."""
    codes = Codes.empty(len(X), width, dtype)
    codes.value[:] = 1e6
    for k, row in enumerate(X):
        support = np.flatnonzero(row)
        codes.nonzeros[k] = len(support)
        codes.index[k, : len(support)] = support
        codes.value[k, : len(support)] = row[support]
    return codes


def dense_of(codes, n_codes):
    X = np.zeros((len(codes.index), n_codes))
    for k, count in enumerate(codes.nonzeros):
        X[k, codes.index[k, :count]] = codes.value[k, :count]
    return X


def updated(structure, Y, factors, X, width, dtype=np.float64):
    """Factors and dense codes after a structure's update."""
    codes = codes_of(X, width, dtype)
    source = ArraySource(np.asarray(Y, dtype), Y.shape[1:])
    dictionary = structure.update(kl.KroneckerDictionary(factors), source, codes)
    return dictionary.factors, dense_of(codes, X.shape[1])


def recovered(found, truth):
    """The share of true atoms that an atom is within an angle of 8 degrees of."""
    return np.mean(np.abs(found.to_dense().T @ reference.dense(truth)).max(axis=0) > 0.99)


# Equality with the reference


@pytest.mark.parametrize(("method", "update"), UNSTRUCTURED)
def test_five_unstructured_iterations_equal_the_reference(rng, method, update):
    Y, start = planted(rng, (5, 4), (7, 6))
    D = reference.dense(start)
    expected, rmse = rc.learn(update, Y, D, 3, 5, dictionary=lambda D: [D])
    model = learner(method, init=D, max_iter=5)
    found = last_dictionary(model, Y)
    assert model.n_iter_ == 5
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-10)
    np.testing.assert_allclose(found.factors[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SEPARABLE_SHAPES)
def test_five_iterations_of_tksvd_equal_the_reference(rng, patch_shape, n_atoms):
    Y, start = planted(rng, patch_shape, n_atoms)
    expected, rmse = rc.learn(rc.tksvd_update, Y, start, 3, 5)
    model = TKSVD(n_atoms, n_nonzero_coefs=3, init=start, max_iter=5, n_jobs=1)
    found = last_dictionary(model, Y)
    assert model.n_iter_ == 5
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-10)
    for factor, wanted in zip(found.factors, expected, strict=True):
        np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("structure", "update"),
    [
        pytest.param(PowerIterations(), rc.aksvd_update, id="AKSVD"),
        pytest.param(SingularPairs(), rc.ksvd_update, id="KSVD"),
    ],
)
def test_an_unstructured_update_changes_codes_as_the_reference_does(rng, structure, update, dtype):
    Y, start = planted(rng, (5, 4), (7, 6))
    D = reference.dense(start)
    X = reference.code(Y, [D], "omp", 4)
    X[::7] = 0  # some codes are empty, others shorter than the width
    X[::5, :20] = 0
    wanted_D, wanted_X = update(Y, D, X)
    (found_D,), found_X = updated(structure, Y.reshape(len(Y), -1), [D], X, 4, dtype)
    tolerance = 1e-12 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(found_D, wanted_D, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found_X, wanted_X, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), SEPARABLE_SHAPES)
def test_a_tksvd_update_changes_codes_as_the_reference_does(rng, patch_shape, n_atoms, dtype):
    Y, start = planted(rng, patch_shape, n_atoms, 200)
    X = reference.code(Y, start, "omp", 3)
    X[::7] = 0
    expected, wanted = rc.tksvd_update(Y, start, X)
    factors, found = updated(TupleByTuple(), Y, start, X, 3, dtype)
    tolerance = 1e-11 if dtype == np.float64 else 1e-3
    for factor, wanted_factor in zip(factors, expected, strict=True):
        np.testing.assert_allclose(factor, wanted_factor, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", kl.instruction_sets())
@pytest.mark.parametrize(("m", "n"), [(1, 2), (3, 3), (7, 9), (33, 20), (64, 70), (131, 12)])
def test_a_sweep_of_aksvd_is_right_for_every_instruction_set_and_size(rng, name, m, n):
    D = reference.random_factors(rng, (m,), (n,))[0]
    Y = rng.standard_normal((90, m))
    X = reference.code(Y, [D], "omp", min(m, 3))
    wanted_D, wanted_X = rc.aksvd_update(Y, D, X)
    with kl.use_instruction_set(name):
        (found_D,), found_X = updated(PowerIterations(), Y, [D], X, min(m, 3))
    np.testing.assert_allclose(found_D, wanted_D, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found_X, wanted_X, rtol=0, atol=1e-11)


# What an update promises


@pytest.mark.parametrize("method", [AKSVD, KSVD])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_unstructured_updates_never_raise_the_error(rng, method, dtype):
    Y = rng.standard_normal((300, 5, 4)).astype(dtype)
    history = learner(method, init="random", max_iter=15).fit(Y).history_
    rounding = 1e-12 if dtype == np.float64 else 1e-6
    assert np.all(np.array(history["rmse"]) <= np.array(history["coding_rmse"]) * (1 + rounding))
    assert history["rmse"][-1] < history["rmse"][0]


def test_an_update_of_tksvd_can_raise_the_error(rng):
    Y = rng.standard_normal((300, 5, 4))
    history = learner(TKSVD, init="random", max_iter=10).fit(Y).history_
    assert np.any(np.array(history["rmse"]) > np.array(history["coding_rmse"]))


def test_ksvd_of_one_atom_is_the_best_rank_one_approximation(rng):
    Y = rng.standard_normal((50, 6))
    model = KSVD(1, n_nonzero_coefs=1, max_iter=1, init="random", random_state=0).fit(Y)
    values = np.linalg.svd(Y, compute_uv=False)
    assert model.history_["rmse"][0] == pytest.approx(np.sqrt(np.sum(values[1:] ** 2) / Y.size))


def test_aksvd_of_one_atom_ends_where_ksvd_is_at_once(rng):
    Y = rng.standard_normal((50, 6)) * [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    options = {"n_nonzero_coefs": 1, "init": "random", "random_state": 0}
    exact = KSVD(1, max_iter=1, **options).fit(Y)
    powers = AKSVD(1, max_iter=40, **options).fit(Y)
    np.testing.assert_allclose(powers.factors_[0], exact.factors_[0], rtol=0, atol=1e-8)


# Recovery of a planted dictionary, averaged over three seeds


@pytest.mark.parametrize("method", [AKSVD, KSVD])
def test_four_in_five_planted_atoms_are_found_from_random_samples(method):
    rates = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = reference.random_factors(rng, (20,), (30,))
        Y = reference.sparse_samples(rng, truth, 1500, 3, noise=0.01)
        model = method(30, n_nonzero_coefs=3, max_iter=50, init="data", random_state=seed)
        rates.append(recovered(model.fit(Y).dictionary_, truth))
    assert np.mean(rates) >= 0.8


@pytest.mark.parametrize(
    ("patch_shape", "n_atoms"), [((6, 5), (8, 7)), ((4, 3, 4), (4, 4, 4))], ids=str
)
def test_tksvd_finds_nine_in_ten_planted_atoms_from_a_start_nearby(patch_shape, n_atoms):
    rates, before = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = reference.random_factors(rng, patch_shape, n_atoms)
        Y = reference.sparse_samples(rng, truth, 1000, 2, noise=0.01)
        noise = reference.random_factors(rng, patch_shape, n_atoms)
        start = [d + 0.3 * e for d, e in zip(truth, noise, strict=True)]
        start = kl.KroneckerDictionary.normalized(start)
        model = TKSVD(n_atoms, n_nonzero_coefs=2, max_iter=12, init=start, n_jobs=1)
        rates.append(recovered(model.fit(Y).dictionary_, truth))
        before.append(recovered(start, truth))
    assert np.mean(before) < 0.5
    assert np.mean(rates) >= 0.9


# Atoms that need care


@pytest.mark.parametrize(
    ("structure", "update"),
    [(PowerIterations(), rc.aksvd_update), (SingularPairs(), rc.ksvd_update)],
    ids=["AKSVD", "KSVD"],
)
def test_an_update_leaves_unused_atoms_alone(rng, structure, update):
    D = reference.random_factors(rng, (6,), (9,))[0]
    Y = rng.standard_normal((40, 6))
    X = reference.code(Y, [D], "omp", 2)
    X[:, [0, 4]] = 0
    (found,), codes = updated(structure, Y, [D], X, 2)
    np.testing.assert_array_equal(found[:, [0, 4]], D[:, [0, 4]])
    np.testing.assert_allclose(codes, update(Y, D, X)[1], rtol=0, atol=1e-12)


def test_tksvd_leaves_atoms_that_no_tuple_uses_alone(rng):
    factors = reference.random_factors(rng, (4, 3), (5, 4))
    factors[0][:, 2] = -np.abs(factors[0][:, 2])  # not even its sign may change
    X = np.zeros((30, 5, 4))
    X[np.arange(30), 0, rng.integers(3, size=30)] = rng.standard_normal(30)
    Y = rng.standard_normal((30, 4, 3))
    found, _ = updated(TupleByTuple(), Y, factors, X.reshape(30, -1), 1)
    np.testing.assert_array_equal(found[0][:, 1:], factors[0][:, 1:])
    np.testing.assert_array_equal(found[1][:, 3], factors[1][:, 3])
    assert not np.array_equal(found[0][:, 0], factors[0][:, 0])


def test_an_atom_stays_where_aksvd_sums_up_to_nothing(rng):
    D = reference.random_factors(rng, (4,), (1,))[0]
    y = rng.standard_normal(4)
    (found,), X = updated(PowerIterations(), np.stack([y, -y]), [D], np.ones((2, 1)), 1)
    np.testing.assert_array_equal(found, D)
    np.testing.assert_allclose(X[:, 0], [y @ D[:, 0], -y @ D[:, 0]], rtol=1e-12)


@pytest.mark.parametrize("structure", [PowerIterations(), SingularPairs(), TupleByTuple()])
def test_an_atom_stays_where_samples_are_zero(rng, structure):
    D = np.array([[0.48], [0.6], [0.64], [0.0]])
    (found,), X = updated(structure, np.zeros((3, 4)), [D], np.ones((3, 1)), 1)
    np.testing.assert_array_equal(found, D)
    assert not X.any()


@pytest.mark.parametrize("scale", [1e-140, 1e140])
@pytest.mark.parametrize(
    "structure", [PowerIterations(), SingularPairs(), TupleByTuple()], ids=["A", "K", "T"]
)
def test_an_update_is_the_same_for_very_small_and_very_large_samples(rng, structure, scale):
    D = reference.random_factors(rng, (6,), (9,))[0]
    Y = rng.standard_normal((40, 6))
    X = reference.code(Y, [D], "omp", 2)
    (plain,), codes = updated(structure, Y, [D], X, 2)
    (found,), scaled = updated(structure, Y * scale, [D], X * scale, 2)
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-11)
    np.testing.assert_allclose(scaled / scale, codes, rtol=0, atol=1e-11)


@pytest.mark.parametrize("method", [AKSVD, KSVD])
def test_the_loop_replaces_atoms_that_nobody_uses(rng, method):
    truth = reference.random_factors(rng, (10,), (6,))
    Y = reference.sparse_samples(rng, truth, 200, 2, noise=0.01)
    start = np.repeat(reference.random_factors(rng, (10,), (3,))[0], 2, axis=1)
    model = method(6, n_nonzero_coefs=2, init=start, max_iter=20).fit(Y)
    assert sum(model.history_["atoms_replaced"]) > 0
    assert model.history_["rmse"][-1] < 0.5 * model.history_["rmse"][0]


# Input and output


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_refused(rng, method, value):
    Y = rng.standard_normal((60, 5, 4))
    Y[17, 2, 1] = value
    with pytest.raises(ValueError, match=r"(NaN|infinity) \(first in sample 17\)"):
        learner(method).fit(Y)


@pytest.mark.parametrize("method", METHODS)
def test_samples_may_be_read_only_in_any_order_or_integers(rng, method):
    Y = np.round(20 * rng.standard_normal((120, 5, 4)))
    expected = learner(method).fit(Y)
    frozen = Y.copy()
    frozen.setflags(write=False)
    others = [
        frozen,
        np.asfortranarray(Y),
        np.repeat(Y, 2, axis=0)[::2],
        Y.astype(np.int16),
        Y.astype(">f8"),
        Y.reshape(120, 20),
    ]
    for other in others:
        before = np.array(other)
        model = learner(method, patch_shape=(5, 4)).fit(other)
        np.testing.assert_array_equal(other, before)
        assert model.history_["rmse"] == expected.history_["rmse"]
        assert model.dictionary_ == expected.dictionary_


@pytest.mark.parametrize("method", METHODS)
def test_float32_samples_give_a_float32_dictionary_and_codes(rng, method):
    Y = rng.standard_normal((120, 5, 4))
    single, double = learner(method).fit(Y.astype(np.float32)), learner(method).fit(Y)
    assert single.dictionary_.dtype == single.transform(Y.astype(np.float32)).dtype == np.float32
    assert double.dictionary_.dtype == double.transform(Y).dtype == np.float64
    np.testing.assert_allclose(single.history_["rmse"][0], double.history_["rmse"][0], rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_the_number_of_threads_changes_no_bit(rng, method):
    Y = rng.standard_normal((3000, 5, 4)).astype(np.float32)
    one, two = (learner(method, n_jobs=n_jobs).fit(Y) for n_jobs in (1, 2))
    assert one.dictionary_ == two.dictionary_
    assert one.history_["rmse"] == two.history_["rmse"]


@pytest.mark.parametrize("method", METHODS)
def test_shapes_are_those_of_the_samples(rng, method):
    Y = rng.standard_normal((120, 5, 4))
    model = learner(method).fit(Y)
    X = model.transform(Y)
    assert X.shape == (120, 42)
    assert np.all(np.diff(X.indptr) <= 3)
    assert model.inverse_transform(X).shape == (120, 5, 4)
    rows = learner(method, patch_shape=(5, 4)).fit(Y.reshape(120, 20))
    assert rows.inverse_transform(rows.transform(Y.reshape(120, 20))).shape == (120, 20)
    error = np.sqrt(np.mean((Y - model.inverse_transform(X)) ** 2))
    assert model.score(Y) == pytest.approx(-error)


@pytest.mark.parametrize("method", METHODS)
def test_estimators_are_cloned_with_their_parameters(rng, method):
    model = learner(method, tol=0.5, method="ols", time_budget=60.0)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    Y = rng.standard_normal((120, 5, 4))
    assert copy.fit(Y).dictionary_ == model.fit(Y).dictionary_


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n_atoms": 0}, ValueError, r"n_atoms=0"),
        ({"n_atoms": 2.5}, TypeError, r"n_atoms=2\.5 is not"),
        ({"n_nonzero_coefs": 0}, ValueError, "n_nonzero_coefs=0 is not positive"),
        ({"n_nonzero_coefs": 43}, ValueError, "n_nonzero_coefs=43 exceeds the 42 atoms"),
        ({"tol": -1.0}, ValueError, "tol=-1 is not a residual norm"),
        ({"method": "threshold"}, ValueError, "method='threshold' cannot be learned with"),
        ({"max_iter": 0}, ValueError, "max_iter=0 is too small; pass at least 1"),
        ({"init": "zeros"}, ValueError, "init='zeros' does not exist; choose one of dct"),
        ({"time_budget": 0}, ValueError, "time_budget=0 is not a positive number"),
        ({"callback": 3}, TypeError, "callback=3 is not a function"),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_in_words(rng, method, options, error, words):
    with pytest.raises(error, match=words):
        learner(method).set_params(**options).fit(rng.standard_normal((60, 5, 4)))


@pytest.mark.parametrize("method", [AKSVD, KSVD])
def test_a_start_of_another_size_is_refused(rng, method):
    start = reference.random_factors(rng, (20,), (40,))[0]
    with pytest.raises(ValueError, match="init has 40 atoms for samples of 20 numbers; n_atoms=42"):
        learner(method, init=start).fit(rng.standard_normal((60, 5, 4)))


@pytest.mark.parametrize("method", [AKSVD, KSVD, MOD])
@pytest.mark.parametrize(
    ("patch_shape", "error", "words"),
    [
        (5, ValueError, r"samples of shape \(5,\) are needed"),
        ((0, 3), ValueError, r"patch_shape=\(0, 3\) must hold positive integers, one per mode"),
        ((2.0, 10), ValueError, r"patch_shape=\(2\.0, 10\) must hold positive integers"),
        ("ab", TypeError, "patch_shape='ab' is not a tuple of integers"),
    ],
)
def test_unstructured_methods_check_the_shape_of_samples(rng, method, patch_shape, error, words):
    with pytest.raises(error, match=words):
        learner(method, patch_shape=patch_shape).fit(rng.standard_normal((60, 5, 4)))
    rows = learner(method, n_nonzero_coefs=1, patch_shape=20, max_iter=1)
    assert rows.fit(rng.standard_normal((60, 20))).patch_shape_ == (20,)


@pytest.mark.parametrize("method", [TKSVD, PairAKSVD, OSubDil, SeDiL])
def test_a_sum_of_products_is_no_start_for_one_but_its_first_term_is(rng, method):
    Y, first = planted(rng, (5, 4), (7, 6))
    init = kl.KroneckerSumDictionary([first, reference.random_factors(rng, (5, 4), (7, 6))])
    model = method((7, 6), n_nonzero_coefs=3, max_iter=1, init=init)
    words = rf"init is a sum of 2 Kronecker products; {method.__name__} starts from one"
    with pytest.raises(ValueError, match=words):
        model.fit(Y)
    model.set_params(init=kl.KroneckerDictionary.normalized(init.terms[0])).fit(Y)
    assert model.dictionary_.n_terms == 1


def test_tksvd_hands_out_its_best_dictionary_and_with_a_target_its_last(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    seen = []
    options = {"init": start, "max_iter": 12, "callback": lambda p: seen.append(p.dictionary)}
    model = learner(TKSVD, **options).fit(Y)
    best = int(np.argmin(model.history_["rmse"]))
    assert best < 11
    assert model.dictionary_ == seen[best]
    assert learner(TKSVD, tol=1.0, **options).fit(Y).dictionary_ == seen[-1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", [AKSVD, KSVD, MOD, TKSVD, PairAKSVD])
@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_samples_of_any_scale_lead_to_the_same_dictionary(rng, method, scale):
    Y, _ = planted(rng, (5, 4), (7, 6))
    n_atoms = 42 if method in (AKSVD, KSVD, MOD) else (7, 6)
    options = {"n_nonzero_coefs": 3, "max_iter": 3, "n_jobs": 1, "random_state": 0}
    model, scaled = (method(n_atoms, **options).fit(c * Y) for c in (1.0, scale))
    np.testing.assert_allclose(
        scaled.dictionary_.to_dense(), model.dictionary_.to_dense(), rtol=0, atol=1e-9
    )


# The parts


def test_codes_by_atom_are_those_of_the_samples(rng):
    X = rng.standard_normal((50, 8)) * (rng.random((50, 8)) < 0.3)
    codes = codes_of(X, 8)
    by_atom = AtomCodes(codes, 8)
    np.testing.assert_array_equal(by_atom.rows.toarray(), X)
    np.testing.assert_array_equal(by_atom.used(), X.any(axis=0))
    for atom in range(8):
        entries, samples = by_atom.of(atom)
        np.testing.assert_array_equal(samples, np.flatnonzero(X[:, atom]))
        np.testing.assert_array_equal(by_atom.data[entries], X[samples, atom])
        by_atom.data[entries] *= atom + 1
    by_atom.write()
    np.testing.assert_array_equal(dense_of(codes, 8), X * np.arange(1, 9))
    np.testing.assert_array_equal(codes.value[0, codes.nonzeros[0] :], 1e6)


def test_codes_of_many_atoms_are_sorted_as_well():
    index = np.array([[5, 40000], [5, 7], [3, 40000]], np.int32)
    codes = Codes(index, np.full(3, 2, np.int32), np.ones((3, 2)))
    assert AtomCodes(codes, 50000).of(40000)[1].tolist() == [0, 2]


def test_samples_are_copied_only_where_they_must_be(rng):
    Y = rng.standard_normal((30, 5, 4))
    assert np.shares_memory(samples_as_rows(ArraySource(Y, (5, 4))), Y)
    copied = samples_as_rows(ArraySource(np.asfortranarray(Y), (5, 4)))
    assert copied.flags.c_contiguous
    np.testing.assert_array_equal(copied, Y.reshape(30, 20))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"index": np.full((4, 2), 3, np.int32)}, "names an atom that does not exist"),
        ({"index": np.full((4, 2), -1, np.int32)}, "names an atom that does not exist"),
        ({"index": np.zeros(8, np.int32)}, "index and atoms must be matrices"),
        ({"nonzeros": np.full(4, 3, np.int32)}, "more nonzeros than its width"),
        ({"nonzeros": np.zeros(3, np.int32)}, "codes do not fit together"),
        ({"value": np.ones((4, 3))}, "codes do not fit together"),
        ({"samples": np.ones((4, 6))}, "samples do not fit the atoms"),
    ],
)
def test_a_sweep_refuses_arrays_that_do_not_fit(change, words):
    arrays = {
        "samples": np.ones((4, 5)),
        "index": np.zeros((4, 2), np.int32),
        "nonzeros": np.ones(4, np.int32),
        "value": np.ones((4, 2)),
        "atoms": np.eye(3, 5),
    }
    with pytest.raises(ValueError, match=words):
        _native.sweep_atoms(**(arrays | change))
