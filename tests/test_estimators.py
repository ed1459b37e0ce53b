"""The estimator keeps scikit-learn's promises and the shapes and dtypes of its input."""

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


def small(**options):
    defaults = {"n_atoms": (5, 4), "n_nonzero_coefs": 2, "max_iter": 3, "n_jobs": 1}
    return kl.KroneckerDictionaryLearning(**(defaults | {"random_state": 0} | options))


@pytest.fixture(name="Y")
def samples(rng):
    return reference.sparse_samples(rng, reference.random_factors(rng, (4, 3), (5, 4)), 90, 2, 0.1)


@pytest.mark.filterwarnings("ignore:Samples of .* numbers are taken as")
@parametrize_with_checks(
    [small(n_atoms=(4,), method="omp", sparse_output=False), small(n_atoms=(3, 3))]
)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


def test_the_defaults_are_those_that_were_promised():
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
    model = small().fit(Y)
    assert isinstance(model.dictionary_, kl.KroneckerDictionary)
    assert [factor.shape for factor in model.factors_] == [(4, 5), (3, 4)]
    assert model.patch_shape_ == (4, 3)
    assert model.n_features_in_ == 12
    assert model.n_iter_ == 3 == len(model.history_["rmse"]) - 1
    assert model.components_.shape == (20, 12)
    np.testing.assert_array_equal(model.components_, model.dictionary_.to_dense().T)
    assert model.stop_reason_ == "max_iter"


def test_transform_is_sparse_coding_with_the_learned_dictionary(Y):
    model = small().fit(Y)
    X = model.transform(Y)
    assert sparse.issparse(X)
    assert X.format == "csr"
    expected = kl.sparse_code(Y, model.dictionary_, 2, method="ols")
    np.testing.assert_array_equal(X.toarray(), expected.toarray())


def test_flat_samples_with_a_patch_shape_learn_what_shaped_ones_do(Y):
    shaped = small().fit(Y)
    flat = small(patch_shape=(4, 3)).fit(Y.reshape(90, 12))
    for first, second in zip(shaped.factors_, flat.factors_, strict=True):
        np.testing.assert_array_equal(first, second)
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
def test_flat_samples_are_folded_as_squarely_as_they_can_be(rng, n_features, n_atoms, patch_shape):
    model = small(n_atoms=n_atoms, max_iter=1).fit(rng.standard_normal((30, n_features)))
    assert model.patch_shape_ in patch_shape


def test_samples_that_cannot_be_folded_are_learned_from_with_a_warning(rng):
    Y = rng.standard_normal((30, 61))
    with pytest.warns(UserWarning, match=r"61 numbers are taken as \(1, 61\).*patch_shape"):
        model = small(n_atoms=4, max_iter=1).fit(Y)
    assert model.patch_shape_ == (1, 61)
    assert small(n_atoms=70, max_iter=1, patch_shape=(61,)).fit(Y).patch_shape_ == (61,)


def test_more_nonzeros_than_atoms_are_capped(Y):
    model = small(n_atoms=(2, 2), n_nonzero_coefs=6).fit(Y)
    assert model.transform(Y).nnz <= 4 * len(Y)


def test_inverse_transform_gives_samples_of_the_rank_that_was_fitted(Y):
    shaped = small().fit(Y)
    X = shaped.transform(Y)
    assert shaped.inverse_transform(X).shape == (90, 4, 3)
    flat = small(patch_shape=(4, 3)).fit(Y.reshape(90, 12))
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
def test_the_dtype_of_samples_is_kept(Y, dtype):
    model = small().fit(Y.astype(dtype))
    X = model.transform(Y.astype(dtype))
    assert X.dtype == dtype
    assert model.inverse_transform(X).dtype == dtype
    assert all(factor.dtype == dtype for factor in model.factors_)


def test_a_pickled_model_goes_on_learning_the_same(Y):
    model = small().partial_fit(Y[:40])
    copy = pickle.loads(pickle.dumps(model))
    for first, second in zip(
        model.partial_fit(Y[40:]).factors_, copy.partial_fit(Y[40:]).factors_, strict=True
    ):
        np.testing.assert_array_equal(first, second)


def test_a_pipeline_scales_and_learns(Y):
    pipeline = make_pipeline(StandardScaler(), small(patch_shape=(4, 3)))
    X = pipeline.fit_transform(Y.reshape(90, 12))
    assert X.shape == (90, 20)
    assert pipeline.inverse_transform(X).shape == (90, 12)
    assert np.isfinite(pipeline.score(Y.reshape(90, 12)))


def test_grid_search_prefers_more_coefficients(Y):
    search = GridSearchCV(small(patch_shape=(4, 3)), {"n_nonzero_coefs": [1, 2, 3]}, cv=3)
    search.fit(Y.reshape(90, 12))
    assert search.best_params_ == {"n_nonzero_coefs": 3}


def test_verbose_learning_says_how_it_goes(Y, capsys):
    small(verbose=1).fit(Y)
    loud = capsys.readouterr()
    small(verbose=0).fit(Y)
    quiet = capsys.readouterr()
    assert "rmse" in (loud.out + loud.err).lower()
    assert quiet.out + quiet.err == ""


def test_one_sample_is_enough(Y):
    model = small().fit(Y[:1])
    assert model.score(Y[:1]) > -np.sqrt(np.mean(Y[:1] ** 2))
