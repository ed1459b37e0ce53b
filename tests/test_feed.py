"""Feeding samples to threads: chunks, files, errors, interrupts and the end of the process."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kronlearn as kl
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.source import Source
from kronlearn.engines.feed import Feed
from kronlearn.engines.samples import open_samples, source_of
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource
from kronlearn.io.stored import StoredArrayError


class RecordingSource(Source):
    """Samples that record which of them were read, and fail at one of them if asked to."""

    def __init__(self, samples, fails_at=None):
        self.samples, self.fails_at = samples, fails_at
        self.patch_shape, self.dtype = samples.shape[1:], samples.dtype
        self.read_rows = []
        self.lock = threading.Lock()

    def __len__(self):
        return len(self.samples)

    def read(self, start, stop):
        with self.lock:
            self.read_rows.append((start, stop))
        if self.fails_at is not None and start <= self.fails_at < stop:
            raise OSError("the disk is gone")
        return np.ascontiguousarray(self.samples[start:stop]).reshape(stop - start, -1)


@pytest.fixture
def samples(rng):
    return rng.standard_normal((1000, 4, 4))


@pytest.fixture
def dictionary(rng):
    return kl.KroneckerDictionary.normalized([rng.standard_normal((4, 5)) for _ in range(2)])


def total(source, dictionary, n_threads, block=16):
    task = Task(dictionary, Coder("omp", 3), sums="full")
    return Threads(source, n_threads, block).run(task).sums


@pytest.mark.parametrize("n_threads", [1, 3, 8])
def test_every_sample_is_read_once_and_adds_up_to_the_same_bits(
    samples, dictionary, n_threads, monkeypatch
):
    expected = total(ArraySource(samples, (4, 4)), dictionary, 1)
    monkeypatch.setattr("kronlearn.core.source.BLOCK_NUMBERS", 48 * 16)
    source = RecordingSource(samples)
    np.testing.assert_array_equal(total(source, dictionary, n_threads), expected)
    rows = sorted(source.read_rows)
    assert [start for start, _ in rows] == list(range(0, 1000, 48))
    assert rows[-1][1] == 1000


def test_chunks_of_a_part_are_read_once_in_any_order_and_nothing_else_is_read(samples):
    source = RecordingSource(samples)
    with Feed(source, 550, 850, 16, n_threads=4) as feed:
        feed.chunk = 100
        for number in (1, 0, 2):
            first = 550 + 100 * number
            expected = samples[first : first + 100].reshape(100, -1)
            np.testing.assert_array_equal(feed.get(number), expected)
            feed.done(number)
    assert sorted(source.read_rows) == [(550, 650), (650, 750), (750, 850)]


def test_the_checksum_depends_on_the_order_of_the_samples(rng):
    samples = rng.standard_normal((4096, 1))
    first, second = (ArraySource(Y, (1,)).checksum() for Y in (samples, np.roll(samples, 64, 0)))
    assert first != second


@pytest.mark.parametrize("n_threads", [1, 4])
def test_an_error_of_the_source_is_raised_unchanged(samples, dictionary, n_threads, monkeypatch):
    monkeypatch.setattr("kronlearn.core.source.BLOCK_NUMBERS", 48 * 16)
    with pytest.raises(OSError, match="the disk is gone"):
        total(RecordingSource(samples, fails_at=700), dictionary, n_threads)


def test_after_an_error_waiting_chunks_are_not_read(samples):
    cancelled = threading.Event()

    class Slow(RecordingSource):
        def read(self, start, stop):
            if start > 0:
                cancelled.wait(5)
            return super().read(start, stop)

    source = Slow(samples, fails_at=0)
    with Feed(source, 0, 1000, 16, n_threads=4) as feed:
        feed.chunk = 100
        other = threading.Thread(target=feed.get, args=(3,))
        other.start()
        while feed.next < 8:
            time.sleep(0.001)
        feed.reading[7].add_done_callback(lambda _: cancelled.set())
        assert feed.get(0) is None
    other.join()
    # The four chunks being read then, and the one that took the place of the failed chunk.
    assert {start // 100 for start, _ in source.read_rows} <= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("n_threads", [1, 4])
def test_threads_read_files_themselves(samples, dictionary, n_threads, tmp_path):
    np.save(tmp_path / "samples.npy", samples)
    source = source_of(open_samples(tmp_path / "samples.npy"), (4, 4))
    assert source.file(0) is not None
    expected = total(ArraySource(samples, (4, 4)), dictionary, 1)
    np.testing.assert_array_equal(total(source, dictionary, n_threads), expected)


@pytest.mark.parametrize("n_threads", [1, 4])
def test_a_file_truncated_meanwhile_is_named_in_the_error(samples, dictionary, n_threads, tmp_path):
    path = tmp_path / "samples.npy"
    np.save(path, samples)
    source = source_of(open_samples(path), (4, 4))
    with open(path, "r+b") as file:
        file.truncate(60_000)
    with pytest.raises(StoredArrayError, match=r"samples\.npy"):
        total(source, dictionary, n_threads)


_INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import kronlearn as kl

def model():
    return kl.KroneckerDictionaryLearning((16, 16), n_nonzero_coefs=8, n_jobs=2, max_iter=50)

samples = np.random.default_rng(0).standard_normal((100_000, 8, 8), np.float32)
converted = samples.astype(np.float16)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    model().fit(converted)
except KeyboardInterrupt:
    print("interrupted", flush=True)
# The process ends during a pass over an array in memory and one over samples that need conversion.
for data in (samples, converted):
    threading.Thread(target=model().fit, args=(data,), daemon=True).start()
time.sleep(0.3)
"""


def test_a_pass_can_be_interrupted_and_a_process_can_end_during_one():
    finished = subprocess.run([sys.executable, "-c", _INTERRUPTED], timeout=60, capture_output=True)
    assert finished.stdout == b"interrupted\n"
    assert finished.returncode not in (-signal.SIGABRT, -signal.SIGSEGV, 134)
    assert b"terminate" not in finished.stderr
