"""Learning on a GPU from samples that do not fit into its memory."""

from contextlib import nullcontext
from itertools import cycle, islice

import numpy as np
import pytest

import kronlearn as kl
from emulated_gpu import EmulatedGpu
from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.cuda.chunk_sums import PARTS, ChunkSums
from kronlearn.cuda.iterations import Iterations
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.samples import GpuSamples
from kronlearn.cuda.updates import DeviceUpdate
from kronlearn.io.arrays import ArraySource
from test_cuda_loop import fitted as learned
from test_cuda_loop import image_like

GENERAL = {"method": "omp"}


class SmallGpu(EmulatedGpu):
    """An emulated GPU with no more free memory than the limit."""

    def free_memory(self):
        return current_limit() or super().free_memory()


EMULATED = SmallGpu


@pytest.fixture
def runs(monkeypatch):
    """For each run of iterations, whether samples were streamed, and the number of iterations."""
    asked = []
    run = Iterations.run

    def watched(self, dictionary, count):
        done = run(self, dictionary, count)
        asked.append((self.samples.array is None, len(done)))
        return done

    monkeypatch.setattr(Iterations, "run", watched)
    return asked


def fitted(Y, limit=None, **settings):
    with nullcontext() if limit is None else kl.cuda.memory_limit(limit):
        return learned(Y, **({"max_iter": 3} | settings))


@pytest.mark.parametrize(
    "settings",
    [
        GENERAL,
        {"structure": "orthonormal", "n_nonzero_coefs": 5},
        {"method": "ols", "n_atoms": 16, "n_nonzero_coefs": 5},
    ],
    ids=str,
)
def test_samples_that_do_not_fit_give_the_same_dictionary(on_gpu, runs, rng, settings):
    Y = image_like(rng, 150 if isinstance(on_gpu, EmulatedGpu) else 5000)
    expected = fitted(Y, **settings)
    assert not any(streams for streams, _ in runs)
    runs.clear()
    # Samples may take half of the memory; blocks are small enough for several chunks.
    found, again = (fitted(Y, Y.nbytes, **settings) for _ in range(2))
    assert all(streams for streams, _ in runs)
    assert sum(done for _, done in runs) >= 2 * (found.n_iter_ - 1)
    rmse, wanted = (model.history_["rmse"] for model in (found, expected))
    np.testing.assert_allclose(rmse[:2], wanted[:2], rtol=1e-6)
    # With few samples, a single changed support matters.
    np.testing.assert_allclose(rmse, wanted, rtol=1e-5)
    assert found.history_["mean_nonzeros"] == expected.history_["mean_nonzeros"]
    assert np.all(np.diff(found.history_["seconds"]) >= 0)
    assert again.history_["rmse"] == found.history_["rmse"]
    for one, other in zip(again.factors_, found.factors_, strict=True):
        np.testing.assert_array_equal(one, other)


def test_codes_count_towards_a_limit(on_gpu, runs, rng):
    Y = image_like(rng, 150 if isinstance(on_gpu, EmulatedGpu) else 5000)
    settings = {"n_atoms": 16, "n_nonzero_coefs": 5, "max_iter": 1}
    expected = fitted(Y, **settings)
    runs.clear()
    # Codes take 48 bytes, which is more than three eighths of 120.
    found = fitted(Y, 120 * len(Y), **settings)
    assert not runs
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=1e-3)
    with pytest.raises(MemoryError, match=r"leaves \d+ for them; raise the limit"):
        # Full moments exist only for fewer atoms.
        fitted(Y, 120 * len(Y), **settings | {"n_atoms": 33})


def test_streamed_iterations_stop_at_one_that_fails(on_gpu, runs, rng):
    # Copies of one sample leave atoms unused, which the processor has to replace.
    Y = image_like(rng, 40)
    Y[:] = Y[:1]
    expected, found = (fitted(Y, limit, **GENERAL) for limit in (None, Y.nbytes))
    assert (True, 0) in runs
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], atol=1e-4)


def test_streamed_samples_that_are_not_finite_are_named(on_gpu, rng):
    Y = image_like(rng, 50)
    Y[17, 2, 3] = np.nan
    with pytest.raises(ValueError, match="sample 17"):
        fitted(Y, Y.nbytes, **GENERAL)


@pytest.mark.parametrize("memory", [1, 100, 1600, 4000, 7900])
def test_chunks_come_in_order_in_every_pass(gpu, rng, memory):
    Y = rng.standard_normal((100, 4, 5)).astype(np.float32)
    source = ArraySource(Y, (4, 5))
    samples = GpuSamples(gpu, source, memory, 1)
    assert samples.array is None
    for _ in range(4):
        chunks = [(rows, gpu.download(chunk)) for rows, chunk in samples.chunks()]
        assert [rows for rows, _ in chunks] == samples.pieces
        np.testing.assert_array_equal(np.concatenate([c for _, c in chunks]), Y.reshape(100, 20))
        # A pass that is broken off does not disturb the next one.
        next(iter(samples.chunks()))
    kept = sum(chunk.nbytes for chunk in samples._resident_chunks.values())
    assert kept + 3 * samples.longest * 80 <= max(memory, 3 * 80)
    assert memory < 1600 or kept > 0
    assert samples.largest() == np.abs(Y).max()


@pytest.mark.parametrize("block_size", [1, 7, 30, 200])
def test_chunks_are_whole_blocks(gpu, rng, block_size):
    source = ArraySource(rng.standard_normal((100, 4, 5)).astype(np.float32), (4, 5))
    for memory in (1, 4000, 1 << 20):
        pieces = GpuSamples(gpu, source, memory, block_size).pieces
        assert all(rows.start % block_size == 0 for rows in pieces)
        assert pieces[-1].stop == 100


def test_streams_may_be_endless(gpu, rng):
    Y = rng.standard_normal((20, 6)).astype(np.float32)
    source = ArraySource(Y, (6,))
    pieces = [slice(0, 8), slice(8, 16), slice(16, 20)]
    for _ in range(2):
        stream = gpu.stream(source, cycle(pieces))
        for rows, chunk in islice(stream, 11):
            np.testing.assert_array_equal(gpu.download(chunk), Y[rows])
        stream.close()
    assert list(gpu.stream(source, [])) == []


def factors_of(rng):
    return [np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2)]


@pytest.fixture
def chunk_sums(gpu, rng):
    update = DeviceUpdate(gpu, KroneckerDictionary(factors_of(rng)), True, 2, PARTS, 4.0)
    return update, ChunkSums(gpu, update, 5)


def test_sums_of_chunks_are_exact(gpu, chunk_sums, rng):
    update, sums = chunk_sums
    numbers = update.partial.shape[1]
    parts = rng.standard_normal((3, 5, numbers)).astype(np.float32)
    counts = rng.random((3, 5, 4))
    update.begin(factors_of(rng))
    for chunk in range(3):
        sums.partial[...] = gpu.upload(parts[chunk])
        sums.partial_counts[...] = gpu.upload(counts[chunk])
        sums.add(4, chunk == 0, chunk == 2, of_coding=True)
    expected = parts[:, :4].astype(float).sum(axis=(0, 1))
    found = gpu.download(update.partial).astype(float).sum(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)
    expected = counts[:, :4].sum(axis=(0, 1))
    np.testing.assert_allclose(
        gpu.download(update.partial_counts).sum(axis=0), expected, rtol=1e-14
    )
