"""Fits with a fault, which must end with the result of a fit without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from distributed import Client

from cluster import MidIteration, at_most, bits, freeze, image_like, kill, model, process_ids, until

N_WORKERS = 3
#: Dask drops a worker after this time without a heartbeat.
IMPATIENT = {"distributed.scheduler.worker-ttl": "3s", "distributed.scheduler.allowed-failures": 9}
_MOST_SECONDS = 120

# All kinds of sums: full moments, one mode after the other, S_xy alone, two terms; and an error
# target.
CASES: list[dict[str, Any]] = [
    {"n_atoms": (10, 10), "n_nonzero_coefs": 10},
    {"n_atoms": (40, 40), "n_nonzero_coefs": 3},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 16, "structure": "orthonormal"},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 10, "n_terms": 2},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 16, "tol": 1.0},
]

Act = Callable[[Client, np.random.Generator], Any]


class Problems:
    """Samples in memory, in a file and as a lazy array, and the results of undisturbed fits.

    Parameters
    ----------
    folder : path
        The folder for the files.
    """

    max_iter = 8

    def __init__(self, folder: Path) -> None:
        self.array = image_like(100_000)
        self.path = Path(folder) / "samples.npy"
        self.expected: dict[int, dict[str, bytes]] = {}
        np.save(self.path, self.array)
        chunks = (10_007, *self.array.shape[1:])
        store = str(self.path.with_suffix(".zarr"))
        zarr.create_array(store, data=self.array, chunks=chunks, overwrite=True)

    def samples(self, rng: np.random.Generator) -> Any:
        """The samples, at random in memory, in a file or as a lazy array."""
        which = rng.integers(3)
        if which == 2:
            return da.from_zarr(str(self.path.with_suffix(".zarr")))
        return self.array if which else self.path

    def settings(self, case: int) -> dict[str, Any]:
        """The settings of one of the cases."""
        return CASES[case] | {"max_iter": self.max_iter}

    def bits(self, case: int) -> dict[str, bytes]:
        """The result of threads."""
        if case not in self.expected:
            fitted = model(**self.settings(case), engine="threads", n_jobs=2).fit(self.array)
            self.expected[case] = bits(fitted)
        return self.expected[case]


def fit_with_fault(client: Client, problems: Problems, act: Act, rng: np.random.Generator) -> bool:
    """Whether a fit with a fault at a random moment has the bits of threads."""
    case = int(rng.integers(len(CASES)))
    expected = problems.bits(case)
    after = int(rng.integers(1, problems.max_iter - 2))
    fault = MidIteration(after, lambda: act(client, rng), rng)
    with at_most(_MOST_SECONDS):
        settings = problems.settings(case)
        fitted = model(**settings, callback=fault).fit(problems.samples(rng))
    fault.finish()
    return bits(fitted) == expected


def kill_one(client: Client, rng: np.random.Generator) -> None:
    """Kill a worker, which its nanny replaces."""
    kill(int(rng.choice(process_ids(client))))


def kill_two(client: Client, rng: np.random.Generator) -> None:
    """Kill two workers, one right after the other."""
    for process in rng.choice(process_ids(client), 2, replace=False):
        kill(int(process))


def add_one(client: Client, rng: np.random.Generator) -> None:
    """Add a worker."""
    client.cluster.scale(N_WORKERS + 1)


def freeze_one(client: Client, rng: np.random.Generator) -> None:
    """Stop a worker without ending it, until Dask drops it and its nanny starts another."""
    freeze(int(rng.choice(process_ids(client))))


FAULTS: dict[str, Act] = {
    "worker killed": kill_one,
    "two workers killed": kill_two,
    "worker added": add_one,
    "worker frozen": freeze_one,
}


def restore(client: Client) -> None:
    """Wait until there are as many workers as at the beginning, and all respond."""
    client.cluster.scale(N_WORKERS)
    until(lambda: len(client.nthreads()) == N_WORKERS and len(process_ids(client)) == N_WORKERS)


def fit_with_driver_killed(
    client: Client, problems: Problems, folder: Path, rng: np.random.Generator
) -> bool:
    """Whether a fit whose driver is killed at a random moment resumes to the bits of threads."""
    case = int(rng.integers(len(CASES)))
    checkpoint = Path(folder) / "run.safetensors"
    checkpoint.unlink(missing_ok=True)
    settings = problems.settings(case) | {"checkpoint": str(checkpoint), "checkpoint_every": 1}
    expected = problems.bits(case)
    address = client.scheduler_info()["address"]
    code = "import sys, fault_runs; fault_runs.drive(*sys.argv[1:])"
    driver = subprocess.Popen(
        [sys.executable, "-c", code, address, str(problems.path), json.dumps(settings)],
        env=_with_these_modules(),
    )
    try:
        until(checkpoint.exists, _MOST_SECONDS)
        time.sleep(rng.uniform(0.0, 0.5))
    finally:
        driver.kill()
        driver.wait()
    engine_name = "dask" if rng.integers(2) else "threads"
    with at_most(_MOST_SECONDS):
        fitted = model(**settings, engine=engine_name).fit(problems.path)
    return bits(fitted) == expected


def drive(address: str, path: str, settings: str) -> None:
    """Fit a model: the program of the driver that will be killed."""
    with Client(address):
        model(**json.loads(settings)).fit(path)


def _with_these_modules() -> dict[str, str]:
    """An environment in which another process can import this module."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of some megabytes at a folder; needs root."""
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m"]
    subprocess.run(["mount", *options, "tmpfs", folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(file: Path) -> None:
    """Write a file until its disk is full."""
    status = os.statvfs(file.parent)
    file.write_bytes(b"\0" * (status.f_bavail * status.f_frsize))
