"""Table I and Figures 1 and 2 of the paper: methods compared on patches of three images.

Every method learns from the same samples, from the same start, for as many iterations, on one
thread. All results go to one csv file; the two figures and the table share many of them.
"""

from __future__ import annotations

import csv
import io
import math
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from kronlearn.coding import sparse_code
from kronlearn.reproduce.methods import METHODS
from kronlearn.reproduce.published import TABLE1_SETTINGS

__all__ = [
    "FIGURE2_PANELS",
    "FIGURE2_SIZES",
    "IMAGES",
    "IMAGE_SHAPE",
    "Result",
    "Run",
    "Setting",
    "draw_samples",
    "read_results",
    "run",
    "runs",
    "settings",
]

IMAGES = ("lena", "peppers", "boat")
IMAGE_SHAPE = (512, 512)

#: The panels of Figure 2: (m, s) for patches of m × m pixels.
FIGURE2_PANELS = ((8, 6), (8, 8), (16, 8), (16, 16))
#: Where Figure 2 is sampled: n. The paper's text does not say where its own is.
FIGURE2_SIZES = (8, 16, 24)

# Samples by patch side: three quarters of the patches that the images have.
_SAMPLES, _ITERATIONS = {8: 9216, 16: 2304}, 100
_QUICK_SAMPLES, _QUICK_ITERATIONS = {8: 500, 16: 250}, 5


@dataclass(frozen=True)
class Setting:
    """Samples of m × m, n atoms per mode, s nonzeros; how many samples and iterations."""

    m: int
    n: int
    s: int
    samples: int
    iterations: int

    def __str__(self) -> str:
        return f"{self.m} × {self.m}, n = {self.n}, s = {self.s}"


@dataclass(frozen=True)
class Run:
    """One method, once."""

    setting: Setting
    draw: int
    method: str


@dataclass(frozen=True)
class Result:
    """What came of a run on samples with a checksum.

    ``seconds`` is for the whole fit, ``seconds_per_iteration`` the median. ``curve`` has the RMSE
    that the method recorded in each iteration and ``rmse`` the last one; ``omp_rmse`` and
    ``ols_rmse`` are those of the same samples coded afresh with the learned dictionary, by the same
    coder for all methods.
    """

    run: Run
    atoms: str
    checksum: int
    seconds: float
    seconds_per_iteration: float
    rmse: float
    omp_rmse: float
    ols_rmse: float
    curve: tuple[float, ...]


def settings(experiment: str, quick: bool = False) -> list[Setting]:
    """The settings of "table1", "figure1" (the same) or "figure2"."""
    if experiment == "figure2":
        sizes = [(m, n, s) for m, s in FIGURE2_PANELS for n in FIGURE2_SIZES]
    else:
        sizes = [(8, n, s) for n, s in TABLE1_SETTINGS]
    samples = _QUICK_SAMPLES if quick else _SAMPLES
    iterations = _QUICK_ITERATIONS if quick else _ITERATIONS
    return [Setting(m, n, s, samples[m], iterations) for m, n, s in sizes]


def runs(chosen: Iterable[Setting], methods: Iterable[str], draws: int) -> list[Run]:
    """All runs, the whole of one draw before the next, so that an early end leaves most."""
    pairs = [(setting, method) for setting in chosen for method in methods]
    return [Run(setting, draw, method) for draw in range(draws) for setting, method in pairs]


def draw_samples(
    images: Sequence[NDArray[np.float32]], m: int, n_samples: int, draw: int
) -> NDArray[np.float32]:
    """Some of the images' patches that do not overlap, without their means, shape (N, m, m)."""
    patches = np.concatenate([_tiles(image, m) for image in images])
    if n_samples > len(patches):
        raise ValueError(
            f"{n_samples} patches of {m} × {m} pixels were asked for; the images have "
            f"{len(patches)}."
        )
    rng = np.random.default_rng([m, draw])
    drawn = patches[rng.choice(len(patches), n_samples, replace=False)]
    means = drawn.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    return drawn - means.astype(np.float32)


def _tiles(image: NDArray[np.float32], m: int) -> NDArray[np.float32]:
    rows, columns = (size // m for size in image.shape)
    whole = image[: rows * m, : columns * m].reshape(rows, m, columns, m)
    return whole.swapaxes(1, 2).reshape(-1, m, m)


def run(
    wanted: Iterable[Run], images: Sequence[NDArray[np.float32]], file: Path
) -> Iterator[Result]:
    """Results, each added to a csv file as soon as it is there.

    Runs whose results the file holds already, of the same samples, are not repeated. The images
    have gray levels from 0 to 255.
    """
    done = {(r.run, r.checksum): r for r in read_results(file)} if file.exists() else {}
    drawn: dict[tuple[int, int, int], NDArray[np.float32]] = {}
    for cell in wanted:
        key = (cell.setting.m, cell.setting.samples, cell.draw)
        if key not in drawn:
            drawn = {key: draw_samples(images, *key)}
        checksum = zlib.crc32(drawn[key].tobytes())
        if (cell, checksum) in done:
            yield done[cell, checksum]
            continue
        result = _run(cell, drawn[key], checksum)
        _append(file, result)
        yield result


def _run(cell: Run, samples: NDArray[np.float32], checksum: int) -> Result:
    setting, method = cell.setting, METHODS[cell.method]
    estimator = method.learner(samples, setting.n, setting.s, setting.iterations, cell.draw)
    with threadpool_limits(limits=1):
        start = time.perf_counter()
        estimator.fit(samples)
        seconds = time.perf_counter() - start
    ends = np.asarray(estimator.history_["seconds"], dtype=np.float64)
    curve = tuple(_rounded(float(value)) for value in estimator.history_["rmse"])
    return Result(
        cell,
        method.size(setting.m, setting.n),
        checksum,
        _rounded(seconds),
        _rounded(float(np.median(np.diff(ends, prepend=0.0)))),
        curve[-1],
        _rounded(_coded_afresh(samples, estimator.dictionary_, setting.s, "omp")),
        _rounded(_coded_afresh(samples, estimator.dictionary_, setting.s, "ols")),
        curve,
    )


def _coded_afresh(samples: NDArray[np.float32], dictionary: Any, s: int, coder: str) -> float:
    """RMSE of the samples coded with the dense dictionary, in float64."""
    rows = samples.reshape(len(samples), -1).astype(np.float64)
    matrix = dictionary.to_dense().astype(np.float64)
    matrix /= np.linalg.norm(matrix, axis=0)
    codes = sparse_code(rows, [matrix], s, method=coder)
    return math.sqrt(float(np.mean((rows - codes @ matrix.T) ** 2)))


def _rounded(value: float) -> float:
    """To six digits, as the csv file has it: a run gives what reading it back gives."""
    return float(f"{value:.6g}")


_COLUMNS = (
    *("m", "n", "s", "samples", "iterations", "draw", "method", "atoms", "checksum"),
    *("seconds", "seconds_per_iteration", "rmse", "omp_rmse", "ols_rmse", "rmse_by_iteration"),
)


def _append(file: Path, result: Result) -> None:
    setting = result.run.setting
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not file.exists() or file.stat().st_size == 0:
        writer.writerow(_COLUMNS)
    writer.writerow(
        [
            *(setting.m, setting.n, setting.s, setting.samples, setting.iterations),
            *(result.run.draw, result.run.method, result.atoms, result.checksum),
            *(f"{value:.6g}" for value in (result.seconds, result.seconds_per_iteration)),
            *(f"{value:.6g}" for value in (result.rmse, result.omp_rmse, result.ols_rmse)),
            " ".join(f"{value:.6g}" for value in result.curve),
        ]
    )
    # In one piece: an interruption leaves the whole line or none of it.
    with file.open("a", newline="", encoding="utf-8") as stream:
        stream.write(text.getvalue())


def read_results(file: Path) -> list[Result]:
    """The results in a csv file that :func:`run` wrote."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    if rows and tuple(rows[0]) != _COLUMNS:
        raise ValueError(f"{file} does not hold results of this comparison; give another folder.")
    results = []
    for number, row in enumerate(rows[1:], start=2):
        try:
            results.append(_parsed(row))
        except ValueError:
            raise ValueError(f"Line {number} of {file} cannot be read; remove it.") from None
    return results


def _parsed(row: list[str]) -> Result:
    *sizes, draw, method, atoms, checksum = row[:9]
    m, n, s, samples, iterations = map(int, sizes)
    seconds, per_iteration, rmse, omp_rmse, ols_rmse = map(float, row[9:14])
    (text,) = row[14:]
    curve = tuple(map(float, text.split()))
    # The curve comes last; if it does not end with the recorded RMSE, the line was cut.
    if curve[-1:] != (rmse,):
        raise ValueError
    return Result(
        Run(Setting(m, n, s, samples, iterations), int(draw), method),
        atoms,
        int(checksum),
        seconds,
        per_iteration,
        rmse,
        omp_rmse,
        ols_rmse,
        curve,
    )
