"""Faults do not change a bit: workers killed, frozen or added, the driver killed, a full disk."""

import os
import threading

import numpy as np
import pytest

from cluster import at_most, bits, cluster_of, image_like, kill, model, process_ids, until
from fault_runs import (
    FAULTS,
    IMPATIENT,
    N_WORKERS,
    Problems,
    fill,
    fit_with_driver_killed,
    fit_with_fault,
    restore,
    small_disk,
)
from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.engine import Task
from kronlearn.core.init import dct_factor
from kronlearn.engines.dask import Cluster
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
SETTINGS = {"n_nonzero_coefs": 4, "max_iter": 6, "n_atoms": (6, 6)}


@pytest.fixture(scope="module")
def running():
    # Dask may copy samples to other workers; with this setting it soon removes the copies.
    with cluster_of(2, {"distributed.scheduler.active-memory-manager.interval": "100ms"}) as client:
        yield client


@pytest.fixture
def client(running):
    """The client, when the worker that another test killed has been replaced."""
    until(lambda: len(running.nthreads()) == 2)
    return running


@pytest.fixture(scope="module")
def samples():
    return image_like(20_000, side=6)


def by_threads(samples, **settings):
    return bits(model(**SETTINGS | settings | {"engine": "threads"}).fit(samples))


def test_samples_lost_with_a_worker_are_scattered_again(client, samples, monkeypatch):
    scattered, scatter = [], client.scatter
    held = {}

    def counting(data, **options):
        scattered.append(len(data))
        return scatter(data, **options)

    monkeypatch.setattr(client, "scatter", counting)

    def each_is_held_once():
        for worker, keys in client.has_what().items():
            held[worker] = [key for key in keys if "kronlearn-samples" in key]
        return sum(map(len, held.values())) == scattered[0]

    def callback(progress):
        # Early, so that the fit cannot end before.
        if progress.iteration == 1:
            until(each_is_held_once)
            kill(client.run(os.getpid)[max(held, key=lambda worker: len(held[worker]))])

    with at_most(30):
        fitted = model(**SETTINGS, callback=callback).fit(samples)
    assert bits(fitted) == by_threads(samples)
    assert scattered[1] == max(map(len, held.values()))


def test_scattering_is_repeated_if_a_worker_is_lost_meanwhile(client, samples, monkeypatch):
    attempts, scatter = [], client.scatter

    def failing_at_first(data, **options):
        attempts.append(len(data))
        if len(attempts) == 1:
            raise OSError("Timed out trying to connect")
        return scatter(data, **options)

    monkeypatch.setattr(client, "scatter", failing_at_first)
    assert bits(model(**SETTINGS).fit(samples)) == by_threads(samples)
    assert len(attempts) == 2
    assert attempts[0] == attempts[1]


def test_codes_lost_with_a_worker_are_computed_again(client, samples):
    source = ArraySource(samples, (6, 6))
    dictionary = KroneckerDictionary([dct_factor(6, 8)] * 2)
    coding = Task(dictionary, Coder("omp", 3), "mode", 0, keeps_codes=True)
    summing = Task(dictionary, Coder("omp", 3), "mode", 1)
    threads = Threads(source, 2, 512)
    expected = threads.run(summing, threads.run(coding).codes)
    cluster = Cluster(client, source, block_size=512)
    with at_most(30):
        codes = cluster.run(coding).codes
        kill(process_ids(client)[0])
        found = cluster.run(summing, codes)
    cluster.close()
    assert np.array_equal(found.sums, expected.sums)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Enough samples that passes take most of the time of a fit."""
    return Problems(tmp_path_factory.mktemp("many"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fit_survives_every_fault(many, rng, name):
    with cluster_of(N_WORKERS, IMPATIENT) as client:
        for _ in range(10):
            assert fit_with_fault(client, many, FAULTS[name], rng)
            restore(client)


@pytest.mark.slow
def test_a_fit_resumes_after_its_driver_was_killed(many, tmp_path, rng):
    with cluster_of(N_WORKERS) as client:
        for _ in range(10):
            assert fit_with_driver_killed(client, many, tmp_path, rng)


@pytest.mark.slow
def test_an_interrupt_during_a_pass_leaves_no_tasks(client, many):
    def callback(progress):
        if progress.iteration == 2:
            threading.Timer(0.02, os.kill, (os.getpid(), 2)).start()

    learner = model(max_iter=50, n_nonzero_coefs=16, callback=callback)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(many.array)
    assert learner.stop_reason_ == "interrupted"
    until(lambda: not any(client.processing().values()))


@ROOT
def test_a_full_disk_is_an_error_and_the_last_checkpoint_stays_valid(samples, tmp_path):
    with small_disk(tmp_path, 1) as disk:
        checkpoint, filler = disk / "run.safetensors", disk / "filler"

        def callback(progress):
            if progress.iteration == 3:
                fill(filler)

        options = {"engine": "threads", "checkpoint": checkpoint, "checkpoint_every": 1}
        with pytest.raises(OSError, match=r"run\.safetensors"):
            model(**SETTINGS | options, callback=callback).fit(samples)
        filler.unlink()
        assert [file.name for file in disk.iterdir()] == [checkpoint.name]
        assert bits(model(**SETTINGS | options).fit(samples)) == by_threads(samples)


@ROOT
def test_a_dictionary_file_on_a_full_disk_stays_unchanged(samples, tmp_path):
    first, second = (model(engine="threads", max_iter=n).fit(samples[:500]) for n in (1, 2))
    with small_disk(tmp_path, 1) as disk:
        path = disk / "dictionary.safetensors"
        first.dictionary_.save(path)
        before = path.read_bytes()
        fill(disk / "filler")
        with pytest.raises(OSError, match=r"dictionary\.safetensors"):
            second.dictionary_.save(path)
        assert path.read_bytes() == before
        assert sorted(file.name for file in disk.iterdir()) == [path.name, "filler"]
