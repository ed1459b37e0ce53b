"""The runs behind Tables II and IV: learning with threads and with Dask workers."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.experiments.methods import METHODS
from kronlearn.experiments.timing import measured_in_a_process, memory_held

__all__ = ["ENGINES", "Result", "Run", "checksum", "measured"]

#: Who does the work: threads of one process, or Dask workers.
ENGINES = ("threads", "dask")


@dataclass(frozen=True)
class Run:
    """A method, N samples of m × m, n atoms per mode, s nonzeros, and an engine of p threads."""

    method: str
    m: int
    n: int
    s: int
    samples: int
    iterations: int
    engine: str
    processors: int

    def __str__(self) -> str:
        return f"{self.method}, m = {self.m}, {self.engine}, p = {self.processors}"


@dataclass(frozen=True)
class Result(Run):
    """What a run found, on which data and where.

    ``seconds_per_iteration`` is the median of the iterations after the first tenth of them,
    ``seconds`` the time of the whole fit. ``peak_bytes`` is what all processes together held at
    most, each beyond what it held before the fit; None where the system does not tell.
    """

    data: str
    checksum: int
    seconds_per_iteration: float
    seconds: float
    rmse: float
    peak_bytes: int | None
    processor: str
    cores: int
    instruction_set: str


def checksum(file: Path) -> int:
    """A number that tells the samples in a .npy file from others, from 16 runs of 64 of them."""
    stored = np.load(file, mmap_mode="r")
    crc = 0
    for start in np.linspace(0, max(0, len(stored) - 64), 16).astype(int).tolist():
        crc = zlib.crc32(np.ascontiguousarray(stored[start : start + 64]).tobytes(), crc)
    return crc


def measured(cell: Run, file: Path, streamed: bool) -> dict[str, Any]:
    """What a run finds in a process of its own, from a .npy file that is streamed or read first."""
    try:
        found: dict[str, Any] = measured_in_a_process(
            measure, asdict(cell), str(file.absolute()), streamed
        )
    except RuntimeError as problem:
        raise RuntimeError(f"Learning ({cell}) from {file} failed: {problem}") from None
    return found


def measure(cell: dict[str, Any], file: str, streamed: bool) -> dict[str, Any]:
    """What a run, its fields as a dict, finds."""
    given = Run(**cell)
    samples = file if streamed else np.load(file)
    if given.engine == "dask":
        return _by_dask(given, samples)
    return _fitted(_learner(given, n_jobs=given.processors), samples, lambda: [memory_held()])


def _learner(cell: Run, **parameters: Any) -> KroneckerDictionaryLearning:
    method = METHODS[cell.method]
    settings = {"max_iter": cell.iterations, **method.parameters, **parameters}
    sizes = method.atoms(cell.n, cell.n)
    return KroneckerDictionaryLearning(sizes, n_nonzero_coefs=cell.s, random_state=0, **settings)


def _fitted(
    model: KroneckerDictionaryLearning,
    samples: Any,
    held: Callable[[], list[tuple[int, int] | None]],
) -> dict[str, Any]:
    """Fit, and measure; ``held`` gives what every process holds and has held at most."""
    before = held()
    start = time.perf_counter()
    model.fit(samples)
    seconds = time.perf_counter() - start
    growth = [b[1] - a[0] for a, b in zip(before, held(), strict=True) if a and b]
    steps = np.diff(model.history_["seconds"])
    warm_up = -(-len(steps) // 10) if len(steps) > 1 else 0
    return {
        "seconds_per_iteration": float(np.median(steps[warm_up:])),
        "seconds": seconds,
        "rmse": float(min(model.history_["rmse"])),
        "peak_bytes": max(0, sum(growth)) if growth else None,
    }


def _by_dask(cell: Run, samples: Any) -> dict[str, Any]:
    try:
        from distributed import Client, LocalCluster
        from distributed.deploy.utils import nprocesses_nthreads
    except ImportError:
        raise ImportError(
            "Dask is not installed; pip install '.[dask]' in the checkout, or measure threads only."
        ) from None

    # As Dask shares them out unless told otherwise: 4 workers with 4 threads each for 16.
    n_workers, n_threads = nprocesses_nthreads(cell.processors)
    # Pages of a mapped file count as memory: a limit would make workers pause for nothing.
    cluster = LocalCluster(
        n_workers=n_workers,
        threads_per_worker=n_threads,
        memory_limit=None,
        dashboard_address=None,
        silence_logs=logging.ERROR,
    )
    with cluster, Client(cluster) as client:
        client.wait_for_workers(n_workers)

        def held() -> list[tuple[int, int] | None]:
            return [memory_held(), *(pair for _, pair in sorted(client.run(memory_held).items()))]

        return _fitted(_learner(cell, n_jobs=None, engine="dask"), samples, held)
