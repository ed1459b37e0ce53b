"""``kronlearn bench learning``: time of an iteration, and memory for a million patches."""

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
    measured_in_a_process,
    peak_above_start,
    seconds_per_iteration,
    time_in_turns,
    timed,
)
from kronlearn.options import Quick

__all__ = ["fit", "measure_memory", "run"]

_DEFAULTS = {"n_atoms": (16, 16), "n_nonzero_coefs": 6, "random_state": 0, "n_jobs": 1}


def run(*, progress: Progress, quick: Quick = False) -> Report:
    """Time pairs of runs in turns, and measure the memory that learning needs."""
    n_samples = 2000 if quick else 100_000
    samples = sampled_patches(included_images(), (8, 8), n_samples)
    learn = partial(_seconds_of_iteration, samples)
    square: dict[str, Any] = {"n_atoms": (8, 8)}
    learned = fit(samples, max_iter=12).dictionary_
    pairs: dict[str, dict[str, Callable[[], float]]] = {
        f"iteration with {method} against its coding alone": {
            "iteration": partial(learn, method=method),
            "coding": partial(_seconds_of_coding, samples, learned, method),
        }
        for method in ("omp", "ols")
    }
    pairs |= {
        "float64 against float32": {
            "float64": partial(_seconds_of_iteration, samples.astype(np.float64)),
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
        # The functions measure their own time, without the set-up of a fit.
        results = time_in_turns(pair, 1 if quick else 3, progress, name).values()
        medians = [statistics.median(seconds) for _, seconds in results]
        first, second = (f"{k} {1e9 * s:,.0f} ns" for k, s in zip(pair, medians, strict=True))
        rows.append(_row(name, first, second, medians[0] / medians[1]))
    rows.append(_memory_row(20_000 if quick else 1_000_000))
    title = "Learning (times per sample and iteration)"
    table = Table.of(title, rows, "measure first second ratio:.2f")
    return benchmark([table], samples=n_samples, rows=rows)


def _row(measure: str, first: str, second: str, ratio: float | None) -> dict[str, Any]:
    return {"measure": measure, "first": first, "second": second, "ratio": ratio}


def fit(samples: NDArray[Any], **parameters: Any) -> Any:
    """Learn a model from patches; by default 16 × 16 atoms, 6 nonzeros, one thread."""
    return kl.KroneckerDictionaryLearning(**{**_DEFAULTS, **parameters}).fit(samples)


def _seconds_of_iteration(samples: NDArray[Any], **parameters: Any) -> float:
    """Return the median seconds of an iteration per sample."""
    return seconds_per_iteration(fit(samples, max_iter=12, **parameters)) / len(samples)


def _seconds_of_coding(samples: NDArray[Any], dictionary: Any, method: str) -> float:
    """Return the seconds of coding per sample."""
    code = partial(kl.sparse_code, samples, dictionary, 6, method=method, n_jobs=1)
    return timed(code)[0] / len(samples)


def _memory_row(n_samples: int) -> dict[str, Any]:
    name = f"memory for learning from {n_samples:,} patches of 8 × 8"
    above, data = measured_in_a_process(measure_memory, n_samples)
    if above is None:
        return _row(name, "not measured on this system", "", None)
    first, second = f"{above / 2**20:.0f} MiB beyond the data", f"data {data / 2**20:.0f} MiB"
    return _row(name, first, second, above / data)


def measure_memory(n_samples: int) -> tuple[int | None, int]:
    """Return the peak memory of learning beyond its data, and the size of the data, in bytes.

    Valid once per process.
    """
    patches = sampled_patches(included_images(), (8, 8), min(n_samples, 20_000))
    samples = np.resize(patches, (n_samples, 8, 8))
    # A first fit, so that imports and thread pools do not count.
    fit(patches[:256], max_iter=1)
    return peak_above_start(lambda: fit(samples, max_iter=2)), samples.nbytes
