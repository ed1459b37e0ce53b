"""The estimator follows scikit-learn's conventions and keeps the shapes and dtypes of its input."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import kronlearn as kl
import reference
from learning_problems import small_model


@pytest.fixture(name="Y")
def samples(rng):
    return reference.sparse_samples(rng, reference.random_factors(rng, (4, 3), (5, 4)), 90, 2, 0.1)


@pytest.mark.filterwarnings("ignore:Samples of .* numbers are taken as")
@parametrize_with_checks(
    [small_model(n_atoms=(4,), method="omp", sparse_output=False), small_model(n_atoms=(3, 3))]
)
def test_the_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_parameters_and_their_defaults_stay_the_same():
    expected = {
        "n_atoms": (16, 16),
        "patch_shape": None,
        "n_nonzero_coefs": 6,
        "tol": None,
        "structure": "general",
        "method": "ols",
        "max_iter": 100,
        "init": "dct",
        "random_state": None,
        "n_jobs": None,
        "device": "cpu",
        "verbose": 0,
        "n_terms": 1,
        "engine": "auto",
        "min_improvement": 0.0,
        "time_budget": None,
        "forgetting": 1.0,
        "block_size": None,
        "checkpoint": None,
        "checkpoint_every": 10,
        "callback": None,
        "sparse_output": True,
    }
    assert kl.KroneckerDictionaryLearning().get_params() == expected


def test_fitted_attributes_describe_the_model(Y):
    model = small_model().fit(Y)
    assert isinstance(model.dictionary_, kl.KroneckerDictionary)
    assert [factor.shape for factor in model.factors_] == [(4, 5), (3, 4)]
    assert model.patch_shape_ == (4, 3)
    assert model.n_features_in_ == 12
    assert model.n_iter_ == 3 == len(model.history_["rmse"]) - 1
    assert model.components_.shape == (20, 12)
    np.testing.assert_array_equal(model.components_, model.dictionary_.to_dense().T)
    assert model.stop_reason_ == "max_iter"


def test_transform_codes_with_the_learned_dictionary(Y):
    model = small_model().fit(Y)
    X = model.transform(Y)
    assert sparse.issparse(X)
    assert X.format == "csr"
    expected = kl.sparse_code(Y, model.dictionary_, 2, method="ols")
    np.testing.assert_array_equal(X.toarray(), expected.toarray())


def test_rows_with_a_patch_shape_give_the_same_model_as_shaped_samples(Y):
    shaped = small_model().fit(Y)
    flat = small_model(patch_shape=(4, 3)).fit(Y.reshape(90, 12))
    assert shaped.dictionary_ == flat.dictionary_
    np.testing.assert_array_equal(
        shaped.transform(Y).toarray(), flat.transform(Y.reshape(90, 12)).toarray()
    )


@pytest.mark.parametrize(
    ("n_features", "n_atoms", "patch_shape"),
    [
        (64, (8, 8), {(8, 8)}),
        (12, (4, 4), {(3, 4), (4, 3)}),
        (64, 10, {(8, 8)}),
        (27, (3, 3, 3), {(3, 3, 3)}),
        (10, (12,), {(10,)}),
    ],
)
def test_rows_are_folded_as_squarely_as_possible(rng, n_features, n_atoms, patch_shape):
    model = small_model(n_atoms=n_atoms, max_iter=1).fit(rng.standard_normal((30, n_features)))
    assert model.patch_shape_ in patch_shape


def test_rows_that_cannot_be_folded_cause_a_warning(rng):
    Y = rng.standard_normal((30, 61))
    with pytest.warns(UserWarning, match=r"61 numbers are taken as \(1, 61\).*patch_shape"):
        model = small_model(n_atoms=4, max_iter=1).fit(Y)
    assert model.patch_shape_ == (1, 61)
    assert small_model(n_atoms=70, max_iter=1, patch_shape=(61,)).fit(Y).patch_shape_ == (61,)


def test_inverse_transform_returns_samples_in_the_shape_of_the_fitted_ones(Y):
    shaped = small_model().fit(Y)
    X = shaped.transform(Y)
    assert shaped.inverse_transform(X).shape == (90, 4, 3)
    flat = small_model(patch_shape=(4, 3)).fit(Y.reshape(90, 12))
    assert flat.inverse_transform(X).shape == (90, 12)
    np.testing.assert_allclose(
        shaped.inverse_transform(X).reshape(90, 12),
        X.toarray() @ reference.dense(shaped.factors_).T,
        atol=1e-12,
    )
    np.testing.assert_array_equal(
        shaped.inverse_transform(X), shaped.inverse_transform(X.toarray())
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_samples_and_factors_keep_the_dtype(Y, dtype):
    model = small_model().fit(Y.astype(dtype))
    X = model.transform(Y.astype(dtype))
    assert X.dtype == dtype
    assert model.inverse_transform(X).dtype == dtype
    assert all(factor.dtype == dtype for factor in model.factors_)


def test_a_pickled_model_continues_to_learn_as_the_original(Y):
    model = small_model().partial_fit(Y[:40])
    copy = pickle.loads(pickle.dumps(model))
    assert model.partial_fit(Y[40:]).dictionary_ == copy.partial_fit(Y[40:]).dictionary_


def test_the_estimator_works_in_a_pipeline(Y):
    pipeline = make_pipeline(StandardScaler(), small_model(patch_shape=(4, 3)))
    X = pipeline.fit_transform(Y.reshape(90, 12))
    assert X.shape == (90, 20)
    assert pipeline.inverse_transform(X).shape == (90, 12)
    assert np.isfinite(pipeline.score(Y.reshape(90, 12)))


def test_grid_search_finds_that_more_nonzeros_score_higher(Y):
    search = GridSearchCV(small_model(patch_shape=(4, 3)), {"n_nonzero_coefs": [1, 2, 3]}, cv=3)
    search.fit(Y.reshape(90, 12))
    assert search.best_params_ == {"n_nonzero_coefs": 3}


def test_verbose_learning_shows_the_error(Y, capsys):
    small_model(verbose=1).fit(Y)
    loud = capsys.readouterr()
    small_model(verbose=0).fit(Y)
    quiet = capsys.readouterr()
    assert "rmse" in (loud.out + loud.err).lower()
    assert quiet.out + quiet.err == ""


def test_a_single_sample_is_enough(Y):
    model = small_model().fit(Y[:1])
    assert model.score(Y[:1]) > -np.sqrt(np.mean(Y[:1] ** 2))
