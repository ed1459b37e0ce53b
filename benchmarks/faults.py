"""The fault table: fits on a Dask cluster during which workers die, freeze or come.

Every fit must end with the bits of one in threads that nothing happened to.

    python benchmarks/faults.py [--runs 10] [--seed 0] [--only NAME] [--csv benchmarks/faults.csv]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import kronlearn as kl
from kronlearn.cli.bench_gpu import image_like

N_WORKERS = 3
N_SAMPLES, MAX_ITER = 60_000, 12
# Silence after which the scheduler takes a worker for lost; five minutes unless it is set.
PATIENCE = "3s"

# One sum of moments, small sums of one mode after the other, several terms, an error target.
CASES: list[dict[str, Any]] = [
    {"n_atoms": (16, 16), "n_nonzero_coefs": 6},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 16, "structure": "orthonormal"},
    {"n_atoms": (36, 36), "n_nonzero_coefs": 3, "max_iter": 6},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 6, "n_terms": 2},
    {"n_atoms": (8, 8), "n_nonzero_coefs": 16, "tol": 40.0},
]

DRIVER = """
import sys
from distributed import Client
sys.path.insert(0, {folder!r})
from faults import CASES, model

with Client({address!r}):
    model(CASES[{case}], engine="dask", checkpoint={checkpoint!r}, checkpoint_every=1).fit({path!r})
"""


def model(case: dict[str, Any], **settings: Any) -> kl.KroneckerDictionaryLearning:
    """The estimator of a case."""
    return kl.KroneckerDictionaryLearning(
        **({"max_iter": MAX_ITER, "random_state": 0} | case | settings)
    )


@dataclass
class Problems:
    """Samples in a file, and what undisturbed fits in threads find: factors, and their seconds."""

    path: Path
    found: dict[int, tuple[list[bytes], float]] = field(default_factory=dict)

    def wanted(self, case: int) -> tuple[list[bytes], float]:
        """The factors, as bytes, that a case must end with, and how long it takes."""
        if case not in self.found:
            start = time.perf_counter()
            fitted = model(CASES[case], n_jobs=1).fit(os.fspath(self.path))
            self.found[case] = (bits(fitted), time.perf_counter() - start)
        return self.found[case]

    def samples(self, number: int) -> Any:
        """The samples in memory, as a path or as a Dask array, in turns."""
        array = np.load(self.path, mmap_mode="r")
        kinds: list[Callable[[], Any]] = [
            lambda: np.array(array),
            lambda: os.fspath(self.path),
            lambda: da.from_array(array, chunks=(N_SAMPLES // 7, 8, 8)),
        ]
        return kinds[number % len(kinds)]()


def bits(fitted: kl.KroneckerDictionaryLearning) -> list[bytes]:
    """The dictionary to the last bit."""
    return [stack.tobytes() for stack in fitted.dictionary_.stacks]


@dataclass(frozen=True)
class Run:
    """How a fit with a fault ended."""

    same_bits: bool
    seconds: float


def kill(count: int) -> Callable[[LocalCluster, list[int]], None]:
    """The fault that kills some workers; their nannies start others."""

    def act(cluster: LocalCluster, pids: list[int]) -> None:
        for pid in pids[:count]:
            os.kill(pid, signal.SIGKILL)

    return act


def add(cluster: LocalCluster, pids: list[int]) -> None:
    """The event that one more worker comes."""
    cluster.scale(N_WORKERS + 1)


def freeze(cluster: LocalCluster, pids: list[int]) -> None:
    """The fault that a worker goes silent, until the scheduler drops it."""
    os.kill(pids[0], signal.SIGSTOP)


FAULTS = {
    "worker killed": kill(1),
    "two workers killed": kill(2),
    "worker added": add,
    "worker frozen": freeze,
}


def run_with_fault(problems: Problems, name: str, number: int, rng: np.random.Generator) -> Run:
    """A fit on a cluster of its own, with a fault at a random moment of it."""
    case = number % len(CASES)
    wanted, undisturbed = problems.wanted(case)
    with new_cluster() as cluster, Client(cluster) as client:
        client.wait_for_workers(N_WORKERS)
        pids = list(client.run(os.getpid).values())
        moment = rng.uniform(0.1, 0.6) * undisturbed
        fault = threading.Timer(moment, FAULTS[name], (cluster, list(rng.permutation(pids))))
        start = time.perf_counter()
        fault.start()
        try:
            fitted = model(CASES[case], engine="dask").fit(problems.samples(number))
            same = bits(fitted) == wanted
        except Exception as problem:
            print(f"{name}, case {case}: {type(problem).__name__}: {problem}", file=sys.stderr)
            same = False
        seconds = time.perf_counter() - start
        fault.join()
        for pid in pids:
            # A frozen one would keep its cluster from closing.
            revive(pid)
    return Run(same, seconds)


def revive(pid: int) -> None:
    """Let a process go on, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def run_with_driver_killed(problems: Problems, number: int, rng: np.random.Generator) -> Run:
    """A fit whose process is killed, and gone on with from its checkpoint in this one."""
    case = number % len(CASES)
    wanted, undisturbed = problems.wanted(case)
    path = os.fspath(problems.path)
    with (
        tempfile.TemporaryDirectory() as folder,
        new_cluster() as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(N_WORKERS)
        checkpoint = Path(folder) / "run.checkpoint"
        text = DRIVER.format(
            folder=os.fspath(Path(__file__).parent),
            address=cluster.scheduler_address,
            case=case,
            checkpoint=os.fspath(checkpoint),
            path=path,
        )
        start = time.perf_counter()
        driver = subprocess.Popen([sys.executable, "-c", text])
        while not checkpoint.exists() and driver.poll() is None:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5) * undisturbed)
        driver.kill()
        driver.wait()
        resumed = model(CASES[case], engine="dask", checkpoint=checkpoint, checkpoint_every=1)
        return Run(bits(resumed.fit(path)) == wanted, time.perf_counter() - start)


def new_cluster() -> LocalCluster:
    """Three worker processes with a thread each."""
    return LocalCluster(
        processes=True,
        n_workers=N_WORKERS,
        threads_per_worker=1,
        dashboard_address=":0",
        memory_limit=None,
        silence_logs=logging.CRITICAL,
    )


def summary(name: str, runs: list[Run]) -> dict[str, str | int | float]:
    """A row of the table."""
    return {
        "fault": name,
        "runs": len(runs),
        "same_bits": sum(run.same_bits for run in runs),
        "median_seconds": round(statistics.median(run.seconds for run in runs), 2),
        "longest_seconds": round(max(run.seconds for run in runs), 2),
    }


def main() -> int:
    """Print the table and write it; 1 if any fit ended with other bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="fits with each fault")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which they happen")
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    dask.config.set({"distributed.scheduler.worker-ttl": PATIENCE})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        problems = Problems(Path(folder) / "samples.npy")
        np.save(problems.path, image_like(N_SAMPLES, 8))
        for k, name in enumerate([*FAULTS, "driver killed"]):
            if options.only not in name:
                continue
            # Few runs, too, see different cases.
            numbers = range(k * options.runs, (k + 1) * options.runs)
            if name in FAULTS:
                runs = [run_with_fault(problems, name, number, rng) for number in numbers]
            else:
                runs = [run_with_driver_killed(problems, number, rng) for number in numbers]
            rows.append(summary(name, runs))
            print("  ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)
    with open(options.csv, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return int(any(row["same_bits"] != row["runs"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
