"""The runs behind Table I and Figures 1 and 2: methods compared on patches of three images.

Every method learns from the same samples, from the same start, for as many iterations, on one
thread. Every dictionary is then judged by the same coder, on the samples it was learned from and on
others of the same images. All results go to one CSV file, since the two figures and the table share
many of them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import kronlearn as kl
from kronlearn.experiments.methods import METHODS
from kronlearn.experiments.published import TABLE1_SETTINGS
from kronlearn.experiments.store import Store
from kronlearn.experiments.timing import Progress, no_progress, seconds_per_iteration, timed

__all__ = ["Result", "Run", "Setting", "draw_samples", "results", "settings"]

#: The panels of Figure 2: (m, s) for patches of m × m pixels.
FIGURE2_PANELS = ((8, 6), (8, 8), (16, 8), (16, 16))
#: The n of Figure 2; the paper does not give its own.
FIGURE2_SIZES = (8, 16, 24)

# Samples by patch side: three quarters of the patches of the images. The others, a third as many,
# are held out.
_SAMPLES, _ITERATIONS = {8: 9216, 16: 2304}, 100
_QUICK_SAMPLES, _QUICK_ITERATIONS = {8: 300, 16: 150}, 3

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Setting:
    """Patches of m × m, n atoms per mode, s nonzeros; the numbers of samples and iterations."""

    m: int
    n: int
    s: int
    samples: int
    iterations: int

    def __str__(self) -> str:
        return f"{self.m} × {self.m}, n = {self.n}, s = {self.s}"


@dataclass(frozen=True)
class Run(Setting):
    """One method on one draw of samples, identified by their checksum."""

    draw: int
    method: str
    atoms: str
    checksum: int


@dataclass(frozen=True)
class Result(Run):
    """The outcome of a run.

    ``seconds`` is the time of the whole fit, ``seconds_per_iteration`` the median. ``train_rmse``
    and ``held_out_rmse`` are the errors of the samples learned from and of the others, coded afresh
    by OLS, whatever the method; ``own_train_rmse`` and ``own_held_out_rmse`` are the same with the
    method's own coder. ``held_out_by_iteration`` has the RMSE of the held-out samples, by OLS, for
    the start and for the dictionary after every iteration.
    """

    seconds: float
    seconds_per_iteration: float
    train_rmse: float
    held_out_rmse: float
    own_train_rmse: float
    own_held_out_rmse: float
    held_out_by_iteration: tuple[float, ...]


def settings(experiment: str, quick: bool = False) -> list[Setting]:
    """Return the settings of "table1", "figure1" (the same) or "figure2"."""
    sizes = [(8, n, s) for n, s in TABLE1_SETTINGS]
    if experiment == "figure2":
        sizes = [(m, n, s) for m, s in FIGURE2_PANELS for n in FIGURE2_SIZES]
    samples = _QUICK_SAMPLES if quick else _SAMPLES
    iterations = _QUICK_ITERATIONS if quick else _ITERATIONS
    return [Setting(m, n, s, samples[m], iterations) for m, n, s in sizes]


def results(
    chosen: Iterable[Setting],
    methods: Sequence[str],
    draws: int,
    images: Sequence[Samples],
    file: Path,
    progress: Progress = no_progress,
) -> Iterator[Result]:
    """Yield results on patches of images with grey levels from 0 to 255, kept in a CSV file.

    A draw is finished before the next begins, so that an interrupted run leaves complete draws.
    """

    # A draw has patches of at most two sizes.
    @lru_cache(maxsize=2)
    def samples_of(m: int, n_samples: int, draw: int) -> tuple[Samples, Samples]:
        return draw_samples(images, m, n_samples, draw)

    def run_of(draw: int, at: Setting, method: str) -> Run:
        atoms = METHODS[method].size(at.m, at.n)
        checksum = zlib.crc32(samples_of(at.m, at.samples, draw)[0].tobytes())
        return Run(**asdict(at), draw=draw, method=method, atoms=atoms, checksum=checksum)

    def measure(run: Run) -> dict[str, Any]:
        return _measure(run, *samples_of(run.m, run.samples, run.draw))

    wanted = [run_of(*parts) for parts in product(range(draws), chosen, methods)]
    return Store(file, Result).run(wanted, measure, progress)


def draw_samples(
    images: Sequence[Samples], m: int, n_samples: int, draw: int
) -> tuple[Samples, Samples]:
    """Draw samples to learn from (N, m, m) and held-out ones (N/3, m, m).

    They are non-overlapping patches of the images, without their means.
    """
    patches = np.concatenate([kl.images.extract_patches(image, m, stride=m) for image in images])
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


def _measure(run: Run, samples: Samples, held_out: Samples) -> dict[str, Any]:
    """Learn a dictionary; return the columns that a result adds to its run."""
    model = METHODS[run.method].learner(samples, run.n, run.s, run.iterations, run.draw)
    dictionaries = {0: model.init}
    model.set_params(
        callback=lambda state: dictionaries.update({state.iteration: state.dictionary})
    )
    with threadpool_limits(limits=1):
        seconds, _ = timed(partial(model.fit, samples))
    return {
        "seconds": seconds,
        "seconds_per_iteration": seconds_per_iteration(model),
        "train_rmse": _ols_rmse(samples, model.dictionary_, run.s),
        "held_out_rmse": _ols_rmse(held_out, model.dictionary_, run.s),
        "own_train_rmse": -model.score(samples),
        "own_held_out_rmse": -model.score(held_out),
        "held_out_by_iteration": tuple(
            _ols_rmse(held_out, dictionary, run.s) for dictionary in dictionaries.values()
        ),
    }


def _ols_rmse(samples: Samples, dictionary: Any, s: int) -> float:
    """Return the RMSE of samples coded by OLS with the dense dictionary, in float64."""
    rows = samples.reshape(len(samples), -1).astype(np.float64)
    matrix = dictionary.to_dense().astype(np.float64)
    matrix /= np.linalg.norm(matrix, axis=0)
    codes = kl.sparse_code(rows, [matrix], s, method="ols")
    return math.sqrt(float(np.mean((rows - codes @ matrix.T) ** 2)))
