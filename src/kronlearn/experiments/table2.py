"""Table II of the paper: speedup for patches of 8 × 8, 16 × 16 and 32 × 32 pixels.

The paper gives the numbers of patches, not where they come from: here they lie at random places of
gray images, without their means.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.experiments import speedup
from kronlearn.experiments import speedup_runs as runs
from kronlearn.experiments.data import INCLUDED, images_in, included_images
from kronlearn.experiments.report import Report
from kronlearn.images.dictionaries import draw_patches
from kronlearn.io.atomic import replace_file

__all__ = ["drawn", "run", "settings"]

# The paper's N by m, for patches of m × m.
_SAMPLES, _ITERATIONS = {8: 128000, 16: 32000, 32: 8000}, 60
_QUICK_SAMPLES, _QUICK_ITERATIONS = {8: 2000}, 5
_SPARSITY = 8


def run(
    *,
    images: Path | None = None,
    work: Path | None = None,
    methods: str = "general,orthonormal",
    iterations: int | None = None,
    only_report: bool = False,
    quick: bool = False,
    **how: Any,
) -> Report:
    """Measure what is missing of Table II, on patches of the images of a folder.

    ``work`` is the folder for the patches, and ``how`` goes to
    :func:`~kronlearn.experiments.speedup.run`.
    """
    if only_report:
        return speedup.write("table2", how["output"])
    chosen = settings(methods, iterations, quick)
    pixels = included_images() if images is None else images_in(images)
    name = f"{', '.join(INCLUDED)} of scikit-image"
    name = name if images is None else f"the images in {images.resolve().name}"
    with runs.work_folder(work) as folder:

        @cache
        def patches(m: int, samples: int) -> runs.Patches:
            content = io.BytesIO()
            np.save(content, drawn(pixels, m, samples))
            file = folder / f"patches-{m}x{m}-{samples}.npy"
            replace_file(file, content.getvalue())
            return runs.Patches(file, name, streamed=False)

        return speedup.run(
            "table2", chosen, lambda at: patches(at.m, at.samples), quick=quick, **how
        )


def settings(
    methods: str, iterations: int | None = None, quick: bool = False
) -> list[runs.Setting]:
    """The settings of the table: n = m; s = m for orthonormal factors, 8 for the others."""
    iterations = iterations or (_QUICK_ITERATIONS if quick else _ITERATIONS)
    return [
        runs.Setting(method, m, m, m if method == "orthonormal" else _SPARSITY, samples, iterations)
        for method in runs.scaling_methods(methods)
        for m, samples in (_QUICK_SAMPLES if quick else _SAMPLES).items()
    ]


def drawn(images: Sequence[NDArray[np.float32]], m: int, n_samples: int) -> NDArray[np.float32]:
    """Patches (N, m, m) at random places of the images, as many of each, without their means."""
    shares = [len(part) for part in np.array_split(np.arange(n_samples), len(images))]
    places = [max(0, image.shape[0] - m + 1) * max(0, image.shape[1] - m + 1) for image in images]
    if any(share > n_places for share, n_places in zip(shares, places, strict=True)):
        raise ValueError(
            f"{n_samples} patches of {m} × {m} pixels were asked for; the images are too small, "
            f"the smallest has {min(places)} of them."
        )
    rng = np.random.default_rng(m)
    pairs = zip(images, shares, strict=True)
    return np.concatenate([draw_patches(image[None], (m, m), share, rng) for image, share in pairs])
