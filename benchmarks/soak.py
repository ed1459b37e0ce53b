"""A soak: fit after fit with random faults on three workers; bits and memory are watched.

    python benchmarks/soak.py [--minutes 30] [--seed 0] [--csv benchmarks/soak.csv]

The memory of the driver, which the scheduler is in, tells of leaks. Ends with 1 if a fit hangs,
ends with other bits, or memory grows.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from cluster import at_most, cluster_of, model
from fault_runs import (
    FAULTS,
    IMPATIENT,
    N_WORKERS,
    Act,
    Problems,
    fit_with_driver_killed,
    fit_with_fault,
    restore,
)

COLUMNS = ("minutes", "fault", "same_bits", "seconds", "driver_mb")
# Memory may differ by so much between the second third of a soak and the last.
MOST_GROWTH, MOST_GROWTH_MB = 0.05, 15.0


def main() -> int:
    """Run faults until the time is over; 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    logging.getLogger("kronlearn").setLevel(logging.ERROR)
    rng = np.random.default_rng(options.seed)
    rows = []
    with (
        tempfile.TemporaryDirectory() as name,
        cluster_of(N_WORKERS, IMPATIENT) as client,
        open(options.csv, "w", newline="") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        events = _events(client, Problems(Path(name)), Path(name), rng)
        begin = time.monotonic()
        coming: list[str] = []
        while time.monotonic() - begin < 60 * options.minutes:
            # In rounds, so that every fault is as frequent in the beginning as in the end.
            coming = coming or rng.permutation(list(events)).tolist()
            fault = coming.pop()
            start = time.monotonic()
            same = events[fault]()
            seconds = time.monotonic() - start
            restore(client)
            minutes = (time.monotonic() - begin) / 60
            row = [round(minutes, 2), fault, int(same), round(seconds, 2), _megabytes()]
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            writer.writerow(rows[-1])
            file.flush()
    wrong = sum(not row["same_bits"] for row in rows)
    print(f"{len(rows)} fits, {wrong} with other bits")
    flat = _flat("driver_mb", rows)
    print("flat" if flat else "grows")
    return int(bool(wrong or not flat))


def _events(
    client: Client, problems: Problems, folder: Path, rng: np.random.Generator
) -> dict[str, Callable[[], bool]]:
    """What may happen, by name; each says whether it ended as it should."""

    def fitted_with(act: Act) -> Callable[[], bool]:
        return lambda: fit_with_fault(client, problems, act, rng).same_bits

    return {
        **{name: fitted_with(act) for name, act in FAULTS.items()},
        "nothing": fitted_with(lambda *_: None),
        "driver killed": lambda: fit_with_driver_killed(client, problems, folder, rng).same_bits,
        "NaN in a sample": lambda: _refused(problems, rng),
        "interrupted": lambda: _interrupted(problems, rng),
    }


def _refused(problems: Problems, rng: np.random.Generator) -> bool:
    """Whether a fit of samples with a NaN ends with an error that says where it is."""
    bad = problems.array[:20_000].copy()
    place = int(rng.integers(len(bad)))
    bad[place, 0, 0] = np.nan
    try:
        with at_most(60):
            model().fit(bad)
    except ValueError as error:
        return f"sample {place}" in str(error)
    return False


def _interrupted(problems: Problems, rng: np.random.Generator) -> bool:
    """Whether an interrupted fit keeps what it has learned."""
    wanted = int(rng.integers(1, 8))

    def callback(progress: Any) -> None:
        if progress.iteration == wanted:
            raise KeyboardInterrupt

    learner = model(max_iter=8, callback=callback)
    try:
        with at_most(60):
            learner.fit(problems.samples(rng))
    except KeyboardInterrupt:
        return learner.n_iter_ == wanted
    return False


def _megabytes() -> float:
    """What the driver and the scheduler in it take."""
    return round(psutil.Process().memory_info().rss / 1e6, 1)


def _flat(name: str, rows: list[dict[str, Any]]) -> bool:
    """Whether the memory of a process is about the same in the second and the last third."""
    third = max(len(rows) // 3, 1)
    before = statistics.median(row[name] for row in rows[third : 2 * third] or rows)
    after = statistics.median(row[name] for row in rows[-third:])
    print(f"{name}: {before:.1f} in the second third, {after:.1f} in the last")
    return after <= before * (1 + MOST_GROWTH) + MOST_GROWTH_MB


if __name__ == "__main__":
    sys.exit(main())
