"""``kronlearn bench learning``: what an iteration costs, and how much memory a million patches."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.experiments.data import included_images, perturbed_dct, sampled_patches
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.timing import (
    Progress,
    benchmark,
    in_turns,
    measured_in_a_process,
    no_progress,
    peak_above_start,
)

__all__ = ["measure_memory", "run"]

_GENERAL = {"n_atoms": (16, 16), "n_nonzero_coefs": 6, "random_state": 0, "n_jobs": 1}

# A name, samples, and what of the settings above is different.
Way = tuple[str, NDArray[Any], dict[str, Any]]


def run(*, quick: bool = False, progress: Progress = no_progress) -> Report:
    """Measure ratios, each taken from runs that took turns."""
    n_samples, n_iter = (2000, 3) if quick else (100_000, 8)
    repetitions = 1 if quick else 3
    samples = sampled_patches(included_images(), (8, 8), n_samples)
    square = {"n_atoms": (8, 8)}
    ways: dict[str, tuple[Way, Way]] = {
        "float64 against float32": (
            ("float64", samples.astype(np.float64), {}),
            ("float32", samples, {}),
        ),
        "1 thread against 2": (("1 thread", samples, {}), ("2 threads", samples, {"n_jobs": 2})),
        "general against orthonormal, 8 × 8 atoms": (
            ("general", samples, square),
            ("orthonormal", samples, {**square, "structure": "orthonormal"}),
        ),
    }
    rows = [_against_coding(samples, n_iter, method, progress) for method in ("omp", "ols")]
    rows += [_compared(name, pair, repetitions, progress) for name, pair in ways.items()]
    rows += _odd_shapes(n_samples, repetitions, progress)
    rows.append(_memory(20_000 if quick else 1_000_000))
    title = "Learning (times per sample and iteration)"
    table = Table.of(title, rows, "measure first second ratio:.2f")
    return benchmark([table], samples=n_samples, rows=rows)


def _row(name: str, first: str, second: str, ratio: float | None) -> dict[str, Any]:
    return {"measure": name, "first": first, "second": second, "ratio": ratio}


def _fit(samples: NDArray[Any], parameters: dict[str, Any]) -> Any:
    return kl.KroneckerDictionaryLearning(**{**_GENERAL, **parameters}).fit(samples)


def _against_coding(
    samples: NDArray[Any], n_iter: int, method: str, progress: Progress
) -> dict[str, Any]:
    """An iteration of learning against coding alone, with the same factors, in turns."""
    iterations: list[float] = []
    codings: list[float] = []
    name = f"iteration with {method} against its coding alone"
    with progress(name, n_iter + 1) as advance:
        last = time.perf_counter()

        def after_pass(state: Any) -> None:
            nonlocal last
            iterations.append(time.perf_counter() - last)
            start = time.perf_counter()
            kl.sparse_code(samples, state.dictionary, 6, method=method, n_jobs=1)
            codings.append(time.perf_counter() - start)
            advance()
            last = time.perf_counter()

        _fit(samples, {"method": method, "max_iter": n_iter, "callback": after_pass})
    # The first iteration sets up: starting factors, buffers, threads.
    iteration, coding = (1e6 * statistics.median(t[1:]) for t in (iterations, codings))
    first = f"iteration {iteration / len(samples):.3g} µs"
    return _row(name, first, f"coding {coding / len(samples):.3g} µs", iteration / coding)


def _compared(
    name: str, ways: tuple[Way, Way], repetitions: int, progress: Progress
) -> dict[str, Any]:
    """An iteration of learning in one way against another, in turns."""
    iterations: dict[str, list[float]] = {label: [] for label, *_ in ways}
    with progress(name, 2 * repetitions) as advance:
        for _ in range(repetitions):
            for label, samples, parameters in ways:
                model = _fit(samples, {**parameters, "max_iter": 12})
                # The first iterations set up buffers, and threads find their processors.
                iterations[label] += np.diff(model.history_["seconds"])[5:].tolist()
                advance()
    medians = [1e6 * statistics.median(times) / len(ways[0][1]) for times in iterations.values()]
    texts = [f"{way[0]} {median:.3g} µs" for way, median in zip(ways, medians, strict=True)]
    return _row(name, texts[0], texts[1], medians[0] / medians[1])


def _odd_shapes(n_samples: int, repetitions: int, progress: Progress) -> list[dict[str, Any]]:
    """Coding of shapes that no kernel is made for against one that has its own, per atom."""
    images = included_images()
    shapes = {"8 × 8": ((8, 8), (16, 16)), "9 × 9": ((9, 9), (15, 15)), "7 × 9": ((7, 9), (15, 17))}
    runs, atoms = {}, {}
    for name, (patch, n_atoms) in shapes.items():
        samples = sampled_patches(images, patch, n_samples)
        dictionary = perturbed_dct(patch, n_atoms)
        atoms[name] = dictionary.n_codes
        runs[name] = lambda samples=samples, d=dictionary: kl.sparse_code(samples, d, 6)
    found = in_turns(runs, repetitions, progress, "shapes")
    cost = {name: 1e9 * found[name][0] / n_samples / atoms[name] for name in runs}
    texts = {name: f"{name}, {atoms[name]} atoms: {cost[name]:.3g} ns" for name in runs}
    return [
        _row("coding per sample and atom", texts[name], texts["8 × 8"], cost[name] / cost["8 × 8"])
        for name in ("9 × 9", "7 × 9")
    ]


def _memory(n_samples: int) -> dict[str, Any]:
    name = f"memory for learning from {n_samples:,} patches of 8 × 8"
    above, data = measured_in_a_process(measure_memory, n_samples)
    if above is None:
        return _row(name, "not measured on this system", "", None)
    first, second = f"{above / 2**20:.0f} MiB beyond the data", f"data {data / 2**20:.0f} MiB"
    return _row(name, first, second, above / data)


def measure_memory(n_samples: int) -> tuple[int | None, int]:
    """Bytes that learning holds at most beyond its data, and of these; right once per process."""
    samples = np.empty((n_samples, 8, 8), np.float32)
    some = sampled_patches(included_images(), (8, 8), min(n_samples, 20_000))
    for start in range(0, n_samples, len(some)):
        samples[start : start + len(some)] = some[: n_samples - start]
    # Imports and thread pools are no part of what learning needs per sample.
    _fit(some[:256], {"max_iter": 1})
    return peak_above_start(lambda: _fit(samples, {"max_iter": 2})), samples.nbytes
