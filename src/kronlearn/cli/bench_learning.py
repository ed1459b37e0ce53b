"""``kronlearn bench learning``: what an iteration costs, and how much memory a million patches."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import kronlearn as kl
from kronlearn.cli import patches
from kronlearn.cli.bench_coding import perturbed_dct
from kronlearn.cli.memory import measured_in_a_process, peak_above_start
from kronlearn.cli.output import Output
from kronlearn.cli.timing import interleaved, machine

__all__ = ["measure_memory", "run"]

_GENERAL = {"n_atoms": (16, 16), "n_nonzero_coefs": 6, "random_state": 0, "n_jobs": 1}


def run(quick: bool, output: Output) -> None:
    """Print ratios, each taken from runs that took turns."""
    n_samples, n_iter = (2000, 3) if quick else (100_000, 8)
    repetitions = 1 if quick else 3
    samples = patches.sampled_patches(patches.included_images(), (8, 8), n_samples)
    output.say(", ".join(f"{name} {value}" for name, value in machine().items()))
    rows = [
        _against_coding(samples, n_iter, "omp", output),
        _against_coding(samples, n_iter, "ols", output),
    ]

    def compare(name: str, first: tuple[str, Any, Any], second: tuple[str, Any, Any]) -> None:
        rows.append(_compared(name, first, second, repetitions, output))

    compare(
        "float64 against float32",
        ("float64", samples.astype(np.float64), {}),
        ("float32", samples, {}),
    )
    compare("1 thread against 2", ("1 thread", samples, {}), ("2 threads", samples, {"n_jobs": 2}))
    square = {"n_atoms": (8, 8)}
    compare(
        "general against orthonormal, 8 × 8 atoms",
        ("general", samples, square),
        ("orthonormal", samples, {**square, "structure": "orthonormal"}),
    )
    rows += _odd_shapes(n_samples, repetitions, output)
    rows.append(_memory(20_000 if quick else 1_000_000))
    output.say(_table(rows))
    output.finish({"machine": machine(), "samples": n_samples, "rows": rows})


def _row(name: str, first: str, second: str, ratio: float | None) -> dict[str, Any]:
    return {"measure": name, "first": first, "second": second, "ratio": ratio}


def _against_coding(
    samples: NDArray[Any], n_iter: int, method: str, output: Output
) -> dict[str, Any]:
    """An iteration of learning against coding alone, with the same factors, in turns."""
    iterations: list[float] = []
    codings: list[float] = []
    name = f"iteration with {method} against its coding alone"
    with output.progress(name, n_iter + 1) as advance:
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
    iteration, coding = statistics.median(iterations[1:]), statistics.median(codings[1:])
    per_sample = 1e6 / len(samples)
    first = f"iteration {iteration * per_sample:.3g} µs"
    second = f"coding {coding * per_sample:.3g} µs"
    return _row(name, first, second, iteration / coding)


def _fit(samples: NDArray[Any], parameters: dict[str, Any]) -> Any:
    return kl.KroneckerDictionaryLearning(**{**_GENERAL, **parameters}).fit(samples)


def _compared(
    name: str,
    first: tuple[str, NDArray[Any], dict[str, Any]],
    second: tuple[str, NDArray[Any], dict[str, Any]],
    repetitions: int,
    output: Output,
) -> dict[str, Any]:
    """An iteration of learning in one way against another, in turns."""
    iterations: dict[str, list[float]] = {first[0]: [], second[0]: []}
    with output.progress(name, 2 * repetitions) as advance:
        for _ in range(repetitions):
            for label, samples, parameters in (first, second):
                model = _fit(samples, {**parameters, "max_iter": 12})
                # The first iterations set up buffers, and threads find their processors.
                iterations[label] += np.diff(model.history_["seconds"])[5:].tolist()
                advance()
    seconds = {label: statistics.median(times) for label, times in iterations.items()}
    per_sample = 1e6 / len(first[1])
    texts = [f"{label} {value * per_sample:.3g} µs" for label, value in seconds.items()]
    return _row(name, texts[0], texts[1], seconds[first[0]] / seconds[second[0]])


def _odd_shapes(n_samples: int, repetitions: int, output: Output) -> list[dict[str, Any]]:
    """Coding of shapes that no kernel is made for against one that has its own, per atom."""
    images = patches.included_images()
    shapes = {"8 × 8": ((8, 8), (16, 16)), "9 × 9": ((9, 9), (15, 15)), "7 × 9": ((7, 9), (15, 17))}
    runs, atoms = {}, {}
    for name, (patch, n_atoms) in shapes.items():
        samples = patches.sampled_patches(images, patch, n_samples)
        dictionary = perturbed_dct(patch, n_atoms)
        atoms[name] = dictionary.n_codes
        runs[name] = lambda samples=samples, d=dictionary: kl.sparse_code(samples, d, 6)
    seconds = interleaved(runs, repetitions, output, "shapes")
    cost = {name: 1e9 * seconds[name] / n_samples / atoms[name] for name in runs}
    texts = {name: f"{name}, {atoms[name]} atoms: {cost[name]:.3g} ns" for name in runs}
    return [
        _row("coding per sample and atom", texts[name], texts["8 × 8"], cost[name] / cost["8 × 8"])
        for name in ("9 × 9", "7 × 9")
    ]


def _memory(n_samples: int) -> dict[str, Any]:
    name = f"memory for learning from {n_samples:,} patches of 8 × 8"
    sizes = measured_in_a_process("kronlearn.cli.bench_learning", "measure_memory", n_samples)
    if sizes is None:
        return _row(name, "not measured on this system", "", None)
    above, data = sizes["peak above data"], sizes["data"]
    first, second = f"{above / 2**20:.0f} MiB beyond the data", f"data {data / 2**20:.0f} MiB"
    return _row(name, first, second, above / data)


def measure_memory(n_samples: int) -> None:
    """Print, as JSON, what learning needs at most beyond its data; for a process of its own."""
    samples = np.empty((n_samples, 8, 8), np.float32)
    some = patches.sampled_patches(patches.included_images(), (8, 8), min(n_samples, 20_000))
    for start in range(0, n_samples, len(some)):
        samples[start : start + len(some)] = some[: n_samples - start]
    # Imports and thread pools are no part of what learning needs per sample.
    _fit(some[:256], {"max_iter": 1})
    peak = peak_above_start(lambda: _fit(samples, {"max_iter": 2}))
    print(json.dumps({"data": samples.nbytes, "peak above data": peak}))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Learning (times per sample and iteration)", title_justify="left")
    table.add_column("measure")
    for heading in ("first", "second"):
        table.add_column(heading)
    table.add_column("ratio", justify="right")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["measure"], row["first"], row["second"], ratio)
    return table
