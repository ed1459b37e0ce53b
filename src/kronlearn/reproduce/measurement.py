"""One measurement of Tables II and IV, in a process of its own.

:func:`measure` starts that process; what it imports is numpy and the core of this library, and
Dask only where Dask is measured.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.reproduce.methods import METHODS

__all__ = ["ENGINES", "Found", "Job", "learn_from_share", "measure", "report", "stored_samples"]

#: Who does the work: threads of one process; Dask workers, processes with a thread each; or
#: processes that know nothing of each other and learn on their own: what the cores can give.
ENGINES = ("threads", "dask", "processes")

# Independent processes learn from at most so many samples: more than caches hold.
_SHARE = 1 << 18


@dataclass(frozen=True)
class Job:
    """What to measure: a file of samples (N, m, m), and what is learned from it.

    ``processors`` is the number of threads, workers or processes. Samples that are not
    ``streamed`` are read into memory before the clock starts. Independent processes are measured
    for ``window`` seconds.
    """

    file: str
    method: str
    n: int
    s: int
    iterations: int
    engine: str
    processors: int
    streamed: bool
    window: float = 1.5


@dataclass(frozen=True)
class Found:
    """What was measured.

    ``seconds_per_iteration`` is the median of the iterations after the first tenth of them, and
    ``seconds`` the time of the whole fit. ``peak_bytes`` is what all processes together held at
    most, each beyond what it held before the fit. What does not apply, or cannot be measured, is
    None.
    """

    seconds_per_iteration: float
    seconds: float
    rmse: float | None = None
    peak_bytes: int | None = None


def stored_samples(file: str | os.PathLike[str]) -> Any:
    """The array (N, m, m) in a .npy file or a .zarr folder; only what is indexed is read."""
    if not os.fspath(file).endswith(".zarr"):
        return np.load(file, mmap_mode="r")
    import zarr

    return zarr.open_array(file, mode="r")


def measure(job: Job) -> Found:
    """Measure in a new process, with libraries of linear algebra on one thread."""
    with _process("report", job, stderr=subprocess.PIPE) as process:
        output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"Learning ({job.method}, {job.engine}, p = {job.processors}) from {job.file} failed: "
            f"{_last_line(errors) or f'exit code {process.returncode}'}"
        )
    return Found(**json.loads(output.splitlines()[-1]))


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _process(function: str, job: Job, first: int = 0, **streams: Any) -> subprocess.Popen[str]:
    arguments = f"{json.dumps(asdict(job))!r}, {first}"
    limits = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    return subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import {function} as f; f({arguments})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | limits,
        **streams,
    )


def report(text: str, _: int = 0) -> None:
    """Do a job, given as JSON, and print what was found as JSON."""
    job = Job(**json.loads(text))
    measured = {"threads": _threads, "dask": _dask, "processes": _processes}[job.engine]
    print(json.dumps(asdict(measured(job))))


def _learner(job: Job, **parameters: Any) -> KroneckerDictionaryLearning:
    method = METHODS[job.method]
    settings = {"max_iter": job.iterations, **method.parameters, **parameters}
    sizes = method.atoms(job.n, job.n)
    return KroneckerDictionaryLearning(sizes, n_nonzero_coefs=job.s, random_state=0, **settings)


def _threads(job: Job) -> Found:
    return _fitted(_learner(job, n_jobs=job.processors), job, lambda: [_held()])


def _dask(job: Job) -> Found:
    try:
        from distributed import Client, LocalCluster
        from distributed.deploy.utils import nprocesses_nthreads
    except ImportError:
        raise ImportError(
            "Dask is not installed; install it with pip install 'kronlearn[dask]', or measure "
            "threads only."
        ) from None

    # As Dask shares them out unless told otherwise: 4 workers with 4 threads each for 16.
    n_workers, n_threads = nprocesses_nthreads(job.processors)
    # Pages of a mapped file count as memory: a limit would make workers pause for nothing.
    cluster = LocalCluster(
        n_workers=n_workers,
        threads_per_worker=n_threads,
        processes=True,
        memory_limit=None,
        dashboard_address=None,
        silence_logs=logging.ERROR,
    )
    with cluster, Client(cluster) as client:
        client.wait_for_workers(n_workers)

        def held() -> list[tuple[int, int] | None]:
            return [_held(), *(pair for _, pair in sorted(client.run(_held).items()))]

        return _fitted(_learner(job, n_jobs=None, engine="dask"), job, held)


def _fitted(
    model: KroneckerDictionaryLearning,
    job: Job,
    held: Callable[[], list[tuple[int, int] | None]],
) -> Found:
    """Fit, and measure; ``held`` gives what every process holds and has held at most."""
    samples = job.file if job.streamed else np.array(stored_samples(job.file))
    before = held()
    start = time.perf_counter()
    model.fit(samples)
    seconds = time.perf_counter() - start
    growth = [b[1] - a[0] for a, b in zip(before, held(), strict=True) if a and b]
    steps = np.diff(model.history_["seconds"])
    warm_up = -(-len(steps) // 10) if len(steps) > 1 else 0
    return Found(
        float(np.median(steps[warm_up:])),
        seconds,
        float(min(model.history_["rmse"])),
        max(0, sum(growth)) if growth else None,
    )


def _held() -> tuple[int, int] | None:
    """Bytes that this process holds and has held at most; None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    entries = dict(line.split(":", 1) for line in lines)
    now, most = (int(entries[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def _processes(job: Job) -> Found:
    """What independent processes reach, as the seconds that all samples would take them."""
    errors = subprocess.PIPE
    shares = [_process("learn_from_share", job, k, stderr=errors) for k in range(job.processors)]
    try:
        for share in shares:
            if _read(share) != "ready":
                raise RuntimeError(_last_line(share.communicate()[1]))
        for share in shares:
            print("go", file=share.stdin, flush=True)
        rates = [float(_read(share)) for share in shares]
    finally:
        for share in shares:
            share.kill()
            share.communicate()
    return Found(stored_samples(job.file).shape[0] / sum(rates), job.window)


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def learn_from_share(text: str, number: int) -> None:
    """Learn from an own share of the samples on one thread; print how many are done in a second.

    Says "ready" and waits for a line before the clock starts, so that all processes learn at the
    same time.
    """
    job = Job(**json.loads(text))
    stored = stored_samples(job.file)
    size = max(1, stored.shape[0] // job.processors)
    samples = np.array(stored[number * size : number * size + min(size, _SHARE)])
    _learner(job, n_jobs=1, max_iter=1).fit(samples)
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + job.window
    passes, seconds = 0, 0.0
    while (left := end - time.perf_counter()) > 0 or not passes:
        model = _learner(job, n_jobs=1, time_budget=max(left, 1e-3)).fit(samples)
        passes += len(model.history_["seconds"])
        seconds += model.history_["seconds"][-1]
    print(passes * len(samples) / seconds, flush=True)
