"""The engine of many workers finds what threads find, to the last bit, wherever samples are."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import distributed.client
import kronlearn.engines.cluster as engine
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from kronlearn.engines.host import Host
from kronlearn.engines.wires import Wires
from scipy import sparse

from cluster import DaskCluster, at_most, bits, free_port, image_like, model, until
from kronlearn.io.samples import open_samples

N = 5000
# Many blocks and a last one that is not whole.
USUAL: dict[str, Any] = {"n_nonzero_coefs": 3, "max_iter": 4, "block_size": 192, "n_atoms": (6, 6)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("dask"), (1, 2, 1)) as running:
        yield running


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """No test of a healthy cluster may hang."""
    with at_most(60):
        yield


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return image_like(N, side=6)


def same_as_threads(X: Any, Y: Any = None, **settings: Any) -> Any:
    """The model fitted on the cluster to X; threads, on Y if X is lazy, must find its bits."""
    on_cluster = model(**USUAL | settings).fit(X)
    by_threads = USUAL | settings | {"engine": "threads"}
    on_threads = model(**by_threads).fit(X if Y is None else Y)
    assert bits(on_cluster) == bits(on_threads)
    assert on_cluster.stop_reason_ == on_threads.stop_reason_
    assert on_threads.traffic_ is None
    return on_cluster


def leave_out(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> None:
    """Have engines do without some workers."""
    register = engine.Cluster._register

    def registered(self: engine.Cluster) -> None:
        register(self)
        self.workforce.refused = set(addresses)

    monkeypatch.setattr(engine.Cluster, "_register", registered)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_atoms": (9, 8)},
        {"structure": "orthonormal"},
        {"statistics": "per-mode"},
        {"statistics": "per-mode", "n_refits": 1, "n_atoms": (8, 6)},
        {"statistics": "recode"},
        {"n_refits": 2},
        {"n_terms": 2},
        {"monotone": False},
        {"method": "omp"},
        {"tol": 1.5, "n_nonzero_coefs": 8},
        {"tol": 1.5, "n_nonzero_coefs": None},
        {"min_improvement": 0.02, "max_iter": 50},
        {"block_size": 512},
        {"block_size": None},
        {"n_jobs": 2},
        {"init": "data"},
        {"max_iter": 24},
    ],
    ids=str,
)
def test_the_bits_are_those_of_threads(
    cluster: DaskCluster, samples: np.ndarray, settings: dict[str, Any]
) -> None:
    same_as_threads(samples, **settings)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"statistics": "per-mode"}, {"n_terms": 2}], ids=str)
def test_the_bits_do_not_depend_on_the_number_of_workers(
    cluster: DaskCluster,
    samples: np.ndarray,
    count: int,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_out(monkeypatch, list(cluster.names().values())[count:])
    fitted = same_as_threads(samples, **settings)
    assert fitted.traffic_.messages == count * fitted.traffic_.questions


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [{}, {"statistics": "per-mode", "n_refits": 1}], ids=str)
def test_the_bits_do_not_depend_on_who_has_which_blocks(
    cluster: DaskCluster,
    samples: np.ndarray,
    seed: int,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(seed)

    def scattered(n_blocks: int, weights: dict[str, int], *_: object, **__: object) -> Any:
        owners = rng.choice(sorted(weights), n_blocks)
        return {
            worker: [(int(b), int(b) + 1) for b in np.flatnonzero(owners == worker)]
            for worker in set(owners)
        }

    monkeypatch.setattr(engine, "shared_out", scattered)
    same_as_threads(samples, **settings)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.dtype(">f4")], ids=str)
def test_dtypes_are_read_as_threads_read_them(
    cluster: DaskCluster, samples: np.ndarray, dtype: Any
) -> None:
    scaled = 40 * (samples - samples.min())
    same_as_threads(np.clip(scaled, 0, 255).astype(dtype))


def test_rows_other_orders_and_read_only_arrays_are_taken(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    same_as_threads(samples.reshape(N, 36), n_atoms=(6, 6), patch_shape=(6, 6))
    same_as_threads(np.asfortranarray(samples[::2]))
    fixed = samples.copy()
    fixed.flags.writeable = False
    same_as_threads(fixed)


def test_unused_atoms_are_replaced_alike(cluster: DaskCluster) -> None:
    few = image_like(700, side=4)
    few[:690] = few[0]
    fitted = same_as_threads(few, n_atoms=(9, 9), n_nonzero_coefs=2, block_size=64, max_iter=8)
    assert sum(fitted.history_["atoms_replaced"]) > 0


@pytest.mark.parametrize("n_samples", [1, 2, 190, 193])
def test_fewer_blocks_than_workers_are_enough(cluster: DaskCluster, n_samples: int) -> None:
    same_as_threads(image_like(n_samples, side=6))


def test_workers_read_files_themselves(
    cluster: DaskCluster, samples: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "samples.npy", samples)
    zarr.create_array(str(tmp_path / "samples.zarr"), data=samples, chunks=(701, 6, 6))
    for path in (tmp_path / "samples.npy", str(tmp_path / "samples.zarr")):
        fitted = same_as_threads(path)
        # Only messages travelled, and samples are much larger.
        assert fitted.traffic_.bytes_out < samples.nbytes / 10


@pytest.mark.parametrize("chunks", [(701, 6, 6), (5000, 6, 6), (64, 3, 5), ((1, 4998, 1), 6, 2)])
def test_dask_arrays_with_any_chunks_are_taken(
    cluster: DaskCluster, samples: np.ndarray, chunks: Any
) -> None:
    lazy = da.from_array(samples, chunks=chunks)
    fitted = same_as_threads(lazy, samples, engine="auto")
    assert fitted.traffic_ is not None


def test_persisted_dask_arrays_are_taken(cluster: DaskCluster, samples: np.ndarray) -> None:
    same_as_threads(da.from_array(samples, chunks=(999, 6, 6)).persist() * 2, samples * 2)


def test_xarray_is_taken(cluster: DaskCluster, samples: np.ndarray) -> None:
    whole = xr.DataArray(samples, dims=("sample", "y", "x"))
    same_as_threads(whole, samples)
    assert same_as_threads(whole.chunk({"sample": 900}), samples, engine="auto").traffic_


def test_a_checkpoint_goes_from_one_engine_to_the_other(
    cluster: DaskCluster, samples: np.ndarray, tmp_path: Path
) -> None:
    for settings in ({}, {"statistics": "per-mode"}, {"n_atoms": (8, 8)}):
        wanted = bits(model(**USUAL | settings | {"max_iter": 7}, engine="threads").fit(samples))
        for first, second in (("threads", "dask"), ("dask", "threads"), ("dask", "dask")):
            path = tmp_path / f"{first}-{second}-{len(settings)}-{settings.get('n_atoms')}"
            shared = USUAL | settings | {"checkpoint": path, "checkpoint_every": 1}
            model(**shared | {"max_iter": 3}, engine=first).fit(samples)
            ended = model(**shared | {"max_iter": 7}, engine=second).fit(samples)
            assert bits(ended) == wanted, (first, second, settings)


def test_partial_fit_and_score_are_those_of_threads(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    learners = [model(**USUAL, engine=name).fit(samples[:2000]) for name in ("dask", "threads")]
    for learner in learners:
        learner.partial_fit(samples[2000:3500]).partial_fit(samples[3500:])
    assert bits(learners[0]) == bits(learners[1])
    assert learners[0].score(samples) == learners[1].score(samples)
    lazy = da.from_array(samples, chunks=(333, 6, 6))
    assert learners[0].score(lazy) == learners[1].score(samples)


def test_transform_of_a_dask_array_is_lazy_and_equal(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    learner = model(**USUAL).fit(samples)
    lazy = da.from_array(samples, chunks=(701, 6, 6))
    codes = learner.transform(lazy)
    assert isinstance(codes, da.Array)
    assert (codes.shape, codes.chunks[0]) == ((N, 36), lazy.chunks[0])
    parts = [part.compute() for part in codes.to_delayed().ravel()]
    assert all(isinstance(part, sparse.csr_array) for part in parts)
    eager = learner.transform(samples)
    assert np.array_equal(sparse.vstack(parts).toarray(), eager.toarray())
    again = learner.inverse_transform(codes)
    assert isinstance(again, da.Array)
    assert again.shape == samples.shape
    assert np.array_equal(again.compute(), learner.inverse_transform(eager))


@pytest.mark.parametrize(("place", "value"), [(4999, np.nan), (2600, np.inf), (0, np.nan)])
def test_a_bad_sample_is_named_as_threads_name_it(
    cluster: DaskCluster, samples: np.ndarray, place: int, value: float
) -> None:
    bad = samples.copy()
    bad[place, 1, 2] = value
    bad[4999, 0, 0] = np.nan
    with pytest.raises(ValueError, match=rf"first in sample {place}\)") as on_threads:
        model(**USUAL, engine="threads").fit(bad)
    for X in (bad, da.from_array(bad, chunks=(444, 6, 6))):
        with pytest.raises(ValueError, match=rf"first in sample {place}\)") as on_cluster:
            model(**USUAL).fit(X)
        assert str(on_cluster.value) == str(on_threads.value)
    same_as_threads(samples)


def test_a_file_that_workers_do_not_have_is_named(
    cluster: DaskCluster, samples: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "gone.npy"
    np.save(path, samples)
    opened = open_samples(path)
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        model(**USUAL).fit(opened)
    same_as_threads(samples)


def test_an_error_in_a_chunk_of_a_dask_array_is_raised(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    def fails(block: np.ndarray) -> np.ndarray:
        raise FileNotFoundError("this chunk cannot be read")

    lazy = da.from_array(samples, chunks=(1000, 6, 6))
    broken = da.concatenate([lazy[:4000], lazy[4000:].map_blocks(fails, dtype=samples.dtype)])
    with pytest.raises(FileNotFoundError, match="this chunk cannot be read"):
        model(**USUAL).fit(broken)
    same_as_threads(samples)


def test_a_dask_array_of_unknown_length_is_refused(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    lazy = da.from_array(samples, chunks=(1000, 6, 6))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        model(**USUAL).fit(lazy[lazy[:, 0, 0] > 0])


def test_an_engine_that_does_not_exist_is_refused(samples: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"engine='dsak' does not exist; choose one of .*dask"):
        model(engine="dsak").fit(samples)


def test_without_a_client_the_engine_asks_for_one(
    samples: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed.client, "_get_global_client", lambda: None)
    with pytest.raises(ValueError, match="needs an active client"):
        model(**USUAL).fit(samples)
    lazy = da.from_array(samples, chunks=(1000, 6, 6))
    with dask.config.set(scheduler="sync"):
        assert model(**USUAL | {"engine": "auto"}).fit(lazy).traffic_ is None


def test_an_asynchronous_client_is_refused(cluster: DaskCluster, samples: np.ndarray) -> None:
    async def fit() -> None:
        async with Client(cluster.address, asynchronous=True):
            model(**USUAL).fit(samples)

    with pytest.raises(ValueError, match="asynchronous=False"):
        asyncio.run(fit())


def test_calls_go_by_dask_where_there_are_no_wires(
    cluster: DaskCluster, samples: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(self: Wires, worker: str) -> None:
        return None

    monkeypatch.setattr(Wires, "_connected", none)
    same_as_threads(samples)


def test_messages_do_not_grow_with_the_samples(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave_out(monkeypatch, list(cluster.names().values())[2:])
    sent = []
    for n_samples in (4096, 65536):
        np.save(tmp_path / "samples.npy", image_like(n_samples, side=6))
        settings = USUAL | {"block_size": None, "n_jobs": 1, "max_iter": 10}
        traffic = model(**settings).fit(tmp_path / "samples.npy").traffic_
        assert (traffic.questions, traffic.messages) == (10, 20)
        sent.append((traffic.bytes_out, traffic.bytes_in))
    for few, many in zip(*sent, strict=True):
        assert math.isclose(few, many, rel_tol=0.02)


def test_an_interrupt_keeps_the_last_iteration_and_the_cluster(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    def interrupt(progress: Any) -> None:
        if progress.iteration == 2:
            raise KeyboardInterrupt

    learner = model(**USUAL, callback=interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(samples)
    assert (learner.n_iter_, learner.stop_reason_) == (2, "interrupted")
    assert bits(learner) == bits(model(**USUAL | {"max_iter": 2}, engine="threads").fit(samples))
    same_as_threads(samples)


def test_fits_at_the_same_time_do_not_disturb_each_other(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    cases = [{}, {"statistics": "per-mode"}, {"structure": "orthonormal"}]
    found: dict[int, Any] = {}

    def fit(number: int) -> None:
        found[number] = bits(model(**USUAL | cases[number]).fit(samples))

    threads = [threading.Thread(target=fit, args=(number,)) for number in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, case in enumerate(cases):
        assert found[number] == bits(model(**USUAL | case, engine="threads").fit(samples))


def test_a_fit_inside_a_task_is_one_like_any_other(
    cluster: DaskCluster, samples: np.ndarray
) -> None:
    settings = USUAL | {"random_state": 0, "engine": "dask"}

    def fitted(Y: np.ndarray) -> list[float]:
        import kronlearn as kl

        return kl.KroneckerDictionaryLearning(**settings).fit(Y).history_["rmse"]

    scattered = cluster.client.scatter(samples)
    rmse = cluster.client.submit(fitted, scattered).result(timeout=60)
    assert rmse == model(**USUAL, engine="threads").fit(samples).history_["rmse"]


def test_samples_that_came_misaligned_are_moved_and_held_once() -> None:
    message = np.zeros(8 * 36 * 4 + 1, np.uint8)
    samples = message[1:].view(np.float32).reshape(8, 6, 6)
    assert not samples.flags.aligned
    samples[...] = np.arange(8 * 36).reshape(8, 6, 6)
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    host, run = Host(), SimpleNamespace(data={})
    held = {"samples": samples}
    host.worker = SimpleNamespace(data=held, loop=SimpleNamespace(asyncio_loop=loop))  # type: ignore[assignment]
    request: Any = SimpleNamespace(keys={(0, 1): "samples", (1, 2): "others"})
    assert host._fetch(run, request) == [(1, 2)]  # type: ignore[arg-type]
    loop.call_soon_threadsafe(loop.stop)
    serving.join()
    loop.close()
    _, moved = run.data[0, 1]
    assert moved.flags.aligned
    assert held["samples"] is moved
    np.testing.assert_array_equal(moved, samples)


def test_workers_forget_a_fit_when_it_ends(cluster: DaskCluster, samples: np.ndarray) -> None:
    def held(dask_worker: Any) -> tuple[int, int]:
        return len(dask_worker.plugins["kronlearn"].runs), len(dask_worker.data)

    bad = samples.copy()
    bad[-1] = np.nan
    model(**USUAL).fit(samples)
    model(**USUAL).fit(da.from_array(samples, chunks=(999, 6, 6)))
    with pytest.raises(ValueError, match="NaN"):
        model(**USUAL).fit(bad)
    # Errors hold on to the frames they came from, and Dask lets go of data in its own time.
    gc.collect()
    until(lambda: set(cluster.client.run(held).values()) == {(0, 0)}, 10)


def test_a_cluster_in_this_process_does_too(samples: np.ndarray) -> None:
    port = f":{free_port()}"
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            dashboard_address=port,
        ) as local,
        Client(local),
    ):
        same_as_threads(samples)
