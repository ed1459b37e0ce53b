"""Tables II and IV of the paper: how much faster learning is with more threads.

For Table II the paper gives the numbers of patches, but not their images: here they are cut from
random places of grey images, without their means. Those of Table IV are cut from a large cube.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import joblib
import numpy as np
import typer
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
from kronlearn.experiments.timing import Progress, machine, seconds_per_iteration, timed
from kronlearn.options import (
    CubeFile,
    Folder,
    ImageFolder,
    Iterations,
    OnlyReport,
    Quick,
    ThreadCounts,
)

__all__ = ["Result", "Run", "measure", "points", "table2", "table4", "thread_counts", "write"]

#: Patches (N, m, m) by m.
Samples = dict[int, NDArray[np.float32]]


@dataclass(frozen=True)
class Run:
    """A method, its settings and number of threads, the samples and the machine."""

    method: str
    m: int
    n: int
    s: int
    samples: int
    iterations: int
    threads: int
    data: str
    checksum: int
    processor: str
    cores: int
    instruction_set: str

    def __str__(self) -> str:
        return f"{self.method}, m = {self.m}, {self.threads} threads"


@dataclass(frozen=True)
class Result(Run):
    """The outcome of a run.

    ``seconds_per_iteration`` is the median over all iterations but the first tenth, ``seconds`` the
    time of the whole fit.
    """

    seconds_per_iteration: float
    seconds: float
    rmse: float


TITLES = {
    "table2": "Table II: speedup with the number of threads",
    "table4": "Table IV: speedup on a hyperspectral image",
}

_HOW = """
Seconds per iteration are the median over all iterations of a run but the first tenth. BLAS runs in
one thread. Speedup is relative to one thread. (`kronlearn bench scaling` compares threads with Dask
workers.)
"""

_PAPER = {
    "table2": """
The paper gives the numbers of patches, but neither the images nor the number of iterations.
""",
    "table4": """
The paper's cube is not available. Ours has the same size and consists of mirrored copies of a small
cube, with noise so that no patch repeats another. The paper's seconds per iteration with one
process: 3,250 (general) and 205 (orthonormal).
""",
}

_SPEEDUPS = {"table2": TABLE2, "table4": TABLE4}
_METHODS = ("general", "orthonormal")
# The paper's N by m for Table II.
_SAMPLES, _QUICK_SAMPLES = {8: 128000, 16: 32000, 32: 8000}, {8: 2000}
_QUICK_ITERATIONS, _QUICK_SCALE = 5, 0.001

_COLUMNS = "method m threads seconds_per_iteration:.3g speedup:.2f seconds:.3g rmse:.5g paper:g"


def table2(
    *,
    progress: Progress,
    images: ImageFolder = None,
    output: Folder = Path("table2"),
    jobs: ThreadCounts = None,
    iterations: Iterations = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
) -> Report:
    """Learn from patches of the images in a folder; write the report."""
    if not only_report:
        iterations = iterations or (_QUICK_ITERATIONS if quick else 60)
        data = _samples_of_images(images, quick)
        _measure_missing("table2", *data, output, jobs, iterations, progress)
    return write("table2", output)


def table4(
    *,
    progress: Progress,
    cube: CubeFile = None,
    scale: Annotated[
        float, typer.Option(metavar="X", help="Fraction of the paper's 3,913,140 patches.")
    ] = 1.0,
    output: Folder = Path("table4"),
    jobs: ThreadCounts = None,
    iterations: Iterations = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
) -> Report:
    """Learn from patches of a small cube, enlarged until it has enough; write the report."""
    if not only_report:
        iterations = iterations or (_QUICK_ITERATIONS if quick else 100)
        data = _samples_of_cube(cube, _QUICK_SCALE if quick else scale, progress)
        _measure_missing("table4", *data, output, jobs, iterations, progress)
    return write("table4", output)


def _measure_missing(
    experiment: str,
    data: str,
    samples: Samples,
    output: Path,
    jobs: Sequence[int] | None,
    iterations: int,
    progress: Progress,
) -> None:
    """Measure what the CSV file lacks for this machine; ``data`` says what the samples are."""
    checksums = {m: zlib.crc32(patches.data) for m, patches in samples.items()}
    cores, facts = joblib.cpu_count(), machine()
    wanted = [
        Run(
            method=method,
            m=m,
            n=m,
            s=16 if experiment == "table4" else m if method == "orthonormal" else 8,
            samples=len(samples[m]),
            iterations=iterations,
            threads=threads,
            data=data,
            checksum=checksums[m],
            processor=facts["processor"],
            cores=cores,
            instruction_set=facts["instruction_set"],
        )
        for method, m, threads in product(_METHODS, samples, thread_counts(jobs, cores))
    ]
    output.mkdir(parents=True, exist_ok=True)
    store = Store(output / f"{experiment}.csv", Result)
    list(store.run(wanted, lambda run: measure(run, samples[run.m]), progress))


def thread_counts(jobs: Sequence[int] | None, cores: int) -> list[int]:
    """Return the numbers of threads to compare, always with 1; by default 1, 2, 4 … and all."""
    return sorted({1, *(jobs or [*(1 << k for k in range(cores.bit_length())), cores])})


def _samples_of_images(folder: Path | None, quick: bool) -> tuple[str, Samples]:
    """Return a name for the data of Table II, and its patches."""
    images, sizes = images_in(folder), _QUICK_SAMPLES if quick else _SAMPLES
    name = (
        f"the images in {folder.resolve().name}"
        if folder
        else f"{', '.join(INCLUDED)} of scikit-image"
    )
    return name, {m: sampled_patches(images, (m, m), count) for m, count in sizes.items()}


def _samples_of_cube(cube: Path | None, scale: float, progress: Progress) -> tuple[str, Samples]:
    """Return a name for the data of Table IV, and its patches."""
    small, shape = read_cube(cube), cube_shape(scale)
    name = cube.name if cube else "Indian Pines"
    before, after = ("x".join(map(str, sizes)) for sizes in (small.shape, shape))
    return f"{name}, {before} enlarged to {after}", {8: large_patches(small, shape, progress)}


def measure(run: Run, samples: NDArray[np.float32]) -> dict[str, Any]:
    """Learn a dictionary; return the columns that a result adds to its run."""
    model = KroneckerDictionaryLearning(
        run.n,
        n_nonzero_coefs=run.s,
        max_iter=run.iterations,
        random_state=0,
        n_jobs=run.threads,
        **METHODS[run.method].parameters,
    )
    with threadpool_limits(limits=1):
        seconds, _ = timed(partial(model.fit, samples))
    return {
        "seconds_per_iteration": seconds_per_iteration(model),
        "seconds": seconds,
        "rmse": float(min(model.history_["rmse"])),
    }


def points(experiment: str, results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield the results on one machine with their speedups over one thread, and the paper's."""
    serial = {
        (r.method, r.m, r.samples): r.seconds_per_iteration for r in results if r.threads == 1
    }
    for row in sorted(results, key=lambda r: (r.method, r.m, r.threads)):
        one_thread = serial.get((row.method, row.m, row.samples))
        published = _SPEEDUPS[experiment][row.method, row.m].get(row.threads)
        speedup = one_thread and one_thread / row.seconds_per_iteration
        yield {**asdict(row), "paper": published, "speedup": speedup}


def write(experiment: str, folder: Path) -> Report:
    """Write the report of all results in the CSV file of a folder."""
    file = folder / f"{experiment}.csv"
    names = ("processor", "cores", "instruction_set", "data")
    groups = grouped(Store(file, Result).rows, lambda r: tuple(getattr(r, name) for name in names))
    if not groups:
        raise ValueError(f"{file} holds no results; run the experiment first.")
    parts: list[Any] = [_HOW]
    machines = []
    # The machine with the most cores comes first.
    for key in sorted(groups, key=lambda key: -key[1]):
        processor, cores, instruction_set, _ = key
        rows = list(points(experiment, groups[key]))
        name = f"{processor}, {cores} core{'s' if cores > 1 else ''}, {instruction_set}"
        parts += [f"## {name}", _about(groups[key]), Table.of(name, rows, _COLUMNS)]
        machines.append(dict(zip(names, key, strict=True)) | {"points": rows})
    parts.append(_PAPER[experiment])
    return publish(folder / f"{experiment}.md", TITLES[experiment], parts, machines=machines)


def _about(rows: Sequence[Result]) -> str:
    sizes = {(r.m, r.samples): None for r in rows}
    samples = ", ".join(f"{count:,} patches of {m} × {m}" for m, count in sizes)
    iterations = " or ".join(map(str, sorted({r.iterations for r in rows})))
    return f"{samples}, float32; from {rows[0].data}. {iterations} iterations."
