"""Fits during which something goes wrong, and which must end as if nothing had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from distributed import Client

from cluster import DaskCluster, MidIteration, at_most, bits, image_like, model, until
from kronlearn.engines import workforce

# Short, so that a test need not wait long until a silent worker is given up.
PATIENCE = 1.5
_LOOK_EVERY = 0.2
N_WORKERS = 3
_MOST_SECONDS = 120

# How codes come about decides what a lost worker takes with it: guarded from the first iteration
# on, guarded later, with values and rescalings, coded exactly, by error target, in two terms.
CASES: list[dict[str, Any]] = [
    {"n_atoms": (8, 8), "n_nonzero_coefs": 16},
    {"n_atoms": (10, 10), "n_nonzero_coefs": 10},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 5, "statistics": "per-mode", "n_refits": 1},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 16, "structure": "orthonormal"},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 16, "tol": 1.0},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 10, "n_terms": 2},
]

Act = Callable[[DaskCluster, np.random.Generator], Any]


@dataclass(frozen=True)
class Fault:
    """What happens; whether workers have nannies; whether the fit waits until it has happened."""

    act: Act
    nanny: bool = False
    awaited: bool = False


@dataclass
class Run:
    """How a fit with a fault ended."""

    same_bits: bool
    seconds: float
    workers_lost: int = 0
    steps_repeated: int = 0
    error: str = ""


class Problems:
    """Samples, in memory, in files and lazy, and what undisturbed fits find in them.

    Parameters
    ----------
    folder : path
        Where the files are written.
    n_samples : int
    max_iter : int
    """

    def __init__(self, folder: Path, n_samples: int = 150_000, max_iter: int = 12) -> None:
        self.array = image_like(n_samples)
        self.path = Path(folder) / "samples.npy"
        self.max_iter = max_iter
        self.wanted: dict[int, dict[str, bytes]] = {}
        np.save(self.path, self.array)
        chunks = (10_007, *self.array.shape[1:])
        store = str(self.path.with_suffix(".zarr"))
        zarr.create_array(store, data=self.array, chunks=chunks, overwrite=True)

    def samples(self, rng: np.random.Generator) -> Any:
        """The samples in one of the ways that they can be given in."""
        which = rng.integers(3)
        if which == 2:
            return da.from_zarr(str(self.path.with_suffix(".zarr")))
        return self.array if which else self.path

    def settings(self, case: int) -> dict[str, Any]:
        """The settings of one of the cases."""
        return CASES[case] | {"max_iter": self.max_iter}

    def bits(self, case: int) -> dict[str, bytes]:
        """What threads find."""
        if case not in self.wanted:
            fitted = model(**self.settings(case), engine="threads", n_jobs=2).fit(self.array)
            self.wanted[case] = bits(fitted)
        return self.wanted[case]


@contextmanager
def impatient() -> Iterator[None]:
    """Give silent workers up sooner and see new ones sooner."""
    before = workforce.PATIENCE, workforce._LOOK_EVERY
    workforce.PATIENCE, workforce._LOOK_EVERY = PATIENCE, _LOOK_EVERY
    try:
        yield
    finally:
        workforce.PATIENCE, workforce._LOOK_EVERY = before


def fit_with_fault(
    cluster: DaskCluster, problems: Problems, fault: Fault, rng: np.random.Generator
) -> Run:
    """One fit of a random case, with a fault at a random moment of a random iteration."""
    case = int(rng.integers(len(CASES)))
    wanted = problems.bits(case)
    samples = problems.samples(rng)
    after = int(rng.integers(1, problems.max_iter - 3))
    happening = MidIteration(after, lambda: fault.act(cluster, rng), rng)

    def callback(progress: Any) -> None:
        happening(progress)
        if fault.awaited and progress.iteration == after + 2:
            happening.finish()
            # New workers are looked for every now and then only.
            time.sleep(2 * _LOOK_EVERY)

    start = time.perf_counter()
    with impatient(), at_most(_MOST_SECONDS):
        fitted = model(**problems.settings(case), callback=callback).fit(samples)
    seconds = time.perf_counter() - start
    happening.finish()
    traffic = fitted.traffic_
    if fault.awaited:
        assert traffic.messages > N_WORKERS * traffic.questions, "the new worker did nothing"
    return Run(bits(fitted) == wanted, seconds, traffic.workers_lost, traffic.steps_repeated)


def kill_one(cluster: DaskCluster, rng: np.random.Generator) -> None:
    """SIGKILL to a worker."""
    cluster.kill(rng.choice(cluster.victims))


def kill_two(cluster: DaskCluster, rng: np.random.Generator) -> None:
    """SIGKILL to two workers, one right after the other."""
    for worker in rng.choice(cluster.victims, 2, replace=False):
        cluster.kill(worker)


def kill_all(cluster: DaskCluster, rng: np.random.Generator) -> None:
    """SIGKILL to all workers; others come."""
    for worker in cluster.victims:
        cluster.kill(worker)
    cluster.add()
    cluster.add()


def end_one(cluster: DaskCluster, rng: np.random.Generator) -> None:
    """SIGTERM to a worker, as batch systems send it: it takes its leave of the scheduler."""
    worker = rng.choice(cluster.victims)
    worker.terminate()
    worker.wait()


def add_one(cluster: DaskCluster, rng: np.random.Generator) -> None:
    """One more worker; it is there when this is done."""
    before = len(cluster.names())
    cluster.add()
    until(lambda: len(cluster.names()) > before)


def freeze(shortest: float, longest: float) -> Act:
    """SIGSTOP to a worker, SIGCONT after some part of the patience."""

    def act(cluster: DaskCluster, rng: np.random.Generator) -> None:
        worker = rng.choice(cluster.alive)
        cluster.freeze(worker)
        time.sleep(PATIENCE * rng.uniform(shortest, longest))
        cluster.thaw(worker)

    return act


FAULTS = {
    "worker killed": Fault(kill_one),
    "two workers killed": Fault(kill_two),
    "all workers killed, others come": Fault(kill_all),
    "worker killed, restarted by its nanny": Fault(kill_one, nanny=True),
    "worker ended (SIGTERM)": Fault(end_one),
    "worker added": Fault(add_one, awaited=True),
    "worker frozen, not for long": Fault(freeze(0.1, 0.6)),
    "worker frozen longer than the patience": Fault(freeze(1.5, 3.0)),
}


class Network:
    """Network namespaces: a hub, where the scheduler and the driver are, and one for each worker.

    Parameters
    ----------
    name : str
        What the names of the namespaces begin with.
    count : int
        How many workers there are to be.
    """

    subnet = "10.213.71"

    def __init__(self, name: str, count: int) -> None:
        self.hub, self.count = f"{name}-hub", count
        self.spokes = [f"{name}-{i}" for i in range(count)]
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def cut(self, number: int) -> None:
        """Take a worker's link down."""
        _ip("-n", self.hub, "link", "set", f"to{number}", "down")

    def mend(self, number: int) -> None:
        """Bring a worker's link up again."""
        _ip("-n", self.hub, "link", "set", f"to{number}", "up")

    def close(self) -> None:
        """Remove the namespaces and all that is in them."""
        for name in [*self.spokes, self.hub]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        for name in [self.hub, *self.spokes]:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.hub, "address", "add", f"{self.subnet}.1/24", "dev", "bridge")
        _ip("-n", self.hub, "link", "set", "bridge", "up")
        for i, spoke in enumerate(self.spokes):
            pair = ("type", "veth", "peer", "name", "up0", "netns", spoke)
            _ip("-n", self.hub, "link", "add", f"to{i}", *pair)
            _ip("-n", self.hub, "link", "set", f"to{i}", "master", "bridge", "up")
            _ip("-n", spoke, "address", "add", f"{self.subnet}.{10 + i}/24", "dev", "up0")
            _ip("-n", spoke, "link", "set", "up0", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def networks_possible() -> bool:
    """Whether this process may make network namespaces."""
    if os.geteuid() != 0:
        return False
    try:
        with Network(f"kronlearn-try-{os.getpid()}", 1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def runs_with_cuts(folder: Path, count: int, seed: int) -> list[Run]:
    """Fits in namespaces of their own during which the network to a worker is cut.

    In half of them it comes back before the patience is at an end.
    """
    with Network(f"kronlearn-{os.getpid()}", N_WORKERS) as network:
        inside = ["ip", "netns", "exec", network.hub, sys.executable, "-c"]
        code = "import sys, fault_runs; fault_runs.cut_inside(*sys.argv[1:])"
        names = json.dumps([network.hub, network.spokes])
        done = subprocess.run(
            [*inside, code, str(folder), names, str(count), str(seed)],
            env=_with_these_modules(),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [Run(**run) for run in json.loads(done.stdout.splitlines()[-1])]


def cut_inside(folder: str, names: str, count: str, seed: str) -> None:
    """What runs in the hub: prints its runs as JSON."""
    network = object.__new__(Network)
    network.hub, network.spokes = json.loads(names)
    prefixes = [["ip", "netns", "exec", spoke] for spoke in network.spokes]
    rng = np.random.default_rng(int(seed))
    problems = Problems(Path(folder))
    runs = []
    for i in range(int(count)):
        address = f"{Network.subnet}.1"
        with DaskCluster(Path(folder), [1] * N_WORKERS, host=address, prefixes=prefixes) as cluster:
            number = int(rng.integers(N_WORKERS))
            lasts = None if i % 2 else PATIENCE * rng.uniform(0.1, 0.6)
            fault = Fault(partial(_cut, network, number, lasts))
            runs.append(vars(fit_with_fault(cluster, problems, fault, rng)))
            network.mend(number)
    print(json.dumps(runs))


def _cut(network: Network, number: int, seconds: float | None, *_: object) -> None:
    network.cut(number)
    if seconds is not None:
        time.sleep(seconds)
        network.mend(number)


def fit_with_driver_killed(
    cluster: DaskCluster, problems: Problems, folder: Path, rng: np.random.Generator
) -> Run:
    """A driver of its own is killed at a random moment, and the fit goes on from its checkpoint."""
    case = int(rng.integers(len(CASES)))
    checkpoint = Path(folder) / "run.safetensors"
    checkpoint.unlink(missing_ok=True)
    settings = problems.settings(case) | {"checkpoint": str(checkpoint), "checkpoint_every": 1}
    wanted = problems.bits(case)
    start = time.perf_counter()
    code = "import sys, fault_runs; fault_runs.drive(*sys.argv[1:])"
    driver = subprocess.Popen(
        [sys.executable, "-c", code, cluster.address, str(problems.path), json.dumps(settings)],
        env=_with_these_modules(),
    )
    try:
        until(checkpoint.exists, _MOST_SECONDS, every=0.005)
        time.sleep(rng.uniform(0.0, 0.5))
    finally:
        driver.kill()
        driver.wait()
    engine_name = "dask" if rng.integers(2) else "threads"
    with impatient(), at_most(_MOST_SECONDS):
        fitted = model(**settings, engine=engine_name).fit(problems.path)
    return Run(bits(fitted) == wanted, time.perf_counter() - start)


def drive(address: str, path: str, settings: str) -> None:
    """A driver: fits as it is told."""
    with Client(address):
        model(**json.loads(settings)).fit(path)


def _with_these_modules() -> dict[str, str]:
    """An environment in which another process finds this module."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size at a folder; needs root."""
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m"]
    subprocess.run(["mount", *options, "tmpfs", folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(file: Path, leave: int) -> None:
    """Write a file until so many bytes are left on its disk."""
    status = os.statvfs(file.parent)
    with open(file, "wb") as filler:
        filler.write(b"\0" * max(status.f_bavail * status.f_frsize - leave, 0))


def fit_with_disk_full(problems: Problems, disk: Path, rng: np.random.Generator) -> Run:
    """The disk is full when a checkpoint is to be written; with room again the fit goes on."""
    case = int(rng.integers(len(CASES)))
    checkpoint, filler = disk / "run.safetensors", disk / "filler"
    checkpoint.unlink(missing_ok=True)
    full_after = int(rng.integers(2, problems.max_iter - 1))

    def callback(progress: Any) -> None:
        if progress.iteration == full_after and not filler.exists():
            fill(filler, int(rng.integers(0, checkpoint.stat().st_size)))

    settings = problems.settings(case) | {"checkpoint": str(checkpoint), "checkpoint_every": 1}
    wanted = problems.bits(case)
    start = time.perf_counter()
    message = ""
    try:
        model(**settings, callback=callback).fit(problems.array)
    except OSError as error:
        message = str(error)
    finally:
        filler.unlink(missing_ok=True)
    assert message, "the full disk was not noticed"
    assert [file.name for file in disk.iterdir()] == [checkpoint.name], "something is left over"
    fitted = model(**settings).fit(problems.array)
    return Run(bits(fitted) == wanted, time.perf_counter() - start, error=message)
