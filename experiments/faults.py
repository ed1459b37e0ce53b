"""The fault table: fits during which workers die, freeze or come, or the driver is killed.

Every fit must end with the bits of one that nothing happened to.

    python experiments/faults.py [--runs 10] [--seed 0] [--only NAME] [--csv experiments/faults.csv]

Needs a checkout and ``pip install '.[test]'``; ten minutes.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import fault_runs as faults
from cluster import cluster_of


def main() -> int:
    """Print the table and write it; 1 if any fit ended with other bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="fits with each fault")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which they happen")
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    logging.getLogger("kronlearn").setLevel(logging.ERROR)
    rng = np.random.default_rng(options.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        problems = faults.Problems(Path(folder))
        happening = {name: partial(with_fault, act) for name, act in faults.FAULTS.items()}
        happening["driver killed"] = partial(with_driver_killed, Path(folder))
        for name, fits in happening.items():
            if options.only in name:
                runs = fits(problems, options.runs, rng)
                same = sum(run.same_bits for run in runs)
                seconds = statistics.median(run.seconds for run in runs)
                rows.append([name, len(runs), same, round(seconds, 2)])
                print(*rows[-1], sep="  ", flush=True)
    with options.csv.open("w", newline="", encoding="utf-8") as file:
        columns = ["fault", "runs", "same_bits", "median_seconds"]
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return int(any(row[1] != row[2] for row in rows))


def with_fault(
    act: faults.Act, problems: faults.Problems, count: int, rng: np.random.Generator
) -> list[faults.Run]:
    """So many fits with a fault of the workers."""
    runs = []
    with cluster_of(faults.N_WORKERS, faults.IMPATIENT) as client:
        for _ in range(count):
            runs.append(faults.fit_with_fault(client, problems, act, rng))
            faults.restore(client)
    return runs


def with_driver_killed(
    folder: Path, problems: faults.Problems, count: int, rng: np.random.Generator
) -> list[faults.Run]:
    """So many fits whose driver is killed."""
    with cluster_of(faults.N_WORKERS) as client:
        return [faults.fit_with_driver_killed(client, problems, folder, rng) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
