"""What an iteration costs on many workers: measured, fitted, and carried further.

    python benchmarks/scaling.py measure [--workers 1,2,4,8,16] [--samples 4000000]
    python benchmarks/scaling.py model

``measure`` times passes over 8 × 8 patches with threads and with Dask workers of one thread each,
and passes over hardly any samples in many partitions; it writes benchmarks/scaling.csv. ``model``
fits the cost of tasks to that, compares the model with the passes that were measured and with a
simulation of the tree of additions, and prints what it says of more samples and workers.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CSV = Path(__file__).resolve().parent / "scaling.csv"
COLUMNS = ("what", "structure", "workers", "samples", "partitions", "seconds")
#: Structure, atoms per mode, nonzeros: those of the paper's Table IV.
PROBLEMS = {"general": (8, 16), "orthonormal": (8, 16)}
REPEATS = 7
#: Passes over hardly any samples have so many partitions.
TASKS = (16, 64, 256)
Row = tuple[str, str, int, int, int, float]


def median_time(work) -> float:
    """Median seconds of some calls, after one that counts for nothing."""
    work()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def task_of(structure: str):
    """The pass of an iteration with the DCT as dictionary."""
    from kronlearn import KroneckerDictionary
    from kronlearn.core.coder import Coder
    from kronlearn.core.engine import Task
    from kronlearn.core.init import dct_factor

    n, width = PROBLEMS[structure]
    dictionary = KroneckerDictionary([dct_factor(8, n)] * 2)
    if structure == "orthonormal":
        return Task(dictionary, Coder("threshold", width), "xy")
    return Task(dictionary, Coder("omp", width), "full", n_worst=2 * n)


def measure(workers: list[int], n_samples: int) -> Iterator[Row]:
    """Passes of threads and of Dask workers over many samples, and over hardly any.

    Fewer workers get as many fewer samples: the passes then take about as long.
    """
    from dask.distributed import Client, LocalCluster

    from kronlearn.engines.dask import Cluster
    from kronlearn.engines.threads import Threads
    from kronlearn.io.arrays import ArraySource

    rng = np.random.default_rng(0)
    samples = rng.standard_normal((n_samples, 8, 8), dtype=np.float32).cumsum(axis=1)
    sources = {n: ArraySource(samples[: n_samples * n // max(workers)], (8, 8)) for n in workers}
    tasks = {structure: task_of(structure) for structure in PROBLEMS}
    for structure, task in tasks.items():
        for n in workers:
            engine = Threads(sources[n], n)
            seconds = median_time(lambda e=engine, task=task: e.run(task))
            yield "threads", structure, n, len(sources[n]), 0, seconds
    for n in workers:
        local = LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None)
        with local as cluster, Client(cluster) as client:
            for structure, task in tasks.items():
                engine = Cluster(client, sources[n])
                seconds = median_time(lambda e=engine, task=task: e.run(task))
                engine.close()
                yield "dask", structure, n, len(sources[n]), len(engine.partitions), seconds
                for parts in TASKS:
                    few = ArraySource(samples[: 16 * parts], (8, 8))
                    engine = Cluster(client, few, block_size=16, n_partitions=parts)
                    seconds = median_time(lambda e=engine, task=task: e.run(task))
                    engine.close()
                    yield "tasks", structure, n, 16 * parts, parts, seconds


class Model:
    """``T = a + b·P + N·t/W``: seconds of a pass over N samples in P partitions by W threads.

    ``t`` is what a sample takes on a thread of a machine all of whose threads are busy; ``a`` and
    ``b``, for what Dask needs per pass and per partition, its share of the additions included, are
    fitted to passes over hardly any samples.
    """

    def __init__(self, rows: list[Row], structure: str) -> None:
        own = [row for row in rows if row[1] == structure]
        most = max(row[2] for row in own)
        self.per_sample = {
            w: seconds * w / n for what, _, w, n, _, seconds in own if what == "threads"
        }
        few = [(p, seconds) for what, _, w, _, p, seconds in own if what == "tasks" and w == most]
        # Relative errors count: the pass of few tasks is to be met as well as that of many.
        partitions, seconds = map(np.array, zip(*few, strict=True))
        self.b, self.a = np.polyfit(partitions, seconds, 1, w=1 / seconds)

    def seconds(self, n_samples: float, n_threads: int, partitions: int, busy: int) -> float:
        """A pass of so many threads, on machines with ``busy`` of them."""
        return self.a + self.b * partitions + n_samples * self.per_sample[busy] / n_threads

    def simulated(self, n_samples: float, n_threads: int, partitions: int, busy: int) -> float:
        """The same, event by event: a scheduler with one thing at a time, workers, and a tree.

        The scheduler takes half of a partition's cost to hand its pass out and half when its sums
        are added; an addition of 8 sums waits for the last of them, and for a part of ``a``.
        """
        workers = min(n_threads, partitions)
        each = n_samples * self.per_sample[busy] / partitions * workers / n_threads
        levels = max(1, math.ceil(math.log(partitions, FAN_IN)))
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
            for first in range(0, len(sums), FAN_IN):
                group = sums[first : first + FAN_IN]
                clock = max(clock, group[-1]) + self.b / 2 * len(group)
                added.append(clock + latency)
            sums = added
        return sums[0] + latency


#: Sums that one task adds up, as the engine has it.
FAN_IN = 8
#: Threads and partitions that the model is asked about: tasks of one thread, or of 16.
LARGER = ((16, 16), (1024, 1024), (1024, 4096), (1024, 64))


def model(rows: list[Row]) -> None:
    """Print how well the model fits, and what it says of what was not measured."""
    for structure in PROBLEMS:
        fitted = Model(rows, structure)
        busy = max(fitted.per_sample)
        alone, together = (1e6 * fitted.per_sample[w] for w in (min(fitted.per_sample), busy))
        print(
            f"\n{structure}: {alone:.3f} µs per sample and thread, {together:.3f} with {busy} busy;"
        )
        print(f"  Dask: {1e3 * fitted.a:.1f} ms per pass, {1e3 * fitted.b:.2f} ms per partition")
        print("  threads   samples  partitions  measured     model  simulated   (seconds)")
        for what, kind, w, n, p, seconds in rows:
            if what == "dask" and kind == structure:
                found = fitted.seconds(n, w, p, w), fitted.simulated(n, w, p, w)
                print(f"  {w:7d} {n:9.3g} {p:11d} {seconds:9.3f} {found[0]:9.3f} {found[1]:10.3f}")
        for n in (1e9, 1e10, 1e11, 1e12):
            for w, p in LARGER:
                found = fitted.seconds(n, w, p, busy), fitted.simulated(n, w, p, busy)
                print(f"  {w:7d} {n:9.3g} {p:11d} {'':9} {found[0]:9.3f} {found[1]:10.3f}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("measure", "model"))
    parser.add_argument("--workers", default="1,2,4,8,16")
    parser.add_argument("--samples", type=int, default=4_000_000)
    parser.add_argument("--csv", type=Path, default=CSV)
    options = parser.parse_args()
    if options.what == "model":
        with options.csv.open(newline="") as file:
            lines = list(csv.reader(file))[1:]
        model([(a, b, int(c), int(d), int(e), float(f)) for a, b, c, d, e, f in lines])
        return
    workers = [int(n) for n in options.workers.split(",")]
    with options.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in measure(workers, options.samples):
            writer.writerow(row)
            file.flush()
            print(*row, flush=True)


if __name__ == "__main__":
    main()
