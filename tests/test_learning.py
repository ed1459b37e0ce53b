"""The learning loop equals the reference, is reproducible, and stops when it should."""

import itertools
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl
from sklearn.exceptions import ConvergenceWarning

import kronlearn as kl
import reference
from kronlearn import blas
from kronlearn.blas import single_threaded_blas
from kronlearn.core.iteration import uses_full_moments
from kronlearn.core.structures import General, Orthonormal
from kronlearn.io.model_files import ModelFileError, read_file, write_file

# Every overcomplete mode has more entries than a code has coefficients: in OLS the last atoms of a
# smaller mode tie, and rounding decides between them.
SHAPES = [
    pytest.param((8,), (12,), 3, id="one mode"),
    pytest.param((5, 4), (7, 6), 3, id="two modes"),
    pytest.param((5, 5), (5, 5), 4, id="two square modes"),
    pytest.param((4, 5, 4), (5, 5, 6), 3, id="three modes"),
]
IMAGES = Path(__file__).resolve().parents[2] / "shared" / "data" / "images"


@pytest.fixture(params=["full moments", "mode by mode"])
def sums(request, monkeypatch):
    """Update from full moments, or from the sums of one mode after the other."""
    if request.param == "mode by mode":
        monkeypatch.setattr("kronlearn.core.iteration.uses_full_moments", lambda *_: False)
    return request.param


def learner(start, **options):
    """An estimator whose initial dictionary has the factors ``start``."""
    n_atoms = tuple(factor.shape[1] for factor in start)
    defaults = {"init": start, "n_nonzero_coefs": 3, "max_iter": 5, "n_jobs": 1}
    return kl.KroneckerDictionaryLearning(n_atoms, random_state=0, **(defaults | options))


def planted(rng, patch_shape, n_atoms, n_nonzero_coefs=3, n_samples=150, noise=0.1):
    """Noisy sparse samples of one random dictionary, and the factors of another to start from."""
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, n_nonzero_coefs, noise=noise)
    return Y, reference.random_factors(rng, patch_shape, n_atoms)


def assert_same_model(model, expected, atol=0.0):
    assert model.n_iter_ == expected.n_iter_
    for found, wanted in zip(model.factors_, expected.factors_, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)
    np.testing.assert_allclose(model.history_["rmse"], expected.history_["rmse"], rtol=0, atol=atol)


# Equality with the reference


@pytest.mark.parametrize(("patch_shape", "n_atoms", "s"), SHAPES)
def test_five_iterations_equal_the_reference(rng, patch_shape, n_atoms, s, sums):
    # One coder per shape: moments do not depend on the coder, and test_coding.py compares coders.
    method = {(8,): "exchange", (5, 4): "omp"}.get(patch_shape, "ols")
    Y, start = planted(rng, patch_shape, n_atoms, s, n_samples=100)
    dictionaries, rmse = reference.learn(Y, start, s, method)
    model = learner(start, n_nonzero_coefs=s, method=method).fit(Y)
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-8)
    for found, wanted in zip(model.factors_, dictionaries[np.argmin(rmse)], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("patch_shape", [(9,), (4, 5), (2, 3, 4)], ids=str)
def test_five_orthonormal_iterations_equal_the_reference(rng, patch_shape, sums):
    truth = reference.orthonormal_factors(rng, patch_shape)
    Y = reference.sparse_samples(rng, truth, 200, 3, noise=0.1)
    start = reference.orthonormal_factors(rng, patch_shape)
    dictionaries, rmse = reference.learn(Y, start, 3, structure="orthonormal")
    model = learner(start, structure="orthonormal").fit(Y)
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-8)
    for found, wanted in zip(model.factors_, dictionaries[np.argmin(rmse)], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)


# The history describes the dictionaries that users get


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "omp"},
        {"method": "exchange"},
        {"structure": "orthonormal", "n_atoms": (6, 6)},
        {"n_terms": 2},
        {"n_atoms": (40, 40)},
    ],
    ids=str,
)
def test_the_score_is_the_lowest_recorded_error(rng, options, dtype):
    Y = planted(rng, (6, 6), (9, 9), 4, n_samples=400, noise=0.3)[0].astype(dtype)
    defaults = {"n_atoms": (9, 9), "n_nonzero_coefs": 4, "max_iter": 12, "random_state": 0}
    model = kl.KroneckerDictionaryLearning(**(defaults | options)).fit(Y)
    assert -model.score(Y) == pytest.approx(min(model.history_["rmse"]), rel=1e-6)
    residual = Y - model.inverse_transform(model.transform(Y))
    assert np.sqrt(np.mean(residual**2)) == pytest.approx(min(model.history_["rmse"]), rel=1e-5)


def test_with_tol_the_score_is_that_of_the_dictionary_with_the_fewest_nonzeros(rng):
    Y, start, tol = noisy_problem(rng)
    model = learner(start, n_nonzero_coefs=None, tol=tol, max_iter=10).fit(Y)
    best = int(np.argmin(model.history_["mean_nonzeros"]))
    assert -model.score(Y) == pytest.approx(model.history_["rmse"][best], rel=1e-6)
    assert model.transform(Y).nnz == round(len(Y) * model.history_["mean_nonzeros"][best])


def test_history_entries_describe_the_dictionaries_passed_to_the_callback(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    seen = []
    model = learner(start, max_iter=4, callback=seen.append).fit(Y)
    assert [progress.iteration for progress in seen] == [0, 1, 2, 3, 4]
    assert seen[0].dictionary == kl.KroneckerDictionary(start)
    for progress, rmse in zip(seen, model.history_["rmse"], strict=True):
        X = kl.sparse_code(Y, progress.dictionary, 3, method="ols")
        residual = Y - progress.dictionary.reconstruct(X)
        assert progress.rmse == rmse == pytest.approx(np.sqrt(np.mean(residual**2)), rel=1e-9)
    assert [progress.seconds for progress in seen] == model.history_["seconds"]
    assert np.all(np.diff([0.0, *model.history_["seconds"]]) > 0)
    assert model.history_["mean_nonzeros"] == pytest.approx([3.0] * 5)
    assert set(model.history_) == {"rmse", "seconds", "atoms_replaced", "mean_nonzeros"}


def test_the_fitted_dictionary_is_the_best_not_the_last(rng):
    Y, start = planted(rng, (8, 8), (8, 8), 5, n_samples=300, noise=0.3)
    seen = []

    def stop_when_it_rises(progress):
        seen.append(progress)
        return len(seen) > 1 and seen[-1].rmse > seen[-2].rmse

    options = {"method": "omp", "n_nonzero_coefs": 5, "max_iter": 100}
    model = learner(start, callback=stop_when_it_rises, **options).fit(Y)
    assert model.stop_reason_ == "callback"
    assert model.dictionary_ == seen[-2].dictionary


def test_among_equal_numbers_of_nonzeros_the_last_dictionary_is_fitted(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, tol=1e-9).fit(Y)
    assert model.history_["mean_nonzeros"] == [3.0] * 6
    assert -model.score(Y) == pytest.approx(model.history_["rmse"][-1], rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_orthonormal_learning_never_raises_the_error_and_stays_orthonormal(rng, dtype):
    Y = rng.standard_normal((300, 5, 6)).cumsum(axis=1).cumsum(axis=2).astype(dtype)
    model = kl.KroneckerDictionaryLearning(
        (5, 6), n_nonzero_coefs=4, structure="orthonormal", max_iter=30, n_jobs=1
    ).fit(Y)
    rmse = np.asarray(model.history_["rmse"])
    assert np.all(rmse[1:] <= rmse[:-1] * (1 + (1e-12 if dtype is np.float64 else 1e-6)))
    assert rmse[-1] < rmse[0]
    assert model.dictionary_.is_orthonormal
    for factor in model.factors_:
        assert factor.dtype == dtype
        np.testing.assert_allclose(factor.T @ factor, np.eye(factor.shape[1]), atol=1e-5)


def test_orthonormal_factors_are_coded_by_thresholding_whatever_the_method(rng):
    Y = rng.standard_normal((100, 4, 4))
    start = reference.orthonormal_factors(rng, (4, 4))
    first = learner(start, structure="orthonormal", method="omp").fit(Y)
    second = learner(start, structure="orthonormal", method="ols").fit(Y)
    assert_same_model(first, second)
    expected = kl.sparse_code(Y, first.dictionary_, 3, method="threshold")
    np.testing.assert_array_equal(first.transform(Y).toarray(), expected.toarray())


# The same result, however it is computed


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("structure", ["general", "orthonormal"])
def test_the_number_of_threads_changes_no_bit(rng, structure, sums, dtype):
    Y = rng.standard_normal((700, 6, 6)).cumsum(axis=1).astype(dtype)
    options = {"structure": structure, "n_nonzero_coefs": 4, "max_iter": 5, "block_size": 64}
    models = [
        kl.KroneckerDictionaryLearning((6, 6), random_state=0, n_jobs=n, **options).fit(Y)
        for n in (1, 2, 5)
    ]
    for model in models[1:]:
        assert_same_model(model, models[0])


def test_the_number_of_threads_changes_no_bit_with_the_default_block_size(rng):
    Y = rng.standard_normal((5000, 8, 8)).cumsum(axis=1)
    options = {"n_nonzero_coefs": 2, "max_iter": 1, "random_state": 0}
    models = [kl.KroneckerDictionaryLearning((8, 8), n_jobs=n, **options).fit(Y) for n in (1, 3)]
    assert_same_model(*models)
    assert models[0].score(Y) == models[1].score(Y)


@pytest.mark.parametrize("block_size", [1, 37, 1000])
def test_the_block_size_changes_rounding_only(rng, block_size):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, block_size=block_size).fit(Y)
    assert_same_model(model, learner(start).fit(Y), atol=1e-10)


@pytest.mark.parametrize(
    ("structure", "m", "n", "n_samples", "full"),
    [
        (General, 8, 8, 10, True),
        (General, 16, 16, 1000, True),
        (General, 32, 32, 8000, False),
        (General, 32, 32, 1_000_000, True),
        (General, 8, 40, 1_000_000, False),
        (Orthonormal, 32, 32, 8000, False),
        (Orthonormal, 48, 48, 1_000_000, True),
    ],
)
def test_full_moments_are_used_unless_they_are_large_for_the_number_of_samples(
    structure, m, n, n_samples, full
):
    dictionary = kl.KroneckerDictionary.normalized([np.eye(m, n) + 0.1] * 2)
    assert uses_full_moments(structure(), dictionary, n_samples) == full


def test_samples_converted_block_by_block_give_the_same_bits(rng, monkeypatch, tmp_path, sums):
    Y = rng.integers(0, 256, (500, 5, 5), dtype=np.uint8)
    start = reference.random_factors(rng, (5, 5), (6, 6))
    options = {"block_size": 32, "n_jobs": 2}
    expected = learner(start, **options).fit(Y.astype(np.float64))
    monkeypatch.setattr("kronlearn.core.source.BLOCK_NUMBERS", 2000)
    np.save(tmp_path / "samples.npy", Y)
    for samples in (Y, np.asfortranarray(Y), np.load(tmp_path / "samples.npy", mmap_mode="r")):
        assert_same_model(learner(start, **options).fit(samples), expected)


@pytest.mark.parametrize("options", [{}, {"init": "data"}, {"init": "random"}, {"n_terms": 3}])
def test_equal_seeds_give_equal_models_and_other_seeds_other_models(rng, options):
    Y, _ = planted(rng, (4, 4), (5, 5))
    options |= {"n_atoms": (5, 5), "n_nonzero_coefs": 3, "max_iter": 3, "n_jobs": 1}
    first, again, other = (
        kl.KroneckerDictionaryLearning(random_state=seed, **options).fit(Y) for seed in (1, 1, 2)
    )
    assert again.history_["rmse"] == first.history_["rmse"]
    assert again.dictionary_ == first.dictionary_
    assert np.abs(other.components_ - first.components_).max() > 1e-3


def test_init_data_finds_the_directions_of_greatest_variation(rng):
    directions = [factor[:, 0] for factor in reference.random_factors(rng, (4, 5, 3), (1, 1, 1))]
    one = np.einsum("i,j,k->ijk", *directions)
    Y = rng.uniform(1, 2, (30, 1, 1, 1)) * one + 1e-3 * rng.standard_normal((30, 4, 5, 3))
    seen = []
    options = {"n_nonzero_coefs": 1, "max_iter": 1, "random_state": 0, "callback": seen.append}
    kl.KroneckerDictionaryLearning((2, 3, 2), init="data", **options).fit(Y)
    for factor, direction in zip(seen[0].dictionary.factors, directions, strict=True):
        np.testing.assert_allclose(np.abs(direction @ factor), 1.0, atol=1e-3)


@pytest.fixture
def two_blas_threads():
    # Other tests may have imported packages that bring their own BLAS.
    blas._libraries.cache_clear()
    with threadpoolctl.threadpool_limits(2, "blas"):
        yield


@pytest.mark.usefixtures("two_blas_threads")
def test_overlapping_blocks_restore_the_threads_of_blas():
    before = blas_threads()
    assert set(before) == {2}
    first, second = single_threaded_blas(), single_threaded_blas()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(blas_threads()) == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


@pytest.mark.usefixtures("two_blas_threads")
def test_fit_limits_blas_to_one_thread(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    seen = []
    learner(start, max_iter=1, callback=lambda _: seen.extend(blas_threads())).fit(Y)
    assert set(seen) == {1}


def blas_threads():
    infos = threadpoolctl.threadpool_info()
    return [info["num_threads"] for info in infos if info["user_api"] == "blas"]


# Quality


def recovery_rate(found, truth):
    """The share of true atoms that some found atom equals up to sign: inner products above 0.99."""
    agreement = [np.abs(f.T @ t).max(axis=0) > 0.99 for f, t in zip(found, truth, strict=True)]
    return np.mean(np.concatenate(agreement))


def test_a_planted_dictionary_is_recovered_from_a_nearby_start(rng):
    truth = reference.random_factors(rng, (8, 8), (10, 10))
    Y = reference.sparse_samples(rng, truth, 3000, 3, noise=0.02)
    start = [f + 0.1 * rng.standard_normal(f.shape) for f in truth]
    start = [f / np.linalg.norm(f, axis=0) for f in start]
    assert recovery_rate(start, truth) < 0.5
    model = learner(start, max_iter=40).fit(Y)
    assert recovery_rate(model.factors_, truth) == 1.0


@pytest.mark.skipif(not IMAGES.is_dir(), reason="the images of the paper are not here")
@pytest.mark.parametrize(("n_atoms", "rmse"), [((8, 8), 5.50), ((16, 16), 4.50)], ids=str)
def test_the_error_of_held_out_patches_of_the_papers_images_is_low(n_atoms, rmse):
    from skimage.io import imread

    patches = []
    for name in ("lena", "peppers", "boat"):
        image = imread(IMAGES / f"{name}.png").astype(np.float32)
        image = image if image.ndim == 2 else image[..., 0]
        patches.append(image.reshape(64, 8, 64, 8).swapaxes(1, 2).reshape(-1, 8, 8))
    Y = np.concatenate(patches)
    Y -= Y.mean(axis=(1, 2), keepdims=True)
    order = np.random.default_rng(0).permutation(len(Y))
    model = kl.KroneckerDictionaryLearning(n_atoms, random_state=0, n_jobs=2).fit(Y[order[:9216]])
    assert -model.score(Y[order[9216:]]) <= rmse


# Error targets


def noisy_problem(rng):
    """Samples of three atoms each, factors to start from, and 1.1 times the norm of the noise."""
    truth = reference.random_factors(rng, (8, 8), (8, 8))
    Y = reference.sparse_samples(rng, truth, 1000, 3, noise=0.05)
    return Y, reference.random_factors(rng, (8, 8), (8, 8)), 1.1 * 0.05 * 8


def test_learning_with_tol_lowers_the_number_of_nonzeros(rng):
    Y, start, tol = noisy_problem(rng)
    model = learner(start, n_nonzero_coefs=None, tol=tol, max_iter=30).fit(Y)
    nonzeros = model.history_["mean_nonzeros"]
    assert min(nonzeros) < 0.7 * nonzeros[0]
    assert max(model.history_["rmse"]) <= tol / 8 * (1 + 1e-9)


# Unused atoms


@pytest.mark.parametrize("n_terms", [1, 2])
def test_unused_atoms_are_replaced_counted_and_used_from_then_on(rng, n_terms):
    Y, start = planted(rng, (6, 6), (8, 8), n_samples=300)
    start[1][:, 3] = start[1][:, 2]  # a duplicate is never selected
    model = learner(start, max_iter=6, n_terms=n_terms).fit(Y)
    assert model.history_["atoms_replaced"][0] == 0
    assert model.history_["atoms_replaced"][1] >= 1
    used = model.transform(Y).toarray().reshape(-1, 8, 8)
    assert np.all(np.abs(used).sum(axis=(0, 1)) > 0)
    assert np.all(np.abs(used).sum(axis=(0, 2)) > 0)


def test_an_unused_atom_becomes_the_leading_direction_of_the_largest_residual(rng, sums):
    Y, start = planted(rng, (6, 6), (8, 8), n_samples=300)
    start[0][:, 5] = start[0][:, 1]
    seen = []
    learner(start, max_iter=1, callback=seen.append).fit(Y)
    updated = [np.array(factor) for factor in seen[1].dictionary.factors]
    X = reference.code(Y, start, "ols", 3)
    worst = int(np.argmax(np.sum(reference.residuals(Y, start, X) ** 2, axis=1)))
    _, _, s_xx, s_xy = reference.moments(Y, X)
    expected, _, _ = reference.least_squares_sweep(start, s_xx, s_xy)
    codes = reference.code(Y[worst : worst + 1], expected, "ols", 3)
    residual = reference.residuals(Y[worst : worst + 1], expected, codes).reshape(6, 6)
    direction = np.linalg.svd(residual)[0][:, 0]
    assert abs(updated[0][:, 5] @ direction) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("method", ["ols", "exchange"])
def test_atoms_have_unit_norm_even_if_there_are_more_than_samples_can_use(rng, method):
    Y = rng.standard_normal((3, 4, 4))
    model = kl.KroneckerDictionaryLearning(
        (9, 9), n_nonzero_coefs=2, method=method, max_iter=5, n_jobs=1
    ).fit(Y)
    for factor in model.factors_:
        assert np.all(np.isfinite(factor))
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0, atol=1e-10)


# Stopping


def test_learning_stops_when_an_iteration_improves_too_little(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, max_iter=500, min_improvement=1e-3).fit(Y)
    assert model.stop_reason_ == "converged"
    assert 1 < model.n_iter_ < 500
    rmse = np.asarray(model.history_["rmse"])
    improvement = 1 - rmse[1:] / rmse[:-1]
    assert improvement[-1] < 1e-3
    assert np.all(improvement[:-1] >= 1e-3)


def test_learning_stops_at_once_if_the_error_is_zero():
    model = kl.KroneckerDictionaryLearning((4, 4), n_nonzero_coefs=2).fit(np.zeros((9, 4, 4)))
    assert (model.stop_reason_, model.n_iter_) == ("converged", 0)


def test_reaching_max_iter_before_convergence_warns(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = learner(start, max_iter=2, min_improvement=1e-9).fit(Y)
    assert model.stop_reason_ == "max_iter"


def test_learning_stops_when_the_time_budget_is_used_up(rng, monkeypatch):
    Y, start = planted(rng, (5, 4), (7, 6))
    seconds = itertools.count()  # every pass takes one second
    clock = SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr("kronlearn.core.loop.time", clock)
    model = learner(start, max_iter=100, time_budget=2.5).fit(Y)
    assert model.stop_reason_ == "time_budget"
    assert model.history_["seconds"] == [1, 2, 3]


def test_a_callback_can_stop_the_run_as_a_smaller_max_iter_would(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    stopped = learner(start, max_iter=10, callback=lambda progress: progress.iteration == 4).fit(Y)
    assert stopped.stop_reason_ == "callback"
    assert_same_model(stopped, learner(start, max_iter=4).fit(Y))
    unstopped = learner(start, callback=lambda progress: None).fit(Y)
    assert (unstopped.stop_reason_, unstopped.n_iter_) == ("max_iter", 5)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
def test_an_interrupt_stops_learning_and_leaves_a_fitted_model():
    script = textwrap.dedent(
        """
        import numpy as np
        import kronlearn as kl

        Y = np.random.default_rng(0).standard_normal((40_000, 8, 8)).astype(np.float32)

        def announce(progress):
            if progress.iteration == 2:
                print("running", flush=True)

        model = kl.KroneckerDictionaryLearning(
            (16, 16), n_nonzero_coefs=8, max_iter=1_000_000, n_jobs=2, callback=announce)
        try:
            model.fit(Y)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(model.stop_reason_, model.n_iter_ + 1 == len(model.history_["rmse"]),
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
        printed, complaint = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert printed.split() == ["interrupted", "interrupted", "True", "80"], complaint


# Online learning


def test_partial_fit_adds_the_moments_of_codes_rescaled_to_fit_the_dictionary(rng):
    Y, start = planted(rng, (5, 4), (7, 6), n_samples=400)
    model = learner(start).partial_fit(Y[:200]).partial_fit(Y[200:])
    X = reference.code(Y[:200], start, "ols", 3)
    first, s_xx, s_xy = reference.least_squares_sweep(start, *reference.moments(Y[:200], X)[2:])
    X = reference.code(Y[200:], first, "ols", 3)
    _, _, more_xx, more_xy = reference.moments(Y[200:], X)
    second, _, _ = reference.least_squares_sweep(first, s_xx + more_xx, s_xy + more_xy)
    for found, wanted in zip(model.factors_, second, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)


def test_partial_fit_after_an_interrupted_fit_continues_from_that_fit(rng):
    Y, start = planted(rng, (5, 4), (7, 6), n_samples=200)

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
    first, start = planted(rng, (6, 6), (6, 6), n_samples=2000)
    second, _ = planted(rng, (6, 6), (6, 6), n_samples=1000)
    scores = {}
    for forgetting in (1.0, 0.7):
        model = learner(start, forgetting=forgetting)
        for batch in [*np.split(first, 20), *np.split(second, 10)]:
            model.partial_fit(batch)
        scores[forgetting] = model.score(second)
    assert scores[0.7] > scores[1.0]


def test_partial_fit_continues_with_the_moments_of_the_best_iteration(rng):
    Y, start = planted(rng, (8, 8), (8, 8), 5, n_samples=300, noise=0.3)
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
    Y, start = planted(rng, (8, 8), (16, 16), n_samples=500)
    model = learner(start, max_iter=20).fit(Y)
    before = model.score(Y)
    model.partial_fit(Y[:20])
    assert model.score(Y) >= before - 0.02 * abs(before)


# Checkpoints


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("structure", ["general", "orthonormal"])
def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_bits(
    rng, tmp_path, structure, sums, dtype
):
    Y = rng.standard_normal((400, 5, 5)).cumsum(axis=1).astype(dtype)
    start = reference.orthonormal_factors(rng, (5, 5))
    whole = learner(start, max_iter=9, structure=structure).fit(Y)
    path = tmp_path / "run.safetensors"
    options = {"structure": structure, "checkpoint": path, "checkpoint_every": 2}
    stop = learner(start, max_iter=9, callback=lambda s: s.iteration == 5, **options).fit(Y)
    assert (stop.n_iter_, stop.stop_reason_) == (5, "callback")
    assert path.stat().st_size < 8192
    resumed = learner(start, max_iter=9, **options).fit(Y)
    assert_same_model(resumed, whole)


def test_a_resumed_run_does_only_the_missing_iterations(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run.safetensors"
    learner(start, max_iter=4, checkpoint=path, checkpoint_every=10).fit(Y)
    seen = []
    options = {"checkpoint": path, "callback": lambda progress: seen.append(progress.iteration)}
    model = learner(start, max_iter=6, **options).fit(Y)
    assert seen == [5, 6]
    assert_same_model(model, learner(start, max_iter=6).fit(Y))
    assert np.all(np.diff(model.history_["seconds"]) > 0)
    again = learner(start, max_iter=6, **options).fit(Y)
    assert seen == [5, 6]
    assert_same_model(again, model)


def test_a_converged_run_is_not_resumed(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    options = {"max_iter": 500, "min_improvement": 1e-2, "checkpoint": tmp_path / "run"}
    first = learner(start, **options).fit(Y)
    again = learner(start, **options).fit(Y)
    assert first.stop_reason_ == again.stop_reason_ == "converged"
    assert_same_model(again, first)


def test_a_run_stopped_in_the_pass_in_which_it_converged_is_not_resumed(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    options = {"max_iter": 500, "min_improvement": 1e-2}
    whole = learner(start, **options).fit(Y)
    assert whole.stop_reason_ == "converged"
    options["checkpoint"] = tmp_path / "run"
    stop = learner(start, callback=lambda s: s.iteration == whole.n_iter_, **options).fit(Y)
    assert stop.stop_reason_ == "converged"
    assert_same_model(learner(start, **options).fit(Y), whole)


@pytest.mark.parametrize("name", ["factors.0", "best.1"])
def test_a_checkpoint_with_invalid_factors_is_refused(rng, tmp_path, name):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run"
    learner(start, max_iter=1, checkpoint=path).fit(Y)
    tensors, header = read_file(path, "checkpoint")
    factors = tensors[name]
    for wrong in (factors[..., 1:], factors[:, 1:], factors.astype(np.float32), factors * np.nan):
        write_file(path, "checkpoint", tensors | {name: wrong}, header)
        with pytest.raises(ModelFileError, match="is damaged"):
            learner(start, max_iter=2, checkpoint=path).fit(Y)


def test_an_interrupted_run_resumes_and_ends_with_the_same_bits(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))

    def interrupt(progress):
        if progress.iteration == 3:
            raise KeyboardInterrupt

    options = {"max_iter": 8, "checkpoint": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        learner(start, callback=interrupt, **options).fit(Y)
    assert len(read_file(tmp_path / "run", "checkpoint")[0]["history"]) == 3
    assert_same_model(learner(start, **options).fit(Y), learner(start, max_iter=8).fit(Y))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_nonzero_coefs": 2}, "n_nonzero_coefs is 3, here it is 2"),
        ({"method": "omp"}, "method"),
        ({"n_terms": 2}, "n_terms is 1, here it is 2"),
        ({"random_state": 1}, "random_state is 0"),
        ({"init": "start"}, "init"),
        ({"samples": "shifted"}, "samples"),
        ({"samples": "reversed"}, "samples"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_run_is_refused_with_the_parameter_that_differs(
    rng, tmp_path, change, name
):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run"
    learner(start, checkpoint=path).fit(Y)
    other = {"shifted": Y + 0.5, "reversed": Y[::-1], None: Y}[change.pop("samples", None)]
    if "init" in change:
        change["init"] = reference.random_factors(rng, (5, 4), (7, 6))
    model = learner(start, checkpoint=path).set_params(**change)
    with pytest.raises(ValueError, match=rf"another run.*{name}.*Delete"):
        model.fit(other)
