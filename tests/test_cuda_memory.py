"""Memory of a GPU: how much is free, limits, and copies of samples that do not fit."""

from types import SimpleNamespace

import numpy as np
import pytest

import kronlearn as kl
from emulated_gpu import ArrayGpu
from kronlearn.cuda.arrays import DeviceSource
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.streaming import stream_chunks
from kronlearn.io.arrays import ArraySource

EMULATED = ArrayGpu


def test_weighted_samples_stay_on_the_gpu_if_memory_suffices(on_gpu, rng, monkeypatch):
    Y, weights = rng.standard_normal((300, 6, 5)).astype(np.float32), rng.random(300)
    model = kl.KroneckerDictionaryLearning((6, 7), n_nonzero_coefs=3, max_iter=2, random_state=0)
    expected = model.set_params(device="cuda").fit(Y, sample_weight=weights).history_["rmse"]
    given = on_gpu.upload(Y), on_gpu.upload(weights)
    with kl.cuda.memory_limit(Y.nbytes):
        found = model.fit(given[0], sample_weight=given[1]).history_["rmse"]
    np.testing.assert_array_equal(found, expected)
    monkeypatch.delattr(DeviceSource, "read")
    monkeypatch.setattr(DeviceSource, "__abstractmethods__", frozenset())
    found = model.fit(given[0], sample_weight=given[1]).history_["rmse"]
    np.testing.assert_array_equal(found, expected)


class Pool:
    """A pool of CuPy."""

    def free_bytes(self):
        return 20

    def malloc(self, size):
        raise AssertionError("A pool that reports its unused memory must not be asked for more.")


def gpu_with(allocator, free):
    """A GPU with so many of 2000 bytes free, and a stand-in for CuPy with this allocator."""
    runtime = SimpleNamespace(memGetInfo=lambda: (free, 2000))
    cuda = SimpleNamespace(runtime=runtime, get_allocator=lambda: allocator, alloc=allocator)
    return Gpu(SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(
    ("held", "free", "expected"), [(1900, 50, 1000), (600, 100, 500), (100, 300, 300), (0, 0, 0)]
)
def test_unused_memory_of_other_libraries_counts_as_free(held, free, expected):
    asked = []

    def allocate(size):
        asked.append(size)
        if size > held:
            raise MemoryError

    assert gpu_with(allocate, free).free_memory() == expected
    # The pool could not have provided any of these by growing.
    assert all(size > free for size in asked)


def test_unused_memory_of_the_pool_of_cupy_counts_as_free(gpu):
    if isinstance(gpu, ArrayGpu):
        pytest.skip("emulated, memory is not counted")
    # Freed at once, the array stays in the pool.
    gpu.xp.empty(1 << 30, np.uint8)
    assert gpu.free_memory() > gpu.xp.cuda.runtime.memGetInfo()[0] + (1 << 29)


def test_a_limit_caps_the_free_memory():
    gpu = gpu_with(Pool().malloc, 1000)
    assert gpu.free_memory() == 1020
    with kl.cuda.memory_limit(500):
        assert gpu.free_memory() == 500
        with kl.cuda.memory_limit(5000):
            assert gpu.free_memory() == 1020
        assert gpu.free_memory() == 500
    assert gpu.free_memory() == 1020


@pytest.mark.parametrize(
    ("limit", "problem"), [(0, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_limits_that_are_not_numbers_of_bytes_are_errors(limit, problem):
    with pytest.raises(problem, match="memory_limit"), kl.cuda.memory_limit(limit):
        pass


class Copied(np.ndarray):
    """An array on a GPU that has the method ``set`` of CuPy."""

    def set(self, array, stream):
        self[...] = array


class StreamingCupy:
    """A stand-in for CuPy as streaming uses it, without any asynchronous work."""

    def __init__(self):
        self.registered = []
        quiet = {name: lambda *_: None for name in ("wait_event", "synchronize", "record")}
        runtime = SimpleNamespace(
            hostRegister=lambda *_: self.registered.append("in"),
            hostUnregister=lambda *_: self.registered.append("out"),
            CUDARuntimeError=OSError,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Stream=lambda non_blocking: SimpleNamespace(**quiet),
            Event=lambda disable_timing: SimpleNamespace(**quiet),
            get_current_stream=lambda: SimpleNamespace(**quiet),
            alloc_pinned_memory=bytearray,
        )

    def empty(self, shape, dtype):
        return np.empty(shape, dtype).view(Copied)


@pytest.mark.parametrize("count", [1, 7, 100])
def test_samples_arrive_in_order_and_are_page_locked_in_the_second_pass(rng, count):
    xp, Y = StreamingCupy(), rng.standard_normal((count, 3, 2))
    source = ArraySource(Y, (3, 2))
    pieces = [slice(a, min(a + 8, count)) for a in range(0, count, 8)]
    for registered in ([], ["in"], ["in"]):
        chunks = [(rows, np.array(chunk)) for rows, chunk in stream_chunks(xp, source, pieces)]
        assert [rows for rows, _ in chunks] == pieces
        np.testing.assert_array_equal(np.concatenate([c for _, c in chunks]), Y.reshape(count, 6))
        assert xp.registered == registered
    del source
    assert xp.registered == ["in", "out"]


def test_samples_that_cannot_be_page_locked_are_staged(rng):
    xp, Y = StreamingCupy(), rng.standard_normal((20, 3))

    def refuse(*_):
        raise OSError

    xp.cuda.runtime.hostRegister = refuse
    source = ArraySource(Y, (3,))
    for _ in range(3):
        chunks = [np.array(c) for _, c in stream_chunks(xp, source, [slice(0, 12), slice(12, 20)])]
        np.testing.assert_array_equal(np.concatenate(chunks), Y)
