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
        for name in [*faults.FAULTS, "driver killed"]:
            if options.only in name:
                runs = fits_with(name, problems, options.runs, rng, Path(folder))
                same = sum(run.same_bits for run in runs)
                seconds = statistics.median(run.seconds for run in runs)
                rows.append([name, len(runs), same, round(seconds, 2)])
                print(*rows[-1], sep="  ", flush=True)
    with options.csv.open("w", newline="", encoding="utf-8") as file:
        columns = ["fault", "runs", "same_bits", "median_seconds"]
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return int(any(row[1] != row[2] for row in rows))


def fits_with(
    fault: str, problems: faults.Problems, count: int, rng: np.random.Generator, folder: Path
) -> list[faults.Run]:
    """So many fits with a fault of the workers, or whose driver is killed."""
    runs = []
    act = faults.FAULTS.get(fault)
    with cluster_of(faults.N_WORKERS, faults.IMPATIENT if act else None) as client:
        for _ in range(count):
            if act is None:
                runs.append(faults.fit_with_driver_killed(client, problems, folder, rng))
            else:
                runs.append(faults.fit_with_fault(client, problems, act, rng))
                faults.restore(client)
    return runs


if __name__ == "__main__":
    sys.exit(main())
