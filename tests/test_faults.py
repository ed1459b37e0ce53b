"""Faults: workers killed, frozen, added or cut off, a driver killed, a disk full: the same bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kronlearn.estimators
from cluster import DaskCluster, MidIteration, at_most, bits, image_like, model
from fault_runs import (
    FAULTS,
    N_WORKERS,
    Fault,
    Problems,
    add_one,
    fill,
    fit_with_disk_full,
    fit_with_driver_killed,
    fit_with_fault,
    freeze,
    impatient,
    kill_one,
    networks_possible,
    runs_with_cuts,
    small_disk,
)
from kronlearn.engines import workforce

REPETITIONS = 10
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
SETTINGS: dict[str, Any] = {"n_nonzero_coefs": 4, "max_iter": 6, "n_atoms": (6, 6)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("dask"), [1] * N_WORKERS) as running:
        yield running


@pytest.fixture
def cluster(shared: DaskCluster) -> Iterator[DaskCluster]:
    """Three workers, whatever the test before has done to them."""
    shared.restore(N_WORKERS)
    with at_most(100), impatient():
        yield shared


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Problems:
    return Problems(tmp_path_factory.mktemp("few"), n_samples=30_000, max_iter=8)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Problems:
    """So many samples that most of the time is spent in passes over them."""
    return Problems(tmp_path_factory.mktemp("many"))


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return image_like(20_000, side=6)


def undisturbed(samples: np.ndarray, **settings: Any) -> dict[str, bytes]:
    return bits(model(**SETTINGS | settings | {"engine": "threads"}).fit(samples))


@pytest.mark.parametrize(
    ("fault", "lost"),
    [(Fault(kill_one), 1), (Fault(add_one, awaited=True), 0), (Fault(freeze(1.5, 1.6)), 1)],
    ids=["killed", "added", "frozen"],
)
def test_a_fit_survives(
    cluster: DaskCluster, few: Problems, rng: np.random.Generator, fault: Fault, lost: int
) -> None:
    run = fit_with_fault(cluster, few, fault, rng)
    assert run.same_bits
    # On a busy machine another worker may be given up too.
    assert run.workers_lost >= lost


@pytest.mark.parametrize("act", ["kill", "freeze"])
def test_a_worker_lost_after_the_last_pass_is_not_missed(
    cluster: DaskCluster, samples: np.ndarray, act: str
) -> None:
    def callback(progress: Any) -> None:
        if progress.iteration == SETTINGS["max_iter"]:
            getattr(cluster, act)(cluster.alive[0])

    fitted = model(**SETTINGS, callback=callback).fit(samples)
    assert bits(fitted) == undisturbed(samples)


def test_codes_lost_before_a_checkpoint_are_made_again_for_it(
    cluster: DaskCluster, samples: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = kronlearn.estimators.save_state

    def kill_and_save(path: Any, state: Any, problem: Any) -> None:
        if state.iteration == 3:
            cluster.kill(cluster.alive[0])
        save(path, state, problem)

    monkeypatch.setattr(kronlearn.estimators, "save_state", kill_and_save)
    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 1}
    assert bits(model(**SETTINGS, **kept).fit(samples)) == undisturbed(samples)
    model(**SETTINGS | kept | {"max_iter": 3, "checkpoint": tmp_path / "other"}).fit(samples)
    resumed = model(**SETTINGS | kept | {"checkpoint": tmp_path / "other"}).fit(samples)
    assert bits(resumed) == undisturbed(samples)


def test_a_worker_lost_right_after_a_resumption_is_replaced(
    cluster: DaskCluster, samples: np.ndarray, tmp_path: Path, rng: np.random.Generator
) -> None:
    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 1}
    model(**SETTINGS | kept | {"max_iter": 3}).fit(samples)
    fault = MidIteration(4, lambda: kill_one(cluster, rng), rng)
    resumed = model(**SETTINGS, **kept, callback=fault).fit(samples)
    fault.finish()
    assert bits(resumed) == undisturbed(samples)


def test_workers_may_die_one_after_the_other_until_one_is_left(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    def callback(progress: Any) -> None:
        if progress.iteration in (2, 4):
            cluster.kill(cluster.alive[0])

    fitted = model(**SETTINGS, callback=callback).fit(samples)
    assert bits(fitted) == undisturbed(samples)
    assert fitted.traffic_.workers_lost >= 2


def test_without_any_worker_a_fit_ends_with_an_error(
    cluster: DaskCluster, samples: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workforce, "PATIENCE", 0.3)

    def callback(progress: Any) -> None:
        if progress.iteration == 2:
            for worker in cluster.alive:
                cluster.kill(worker)

    learner = model(**SETTINGS, callback=callback)
    with pytest.raises(RuntimeError, match="No Dask worker has answered"):
        learner.fit(samples)
    assert (learner.n_iter_, learner.stop_reason_) == (2, "interrupted")
    cluster.restore(N_WORKERS)
    assert bits(model(**SETTINGS).fit(samples)) == undisturbed(samples)


def test_a_worker_that_cannot_import_kronlearn_is_told_of_and_then_left_out(
    samples: np.ndarray, tmp_path: Path
) -> None:
    package = tmp_path / "without" / "kronlearn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no kronlearn here')\n")
    without = ["env", f"PYTHONPATH={package.parent}"]
    with DaskCluster(tmp_path, [1, 1], prefixes=[[], without]) as cluster, at_most(60):
        with pytest.raises(RuntimeError, match=r"no kronlearn here.*install the same version"):
            model(**SETTINGS).fit(samples)
        cluster.kill(cluster.workers[1])
        assert bits(model(**SETTINGS).fit(samples)) == undisturbed(samples)


@ROOT
def test_a_full_disk_is_told_of_and_the_last_checkpoint_is_good(
    cluster: DaskCluster, few: Problems, tmp_path: Path, rng: np.random.Generator
) -> None:
    with small_disk(tmp_path, 16) as disk:
        run = fit_with_disk_full(few, disk, rng)
    assert run.same_bits
    assert str(tmp_path / "run.safetensors") in run.error


@ROOT
def test_a_dictionary_on_a_full_disk_stays_as_it_was(samples: np.ndarray, tmp_path: Path) -> None:
    first, second = (model(engine="threads", max_iter=n).fit(samples[:500]) for n in (1, 2))
    with small_disk(tmp_path, 1) as disk:
        path = disk / "dictionary.safetensors"
        first.dictionary_.save(path)
        before = path.read_bytes()
        fill(disk / "filler", 0)
        with pytest.raises(OSError, match=r"dictionary\.safetensors"):
            second.dictionary_.save(path)
        assert path.read_bytes() == before
        assert sorted(file.name for file in disk.iterdir()) == [path.name, "filler"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fit_survives_every_time(
    many: Problems, tmp_path: Path, rng: np.random.Generator, name: str
) -> None:
    fault = FAULTS[name]
    with DaskCluster(tmp_path, [1] * N_WORKERS, nanny=fault.nanny) as cluster:
        for _ in range(REPETITIONS):
            assert fit_with_fault(cluster, many, fault, rng).same_bits
            cluster.restore(N_WORKERS)


@pytest.mark.slow
def test_a_fit_survives_cuts_of_the_network(tmp_path: Path) -> None:
    if not networks_possible():
        pytest.skip("needs root and the command ip to make network namespaces")
    runs = runs_with_cuts(tmp_path, REPETITIONS, seed=0)
    assert all(run.same_bits for run in runs)
    # Every other cut lasts longer than the patience.
    assert sum(run.workers_lost for run in runs) >= REPETITIONS // 2


@pytest.mark.slow
def test_a_fit_goes_on_after_its_driver_was_killed(
    shared: DaskCluster, many: Problems, tmp_path: Path, rng: np.random.Generator
) -> None:
    shared.restore(N_WORKERS)
    for _ in range(REPETITIONS):
        assert fit_with_driver_killed(shared, many, tmp_path, rng).same_bits


@ROOT
@pytest.mark.slow
def test_a_fit_goes_on_after_its_disk_was_full(
    shared: DaskCluster, few: Problems, tmp_path: Path, rng: np.random.Generator
) -> None:
    shared.restore(N_WORKERS)
    with small_disk(tmp_path, 16) as disk:
        for _ in range(REPETITIONS):
            assert fit_with_disk_full(few, disk, rng).same_bits


@pytest.mark.slow
def test_a_busy_worker_is_not_taken_for_a_lost_one(
    shared: DaskCluster, many: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.restore(1)
    monkeypatch.setattr(workforce, "PATIENCE", 1.0)
    settings = {"n_atoms": (32, 32), "n_nonzero_coefs": 32, "max_iter": 1}
    fitted = model(**settings).fit(many.array)
    assert fitted.history_["seconds"][0] > 2.5
    assert fitted.traffic_.workers_lost == 0


@pytest.mark.slow
def test_without_its_scheduler_a_fit_ends_with_an_error(
    many: Problems, tmp_path: Path, rng: np.random.Generator
) -> None:
    with DaskCluster(tmp_path) as cluster:
        fault = MidIteration(2, cluster.scheduler.kill, rng)
        learner = model(**many.settings(0) | {"max_iter": 200}, callback=fault)
        with at_most(200), pytest.raises(OSError, match="connect"):
            learner.fit(many.path)
        assert learner.n_iter_ >= 2
