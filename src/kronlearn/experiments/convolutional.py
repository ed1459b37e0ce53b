"""``kronlearn bench convolutional``: convolutional coding and learning, compared with SPORCO."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import typer
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
from kronlearn.experiments.timing import (
    Progress,
    benchmark,
    measured_in_a_process,
    peak_above_start,
    timed,
)
from kronlearn.options import ImageFolder, Quick

__all__ = ["run"]

# The length of filters along each axis.
_LENGTH = 11
# SPORCO's objective is computed after each of these numbers of iterations, until it reaches ours.
_ITERATIONS_AT_ONCE = (20, 20, 20, 20, 20, 50, 50)

Image = NDArray[np.float32]
Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Filters per axis, weight of the ℓ1 norm, learning iterations and threads."""

    n: int
    penalty: float
    iterations: int
    threads: int


def run(
    *,
    progress: Progress,
    images: ImageFolder = None,
    size: Annotated[
        int, typer.Option(min=64, metavar="N", help="Number of rows and columns of the images.")
    ] = 256,
    penalty: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help="Weight of the ℓ1 norm, for pixels from 0 to 1; 0.01 leaves about 0.5 % nonzeros, "
            "0.003 about 1 %.",
        ),
    ] = 0.01,
    iterations: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of learning iterations.")
    ] = 30,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Number of threads.")] = 2,
    quick: Quick = False,
) -> Report:
    """Time coding with given filters and learning them, on the high frequencies of two images."""
    size = 64 if quick else size
    settings = Settings(4 if quick else 8, penalty, 3 if quick else iterations, threads)
    photos = [image[:size, :size] / 255 for image in images_in(images) if min(image.shape) >= size]
    details = [(photo - lowpass(photo)).astype(np.float32) for photo in photos[:2]]
    notes = [
        f"{settings.n**2} filters of {_LENGTH} × {_LENGTH}, {size} × {size} pixels from 0 to 1, "
        f"penalty {penalty:g}, {threads} threads. Like kronlearn, SPORCO codes with unknown pixels "
        "around the image (ConvBPDNMaskDcpl), but learns from images that wrap around. Objectives "
        "are computed in the same way for both; learned filters are compared by coding with them.",
    ]
    learners: dict[str, Callable[..., tuple[float, ConvolutionalDictionary]]] = {
        f"kronlearn, {structure}": partial(_learn, structure)
        for structure in ("kronecker", "separable", "dense")
    }
    has_sporco = find_spec("sporco") is not None and not quick
    if has_sporco:
        learners["SPORCO, dense"] = _learn_by_sporco
    else:
        reason = "takes minutes: left out of a quick run" if quick else "is not installed: left out"
        notes.append(f"SPORCO {reason}.")
    title = "Convolutional coding and learning"
    with progress(title, 1 + len(learners)) as advance, threadpool_limits(threads):
        coding = _coding(details[0], settings, has_sporco)
        advance()
        learning = []
        for name, learn in learners.items():
            seconds, dictionary = learn(details, settings)
            learning.append(_judged(name, seconds, details, dictionary, settings))
            advance()
    for row in learning:
        row["relative"] = row["objective"] / learning[2]["objective"]
    columns = "seconds:.3g objective:.4f"
    tables = [
        Table.of("Coding one image", coding, f"coder tol {columns} nonzeros:.4f megabytes:.3g"),
        Table.of(
            "Learning from two images",
            learning,
            f"filters numbers {columns} relative:.3f nonzeros:.4f",
        ),
    ]
    return benchmark([*notes, *tables], coding=coding, learning=learning)


def _scores(
    image: Image, maps: NDArray[Any], dictionary: ConvolutionalDictionary, penalty: float
) -> Row:
    """Return the objective, in float64, and the fraction of nonzero coefficients."""
    maps = maps.astype(np.float64)
    approximation = sum(
        oaconvolve(x, d, mode="valid") for x, d in zip(maps, dictionary.filters, strict=True)
    )
    objective = np.sum((image - approximation) ** 2) / 2 + penalty * np.abs(maps).sum()
    share = np.count_nonzero(maps) / (len(maps) * image.size)
    return {"objective": float(objective), "nonzeros": share}


def _coding(image: Image, settings: Settings, has_sporco: bool) -> list[Row]:
    """Code an image with perturbed DCT filters, to several tolerances."""
    n, penalty = settings.n, settings.penalty
    rng = np.random.default_rng(0)
    factors = [
        dct_factor(_LENGTH, n) + 0.3 * rng.standard_normal((_LENGTH, n)) / np.sqrt(_LENGTH)
        for _ in range(2)
    ]
    dictionary = ConvolutionalDictionary(factors)
    rows = []
    for tol in (0.3, 0.1, 0.03):
        code = partial(convolutional_code, image, dictionary, penalty, n_jobs=settings.threads)
        seconds, maps = timed(partial(code, tol=tol))
        scores = _scores(image, maps.toarray(), dictionary, penalty)
        rows.append({"coder": "kronlearn", "tol": tol, "seconds": seconds, **scores})
    if has_sporco:
        rows.append(_code_by_sporco(image, dictionary, settings, rows[1]["objective"]))
    for row in rows:
        task = row["coder"], image, dictionary, settings
        row["megabytes"] = measured_in_a_process(coding_memory, *task)
    return rows


def coding_memory(
    coder: str, image: Image, dictionary: ConvolutionalDictionary, settings: Settings
) -> float | None:
    """Return the megabytes that coding an image needs; valid once per process."""
    if coder == "SPORCO":
        one_thread = replace(settings, threads=1)
        # Imported first, so that its modules do not count.
        _sporco("admm.cbpdn", 1)
        peak = peak_above_start(lambda: _sporco_problem(image, dictionary, one_thread).solve())
    else:
        code = partial(convolutional_code, image, dictionary, settings.penalty, tol=0.1)
        peak = peak_above_start(code)
    return None if peak is None else peak / 1e6


def _sporco(module: str, threads: int) -> Any:
    """Import a module of SPORCO; set the number of threads of its Fourier transforms."""
    import_module("sporco.fft").__dict__["pyfftw_threads"] = threads
    return import_module(f"sporco.{module}")


def _code_by_sporco(
    image: Image, dictionary: ConvolutionalDictionary, settings: Settings, wanted: float
) -> Row:
    """Run SPORCO's ADMM until its objective is at most ``wanted``, for 200 iterations at most."""
    row: Row = {"coder": "SPORCO", "tol": None, "seconds": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = _sporco_problem(image, dictionary, settings)
        for iterations in _ITERATIONS_AT_ONCE:
            problem.opt["MaxMainIter"] = iterations
            row["seconds"] += timed(problem.solve)[0]
            maps = np.moveaxis(np.squeeze(problem.block_sep1(problem.Y)), -1, 0)
            row |= _scores(image, maps, dictionary, settings.penalty)
            if row["objective"] <= wanted:
                break
    return row


def _sporco_problem(image: Image, dictionary: ConvolutionalDictionary, settings: Settings) -> Any:
    """Set up coding with unknown pixels around the image."""
    solver = _sporco("admm.cbpdn", settings.threads).ConvBPDNMaskDcpl
    # SPORCO's images wrap around, so a margin of unknown pixels on one side is enough.
    margin = ((_LENGTH - 1, 0),) * 2
    data, mask = np.pad(image, margin), np.pad(np.ones_like(image), margin)
    filters = np.moveaxis(dictionary.filters, 0, -1).astype(np.float32)
    options = {
        "Verbose": False,
        "MaxMainIter": 1,
        "RelStopTol": 1e-9,
        "rho": 50 * settings.penalty + 1,
        "AutoRho": {"Enabled": True},
        "DataType": np.float32,
    }
    return solver(filters, data, settings.penalty, mask, solver.Options(options))


def _learn(
    structure: str, images: Sequence[Image], settings: Settings
) -> tuple[float, ConvolutionalDictionary]:
    """Learn filters of a structure; return the seconds that it took, and the filters."""
    model = SeparableConvolutionalLearning(
        (settings.n, settings.n),
        (_LENGTH, _LENGTH),
        structure=structure,
        penalty=settings.penalty,
        max_iter=settings.iterations,
        min_improvement=0,
        random_state=0,
        n_jobs=settings.threads,
    )
    seconds, _ = timed(partial(model.fit, images))
    return seconds, model.dictionary_


def _learn_by_sporco(
    images: Sequence[Image], settings: Settings
) -> tuple[float, ConvolutionalDictionary]:
    """Learn filters by SPORCO; return the seconds that it took, and the filters."""
    learner = _sporco("dictlrn.cbpdndl", settings.threads).ConvBPDNDictLearn
    start = np.random.default_rng(0).standard_normal((_LENGTH, _LENGTH, settings.n**2))
    options = learner.Options(
        {
            "Verbose": False,
            "MaxMainIter": settings.iterations,
            "CBPDN": {"rho": 50 * settings.penalty + 0.5},
            "CCMOD": {"rho": 10.0},
        },
        dmethod="cns",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = start.astype(np.float32), np.stack(images, -1), settings.penalty
        seconds, filters = timed(lambda: learner(*data, options, dmethod="cns").solve())
    return seconds, ConvolutionalDictionary([np.moveaxis(filters.squeeze(), -1, 0)], "dense")


def _judged(
    name: str,
    seconds: float,
    images: Sequence[Image],
    dictionary: ConvolutionalDictionary,
    settings: Settings,
) -> Row:
    """Code all images with learned filters; return the row of the table."""
    penalty = settings.penalty
    codes = convolutional_code(images, dictionary, penalty, tol=0.1, n_jobs=settings.threads)
    pairs = zip(images, codes, strict=True)
    scores = [_scores(image, maps.toarray(), dictionary, penalty) for image, maps in pairs]
    return {
        "filters": name,
        "numbers": dictionary.n_numbers,
        "seconds": seconds,
        "objective": sum(score["objective"] for score in scores),
        "nonzeros": float(np.mean([score["nonzeros"] for score in scores])),
    }
