"""Table II of the paper: speedup for patches of 8 × 8, 16 × 16 and 32 × 32 pixels.

The paper gives the numbers of patches, not where they come from: here they lie at random places of
gray images, without their means.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.dictionaries import draw_patches
from kronlearn.io.model_files import replace_file
from kronlearn.reproduce.scaling import Patches, Run, Setting

__all__ = ["SAMPLES", "drawn", "made_up_images", "prepared", "read_images", "settings"]

#: The paper's N by m, for patches of m × m.
SAMPLES = {8: 128000, 16: 32000, 32: 8000}

_ITERATIONS, _QUICK_ITERATIONS = 60, 5
_QUICK_SAMPLES = {8: 2000}
_SPARSITY = 8


def settings(
    methods: Iterable[str], iterations: int | None = None, quick: bool = False
) -> list[Setting]:
    """The settings of the table: n = m; s = m for orthonormal factors, 8 for the others."""
    iterations = iterations or (_QUICK_ITERATIONS if quick else _ITERATIONS)
    return [
        Setting(method, m, m, m if method == "orthonormal" else _SPARSITY, samples, iterations)
        for method in methods
        for m, samples in (_QUICK_SAMPLES if quick else SAMPLES).items()
    ]


def prepared(
    images: Sequence[NDArray[np.float32]], data: str, folder: Path
) -> Callable[[Run], Patches]:
    """What gives the samples of a run, drawn from images and kept in a folder as .npy files."""
    files: dict[tuple[int, int], Path] = {}

    def patches(cell: Run) -> Patches:
        key = cell.m, cell.samples
        if key not in files:
            content = io.BytesIO()
            np.save(content, drawn(images, *key))
            files[key] = folder / f"patches-{cell.m}x{cell.m}-{cell.samples}.npy"
            replace_file(files[key], content.getvalue())
        return Patches(files[key], data, streamed=False)

    return patches


def drawn(images: Sequence[NDArray[np.float32]], m: int, n_samples: int) -> NDArray[np.float32]:
    """Patches (N, m, m) at random places of the images, as many of each, without their means."""
    places = [
        max(0, rows - m + 1) * max(0, columns - m + 1) for rows, columns in map(np.shape, images)
    ]
    shares = [len(part) for part in np.array_split(np.arange(n_samples), len(images))]
    if any(share > n_places for share, n_places in zip(shares, places, strict=True)):
        raise ValueError(
            f"{n_samples} patches of {m} × {m} pixels were asked for; the images are too small, "
            f"the smallest has {min(places)} of them."
        )
    rng = np.random.default_rng(m)
    pairs = zip(images, shares, strict=True)
    return np.concatenate([draw_patches(image[None], (m, m), share, rng) for image, share in pairs])


def read_images(file: Path) -> list[NDArray[np.float32]]:
    """The gray images in a .npy file (K, rows, columns)."""
    try:
        stack = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as problem:
        raise ValueError(f"{file} cannot be read as a .npy file: {problem}") from None
    if not isinstance(stack, np.ndarray) or stack.ndim != 3 or stack.dtype.kind not in "fiu":
        raise ValueError(
            f"{file} does not hold gray images; an array (K, rows, columns) is needed."
        )
    images = stack.astype(np.float32)
    if not np.isfinite(images).all():
        raise ValueError(f"{file} holds NaN or infinity; give images of finite numbers.")
    return list(images)


def made_up_images(n_images: int = 4, size: int = 512) -> list[NDArray[np.float32]]:
    """Random images with the power spectrum of photographs, 1/f², where there are no others."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size))
    frequency[0, 0] = 1.0
    images = []
    for number in range(n_images):
        noise = np.random.default_rng(number).standard_normal((size, size))
        image = np.fft.irfft2(np.fft.rfft2(noise) / frequency, s=(size, size))
        images.append((128 + 50 * image / image.std()).astype(np.float32))
    return images
