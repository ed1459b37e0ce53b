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
import reference_comparators as rc
from kronlearn import blas
from kronlearn.blas import single_threaded_blas
from kronlearn.core.iteration import uses_full_moments
from kronlearn.core.structures import General, Orthonormal
from learning_problems import assert_factors, assert_same_model, learner, planted

# Every overcomplete mode has more entries than a code has coefficients: in OLS the last atoms of a
# smaller mode tie, and rounding decides between them.
# One coder per shape: moments do not depend on the coder, and test_coding.py compares coders.
SHAPES = [
    pytest.param((8,), (12,), 3, "exchange", id="one mode"),
    pytest.param((5, 4), (7, 6), 3, "omp", id="two modes"),
    pytest.param((5, 5), (5, 5), 4, "ols", id="two square modes"),
    pytest.param((4, 5, 4), (5, 5, 6), 3, "ols", id="three modes"),
    *(pytest.param(m, m, 3, "threshold", id=f"orthonormal {m}") for m in [(9,), (4, 5), (2, 3, 4)]),
]
IMAGES = Path(__file__).resolve().parents[2] / "shared" / "data" / "images"


# Equality with the reference


@pytest.mark.parametrize(("patch_shape", "n_atoms", "s", "method"), SHAPES)
def test_five_iterations_equal_the_reference(rng, patch_shape, n_atoms, s, method, sums):
    options = {"method": method}
    truth, start = (reference.random_factors(rng, patch_shape, n_atoms) for _ in range(2))
    if method == "threshold":
        truth, start = (reference.orthonormal_factors(rng, patch_shape) for _ in range(2))
        options = {"structure": "orthonormal"}
    Y = reference.sparse_samples(rng, truth, 150, s, noise=0.1)
    dictionaries, rmse = reference.learn(Y, start, s, **options)
    model = learner(start, n_nonzero_coefs=s, **options).fit(Y)
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-8)
    assert_factors(model.factors_, dictionaries[np.argmin(rmse)], 1e-8)


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
    Y = planted(rng, (6, 6), (9, 9), 400, 4, noise=0.3)[0].astype(dtype)
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
    Y, start = planted(rng, (8, 8), (8, 8), 300, 5, noise=0.3)
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


def test_a_planted_dictionary_is_recovered_from_a_nearby_start(rng):
    truth = reference.random_factors(rng, (8, 8), (10, 10))
    Y = reference.sparse_samples(rng, truth, 3000, 3, noise=0.02)
    start = rc.nearby(rng, truth, 0.3)
    atoms = reference.dense(truth)
    assert rc.recovered(reference.dense(start), atoms) < 0.5
    model = learner(start, max_iter=40).fit(Y)
    assert rc.recovered(model.dictionary_.to_dense(), atoms) == 1.0


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
    Y, start = planted(rng, (6, 6), (8, 8))
    start[1][:, 3] = start[1][:, 2]  # a duplicate is never selected
    model = learner(start, max_iter=6, n_terms=n_terms).fit(Y)
    assert model.history_["atoms_replaced"][0] == 0
    assert model.history_["atoms_replaced"][1] >= 1
    used = model.transform(Y).toarray().reshape(-1, 8, 8)
    assert np.all(np.abs(used).sum(axis=(0, 1)) > 0)
    assert np.all(np.abs(used).sum(axis=(0, 2)) > 0)


def test_an_unused_atom_becomes_the_leading_direction_of_the_largest_residual(rng, sums):
    Y, start = planted(rng, (6, 6), (8, 8))
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


@pytest.mark.parametrize("options", [{}, {"method": "exchange"}, {"n_terms": 3}], ids=str)
def test_atoms_have_unit_norm_even_if_there_are_more_than_samples_can_use(rng, options):
    Y = rng.standard_normal((3, 4, 4))
    model = kl.KroneckerDictionaryLearning(
        (9, 9), n_nonzero_coefs=2, max_iter=5, random_state=0, **options
    ).fit(Y)
    norms = np.linalg.norm(model.dictionary_.to_dense(), axis=0)
    np.testing.assert_allclose(norms, 1.0, atol=1e-10)


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
