"""``kronlearn bench coding``: sparse coding against SPAMS and scikit-learn, in one run."""

from __future__ import annotations

import csv
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import kronlearn as kl
from kronlearn.cli import patches
from kronlearn.cli.output import Output
from kronlearn.cli.timing import interleaved, machine
from kronlearn.core.init import dct_factor

__all__ = ["CASES", "perturbed_dct", "run"]

#: Patches of m × m, n × n atoms, s nonzeros per code.
CASES = (
    (8, 8, 6),
    (8, 16, 6),
    (8, 16, 8),
    (8, 8, 16),
    (16, 16, 8),
    (16, 32, 16),
    (32, 32, 8),
)

# A run takes about this long if its coder is as much slower than ours as is guessed below.
_SECONDS_PER_RUN = 0.5
_MAX_SAMPLES = 100_000
_MAX_NUMBERS = 1 << 24

Code = Callable[[NDArray[np.float32]], Any]


@dataclass(frozen=True)
class Coder:
    """A sparse coder under test."""

    name: str
    #: Time per sample against kronlearn's, a guess, to choose how many samples to give it.
    slowness: int
    #: From a dictionary and the number of nonzeros, what codes samples (N, m, m) as (N, n_codes).
    #: Only what that does is timed: a Gram matrix that can be had beforehand is.
    prepare: Callable[[Any, int], Code]


def run(
    cases: list[tuple[int, int, int]],
    images: Path | None,
    threads: int,
    repetitions: int,
    quick: bool,
    csv_path: Path | None,
    output: Output,
) -> None:
    """Time every coder on every case and print µs per sample, ratios and errors."""
    sources = patches.included_images() if images is None else patches.images_in(images)
    coders, absent = _coders(threads)
    output.say(", ".join(f"{name} {value}" for name, value in machine().items()))
    output.say("One thread, float32; patches at random places, means removed.")
    if quick:
        output.say("A quick run: too few samples for the times to mean much.")
    for name in absent:
        output.say(f"{name} is not installed: left out.")
    rows = []
    with _one_blas_thread():
        for case in cases:
            row = _measure(case, sources, coders, 1 if quick else repetitions, quick, output)
            rows.append({**row, "bound µs": _bound(*case)})
    for table in _tables(rows, coders, threads):
        output.say(table)
    if csv_path is not None:
        with open(csv_path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        output.say(f"Wrote {csv_path}")
    output.finish({"machine": machine(), "absent": absent, "rows": rows})


def _coders(threads: int) -> tuple[list[Coder], list[str]]:
    """The coders that can run here, and the names of those that are not installed."""
    coders = [Coder(method, 1, partial(_kronlearn, method, 1)) for method in ("omp", "ols")]
    if threads > 1:
        coders += [
            Coder(f"{method}, {threads} threads", 1, partial(_kronlearn, method, threads))
            for method in ("omp", "ols")
        ]
    competitors = {
        "spams": Coder("SPAMS", 8, _spams),
        "sklearn": Coder("scikit-learn", 400, _scikit_learn),
    }
    absent = [coder.name for module, coder in competitors.items() if find_spec(module) is None]
    return coders + [c for c in competitors.values() if c.name not in absent], absent


def _kronlearn(method: str, n_jobs: int, dictionary: Any, s: int) -> Code:
    return lambda samples: kl.sparse_code(samples, dictionary, s, method=method, n_jobs=n_jobs)


def _spams(dictionary: Any, s: int) -> Code:
    """SPAMS' omp, which picks atoms as ols does; it wants a sample per column."""
    omp = import_module("spams").omp
    atoms = np.asfortranarray(dictionary.to_dense())
    # Without eps, some builds of it return no nonzeros at all.
    options = {"L": s, "eps": 0.0, "numThreads": 1}
    return lambda samples: omp(samples.reshape(len(samples), -1).T, atoms, **options).T


def _scikit_learn(dictionary: Any, s: int) -> Code:
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


def _one_blas_thread() -> AbstractContextManager[Any]:
    """One thread for the competitors' matrix products too, where it can be asked for."""
    if find_spec("threadpoolctl") is None:
        return nullcontext()
    limits: AbstractContextManager[Any] = import_module("threadpoolctl").threadpool_limits(1)
    return limits


def _measure(
    case: tuple[int, int, int],
    sources: list[NDArray[np.float32]],
    coders: list[Coder],
    repetitions: int,
    quick: bool,
    output: Output,
) -> dict[str, Any]:
    m, n, s = case
    dictionary = perturbed_dct((m, m), (n, n))
    n_samples = 1000 if quick else min(_MAX_SAMPLES, _MAX_NUMBERS // m**2)
    samples = patches.sampled_patches(sources, (m, m), n_samples)
    per_sample = _probe(samples[:2000], dictionary, s)
    runs, shares = {}, {}
    for coder in coders:
        affordable = int(_SECONDS_PER_RUN / (coder.slowness * per_sample))
        share = samples[: 100 if quick else max(200, affordable)]
        shares[coder.name] = share
        runs[coder.name] = partial(coder.prepare(dictionary, s), share)
    title = f"{m} × {m}, {n} × {n} atoms, {s} nonzeros"
    seconds = interleaved(runs, repetitions, output, title)
    # Everybody's error on the same samples: those that the slowest coder was given.
    n_common = min(map(len, shares.values()))
    row: dict[str, Any] = {"m": m, "n": n, "s": s}
    for name, run_coder in runs.items():
        row[f"{name} samples"] = len(shares[name])
        row[f"{name} µs"] = 1e6 * seconds[name] / len(shares[name])
        row[f"{name} rmse"] = _rmse(samples[:n_common], dictionary, run_coder()[:n_common])
    return row


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


def _probe(samples: NDArray[np.float32], dictionary: Any, s: int) -> float:
    """Seconds per sample of our own coder, roughly."""
    kl.sparse_code(samples, dictionary, s)
    start = time.perf_counter()
    kl.sparse_code(samples, dictionary, s)
    return (time.perf_counter() - start) / len(samples)


def perturbed_dct(patch_shape: Sequence[int], n_atoms: Sequence[int]) -> Any:
    """Separable DCT factors plus 20 % noise, float32: unstructured, but fit for images."""
    rng = np.random.default_rng(0)
    factors = []
    for m, n in zip(patch_shape, n_atoms, strict=True):
        noise = rng.standard_normal((m, n)) / np.sqrt(m)
        factors.append((dct_factor(m, n) + 0.2 * noise).astype(np.float32))
    return kl.KroneckerDictionary.normalized(factors)


def _rmse(samples: NDArray[np.float32], dictionary: Any, codes: Any) -> float:
    """Computed in float64 for everybody, whatever a coder itself computes in."""
    residual = samples - dictionary.reconstruct(codes.astype(np.float64))
    return float(np.sqrt(np.mean(residual**2)))


def _tables(rows: list[dict[str, Any]], coders: list[Coder], threads: int) -> list[Table]:
    names = [coder.name for coder in coders if "threads" not in coder.name]
    # SPAMS picks atoms as ols does, scikit-learn as omp does.
    competitors = (("SPAMS", "ols"), ("SPAMS", "omp"), ("scikit-learn", "omp"))
    ratios = [(a, b) for a, b in competitors if a in names] + [("bound", "omp")]
    tables = [_table("µs per sample", rows, [*names, "bound"], ratios)]
    if threads > 1:
        several = {name: f"{name}, {threads} threads" for name in ("omp", "ols")}
        columns = [column for pair in several.items() for column in pair]
        tables.append(_table("µs per sample, threads", rows, columns, list(several.items())))
    errors = Table(title="RMSE on the same samples", title_justify="left")
    for heading in ("m, n, s", *names):
        errors.add_column(heading, justify="right")
    for row in rows:
        errors.add_row(_case(row), *(f"{row[f'{name} rmse']:.5f}" for name in names))
    return [*tables, errors]


def _table(
    title: str, rows: list[dict[str, Any]], names: list[str], ratios: list[tuple[str, str]]
) -> Table:
    """Times by coder, and ratios of times."""
    table = Table(title=title, title_justify="left")
    for heading in ("m, n, s", *names, *(f"{a} / {b}" for a, b in ratios)):
        table.add_column(heading, justify="right")
    for row in rows:
        micros = {name: row[f"{name} µs"] for name in {*names, *chain(*ratios)}}
        table.add_row(
            _case(row),
            *(
                f"{micros[name]:.3g}" if micros[name] < 1000 else f"{micros[name]:.0f}"
                for name in names
            ),
            *(f"{micros[a] / micros[b]:.3g}" for a, b in ratios),
        )
    return table


def _case(row: dict[str, Any]) -> str:
    return f"{row['m']}, {row['n']}, {row['s']}"
