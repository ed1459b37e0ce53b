"""Table III of the paper: denoising five images at five noise levels.

The paper's settings are 8 × 8 patches, N = 4000 of them to learn from with s = 6, all overlapping
patches coded by OMP to a residual of 1.15 σ √64 with at most 32 atoms, and a plain average.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.engines.workers import Workers
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.images.aggregation import Averager
from kronlearn.images.denoising import denoise
from kronlearn.images.dictionaries import draw_patches
from kronlearn.reproduce.published import IMAGES, SIGMAS
from kronlearn.reproduce.results import append_row, read_rows

__all__ = ["METHODS", "Cell", "Result", "cells", "read_results", "run"]

#: What is run on every noisy image. "general" and "orthonormal" are the paper's two methods with
#: its settings; "swapped" is "general" from a random start, denoised with its two factors
#: exchanged, the slip that explains the paper's row; "default" is denoise() as it is.
METHODS = ("general", "orthonormal", "swapped", "default")

_PATCH = (8, 8)
_SAMPLES = 4000
_SPARSITY = 6
_ITERATIONS = 50
_GAIN = 1.15
_MOST_NONZEROS = 32


@dataclass(frozen=True)
class Cell:
    """One run: an image, a noise level, a draw of the noise and a method."""

    image: str
    sigma: int
    draw: int
    method: str


@dataclass(frozen=True)
class Result(Cell):
    """What came of a run on pixels with a checksum; ``seconds`` counts learning and denoising."""

    checksum: int
    psnr: float
    ssim: float
    seconds: float


def cells(images: Iterable[str] = IMAGES, draws: int = 5) -> list[Cell]:
    """All runs of the table, those of one noisy image one after the other."""
    return [
        Cell(image, sigma, draw, method)
        for image in images
        for sigma in SIGMAS
        for draw in range(draws)
        for method in METHODS
    ]


def run(
    wanted: Iterable[Cell],
    load: Callable[[str], NDArray[np.float32]],
    file: Path,
    n_jobs: int | None = None,
) -> Iterator[Result]:
    """Results, each added to a csv file as soon as it is there.

    Runs whose results the file holds already, of the same pixels, are not repeated. ``load`` gives
    the clean image, grey levels 0 to 255, of a name.
    """
    done = {(_cell(r), r.checksum): r for r in read_results(file)} if file.exists() else {}
    clean: dict[str, NDArray[np.float32]] = {}
    for cell in wanted:
        if cell.image not in clean:
            clean = {cell.image: load(cell.image)}
        checksum = zlib.crc32(clean[cell.image].tobytes())
        if (cell, checksum) in done:
            yield done[cell, checksum]
            continue
        result = _run(cell, clean[cell.image], checksum, resolve_n_jobs(n_jobs))
        _append(file, result)
        yield result


def _cell(result: Result) -> Cell:
    return Cell(result.image, result.sigma, result.draw, result.method)


def _run(cell: Cell, clean: NDArray[np.float32], checksum: int, n_threads: int) -> Result:
    noise = np.random.default_rng([cell.sigma, cell.draw]).standard_normal(clean.shape)
    noisy = (clean + cell.sigma * noise).astype(np.float32)
    start = time.perf_counter()
    if cell.method == "default":
        result = denoise(noisy, cell.sigma, random_state=cell.draw, n_jobs=n_threads)
    else:
        result = _by_the_paper(noisy, cell, n_threads)
    seconds = time.perf_counter() - start
    psnr, ssim = _quality(result, clean)
    return Result(**asdict(cell), checksum=checksum, psnr=psnr, ssim=ssim, seconds=seconds)


def _quality(image: NDArray[Any], clean: NDArray[Any]) -> tuple[float, float]:
    """PSNR, and SSIM with its original Gaussian window, for grey levels 0 to 255."""
    return (
        float(peak_signal_noise_ratio(clean, image, data_range=255)),
        float(
            structural_similarity(
                clean,
                image,
                data_range=255,
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
            )
        ),
    )


def _by_the_paper(noisy: NDArray[np.float32], cell: Cell, n_threads: int) -> NDArray[np.float32]:
    orthonormal = cell.method == "orthonormal"
    samples = draw_patches(noisy[None], _PATCH, _SAMPLES, np.random.default_rng(cell.draw))
    model = KroneckerDictionaryLearning(
        _PATCH if orthonormal else (16, 16),
        n_nonzero_coefs=_SPARSITY,
        structure="orthonormal" if orthonormal else "general",
        method="omp" if cell.method == "swapped" else "ols",
        init="random" if cell.method == "swapped" else "dct",
        max_iter=_ITERATIONS,
        random_state=cell.draw,
        n_jobs=n_threads,
    ).fit(samples)
    factors = model.factors_[::-1] if cell.method == "swapped" else model.factors_
    return Averager(_PATCH, (1, 1), Workers(n_threads)).code(
        noisy,
        factors,
        method="threshold" if orthonormal else "omp",
        width=_MOST_NONZEROS,
        tol=_GAIN * cell.sigma * math.sqrt(math.prod(_PATCH)),
        favour_sparse=False,
    )


_COLUMNS = [field.name for field in fields(Result)]


def _append(file: Path, result: Result) -> None:
    values = asdict(result).values()
    append_row(file, _COLUMNS, (f"{v:.4f}" if isinstance(v, float) else v for v in values))


def read_results(file: Path) -> list[Result]:
    """The results in a csv file that :func:`run` wrote."""
    return read_rows(file, _COLUMNS, _parsed)


def _parsed(row: list[str]) -> Result:
    image, sigma, draw, method, checksum, *numbers = row
    psnr, ssim, seconds = map(float, numbers)
    return Result(image, int(sigma), int(draw), method, int(checksum), psnr, ssim, seconds)
