"""Dask workers with GPUs, tested emulated and, if there is one, on a real GPU."""

import threading
from contextlib import contextmanager

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import kronlearn as kl
from cluster import bits, image_like, model
from emulated_gpu import EmulatedGpu

#: All kinds of sums: full moments, one mode after the other, S_xy alone.
SETTINGS = {
    "defaults": {},
    "per mode": {"n_atoms": 33},
    "orthonormal": {"structure": "orthonormal"},
}

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class SharedGpu(EmulatedGpu):
    """An emulated GPU that several workers use, one at a time."""

    def __init__(self):
        self.lock = threading.Lock()

    def launch_blocks(self, *arguments, **options):
        with self.lock:
            super().launch_blocks(*arguments, **options)


EMULATED = SharedGpu


def on_gpus(**settings):
    """A model that learns on a cluster of GPUs, unless settings say otherwise."""
    options = {"n_atoms": 6, "max_iter": 2, "block_size": 128, "device": "cuda"}
    return model(**(options | settings))


@pytest.fixture
def workers(on_gpu):
    """Start a cluster of workers that share the GPU; for a real GPU, each has its own process."""

    @contextmanager
    def started(count):
        real = not isinstance(on_gpu, EmulatedGpu)
        options = {"processes": real, "threads_per_worker": 1, "dashboard_address": ":0"}
        with LocalCluster(n_workers=count, **options) as cluster, Client(cluster):
            yield

    return started


def test_workers_with_gpus_end_with_the_same_bits_whatever_their_number(workers):
    samples = image_like(1000, side=6)
    found = {name: [] for name in SETTINGS}
    for count in (1, 3):
        with workers(count):
            for name, settings in SETTINGS.items():
                found[name].append(on_gpus(**settings).fit(samples))
    for name, settings in SETTINGS.items():
        first, *others = found[name]
        assert all(bits(first) == bits(other) for other in others), name
        alone = on_gpus(engine="threads", device="cpu", **settings).fit(samples)
        np.testing.assert_allclose(first.history_["rmse"], alone.history_["rmse"], rtol=1e-3)
        on_one_gpu = on_gpus(engine="auto", **settings).fit(samples)
        assert bits(on_one_gpu) == bits(first), name


def test_workers_with_gpus_read_files_and_lazy_arrays(workers, tmp_path):
    samples = image_like(600, side=6)
    np.save(tmp_path / "samples.npy", samples)
    with workers(2):
        same = bits(on_gpus().fit(samples))
        assert bits(on_gpus().fit(tmp_path / "samples.npy")) == same
        lazy = da.from_array(samples, chunks=(250, 6, 6))
        found = on_gpus().fit(lazy)
        assert bits(found) == same
        restored = found.inverse_transform(found.transform(lazy)).compute()
    codes = kl.sparse_code(samples, found.dictionary_, 4, method="ols")
    expected = found.inverse_transform(codes)
    errors = [np.linalg.norm((Y - samples).reshape(600, -1), axis=1) for Y in (restored, expected)]
    np.testing.assert_allclose(*errors, rtol=1e-3, atol=1e-3)


def test_a_sample_that_is_not_finite_is_named(workers):
    samples = image_like(600, side=6)
    samples[500, 2, 3] = np.nan
    with workers(2), pytest.raises(ValueError, match="first in sample 500"):
        on_gpus().fit(samples)


def test_a_worker_without_a_gpu_says_so(monkeypatch):
    def no_gpu():
        raise RuntimeError('device="cuda" found no GPU; pass device="cpu".')

    monkeypatch.setattr("kronlearn.cuda.device._current", no_gpu)
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=1, **options) as cluster,
        Client(cluster),
        pytest.raises(RuntimeError, match="found no GPU"),
    ):
        on_gpus().fit(image_like(300, side=6))
