"""Bad input is refused in words that say what was given and what to do; odd input is not."""

import numpy as np
import pytest
from scipy import sparse

import kronlearn as kl
import reference


@pytest.fixture
def factors(rng):
    return reference.random_factors(rng, (4, 3), (5, 4))


@pytest.fixture(name="Y")
def samples(rng):
    return rng.standard_normal((30, 4, 3))


def learner(**options):
    return kl.KroneckerDictionaryLearning(
        **({"n_atoms": (5, 4), "n_nonzero_coefs": 2, "max_iter": 2, "n_jobs": 1} | options)
    )


# Samples


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_that_are_not_finite_are_refused(Y, factors, value, dtype):
    Y = Y.astype(dtype)
    Y[17, 2, 1] = value
    word = "NaN" if np.isnan(value) else "inf"
    with pytest.raises(ValueError, match=rf"(?i){word}"):
        kl.sparse_code(Y, factors, 2)
    with pytest.raises(ValueError, match=rf"(?i){word}"):
        learner().fit(Y)
    with pytest.raises(ValueError, match=rf"(?i){word}"):
        learner().fit(Y[:10]).transform(Y)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros((30, 4, 3), "M8[s]"), "has dtype datetime64"),
        (np.ones((30, 4, 3), complex), "Complex data not supported"),
        (np.zeros((30, 12), [("a", "f4")]), "has dtype .*; kronlearn works with real numbers"),
        ([np.ones((4, 3)), np.ones((3, 4))], "has parts of different shapes"),
        (np.ma.masked_less(np.eye(12), 1), r"is a masked array.*\.filled\(value\)"),
        (np.ones((30, 12)).astype(str), "holds strings"),
        (np.ones((30, 12)).astype("S3").astype(object), "holds strings"),
        ([["a", "b"], ["c", "d"]], "holds strings"),
        (np.full((30, 12), object()), "has dtype object, which does not convert"),
        ({"a": 1}, "is a dict; pass an array"),
        (None, "is None; pass an array"),
        (sparse.csr_array(np.eye(12)), r"is a sparse csr_array; pass a dense array, .*\.toarray"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_samples_that_are_no_array_of_numbers_are_refused(factors, samples, words):
    with pytest.raises((TypeError, ValueError), match=words):
        kl.sparse_code(samples, factors, 2)
    with pytest.raises((TypeError, ValueError), match=words):
        learner().fit(samples)
    with pytest.raises((TypeError, ValueError), match=words):
        kl.KroneckerDictionary(factors).correlate(samples)


def test_no_samples_are_refused(factors):
    with pytest.raises(ValueError, match="0 sample"):
        kl.sparse_code(np.empty((0, 4, 3)), factors, 2)
    with pytest.raises(ValueError, match="0 sample"):
        learner().fit(np.empty((0, 4, 3)))


@pytest.mark.parametrize("shape", [(30, 3, 4), (30, 4), (30, 13), (30, 4, 3, 1), (4, 3)])
def test_samples_of_another_shape_than_the_dictionary_are_refused(rng, factors, shape):
    with pytest.raises(ValueError, match=r"4 × 3|\(4, 3\)"):
        kl.sparse_code(rng.standard_normal(shape), factors, 2)


@pytest.mark.parametrize("shape", [(30, 3, 4), (30, 13), (30, 4, 3, 1)])
def test_a_fitted_model_refuses_samples_of_another_shape(Y, rng, shape):
    model = learner().fit(Y)
    with pytest.raises(ValueError, match=r"4 × 3|\(4, 3\)|12 features|features"):
        model.transform(rng.standard_normal(shape))


def test_one_flat_array_is_refused_with_the_way_to_reshape_it(factors):
    with pytest.raises(ValueError, match=r"\(12,\).*reshape"):
        kl.sparse_code(np.ones(12), factors, 2)


def test_samples_with_more_modes_than_atoms_are_refused(rng):
    with pytest.raises(ValueError, match="n_atoms"):
        learner().fit(rng.standard_normal((30, 4, 3, 2)))


def test_a_patch_shape_that_does_not_fit_flat_samples_is_refused(rng):
    with pytest.raises(ValueError, match=r"\(30, 12\).*\(5, 3\)"):
        learner(patch_shape=(5, 3)).fit(rng.standard_normal((30, 12)))


# Requests


@pytest.mark.parametrize("value", [0, -1])
def test_fewer_than_one_coefficient_is_refused(Y, factors, value):
    with pytest.raises(ValueError, match=f"n_nonzero_coefs={value}"):
        kl.sparse_code(Y, factors, value)
    with pytest.raises(ValueError, match=f"n_nonzero_coefs={value}"):
        learner(n_nonzero_coefs=value).fit(Y)


def test_more_coefficients_than_atoms_are_refused(Y, factors):
    with pytest.raises(ValueError, match=r"n_nonzero_coefs=21 exceeds the 20 atoms.*5 × 4.*20"):
        kl.sparse_code(Y, factors, 21)


def test_for_learning_more_coefficients_than_atoms_are_a_cap(Y):
    capped, all_atoms = (
        learner(n_nonzero_coefs=count, random_state=0).fit(Y) for count in (21, 20)
    )
    np.testing.assert_array_equal(capped.factors_[0], all_atoms.factors_[0])


@pytest.mark.parametrize("value", [2.5, "two"])
def test_a_number_of_coefficients_that_is_no_integer_is_refused(Y, factors, value):
    with pytest.raises((TypeError, ValueError), match="n_nonzero_coefs"):
        kl.sparse_code(Y, factors, value)


def test_numpy_integers_are_integers(Y, factors):
    expected = kl.sparse_code(Y, factors, 2)
    np.testing.assert_array_equal(
        kl.sparse_code(Y, factors, np.int64(2)).toarray(), expected.toarray()
    )


def test_neither_sparsity_nor_tolerance_is_refused(Y, factors):
    with pytest.raises(ValueError, match=r"n_nonzero_coefs.*tol|tol.*n_nonzero_coefs"):
        kl.sparse_code(Y, factors)
    with pytest.raises(ValueError, match=r"n_nonzero_coefs.*tol|tol.*n_nonzero_coefs"):
        learner(n_nonzero_coefs=None, tol=None).fit(Y)


@pytest.mark.parametrize("tol", [-0.1, np.nan])
def test_a_tolerance_below_zero_or_nan_is_refused(Y, factors, tol):
    with pytest.raises(ValueError, match="tol"):
        kl.sparse_code(Y, factors, tol=tol)
    with pytest.raises(ValueError, match="tol"):
        kl.sparse_code(Y, factors, tol=np.r_[np.ones(29), tol])
    with pytest.raises(ValueError, match="tol"):
        learner(tol=tol).fit(Y)


def test_tolerances_for_another_number_of_samples_are_refused(Y, factors):
    with pytest.raises(ValueError, match=r"tol.*29.*30|tol.*30.*29"):
        kl.sparse_code(Y, factors, tol=np.ones(29))


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("method", "lasso", "omp"),
        ("structure", "banded", "orthonormal"),
        ("init", "zeros", "dct"),
        ("device", "tpu", "cpu"),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(Y, option, value, known):
    with pytest.raises(ValueError, match=f"{option}='{value}'.*{known}"):
        learner(**{option: value}).fit(Y)


def test_an_unknown_coder_is_refused_with_the_known_ones(Y, factors):
    with pytest.raises(ValueError, match=r"method='lasso'.*omp.*ols.*exchange.*threshold"):
        kl.sparse_code(Y, factors, 2, method="lasso")


@pytest.mark.parametrize("n_jobs", [0, 1.5, "all"])
def test_an_impossible_number_of_threads_is_refused(Y, factors, n_jobs):
    with pytest.raises((ValueError, TypeError), match="n_jobs"):
        kl.sparse_code(Y, factors, 2, n_jobs=n_jobs)
    with pytest.raises((ValueError, TypeError), match="n_jobs"):
        learner(n_jobs=n_jobs).fit(Y)


@pytest.mark.parametrize("block_size", [0, -5])
def test_an_impossible_block_size_is_refused(Y, factors, block_size):
    with pytest.raises(ValueError, match="block_size"):
        kl.sparse_code(Y, factors, 2, block_size=block_size)
    with pytest.raises(ValueError, match="block_size"):
        learner(block_size=block_size).fit(Y)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_iter", 0),
        ("max_iter", -3),
        ("min_improvement", -0.1),
        ("time_budget", -1.0),
        ("forgetting", 0.0),
        ("forgetting", 1.5),
        ("checkpoint_every", 0),
        ("n_atoms", (5, 0)),
        ("n_atoms", ()),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(Y, option, value):
    with pytest.raises(ValueError, match=option):
        learner(**{option: value}).fit(Y)


# Dictionaries


def test_columns_that_are_not_unit_are_refused_with_their_place_and_norm(Y, factors):
    factors[1][:, 2] *= 3.0
    with pytest.raises(ValueError, match=r"Column 2 of factors\[1\] has norm 3.*normalized"):
        kl.sparse_code(Y, factors, 2)


def test_thresholding_needs_orthonormal_factors(Y, factors):
    with pytest.raises(ValueError, match=r"threshold.*orthonormal"):
        kl.sparse_code(Y, factors, 2, method="threshold")


def test_orthonormal_structure_needs_as_many_rows_as_columns(Y):
    with pytest.raises(ValueError, match="orthonormal"):
        learner(structure="orthonormal").fit(Y)


def test_a_start_that_is_not_orthonormal_is_refused_for_orthonormal_structure(Y, rng):
    start = reference.random_factors(rng, (4, 3), (4, 3))
    with pytest.raises(ValueError, match="orthonormal"):
        learner(n_atoms=(4, 3), structure="orthonormal", init=start).fit(Y)


def test_a_start_of_another_shape_is_refused(Y, rng):
    start = reference.random_factors(rng, (4, 3), (6, 4))
    with pytest.raises(ValueError, match=r"init.*n_atoms|n_atoms.*init"):
        learner(init=start).fit(Y)


# Weights


@pytest.mark.parametrize("shape", [(30, 3, 4), (29, 4, 3), (4,), (30, 12, 1, 1)])
def test_weights_of_a_wrong_shape_are_refused(Y, factors, shape):
    with pytest.raises(ValueError, match="weights"):
        kl.sparse_code(Y, factors, 2, weights=np.ones(shape))


@pytest.mark.parametrize(
    ("value", "word"),
    [(-1.0, "negative|-1"), (np.nan, "(?i)nan|finite"), (np.inf, "(?i)inf|finite")],
)
def test_weights_below_zero_or_not_finite_are_refused(Y, factors, value, word):
    weights = np.ones(Y.shape)
    weights[3, 1, 1] = value
    with pytest.raises(ValueError, match="weights") as error:
        kl.sparse_code(Y, factors, 2, weights=weights)
    assert error.match(word)


def test_thresholding_refuses_weights(Y, rng):
    factors = reference.orthonormal_factors(rng, (4, 3))
    with pytest.raises(ValueError, match=r"threshold.*weights|weights.*threshold"):
        kl.sparse_code(Y, factors, 2, method="threshold", weights=np.ones(Y.shape))


# Odd but welcome


@pytest.mark.parametrize("structure", ["general", "orthonormal"])
def test_learning_from_zeros_gives_a_valid_dictionary_and_no_error(structure):
    n_atoms = (4, 3)
    model = learner(n_atoms=n_atoms, structure=structure).fit(np.zeros((20, 4, 3)))
    assert model.history_["rmse"][-1] == 0.0
    for factor in model.factors_:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0)
    assert model.transform(np.zeros((2, 4, 3))).nnz == 0


@pytest.mark.parametrize("init", ["dct", "data", "random"])
def test_learning_from_constant_samples_represents_them(init):
    model = learner(init=init, random_state=0, max_iter=10).fit(np.full((20, 4, 3), 7.0))
    assert model.history_["rmse"][-1] < 1e-6
    assert all(np.all(np.isfinite(factor)) for factor in model.factors_)


def test_some_zero_samples_do_no_harm(Y):
    Y[::3] = 0.0
    model = learner().fit(Y)
    assert np.all(np.diff(model.transform(Y).indptr)[::3] == 0)
    assert np.all(np.isfinite(model.history_["rmse"]))
