"""PSNR and SSIM of images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.images import Picture

__all__ = ["decibels", "image_scores", "score_facts"]

# The window of scikit-image's SSIM.
_SSIM_SIDE = 7


def image_scores(reference: Picture, image: NDArray[Any]) -> dict[str, float]:
    """PSNR in dB and, unless the image is smaller than its window, SSIM, the mean over pages.

    Equal images have infinite PSNR.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    span = data_range(reference.pixels)
    true, test = (array.astype(np.float64) for array in (reference.pixels, image))
    with np.errstate(divide="ignore"):
        scores = {"psnr": float(peak_signal_noise_ratio(true, test, data_range=span))}
    if min(reference.shape[-2:]) >= _SSIM_SIDE:
        page = true.shape[1:] if len(reference.shape) == 3 else true.shape
        pairs = zip(true.reshape(-1, *page), test.reshape(-1, *page), strict=True)
        options = {"data_range": span, "channel_axis": reference.channel_axis}
        similarities = [structural_similarity(a, b, **options) for a, b in pairs]
        scores["ssim"] = float(np.mean(similarities))
    return scores


def data_range(reference: NDArray[Any]) -> float:
    """The range of values from black to white that PSNR and SSIM assume.

    For 8 bits it is 255; for unsigned integers of 16 or 32 bits the largest number that the bits in
    use can hold, such as 4095 for 12 bits; for other types the range of the image.
    """
    dtype = reference.dtype
    if dtype == np.bool_:
        return 1.0
    if dtype.kind in "iu" and dtype.itemsize == 1:
        return 255.0
    low, high = reference.min().item(), reference.max().item()
    if dtype.kind == "u" and dtype.itemsize <= 4:
        return float(2 ** max(8, high.bit_length()) - 1)
    return float(high - low) or 1.0


def decibels(psnr: float) -> str:
    """``31.94 dB``."""
    return "∞ (equal)" if math.isinf(psnr) else f"{psnr:.2f} dB"


def score_facts(scores: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    """Facts to print, such as ``20.17 dB → 31.94 dB``, for every score that all images have."""
    names = {"psnr": ("PSNR", decibels), "ssim": ("SSIM", "{:.4f}".format)}
    return [
        (name, " → ".join(text(values[key]) for values in scores.values()))
        for key, (name, text) in names.items()
        if scores and all(key in values for values in scores.values())
    ]
