"""Table I and Figures 1 and 2 of the paper: methods compared on patches of three images.

Every method learns from the same samples, from the same start, for as many iterations, on one
thread. Every dictionary is then judged by the same coder, on the samples it was learned from and on
others of the same images. All results go to one csv file; the two figures and the table share many
of them.
"""

from __future__ import annotations

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
from kronlearn.reproduce.results import append_row, read_rows

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

# Samples by patch side: three quarters of the patches that the images have. All the others, a third
# as many, are held out.
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

    ``seconds`` is for the whole fit, ``seconds_per_iteration`` the median. ``train_rmse`` and
    ``held_out_rmse`` are those of the samples learned from and of the others, coded afresh with the
    learned dictionary by OLS, whatever the method; ``own_train_rmse`` and ``own_held_out_rmse`` the
    same by the method's own coder. ``curve`` has the RMSE of the held-out samples, by OLS, with the
    start and with the dictionary of every iteration.
    """

    run: Run
    atoms: str
    checksum: int
    seconds: float
    seconds_per_iteration: float
    train_rmse: float
    held_out_rmse: float
    own_train_rmse: float
    own_held_out_rmse: float
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
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Samples to learn from (N, m, m) and held-out ones (N/3, m, m).

    They are patches of the images that do not overlap, without their means.
    """
    patches = np.concatenate([_tiles(image, m) for image in images])
    n_held_out = n_samples // 3
    if n_samples + n_held_out > len(patches):
        raise ValueError(
            f"{n_samples} patches of {m} × {m} pixels and {n_held_out} held-out ones were asked "
            f"for; the images have {len(patches)}."
        )
    rng = np.random.default_rng([m, draw])
    chosen = rng.choice(len(patches), n_samples, replace=False)
    others = np.delete(np.arange(len(patches)), chosen)
    drawn = patches[[*chosen, *rng.choice(others, n_held_out, replace=False)]]
    drawn = drawn - drawn.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    return drawn[:n_samples], drawn[n_samples:]


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
    drawn: dict[tuple[int, int, int], tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
    for cell in wanted:
        key = (cell.setting.m, cell.setting.samples, cell.draw)
        if key not in drawn:
            drawn = {key: draw_samples(images, *key)}
        checksum = zlib.crc32(drawn[key][0].tobytes())
        if (cell, checksum) in done:
            yield done[cell, checksum]
            continue
        result = _run(cell, *drawn[key], checksum)
        _append(file, result)
        yield result


def _run(
    cell: Run, samples: NDArray[np.float32], held_out: NDArray[np.float32], checksum: int
) -> Result:
    setting, method = cell.setting, METHODS[cell.method]
    estimator = method.learner(samples, setting.n, setting.s, setting.iterations, cell.draw)
    dictionaries = {0: estimator.init}
    estimator.set_params(
        callback=lambda state: dictionaries.update({state.iteration: state.dictionary})
    )
    with threadpool_limits(limits=1):
        start = time.perf_counter()
        estimator.fit(samples)
        seconds = time.perf_counter() - start
    train, others = (_error(part, estimator.dictionary_, setting.s) for part in (samples, held_out))
    return Result(
        cell,
        method.size(setting.m, setting.n),
        checksum,
        _rounded(seconds),
        _rounded(float(np.median(np.diff(estimator.history_["seconds"])))),
        _rounded(train),
        _rounded(others),
        _rounded(-estimator.score(samples)),
        _rounded(-estimator.score(held_out)),
        tuple(_rounded(_error(held_out, each, setting.s)) for each in dictionaries.values()),
    )


def _error(samples: NDArray[np.float32], dictionary: Any, s: int) -> float:
    """RMSE of the samples coded by OLS with the dense dictionary, in float64."""
    rows = samples.reshape(len(samples), -1).astype(np.float64)
    matrix = dictionary.to_dense().astype(np.float64)
    matrix /= np.linalg.norm(matrix, axis=0)
    codes = sparse_code(rows, [matrix], s, method="ols")
    return math.sqrt(float(np.mean((rows - codes @ matrix.T) ** 2)))


def _rounded(value: float) -> float:
    """To six digits, as the csv file has it: a run gives what reading it back gives."""
    return float(f"{value:.6g}")


_ERRORS = ("train_rmse", "held_out_rmse", "own_train_rmse", "own_held_out_rmse")
_COLUMNS = (
    *("m", "n", "s", "samples", "iterations", "draw", "method", "atoms", "checksum"),
    *("seconds", "seconds_per_iteration", *_ERRORS, "held_out_by_iteration"),
)


def _append(file: Path, result: Result) -> None:
    setting = result.run.setting
    errors = [getattr(result, name) for name in _ERRORS]
    append_row(
        file,
        _COLUMNS,
        [
            *(setting.m, setting.n, setting.s, setting.samples, setting.iterations),
            *(result.run.draw, result.run.method, result.atoms, result.checksum),
            *(f"{value:.6g}" for value in (result.seconds, result.seconds_per_iteration, *errors)),
            " ".join(f"{value:.6g}" for value in result.curve),
        ],
    )


def read_results(file: Path) -> list[Result]:
    """The results in a csv file that :func:`run` wrote."""
    return read_rows(file, _COLUMNS, _parsed)


def _parsed(row: list[str]) -> Result:
    *sizes, draw, method, atoms, checksum = row[:9]
    m, n, s, samples, iterations = map(int, sizes)
    *numbers, curve = row[9:]
    seconds, per_iteration, train, held_out, own_train, own_held_out = map(float, numbers)
    return Result(
        Run(Setting(m, n, s, samples, iterations), int(draw), method),
        atoms,
        int(checksum),
        seconds,
        per_iteration,
        train,
        held_out,
        own_train,
        own_held_out,
        tuple(map(float, curve.split())),
    )
