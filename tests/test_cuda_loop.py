"""Whole iterations on a GPU, and how they alternate with passes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

import kronlearn as kl
from emulated_gpu import EmulatedGpu
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.engine import Cuda
from kronlearn.cuda.iterations import Iterations
from kronlearn.io.arrays import ArraySource

#: Settings with whole iterations; other tests compile kernels for the same numbers of nonzeros.
KINDS = [
    {"n_atoms": 8, "method": "omp", "n_nonzero_coefs": 4},
    {"n_atoms": 8, "structure": "orthonormal", "n_nonzero_coefs": 5},
    {"n_atoms": 16, "method": "omp", "n_nonzero_coefs": 6},
    {"n_atoms": 16, "method": "ols", "n_nonzero_coefs": 5},
    pytest.param({"n_atoms": 32, "method": "ols", "n_nonzero_coefs": 5}, marks=pytest.mark.slow),
]


@pytest.fixture
def runs(monkeypatch):
    """For each run of iterations, how many were asked for, and how many were done."""
    asked = []
    run = Iterations.run

    def watched(self, dictionary, count):
        done = run(self, dictionary, count)
        asked.append((count, len(done)))
        return done

    monkeypatch.setattr(Iterations, "run", watched)
    return asked


def image_like(rng, count):
    """Samples (count, 8, 8) that are smooth, with edges and noise; two are tiny, one is zero."""
    smooth = np.cumsum(np.cumsum(rng.standard_normal((count, 8, 8)), axis=1), axis=2)
    edges = rng.standard_normal((count, 1, 1)) * (
        np.arange(8) > rng.integers(8, size=(count, 1, 1))
    )
    noise = 5 * rng.standard_normal((count, 8, 8))
    Y = (4 * smooth + 30 * edges + noise).astype(np.float32)
    Y[[3, 11]] *= np.float32(1e-20)
    Y[5] = 0
    return Y


def fitted(Y, device="cuda", **settings):
    options = {"n_atoms": 8, "n_nonzero_coefs": 4, "max_iter": 4, "random_state": 0} | settings
    return kl.KroneckerDictionaryLearning(**options, device=device).fit(Y)


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_iterations_end_where_the_processor_does(on_gpu, runs, rng, settings):
    emulated = isinstance(on_gpu, EmulatedGpu)
    Y = image_like(rng, 160 if emulated else 20000)
    settings = settings | {"max_iter": 4 if emulated else 20}
    expected, found = (fitted(Y, device, **settings) for device in ("cpu", "cuda"))
    rmse, wanted = (np.array(model.history_["rmse"]) for model in (found, expected))
    np.testing.assert_allclose(rmse[:2], wanted[:2], rtol=1e-4)
    # With few samples, a single changed support matters: the errors diverge and meet again.
    np.testing.assert_allclose(rmse, wanted, rtol=2e-2 if emulated else 1e-3)
    # Tiny samples get no codes in whole iterations.
    nonzeros, most = (np.array(m.history_["mean_nonzeros"]) for m in (found, expected))
    assert np.all(nonzeros <= most)
    assert np.all(nonzeros >= 0.98 * most)
    assert np.all(np.diff(found.history_["seconds"]) >= 0)
    assert -found.score(Y) == pytest.approx(rmse.min(), rel=1e-6)
    # Samples for which single precision cannot be trusted do not end a run of iterations; an atom
    # that is unused at first may.
    assert sum(done for _, done in runs) >= found.n_iter_ - 1


def test_iterations_to_an_error_target_end_where_the_processor_does(on_gpu, runs, rng):
    emulated = isinstance(on_gpu, EmulatedGpu)
    Y = image_like(rng, 160 if emulated else 20000)
    tol = 60.0 if emulated else 90.0
    settings = {"n_atoms": 16, "n_nonzero_coefs": 5, "tol": tol, "max_iter": 3}
    expected, found = (fitted(Y, device, **settings) for device in ("cpu", "cuda"))
    nonzeros, wanted = (np.array(m.history_["mean_nonzeros"]) for m in (found, expected))
    assert 1 < wanted[0] < 4.9
    np.testing.assert_allclose(nonzeros, wanted, rtol=2e-2)
    np.testing.assert_allclose(found.history_["rmse"][0], expected.history_["rmse"][0], rtol=1e-4)
    # Of equally few nonzeros the last ones.
    best = found.history_["rmse"][np.flatnonzero(nonzeros == nonzeros.min())[-1]]
    assert -found.score(Y) == pytest.approx(best, rel=1e-6)
    assert sum(done for _, done in runs) >= found.n_iter_ - 1


@pytest.mark.parametrize("settings", KINDS[:3:2], ids=str)
def test_iterations_have_the_same_bits_in_every_run(on_gpu, rng, settings):
    Y = image_like(rng, 160)
    one, other = (fitted(Y, **settings, max_iter=3) for _ in range(2))
    assert one.history_["rmse"] == other.history_["rmse"]
    for factor, same in zip(one.factors_, other.factors_, strict=True):
        np.testing.assert_array_equal(factor, same)


def test_two_threads_learn_at_the_same_time(on_gpu, rng):
    if isinstance(on_gpu, EmulatedGpu):
        pytest.skip("emulated, kernels that run at the same time share their memory")
    Y = image_like(rng, 20000)
    settings = [kind | {"max_iter": 30} for kind in KINDS[:4]]
    expected = [fitted(Y, **kind).history_["rmse"] for kind in settings]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda kind: fitted(Y, **kind), 3 * settings))
    assert [model.history_["rmse"] for model in found] == 3 * expected


@pytest.mark.parametrize("settings", KINDS[:3:2], ids=str)
def test_iterations_are_a_function_of_the_dictionary(on_gpu, rng, settings):
    source = ArraySource(image_like(rng, 160), (8, 8))
    coder = Coder("omp", settings["n_nonzero_coefs"])
    start = kl.KroneckerDictionary.normalized(rng.standard_normal((2, 8, settings["n_atoms"])))
    engine = Cuda(source, 64)
    first = engine.iterations(start, coder, False, 3)
    assert first is not None
    for t, dictionary in enumerate([start, *(one.dictionary for one in first)][:3]):
        # The result does not depend on what the engine did before, passes included.
        [found] = engine.iterations(dictionary, coder, False, 1)
        assert (found.residual, found.nonzeros) == (first[t].residual, first[t].nonzeros)
        assert found.dictionary.factors[0].tobytes() == first[t].dictionary.factors[0].tobytes()
        passed = engine.run(Task(dictionary, coder))
        assert found.residual == pytest.approx(passed.residual, rel=1e-6)
        assert found.nonzeros == passed.nonzeros


def test_settings_without_specialised_kernels_run_no_iterations(on_gpu, rng):
    Y = image_like(rng, 60)
    engine = Cuda(ArraySource(Y, (8, 8)), 64)
    square = kl.KroneckerDictionary.normalized(rng.standard_normal((2, 8, 8)))
    odd = kl.KroneckerDictionary.normalized(rng.standard_normal((2, 8, 9)))
    for dictionary, coder in (
        (odd, Coder("omp", 4)),
        (square, Coder("omp", 4, tol=np.ones(60))),
        (square, Coder("exchange", 4)),
        (square, Coder("omp", 17)),
    ):
        assert engine.iterations(dictionary, coder, False, 2) is None
    double = Cuda(ArraySource(Y.astype(np.float64), (8, 8)), 64)
    assert double.iterations(square, Coder("omp", 4), False, 2) is None


def test_an_atom_that_is_not_used_is_replaced(on_gpu, runs, rng):
    # No sample uses the last left atom.
    Y = image_like(rng, 150)
    Y[:, -1] = 0
    start = [np.eye(8), np.linalg.qr(rng.standard_normal((8, 8)))[0]]
    found = fitted(Y, init=start, method="omp", max_iter=4)
    assert runs[0] == (1, 0)
    assert sum(found.history_["atoms_replaced"]) > 0
    expected = fitted(Y, "cpu", init=start, method="omp", max_iter=4)
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=5e-3)


def test_passes_and_iterations_may_alternate(on_gpu, rng, monkeypatch):
    Y = image_like(rng, 160)
    settings = {"method": "omp", "max_iter": 6}
    expected = fitted(Y, "cpu", **settings)
    run, calls = Iterations.run, []

    def reluctant(self, dictionary, count):
        calls.append(count)
        return [] if len(calls) % 2 else run(self, dictionary, count)

    monkeypatch.setattr(Iterations, "run", reluctant)
    found = fitted(Y, **settings)
    assert len(calls) > 2
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=2e-3)


def test_further_terms_join_when_they_do_on_the_processor(on_gpu, rng):
    Y, joined = image_like(rng, 100), {"cpu": [], "cuda": []}
    for device, seen in joined.items():

        def callback(progress, seen=seen):
            seen.append(bool(progress.dictionary.stacks[0][1].any()))

        fitted(Y, device, method="omp", n_terms=2, max_iter=10, callback=callback)
    assert joined["cuda"] == joined["cpu"]
    assert not all(joined["cpu"])


def test_samples_that_are_not_finite_are_named(on_gpu, rng):
    Y = image_like(rng, 50)
    Y[17, 2, 3] = np.nan
    with pytest.raises(ValueError, match="sample 17"):
        fitted(Y, method="omp")


def test_a_time_budget_limits_the_iterations_in_a_row(on_gpu, runs, rng, monkeypatch):
    run, late = Iterations.run, [0.0]

    def slowly(self, dictionary, count):
        """Pretend that every iteration takes 100 seconds more."""
        done = []
        for iterated in run(self, dictionary, count):
            late[0] += 100.0
            done.append(replace(iterated, finished=iterated.finished + late[0]))
        return done

    monkeypatch.setattr(Iterations, "run", slowly)
    settings = {"method": "omp", "max_iter": 100, "time_budget": 650.0}
    found = fitted(image_like(rng, 100), **settings)
    assert found.stop_reason_ == "time_budget"
    seconds = found.history_["seconds"]
    assert seconds[-2] < 650 <= seconds[-1]
    # No more in a row than there is time for.
    asked = [count for count, _ in runs]
    assert max(asked) == 4
    assert asked[-1] == 1


def test_threads_record_on_streams_of_their_own():
    cuda = SimpleNamespace(Stream=lambda non_blocking: object())
    gpu, both = Gpu(SimpleNamespace(cuda=cuda)), Barrier(2)

    def streams(_):
        both.wait(10)
        return gpu._recording_stream, gpu._recording_stream

    with ThreadPoolExecutor(2) as threads:
        (one, same), (other, _) = threads.map(streams, range(2))
    assert one is same
    assert one is not other
