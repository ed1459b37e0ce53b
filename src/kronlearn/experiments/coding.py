"""``kronlearn bench coding``: sparse coding against SPAMS and scikit-learn, in one run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import kronlearn as kl
from kronlearn.experiments.data import (
    images_in,
    included_images,
    perturbed_dct,
    sampled_patches,
)
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.store import add_line
from kronlearn.experiments.timing import Progress, benchmark, in_turns, no_progress

__all__ = ["CASES", "run"]

Case = tuple[int, int, int]

#: Patches of m × m, n × n atoms, s nonzeros per code.
CASES: tuple[Case, ...] = (
    (8, 8, 6),
    (8, 16, 6),
    (8, 16, 8),
    (8, 8, 16),
    (16, 16, 8),
    (16, 32, 16),
    (32, 32, 8),
)

# A run takes about this long if its coder is as much slower than ours as is guessed below: long
# enough, also in a quick run, that starting it does not count.
_SECONDS, _QUICK_SECONDS = 0.5, 0.05
_FEWEST_SAMPLES, _MOST_SAMPLES, _MOST_NUMBERS = 200, 100_000, 1 << 24

# Makes, from a dictionary and the number of nonzeros, what codes samples (N, m, m) as (N, n_codes).
# Only what that does is timed: a Gram matrix that can be had beforehand is.
Coder = Callable[[kl.KroneckerDictionary, int], Callable[[NDArray[np.float32]], Any]]


def run(
    *,
    cases: Sequence[Case] = (),
    images: Path | None = None,
    threads: int = 1,
    repetitions: int = 5,
    csv: Path | None = None,
    quick: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Time every coder on every case: µs per sample, ratios and errors."""
    sources = included_images() if images is None else images_in(images)
    coders, absent = _coders(threads)
    rows = []
    with threadpool_limits(limits=1):
        for case in cases or (CASES[:2] if quick else CASES):
            row = _measured(case, sources, coders, 1 if quick else repetitions, quick, progress)
            rows.append({**row, "bound µs": _bound(*case)})
    if csv is not None:
        csv.unlink(missing_ok=True)
        for row in rows:
            add_line(csv, row)
    notes = ["One thread, float32; patches at random places, means removed."]
    notes += [f"{name} is not installed: left out." for name in absent]
    names = [name for name in coders if "threads" not in name]
    return benchmark([*notes, *_tables(rows, names, threads)], absent=absent, rows=rows)


def _coders(threads: int) -> tuple[dict[str, tuple[int, Coder]], list[str]]:
    """The coders that can run here, and the names of those that are not installed.

    With each its time per sample against ours, a guess, to choose how many samples to give it.
    """
    coders: dict[str, tuple[int, Coder]] = {}
    for count in dict.fromkeys((1, threads)):
        for method in ("omp", "ols"):
            name = method if count == 1 else f"{method}, {count} threads"
            coders[name] = (1, partial(_ours, method, count))
    others = {"SPAMS": ("spams", 8, _spams), "scikit-learn": ("sklearn", 400, _scikit_learn)}
    absent = [name for name, (module, *_) in others.items() if find_spec(module) is None]
    coders |= {name: (slow, c) for name, (_, slow, c) in others.items() if name not in absent}
    return coders, absent


def _ours(method: str, n_jobs: int, dictionary: Any, s: int) -> Callable[..., Any]:
    return lambda samples: kl.sparse_code(samples, dictionary, s, method=method, n_jobs=n_jobs)


def _spams(dictionary: Any, s: int) -> Callable[..., Any]:
    """SPAMS' omp, which picks atoms as ols does; it wants a sample per column."""
    omp = import_module("spams").omp
    atoms = np.asfortranarray(dictionary.to_dense())
    # Without eps, some builds of it return no nonzeros at all.
    options = {"L": s, "eps": 0.0, "numThreads": 1}
    return lambda samples: omp(samples.reshape(len(samples), -1).T, atoms, **options).T


def _scikit_learn(dictionary: Any, s: int) -> Callable[..., Any]:
    orthogonal_mp_gram = import_module("sklearn.linear_model").orthogonal_mp_gram
    atoms = dictionary.to_dense()
    gram = atoms.T @ atoms

    def code(samples: NDArray[np.float32]) -> Any:
        correlations = atoms.T @ samples.reshape(len(samples), -1).T
        with warnings.catch_warnings():
            # It warns of every constant patch that it finds no atoms for.
            warnings.simplefilter("ignore", RuntimeWarning)
            return orthogonal_mp_gram(gram, correlations, n_nonzero_coefs=s).T

    return code


def _measured(
    case: Case,
    sources: list[NDArray[np.float32]],
    coders: dict[str, tuple[int, Coder]],
    repetitions: int,
    quick: bool,
    progress: Progress,
) -> dict[str, Any]:
    m, n, s = case
    dictionary = perturbed_dct((m, m), (n, n))
    samples = sampled_patches(sources, (m, m), min(_MOST_SAMPLES, _MOST_NUMBERS // m**2))
    _, per_sample = (_seconds_per_sample(samples[:2000], dictionary, s) for _ in range(2))
    runs, shares = {}, {}
    for name, (slowness, coder) in coders.items():
        affordable = int((_QUICK_SECONDS if quick else _SECONDS) / (slowness * per_sample))
        shares[name] = samples[: max(_FEWEST_SAMPLES, affordable)]
        runs[name] = partial(coder(dictionary, s), shares[name])
    title = f"{m} × {m}, {n} × {n} atoms, {s} nonzeros"
    found = in_turns(runs, repetitions, progress, title)
    # Everybody's error on the same samples: those that the slowest coder was given.
    common = min(map(len, shares.values()))
    row: dict[str, Any] = {"m": m, "n": n, "s": s}
    for name, (seconds, codes) in found.items():
        row[f"{name} samples"] = len(shares[name])
        row[f"{name} µs"] = 1e6 * seconds / len(shares[name])
        # Computed in float64 for everybody, whatever a coder itself computes in.
        residual = samples[:common] - dictionary.reconstruct(codes[:common].astype(np.float64))
        row[f"{name} rmse"] = float(np.sqrt(np.mean(residual**2)))
    return row


def _seconds_per_sample(samples: NDArray[np.float32], dictionary: Any, s: int) -> float:
    start = time.perf_counter()
    kl.sparse_code(samples, dictionary, s)
    return (time.perf_counter() - start) / len(samples)


def _bound(m: int, n: int, s: int) -> float:
    """µs that the arithmetic of ``omp`` takes at the speed of this machine's matrix product.

    Multiply-adds: correlations ``n m² + n² m`` and, at step k, k outer products of n² numbers;
    finding the largest of n² magnitudes is counted as 1.5 operations each.
    """
    size = 512
    left, right = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    operations = n * m * m + n * n * m + n * n * s * (s - 1) / 2 + 1.5 * n * n * s
    return 1e6 * operations * min(times) / size**3


def _tables(rows: list[dict[str, Any]], names: list[str], threads: int) -> list[Table]:
    # SPAMS picks atoms as ols does, scikit-learn as omp does.
    pairs = [("SPAMS", "ols"), ("SPAMS", "omp"), ("scikit-learn", "omp"), ("bound", "omp")]
    pairs = [pair for pair in pairs if pair[0] in (*names, "bound")]
    tables = [_times("µs per sample", rows, [*names, "bound"], pairs)]
    if threads > 1:
        pairs = [(name, f"{name}, {threads} threads") for name in ("omp", "ols")]
        several = [name for pair in pairs for name in pair]
        tables.append(_times("µs per sample, threads", rows, several, pairs))
    errors = [[*_case(row), *(f"{row[f'{name} rmse']:.5f}" for name in names)] for row in rows]
    return [*tables, Table("RMSE on the same samples", [*"mns", *names], errors)]


def _times(
    title: str, rows: list[dict[str, Any]], names: list[str], pairs: list[tuple[str, str]]
) -> Table:
    """Times by coder, and ratios of times."""
    cells = []
    for row in rows:
        times = [row[f"{name} µs"] for name in names]
        times += [row[f"{a} µs"] / row[f"{b} µs"] for a, b in pairs]
        cells.append([*_case(row), *(f"{time:.3g}" for time in times)])
    return Table(title, [*"mns", *names, *(f"{a} / {b}" for a, b in pairs)], cells)


def _case(row: dict[str, Any]) -> list[str]:
    return [str(row[name]) for name in "mns"]
