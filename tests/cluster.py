"""Dask clusters for tests, and small models to fit on them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

import kronlearn as kl

# Monitors that only slow the start of a test cluster or wake its processes.
SETTINGS = {
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.profile.enabled": False,
}


@contextmanager
def cluster_of(n_workers: int, settings: dict[str, Any] | None = None) -> Iterator[Client]:
    """A client of a cluster of ``n_workers`` processes with one thread each."""
    with (
        dask.config.set(SETTINGS | (settings or {})),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def process_ids(client: Client) -> list[int]:
    """The process ids of all present workers."""
    return sorted(client.run(os.getpid).values())


def kill(process: int) -> None:
    """Kill a worker's process; its nanny starts another."""
    os.kill(process, signal.SIGKILL)


def freeze(process: int) -> None:
    """Stop a worker's process without ending it."""
    os.kill(process, signal.SIGSTOP)


def until(condition: Callable[[], bool], timeout: float = 30) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition did not hold within {timeout} seconds")
        time.sleep(0.02)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread if the block takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not finished after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class MidIteration:
    """A callback that calls a function at a random moment of an iteration.

    Parameters
    ----------
    after : int
        The number of iterations before it.
    act : callable
    rng : numpy.random.Generator
    """

    def __init__(self, after: int, act: Callable[[], Any], rng: np.random.Generator) -> None:
        self.after, self.act, self.fraction = after, act, rng.uniform(0.05, 0.95)
        self.timer: threading.Timer | None = None
        self.last = 0.0

    def __call__(self, progress: Any) -> None:
        if progress.iteration == self.after and self.timer is None:
            delay = self.fraction * (progress.seconds - self.last)
            self.timer = threading.Timer(delay, self.act)
            self.timer.start()
        self.last = progress.seconds

    def finish(self) -> None:
        """Wait until the function has returned; raise if the run ended before the call."""
        assert self.timer is not None, "the run ended before its fault"
        self.timer.join()


def image_like(n_samples: int, side: int = 8, seed: int = 0) -> np.ndarray:
    """Smooth float32 samples (N, side, side) with a little noise."""
    rng = np.random.default_rng(seed)
    rough = rng.standard_normal((n_samples, side, side), dtype=np.float32)
    return rough.cumsum(1, dtype=np.float32).cumsum(2, dtype=np.float32) / side


def model(**settings: Any) -> kl.KroneckerDictionaryLearning:
    """A small model that learns on the cluster, unless settings say otherwise."""
    usual = {"n_atoms": (8, 8), "n_nonzero_coefs": 4, "max_iter": 5, "random_state": 0}
    return kl.KroneckerDictionaryLearning(**(usual | {"engine": "dask"} | settings))


def bits(fitted: Any) -> dict[str, bytes]:
    """The bytes of all results that two runs must agree on."""
    history = {name: row for name, row in fitted.history_.items() if name != "seconds"}
    found = {name: np.array(row).tobytes() for name, row in history.items()}
    return found | {
        f"mode {i}": stack.tobytes() for i, stack in enumerate(fitted.dictionary_.stacks)
    }
