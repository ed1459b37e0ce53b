"""Tables II and IV of the paper: how much faster learning is with more threads.

For Table II the paper gives the numbers of patches, not where they come from: here they lie at
random places of grey images, without their means. Those of Table IV are cut from a large cube.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.experiments.data import (
    INCLUDED,
    cube_shape,
    images_in,
    large_patches,
    read_cube,
    sampled_patches,
)
from kronlearn.experiments.methods import METHODS
from kronlearn.experiments.published import TABLE2, TABLE4
from kronlearn.experiments.report import Report, Table, publish
from kronlearn.experiments.store import Store, grouped
from kronlearn.experiments.timing import Progress, machine

__all__ = ["Result", "Run", "measured", "points", "run", "write"]


#: Patches (N, m, m) by m.
Samples = dict[int, NDArray[np.float32]]


@dataclass(frozen=True)
class Run:
    """A method, N samples of m × m, n atoms per mode, s nonzeros, and threads."""

    method: str
    m: int
    n: int
    s: int
    samples: int
    iterations: int
    threads: int

    def __str__(self) -> str:
        return f"{self.method}, m = {self.m}, {self.threads} threads"


@dataclass(frozen=True)
class Result(Run):
    """What a run found, on which data and where.

    ``seconds_per_iteration`` is the median of the iterations after the first tenth of them,
    ``seconds`` the time of the whole fit.
    """

    data: str
    checksum: int
    seconds_per_iteration: float
    seconds: float
    rmse: float
    processor: str
    cores: int
    instruction_set: str


TITLES = {
    "table2": "Table II: speedup with the number of threads",
    "table4": "Table IV: speedup on a hyperspectral image",
}

_HOW = """
Seconds are those of an iteration: the median of a run's iterations after the first tenth of them.
Libraries of linear algebra are kept to one thread. Speedup is over one thread. (`kronlearn bench
scaling` compares threads with Dask workers.)
"""

_PAPER = {
    "table2": """
The paper says how many patches it learned from, not from which images nor for how many iterations.
""",
    "table4": """
The paper's cube is not available. This one has its size and is made from the one that is: mirrored
copies side by side, varied so that no patch repeats another. The paper's seconds per iteration with
one process: 3,250 (general) and 205 (orthonormal).
""",
}

_METHODS = ("general", "orthonormal")
# The paper's N by m for Table II, and iterations, which it does not give there.
_SAMPLES, _QUICK_SAMPLES = {8: 128000, 16: 32000, 32: 8000}, {8: 2000}
_ITERATIONS, _QUICK_ITERATIONS = {"table2": 60, "table4": 100}, 5
_QUICK_SCALE = 0.001

_COLUMNS = "method m threads seconds_per_iteration:.3g speedup:.2f seconds:.3g rmse:.5g paper:g"


def run(
    experiment: str,
    *,
    progress: Progress,
    output: Path,
    images: Path | None = None,
    cube: Path | None = None,
    scale: float = 1.0,
    jobs: Sequence[int] | None = None,
    iterations: int | None = None,
    only_report: bool = False,
    quick: bool = False,
) -> Report:
    """Measure what the csv file in a folder does not hold of this machine; write the report.

    Table II learns from patches of the ``images`` in a folder, Table IV from those of a small
    ``cube`` that is enlarged, to ``scale`` times the paper's number of patches.
    """
    if only_report:
        return write(experiment, output)
    here = {key: machine()[key] for key in ("processor", "instruction_set")}
    where: dict[str, Any] = {**here, "cores": joblib.cpu_count()}
    counts = thread_counts(jobs, where["cores"])
    iterations = iterations or (_QUICK_ITERATIONS if quick else _ITERATIONS[experiment])
    output.mkdir(parents=True, exist_ok=True)
    if experiment == "table2":
        data, samples = _of_images(images, quick)
    else:
        data, samples = _of_cube(cube, cube_shape(_QUICK_SCALE if quick else scale), progress)
    sums = {m: zlib.crc32(patches.data) for m, patches in samples.items()}
    wanted = [
        Run(name, m, m, _sparsity(experiment, name, m), len(patches), iterations, p)
        for name in _METHODS
        for m, patches in samples.items()
        for p in counts
    ]

    def at(cell: Run) -> dict[str, Any]:
        return {"data": data, "checksum": sums[cell.m], **where}

    def measure(cell: Run) -> dict[str, Any]:
        return measured(cell, samples[cell.m])

    list(Store(output / f"{experiment}.csv", Result).run(wanted, at, measure, progress))
    return write(experiment, output)


def _sparsity(experiment: str, method: str, m: int) -> int:
    if experiment == "table4":
        return 16
    return m if method == "orthonormal" else 8


def thread_counts(wanted: Sequence[int] | None, cores: int) -> list[int]:
    """1 and the numbers that are wanted; None means 1, 2, 4, 8 … and all cores."""
    if wanted is None:
        wanted = [*(1 << k for k in range(cores.bit_length())), cores]
    return sorted({1, *wanted})


def _of_images(folder: Path | None, quick: bool) -> tuple[str, Samples]:
    """Where the patches of Table II come from, and those of m × m by m."""
    images = images_in(folder)
    sizes = _QUICK_SAMPLES if quick else _SAMPLES
    name = f"{', '.join(INCLUDED)} of scikit-image"
    name = name if folder is None else f"the images in {folder.resolve().name}"
    return name, {m: sampled_patches(images, (m, m), count) for m, count in sizes.items()}


def _of_cube(
    cube: Path | None, shape: tuple[int, int, int], progress: Progress
) -> tuple[str, Samples]:
    """The same for Table IV."""
    small = read_cube(cube)
    name = "Indian Pines" if cube is None else cube.name
    sizes = ["x".join(map(str, each)) for each in (small.shape, shape)]
    return f"{name}, {sizes[0]} enlarged to {sizes[1]}", {8: large_patches(small, shape, progress)}


def measured(cell: Run, samples: NDArray[np.float32]) -> dict[str, Any]:
    """What a run finds."""
    model = KroneckerDictionaryLearning(
        cell.n,
        n_nonzero_coefs=cell.s,
        max_iter=cell.iterations,
        random_state=0,
        n_jobs=cell.threads,
        **METHODS[cell.method].parameters,
    )
    with threadpool_limits(limits=1):
        start = time.perf_counter()
        model.fit(samples)
        seconds = time.perf_counter() - start
    steps = np.diff(model.history_["seconds"])
    return {
        "seconds_per_iteration": float(np.median(steps[-(-len(steps) // 10) :])),
        "seconds": seconds,
        "rmse": float(min(model.history_["rmse"])),
    }


def points(experiment: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The results on one machine and data, with speedups over one thread and the paper's."""
    one = [row for row in results if row.threads == 1]
    alone = {(row.method, row.m, row.samples): row.seconds_per_iteration for row in one}
    found = []
    for row in sorted(results, key=lambda r: (r.method, r.m, r.threads)):
        seconds = alone.get((row.method, row.m, row.samples))
        papers = TABLE2[row.method, row.m] if experiment == "table2" else TABLE4[row.method]
        point = {**asdict(row), "paper": papers.get(row.threads)}
        point["speedup"] = seconds and seconds / row.seconds_per_iteration
        found.append(point)
    return found


def write(experiment: str, folder: Path) -> Report:
    """Write the report and the figure of all that the csv file in a folder holds."""
    file = folder / f"{experiment}.csv"
    here = ("processor", "cores", "instruction_set", "data")
    groups = grouped(Store(file, Result).rows, lambda r: tuple(getattr(r, name) for name in here))
    if not groups:
        raise ValueError(f"{file} holds no results; run the experiment first.")
    parts: list[Any] = [_HOW]
    machines = []
    # The machine with the most cores comes first.
    for key in sorted(groups, key=lambda key: -key[1]):
        processor, cores, instruction_set, data = key
        found = points(experiment, groups[key])
        name = f"{processor}, {cores} core{'s' if cores > 1 else ''}, {instruction_set}"
        table = Table.of(name, found, _COLUMNS)
        parts += [f"## {name}", _about(groups[key], data), table]
        machines.append(dict(zip(here, key, strict=True)) | {"points": found})
    parts.append(_PAPER[experiment])
    shown = publish(folder, experiment, TITLES[experiment], parts)
    return Report(shown, {"machines": machines})


def _about(rows: Sequence[Result], data: str) -> str:
    sizes = {(r.m, r.samples): None for r in rows}
    samples = ", ".join(f"{count:,} patches of {m} × {m}" for m, count in sizes)
    iterations = " or ".join(map(str, sorted({r.iterations for r in rows})))
    return f"{samples}, float32; from {data}. {iterations} iterations."
