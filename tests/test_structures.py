"""Learning sums of Kronecker products: the update, the loop, and refused input."""

import numpy as np
import pytest

import kronlearn as kl
import reference
import reference_comparators as rc
import reference_comparators_sums as reference_sums
from kronlearn.core.coder import Coder
from kronlearn.core.init import starting_dictionary
from kronlearn.core.replacement import replace_unused
from kronlearn.core.structures import General
from kronlearn.io.arrays import ArraySource
from learning_problems import (
    assert_same_atoms,
    assert_same_model,
    learner,
    moments_of,
    random_terms,
    smooth_samples,
)

# Every overcomplete mode has more entries than a code has coefficients (see test_learning.py).
SHAPES = [
    pytest.param((9,), (13,), id="one mode"),
    pytest.param((5, 4), (7, 6), id="two modes"),
    pytest.param((5, 5), (5, 5), id="two square modes"),
    pytest.param((4, 5, 4), (5, 5, 6), id="three modes"),
]
TWO_MODES = (5, 4), (7, 6)


def planted(rng, patch_shape, n_atoms, n_terms=2, n_samples=160):
    """Samples of one sum of Kronecker products, and the terms of another to start from."""
    truth = kl.KroneckerSumDictionary(random_terms(rng, patch_shape, n_atoms, n_terms))
    Y = reference.sparse_samples(rng, [truth.to_dense()], n_samples, 3, 0.1)
    return Y.reshape(-1, *patch_shape), random_terms(rng, patch_shape, n_atoms, n_terms)


def model_of_smooth_samples(**options):
    """An estimator for smooth samples, with the default initial dictionary."""
    defaults = {"n_atoms": (7, 6), "n_nonzero_coefs": 4, "n_jobs": 1, "random_state": 0}
    return kl.KroneckerDictionaryLearning(**(defaults | options))


def alternating_least_squares(Y, terms, method, n_iterations=5):
    """The dictionaries of plain alternating least squares, and the RMSE of each."""
    dictionaries, rmse = [], []
    for _ in range(n_iterations + 1):
        D = reference_sums.unit_columns(reference_sums.dense_sum(terms))
        X = reference.code(Y, [D], method, 3)
        dictionaries.append(D)
        rmse.append(np.sqrt(np.mean(reference.residuals(Y, [D], X) ** 2)))
        terms, _ = reference_sums.sukro_als_update(Y, terms, X)
    return dictionaries, rmse


# The update


@pytest.mark.parametrize("n_terms", [1, 2, 3])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_one_update_from_moments_equals_least_squares_on_the_samples(
    rng, patch_shape, n_atoms, n_terms
):
    Y, terms = planted(rng, patch_shape, n_atoms, n_terms, 400)
    d = kl.KroneckerSumDictionary(terms)
    X = reference.code(Y, [d.to_dense()], "omp", 3)
    expected, expected_X = reference_sums.sukro_als_update(Y, terms, X)
    moments = moments_of(Y, X, d)
    updated, scale = General().update(d, moments)
    moments = moments.rescaled(scale)
    D = reference_sums.unit_columns(reference_sums.dense_sum(expected))
    assert_same_atoms(updated.to_dense(), D)
    error = np.sum(reference.residuals(Y, [D], expected_X) ** 2)
    assert moments.squared_error(updated) == pytest.approx(error, rel=1e-10)
    signs = np.sign(np.sum(updated.to_dense() * D, axis=0))
    np.testing.assert_allclose(
        moments.xy, (expected_X * signs).T @ Y.reshape(len(Y), -1), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize(("n_terms", "method"), [(2, "ols"), (3, "omp")])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES[1:])
def test_five_iterations_equal_alternating_least_squares(
    rng, patch_shape, n_atoms, n_terms, method
):
    Y, start = planted(rng, patch_shape, n_atoms, n_terms)
    dictionaries, rmse = alternating_least_squares(Y, start, method)
    model = learner(kl.KroneckerSumDictionary(start), method=method).fit(Y)
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-10)
    assert_same_atoms(model.dictionary_.to_dense(), dictionaries[np.argmin(rmse)], 1e-9)


def test_the_squared_error_uses_the_scaled_columns(rng):
    Y, terms = planted(rng, *TWO_MODES)
    d = kl.KroneckerSumDictionary([[3 * factor for factor in term] for term in terms])
    X = reference.code(Y, [d.to_dense()], "omp", 3)
    error = np.sum(reference.residuals(Y, [d.to_dense()], X) ** 2)
    assert moments_of(Y, X, d).squared_error(d) == pytest.approx(error, rel=1e-10)


def test_several_terms_in_one_mode_are_one_matrix(rng):
    Y, terms = planted(rng, (9,), (13,))
    start = kl.KroneckerDictionary(terms[0])
    one, several = (learner(start, n_terms=n_terms).fit(Y) for n_terms in (1, 3))
    np.testing.assert_allclose(several.history_["rmse"], one.history_["rmse"], rtol=1e-9)
    assert_same_atoms(several.dictionary_.to_dense(), one.dictionary_.to_dense(), 1e-8)


def test_atoms_that_no_code_uses_stay_unchanged(rng):
    Y, terms = planted(rng, *TWO_MODES)
    d = kl.KroneckerSumDictionary(terms)
    X = reference.code(Y, [d.to_dense()], "omp", 3).reshape(-1, 7, 6)
    X[:, 2] = 0
    X[:, :, 4] = 0
    updated, _ = General().update(d, moments_of(Y, X.reshape(len(Y), -1), d))
    for stack, before, atom in zip(updated.stacks, d.stacks, (2, 4), strict=True):
        column, old = stack[:, :, atom].ravel(), before[:, :, atom].ravel()
        np.testing.assert_allclose(column * np.sign(column @ old), old / np.linalg.norm(old))


# The initial dictionary


def test_the_initial_dictionary_of_several_terms_equals_its_first_term(rng):
    source = ArraySource(rng.standard_normal((50, 5, 4)), (5, 4))
    one, three = (
        starting_dictionary("dct", source, (7, 6), np.random.RandomState(0), n_terms=n)
        for n in (1, 3)
    )
    assert isinstance(three, kl.KroneckerSumDictionary)
    assert three.n_terms == 3
    np.testing.assert_allclose(three.to_dense(), one.to_dense(), rtol=0, atol=1e-14)
    assert not three.stacks[0][1:].any()
    assert three.stacks[1][1:].all()


def test_a_single_term_is_learned_first_if_init_is_a_name(rng):
    Y = smooth_samples(rng)
    seen = []
    model_of_smooth_samples(n_terms=3, max_iter=10, callback=seen.append).fit(Y)
    in_use = [bool(progress.dictionary.stacks[0][1].any()) for progress in seen]
    assert in_use == [False] * 3 + [True] * 8
    one = model_of_smooth_samples(max_iter=2).fit(Y)
    assert [progress.rmse for progress in seen[:2]] == one.history_["rmse"][:2]


def test_an_initial_dictionary_gets_the_terms_it_lacks(rng):
    Y, terms = planted(rng, *TWO_MODES)
    source = ArraySource(Y, (5, 4))
    d = kl.KroneckerSumDictionary(terms)
    extended = starting_dictionary(d, source, (7, 6), np.random.RandomState(0), n_terms=4)
    assert extended.n_terms == 4
    np.testing.assert_allclose(extended.to_dense(), d.to_dense(), rtol=0, atol=1e-14)
    model = learner(d, n_terms=4, max_iter=3).fit(Y)
    assert model.dictionary_.n_terms == 4
    assert model.history_["rmse"][1] < learner(d, max_iter=1).fit(Y).history_["rmse"][1]


@pytest.mark.parametrize("n_terms", [1, 2])
def test_a_start_of_one_term_with_columns_of_any_norm_is_scaled(rng, n_terms):
    Y, (factors,) = planted(rng, *TWO_MODES, n_terms=1)
    scaled = kl.KroneckerSumDictionary([[3 * factor for factor in factors]])
    models = [
        learner(start, n_terms=n_terms).fit(Y)
        for start in (scaled, kl.KroneckerDictionary(factors))
    ]
    assert type(models[0].dictionary_) is type(models[1].dictionary_)
    np.testing.assert_allclose(*(model.history_["rmse"] for model in models), rtol=1e-9)


# More terms represent samples better


def waves(rng, n_samples=1000):
    """Patches of two plane waves each, from the upper left to the lower right.

    Such a wave is a sum of two products, ``cos(ay + bx) = cos ay cos bx − sin ay sin bx``.
    """
    y, x = np.mgrid[:8, :8]
    a, b = rng.uniform(0.3, 2.5, (2, n_samples, 2, 1, 1))
    phase = rng.uniform(0, 2 * np.pi, (n_samples, 2, 1, 1))
    return np.cos(a * y + b * x + phase).sum(axis=1)


def test_more_terms_end_at_a_lower_error(rng):
    Y = waves(rng)
    errors = [
        kl.KroneckerDictionaryLearning(
            (8, 8), n_nonzero_coefs=3, n_terms=n_terms, max_iter=30, random_state=0
        )
        .fit(Y)
        .history_["rmse"][-1]
        for n_terms in (1, 2, 4)
    ]
    assert errors[1] < 0.7 * errors[0]
    assert errors[2] < errors[1]


def test_a_planted_sum_is_recovered_from_a_nearby_start(rng):
    truth = kl.KroneckerSumDictionary(random_terms(rng, (6, 6), (8, 8), 2))
    atoms = truth.to_dense()
    Y = reference.sparse_samples(rng, [atoms], 3000, 2, noise=0.02).reshape(-1, 6, 6)
    noisy = [
        stack + 0.25 * stack.std() * rng.standard_normal(stack.shape) for stack in truth.stacks
    ]
    start = kl.KroneckerSumDictionary(list(zip(*noisy, strict=True)))
    assert rc.recovered(start.to_dense(), atoms) < 0.2
    model = learner(start, n_nonzero_coefs=2, max_iter=60).fit(Y)
    assert rc.recovered(model.dictionary_.to_dense(), atoms) == 1.0


# The same result, however it is computed


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_number_of_threads_changes_no_bit(rng, dtype):
    Y = smooth_samples(rng, 700).astype(dtype)
    options = {"n_terms": 2, "max_iter": 5, "block_size": 64}
    models = [model_of_smooth_samples(n_jobs=n, **options).fit(Y) for n in (1, 2, 5)]
    assert_same_model(models[1], models[0])
    assert_same_model(models[2], models[0])


# As an estimator


def test_factors_exist_only_for_a_single_term(rng):
    Y, start = planted(rng, *TWO_MODES)
    model = learner(kl.KroneckerSumDictionary(start)).fit(Y)
    with pytest.raises(AttributeError, match=r"a sum of 2 Kronecker products.*dictionary_\.terms"):
        model.factors_  # noqa: B018
    assert not hasattr(model, "factors_")
    single = learner(kl.KroneckerSumDictionary(start[:1])).fit(Y)
    assert [factor.shape for factor in single.factors_] == [(5, 7), (4, 6)]


def test_initial_dictionaries_of_other_sizes_are_refused(rng):
    Y, terms = planted(rng, *TWO_MODES, n_terms=3)
    start = kl.KroneckerSumDictionary(terms)
    with pytest.raises(
        ValueError, match="a sum of 3 Kronecker products, and at most 2 can be learned"
    ):
        learner(start, n_terms=2).fit(Y)
    with pytest.raises(ValueError, match=r"init has \(7, 6\) atoms .* n_atoms=\(8, 6\)"):
        learner(start, n_atoms=(8, 6)).fit(Y)


def test_terms_join_when_a_single_term_stops_improving(rng):
    model = model_of_smooth_samples(n_terms=2, min_improvement=0.02).fit(smooth_samples(rng))
    assert model.stop_reason_ == "converged"
    assert model.n_iter_ < 20
    assert model.dictionary_.n_terms == 2
    assert model.dictionary_.stacks[0][1].any()


@pytest.mark.parametrize(
    "options", [{"max_iter": 1}, {"callback": lambda state: True}], ids=["max_iter", "callback"]
)
def test_a_run_that_ends_before_the_terms_join_still_returns_a_sum(rng, options):
    model = model_of_smooth_samples(n_terms=2, **options).fit(smooth_samples(rng))
    assert model.dictionary_.n_terms == 2


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_learning_does_not_depend_on_the_scale_of_the_samples(rng, scale):
    Y = smooth_samples(rng)
    one, other = (model_of_smooth_samples(max_iter=5).fit(samples) for samples in (Y, Y * scale))
    np.testing.assert_allclose(other.dictionary_.to_dense(), one.dictionary_.to_dense(), atol=1e-8)


def test_an_atom_is_not_replaced_if_columns_of_the_sum_would_become_zero(rng):
    factors = [rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 4, 3))]
    factors[1][0, :, 1] = 0.0
    dictionary = kl.KroneckerSumDictionary(zip(*factors, strict=True))
    source = ArraySource(rng.standard_normal((20, 4, 4)), (4, 4))
    unused = [np.array([2]), np.array([], np.intp)]
    found = replace_unused(dictionary, unused, np.arange(20), source, Coder("omp", 2))
    assert found == (dictionary, 0)
