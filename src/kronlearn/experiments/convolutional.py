"""``kronlearn bench convolutional``: convolutional coding and learning against SPORCO."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import oaconvolve
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
from kronlearn.experiments.timing import Progress, benchmark, timed

__all__ = ["run"]

# Filters of 11 × 11 for images in 0 … 1; about 0.5 % of the coefficients are not zero then.
_LENGTH, _PENALTY = 11, 0.01
# SPORCO's objective is computed after so many more iterations; it stops when it reaches ours.
_LOOKS = (20, 20, 20, 20, 20, 50, 50)

Image = NDArray[np.float32]
Row = dict[str, Any]


def run(
    *,
    progress: Progress,
    images: Path | None = None,
    iterations: int = 30,
    threads: int = 2,
    quick: bool = False,
) -> Report:
    """Time coding with given filters and learning them, on two images without their smooth part."""
    size, n = (64, 4) if quick else (256, 8)
    iterations = 3 if quick else iterations
    photos = [image[:size, :size] / 255 for image in images_in(images) if min(image.shape) >= size]
    details = [(photo - lowpass(photo)).astype(np.float32) for photo in photos[:2]]
    absent = "SPORCO is not installed: left out." if find_spec("sporco") is None else ""
    absent = "SPORCO takes minutes: left out of a quick run." if quick else absent
    with progress("Convolutional coding and learning", 5) as advance, threadpool_limits(threads):
        coding = _coding(details[0], n, threads, not absent)
        advance()
        learning = []
        for structure in ("kronecker", "separable", "dense"):
            learning.append(_learning(details, n, structure, iterations, threads))
            advance()
        if not absent:
            learning.append(_sporco_learning(details, n, iterations, threads))
        advance()
    for row in learning:
        row["relative"] = row["objective"] / learning[2]["objective"]
    notes = [
        f"{n * n} filters of {_LENGTH} × {_LENGTH}, penalty {_PENALTY}, {threads} threads. SPORCO, "
        "too, codes with the pixels around the image unknown (ConvBPDNMaskDcpl); it learns with "
        "the edges joined. Objectives are computed in the same way for all; learned filters are "
        "compared by coding with them.",
        *filter(None, [absent]),
    ]
    columns = "seconds:.3g objective:.4f"
    tables = [
        Table.of("Coding one image", coding, f"coder tol {columns} nonzeros:.4f"),
        Table.of(
            "Learning from two images",
            learning,
            f"filters numbers {columns} relative:.3f nonzeros:.4f",
        ),
    ]
    return benchmark([*notes, *tables], coding=coding, learning=learning)


def _scores(image: Image, maps: NDArray[Any], dictionary: ConvolutionalDictionary) -> Row:
    """The objective, in float64, and the share of the coefficients that are not zero."""
    maps = maps.astype(np.float64)
    found = sum(
        oaconvolve(x, d, mode="valid") for x, d in zip(maps, dictionary.filters, strict=True)
    )
    objective = np.sum((image - found) ** 2) / 2 + _PENALTY * np.abs(maps).sum()
    share = np.count_nonzero(maps) / (len(maps) * image.size)
    return {"objective": float(objective), "nonzeros": share}


def _coding(image: Image, n: int, threads: int, has_sporco: bool) -> list[Row]:
    rng = np.random.default_rng(0)
    factors = [
        dct_factor(_LENGTH, n) + 0.3 * rng.standard_normal((_LENGTH, n)) / np.sqrt(_LENGTH)
        for _ in range(2)
    ]
    dictionary = ConvolutionalDictionary(factors)
    rows = []
    for tol in (0.3, 0.1, 0.03):
        code = partial(convolutional_code, image, dictionary, _PENALTY, tol=tol, n_jobs=threads)
        seconds, maps = timed(code)
        scores = _scores(image, maps.toarray(), dictionary)
        rows.append({"coder": "kronlearn", "tol": tol, "seconds": seconds, **scores})
    if has_sporco:
        rows.append(_sporco_coding(image, dictionary, rows[1]["objective"], threads))
    return rows


def _sporco(module: str, threads: int) -> Any:
    """A module of SPORCO, with this number of threads for its Fourier transforms."""
    import_module("sporco.fft").__dict__["pyfftw_threads"] = threads
    return import_module(f"sporco.{module}")


def _sporco_coding(
    image: Image, dictionary: ConvolutionalDictionary, wanted: float, threads: int
) -> Row:
    """SPORCO's ADMM until its objective is ours, or 200 iterations are done."""
    solver = _sporco("admm.cbpdn", threads).ConvBPDNMaskDcpl
    # Its images wrap around: the margin before them, whose pixels are unknown, is enough.
    margin = ((_LENGTH - 1, 0),) * 2
    data, mask = np.pad(image, margin), np.pad(np.ones_like(image), margin)
    filters = np.moveaxis(dictionary.filters, 0, -1).astype(np.float32)
    options = {
        "Verbose": False,
        "RelStopTol": 1e-9,
        "rho": 50 * _PENALTY + 1,
        "AutoRho": {"Enabled": True},
        "DataType": np.float32,
    }
    row: Row = {"coder": "SPORCO", "tol": None, "seconds": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = solver(filters, data, _PENALTY, mask, solver.Options(options))
        for iterations in _LOOKS:
            problem.opt["MaxMainIter"] = iterations
            row["seconds"] += timed(problem.solve)[0]
            maps = np.moveaxis(np.squeeze(problem.block_sep1(problem.Y)), -1, 0)
            row |= _scores(image, maps, dictionary)
            if row["objective"] <= wanted:
                break
    return row


def _learning(
    images: Sequence[Image], n: int, structure: str, iterations: int, threads: int
) -> Row:
    model = SeparableConvolutionalLearning(
        (n, n),
        (_LENGTH, _LENGTH),
        structure=structure,
        penalty=_PENALTY,
        max_iter=iterations,
        min_improvement=0,
        random_state=0,
        n_jobs=threads,
    )
    seconds, _ = timed(partial(model.fit, images))
    return _judged(f"kronlearn, {structure}", seconds, images, model.dictionary_, threads)


def _sporco_learning(images: Sequence[Image], n: int, iterations: int, threads: int) -> Row:
    learner = _sporco("dictlrn.cbpdndl", threads).ConvBPDNDictLearn
    start = np.random.default_rng(0).standard_normal((_LENGTH, _LENGTH, n * n))
    options = learner.Options(
        {
            "Verbose": False,
            "MaxMainIter": iterations,
            "CBPDN": {"rho": 50 * _PENALTY + 0.5},
            "CCMOD": {"rho": 10.0},
        },
        dmethod="cns",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds, filters = timed(
            lambda: learner(
                start.astype(np.float32), np.stack(images, -1), _PENALTY, options, dmethod="cns"
            ).solve()
        )
    found = ConvolutionalDictionary([np.moveaxis(filters.squeeze(), -1, 0)], "dense")
    return _judged("SPORCO, dense", seconds, images, found, threads)


def _judged(
    name: str,
    seconds: float,
    images: Sequence[Image],
    dictionary: ConvolutionalDictionary,
    threads: int,
) -> Row:
    """A row of the table of learned filters: the lowest objective with them, of all images."""
    maps = convolutional_code(images, dictionary, _PENALTY, tol=0.1, n_jobs=threads)
    pairs = zip(images, maps, strict=True)
    scores = [_scores(image, each.toarray(), dictionary) for image, each in pairs]
    return {
        "filters": name,
        "numbers": dictionary.n_numbers,
        "seconds": seconds,
        "objective": sum(each["objective"] for each in scores),
        "nonzeros": float(np.mean([each["nonzeros"] for each in scores])),
    }
