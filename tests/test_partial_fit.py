"""Online learning, and how it continues other learning."""

import numpy as np
import pytest

import kronlearn as kl
import reference
from learning_problems import assert_factors, learner, planted, random_terms


def test_partial_fit_adds_the_moments_of_codes_rescaled_to_fit_the_dictionary(rng):
    Y, start = planted(rng, (5, 4), (7, 6), 400)
    model = learner(start).partial_fit(Y[:200]).partial_fit(Y[200:])
    X = reference.code(Y[:200], start, "ols", 3)
    first, s_xx, s_xy = reference.least_squares_sweep(start, *reference.moments(Y[:200], X)[2:])
    X = reference.code(Y[200:], first, "ols", 3)
    _, _, more_xx, more_xy = reference.moments(Y[200:], X)
    second, _, _ = reference.least_squares_sweep(first, s_xx + more_xx, s_xy + more_xy)
    assert_factors(model.factors_, second, 1e-8)


def test_partial_fit_after_an_interrupted_fit_continues_from_that_fit(rng):
    Y, start = planted(rng, (5, 4), (7, 6), 200)

    def interrupt(progress):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    models = [learner(start), learner(start).fit(10 * Y[::-1])]
    for model in models:
        with pytest.raises(KeyboardInterrupt):
            model.set_params(callback=interrupt).fit(Y)
        model.partial_fit(Y)
    assert models[0].dictionary_ == models[1].dictionary_
    complete = learner(start, max_iter=2).fit(Y).partial_fit(Y)
    assert models[0].dictionary_ == complete.dictionary_


def test_atoms_that_earlier_batches_used_are_not_replaced(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start).partial_fit(Y).partial_fit(Y[:2])
    assert model.history_["atoms_replaced"] == [0, 0]
    assert np.all(np.diff(model.history_["seconds"]) > 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_atoms": (7, 7)}, r"n_atoms=\(7, 7\), but .* has \(7, 6\) atoms"),
        ({"patch_shape": (4, 5)}, r"patch_shape=\(4, 5\), but .* has samples of shape \(5, 4\)"),
        ({"n_terms": 1}, "n_terms=1, but .* 2 terms"),
        ({"structure": "orthonormal", "n_atoms": (4, 4)}, "structure='orth.* are not orthonormal"),
    ],
    ids=str,
)
def test_partial_fit_refuses_parameters_that_contradict_the_dictionary(rng, change, words):
    Y, start = planted(rng, (5, 4), (7, 6))
    if "structure" in change:
        start = [factor[:, :4] for factor in start]
    model = learner(start, n_terms=2 if "n_terms" in change else 1).partial_fit(Y)
    with pytest.raises(ValueError, match=rf"{words}; set it back, or call fit to start anew"):
        model.set_params(**change).partial_fit(Y)


def test_forgetting_adapts_to_changing_data(rng):
    first, start = planted(rng, (6, 6), (6, 6), 2000)
    second, _ = planted(rng, (6, 6), (6, 6), 1000)
    scores = {}
    for forgetting in (1.0, 0.7):
        model = learner(start, forgetting=forgetting)
        for batch in [*np.split(first, 20), *np.split(second, 10)]:
            model.partial_fit(batch)
        scores[forgetting] = model.score(second)
    assert scores[0.7] > scores[1.0]


def test_partial_fit_continues_with_the_moments_of_the_best_iteration(rng):
    Y, start = planted(rng, (8, 8), (8, 8), 300, 5, noise=0.3)
    options = {"method": "omp", "n_nonzero_coefs": 5}
    lowest = [np.inf]

    def stop_when_it_rises(progress):
        lowest.append(min(progress.rmse, lowest[-1]))
        return progress.rmse > lowest[-1]

    model = learner(start, max_iter=100, callback=stop_when_it_rises, **options).fit(Y)
    assert model.stop_reason_ == "callback"
    best = int(np.argmin(model.history_["rmse"]))
    expected = learner(start, max_iter=best, **options).fit(Y).partial_fit(Y[:100])
    assert model.partial_fit(Y[:100]).dictionary_ == expected.dictionary_


def test_a_small_batch_does_not_undo_an_earlier_fit(rng):
    Y, start = planted(rng, (8, 8), (16, 16), 500)
    model = learner(start, max_iter=20).fit(Y)
    before = model.score(Y)
    model.partial_fit(Y[:20])
    assert model.score(Y) >= before - 0.02 * abs(before)


@pytest.mark.parametrize("n_terms", [1, 2])
def test_the_first_partial_fit_is_one_iteration_of_fit(rng, n_terms):
    Y, _ = planted(rng, (5, 4), (7, 6))
    start = kl.KroneckerSumDictionary(random_terms(rng, (5, 4), (7, 6), n_terms))
    fitted, partial = learner(start, max_iter=1).fit(Y), learner(start).partial_fit(Y)
    assert_factors([partial.dictionary_.to_dense()], [fitted.dictionary_.to_dense()], 1e-12)
