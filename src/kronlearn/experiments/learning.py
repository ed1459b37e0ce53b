"""``kronlearn bench learning``: the cost of an iteration, and the memory for a million patches."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.experiments.data import included_images, sampled_patches
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.timing import (
    Progress,
    benchmark,
    in_turns,
    measured_in_a_process,
    peak_above_start,
    seconds_per_iteration,
    timed,
)

__all__ = ["fit", "measure_memory", "run"]

_GENERAL = {"n_atoms": (16, 16), "n_nonzero_coefs": 6, "random_state": 0, "n_jobs": 1}


def run(*, progress: Progress, quick: bool = False) -> Report:
    """Measure ratios of runs that take turns."""
    n_samples = 2000 if quick else 100_000
    samples = sampled_patches(included_images(), (8, 8), n_samples)
    learn = partial(_iteration, samples)
    square: dict[str, Any] = {"n_atoms": (8, 8)}
    learned = fit(samples, max_iter=12).dictionary_
    pairs: dict[str, dict[str, Callable[[], float]]] = {
        f"iteration with {method} against its coding alone": {
            "iteration": partial(learn, method=method),
            "coding": partial(_coding, samples, learned, method),
        }
        for method in ("omp", "ols")
    }
    pairs |= {
        "float64 against float32": {
            "float64": partial(_iteration, samples.astype(np.float64)),
            "float32": learn,
        },
        "1 thread against 2": {"1 thread": learn, "2 threads": partial(learn, n_jobs=2)},
        "general against orthonormal, 8 × 8 atoms": {
            "general": partial(learn, **square),
            "orthonormal": partial(learn, structure="orthonormal", **square),
        },
    }
    rows = []
    for name, pair in pairs.items():
        found = in_turns(pair, 1 if quick else 3, progress, name)
        medians = [statistics.median(seconds) for _, seconds in found.values()]
        first, second = (f"{k} {1e9 * s:,.0f} ns" for k, s in zip(pair, medians, strict=True))
        rows.append(_row(name, first, second, medians[0] / medians[1]))
    rows.append(_memory(20_000 if quick else 1_000_000))
    title = "Learning (times per sample and iteration)"
    table = Table.of(title, rows, "measure first second ratio:.2f")
    return benchmark([table], samples=n_samples, rows=rows)


def _row(measure: str, first: str, second: str, ratio: float | None) -> dict[str, Any]:
    return {"measure": measure, "first": first, "second": second, "ratio": ratio}


def fit(samples: NDArray[Any], **parameters: Any) -> Any:
    """A model learned from patches; by default 16 × 16 atoms, 6 nonzeros, one thread."""
    return kl.KroneckerDictionaryLearning(**{**_GENERAL, **parameters}).fit(samples)


def _iteration(samples: NDArray[Any], **parameters: Any) -> float:
    """Seconds of the median iteration per sample."""
    return seconds_per_iteration(fit(samples, max_iter=12, **parameters)) / len(samples)


def _coding(samples: NDArray[Any], dictionary: Any, method: str) -> float:
    """Seconds of coding per sample."""
    code = partial(kl.sparse_code, samples, dictionary, 6, method=method, n_jobs=1)
    return timed(code)[0] / len(samples)


def _memory(n_samples: int) -> dict[str, Any]:
    name = f"memory for learning from {n_samples:,} patches of 8 × 8"
    above, data = measured_in_a_process(measure_memory, n_samples)
    if above is None:
        return _row(name, "not measured on this system", "", None)
    first, second = f"{above / 2**20:.0f} MiB beyond the data", f"data {data / 2**20:.0f} MiB"
    return _row(name, first, second, above / data)


def measure_memory(n_samples: int) -> tuple[int | None, int]:
    """The most bytes that learning holds beyond its data, and those; valid once per process."""
    some = sampled_patches(included_images(), (8, 8), min(n_samples, 20_000))
    samples = np.resize(some, (n_samples, 8, 8))
    # Imports and thread pools are no part of what learning needs per sample.
    fit(some[:256], max_iter=1)
    return peak_above_start(lambda: fit(samples, max_iter=2)), samples.nbytes
