"""The fault table: fits during which workers die, freeze or come, networks fail, disks fill up.

Every fit must end with the bits of one that nothing happened to. Cuts of the network and full disks
need root; without it they are left out.

    python benchmarks/faults.py [--runs 10] [--seed 0] [--only NAME] [--csv benchmarks/faults.csv]
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from cluster import DaskCluster
from fault_runs import (
    FAULTS,
    N_WORKERS,
    Fault,
    Problems,
    Run,
    fit_with_disk_full,
    fit_with_driver_killed,
    fit_with_fault,
    networks_possible,
    runs_with_cuts,
    small_disk,
)

COLUMNS = ("fault", "runs", "same_bits", "median_seconds", "workers_lost", "steps_repeated")


def main() -> int:
    """Print the table and write it; 1 if any fit ended with other bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="fits with each fault")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which they happen")
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    logging.getLogger("kronlearn").setLevel(logging.ERROR)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, runs in table(Path(folder), options.runs, options.seed, options.only):
            rows.append(summary(name, runs))
            print("  ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)
    with open(options.csv, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return int(any(row["same_bits"] != row["runs"] for row in rows))


def table(folder: Path, count: int, seed: int, only: str) -> Iterator[tuple[str, list[Run]]]:
    """The names of the faults, and so many runs with each."""
    rng = np.random.default_rng(seed)
    problems = Problems(folder)
    makers: dict[str, Callable[[], list[Run]]] = {
        name: lambda fault=fault: _with_workers(folder, problems, fault, count, rng)
        for name, fault in FAULTS.items()
    }
    makers["driver killed"] = lambda: _with_driver_killed(folder, problems, count, rng)
    if networks_possible():
        makers["network to a worker cut"] = lambda: runs_with_cuts(folder, count, seed)
    if os.geteuid() == 0:
        makers["disk full"] = lambda: _with_disk_full(folder, problems, count, rng)
    for name, make in makers.items():
        if only in name:
            yield name, make()


def summary(name: str, runs: list[Run]) -> dict[str, str | int | float]:
    """A row of the table."""
    return {
        "fault": name,
        "runs": len(runs),
        "same_bits": sum(run.same_bits for run in runs),
        "median_seconds": round(statistics.median(run.seconds for run in runs), 2),
        "workers_lost": sum(run.workers_lost for run in runs),
        "steps_repeated": sum(run.steps_repeated for run in runs),
    }


def _with_workers(
    folder: Path, problems: Problems, fault: Fault, count: int, rng: np.random.Generator
) -> list[Run]:
    runs = []
    with DaskCluster(folder, [1] * N_WORKERS, nanny=fault.nanny) as cluster:
        for _ in range(count):
            runs.append(fit_with_fault(cluster, problems, fault, rng))
            cluster.restore(N_WORKERS)
    return runs


def _with_driver_killed(
    folder: Path, problems: Problems, count: int, rng: np.random.Generator
) -> list[Run]:
    with DaskCluster(folder, [1] * N_WORKERS) as cluster:
        return [fit_with_driver_killed(cluster, problems, folder, rng) for _ in range(count)]


def _with_disk_full(
    folder: Path, problems: Problems, count: int, rng: np.random.Generator
) -> list[Run]:
    place = folder / "disk"
    place.mkdir()
    with DaskCluster(folder, [1] * N_WORKERS), small_disk(place, 100) as disk:
        return [fit_with_disk_full(problems, disk, rng) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
