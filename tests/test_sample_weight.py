"""Sample weights: a whole number means as many copies of the sample."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import reference
from learning_problems import small_model


@pytest.fixture(name="Y")
def samples(rng):
    return reference.sparse_samples(rng, reference.random_factors(rng, (4, 3), (5, 4)), 90, 2, 0.1)


@pytest.fixture(name="copies")
def numbers_of_copies(rng):
    return rng.integers(0, 4, 90)


def in_memory(Y, folder):
    return Y


def in_a_file(Y, folder):
    np.save(folder / "samples.npy", Y)
    return folder / "samples.npy"


def in_chunks(Y, folder):
    return pytest.importorskip("dask.array").from_array(Y, chunks=(40, 4, 3))


def assert_same_model(one, other):
    np.testing.assert_allclose(one.components_, other.components_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(one.history_["rmse"], other.history_["rmse"], rtol=1e-9)


@pytest.mark.parametrize("given", [in_memory, in_a_file, in_chunks])
@pytest.mark.parametrize(
    "options", [{}, {"n_nonzero_coefs": 4, "tol": 0.4, "max_iter": 1}, {"n_terms": 2}], ids=str
)
def test_whole_weights_mean_as_many_copies(Y, copies, tmp_path, monkeypatch, given, options):
    # A file is then read in several chunks.
    monkeypatch.setattr("kronlearn.core.source.BLOCK_NUMBERS", 200)
    options = options | {"block_size": 16}
    repeated = np.repeat(Y, copies, axis=0)
    expected = small_model(**options).fit(repeated)
    # Only the proportions of the weights matter.
    model = small_model(**options).fit(given(Y, tmp_path), sample_weight=0.7 * copies)
    assert_same_model(model, expected)
    score = model.score(given(Y, tmp_path), sample_weight=copies)
    assert score == pytest.approx(model.score(repeated), rel=1e-12)
    assert score != pytest.approx(model.score(Y), rel=1e-6)


def test_weights_are_relative_to_those_of_other_batches(Y, copies):
    expected = small_model().partial_fit(Y[:30]).partial_fit(np.repeat(Y[30:], copies[30:], axis=0))
    model = small_model().partial_fit(Y[:30], sample_weight=np.ones(30))
    assert_same_model(model.partial_fit(Y[30:], sample_weight=copies[30:]), expected)


def test_init_data_ignores_samples_without_weight(rng):
    Y = rng.uniform(1, 2, (50, 1, 1)) * np.ones((4, 3))
    Y[25:] = 1e6 * rng.standard_normal((25, 4, 3))
    seen = []
    model = small_model(init="data", max_iter=1, callback=seen.append)
    model.fit(Y, sample_weight=np.arange(50) < 25)
    for factor in seen[0].dictionary.factors:
        along = factor.sum(axis=0) / np.sqrt(len(factor))
        np.testing.assert_allclose(np.abs(along), 1.0, atol=1e-3)


def test_weights_keep_float32_and_leave_the_samples_unchanged(Y, copies):
    single = Y.astype(np.float32)
    before = single.copy()
    assert small_model().fit(single, sample_weight=copies).dictionary_.dtype == np.float32
    np.testing.assert_array_equal(single, before)


def test_weights_are_routed_through_a_pipeline(Y, copies):
    rows = Y.reshape(90, 12)
    expected = small_model(patch_shape=(4, 3)).fit(rows, sample_weight=copies)
    with config_context(enable_metadata_routing=True):
        learner = small_model(patch_shape=(4, 3)).set_fit_request(sample_weight=True)
        pipeline = make_pipeline(FunctionTransformer(), learner)
        assert_same_model(pipeline.fit(rows, sample_weight=copies)[-1], expected)


def test_a_single_number_is_the_weight_of_every_sample(Y):
    assert_same_model(small_model().fit(Y, sample_weight=2), small_model().fit(Y))


@pytest.mark.parametrize("scale", [1e-90, 1e-50, 1e80])
def test_weights_that_float32_cannot_hold_are_refused(Y, copies, tmp_path, scale):
    for given in (in_memory, in_a_file):
        with pytest.raises(ValueError, match=r"sample_weight goes up to .* float32 cannot hold"):
            small_model().fit(given(Y.astype(np.float32), tmp_path), sample_weight=scale * copies)
    assert_same_model(
        small_model().fit(Y, sample_weight=scale * copies),
        small_model().fit(Y, sample_weight=copies),
    )


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.ones(89), ValueError, r"shape \(89,\), but X has 90 samples; .* shape \(90,\)"),
        (np.ones((90, 4, 3)), ValueError, r"shape \(90, 4, 3\), but X has 90 samples"),
        (np.full(90, -1.0), ValueError, "must be finite and not negative"),
        (np.full(90, np.nan), ValueError, "must be finite and not negative"),
        (np.zeros(90), ValueError, "zero for all samples"),
        (["heavy"] * 90, ValueError, "sample_weight holds strings"),
    ],
)
def test_invalid_weights_are_refused(Y, weights, error, message):
    model = small_model().fit(Y)
    for method in (model.score, model.fit, model.partial_fit):
        with pytest.raises(error, match=message):
            method(Y, sample_weight=weights)
