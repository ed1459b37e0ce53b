"""The learning loop: equal to the reference, monotone, reproducible, and stopping when told to."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import kronlearn as kl
import reference
from kronlearn.core.engine import Coder
from kronlearn.core.plan import Plan, uses_full_moments
from kronlearn.core.structures import General, Orthonormal

# Every overcomplete mode has more entries than a code has coefficients: in OLS the last atoms of a
# smaller mode gain the same, and rounding decides between them.
SHAPES = [
    pytest.param((8,), (12,), 3, id="one mode"),
    pytest.param((5, 4), (7, 6), 3, id="two modes"),
    pytest.param((5, 5), (5, 5), 4, id="two square modes"),
    pytest.param((4, 5, 4), (5, 5, 6), 3, id="three modes"),
]
IMAGES = Path(__file__).resolve().parents[2] / "shared" / "data" / "images"


def learner(start, **options):
    """An estimator that starts from the factors ``start``."""
    n_atoms = tuple(factor.shape[1] for factor in start)
    defaults = {"init": start, "n_nonzero_coefs": 3, "max_iter": 5, "n_refits": 0, "n_jobs": 1}
    return kl.KroneckerDictionaryLearning(n_atoms, random_state=0, **(defaults | options))


def planted(rng, patch_shape, n_atoms, n_nonzero_coefs=3, n_samples=150, noise=0.1):
    """Noisy sparse samples of one random dictionary, and another to start from."""
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, n_nonzero_coefs, noise=noise)
    return Y, reference.random_factors(rng, patch_shape, n_atoms)


def assert_same_model(model, expected, atol=0.0):
    assert model.n_iter_ == expected.n_iter_
    for found, wanted in zip(model.factors_, expected.factors_, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)
    np.testing.assert_allclose(model.history_["rmse"], expected.history_["rmse"], rtol=0, atol=atol)


def assert_never_rises(values, rtol=1e-12):
    values = np.asarray(values)
    assert np.all(values[1:] <= values[:-1] * (1 + rtol))


# Equality with the reference


@pytest.mark.parametrize("n_refits", [0, 1, 2])
@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize(("patch_shape", "n_atoms", "s"), SHAPES)
def test_five_iterations_equal_the_reference(
    rng, patch_shape, n_atoms, s, method, monotone, n_refits
):
    Y, start = planted(rng, patch_shape, n_atoms, s)
    options = {"method": method, "monotone": monotone, "n_refits": n_refits}
    factors, rmse = reference.learn(Y, start, s, n_iter=5, **options)
    if rmse[-1] > min(rmse):  # the best dictionary is returned, not the last
        factors, _ = reference.learn(Y, start, s, n_iter=1 + int(np.argmin(rmse)), **options)
    model = learner(start, n_nonzero_coefs=s, **options).fit(Y)
    assert model.n_iter_ == 5
    assert sum(model.history_["atoms_replaced"]) == 0
    for found, wanted in zip(model.factors_, factors, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-8)


@pytest.mark.parametrize(
    ("n_atoms", "n_refits", "statistics"),
    [((4, 4), 0, "full"), ((4, 4), 1, "full"), ((6, 5), 0, "full"), ((6, 5), 0, "per-mode")],
    ids=str,
)
def test_iterations_in_which_halves_take_turns_equal_the_reference(
    rng, monkeypatch, n_atoms, n_refits, statistics
):
    monkeypatch.setattr("kronlearn.core.iteration._FEWEST_FOR_TURNS", 0)
    truth = reference.random_factors(rng, (4, 4), n_atoms)
    Y = reference.sparse_samples(rng, truth, 600, 3, noise=0.3)
    start = reference.random_factors(rng, (4, 4), n_atoms)
    factors, rmse = reference.learn(Y, start, 3, n_iter=24, n_refits=n_refits, fewest_for_turns=0)
    options = {"n_refits": n_refits, "statistics": statistics, "max_iter": 24, "block_size": 100}
    model = learner(start, **options).fit(Y)
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-8)
    for found, wanted in zip(model.factors_, factors, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("patch_shape", [(9,), (4, 5), (2, 3, 4)], ids=str)
def test_five_orthonormal_iterations_equal_the_reference(rng, patch_shape, monotone):
    truth = reference.orthonormal_factors(rng, patch_shape)
    Y = reference.sparse_samples(rng, truth, 200, 3, noise=0.1)
    start = reference.orthonormal_factors(rng, patch_shape)
    options = {"structure": "orthonormal", "monotone": monotone}
    factors, rmse = reference.learn(Y, start, 3, n_iter=5, **options)
    model = learner(start, **options).fit(Y)
    for found, wanted in zip(model.factors_, factors, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-8)


def test_the_histories_are_the_errors_before_and_after_the_update(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, max_iter=1).fit(Y)
    X = reference.code(Y, start, "ols", 3)
    before = np.sqrt(np.mean(reference.residuals(Y, start, X) ** 2))
    assert model.history_["coding_rmse"][0] == pytest.approx(before, rel=1e-9)
    assert model.history_["rmse"][0] == pytest.approx(reference.learn(Y, start, 3, n_iter=1)[1][0])
    assert model.history_["rmse"][0] < before
    assert model.history_["mean_nonzeros"][0] == pytest.approx(3.0)


def test_every_history_has_one_entry_per_iteration(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    history = learner(start, max_iter=4).fit(Y).history_
    assert {len(values) for values in history.values()} == {4}
    assert {"rmse", "coding_rmse", "seconds", "atoms_replaced", "mean_nonzeros"} <= set(history)
    assert np.all(np.diff([0.0, *history["seconds"]]) > 0)


# Never worse


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("n_refits", [0, 2])
def test_monotone_learning_never_raises_the_error(rng, n_refits, method, dtype):
    Y, start = planted(rng, (8, 8), (8, 8), 5, n_samples=400, noise=0.3)
    model = learner(
        start, method=method, n_nonzero_coefs=5, n_refits=n_refits, max_iter=40, monotone=True
    ).fit(Y.astype(dtype))
    rtol = 1e-12 if dtype is np.float64 else 1e-6
    assert model.n_iter_ > 20
    assert sum(model.history_["atoms_replaced"]) == 0
    assert_never_rises(model.history_["rmse"], rtol)
    assert np.all(
        np.asarray(model.history_["rmse"]) <= np.asarray(model.history_["coding_rmse"]) * (1 + rtol)
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_replacing_dead_atoms_does_not_break_monotonicity(rng, dtype):
    Y, start = planted(rng, (6, 6), (8, 8), 3, n_samples=300)
    start[0][:, 7] = start[0][:, 0]  # a duplicate is never chosen
    model = learner(start, max_iter=20, monotone=True).fit(Y.astype(dtype))
    assert model.history_["atoms_replaced"][0] >= 1
    assert_never_rises(model.history_["rmse"], 1e-12 if dtype is np.float64 else 1e-6)


def test_without_monotone_the_error_may_rise(rng):
    Y, start = planted(rng, (8, 8), (8, 8), 5, n_samples=300, noise=0.3)
    model = learner(start, method="omp", n_nonzero_coefs=5, max_iter=40, monotone=False).fit(Y)
    assert np.any(np.diff(model.history_["rmse"]) > 0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_orthonormal_learning_never_raises_the_error_and_stays_orthonormal(rng, dtype):
    Y = rng.standard_normal((300, 5, 6)).cumsum(axis=1).cumsum(axis=2).astype(dtype)
    model = kl.KroneckerDictionaryLearning(
        (5, 6), n_nonzero_coefs=4, structure="orthonormal", max_iter=30, n_jobs=1
    ).fit(Y)
    assert_never_rises(model.history_["rmse"], 1e-12 if dtype is np.float64 else 1e-6)
    assert model.history_["rmse"][-1] < model.history_["rmse"][0]
    assert model.dictionary_.is_orthonormal
    for factor in model.factors_:
        assert factor.dtype == dtype
        np.testing.assert_allclose(factor.T @ factor, np.eye(factor.shape[1]), atol=1e-5)


def test_orthonormal_structure_thresholds_whatever_the_method_says(rng):
    Y = rng.standard_normal((100, 4, 4))
    start = reference.orthonormal_factors(rng, (4, 4))
    first = learner(start, structure="orthonormal", method="omp").fit(Y)
    second = learner(start, structure="orthonormal", method="ols").fit(Y)
    assert_same_model(first, second)
    expected = kl.sparse_code(Y, first.dictionary_, 3, method="threshold")
    np.testing.assert_array_equal(first.transform(Y).toarray(), expected.toarray())


# The same result, however it is computed


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("statistics", ["full", "per-mode", "recode"])
@pytest.mark.parametrize("structure", ["general", "orthonormal"])
def test_the_number_of_threads_changes_no_bit(rng, structure, statistics, dtype):
    Y = rng.standard_normal((700, 6, 6)).cumsum(axis=1).astype(dtype)
    models = [
        kl.KroneckerDictionaryLearning(
            (6, 6),
            n_nonzero_coefs=4,
            structure=structure,
            statistics=statistics,
            max_iter=5,
            n_refits=1,
            block_size=64,
            random_state=0,
            n_jobs=n_jobs,
        ).fit(Y)
        for n_jobs in (1, 2, 5)
    ]
    assert_same_model(models[1], models[0])
    assert_same_model(models[2], models[0])


@pytest.mark.parametrize("n_jobs", [None, -1])
def test_n_jobs_none_and_all_cores_give_the_same_bits(rng, n_jobs):
    Y, start = planted(rng, (5, 4), (7, 6))
    assert_same_model(learner(start, n_jobs=n_jobs).fit(Y), learner(start).fit(Y))


@pytest.mark.parametrize("block_size", [1, 37, 1000])
def test_another_block_size_changes_rounding_only(rng, block_size):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, block_size=block_size, n_refits=1).fit(Y)
    assert_same_model(model, learner(start, n_refits=1).fit(Y), atol=1e-10)


@pytest.mark.parametrize(("patch_shape", "n_atoms", "s"), SHAPES)
def test_full_and_per_mode_statistics_give_the_same_factors(rng, patch_shape, n_atoms, s):
    Y, start = planted(rng, patch_shape, n_atoms, s)
    options = {"n_nonzero_coefs": s, "n_refits": 1}
    full = learner(start, statistics="full", **options).fit(Y)
    per_mode = learner(start, statistics="per-mode", **options).fit(Y)
    assert_same_model(per_mode, full, atol=1e-9)


@pytest.mark.parametrize("patch_shape", [(9,), (4, 5), (2, 3, 4)], ids=str)
def test_full_and_per_mode_statistics_give_the_same_orthonormal_factors(rng, patch_shape):
    Y = reference.sparse_samples(rng, reference.orthonormal_factors(rng, patch_shape), 200, 3, 0.1)
    start = reference.orthonormal_factors(rng, patch_shape)
    full = learner(start, statistics="full", structure="orthonormal").fit(Y)
    per_mode = learner(start, statistics="per-mode", structure="orthonormal").fit(Y)
    assert_same_model(per_mode, full, atol=1e-9)


@pytest.mark.parametrize(
    ("structure", "m", "n", "n_samples", "full"),
    [
        ("general", 8, 8, 10, True),
        ("general", 16, 16, 1000, True),
        ("general", 32, 32, 8000, False),
        ("general", 32, 32, 1_000_000, True),
        ("general", 8, 40, 1_000_000, False),
        ("orthonormal", 32, 32, 8000, False),
        ("orthonormal", 48, 48, 1_000_000, True),
    ],
)
def test_full_moments_are_summed_unless_they_are_many_for_the_samples(
    structure, m, n, n_samples, full
):
    made = {"general": General, "orthonormal": Orthonormal}[structure]()
    dictionary = kl.KroneckerDictionary.normalized([np.eye(m, n) + 0.1] * 2)
    plan = Plan(coder=Coder("omp", 4), structure=made)
    assert uses_full_moments(plan, dictionary, n_samples) == full


def test_automatic_statistics_are_one_of_the_two(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    auto = learner(start, statistics="auto").fit(Y)
    assert_same_model(auto, learner(start, statistics="full").fit(Y), atol=1e-9)


def test_coding_again_before_every_mode_learns_too(rng):
    Y, start = planted(rng, (6, 6), (6, 6), n_samples=400)
    once = learner(start, statistics="full", max_iter=15).fit(Y)
    recode = learner(start, statistics="recode", max_iter=15).fit(Y)
    assert_never_rises(recode.history_["rmse"])
    assert recode.history_["rmse"][-1] < 0.8 * recode.history_["rmse"][0]
    assert recode.history_["rmse"][-1] < 1.2 * once.history_["rmse"][-1]


@pytest.mark.parametrize("statistics", ["full", "per-mode", "recode"])
def test_samples_that_must_be_converted_block_by_block_learn_the_same_bits(
    rng, monkeypatch, tmp_path, statistics
):
    Y = rng.integers(0, 256, (500, 5, 5), dtype=np.uint8)
    start = reference.random_factors(rng, (5, 5), (6, 6))
    options = {"statistics": statistics, "n_refits": 1, "block_size": 32, "n_jobs": 2}
    expected = learner(start, **options).fit(Y.astype(np.float64))
    monkeypatch.setattr("kronlearn.core.source.BLOCK_NUMBERS", 2000)
    np.save(tmp_path / "samples.npy", Y)
    for samples in (Y, np.asfortranarray(Y), np.load(tmp_path / "samples.npy", mmap_mode="r")):
        assert_same_model(learner(start, **options).fit(samples), expected)


@pytest.mark.parametrize("init", ["dct", "data", "random"])
def test_one_random_state_gives_one_model(rng, init):
    Y, _ = planted(rng, (4, 4), (5, 5))
    make = {"n_atoms": (5, 5), "n_nonzero_coefs": 3, "init": init, "max_iter": 3, "n_jobs": 1}
    first = kl.KroneckerDictionaryLearning(random_state=1, **make).fit(Y)
    again = kl.KroneckerDictionaryLearning(random_state=1, **make).fit(Y)
    other = kl.KroneckerDictionaryLearning(random_state=2, **make).fit(Y)
    assert_same_model(again, first)
    assert np.abs(other.factors_[0] - first.factors_[0]).max() > 1e-3


def test_a_dictionary_to_start_from_is_left_as_it_was(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    d = kl.KroneckerDictionary(start)
    assert_same_model(learner(start, init=d).fit(Y), learner(start).fit(Y))
    for factor, kept in zip(d.factors, start, strict=True):
        np.testing.assert_array_equal(factor, kept)


# Quality


def recovery_rate(found, truth):
    """Share of true atoms that some found atom equals up to sign, to 0.99 of an inner product."""
    agreement = [np.abs(f.T @ t).max(axis=0) > 0.99 for f, t in zip(found, truth, strict=True)]
    return np.mean(np.concatenate(agreement))


def test_a_planted_dictionary_is_recovered_from_a_nearby_start(rng):
    truth = reference.random_factors(rng, (8, 8), (10, 10))
    Y = reference.sparse_samples(rng, truth, 3000, 3, noise=0.02)
    start = [f + 0.1 * rng.standard_normal(f.shape) for f in truth]
    start = [f / np.linalg.norm(f, axis=0) for f in start]
    assert recovery_rate(start, truth) < 0.5
    model = learner(start, max_iter=40, n_refits=1).fit(Y)
    assert recovery_rate(model.factors_, truth) == 1.0


def test_most_of_a_planted_dictionary_is_recovered_from_random_starts(rng):
    truth = reference.random_factors(rng, (8, 8), (8, 8))
    Y = reference.sparse_samples(rng, truth, 3000, 3, noise=0.02)
    rates = [
        recovery_rate(
            kl.KroneckerDictionaryLearning(
                (8, 8), n_nonzero_coefs=3, init="random", max_iter=100, random_state=seed, n_jobs=2
            )
            .fit(Y)
            .factors_,
            truth,
        )
        for seed in range(5)
    ]
    assert np.mean(rates) >= 0.7


@pytest.mark.skipif(not IMAGES.is_dir(), reason="the images of the paper are not here")
@pytest.mark.parametrize(("n_atoms", "rmse"), [((8, 8), 5.40), ((16, 16), 4.56)], ids=str)
def test_learning_on_the_images_of_the_paper_reaches_its_quality(n_atoms, rmse):
    from skimage.io import imread

    patches = []
    for name in ("lena", "peppers", "boat"):
        image = imread(IMAGES / f"{name}.png").astype(np.float32)
        image = image if image.ndim == 2 else image[..., 0]
        patches.append(image.reshape(64, 8, 64, 8).swapaxes(1, 2).reshape(-1, 8, 8))
    Y = np.concatenate(patches)
    assert Y.shape == (12288, 8, 8)
    Y = Y[np.random.default_rng(0).permutation(12288)[:9216]]
    Y -= Y.mean(axis=(1, 2), keepdims=True)
    model = kl.KroneckerDictionaryLearning(n_atoms, random_state=0).fit(Y)
    assert model.history_["rmse"][-1] <= rmse
    assert np.all(np.diff(model.history_["rmse"]) <= 0)


# Error targets


def noisy_problem(rng):
    """Samples of three atoms each, a start, and the residual norm that the noise explains."""
    truth = reference.random_factors(rng, (8, 8), (8, 8))
    Y = reference.sparse_samples(rng, truth, 1000, 3, noise=0.05)
    return Y, reference.random_factors(rng, (8, 8), (8, 8)), 1.1 * 0.05 * 8


@pytest.mark.parametrize("monotone", [False, True])
def test_learning_to_a_tolerance_comes_to_need_fewer_coefficients(rng, monotone):
    Y, start, tol = noisy_problem(rng)
    model = learner(start, n_nonzero_coefs=None, tol=tol, monotone=monotone, max_iter=30).fit(Y)
    nonzeros = model.history_["mean_nonzeros"]
    assert nonzeros[-1] < 0.7 * nonzeros[0]
    assert max(model.history_["coding_rmse"]) <= tol / 8 * (1 + 1e-9)


@pytest.mark.parametrize("monotone", [False, True])
def test_the_dictionary_learned_to_a_tolerance_needs_as_few_coefficients_as_the_last(rng, monotone):
    Y, start, tol = noisy_problem(rng)
    seen = []
    options = {"n_nonzero_coefs": None, "tol": tol, "monotone": monotone, "n_refits": 1}
    model = learner(start, max_iter=30, callback=lambda s: seen.append(s.dictionary), **options)
    model.fit(Y)
    last = kl.sparse_code(Y, seen[-1], tol=tol, method="ols")
    assert model.transform(Y).nnz <= 1.05 * last.nnz


# Dead atoms


def test_unused_atoms_are_replaced_counted_and_then_used(rng):
    Y, start = planted(rng, (6, 6), (8, 8), n_samples=300)
    start[1][:, 3] = start[1][:, 2]
    model = learner(start, max_iter=6).fit(Y)
    assert model.history_["atoms_replaced"][0] >= 1
    for factor in model.factors_:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0, atol=1e-10)
    used = model.transform(Y).toarray().reshape(-1, 8, 8)
    assert np.all(np.abs(used).sum(axis=(0, 1)) > 0)
    assert np.all(np.abs(used).sum(axis=(0, 2)) > 0)


def test_more_atoms_than_the_data_can_use_still_gives_unit_atoms(rng):
    Y = rng.standard_normal((3, 4, 4))
    model = kl.KroneckerDictionaryLearning((9, 9), n_nonzero_coefs=2, max_iter=5, n_jobs=1).fit(Y)
    for factor in model.factors_:
        assert np.all(np.isfinite(factor))
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0, atol=1e-10)


# Stopping


def test_learning_stops_after_max_iter_without_a_word(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, max_iter=3).fit(Y)
    assert (model.stop_reason_, model.n_iter_) == ("max_iter", 3)


def test_learning_stops_when_an_iteration_improves_too_little(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, max_iter=500, min_improvement=1e-3).fit(Y)
    assert model.stop_reason_ == "converged"
    assert 1 < model.n_iter_ < 500
    rmse = np.asarray(model.history_["rmse"])
    improvement = 1 - rmse[1:] / rmse[:-1]
    assert improvement[-1] < 1e-3
    assert np.all(improvement[:-1] >= 1e-3)


def test_running_out_of_iterations_before_convergence_warns(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = learner(start, max_iter=2, min_improvement=1e-9).fit(Y)
    assert model.stop_reason_ == "max_iter"


def test_learning_stops_when_its_time_is_up(rng):
    Y, start = planted(rng, (8, 8), (16, 16), n_samples=2000)
    began = time.perf_counter()
    model = learner(start, max_iter=100_000, time_budget=0.1, monotone=False).fit(Y)
    assert time.perf_counter() - began < 5.0
    assert model.stop_reason_ == "time_budget"
    assert 1 <= model.n_iter_ < 100_000


def test_a_callback_sees_every_iteration_and_can_stop(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    seen = []

    def watch(state):
        seen.append((state.iteration, state.rmse, state.seconds))
        assert isinstance(state.dictionary, kl.KroneckerDictionary)
        return state.iteration == 3

    model = learner(start, max_iter=10, callback=watch).fit(Y)
    assert (model.stop_reason_, model.n_iter_) == ("callback", 3)
    assert [iteration for iteration, _, _ in seen] == [1, 2, 3]
    assert [rmse for _, rmse, _ in seen] == model.history_["rmse"]
    assert all(seconds > 0 for _, _, seconds in seen)


def test_a_callback_that_returns_nothing_does_not_stop(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, callback=lambda state: None).fit(Y)
    assert (model.stop_reason_, model.n_iter_) == ("max_iter", 5)


def test_the_model_after_a_stop_is_that_of_as_many_iterations(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    stopped = learner(start, max_iter=10, callback=lambda state: state.iteration == 4).fit(Y)
    assert_same_model(stopped, learner(start, max_iter=4).fit(Y))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
def test_an_interrupt_stops_learning_soon_and_keeps_the_model():
    script = textwrap.dedent(
        """
        import time
        import numpy as np
        import kronlearn as kl

        Y = np.random.default_rng(0).standard_normal((100_000, 8, 8)).astype(np.float32)

        def announce(state):
            if state.iteration == 2:
                print("running", flush=True)

        model = kl.KroneckerDictionaryLearning(
            (16, 16), n_nonzero_coefs=8, max_iter=1_000_000, n_jobs=2, callback=announce)
        try:
            model.fit(Y)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(model.stop_reason_, model.n_iter_ == len(model.history_["rmse"]),
              model.transform(Y[:10]).nnz, flush=True)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "running\n"
        time.sleep(0.05)  # well inside an iteration
        child.send_signal(signal.SIGINT)
        began = time.perf_counter()
        printed, complaint = child.communicate(timeout=30)
        seconds = time.perf_counter() - began
    finally:
        child.kill()
        child.wait()
    assert printed.split() == ["interrupted", "interrupted", "True", "80"], complaint
    assert seconds < 2.0


# Little by little


def test_partial_fit_gets_better_batch_by_batch(rng):
    Y, start = planted(rng, (6, 6), (6, 6), n_samples=2000)
    held_out = Y[:500]
    model = learner(start)
    scores = []
    for batch in np.split(Y[500:], 15):
        scores.append(model.partial_fit(batch).score(held_out))
    assert scores[-1] > scores[4] > scores[0]
    assert scores[-1] > 0.8 * scores[0]


def test_forgetting_follows_data_that_change(rng):
    first, start = planted(rng, (6, 6), (6, 6), n_samples=2000)
    second, _ = planted(rng, (6, 6), (6, 6), n_samples=1000)
    scores = {}
    for forgetting in (1.0, 0.7):
        model = learner(start, forgetting=forgetting)
        for batch in [*np.split(first, 20), *np.split(second, 10)]:
            model.partial_fit(batch)
        scores[forgetting] = model.score(second)
    assert scores[0.7] > scores[1.0]


def test_partial_fit_works_from_the_first_batch(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start).partial_fit(Y)
    assert model.transform(Y).shape == (len(Y), 42)
    assert model.score(Y) > -np.sqrt(np.mean(Y**2))


def test_fit_forgets_earlier_batches(rng):
    first, start = planted(rng, (5, 4), (7, 6))
    second, third = (planted(rng, (5, 4), (7, 6))[0] for _ in range(2))
    model = learner(start).partial_fit(first).fit(second).partial_fit(third)
    expected = learner(start).fit(second).partial_fit(third)
    for found, wanted in zip(model.factors_, expected.factors_, strict=True):
        np.testing.assert_array_equal(found, wanted)


# Checkpoints


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("statistics", ["full", "per-mode", "recode"])
@pytest.mark.parametrize("structure", ["general", "orthonormal"])
def test_a_run_resumed_from_its_checkpoint_ends_with_the_same_bits(
    rng, tmp_path, structure, statistics, dtype
):
    Y = rng.standard_normal((400, 5, 5)).cumsum(axis=1).astype(dtype)
    start = reference.orthonormal_factors(rng, (5, 5))
    options = {"structure": structure, "statistics": statistics, "n_refits": 1}
    whole = learner(start, max_iter=9, **options).fit(Y)
    path = tmp_path / "run.safetensors"
    options |= {"checkpoint": path, "checkpoint_every": 2}
    stop = learner(start, max_iter=9, callback=lambda s: s.iteration == 5, **options).fit(Y)
    assert (stop.n_iter_, stop.stop_reason_) == (5, "callback")
    assert path.exists()
    resumed = learner(start, max_iter=9, **options).fit(Y)
    assert_same_model(resumed, whole)


def test_a_resumed_run_does_only_the_iterations_that_are_missing(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run.safetensors"
    learner(start, max_iter=4, checkpoint=path, checkpoint_every=10).fit(Y)
    seen = []
    options = {"checkpoint": path, "callback": lambda s: seen.append(s.iteration)}
    model = learner(start, max_iter=6, **options).fit(Y)
    assert seen == [5, 6]
    assert_same_model(model, learner(start, max_iter=6).fit(Y))


def test_an_interrupted_run_resumes_to_the_same_bits(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))

    def interrupt(state):
        if state.iteration == 3:
            raise KeyboardInterrupt

    options = {"max_iter": 8, "checkpoint": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        learner(start, callback=interrupt, **options).fit(Y)
    assert_same_model(learner(start, **options).fit(Y), learner(start, max_iter=8).fit(Y))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_nonzero_coefs": 2}, "width"),
        ({"method": "omp"}, "method"),
        ({"n_refits": 2}, "n_refits"),
    ],
    ids=str,
)
def test_a_checkpoint_of_other_settings_is_refused_by_name(rng, tmp_path, change, name):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run"
    learner(start, checkpoint=path).fit(Y)
    with pytest.raises(ValueError, match=rf"another run.*{name}.*Delete"):
        learner(start, checkpoint=path, **change).fit(Y)


def test_a_checkpoint_of_other_data_is_refused(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run"
    learner(start, checkpoint=path).fit(Y)
    with pytest.raises(ValueError, match=r"another run"):
        learner(start, checkpoint=path).fit(Y + 0.5)


def test_a_small_batch_after_fit_does_not_undo_it(rng):
    Y, start = planted(rng, (8, 8), (16, 16), n_samples=500)
    model = learner(start, max_iter=20).fit(Y)
    before = model.score(Y)
    model.partial_fit(Y[:20])
    assert model.score(Y) >= before - 0.02 * abs(before)
    assert model.n_iter_ == 21


def test_coding_anew_replaces_no_atom_in_use(rng, monkeypatch):
    from kronlearn.core import iteration, replacement

    def checked(dictionary, unused, codes, *rest):
        used = codes.used(dictionary.n_atoms)
        for mode, atoms in enumerate(unused):
            assert not np.moveaxis(used, mode, 0)[atoms].any()
        return replacement.replace_unused(dictionary, unused, codes, *rest)

    monkeypatch.setattr(iteration, "replace_unused", checked)
    Y, start = planted(rng, (4, 4), (12, 12), n_samples=40, n_nonzero_coefs=2)
    model = learner(start, n_nonzero_coefs=2, statistics="recode", max_iter=15).fit(Y)
    assert sum(model.history_["atoms_replaced"]) > 0


@pytest.mark.parametrize("change", ["seed", "start", "samples"])
def test_a_checkpoint_of_another_run_is_refused(rng, tmp_path, change):
    Y, start = planted(rng, (5, 4), (7, 6))
    options = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 1, "max_iter": 2}
    learner(start, **options).fit(Y)
    model = learner(start, **options)
    if change == "seed":
        model.set_params(random_state=1)
    elif change == "start":
        model.set_params(init=reference.random_factors(rng, (5, 4), (7, 6)))
    else:
        Y = Y[::-1]
    with pytest.raises(ValueError, match="belongs to another run"):
        model.fit(Y)
