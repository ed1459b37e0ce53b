"""``kronlearn bench images``: denoising and inpainting, how well and how fast, beside others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from skimage import restoration
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl
from kronlearn.cli.memory import measured_in_a_process, peak_above_start
from kronlearn.cli.output import Output
from kronlearn.cli.pictures import read_gray
from kronlearn.cli.timing import interleaved, machine

__all__ = ["measure_memory", "run"]

_SIGMA = 20.0

Image = NDArray[np.float32]
Rows = list[dict[str, Any]]


def run(folder: Path | None, quick: bool, repetitions: int, output: Output) -> None:
    """Print a table for each task; the runs of one task take turns."""
    output.say(", ".join(f"{name} {value}" for name, value in machine().items()))
    repetitions = 1 if quick else repetitions
    rows: Rows = []
    for name, image in _images(folder, quick).items():
        rows += _denoising(name, image, quick, repetitions, output)
        rows += _inpainting(name, image, repetitions, output)
    rows += _colour(quick, repetitions, output)
    output.say(_table(rows))
    side = 512 if quick else 4096
    memory = measured_in_a_process("kronlearn.cli.bench_images", "measure_memory", side)
    if memory is not None:
        output.say(
            f"Denoising {side} × {side} pixels holds at most {memory['ratio']:.1f} times the "
            "float32 image beyond it."
        )
    output.finish({"machine": machine(), "rows": rows, "memory": memory})


def _images(folder: Path | None, quick: bool) -> dict[str, Image]:
    if folder is not None:
        paths = {name: folder / f"{name}.png" for name in ("house", "barbara", "lena")}
        return {name: read_gray(path) for name, path in paths.items()}
    from skimage.data import brick, camera

    size = 96 if quick else 512
    return {
        "camera": camera()[:size, :size].astype(np.float32),
        "brick": brick()[:size, :size].astype(np.float32),
    }


def _noisy(clean: Image) -> Image:
    noise = np.random.default_rng(0).standard_normal(clean.shape, np.float32)
    return clean + np.float32(_SIGMA) * noise


def _denoising(name: str, clean: Image, quick: bool, repetitions: int, output: Output) -> Rows:
    noisy = _noisy(clean)
    ready = kl.images.denoise(noisy, _SIGMA, patch_size=8, n_atoms=16, full=True).dictionary
    methods: dict[str, Callable[[], Any]] = {
        "kronlearn, 2 threads": lambda: kl.images.denoise(noisy, _SIGMA, n_jobs=2),
        "kronlearn, 1 thread": lambda: kl.images.denoise(noisy, _SIGMA, n_jobs=1),
        "kronlearn, ready dictionary, 2 threads": lambda: kl.images.denoise(
            noisy, _SIGMA, dictionary=ready, n_jobs=2
        ),
        "kronlearn, ready dictionary, one stage, 2 threads": lambda: kl.images.denoise(
            noisy, _SIGMA, dictionary=ready, stages=1, n_jobs=2
        ),
        "scikit-image, total variation": lambda: restoration.denoise_tv_chambolle(
            noisy, weight=1.1 * _SIGMA
        ),
        "scikit-image, non-local means": lambda: restoration.denoise_nl_means(
            noisy, sigma=_SIGMA, h=0.8 * _SIGMA
        ),
    }
    if not quick and find_spec("bm3d") is not None:
        import bm3d

        methods["BM3D"] = lambda: bm3d.bm3d(noisy, _SIGMA)
    task = f"denoise {name}, σ = {_SIGMA:g}"
    return _compared(task, clean, methods, repetitions, output)


def _inpainting(name: str, clean: Image, repetitions: int, output: Output) -> Rows:
    missing = np.random.default_rng(0).random(clean.shape) < 0.5
    holed = np.where(missing, np.float32(0), clean)
    methods = {
        "kronlearn, 2 threads": lambda: kl.images.inpaint(holed, missing, n_jobs=2),
        "kronlearn, one stage, 2 threads": lambda: kl.images.inpaint(
            holed, missing, stages=1, n_jobs=2
        ),
        "scikit-image, biharmonic": lambda: restoration.inpaint_biharmonic(holed, missing),
    }
    return _compared(f"inpaint {name}, half missing", clean, methods, repetitions, output)


def _colour(quick: bool, repetitions: int, output: Output) -> Rows:
    from skimage.data import astronaut

    size = 96 if quick else 512
    clean = astronaut()[:size, :size].astype(np.float32)
    noisy = _noisy(clean)
    methods = {
        "together": lambda: kl.images.denoise(noisy, _SIGMA, channel_axis=-1, n_jobs=2),
        "channel by channel": lambda: np.stack(
            [kl.images.denoise(noisy[..., k], _SIGMA, n_jobs=2) for k in range(3)], -1
        ),
    }
    return _compared(f"denoise astronaut, σ = {_SIGMA:g}", clean, methods, repetitions, output)


def _compared(
    task: str,
    clean: Image,
    methods: dict[str, Callable[[], Any]],
    repetitions: int,
    output: Output,
) -> Rows:
    """PSNR and seconds of every method; ratios are against the first."""
    results: dict[str, Any] = {}

    def kept(name: str, method: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            results[name] = method()

        return call

    runs = {name: kept(name, method) for name, method in methods.items()}
    seconds = interleaved(runs, repetitions, output, task)
    first = next(iter(seconds.values()))
    rows = []
    for name, result in results.items():
        image = np.asarray(result, np.float32).reshape(clean.shape)
        psnr = float(peak_signal_noise_ratio(clean, image, data_range=255))
        rows.append(
            {
                "task": task,
                "method": name,
                "psnr": psnr,
                "seconds": seconds[name],
                "ratio": seconds[name] / first,
            }
        )
    return rows


def measure_memory(side: int) -> None:
    """Print, as JSON, what denoising needs beyond the image; for a process of its own."""
    from skimage.data import camera

    kl.images.denoise(camera()[200:264, 200:264].astype(np.float32), _SIGMA)
    tile = camera().astype(np.float32)
    image = np.tile(tile, (math.ceil(side / 512),) * 2)[:side, :side]
    rng = np.random.default_rng(0)
    for row in image:
        row += np.float32(_SIGMA) * rng.standard_normal(side, np.float32)
    peak = peak_above_start(lambda: kl.images.denoise(image, _SIGMA, n_jobs=2))
    print(json.dumps({"side": side, "bytes": peak, "ratio": peak / image.nbytes}))


def _table(rows: Rows) -> Table:
    table = Table(title="Images", title_justify="left")
    for heading in ("task", "method"):
        table.add_column(heading)
    for heading in ("PSNR, dB", "seconds", "× first"):
        table.add_column(heading, justify="right")
    last = None
    for row in rows:
        if last is not None and row["task"] != last:
            table.add_section()
        table.add_row(
            row["task"] if row["task"] != last else "",
            row["method"],
            f"{row['psnr']:.2f}",
            f"{row['seconds']:.3f}",
            f"{row['ratio']:.2f}",
        )
        last = row["task"]
    return table
