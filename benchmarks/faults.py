"""The fault table: fits during which workers die, freeze or come, or the driver is killed.

Every fit must end with the bits of one that nothing happened to.

    python benchmarks/faults.py [--runs 10] [--seed 0] [--only NAME] [--csv benchmarks/faults.csv]
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from cluster import cluster_of
from fault_runs import (
    FAULTS,
    IMPATIENT,
    N_WORKERS,
    Act,
    Problems,
    Run,
    fit_with_driver_killed,
    fit_with_fault,
    restore,
)

COLUMNS = ("fault", "runs", "same_bits", "median_seconds")


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
        name: lambda act=act: _with_workers(problems, act, count, rng)
        for name, act in FAULTS.items()
    }
    makers["driver killed"] = lambda: _with_driver_killed(folder, problems, count, rng)
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
    }


def _with_workers(problems: Problems, act: Act, count: int, rng: np.random.Generator) -> list[Run]:
    runs = []
    with cluster_of(N_WORKERS, IMPATIENT) as client:
        for _ in range(count):
            runs.append(fit_with_fault(client, problems, act, rng))
            restore(client)
    return runs


def _with_driver_killed(
    folder: Path, problems: Problems, count: int, rng: np.random.Generator
) -> list[Run]:
    with cluster_of(N_WORKERS) as client:
        return [fit_with_driver_killed(client, problems, folder, rng) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
