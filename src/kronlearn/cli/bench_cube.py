"""``kronlearn bench cube``: learning with two and three modes, denoising beside scikit-image's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from skimage import restoration
from threadpoolctl import threadpool_limits

from kronlearn.cli.output import Output, times
from kronlearn.cli.timing import interleaved, machine
from kronlearn.hyperspectral import compare, denoise, learn
from kronlearn.io.cubes import open_cube

__all__ = ["indian_pines", "run"]

# Standard deviations of the noise, and those that it has from band to band, at random between.
_SIGMAS = (50.0, 100.0, 200.0, 400.0)
_UNEQUAL = (20.0, 300.0)
# Weights of total variation, in units of the noise; the best for the known cube counts.
_WEIGHTS = (0.5, 1.0, 2.0)
# Bands of the patches with three modes, and nonzeros for a patch of one band.
_BANDS = (4, 10)
_NONZEROS = (1, 2)

Values = NDArray[np.float32]
Rows = list[dict[str, Any]]


def run(path: Path | None, quick: bool, repetitions: int, output: Output) -> None:
    """Print both tables; everything runs on one thread."""
    output.say(", ".join(f"{name} {value}" for name, value in machine().items()))
    cube = indian_pines() if path is None else _read(path)
    if quick:
        cube = cube[:48, :48, :40]
    with threadpool_limits(limits=1):
        learned = _learning(cube, 3 if quick else 30, output)
        output.say(_learning_table(learned))
        denoised: Rows = []
        sigmas = _SIGMAS[1:2] if quick else _SIGMAS
        rng = np.random.default_rng(0)
        levels = {f"{s:g}": np.full(cube.shape[2], s, np.float32) for s in sigmas}
        low, high = _UNEQUAL
        unequal = np.asarray(rng.uniform(low, high, cube.shape[2]), np.float32)
        levels[f"{low:g} to {high:g}"] = unequal
        for name, sigma in levels.items():
            noise = rng.standard_normal(cube.shape, np.float32)
            denoised += _denoising(
                name, cube, cube + sigma * noise, sigma, 1 if quick else repetitions, output
            )
        output.say(_denoising_table(denoised))
    output.finish({"machine": machine(), "learning": learned, "denoising": denoised})


def indian_pines() -> Values:
    """The cube of 145 × 145 pixels and 200 bands in tensorly's wheel."""
    try:
        from tensorly.datasets import load_indian_pines
    except ImportError as problem:
        raise ValueError(
            "Indian Pines comes with tensorly, which is not installed: "
            "pip install 'kronlearn[bench]', or give --cube FILE."
        ) from problem
    return np.ascontiguousarray(load_indian_pines().tensor, np.float32)


def _read(path: Path) -> Values:
    cube = open_cube(path)
    return np.ascontiguousarray(cube.read_checked(slice(0, cube.shape[0]))[0], np.float32)


def _learning(cube: Values, max_iter: int, output: Output) -> Rows:
    """RMSE with two and three modes and as many nonzeros for as many entries."""
    cases = [((8, 8, b)[: 2 + (b > 1)], s * b) for s in _NONZEROS for b in (1, *_BANDS)]
    rows = []
    with output.progress("Learning", len(cases)) as advance:
        for patch, nonzeros in cases:
            model = learn(
                cube, patch, patch, nonzeros, band_axis=2, max_iter=max_iter, random_state=0
            )
            rows.append(
                {
                    "patch": patch,
                    "nonzeros": nonzeros,
                    "nonzeros_per_64": nonzeros * 64 / np.prod(patch),
                    "rmse": min(model.history_["rmse"]),
                    "seconds": float(model.history_["seconds"][-1]),
                }
            )
            advance()
    return rows


def _denoising(
    name: str, clean: Values, noisy: Values, sigma: Values, repetitions: int, output: Output
) -> Rows:
    methods = {
        ("kronlearn", "known"): lambda: denoise(noisy, sigma, band_axis=2, n_jobs=1),
        ("kronlearn", "estimated"): lambda: denoise(noisy, band_axis=2, n_jobs=1),
        ("wavelets", "known"): lambda: _by_band(_wavelets, noisy, sigma),
        ("wavelets", "estimated"): lambda: _by_band(_wavelets, noisy, None),
    }
    for level, given in (("known", sigma), ("estimated", None)):
        runs = [partial(_by_band, partial(_variation, w), noisy, given) for w in _WEIGHTS]
        best = max(runs, key=lambda run: compare(clean, run()).mean_psnr)
        methods["total variation", level] = best
    results: dict[tuple[str, str], Values] = {}

    def kept(key: tuple[str, str], method: Callable[[], Values]) -> Callable[[], None]:
        def call() -> None:
            results[key] = method()

        return call

    runs_by_name = {" ".join(key): kept(key, method) for key, method in methods.items()}
    seconds = interleaved(runs_by_name, repetitions, output, f"σ = {name}")
    results["noisy", ""] = noisy
    rows = []
    for key, result in results.items():
        found = compare(clean, result)
        rows.append(
            {
                "added": name,
                "method": key[0],
                "sigma": key[1],
                "psnr": found.mean_psnr,
                "angle": found.mean_angle,
                "ssim": found.mean_ssim,
                "seconds": seconds.get(" ".join(key)),
            }
        )
    return rows


def _by_band(
    method: Callable[[Values, float | None], Values], noisy: Values, sigma: Values | None
) -> Values:
    """Every band on its own; without noise given, the method finds it."""
    result = np.empty_like(noisy)
    for band in range(noisy.shape[2]):
        image = np.ascontiguousarray(noisy[..., band])
        result[..., band] = method(image, None if sigma is None else float(sigma[band]))
    return result


def _wavelets(image: Values, sigma: float | None) -> Values:
    return np.asarray(restoration.denoise_wavelet(image, sigma=sigma), np.float32)


def _variation(weight: float, image: Values, sigma: float | None) -> Values:
    sigma = restoration.estimate_sigma(image) if sigma is None else sigma
    scaled = restoration.denoise_tv_chambolle(image / sigma, weight=weight)
    return np.asarray(scaled * sigma, np.float32)


def _learning_table(rows: Rows) -> Table:
    table = Table(title="Learning from a cube", title_justify="left")
    for heading in ("patch", "nonzeros", "for 64 entries", "RMSE", "seconds"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            times(row["patch"]),
            str(row["nonzeros"]),
            f"{row['nonzeros_per_64']:g}",
            f"{row['rmse']:.1f}",
            f"{row['seconds']:.2f}",
        )
    return table


def _denoising_table(rows: Rows) -> Table:
    table = Table(title="Denoising a cube, one thread", title_justify="left")
    for heading in ("σ added", "method", "σ used"):
        table.add_column(heading)
    for heading in ("PSNR, dB", "angle, °", "SSIM", "seconds"):
        table.add_column(heading, justify="right")
    for i, row in enumerate(rows):
        first = i == 0 or rows[i - 1]["added"] != row["added"]
        if first and i:
            table.add_section()
        table.add_row(
            row["added"] if first else "",
            row["method"],
            row["sigma"],
            f"{row['psnr']:.2f}",
            f"{row['angle']:.3f}",
            f"{row['ssim']:.4f}",
            "" if row["seconds"] is None else f"{row['seconds']:.3f}",
        )
    return table
