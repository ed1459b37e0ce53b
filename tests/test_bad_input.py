"""Invalid input is refused with a message that names it and the remedy; odd input is accepted."""

import numpy as np
import pytest
from scipy import sparse

import kronlearn as kl
import reference
from learning_problems import small_model


@pytest.fixture
def factors(rng):
    return reference.random_factors(rng, (4, 3), (5, 4))


@pytest.fixture(name="Y")
def samples(rng):
    return rng.standard_normal((30, 4, 3))


# Samples


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_with_nan_or_infinity_are_refused(Y, factors, value, dtype):
    model = small_model().fit(Y)
    Y = Y.astype(dtype)
    Y[17, 2, 1] = value
    kind = "NaN" if np.isnan(value) else "infinity"
    for use in (lambda Y: kl.sparse_code(Y, factors, 2), small_model().fit, model.transform):
        with pytest.raises(ValueError, match=rf"contains {kind} \(first in sample 17\)"):
            use(Y)


@pytest.mark.parametrize(
    ("samples", "message"),
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
def test_samples_that_are_not_an_array_of_numbers_are_refused(factors, samples, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kl.sparse_code(samples, factors, 2)
    with pytest.raises((TypeError, ValueError), match=message):
        small_model().fit(samples)
    with pytest.raises((TypeError, ValueError), match=message):
        kl.KroneckerDictionary(factors).correlate(samples)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 4, 3), "0 sample"),
        ((30, 3, 4), r"\(4, 3\)"),
        ((30, 4), r"\(4, 3\)"),
        ((30, 13), r"\(4, 3\)"),
        ((30, 4, 3, 1), r"\(4, 3\)"),
        ((4, 3), r"For a single sample pass Y\[None\]"),
        ((12,), r"\(12,\).*reshape"),
    ],
    ids=str,
)
def test_samples_of_the_wrong_shape_are_refused(Y, factors, shape, message):
    samples = np.ones(shape)
    with pytest.raises(ValueError, match=message):
        kl.sparse_code(samples, factors, 2)
    # scikit-learn has a message of its own for rows.
    message = "features" if shape[1:] in [(4,), (13,)] else message.replace("Y", "X")
    with pytest.raises(ValueError, match=message):
        small_model().fit(Y).transform(samples)


# Parameters


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_nonzero_coefs": 0}, "n_nonzero_coefs=0 is not positive"),
        ({"n_nonzero_coefs": -1}, "n_nonzero_coefs=-1 is not positive"),
        ({"n_nonzero_coefs": 21}, r"n_nonzero_coefs=21 exceeds the 20 atoms.*5 × 4.*20"),
        ({"n_nonzero_coefs": 2.5}, "n_nonzero_coefs=2.5 is not an integer"),
        ({"n_nonzero_coefs": "two"}, "n_nonzero_coefs='two' is not an integer"),
        ({"n_nonzero_coefs": None}, "Neither n_nonzero_coefs nor tol"),
        ({"tol": -0.1}, "tol=-0.1 is not a residual norm"),
        ({"tol": np.nan}, "tol=nan is not a residual norm"),
        ({"tol": np.r_[np.ones(29), -1]}, "tol=-1 is not a residual norm"),
        ({"tol": np.ones(29)}, r"tol has shape \(29,\).*30"),
        ({"tol": "3"}, "tol='3' is not a number"),
        ({"tol": [[1], [1, 2]]}, "tol has parts of different shapes"),
        ({"method": "lasso"}, r"method='lasso'.*omp.*ols.*exchange.*threshold"),
        ({"method": "threshold"}, r"threshold.*orthonormal"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"n_jobs": 1.5}, "n_jobs=1.5 is not an integer"),
        ({"block_size": 0}, "block_size=0 is too small"),
        ({"device": "tpu"}, "device='tpu'.*cpu"),
        ({"weights": np.ones((30, 3, 4))}, r"weights has shape \(30, 3, 4\)"),
        ({"weights": np.ones(4)}, r"weights has shape \(4,\)"),
        ({"weights": -np.ones((4, 3))}, "weights holds -1"),
        ({"weights": np.full((4, 3), np.nan)}, "weights holds NaN"),
        ({"weights": np.full((4, 3), np.inf)}, "weights holds inf"),
        ({"weights": "heavy"}, "weights holds strings"),
    ],
    ids=str,
)
def test_invalid_arguments_of_sparse_code_are_refused(Y, factors, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kl.sparse_code(Y, factors, **({"n_nonzero_coefs": 2} | arguments))


@pytest.mark.parametrize(
    ("bad", "message"), [(1e300, "values too large to be squared"), (np.inf, "contains infinity")]
)
def test_entries_without_weight_are_not_blamed(Y, factors, bad, message):
    weights = np.ones(Y.shape, bool)
    weights[2, 0] = False
    Y[2], Y[2, 0] = bad, np.nan
    with pytest.raises(ValueError, match=message + r".*sample 2\)"):
        kl.sparse_code(Y, factors, 2, weights=weights)


def test_thresholding_refuses_weights(Y, rng):
    factors = reference.orthonormal_factors(rng, (4, 3))
    with pytest.raises(ValueError, match=r"threshold.*weights|weights.*threshold"):
        kl.sparse_code(Y, factors, 2, method="threshold", weights=np.ones(Y.shape))


def test_learners_accept_more_nonzeros_than_there_are_atoms(Y):
    capped, all_atoms = (
        small_model(n_nonzero_coefs=np.int64(count), random_state=0).fit(Y) for count in (21, 20)
    )
    np.testing.assert_array_equal(capped.factors_[0], all_atoms.factors_[0])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("n_nonzero_coefs", 0, "n_nonzero_coefs=0 is not positive"),
        ("n_nonzero_coefs", None, "Neither n_nonzero_coefs nor tol"),
        ("tol", -0.1, "tol=-0.1"),
        ("tol", "3", "tol='3' is not a number"),
        ("tol", True, "tol=True is not a number"),
        ("method", np.array(["ols", "omp"]), "method=.*cannot be used for learning"),
        ("structure", "banded", "structure='banded'.*orthonormal"),
        ("structure", np.zeros(2), "structure=.*does not exist"),
        ("structure", "orthonormal", r"n_atoms=\(5, 4\) is more .* pass n_atoms=\(4, 3\)"),
        ("init", "zeros", "init='zeros'.*dct"),
        ("init", 3, "init is neither one of dct, data, random"),
        ("init", [np.eye(4)[:, :3], np.eye(3)], r"init has \(3, 3\) atoms.*n_atoms=\(5, 4\)"),
        ("device", ["cpu"], "device=.*does not exist"),
        ("engine", np.zeros(2), "engine=.*does not exist"),
        ("max_iter", 0, "max_iter=0 is too small"),
        ("min_improvement", -0.1, "min_improvement=-0.1 is not in"),
        ("time_budget", -1.0, "time_budget=-1.0 is not in"),
        ("forgetting", 0.0, "forgetting=0.0 is not in"),
        ("forgetting", 1.5, "forgetting=1.5 is not in"),
        ("checkpoint", 3, "checkpoint=3 is not the path of a file"),
        ("checkpoint_every", 0, "checkpoint_every=0 is too small"),
        ("block_size", 2**63, "block_size=.*is too large"),
        ("n_jobs", "all", "n_jobs='all' is not an integer"),
        ("n_atoms", (5, 0), "n_atoms=.*positive"),
        ("n_atoms", (), "n_atoms=.*positive"),
        ("n_atoms", (5, 4, 3), r"n_atoms=\(5, 4, 3\) does not suit .*\(4, 3\)"),
        ("patch_shape", (5, 3), r"\(30, 4, 3\).*\(5, 3\)"),
        ("random_state", "zero", "random_state='zero' is not a seed"),
        ("random_state", -1, "random_state=-1 is not a seed"),
        ("n_terms", 0, "n_terms=0 is too small"),
        ("n_terms", 2.0, "n_terms=2.0 is not an integer"),
        ("n_terms", 13, "n_terms=13: .*at most 12"),
        ("sparse_output", "no", "sparse_output='no' is neither True nor False"),
        ("callback", 3, "callback=3 is not a function"),
    ],
    ids=str,
)
def test_invalid_parameters_of_the_estimator_are_refused_by_name(Y, option, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        small_model(**{option: value}).fit(Y)


def test_orthonormal_learning_needs_an_orthonormal_init_and_one_term(Y, rng):
    start = reference.random_factors(rng, (4, 3), (4, 3))
    with pytest.raises(ValueError, match="needs an orthonormal start"):
        small_model(n_atoms=(4, 3), structure="orthonormal", init=start).fit(Y)
    model = small_model(n_terms=2, structure="orthonormal")
    for fit in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match='n_terms=2 needs structure="general"'):
            fit(Y)


# Odd input that is accepted


@pytest.mark.parametrize("options", [{}, {"structure": "orthonormal"}, {"n_terms": 2}], ids=str)
def test_learning_from_zeros_stops_at_once_with_a_valid_dictionary(options):
    model = small_model(n_atoms=(4, 3), **options).fit(np.zeros((20, 4, 3)))
    assert (model.stop_reason_, model.n_iter_) == ("converged", 0)
    assert model.history_["rmse"] == [0.0]
    np.testing.assert_allclose(np.linalg.norm(model.dictionary_.to_dense(), axis=0), 1.0)
    assert model.transform(np.zeros((2, 4, 3))).nnz == 0


@pytest.mark.parametrize(
    "options", [{"init": "dct"}, {"init": "data"}, {"init": "random"}, {"n_terms": 2}], ids=str
)
def test_learning_from_constant_samples_represents_them(options):
    model = small_model(random_state=0, max_iter=10, **options).fit(np.full((20, 4, 3), 7.0))
    assert model.history_["rmse"][-1] < 1e-6
    assert np.isfinite(model.dictionary_.to_dense()).all()


def test_zero_samples_among_others_are_accepted(Y):
    Y[::3] = 0.0
    model = small_model().fit(Y)
    assert np.all(np.diff(model.transform(Y).indptr)[::3] == 0)
    assert np.all(np.isfinite(model.history_["rmse"]))
