"""Tables II and IV of the paper: how much faster learning is with more threads and Dask workers.

For Table II the paper gives the numbers of patches, not where they come from: here they lie at
random places of gray images, without their means. Those of Table IV are cut from a large cube.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from kronlearn.experiments import speedup_runs as runs
from kronlearn.experiments.data import INCLUDED, images_in, included_images, read_cube
from kronlearn.experiments.large_cube import cube_shape, write_patches
from kronlearn.experiments.published import TABLE2, TABLE4
from kronlearn.experiments.report import Report, Table, publish
from kronlearn.experiments.speedup_runs import Result, Run
from kronlearn.experiments.store import Store, grouped
from kronlearn.experiments.timing import Progress, machine, no_progress
from kronlearn.images.dictionaries import draw_patches

__all__ = ["points", "run", "write"]

#: A method at a size with an engine of p processors.
Point = dict[str, Any]

TITLES = {
    "table2": "Table II: speedup with the number of processors",
    "table4": "Table IV: speedup on a hyperspectral image",
}

_HOW = """
Seconds are those of an iteration: the median of a run's iterations after the first tenth of them.
Every run has a process of its own, in which libraries of linear algebra are kept to one thread.
Dask workers are processes that share the cores as Dask does by default (16 cores: four workers with
four threads each), also with their scheduler and the program that asks. Speedup is over one thread.
Memory is what all processes together hold at most beyond what they held before the fit (imports,
and samples in memory).
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

_SHOWN = (
    *("method", "m", "samples", "processors", "engine"),
    *("seconds_per_iteration", "seconds", "rmse"),
)
_COLUMNS = (
    "method m processors engine seconds_per_iteration:.3g speedup:.2f seconds:.3g rmse:.5g "
    "megabytes:.0f paper:g"
)


def run(
    experiment: str,
    *,
    output: Path,
    images: Path | None = None,
    cube: Path | None = None,
    scale: float = 1.0,
    work: Path | None = None,
    jobs: str | None = None,
    engines: str = ",".join(runs.ENGINES),
    iterations: int | None = None,
    only_report: bool = False,
    quick: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Measure what the csv file in a folder does not hold of this machine; write the report.

    Table II learns from patches of the ``images`` in a folder, Table IV from those of a small
    ``cube`` that is enlarged, to ``scale`` times the paper's number of patches. They are kept in
    files in the folder ``work``.
    """
    if only_report:
        return write(experiment, output)
    here = {key: machine()[key] for key in ("processor", "instruction_set")}
    where: dict[str, Any] = {**here, "cores": joblib.cpu_count()}
    counts, chosen = processor_counts(jobs, where["cores"]), _engines(engines)
    iterations = iterations or (_QUICK_ITERATIONS if quick else _ITERATIONS[experiment])
    output.mkdir(parents=True, exist_ok=True)
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() if work is None else nullcontext(work) as name:
        folder = Path(name)
        if experiment == "table2":
            data, files = _patches_of_images(images, quick, folder)
        else:
            shape = cube_shape(_QUICK_SCALE if quick else scale)
            data, files = _patches_of_cube(cube, shape, folder, progress)
        sizes = {m: len(np.load(file, mmap_mode="r")) for m, file in files.items()}
        sums = {m: runs.checksum(file) for m, file in files.items()}
        wanted = [
            Run(name, m, m, _sparsity(experiment, name, m), n, iterations, engine, p)
            for name in _METHODS
            for m, n in sizes.items()
            for p in counts
            for engine in chosen
        ]

        def at(cell: Run) -> dict[str, Any]:
            return {"data": data, "checksum": sums[cell.m], **where}

        def measure(cell: Run) -> dict[str, Any]:
            return runs.measured(cell, files[cell.m], streamed=experiment == "table4")

        list(Store(output / f"{experiment}.csv", Result).run(wanted, at, measure, progress))
    return write(experiment, output, quick)


def _sparsity(experiment: str, method: str, m: int) -> int:
    if experiment == "table4":
        return 16
    return m if method == "orthonormal" else 8


def processor_counts(text: str | None, cores: int) -> list[int]:
    """``2,4`` as 1, 2, 4; None means 1, 2, 4, 8 … and all cores. 1 is always among them."""
    if text is None:
        return sorted({*(1 << k for k in range(cores.bit_length())), cores})
    if not re.fullmatch(r" *[1-9]\d{0,3} *(, *[1-9]\d{0,3} *)*", text):
        raise ValueError(f"--jobs {text} is not a list of numbers; write it as in 1,2,4.")
    return sorted({1, *map(int, text.split(","))})


def _engines(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in runs.ENGINES:
            raise ValueError(f"There is no engine {name!r}; choose from {', '.join(runs.ENGINES)}.")
    return names


def _patches_of_images(folder: Path | None, quick: bool, work: Path) -> tuple[str, dict[int, Path]]:
    """Where the patches of Table II come from, and their files by m."""
    images = included_images() if folder is None else images_in(folder)
    files = {}
    for m, n_samples in (_QUICK_SAMPLES if quick else _SAMPLES).items():
        files[m] = work / f"patches-{m}x{m}-{n_samples}.npy"
        np.save(files[m], drawn(images, m, n_samples))
    if folder is None:
        return f"{', '.join(INCLUDED)} of scikit-image", files
    return f"the images in {folder.resolve().name}", files


def drawn(images: Sequence[NDArray[np.float32]], m: int, n_samples: int) -> NDArray[np.float32]:
    """Patches (N, m, m) at random places of the images, as many of each, without their means."""
    rng = np.random.default_rng(m)
    shares = [len(part) for part in np.array_split(np.arange(n_samples), len(images))]
    pairs = zip(images, shares, strict=True)
    found = [draw_patches(image[None], (m, m), share, rng) for image, share in pairs]
    if sum(map(len, found)) < n_samples:
        raise ValueError(
            f"{n_samples} patches of {m} × {m} pixels are needed, as many of each image; the "
            f"smallest image has {min(map(len, found))}."
        )
    return np.concatenate(found)


def _patches_of_cube(
    cube: Path | None, shape: tuple[int, int, int], work: Path, progress: Progress
) -> tuple[str, dict[int, Path]]:
    """The same for Table IV; the file is made unless it is there already."""
    small = read_cube(cube)
    sizes = ["x".join(map(str, each)) for each in (small.shape, shape)]
    file = work / f"patches-{sizes[1]}-{zlib.crc32(small.tobytes()):08x}.npy"
    if not file.exists():
        write_patches(small, shape, file, progress)
    name = "Indian Pines" if cube is None else cube.name
    return f"{name}, {sizes[0]} enlarged to {sizes[1]}", {8: file}


def points(experiment: str, results: Sequence[Result]) -> list[Point]:
    """The results on one machine and data, with speedups over one thread and the paper's."""
    one = [row for row in results if (row.engine, row.processors) == ("threads", 1)]
    alone = {(row.method, row.m, row.samples): row.seconds_per_iteration for row in one}
    found = []
    for row in sorted(results, key=lambda r: (r.method, r.m, r.processors, r.engine != "threads")):
        point: Point = {name: getattr(row, name) for name in _SHOWN}
        point["megabytes"] = None if row.peak_bytes is None else row.peak_bytes / 1e6
        seconds = alone.get((row.method, row.m, row.samples))
        point["speedup"] = seconds and seconds / row.seconds_per_iteration
        papers = TABLE2[row.method, row.m] if experiment == "table2" else TABLE4[row.method]
        point["paper"] = papers.get(row.processors) if row.engine == "threads" else None
        found.append(point)
    return found


def write(experiment: str, folder: Path, quick: bool = False) -> Report:
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
    if quick:
        shown.append("A quick run has too few samples for conclusions.")
    return Report(shown, {"machines": machines})


def _about(rows: Sequence[Result], data: str) -> str:
    sizes = {(r.m, r.samples): None for r in rows}
    samples = ", ".join(f"{count:,} patches of {m} × {m}" for m, count in sizes)
    iterations = " or ".join(map(str, sorted({r.iterations for r in rows})))
    return f"{samples}, float32; from {data}. {iterations} iterations."
