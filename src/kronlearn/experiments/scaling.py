"""``kronlearn bench scaling``: passes over samples with many threads and many Dask workers.

Passes over 8 × 8 patches are timed with threads and with Dask workers of several threads each.
Passes over a few samples in many partitions show Dask's own cost per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from kronlearn import KroneckerDictionary
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.init import dct_factor
from kronlearn.engines.threads import Threads
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.store import save_rows
from kronlearn.experiments.timing import Progress, benchmark, median_seconds
from kronlearn.io.arrays import ArraySource
from kronlearn.options import Rows, parse_counts

__all__ = ["Pass", "measure", "run"]

# The settings of the paper's Table IV.
_STRUCTURES = ("general", "orthonormal")
_ATOMS, _SPARSITY = 8, 16
_REPEATS = 7
# Numbers of partitions of the passes over a few samples.
_TASKS = (16, 64, 256)


@dataclass(frozen=True)
class Pass:
    """The time of a pass: with "threads", with "dask", or with Dask "tasks" of few samples."""

    what: str
    structure: str
    workers: int
    samples: int
    partitions: int
    seconds: float


def run(
    *,
    progress: Progress,
    workers: Annotated[
        Any, typer.Option(parser=parse_counts, metavar="N,…", help="Total numbers of threads.")
    ] = "1,2,4,8,16",
    threads_per_worker: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Threads per Dask worker; Dask itself uses 4 on 16 cores."
        ),
    ] = 4,
    samples: Annotated[
        int,
        typer.Option(
            min=16,
            metavar="N",
            help="Samples for the largest number of threads; others get proportionally fewer.",
        ),
    ] = 4_000_000,
    csv: Rows = None,
) -> Report:
    """Time passes; the most workers get all samples, fewer workers proportionally fewer."""
    rows = []
    passes = measure(workers, threads_per_worker, samples)
    with progress("passes", len(_STRUCTURES) * len(workers) * (2 + len(_TASKS))) as advance:
        for row in save_rows(passes, csv, Pass):
            rows.append(asdict(row))
            advance(str(row))
    columns = "what structure workers samples partitions seconds:.3g"
    return benchmark([Table.of("Seconds per pass", rows, columns)], rows=rows)


def _task(structure: str) -> Task:
    """Return the pass of a learning iteration with the DCT as dictionary."""
    dictionary = KroneckerDictionary([dct_factor(8, _ATOMS)] * 2)
    if structure == "orthonormal":
        return Task(dictionary, Coder("threshold", _SPARSITY), "xy")
    return Task(dictionary, Coder("omp", _SPARSITY), "full", n_worst=2 * _ATOMS)


def measure(workers: Sequence[int], threads_per_worker: int, n_samples: int) -> Iterator[Pass]:
    """Time passes with threads and with Dask workers over many samples, and with Dask over few.

    ``workers`` are numbers of threads; with Dask, a process has ``threads_per_worker`` of them.
    Fewer threads get proportionally fewer samples, so that all passes take about as long.
    """
    from distributed import Client, LocalCluster

    from kronlearn.engines.dask import Cluster

    rng = np.random.default_rng(0)
    samples = rng.standard_normal((n_samples, 8, 8), dtype=np.float32).cumsum(axis=1)
    sources = {n: ArraySource(samples[: n_samples * n // max(workers)], (8, 8)) for n in workers}
    for structure in _STRUCTURES:
        for n, source in sources.items():
            seconds = _seconds(Threads(source, n).run, structure)
            yield Pass("threads", structure, n, len(source), 0, seconds)
    for n, source in sources.items():
        local = LocalCluster(
            n_workers=max(1, n // threads_per_worker),
            threads_per_worker=min(n, threads_per_worker),
            dashboard_address=None,
        )
        with local as cluster, Client(cluster) as client:
            for structure in _STRUCTURES:
                engine = Cluster(client, source)
                seconds = _seconds(engine.run, structure)
                engine.close()
                yield Pass("dask", structure, n, len(source), len(engine.partitions), seconds)
                for partitions in _TASKS:
                    few = ArraySource(samples[: 16 * partitions], (8, 8))
                    engine = Cluster(client, few, block_size=16, n_partitions=partitions)
                    seconds = _seconds(engine.run, structure)
                    engine.close()
                    yield Pass("tasks", structure, n, len(few), partitions, seconds)


def _seconds(run: Callable[[Task], Any], structure: str) -> float:
    return median_seconds(partial(run, _task(structure)), _REPEATS)
