"""Real Dask clusters to test with: a scheduler and workers, processes of their own, over TCP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client

import kronlearn as kl

# What a test cluster does not need only slows its start or wakes its processes.
ENVIRONMENT = {
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__GIL__ENABLED": "False",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "fork",
    # As Dask's nannies set it; without it freed memory stays with the process, like a leak.
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


class DaskCluster:
    """A scheduler and workers on this machine, and a client of theirs.

    Parameters
    ----------
    folder : path
        Where the processes write their logs and temporary files.
    threads : sequence of int
        One worker for each, with so many threads.
    nanny : bool
        Whether each worker has a process that starts it again.
    host : str
        The address that the scheduler listens at.
    prefixes : sequence of lists of str
        What the commands of the workers begin with.
    """

    def __init__(
        self,
        folder: Path,
        threads: Sequence[int] = (1, 1, 1),
        nanny: bool = False,
        host: str = "127.0.0.1",
        prefixes: Sequence[list[str]] = (),
    ) -> None:
        self.folder, self.nanny = Path(folder), nanny
        self.address = f"tcp://{host}:{free_port()}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", ["--host", self.address, "--port", "0"])
        try:
            for number, prefix in zip_longest(threads, prefixes):
                self.add(number, prefix or [])
            self.client = Client(self.address, timeout=60, set_as_default=True)
            self.wait(len(threads))
        except BaseException:
            self._kill_all()
            raise

    def add(self, threads: int = 1, prefix: Sequence[str] = ()) -> Any:
        """Start one more worker; it comes when it comes."""
        name = f"worker-{len(self.workers)}"
        arguments = [self.address, "--nthreads", str(threads), "--name", name]
        arguments += ["--nanny" if self.nanny else "--no-nanny", "--memory-limit", "0"]
        arguments += ["--local-directory", str(self.folder), "--death-timeout", "60"]
        self.workers.append(self._start("worker", arguments, prefix))
        return self.workers[-1]

    def wait(self, count: int, timeout: float = 60) -> None:
        """Wait until there are exactly so many workers."""
        until(lambda: len(self.client.scheduler_info(n_workers=-1)["workers"]) == count, timeout)

    def names(self) -> dict[str, str]:
        """The addresses of the workers that there are, by name."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {worker["name"]: address for address, worker in workers.items()}

    def address_of(self, worker: Any) -> str:
        """The address of a worker's process."""
        return self.names()[f"worker-{self.workers.index(worker)}"]

    @property
    def alive(self) -> list[Any]:
        """The workers whose processes run."""
        return [worker for worker in self.workers if worker.poll() is None]

    @property
    def victims(self) -> list[Any]:
        """The workers that may be killed."""
        return self.alive

    def kill(self, worker: Any) -> None:
        """End a worker's process at once; a nanny starts another."""
        if self.nanny:
            for child in psutil.Process(worker.pid).children(recursive=True):
                child.kill()
        else:
            worker.kill()
            worker.wait()

    def freeze(self, worker: Any) -> None:
        """Stop a process where it is."""
        worker.send_signal(signal.SIGSTOP)

    def thaw(self, worker: Any) -> None:
        """Let a stopped process go on."""
        worker.send_signal(signal.SIGCONT)

    def restore(self, count: int) -> None:
        """Have so many workers again, none of them frozen."""
        for worker in self.alive:
            self.thaw(worker)
        for worker in self.alive[count:]:
            self.kill(worker)
        for _ in range(count - len(self.alive)):
            self.add()
        self.wait(count)

    def close(self) -> None:
        """End everything."""
        for worker in self.alive:
            self.thaw(worker)
        try:
            self.client.close(timeout=5)
        finally:
            self._kill_all()

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self, kind: str, arguments: list[str], prefix: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments]
        with open(self.folder / f"{kind}-{len(self.workers)}.log", "wb") as log:
            return subprocess.Popen(
                [*prefix, *command, "--no-dashboard", "--dashboard-address", ":0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )

    def _kill_all(self) -> None:
        for process in [*self.workers, self.scheduler]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], timeout: float = 60, every: float = 0.02) -> None:
    """Wait until something is so."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"still not so after {timeout} seconds")
        time.sleep(every)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread if something takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"hangs: not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class MidIteration:
    """A callback that does something at a random moment of the iteration after some others.

    Parameters
    ----------
    after : int
        How many iterations come before.
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
        """Wait until it is done; raises if the run ended before it began."""
        assert self.timer is not None, "the run ended before its fault"
        self.timer.join()


def image_like(n_samples: int, side: int = 8, seed: int = 0) -> np.ndarray:
    """Smooth float32 samples (N, side, side) with a little noise."""
    rng = np.random.default_rng(seed)
    rough = rng.standard_normal((n_samples, side, side), dtype=np.float32)
    return rough.cumsum(1, dtype=np.float32).cumsum(2, dtype=np.float32) / side


def model(**settings: Any) -> kl.KroneckerDictionaryLearning:
    """A small model on the cluster, unless settings say otherwise."""
    usual = {"n_atoms": (8, 8), "n_nonzero_coefs": 4, "max_iter": 5, "random_state": 0}
    return kl.KroneckerDictionaryLearning(**(usual | {"engine": "dask"} | settings))


def bits(fitted: Any) -> dict[str, bytes]:
    """What two runs must agree on to the last bit."""
    history = {name: row for name, row in fitted.history_.items() if name != "seconds"}
    found = {name: np.array(row).tobytes() for name, row in history.items()}
    return found | {
        f"mode {i}": stack.tobytes() for i, stack in enumerate(fitted.dictionary_.stacks)
    }
