"""The runs behind Tables II and IV: learning with threads, Dask workers and processes."""

from __future__ import annotations

import logging
import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.experiments.methods import METHODS, methods_named
from kronlearn.experiments.timing import (
    measured_in_a_process,
    memory_held,
)

__all__ = ["ENGINES", "Patches", "Result", "Run", "Setting", "measured", "work_folder"]

#: Who does the work: threads of one process; Dask workers; or processes that know nothing of each
#: other and learn on their own: what the cores can give.
ENGINES = ("threads", "dask", "processes")

# Independent processes learn from at most so many samples, more than caches hold, for so long.
_SHARE = 1 << 18
_SECONDS, _QUICK_SECONDS = 1.5, 0.2


@dataclass(frozen=True)
class Setting:
    """A method, samples of m × m, n atoms per mode, s nonzeros, N samples, and iterations."""

    method: str
    m: int
    n: int
    s: int
    samples: int
    iterations: int


@dataclass(frozen=True)
class Run(Setting):
    """One measurement: an engine with p threads, workers or processes; ``round`` counts repeats."""

    engine: str
    processors: int
    round: int

    def __str__(self) -> str:
        return f"{self.method}, m = {self.m}, {self.engine}, p = {self.processors}"


@dataclass(frozen=True)
class Result(Run):
    """What a run found, on which data and where.

    ``seconds_per_iteration`` is the median of the iterations after the first tenth of them,
    ``seconds`` the time of the whole fit. ``peak_bytes`` is what all processes together held at
    most, each beyond what it held before the fit. What does not apply is None.
    """

    data: str
    checksum: int
    seconds_per_iteration: float
    seconds: float
    rmse: float | None
    peak_bytes: int | None
    processor: str
    cores: int
    instruction_set: str


@dataclass(frozen=True)
class Patches:
    """A file of samples (N, m, m), where they came from, and whether they stay on the disk."""

    file: Path
    data: str
    streamed: bool

    def checksum(self) -> int:
        """A number that tells these samples from others, from 16 runs of 64 of them."""
        stored = stored_samples(self.file)
        crc = 0
        for start in np.linspace(0, max(0, stored.shape[0] - 64), 16).astype(int).tolist():
            crc = zlib.crc32(np.ascontiguousarray(stored[start : start + 64]).tobytes(), crc)
        return crc


def stored_samples(file: Path | str) -> Any:
    """The array (N, m, m) in a .npy file or a .zarr folder; only what is indexed is read."""
    if Path(file).suffix != ".zarr":
        return np.load(file, mmap_mode="r")
    import zarr

    return zarr.open_array(file, mode="r")


@contextmanager
def work_folder(folder: Path | None) -> Iterator[Path]:
    """The given folder, made if need be, or a temporary one."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="kronlearn-") as name:
            yield Path(name)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def processor_counts(text: str | None, cores: int) -> list[int]:
    """``2,4`` as 1, 2, 4; None means 1, 2, 4, 8 … and all cores. 1 is always among them."""
    if text is None:
        return sorted({*(1 << k for k in range(cores.bit_length())), cores})
    if not re.fullmatch(r" *[1-9]\d{0,3} *(, *[1-9]\d{0,3} *)*", text):
        raise ValueError(f"--jobs {text} is not a list of numbers; write it as in 1,2,4.")
    return sorted({1, *map(int, text.split(","))})


def engines_named(text: str) -> list[str]:
    """``threads,dask`` as names of engines."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in ENGINES:
            raise ValueError(f"There is no engine {name!r}; choose from {', '.join(ENGINES)}.")
    return names


def scaling_methods(text: str) -> tuple[str, ...]:
    """The methods named in a text; only this library's own run on every engine."""
    names = methods_named(text.split(","))
    for name in names:
        if not METHODS[name].ours or METHODS[name].kind != "one term":
            raise ValueError(
                f"{name} does not run on every engine; choose from general, orthonormal, default."
            )
    return names


def measured(cell: Run, given: Patches, quick: bool) -> dict[str, Any]:
    """What a run finds in a process of its own: the last but the machine of a :class:`Result`."""
    seconds = _QUICK_SECONDS if quick else _SECONDS
    file = str(given.file.absolute())
    try:
        found: dict[str, Any] = measured_in_a_process(
            measure, asdict(cell), file, given.streamed, seconds
        )
    except RuntimeError as problem:
        raise RuntimeError(f"Learning ({cell}) from {file} failed: {problem}") from None
    return found


def measure(cell: dict[str, Any], file: str, streamed: bool, seconds: float) -> dict[str, Any]:
    """What a run, its fields as a dict, finds; independent processes run for some seconds."""
    given = Run(**cell)
    if given.engine == "processes":
        return _by_processes(given, file, seconds)
    samples = file if streamed else np.array(stored_samples(file))
    if given.engine == "threads":
        return _fitted(_learner(given, n_jobs=given.processors), samples, lambda: [memory_held()])
    return _by_dask(given, samples)


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


def _by_processes(cell: Run, file: str, seconds: float) -> dict[str, Any]:
    """What independent processes reach, as the seconds that all samples would take them."""
    context = get_context("spawn")
    barrier = context.Barrier(cell.processors)
    # All of them wait at the barrier, so each process takes one share.
    with ProcessPoolExecutor(cell.processors, context, _set_barrier, (barrier,)) as pool:
        shares = [
            pool.submit(_rate_of_share, cell, file, k, seconds) for k in range(cell.processors)
        ]
        rate = sum(share.result() for share in shares)
    found = {"seconds_per_iteration": stored_samples(file).shape[0] / rate, "seconds": seconds}
    return found | {"rmse": None, "peak_bytes": None}


_barrier: Any = None


def _set_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _rate_of_share(cell: Run, file: str, number: int, seconds: float) -> float:
    """Samples that a thread of this process does in a second, while all the others do theirs."""
    try:
        stored = stored_samples(file)
        size = max(1, stored.shape[0] // cell.processors)
        samples = np.array(stored[number * size : number * size + min(size, _SHARE)])
        _learner(cell, n_jobs=1, max_iter=1).fit(samples)
    except BaseException:
        _barrier.abort()
        raise
    _barrier.wait()
    end = time.perf_counter() + seconds
    passes, taken = 0, 0.0
    while (left := end - time.perf_counter()) > 0 or not passes:
        model = _learner(cell, n_jobs=1, time_budget=max(left, 1e-3)).fit(samples)
        passes += len(model.history_["seconds"])
        taken += model.history_["seconds"][-1]
    return passes * len(samples) / taken
