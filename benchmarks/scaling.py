"""What an iteration costs on many workers: measured, fitted, and carried further.

    python benchmarks/scaling.py measure [--workers 1,2,4,8,16] [--samples 4000000]
    python benchmarks/scaling.py model

``measure`` times passes over 8 × 8 patches with threads and with Dask workers of one thread each, and
passes over hardly any samples in many partitions; it writes benchmarks/scaling.csv. ``model`` fits
the cost of tasks to that, compares the model with the passes that were measured and with a
simulation of the tree of additions, and prints what it says of more samples and workers.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CSV = Path(__file__).resolve().parent / "scaling.csv"
COLUMNS = ("what", "structure", "workers", "samples", "partitions", "seconds")
#: Structure, atoms per mode, nonzeros.
PROBLEMS = {"general": (16, 6), "orthonormal": (8, 6)}
REPEATS = 7
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
    return Task(dictionary, Coder("ols", width), "full", n_worst=2 * n)


def measure(workers: list[int], n_samples: int) -> Iterator[Row]:
    """Passes of threads and of Dask workers over many samples, and over hardly any."""
    from dask.distributed import Client, LocalCluster

    from kronlearn.engines.dask import Cluster
    from kronlearn.engines.threads import Threads
    from kronlearn.io.arrays import ArraySource

    rng = np.random.default_rng(0)
    samples = rng.standard_normal((n_samples, 8, 8), dtype=np.float32).cumsum(axis=1)
    source = ArraySource(samples, (8, 8))
    for structure in PROBLEMS:
        task = task_of(structure)
        for n in workers:
            seconds = median_time(lambda n=n, task=task: Threads(source, n).run(task))
            yield "threads", structure, n, n_samples, 0, seconds
    for n in workers:
        with LocalCluster(n, threads_per_worker=1, dashboard_address=None) as cluster:
            with Client(cluster) as client:
                for structure in PROBLEMS:
                    task = task_of(structure)
                    engine = Cluster(client, source)
                    seconds = median_time(lambda e=engine, task=task: e.run(task))
                    parts = len(engine.partitions)
                    engine.close()
                    yield "dask", structure, n, n_samples, parts, seconds
                    for parts in (16, 64, 256, 1024):
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
        self.b, self.a = np.polyfit(*zip(*few, strict=True), 1)

    def seconds(self, n_samples: float, workers: int, partitions: int, busy: int) -> float:
        """A pass, on machines with ``busy`` threads."""
        return self.a + self.b * partitions + n_samples * self.per_sample[busy] / workers

    def simulated(self, n_samples: float, workers: int, partitions: int, busy: int) -> float:
        """A pass, event by event: a scheduler that handles one task at a time, workers, a tree.

        Half of a partition's cost is the scheduler's when its pass is handed out, half when its
        sums come in; an addition costs an eighth of that per input and latency of its own.
        """
        fan_in, latency = 8, self.a / 4
        each = n_samples / partitions * self.per_sample[busy]
        clock, free, done = 0.0, [0.0] * workers, []
        for _ in range(partitions):
            clock += self.b / 2
            start = max(clock, heapq.heappop(free))
            heapq.heappush(free, start + each)
            done.append(start + each)
        level = sorted(done)
        while len(level) > 1:
            joined = []
            for first in range(0, len(level), fan_in):
                group = level[first : first + fan_in]
                clock = max(clock, group[-1]) + self.b / 2 * len(group)
                joined.append(clock + latency)
            level = joined
        return level[0] + latency


def model(rows: list[Row]) -> None:
    """Print how well the model fits, and what it says of what was not measured."""
    for structure in PROBLEMS:
        fitted = Model(rows, structure)
        busy = max(fitted.per_sample)
        print(
            f"\n{structure}: {1e6 * fitted.per_sample[1]:.3f} µs per sample on one thread alone, "
        )
        print(
            f"  {1e6 * fitted.per_sample[busy]:.3f} with {busy} busy; Dask {1e3 * fitted.a:.1f} ms"
        )
        print(f"  per pass and {1e3 * fitted.b:.2f} ms per partition")
        print("  workers     samples  partitions  measured     model  simulated")
        for what, kind, w, n, p, seconds in rows:
            if what != "dask" or kind != structure:
                continue
            parts = fitted.seconds(n, w, p, w), fitted.simulated(n, w, p, w)
            print(f"  {w:7d} {n:11.3g} {p:11d} {seconds:9.3f} {parts[0]:9.3f} {parts[1]:10.3f}")
        for n in (1e9, 1e10, 1e11, 1e12):
            for w, p in ((16, 16), (1000, 1000), (1000, 4000), (1000, 63)):
                threads = w if p != 63 else 1008
                parts = fitted.seconds(n, threads, p, busy), fitted.simulated(n, min(w, p), p, busy)
                print(f"  {w:7d} {n:11.3g} {p:11d} {'':9} {parts[0]:9.3f} {parts[1]:10.3f}")


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
