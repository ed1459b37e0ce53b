"""``kronlearn bench cube``: two and three modes; denoising, compared with scikit-image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.restoration import denoise_tv_chambolle, denoise_wavelet, estimate_sigma
from threadpoolctl import threadpool_limits

from kronlearn.experiments.data import read_cube
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.timing import Progress, benchmark, compare_methods
from kronlearn.hyperspectral import compare, denoise, learn
from kronlearn.options import CubeFile, Quick, Repetitions

__all__ = ["run"]

# Standard deviations of the noise in all bands, and the range of those that differ between bands.
_SIGMAS, _UNEQUAL = (50.0, 100.0, 200.0, 400.0), (20.0, 300.0)
# Weights of total variation relative to the noise; the weight with the best PSNR counts.
_WEIGHTS = (0.5, 1.0, 2.0)
# Bands of patches with three modes, and nonzeros per band of a patch.
_BANDS, _NONZEROS = (4, 10), (1, 2)

Values = NDArray[np.float32]
Rows = list[dict[str, Any]]


def run(
    *,
    progress: Progress,
    cube: CubeFile = None,
    repetitions: Repetitions = 5,
    quick: Quick = False,
) -> Report:
    """Learn from a cube and denoise it, on one thread; Indian Pines by default."""
    values = read_cube(cube)
    if quick:
        values = values[:48, :48, :40]
    rng = np.random.default_rng(0)
    bands = values.shape[2]
    sigmas = _SIGMAS[1:2] if quick else _SIGMAS
    levels: dict[str, Any] = {f"{sigma:g}": np.full(bands, sigma) for sigma in sigmas}
    levels["{:g} to {:g}".format(*_UNEQUAL)] = rng.uniform(*_UNEQUAL, bands)
    denoised: Rows = []
    with threadpool_limits(limits=1):
        learned = _learning(values, 3 if quick else 30, progress)
        for name, level in levels.items():
            sigma = level.astype(np.float32)
            noisy = values + sigma * rng.standard_normal(values.shape, np.float32)
            rounds = 1 if quick else repetitions
            denoised += _denoising(name, values, noisy, sigma, rounds, progress)
    columns = "patch nonzeros nonzeros_per_64:g rmse:.1f seconds:.2f"
    scores = "added sigma method psnr:.2f angle:.3f ssim:.4f seconds:.3f"
    tables = [
        Table.of("Learning from a cube", learned, columns),
        Table.of("Denoising a cube, one thread: PSNR in dB, angle in °", denoised, scores),
    ]
    return benchmark(tables, learning=learned, denoising=denoised)


def _learning(cube: Values, max_iter: int, progress: Progress) -> Rows:
    """Compare patches with two and three modes and the same number of nonzeros per entry."""
    cases = [((8, 8, b)[: 2 + (b > 1)], s * b) for s in _NONZEROS for b in (1, *_BANDS)]
    rows: Rows = []
    with progress("Learning", len(cases)) as advance:
        for patch, nonzeros in cases:
            history = learn(
                cube, patch, patch, nonzeros, band_axis=2, max_iter=max_iter, random_state=0
            ).history_
            rows.append(
                {
                    "patch": list(patch),
                    "nonzeros": nonzeros,
                    "nonzeros_per_64": nonzeros * 64 / np.prod(patch),
                    "rmse": min(history["rmse"]),
                    "seconds": float(history["seconds"][-1]),
                }
            )
            advance()
    return rows


def _denoising(
    name: str, clean: Values, noisy: Values, sigma: Values, repetitions: int, progress: Progress
) -> Rows:
    def scores(result: Values) -> dict[str, Any]:
        quality = compare(clean, result)
        return {"psnr": quality.mean_psnr, "angle": quality.mean_angle, "ssim": quality.mean_ssim}

    rows: Rows = [{"added": name, "sigma": "", "method": "noisy", **scores(noisy), "seconds": None}]
    for source, known in (("known", sigma), ("estimated", None)):
        by_weight = [partial(_by_band, partial(_variation, w), noisy, known) for w in _WEIGHTS]
        methods = {
            "kronlearn": partial(denoise, noisy, known, band_axis=2, n_jobs=1),
            "wavelets": partial(_by_band, _wavelets, noisy, known),
            "total variation": max(by_weight, key=lambda run: scores(run())["psnr"]),
        }
        task = {"added": name, "sigma": source}
        rows += compare_methods(task, methods, scores, repetitions, progress)
    return rows


def _by_band(
    method: Callable[[Values, float | None], Values], noisy: Values, sigma: Values | None
) -> Values:
    """Denoise every band on its own; with no ``sigma``, the method estimates the noise."""
    result = np.empty_like(noisy)
    for band in range(noisy.shape[2]):
        image = np.ascontiguousarray(noisy[..., band])
        result[..., band] = method(image, None if sigma is None else float(sigma[band]))
    return result


def _wavelets(image: Values, sigma: float | None) -> Values:
    return np.asarray(denoise_wavelet(image, sigma=sigma), np.float32)


def _variation(weight: float, image: Values, sigma: float | None) -> Values:
    sigma = estimate_sigma(image) if sigma is None else sigma
    return np.asarray(denoise_tv_chambolle(image / sigma, weight=weight) * sigma, np.float32)
