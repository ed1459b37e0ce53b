"""HyperSpy: decompositions of signals with the estimator, and images restored by ``map``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import kronlearn as kl

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    hs = pytest.importorskip("hyperspy.api", reason="HyperSpy is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SHAPE = (12, 15)


def estimator(**options: Any) -> kl.KroneckerDictionaryLearning:
    usual = {"patch_shape": SHAPE, "n_nonzero_coefs": 4, "max_iter": 3, "random_state": 0}
    return kl.KroneckerDictionaryLearning((8, 8), sparse_output=False, **(usual | options))


@pytest.fixture(name="signal")
def patterns(rng: np.random.Generator) -> Any:
    """A scan of 6 × 7 positions with a pattern of 12 × 15 at each."""
    return hs.signals.Signal2D(rng.random((6, 7, *SHAPE)).astype(np.float32))


def test_the_factors_of_a_decomposition_are_atoms_and_its_loadings_codes(signal: Any) -> None:
    model = estimator()
    signal.decomposition(algorithm=model, print_info=False)
    results = signal.learning_results
    samples = signal.data.reshape(-1, *SHAPE)
    np.testing.assert_array_equal(results.factors, model.components_.T)
    np.testing.assert_array_equal(results.loadings, model.transform(samples))
    assert signal.get_decomposition_loadings().data.shape == (64, 6, 7)
    rebuilt = signal.get_decomposition_model()
    error = np.sqrt(np.mean(np.square(rebuilt.data - signal.data)))
    assert error == pytest.approx(-model.score(samples), rel=1e-5)


def test_decompositions_take_masks_and_poissonian_noise(signal: Any) -> None:
    mask = np.zeros((7, 6), bool)
    mask[2:4] = True
    for options in (
        {"normalize_poissonian_noise": True},
        {"navigation_mask": mask, "reproject": "navigation"},
    ):
        signal.decomposition(algorithm=estimator(), print_info=False, **options)
        assert signal.learning_results.loadings.shape == (42, 64)
        assert np.isfinite(signal.get_decomposition_model().data).all()


def test_a_lazy_signal_is_learned_from_in_batches(signal: Any) -> None:
    signal = signal.as_lazy()
    signal.data = signal.data.rechunk((3, 7, *SHAPE))
    model, expected = estimator(), estimator()
    signal.decomposition(algorithm=model, print_info=False)
    batches = signal.data.compute().reshape(2, 21, -1)
    for batch in batches:
        expected.partial_fit(batch)
    np.testing.assert_array_equal(signal.learning_results.factors, expected.components_.T)
    loadings = np.concatenate([expected.transform(batch) for batch in batches])
    np.testing.assert_array_equal(signal.learning_results.loadings, loadings)
    # A second decomposition with the same estimator continues with another pass over the data.
    signal.decomposition(algorithm=model, print_info=False)
    assert model.n_iter_ == 4


@pytest.mark.parametrize("is_lazy", [False, True])
def test_images_of_a_stack_are_restored_by_map(rng: np.random.Generator, is_lazy: bool) -> None:
    noisy = rng.normal(100, 5, (2, 40, 48)).astype(np.float32)
    sigmas = hs.signals.BaseSignal(np.array([4.0, 6.0])).T
    signal = hs.signals.Signal2D(noisy)
    signal = signal.as_lazy() if is_lazy else signal
    result = signal.map(kl.images.denoise, sigma=sigmas, quality="fast", inplace=False)
    assert result._lazy == is_lazy
    expected = [kl.images.denoise(noisy[k], s, quality="fast") for k, s in ((0, 4), (1, 6))]
    np.testing.assert_array_equal(np.asarray(result.data), expected)
    signal.data[0, 3, 4] = np.nan
    signal.map(kl.images.inpaint, stages=1)
    assert np.isfinite(np.asarray(signal.data)).all()
