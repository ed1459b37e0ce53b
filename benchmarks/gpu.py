"""Check and time everything that runs on a graphics card, in one call.

    python benchmarks/gpu.py [--only A,B,…] [--no-checks] [--csv benchmarks/gpu.csv]

First the tests of the card, then learning from samples that lie on the card already, through the
public interface: milliseconds per iteration, medians. Needs CuPy and a card.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kronlearn as kl

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Case:
    """N samples of m × m, n × n atoms, s nonzeros; the most milliseconds an iteration may take."""

    name: str
    samples: int
    m: int
    n: int
    s: int
    most: float
    structure: str = "general"


CASES = (
    Case("A", 3_913_140, 8, 8, 16, 5.0),
    Case("B", 3_913_140, 8, 8, 16, 0.75, "orthonormal"),
    Case("C", 255_025, 8, 16, 6, 0.35),
    Case("D", 9_216, 8, 16, 6, 0.06),
    Case("E", 8_000, 32, 32, 8, 0.16),
)
# With all defaults an iteration may take so many times as long.
DEFAULTS_FACTOR = 2.0
COLUMNS = ("case", "settings", "milliseconds", "most", "rmse", "cpu_rmse", "seconds_with_transfer")


def main() -> int:
    """Run the command line; 0 if all checks pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="A,B,C,D,E")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--csv", type=Path, default=HERE / "gpu.csv")
    options = parser.parse_args()
    code = 0 if options.no_checks else checks()
    with options.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for case in CASES:
            if case.name in options.only.split(","):
                for row in timed(case, options.iterations):
                    writer.writerow(row)
                    file.flush()
                    print(*row, sep="\t", flush=True)
    return code


def checks() -> int:
    """The tests that need a card."""
    tests = HERE.parent / "tests" / "test_cuda.py"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", "cuda", str(tests)]
    return subprocess.run(command, check=False).returncode


def image_like(count: int, m: int) -> np.ndarray:
    """Smooth samples (count, m, m) with edges, float32."""
    rng = np.random.default_rng(0)
    samples = np.empty((count, m, m), np.float32)
    for start in range(0, count, 65536):
        size = min(65536, count - start)
        smooth = rng.standard_normal((size, m, m), np.float32).cumsum(axis=1).cumsum(axis=2)
        edge = np.arange(m) > rng.integers(m, size=(size, 1, 1))
        jumps = rng.standard_normal((size, 1, 1), np.float32) * edge
        samples[start : start + size] = 4 * smooth + 30 * jumps
    return samples


def timed(case: Case, iterations: int) -> list[tuple[Any, ...]]:
    """Rows for a case: the plain method and all defaults."""
    import cupy

    samples = image_like(case.samples, case.m)
    on_card = cupy.asarray(samples)
    plain = {"method": "omp", "monotone": False, "structure": case.structure}
    rows = []
    for name, settings, factor in (
        ("omp", plain, 1.0),
        ("defaults", {"structure": case.structure}, DEFAULTS_FACTOR),
    ):

        def model(device: str = "cuda", settings: Any = settings, **more: Any) -> Any:
            return kl.KroneckerDictionaryLearning(
                case.n,
                n_nonzero_coefs=case.s,
                random_state=0,
                device=device,
                **{"max_iter": iterations, **settings, **more},
            )

        model(max_iter=3).fit(on_card)
        found = model().fit(on_card)
        steps = np.diff(found.history_["seconds"])
        few = samples[: min(len(samples), 100_000)]
        rmse = model(max_iter=20).fit(few).history_["rmse"][-1]
        cpu_rmse = model("cpu", max_iter=20, n_jobs=-1).fit(few).history_["rmse"][-1]
        start = time.perf_counter()
        model(max_iter=100).fit(samples)
        whole = time.perf_counter() - start
        milliseconds = 1e3 * statistics.median(steps[len(steps) // 4 :])
        rows.append((case.name, name, milliseconds, factor * case.most, rmse, cpu_rmse, whole))
    return rows


if __name__ == "__main__":
    sys.exit(main())
