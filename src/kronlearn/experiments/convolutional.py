"""``kronlearn bench convolutional``: convolutional coding and learning against SPORCO."""

from __future__ import annotations

import time
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from kronlearn.convolutional import (
    ConvolutionalDictionary,
    SeparableConvolutionalLearning,
    convolutional_code,
    lowpass,
)
from kronlearn.core.init import dct_factor
from kronlearn.experiments.data import images_in
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.timing import (
    Progress,
    benchmark,
    measured_in_a_process,
    peak_above_start,
)

__all__ = ["run"]

# Of filters along each axis.
_LENGTH = 11
# Iterations of SPORCO after which its objective is looked at; it stops when it reaches ours.
_LOOKS = (20, 20, 20, 20, 20, 50, 50)

Image = NDArray[np.float32]


def run(
    *,
    progress: Progress,
    images: Path | None = None,
    size: int = 256,
    penalty: float = 0.01,
    iterations: int = 30,
    threads: int = 2,
    quick: bool = False,
) -> Report:
    """Time coding with given filters and learning them, on two images without their smooth part."""
    n = 8
    if quick:
        size, n, iterations = 64, 4, 3
    photos = [image[:size, :size] / 255 for image in images_in(images) if min(image.shape) >= size]
    details = [(photo - lowpass(photo)).astype(np.float32) for photo in photos[:2]]
    has_sporco = find_spec("sporco") is not None
    with progress("Convolutional coding and learning", 5) as advance, threadpool_limits(threads):
        coding = _coding(details[0], n, penalty, threads, has_sporco)
        advance()
        rows = []
        for structure in ("kronecker", "separable", "dense"):
            rows.append(_learning(details, n, structure, penalty, iterations, threads))
            advance()
        if has_sporco:
            rows.append(_sporco_learning(details, n, penalty, iterations, threads))
        advance()
    for row in rows:
        row["relative"] = row["objective"] / rows[2]["objective"]
    notes = [
        f"{n * n} filters of {_LENGTH} × {_LENGTH}, {size} × {size} pixels from 0 to 1, penalty "
        f"{penalty:g}, {threads} threads. SPORCO codes with unknown pixels around the image, too "
        "(ConvBPDNMaskDcpl), and learns without. Objectives are computed in the same way for all; "
        "learned filters are compared by coding with them.",
        *([] if has_sporco else ["SPORCO is not installed: left out."]),
    ]
    tables = [
        Table.of(
            "Coding one image",
            coding,
            "coder tol seconds:.3g objective:.4f nonzeros:.4f megabytes:.3g",
        ),
        Table.of(
            "Learning from two images",
            rows,
            "filters numbers seconds:.3g objective:.4f relative:.3f nonzeros:.4f",
        ),
    ]
    return benchmark([*notes, *tables], coding=coding, learning=rows)


def _coding(
    image: Image, n: int, penalty: float, threads: int, has_sporco: bool
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    factors = [
        dct_factor(_LENGTH, n) + 0.3 * rng.standard_normal((_LENGTH, n)) / np.sqrt(_LENGTH)
        for _ in range(2)
    ]
    dictionary = ConvolutionalDictionary(factors)
    rows = []
    for tol in (0.3, 0.1, 0.03):
        start = time.perf_counter()
        maps = convolutional_code(image, dictionary, penalty, tol=tol, n_jobs=threads)
        seconds = time.perf_counter() - start
        found = maps.toarray()
        rows.append(_row("kronlearn", tol, seconds, image, found, dictionary, penalty))
    if has_sporco:
        rows.append(_sporco_coding(image, dictionary, penalty, rows[1]["objective"], threads))
    for row in rows:
        given = row["coder"], image, dictionary, penalty
        row["megabytes"] = measured_in_a_process(coding_memory, *given)
    return rows


def _sporco_coding(
    image: Image,
    dictionary: ConvolutionalDictionary,
    penalty: float,
    wanted: float,
    threads: int,
) -> dict[str, Any]:
    """SPORCO's ADMM until its objective is ours, or 200 iterations are done."""
    row, total = {}, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = _sporco_problem(image, dictionary, penalty, threads)
        for iterations in _LOOKS:
            problem.opt["MaxMainIter"] = iterations
            start = time.perf_counter()
            problem.solve()
            total += time.perf_counter() - start
            maps = np.moveaxis(np.squeeze(problem.block_sep1(problem.Y)), -1, 0)
            row = _row("SPORCO", None, total, image, maps, dictionary, penalty)
            if row["objective"] <= wanted:
                break
    return row


def _sporco_problem(
    image: Image, dictionary: ConvolutionalDictionary, penalty: float, threads: int
) -> Any:
    """Coding with unknown pixels around the image."""
    solver = import_module("sporco.admm.cbpdn").ConvBPDNMaskDcpl
    _use_threads(threads)
    shape = [size + _LENGTH - 1 for size in image.shape]
    data, mask = np.zeros((2, *shape), np.float32)
    inside = (slice(_LENGTH - 1, None),) * 2
    data[inside], mask[inside] = image, 1
    filters = np.moveaxis(dictionary.filters, 0, -1).astype(np.float32)
    options = {
        "Verbose": False,
        "MaxMainIter": 1,
        "RelStopTol": 1e-9,
        "rho": 50 * penalty + 1,
        "AutoRho": {"Enabled": True},
        "DataType": np.float32,
    }
    return solver(filters, data, penalty, mask, solver.Options(options))


def coding_memory(
    coder: str, image: Image, dictionary: ConvolutionalDictionary, penalty: float
) -> float | None:
    """Megabytes that coding an image takes beyond what the process has; once per process."""

    def work() -> None:
        if coder == "SPORCO":
            _sporco_problem(image, dictionary, penalty, 1).solve()
        else:
            convolutional_code(image, dictionary, penalty, tol=0.1)

    if coder == "SPORCO":
        import_module("sporco.admm.cbpdn")
    found = peak_above_start(work)
    return None if found is None else found / 1e6


def _row(
    coder: str,
    tol: float | None,
    seconds: float,
    image: Image,
    maps: NDArray[Any],
    dictionary: ConvolutionalDictionary,
    penalty: float,
) -> dict[str, Any]:
    """A row of the table of coders; the objective is computed with Fourier transforms."""
    inside = (slice(_LENGTH - 1, image.shape[0] + _LENGTH - 1),) * 2
    shape = [size + 2 * (_LENGTH - 1) for size in image.shape]
    total = np.zeros(shape)
    for x, d in zip(maps, dictionary.filters, strict=True):
        product = np.fft.rfft2(x.astype(np.float64), shape) * np.fft.rfft2(d, shape)
        total += np.fft.irfft2(product, shape)
    left = image - total[inside]
    objective = np.sum(left**2) / 2 + penalty * np.abs(maps.astype(np.float64)).sum()
    share = np.count_nonzero(maps) / (len(maps) * image.size)
    return {
        "coder": coder,
        "tol": tol,
        "seconds": seconds,
        "objective": float(objective),
        "nonzeros": share,
    }


def _learning(
    images: list[Image],
    n: int,
    structure: str,
    penalty: float,
    iterations: int,
    threads: int,
) -> dict[str, Any]:
    model = SeparableConvolutionalLearning(
        (n, n),
        (_LENGTH, _LENGTH),
        structure=structure,
        penalty=penalty,
        max_iter=iterations,
        min_improvement=0,
        random_state=0,
        n_jobs=threads,
    )
    start = time.perf_counter()
    model.fit(images)
    seconds = time.perf_counter() - start
    return _judged(f"kronlearn, {structure}", seconds, images, model.dictionary_, penalty, threads)


def _sporco_learning(
    images: list[Image], n: int, penalty: float, iterations: int, threads: int
) -> dict[str, Any]:
    learner = import_module("sporco.dictlrn.cbpdndl").ConvBPDNDictLearn
    _use_threads(threads)
    start = np.random.default_rng(0).standard_normal((_LENGTH, _LENGTH, n * n))
    options = learner.Options(
        {
            "Verbose": False,
            "MaxMainIter": iterations,
            "CBPDN": {"rho": 50 * penalty + 0.5},
            "CCMOD": {"rho": 10.0},
        },
        dmethod="cns",
    )
    data = np.stack(images, axis=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = time.perf_counter()
        model = learner(start.astype(np.float32), data, penalty, options, dmethod="cns")
        filters = model.solve().squeeze()
        seconds = time.perf_counter() - begun
    found = ConvolutionalDictionary([np.moveaxis(filters, -1, 0)], "dense")
    return _judged("SPORCO, dense", seconds, images, found, penalty, threads)


def _use_threads(threads: int) -> None:
    """SPORCO's Fourier transforms take this from a variable of its module."""
    sporco_fft: Any = import_module("sporco.fft")
    sporco_fft.pyfftw_threads = threads


def _judged(
    name: str,
    seconds: float,
    images: list[Image],
    dictionary: ConvolutionalDictionary,
    penalty: float,
    threads: int,
) -> dict[str, Any]:
    """A row of the table of learned filters: the lowest objective with them."""
    maps = convolutional_code(images, dictionary, penalty, tol=0.1, n_jobs=threads)
    rows = [
        _row(name, None, seconds, image, each.toarray(), dictionary, penalty)
        for image, each in zip(images, maps, strict=True)
    ]
    return {
        "filters": name,
        "numbers": dictionary.n_numbers,
        "seconds": seconds,
        "objective": sum(row["objective"] for row in rows),
        "nonzeros": float(np.mean([row["nonzeros"] for row in rows])),
    }
