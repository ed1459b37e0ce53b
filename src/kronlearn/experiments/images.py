"""``kronlearn bench images``: denoising and inpainting, compared with scikit-image and BM3D."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.color import rgb2gray
from skimage.restoration import denoise_nl_means, denoise_tv_chambolle, inpaint_biharmonic

import kronlearn as kl
from kronlearn.experiments.data import included_images, named_images, noisy, psnr
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.timing import (
    Progress,
    benchmark,
    compare_methods,
    measured_in_a_process,
    peak_above_start,
)
from kronlearn.images.stabilisation import CountNoise
from kronlearn.options import ImageFolder, Quick, Repetitions

__all__ = ["denoising", "inpainting", "measure_memory", "run"]

_SIGMA = 20.0

Image = NDArray[np.float32]
Methods = dict[str, Callable[[], Any]]


def run(
    *,
    progress: Progress,
    images: ImageFolder = None,
    repetitions: Repetitions = 5,
    quick: Quick = False,
) -> Report:
    """Measure PSNR and seconds of every method for every task; methods of one task take turns.

    ``images`` is a folder with house.png, barbara.png and lena.png.
    """
    size = 96 if quick else None
    pixels = named_images(images, ("house", "barbara", "lena"), ("camera", "brick"))
    tasks: dict[str, tuple[Image, Methods]] = {}
    for name, photo in pixels.items():
        image = photo[:size, :size]
        tasks[f"denoise {name}, σ = {_SIGMA:g}"] = image, denoising(image, quick)
        tasks[f"inpaint {name}, half missing"] = image, inpainting(image)
    clean = included_images(["astronaut"])[0][:size, :size]
    tasks[f"denoise astronaut, σ = {_SIGMA:g}"] = clean, _denoising_colour(clean)
    tasks |= _denoising_counts(quick)
    rows: list[dict[str, Any]] = []
    for task, (clean, methods) in tasks.items():
        rounds = 1 if quick else repetitions
        rows += compare_methods({"task": task}, methods, partial(_score, clean), rounds, progress)
    memory = measured_in_a_process(measure_memory, 512 if quick else 4096)
    columns = "task method psnr:.2f seconds:.3f ratio:.2f"
    shown: list[str | Table] = [Table.of("Images, PSNR in dB", rows, columns)]
    if memory is not None:
        shown.append(
            f"Denoising {memory['side']} × {memory['side']} pixels needs {memory['ratio']:.1f} "
            "times the memory of the float32 image, besides the image."
        )
    return benchmark(shown, rows=rows, memory=memory)


def _score(clean: Image, image: Image) -> dict[str, float]:
    return {"psnr": psnr(clean, image)}


def denoising(clean: Image, quick: bool) -> Methods:
    """Add noise to an image; return functions that remove it, by the names of the methods."""
    image = noisy(clean, _SIGMA)
    ours = partial(kl.images.denoise, image, _SIGMA, n_jobs=2)
    ready = ours(patch_size=8, n_atoms=16, full=True).dictionary
    methods: Methods = {
        "kronlearn, 2 threads": ours,
        "kronlearn, 1 thread": partial(ours, n_jobs=1),
        "kronlearn, ready dictionary, 2 threads": partial(ours, dictionary=ready),
        **{
            f"kronlearn, {quality}, 2 threads": partial(ours, quality=quality)
            for quality in ("fast", "best", "dictionary")
        },
        "scikit-image, total variation": partial(denoise_tv_chambolle, image, weight=1.1 * _SIGMA),
        "scikit-image, non-local means": partial(
            denoise_nl_means, image, sigma=_SIGMA, h=0.8 * _SIGMA
        ),
    }
    if not quick and find_spec("bm3d") is not None:
        methods["BM3D"] = partial(import_module("bm3d").bm3d, image, _SIGMA)
    return methods


def inpainting(clean: Image) -> Methods:
    """Drop half of the pixels; return functions that fill them in, by the names of the methods."""
    missing = np.random.default_rng(0).random(clean.shape) < 0.5
    image = np.where(missing, np.float32(0), clean)
    ours = partial(kl.images.inpaint, image, missing, n_jobs=2)
    return {
        "kronlearn, 2 threads": ours,
        "kronlearn, one stage, 2 threads": partial(ours, stages=1),
        "scikit-image, biharmonic": partial(inpaint_biharmonic, image, missing),
    }


def _denoising_colour(clean: Image) -> Methods:
    image = noisy(clean, _SIGMA)
    ours = partial(kl.images.denoise, sigma=_SIGMA, n_jobs=2)
    return {
        "together": partial(ours, image, channel_axis=-1),
        "channel by channel": lambda: np.stack([ours(image[..., k]) for k in range(3)], -1),
    }


def _denoising_counts(quick: bool) -> dict[str, tuple[Image, Methods]]:
    """Return tasks with Poisson noise; grey level 255 stands for ``peak`` counts."""
    tasks: dict[str, tuple[Image, Methods]] = {}
    size = 64 if quick else 256
    names = ("camera", "astronaut", "coffee")
    for name, photo in zip(names, included_images(names), strict=True):
        grey = photo if photo.ndim == 2 else rgb2gray(photo)
        clean = grey[80 : 80 + size, 120 : 120 + size]
        for peak in (1, 4, 20, 120):
            gain = np.float32(255 / peak)
            image = gain * np.random.default_rng(0).poisson(clean / gain).astype(np.float32)
            ours = partial(kl.images.denoise, image, noise="poisson", n_jobs=2)
            methods: Methods = {"kronlearn, 2 threads": ours}
            if not quick and find_spec("bm3d") is not None:
                methods["Anscombe, BM3D"] = partial(_anscombe_bm3d, image, float(gain))
            tasks[f"denoise {name}, Poisson, peak {peak}"] = clean, methods
    return tasks


def _anscombe_bm3d(image: Image, gain: float) -> Image:
    """Stabilise the variance with the known gain, apply BM3D, then the unbiased inverse."""
    model = CountNoise(gain)
    stabilised = import_module("bm3d").bm3d(model.forward(image), 1.0)
    return model.inverse(stabilised.astype(np.float32))


def measure_memory(side: int) -> dict[str, Any] | None:
    """Return the peak memory of denoising beyond the image; valid once per process."""
    (tile,) = included_images(["camera"])
    kl.images.denoise(tile[200:264, 200:264], _SIGMA)
    image = np.tile(tile, (math.ceil(side / 512),) * 2)[:side, :side]
    rng = np.random.default_rng(0)
    for row in image:
        row += np.float32(_SIGMA) * rng.standard_normal(side, np.float32)
    peak = peak_above_start(lambda: kl.images.denoise(image, _SIGMA, n_jobs=2))
    return {"side": side, "bytes": peak, "ratio": peak / image.nbytes} if peak else None
