"""The Dask engine gives the bits of threads, wherever the samples are."""

import asyncio
import gc
import importlib.util
import math
import os
import sys
import threading
import time

import dask
import dask.array as da
import distributed
import joblib
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from scipy import sparse
from sklearn.model_selection import GridSearchCV

import kronlearn as kl
from cluster import SETTINGS, at_most, bits, cluster_of, image_like, model, until
from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.engine import Task
from kronlearn.core.init import dct_factor
from kronlearn.engines.dask import Cluster, partitions, tasks
from kronlearn.engines.samples import open_samples
from kronlearn.engines.selection import select_engine
from kronlearn.engines.threads import Threads, resolve_n_jobs
from kronlearn.io.arrays import ArraySource

N = 5000
# Many blocks, of which the last has fewer samples.
USUAL = {"n_nonzero_coefs": 3, "max_iter": 3, "block_size": 192, "n_atoms": (6, 6)}


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as running:
        yield running


@pytest.fixture(autouse=True)
def time_limit():
    """Fail instead of hanging."""
    with at_most(60):
        yield


@pytest.fixture(scope="module")
def samples():
    return image_like(N, side=6)


def by_threads(X, **settings):
    return model(**USUAL | settings | {"engine": "threads"}).fit(X)


def assert_same_as_threads(X, Y=None, **settings):
    """Fit X on the cluster; assert that threads, on Y if X is lazy, give the same bits."""
    on_cluster = model(**USUAL | settings).fit(X)
    on_threads = by_threads(X if Y is None else Y, **settings)
    assert bits(on_cluster) == bits(on_threads)
    assert on_cluster.stop_reason_ == on_threads.stop_reason_
    return on_cluster


@pytest.mark.parametrize(
    "settings",
    [
        {"n_atoms": (9, 8)},
        {"structure": "orthonormal", "n_jobs": 2},
        {"n_atoms": (40, 40), "max_iter": 1},
        {"n_terms": 2, "max_iter": 4},
        {"tol": 1.5, "n_nonzero_coefs": None},
        {"min_improvement": 0.02, "max_iter": 50},
        {"block_size": None, "init": "data", "method": "omp"},
    ],
    ids=str,
)
def test_models_have_the_bits_of_threads(client, samples, settings):
    assert_same_as_threads(samples, **settings)


@pytest.mark.parametrize("threads", [3, 16])
def test_the_bits_do_not_depend_on_the_partitions(client, samples, threads, monkeypatch):
    monkeypatch.setattr(client, "nthreads", lambda: {"a worker": threads})
    assert_same_as_threads(samples)


@pytest.mark.parametrize("settings", [{}, {"n_atoms": (40, 40), "max_iter": 1}], ids=str)
def test_workers_add_up_sums_that_are_too_large_to_fetch(client, samples, settings, monkeypatch):
    monkeypatch.setattr("kronlearn.engines.dask.engine._FETCHED_BYTES", 1)
    monkeypatch.setattr("kronlearn.engines.dask.engine._FAN_IN", 2)
    monkeypatch.setattr(client, "nthreads", lambda: {"a worker": 3})
    assert_same_as_threads(samples, **settings)


@pytest.mark.parametrize(("n_jobs", "threads"), [(None, 3), (-1, 3), (2, 2)])
def test_tasks_have_n_jobs_threads_or_take_turns_with_all_threads_of_their_worker(
    samples, n_jobs, threads, monkeypatch
):
    used, at_once, running, pass_over = [], [], set(), tasks.pass_over

    def watched(source, task, tree, n_threads, *rest, **options):
        used.append(n_threads)
        running.add(threading.get_ident())
        at_once.append(len(running))
        try:
            time.sleep(0.02)  # time for a third task to begin, if nothing stops it
            return pass_over(source, task, tree, n_threads, *rest, **options)
        finally:
            running.remove(threading.get_ident())

    monkeypatch.setattr(tasks, "pass_over", watched)
    task = Task(KroneckerDictionary([dct_factor(6, 6)] * 2), Coder("omp", 3))
    local = LocalCluster(1, threads_per_worker=3, processes=False, dashboard_address=":0")
    with dask.config.set(SETTINGS), local as cluster, Client(cluster) as one:
        engine = Cluster(one, ArraySource(samples, (6, 6)), n_jobs, block_size=192, n_partitions=8)
        sums = engine.run(task)
        engine.close()
    assert used == [threads] * len(engine.partitions)
    assert len(used) > 3
    assert n_jobs == 2 or max(at_once) <= 2
    assert sums.residual == Threads(engine.source, 1, engine.block_size).run(task).residual


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda Y: Y.astype(np.float64), id="float64"),
        pytest.param(lambda Y: np.clip(40 * (Y + 2), 0, 255).astype(np.uint8), id="uint8"),
        pytest.param(lambda Y: Y.astype(">f4"), id="big-endian"),
        pytest.param(lambda Y: Y.reshape(N, 36), id="rows"),
        pytest.param(lambda Y: np.asfortranarray(Y[::2]), id="Fortran order"),
        pytest.param(lambda Y: Y[:1], id="one sample"),
        pytest.param(lambda Y: Y[:193], id="two blocks"),
        pytest.param(lambda Y: xr.DataArray(Y, dims=("sample", "y", "x")), id="xarray"),
    ],
)
def test_samples_are_read_as_threads_read_them(client, samples, change):
    assert_same_as_threads(change(samples), max_iter=1)


def test_unused_atoms_are_replaced_as_with_threads(client):
    few = image_like(700, side=4)
    few[:690] = few[0]
    fitted = assert_same_as_threads(
        few, n_atoms=(9, 9), n_nonzero_coefs=2, block_size=64, max_iter=8
    )
    assert sum(fitted.history_["atoms_replaced"]) > 0


def test_workers_open_files_themselves(client, samples, tmp_path, monkeypatch):
    np.save(tmp_path / "samples.npy", samples)
    zarr.create_array(str(tmp_path / "samples.zarr"), data=samples, chunks=(701, 6, 6))
    monkeypatch.setattr(client, "scatter", None)
    for path in (tmp_path / "samples.npy", str(tmp_path / "samples.zarr")):
        assert_same_as_threads(path)
    weights = np.linspace(0, 2, len(samples))
    settings = {"tol": 1.5, "n_nonzero_coefs": 3, "max_iter": 1}
    on_cluster = model(**USUAL | settings).fit(tmp_path / "samples.npy", sample_weight=weights)
    on_threads = model(**USUAL | settings | {"engine": "threads"})
    assert bits(on_cluster) == bits(on_threads.fit(samples, sample_weight=weights))


@pytest.mark.parametrize("chunks", [(701, 6, 6), (5000, 3, 5), ((1, 4998, 1), 6, 2)])
def test_dask_arrays_with_any_chunks_are_accepted(client, samples, chunks, monkeypatch):
    monkeypatch.setattr(client, "scatter", None)
    lazy = da.from_array(samples, chunks=chunks)
    assert_same_as_threads(lazy, samples, engine="auto")
    in_xarray = xr.DataArray(lazy, dims=("sample", "y", "x"))
    assert_same_as_threads(in_xarray, samples, engine="auto", max_iter=1)


def test_chunks_of_a_persisted_array_stay_where_they_are(client, samples):
    whole = samples[:4992]
    lazy = da.from_array(whole, chunks=(2496, 6, 6)).persist()
    distributed.wait(lazy)
    before = dict(client.who_has(lazy))
    assert_same_as_threads(lazy * 2, whole * 2)
    # Dask may copy a chunk to a worker that has nothing to do.
    after = client.who_has(lazy)
    assert all(set(workers) <= set(after[key]) for key, workers in before.items())


def test_scattered_samples_are_spread_over_the_workers_and_stay_there(client, samples):
    cluster = Cluster(client, ArraySource(samples, (6, 6)), block_size=64, n_partitions=8)
    workers = {partition.worker for partition in cluster.partitions}
    assert workers == set(client.nthreads())
    dictionary = KroneckerDictionary([dct_factor(6, 6)] * 2)
    for _ in range(3):
        cluster.run(Task(dictionary, Coder("omp", 3), "full"))
    held = client.who_has([partition.samples for partition in cluster.partitions])
    for partition in cluster.partitions:
        assert held[partition.samples.key] == (partition.worker,)
    cluster.close()


def test_small_chunks_are_joined_and_large_ones_split():
    def spans(chunks, block_size, step):
        return list(partitions.spans_in_chunks(np.cumsum(chunks), block_size, step))

    # Two large chunks, and the block across their edge.
    assert spans([105, 95], 10, 10) == [(0, 100), (100, 110), (110, 200)]
    assert spans([400], 10, 10) == [(0, 100), (100, 200), (200, 300), (300, 400)]
    assert spans([3] * 100, 10, 10) == [(0, 100), (100, 200), (200, 300)]
    assert spans([20] * 10, 10, 10) == [(0, 100), (100, 200)]
    assert spans([3], 10, 10) == [(0, 3)]


def test_either_engine_can_resume_a_checkpoint_of_the_other(client, samples, tmp_path):
    expected = bits(by_threads(samples, max_iter=6))
    for first, second in (("threads", "dask"), ("dask", "threads")):
        shared = USUAL | {"checkpoint": tmp_path / first, "checkpoint_every": 1}
        model(**shared | {"max_iter": 3}, engine=first).fit(samples)
        assert bits(model(**shared | {"max_iter": 6}, engine=second).fit(samples)) == expected


def test_partial_fit_score_and_transform_have_the_bits_of_threads(client, samples):
    learners = [model(**USUAL, engine=name).fit(samples[:2000]) for name in ("dask", "threads")]
    for learner in learners:
        learner.partial_fit(samples[2000:3500]).partial_fit(samples[3500:])
    assert bits(learners[0]) == bits(learners[1])
    assert learners[0].score(samples) == learners[1].score(samples)
    lazy = da.from_array(samples, chunks=(333, 6, 6))
    assert learners[0].score(lazy) == learners[1].score(samples)
    codes, expected = (learner.transform(samples) for learner in learners)
    assert isinstance(codes, sparse.csr_array)
    for name in ("indptr", "indices", "data"):
        assert np.array_equal(getattr(codes, name), getattr(expected, name))


@pytest.mark.skipif(len(kl.instruction_sets()) == 1, reason="there is one instruction set only")
def test_workers_use_the_instruction_set_of_this_process(client, samples):
    source, coder = ArraySource(samples, (6, 6)), Coder("omp", 3)
    dictionary = KroneckerDictionary([dct_factor(6, 8)] * 2)
    task, threads = Task(dictionary, coder, "full"), Threads(source, 1, 192)
    fast = threads.run(task).sums
    with kl.use_instruction_set("baseline"):
        cluster = Cluster(client, source, block_size=192)
        sums, expected = cluster.run(task).sums, threads.run(task).sums
        codes, expected_codes = (e.codes(dictionary, coder).data for e in (cluster, threads))
    cluster.close()
    assert expected.tobytes() != fast.tobytes()
    assert sums.tobytes() == expected.tobytes()
    assert codes.tobytes() == expected_codes.tobytes()


def test_partitions_get_their_own_error_targets_and_weights(client, samples):
    source = ArraySource(samples, (6, 6))
    rng = np.random.default_rng(0)
    weights = rng.uniform(size=samples.shape)
    task = Task(
        KroneckerDictionary([dct_factor(6, 8)] * 2),
        Coder("omp", 5, rng.uniform(0.1, 2.0, N), weights),
        "full",
        n_worst=7,
    )
    sums = Cluster(client, source, block_size=192).run(task)
    expected = Threads(source, 1, 192).run(task)
    assert np.array_equal(sums.sums, expected.sums)
    assert np.array_equal(sums.worst, expected.worst)


def test_transform_of_a_dask_array_is_lazy_and_equal(client, samples, tmp_path):
    learner = by_threads(samples)
    lazy = da.from_array(samples, chunks=(701, 6, 6))
    codes = learner.transform(lazy)
    assert isinstance(codes, da.Array)
    assert (codes.shape, codes.chunks[0]) == ((N, 36), lazy.chunks[0])
    eager = learner.transform(samples)
    assert (codes.compute() != eager).nnz == 0
    again = learner.inverse_transform(codes)
    assert again.shape == samples.shape
    assert codes.dtype == again.dtype == np.float32
    assert np.array_equal(again.compute(), learner.inverse_transform(eager))
    dense = learner.set_params(sparse_output=False).transform(lazy)
    learner.set_params(sparse_output=True)
    assert dense.dtype == codes.dtype
    np.testing.assert_allclose(dense.sum(axis=0).compute(), eager.sum(axis=0), rtol=1e-4)
    dense.to_zarr(str(tmp_path / "codes.zarr"))
    assert np.array_equal(zarr.open_array(str(tmp_path / "codes.zarr"))[:], eager.toarray())
    chosen = learner.transform(lazy[lazy[:, 0, 0] > 0])
    assert (chosen.compute() != eager[samples[:, 0, 0] > 0]).nnz == 0


@pytest.mark.parametrize(("place", "value"), [(4999, np.nan), (2600, np.inf)])
def test_a_bad_sample_is_named_as_with_threads(client, samples, place, value):
    bad = samples.copy()
    bad[place, 1, 2] = value
    bad[4999, 0, 0] = np.nan
    for X in (bad, da.from_array(bad, chunks=(444, 6, 6))):
        with pytest.raises(ValueError, match=rf"first in sample {place}\)") as on_threads:
            by_threads(X)
        with pytest.raises(ValueError, match=rf"first in sample {place}\)") as on_cluster:
            model(**USUAL).fit(X)
        assert str(on_cluster.value) == str(on_threads.value)
    fitted = by_threads(samples)
    with pytest.raises(ValueError, match=rf"first in sample {place}\)"):
        fitted.set_params(engine="dask").transform(bad)
    lazy = da.from_array(bad[: place + 1], chunks=(444, 6, 6))
    with pytest.raises(ValueError, match=rf"first in sample {place}\)"):
        fitted.transform(lazy).compute()


def test_a_file_that_workers_lack_is_named(client, samples, tmp_path):
    path = tmp_path / "gone.npy"
    np.save(path, samples)
    stored = open_samples(path)
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        model(**USUAL).fit(stored)


def test_a_dask_array_of_unknown_length_is_accepted(client, samples):
    rows = samples.reshape(N, 36)
    # One of the chunks is left empty.
    chosen = np.flatnonzero((rows[:, 0] > 0) & (np.arange(N) // 1000 != 2))
    mask = da.from_array(np.isin(np.arange(N), chosen), chunks=1000)
    lazy = da.from_array(rows, chunks=(1000, 20))[mask]
    expected = by_threads(rows[chosen])
    on_cluster = model(**USUAL).fit(lazy)
    assert bits(on_cluster) == bits(expected)
    assert math.isnan(lazy.shape[0])
    assert on_cluster.score(lazy) == expected.score(rows[chosen])
    codes = on_cluster.transform(lazy)
    assert math.isnan(codes.shape[0])
    again = on_cluster.inverse_transform(codes).compute()
    assert np.array_equal(again, expected.inverse_transform(expected.transform(rows[chosen])))


def test_the_engine_needs_a_client(samples, monkeypatch):
    def no_client():
        raise ValueError("No global client found")

    monkeypatch.setattr(distributed, "get_client", no_client)
    with pytest.raises(ValueError, match="needs an active client"):
        model(**USUAL).fit(samples)
    lazy = da.from_array(samples, chunks=(1000, 6, 6))
    with dask.config.set(scheduler="sync"):
        assert bits(model(**USUAL | {"engine": "auto"}).fit(lazy)) == bits(by_threads(samples))


def test_an_asynchronous_client_is_refused(client, samples):
    async def fit():
        async with Client(client.scheduler_info()["address"], asynchronous=True):
            model(**USUAL).fit(samples)

    with pytest.raises(ValueError, match="asynchronous=False"):
        asyncio.run(fit())


def test_a_joblib_context_can_select_the_cluster(client, samples, monkeypatch):
    source = ArraySource(samples, (6, 6))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert isinstance(select_engine("auto", source, None), Threads)
    with joblib.parallel_config("dask"):
        assert isinstance(select_engine("auto", source, None), Cluster)
        assert isinstance(select_engine("threads", source, None), Threads)
        assert resolve_n_jobs(None) == 1
        assert resolve_n_jobs(-2) == max(1, joblib.cpu_count() - 1)
        fitted = model(**USUAL | {"engine": "auto", "n_jobs": -1}).fit(samples)
    assert bits(fitted) == bits(by_threads(samples))


def test_a_search_over_parameters_fits_in_tasks(client, samples):
    search = GridSearchCV(
        model(**USUAL | {"engine": "auto"}), {"n_nonzero_coefs": [2, 3]}, cv=2, n_jobs=2
    )
    with joblib.parallel_config("dask"):
        search.fit(samples[:600].reshape(600, 36))
    assert search.best_params_ == {"n_nonzero_coefs": 3}


def test_workers_that_cannot_import_kronlearn_are_an_error(client, samples):
    def hide():
        names = [name for name in sys.modules if name.partition(".")[0] == "kronlearn"]
        sys.hidden = {name: sys.modules.pop(name) for name in names}
        sys.modules["kronlearn"] = None

    def show():
        del sys.modules["kronlearn"]
        sys.modules.update(sys.hidden)

    client.run(hide)
    try:
        with pytest.raises(RuntimeError, match=r"not have kronlearn .* Install the same version"):
            model(**USUAL).fit(samples)
    finally:
        client.run(show)
    assert_same_as_threads(samples)


def test_an_interrupt_keeps_the_best_dictionary_and_leaves_no_tasks(client, samples):
    def interrupt(progress):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    learner = model(**USUAL, callback=interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(samples)
    assert (learner.n_iter_, learner.stop_reason_) == (2, "interrupted")
    assert bits(learner) == bits(by_threads(samples, max_iter=2))
    until(lambda: not any(client.processing().values()))


def test_workers_hold_nothing_after_a_fit(client, samples):
    def held():
        return {key for keys in client.has_what().values() for key in keys}

    before = held()  # an earlier test may have failed
    bad = samples.copy()
    bad[-1] = np.nan
    model(**USUAL).fit(samples)
    model(**USUAL).fit(da.from_array(samples, chunks=(999, 6, 6)))
    with pytest.raises(ValueError, match="NaN"):
        model(**USUAL).fit(bad)
    # Exceptions keep their frames alive, and Dask releases data with a delay.
    gc.collect()
    until(lambda: held() <= before)


def test_concurrent_fits_do_not_affect_each_other(client, samples):
    cases = [{}, {"structure": "orthonormal"}]
    found = {}

    def fit(number):
        found[number] = bits(model(**USUAL | cases[number]).fit(samples))

    threads = [threading.Thread(target=fit, args=(number,)) for number in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, case in enumerate(cases):
        assert found[number] == bits(by_threads(samples, **case))


def test_samples_misaligned_in_their_message_are_copied():
    message = np.zeros(8 * 36 * 4 + 1, np.uint8)
    misaligned = message[1:].view(np.float32).reshape(8, 6, 6)
    misaligned[...] = np.arange(8 * 36).reshape(8, 6, 6)
    moved = tasks.aligned(misaligned)
    assert moved.flags.aligned
    np.testing.assert_array_equal(moved, misaligned)


def test_an_adaptive_cluster_can_start_without_workers(samples):
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        local.adapt(minimum=0, maximum=2, interval="50ms")
        assert not client.nthreads()
        assert_same_as_threads(samples)


@pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="cryptography makes certificates"
)
def test_a_cluster_with_tls_works(samples):
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=1,
            processes=False,
            security=True,
            protocol="tls://",
            dashboard_address=":0",
        ) as local,
        Client(local) as client,
    ):
        assert client.scheduler_info()["address"].startswith("tls://")
        assert_same_as_threads(samples)


def test_convolutional_filters_learned_by_workers_have_the_bits_of_threads(client, rng):
    images = [rng.standard_normal((12 + k, 14)) for k in range(9)]
    on_cluster, on_threads = (
        kl.convolutional.SeparableConvolutionalLearning(
            2, (4, 4), penalty=0.5, max_iter=1, random_state=0, engine=engine
        ).fit(images)
        for engine in ("dask", "threads")
    )
    assert on_cluster.dictionary_ == on_threads.dictionary_
    assert on_cluster.history_["objective"] == on_threads.history_["objective"]
