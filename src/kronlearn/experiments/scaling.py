"""``kronlearn bench scaling``: what a pass costs on many workers, measured and carried further.

Passes over 8 × 8 patches are timed with threads and with Dask workers of one thread each, and
passes over hardly any samples in many partitions. The cost of tasks is fitted to that, compared
with the passes that were measured and with a simulation of the tree of additions, and carried to
more samples and workers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn import KroneckerDictionary
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.init import dct_factor
from kronlearn.engines.threads import Threads
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.store import Store
from kronlearn.experiments.timing import Progress, benchmark, in_turns, no_progress
from kronlearn.io.arrays import ArraySource

__all__ = ["Model", "Pass", "measured", "run"]

#: Those of the paper's Table IV.
STRUCTURES = ("general", "orthonormal")
_ATOMS, _SPARSITY = 8, 16
_REPEATS = 7
# Passes over hardly any samples have so many partitions.
_TASKS = (16, 64, 256)
# Sums that one task adds up, as the engine has it.
_FAN_IN = 8
# What the model is asked about: samples, threads and partitions; tasks of one thread, or of 16.
_SAMPLES = (10**9, 10**10, 10**11, 10**12)
_WORKERS = ((16, 16), (1024, 1024), (1024, 4096), (1024, 64))


@dataclass(frozen=True)
class Pass:
    """A pass that was timed: by "threads", by "dask", or of "tasks" that have little to do."""

    what: str
    structure: str
    workers: int
    samples: int
    partitions: int
    seconds: float


def run(
    *,
    csv: Path,
    workers: str = "1,2,4,8,16",
    samples: int = 4_000_000,
    only_report: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Measure passes into a csv file, unless only to report on it; fit the model to them.

    The largest number of ``workers`` gets so many samples, fewer get as many fewer.
    """
    if not only_report:
        csv.unlink(missing_ok=True)
        store = Store(csv, Pass)
        counts = [int(count) for count in workers.split(",")]
        total = len(STRUCTURES) * len(counts) * (2 + len(_TASKS))
        with progress("passes", total) as advance:
            for timed in measured(counts, samples):
                advance(f"{store.add(timed)}")
    passes = Store(csv, Pass).rows
    if not passes:
        raise ValueError(f"{csv} holds no results; measure first.")
    columns = "structure threads samples:.3e partitions measured:.3f model:.3f simulated:.3f"
    rows, lines = [], []
    for structure in STRUCTURES:
        fitted = Model([row for row in passes if row.structure == structure])
        lines.append(f"{structure}: {fitted}")
        rows += [{"structure": structure, **row} for row in _compared(fitted, passes, structure)]
    return benchmark([*lines, Table.of("Seconds per pass", rows, columns)], rows=rows)


def _task(structure: str) -> Task:
    """The pass of an iteration with the DCT as dictionary."""
    dictionary = KroneckerDictionary([dct_factor(8, _ATOMS)] * 2)
    if structure == "orthonormal":
        return Task(dictionary, Coder("threshold", _SPARSITY), "xy")
    return Task(dictionary, Coder("omp", _SPARSITY), "full", n_worst=2 * _ATOMS)


def measured(workers: Sequence[int], n_samples: int) -> Iterator[Pass]:
    """Passes of threads and of Dask workers over many samples, and over hardly any.

    Fewer workers get as many fewer samples: the passes then take about as long.
    """
    from distributed import Client, LocalCluster

    from kronlearn.engines.dask import Cluster

    rng = np.random.default_rng(0)
    samples = rng.standard_normal((n_samples, 8, 8), dtype=np.float32).cumsum(axis=1)
    sources = {n: ArraySource(samples[: n_samples * n // max(workers)], (8, 8)) for n in workers}
    for structure in STRUCTURES:
        for n, source in sources.items():
            seconds = _seconds(Threads(source, n).run, structure)
            yield Pass("threads", structure, n, len(source), 0, seconds)
    for n, source in sources.items():
        local = LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None)
        with local as cluster, Client(cluster) as client:
            for structure in STRUCTURES:
                engine = Cluster(client, source)
                seconds = _seconds(engine.run, structure)
                engine.close()
                yield Pass("dask", structure, n, len(source), len(engine.partitions), seconds)
                for parts in _TASKS:
                    few = ArraySource(samples[: 16 * parts], (8, 8))
                    engine = Cluster(client, few, block_size=16, n_partitions=parts)
                    seconds = _seconds(engine.run, structure)
                    engine.close()
                    yield Pass("tasks", structure, n, 16 * parts, parts, seconds)


def _seconds(run: Callable[[Task], Any], structure: str) -> float:
    task = _task(structure)
    return in_turns({"": lambda: run(task)}, _REPEATS)[""][0]


class Model:
    """``T = a + b·P + N·t/W``: seconds of a pass over N samples in P partitions by W threads.

    ``t`` is what a sample takes on a thread of a machine all of whose threads are busy; ``a`` and
    ``b``, for what Dask needs per pass and per partition, its share of the additions included, are
    fitted to passes over hardly any samples.
    """

    def __init__(self, passes: Sequence[Pass]) -> None:
        most = max(row.workers for row in passes)
        self.per_sample = {
            row.workers: row.seconds * row.workers / row.samples
            for row in passes
            if row.what == "threads"
        }
        few = [row for row in passes if (row.what, row.workers) == ("tasks", most)]
        seconds = np.array([row.seconds for row in few])
        # Relative errors count: the pass of few tasks is to be met as well as that of many.
        self.b, self.a = np.polyfit([row.partitions for row in few], seconds, 1, w=1 / seconds)

    def __str__(self) -> str:
        alone, busy = min(self.per_sample), max(self.per_sample)
        return (
            f"{1e6 * self.per_sample[alone]:.3f} µs per sample and thread, "
            f"{1e6 * self.per_sample[busy]:.3f} with {busy} busy; Dask: {1e3 * self.a:.1f} ms per "
            f"pass, {1e3 * self.b:.2f} ms per partition"
        )

    def seconds(self, n_samples: float, n_threads: int, partitions: int, busy: int) -> float:
        """A pass of so many threads, on machines with ``busy`` of them."""
        return float(self.a + self.b * partitions + n_samples * self.per_sample[busy] / n_threads)

    def simulated(self, n_samples: float, n_threads: int, partitions: int, busy: int) -> float:
        """The same, event by event: a scheduler with one thing at a time, workers, and a tree.

        The scheduler takes half of a partition's cost to hand its pass out and half when its sums
        are added; an addition of 8 sums waits for the last of them, and for a part of ``a``.
        """
        workers = min(n_threads, partitions)
        each = n_samples * self.per_sample[busy] / partitions * workers / n_threads
        levels = max(1, math.ceil(math.log(partitions, _FAN_IN)))
        latency = self.a / (levels + 1)
        clock, free, sums = 0.0, [0.0] * workers, []
        for _ in range(partitions):
            clock += self.b / 2
            finished = max(clock, heapq.heappop(free)) + each
            heapq.heappush(free, finished)
            sums.append(finished)
        while len(sums) > 1:
            sums.sort()
            added = []
            for first in range(0, len(sums), _FAN_IN):
                group = sums[first : first + _FAN_IN]
                clock = max(clock, group[-1]) + self.b / 2 * len(group)
                added.append(clock + latency)
            sums = added
        return float(sums[0] + latency)


def _compared(fitted: Model, passes: Sequence[Pass], structure: str) -> Iterator[dict[str, Any]]:
    """What the model says of the passes that were measured, and of larger ones."""
    dask = [row for row in passes if (row.what, row.structure) == ("dask", structure)]
    at = [(row.samples, row.workers, row.partitions, row.workers, row.seconds) for row in dask]
    busy = max(fitted.per_sample)
    larger = [(n, w, p, busy, None) for n in _SAMPLES for w, p in _WORKERS]
    for n, w, p, threads, seconds in [*at, *larger]:
        row = {"threads": w, "samples": n, "partitions": p, "measured": seconds}
        row["model"] = fitted.seconds(n, w, p, threads)
        yield row | {"simulated": fitted.simulated(n, w, p, threads)}
