"""What ``kronlearn bench`` measures, for one version after another: the same calls, timed by asv.

Times are processor times of all threads together, which a busy machine hardly changes. asv also
runs this file with earlier versions, so names imported from kronlearn.experiments must not change.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import kronlearn as kl
from kronlearn.experiments.coding import own_coder
from kronlearn.experiments.data import (
    included_images,
    noisy,
    perturbed_dct,
    psnr,
    read_cube,
    sampled_patches,
)
from kronlearn.experiments.images import denoising, inpainting
from kronlearn.experiments.learning import fit, measure_memory
from kronlearn.experiments.timing import measured_in_a_process


class Coding:
    """20,000 patches of images, one thread."""

    timer = time.process_time
    param_names = ("patch, atoms, nonzeros", "coder")
    params = (("8, 8, 6", "8, 16, 6", "16, 32, 16", "9, 15, 6"), ("omp", "ols", "exchange"))

    def setup(self, case: str, method: str) -> None:
        m, n, s = map(int, case.split(", "))
        self.samples = sampled_patches(included_images(), (m, m), 20_000)
        self.code = own_coder(method, 1, perturbed_dct((m, m), (n, n)), s)

    def time_code(self, case: str, method: str) -> None:
        self.code(self.samples)


class Learning:
    """Five iterations on 20,000 patches of 8 × 8 pixels, one thread."""

    timer = time.process_time
    param_names = ("setting",)
    settings: dict[str, dict[str, Any]] = {  # noqa: RUF012
        "ols": {},
        "omp": {"method": "omp"},
        "orthonormal": {"structure": "orthonormal", "n_atoms": (8, 8)},
        "two terms": {"n_terms": 2},
        "float64": {},
    }
    params = (tuple(settings),)

    def setup(self, setting: str) -> None:
        dtype = np.float64 if setting == "float64" else np.float32
        self.samples = sampled_patches(included_images(), (8, 8), 20_000).astype(dtype)

    def time_fit(self, setting: str) -> None:
        fit(self.samples, max_iter=5, **self.settings[setting])


def track_memory() -> int:
    """Peak memory of learning from 200,000 patches, beyond the patches."""
    return measured_in_a_process(measure_memory, 200_000)[0]


track_memory.unit = "bytes"  # type: ignore[attr-defined]


class Images:
    """256 × 256 pixels of a photograph with noise of σ = 20, or with half of them missing."""

    timer = time.process_time
    param_names = ("method",)
    params = (("default", "fast", "best", "inpaint"),)

    def setup(self, method: str) -> None:
        (camera,) = included_images(["camera"])
        self.clean = camera[100:356, 100:356]
        if method == "inpaint":
            self.run = inpainting(self.clean)["kronlearn, 2 threads"]
        else:
            quality = "" if method == "default" else f"{method}, "
            self.run = denoising(self.clean, quick=True)[f"kronlearn, {quality}2 threads"]

    def time_run(self, method: str) -> None:
        self.run()

    def track_psnr(self, method: str) -> float:
        return psnr(self.clean, self.run())

    track_psnr.unit = "dB"  # type: ignore[attr-defined]


class Cube:
    """64 × 64 pixels and 200 bands of Indian Pines with noise of σ = 100."""

    timer = time.process_time
    param_names = ("quality",)
    params = (("default", "fast"),)

    def setup(self, quality: str) -> None:
        self.noisy = noisy(read_cube()[:64, :64], 100.0)

    def time_denoise(self, quality: str) -> None:
        kl.hyperspectral.denoise(self.noisy, 100.0, band_axis=2, quality=quality, n_jobs=1)


def timeraw_import() -> str:
    """Import the package alone."""
    return "import kronlearn"


def timeraw_import_estimator() -> str:
    """Import the estimator; scikit-learn takes most of the time."""
    return "import kronlearn; kronlearn.KroneckerDictionaryLearning"
