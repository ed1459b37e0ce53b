"""Fixtures and settings that every test file shares."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

import emulated_gpu
import kronlearn as kl
from emulated_gpu import COMPILER, ArraysOnGpu, CodesOnGpu, EmulatedGpu
from kronlearn.cuda.device import current_gpu

# In the background of a shell interrupts are ignored; some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Matrices of tests are small, and several processes share the cores: threads of BLAS, here or in
# processes that a test starts, would only wait for each other.
threadpool_limits(1, "blas")
os.environ["OPENBLAS_NUM_THREADS"] = "1"

settings.register_profile(
    "kronlearn", deadline=None, derandomize=True, max_examples=60, database=None
)
settings.load_profile("kronlearn")


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled kernels where pytest is told to keep things, if it is."""
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return
    folder = config.getini("cache_dir")
    if folder != ".pytest_cache":
        emulated_gpu.CACHE = config.rootpath / folder / "kernels"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to compile kernels while other tests run."""
    tests = [item.path.name for item in session.items]
    if COMPILER and any(name.startswith("test_cuda") for name in tests):
        emulated_gpu.compile_ahead()


def pytest_sessionfinish() -> None:
    """Leave kernels that no test waited for."""
    emulated_gpu.stop_compiling()


@pytest.fixture
def rng():
    """The same random numbers in every test."""
    return np.random.default_rng(20200708)


@pytest.fixture(params=["full moments", "mode by mode"])
def sums(request, monkeypatch):
    """Update from full moments, or from the sums of one mode after the other."""
    if request.param == "mode by mode":
        monkeypatch.setattr("kronlearn.core.iteration.uses_full_moments", lambda *_: False)
    return request.param


@pytest.fixture(params=kl.instruction_sets())
def instruction_set(request):
    """Run a test once with every instruction set."""
    with kl.use_instruction_set(request.param):
        yield


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


# Without CuPy, test_cuda.py tells once why nothing runs on a real GPU.
GPUS = ["emulated", "cuda"] if importlib.util.find_spec("cupy") else ["emulated"]


@pytest.fixture(scope="module", params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Any:
    """A GPU if there is one, and one that is emulated: as the module's EMULATED says."""
    if request.param == "cuda":
        return request.getfixturevalue("real_gpu")
    if COMPILER is None:
        pytest.skip("no C++ compiler is at hand")
    return getattr(request.module, "EMULATED", EmulatedGpu)()


@pytest.fixture(scope="session")
def real_gpu() -> Any:
    """The GPU that there is."""
    try:
        return current_gpu()
    except (ImportError, RuntimeError) as problem:
        pytest.skip(f"no GPU: {problem}")


@pytest.fixture
def on_gpu(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The GPU, which ``device="cuda"`` means then."""
    monkeypatch.setattr("kronlearn.cuda.device._current", lambda: gpu)
    if isinstance(gpu, EmulatedGpu):
        monkeypatch.setattr("kronlearn.cuda.arrays.cupy", ArraysOnGpu)
        matrices = SimpleNamespace(csr_matrix=CodesOnGpu)
        monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", matrices)
    return gpu
