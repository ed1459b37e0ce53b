"""``kronlearn bench coding``: sparse coding, compared with SPAMS and scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.linear_model import orthogonal_mp_gram
from threadpoolctl import threadpool_limits

import kronlearn as kl
from kronlearn.experiments.data import images_in, perturbed_dct, sampled_patches
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.timing import Progress, benchmark, median_seconds, time_in_turns
from kronlearn.options import ImageFolder, Quick, Repetitions, parse_sizes

__all__ = ["CASES", "own_coder", "run"]

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
    # This shape has no kernel of its own.
    (9, 15, 6),
)

# Limits on the number of samples and of their entries. Slow coders get fewer samples, but at least
# _FEWEST_SAMPLES.
_MOST_SAMPLES, _QUICK_SAMPLES, _MOST_NUMBERS, _FEWEST_SAMPLES = 100_000, 20_000, 1 << 24, 200

# Takes a dictionary and the number of nonzeros, and returns the function that codes samples
# (N, m, m) as (N, n_codes). Only that function is timed, not a Gram matrix computed in advance.
MakeCoder = Callable[[kl.KroneckerDictionary, int], Callable[[NDArray[np.float32]], Any]]
# How many times fewer samples a coder gets than omp, since it is about as much slower; and the
# coder.
Coders = dict[str, tuple[int, MakeCoder]]


def _case(text: str) -> Case:
    """``8,16,6`` as (8, 16, 6)."""
    sizes = parse_sizes(text)
    if not isinstance(sizes, tuple) or len(sizes) != 3:
        raise typer.BadParameter(f"{text!r} is not a case; give three numbers m,n,s as in 8,16,6.")
    return sizes


def run(
    *,
    progress: Progress,
    images: ImageFolder = None,
    cases: Annotated[
        list[Any] | None,
        typer.Option(
            "--case",
            parser=_case,
            metavar="m,n,s",
            help="A case to measure: m × m patches, n × n atoms, s nonzeros; may be repeated.",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Also measure with this many threads.")
    ] = 1,
    repetitions: Repetitions = 5,
    quick: Quick = False,
) -> Report:
    """Time every coder on every case: µs per sample, the ratio to omp's time, and the error."""
    sources = images_in(images)
    coders: Coders = {}
    for count in dict.fromkeys((1, threads)):
        for method in ("omp", "ols"):
            name = method if count == 1 else f"{method}, {count} threads"
            coders[name] = (1, partial(own_coder, method, count))
    absent = ["SPAMS"] if find_spec("spams") is None else []
    coders |= {name: coder for name, coder in _OTHERS.items() if name not in absent}
    rows: list[dict[str, Any]] = []
    with threadpool_limits(limits=1):
        for case in cases or (CASES[:2] if quick else CASES):
            rows += _measured(case, sources, coders, 1 if quick else repetitions, quick, progress)
    notes = ["Float32; patches at random places, means removed."]
    notes += [f"{name} is not installed: left out." for name in absent]
    columns = "m n s coder samples µs:.3g times_omp:.3g rmse:.5f"
    table = Table.of("µs per sample; RMSE on the same samples", rows, columns)
    return benchmark([*notes, table], absent=absent, rows=rows)


def own_coder(method: str, n_jobs: int, dictionary: Any, s: int) -> Callable[..., Any]:
    """Make a function that codes samples by a method of this library."""
    return lambda samples: kl.sparse_code(samples, dictionary, s, method=method, n_jobs=n_jobs)


def _spams(dictionary: Any, s: int) -> Callable[..., Any]:
    """Make a function that codes samples by SPAMS' omp, which expects one sample per column."""
    omp = import_module("spams").omp
    atoms = np.asfortranarray(dictionary.to_dense())
    # Without eps, some builds of SPAMS return no nonzeros at all.
    options = {"L": s, "eps": 0.0, "numThreads": 1}
    return lambda samples: omp(samples.reshape(len(samples), -1).T, atoms, **options).T


def _scikit_learn(dictionary: Any, s: int) -> Callable[..., Any]:
    atoms = dictionary.to_dense()
    gram = atoms.T @ atoms

    def code(samples: NDArray[np.float32]) -> Any:
        correlations = atoms.T @ samples.reshape(len(samples), -1).T
        with warnings.catch_warnings():
            # scikit-learn warns of every constant patch, for which it finds no atoms.
            warnings.simplefilter("ignore", RuntimeWarning)
            return orthogonal_mp_gram(gram, correlations, n_nonzero_coefs=s).T

    return code


# SPAMS picks atoms as ols does, scikit-learn as omp does.
_OTHERS: Coders = {"SPAMS": (8, _spams), "scikit-learn": (400, _scikit_learn)}


def _measured(
    case: Case,
    sources: list[NDArray[np.float32]],
    coders: Coders,
    repetitions: int,
    quick: bool,
    progress: Progress,
) -> list[dict[str, Any]]:
    m, n, s = case
    dictionary = perturbed_dct((m, m), (n, n))
    most = _QUICK_SAMPLES if quick else _MOST_SAMPLES
    samples = sampled_patches(sources, (m, m), min(most, _MOST_NUMBERS // m**2))
    sizes = {k: max(_FEWEST_SAMPLES, len(samples) // slower) for k, (slower, _) in coders.items()}
    # All coders are judged on the samples that the slowest of them gets.
    common = samples[: min(sizes.values())]

    runs = {k: partial(make(dictionary, s), samples[: sizes[k]]) for k, (_, make) in coders.items()}
    title = f"{m} × {m}, {n} × {n} atoms, {s} nonzeros"
    rows: list[dict[str, Any]] = []
    timings = time_in_turns(
        runs, repetitions, progress, title, keep=lambda codes: codes[: len(common)]
    )
    for name, (seconds, results) in timings.items():
        # In float64 for all coders, whatever their own precision.
        residual = common - dictionary.reconstruct(results[-1].astype(np.float64))
        rmse = float(np.sqrt(np.mean(residual**2)))
        took = 1e6 * seconds / sizes[name]
        rows.append({"coder": name, "samples": sizes[name], "µs": took, "rmse": rmse})
    rows.append({"coder": "bound", "samples": None, "µs": _bound(*case), "rmse": None})
    at = {"m": m, "n": n, "s": s}
    return [{**at, **row, "times_omp": row["µs"] / rows[0]["µs"]} for row in rows]


def _bound(m: int, n: int, s: int) -> float:
    """Return the µs that the arithmetic of ``omp`` takes at the speed of a matrix product.

    Multiply-adds: ``n m² + n² m`` for the correlations and, at step k, k outer products of n²
    numbers; finding the largest of n² magnitudes counts as 1.5 operations each.
    """
    size = 512
    matrix = np.ones((size, size), np.float32)
    seconds = median_seconds(lambda: matrix @ matrix, 9)
    operations = n * m * m + n * n * m + n * n * s * (s - 1) / 2 + 1.5 * n * n * s
    return 1e6 * operations * seconds / size**3
