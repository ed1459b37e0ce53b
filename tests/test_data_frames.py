"""Data frames of pandas and polars as input and output, and dense codes."""

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline

import kronlearn as kl
from kronlearn.comparators import MOD

NAMES = [f"pixel {i}" for i in range(12)]


@pytest.fixture(name="Y")
def rows(rng):
    return rng.standard_normal((60, 12))


@pytest.fixture(name="library", params=["pandas", "polars"])
def library_of_frames(request):
    return pytest.importorskip(request.param)


def frame_of(library, Y, names=NAMES):
    if library.__name__ == "pandas":
        return library.DataFrame(Y, columns=names, index=[f"row {i}" for i in range(len(Y))])
    return library.DataFrame(Y, schema=names)


def learners(**options):
    options = {"n_nonzero_coefs": 2, "max_iter": 1, "random_state": 0} | options
    return [
        kl.KroneckerDictionaryLearning((4, 5), patch_shape=(3, 4), **options),
        MOD(20, patch_shape=(3, 4), **options),
    ]


def test_frames_are_accepted_and_their_column_names_checked(library, Y):
    for plain, model in zip(learners(), learners(), strict=True):
        plain.fit(Y)
        model.fit(frame_of(library, Y))
        assert model.dictionary_ == plain.dictionary_
        assert model.feature_names_in_.tolist() == NAMES
        codes = model.transform(frame_of(library, Y))
        np.testing.assert_array_equal(codes.toarray(), plain.transform(Y).toarray())
        with pytest.raises(ValueError, match="feature names should match"):
            model.score(frame_of(library, Y, NAMES[::-1]))
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            model.transform(Y)


def test_codes_can_be_frames_and_be_transformed_back(library, Y):
    for model in learners(sparse_output=False):
        expected = model.fit_transform(Y)
        frame = model.set_output(transform=library.__name__).fit_transform(frame_of(library, Y))
        assert isinstance(frame, library.DataFrame)
        assert list(frame.columns) == model.get_feature_names_out().tolist()
        if library.__name__ == "pandas":
            assert frame.index[7] == "row 7"
        np.testing.assert_array_equal(frame.to_numpy(), expected)
        np.testing.assert_allclose(
            model.inverse_transform(frame), model.inverse_transform(expected), atol=1e-12
        )


def test_frames_of_sparse_codes_are_refused(Y):
    for model in learners():
        model.fit(Y).set_output(transform="pandas")
        with pytest.raises(ValueError, match="scipy sparse matrix"):
            model.transform(Y)


def test_fit_forgets_the_column_names_of_an_earlier_fit(Y):
    pandas = pytest.importorskip("pandas")
    model, _ = learners()
    model.fit(frame_of(pandas, Y)).fit(Y.reshape(60, 3, 4))
    assert not hasattr(model, "feature_names_in_")
    assert model.transform(Y).shape == (60, 20)


def test_dense_codes_work_in_a_pipeline_that_needs_them(Y):
    model, _ = learners(sparse_output=False)
    labels = Y[:, 0] > 0
    pipeline = make_pipeline(model, GaussianNB()).fit(Y, labels)
    assert pipeline.predict(Y).shape == (60,)
    sparse = model.transform(Y)
    np.testing.assert_array_equal(
        sparse, model.set_params(sparse_output=True).transform(Y).toarray()
    )


def test_frames_with_strings_are_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]})
    with pytest.raises(ValueError, match="X holds strings"):
        learners()[0].fit(frame)
