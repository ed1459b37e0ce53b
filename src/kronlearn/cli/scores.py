"""How close an image is to a reference."""

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
    """PSNR in dB (infinite if equal) and SSIM, if the picture is large enough for its window.

    The SSIM of a stack is the mean of its pages'.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    span = data_range(reference.pixels)
    wanted, found = (array.astype(np.float64) for array in (reference.pixels, image))
    # Images that are equal have an infinite one.
    with np.errstate(divide="ignore"):
        values = {"psnr": float(peak_signal_noise_ratio(wanted, found, data_range=span))}
    if min(reference.shape[-2:]) >= _SSIM_SIDE:
        page = wanted.shape[1:] if len(reference.shape) == 3 else wanted.shape
        pairs = zip(wanted.reshape(-1, *page), found.reshape(-1, *page), strict=True)
        options = {"data_range": span, "channel_axis": reference.channel_axis}
        similarities = [structural_similarity(a, b, **options) for a, b in pairs]
        values["ssim"] = float(np.mean(similarities))
    return values


def data_range(reference: NDArray[Any]) -> float:
    """From black to white.

    255 for 8 bits; for up to 32 without a sign the largest number of as many bits as are used,
    4095 for 12 of 16; otherwise the largest minus the smallest value.
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
    """A PSNR as people read it."""
    return "∞ (equal)" if math.isinf(psnr) else f"{psnr:.2f} dB"


def score_facts(scores: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    """``20.17 dB → 31.94 dB``, for every score of some images, as facts to print."""
    names = {"psnr": ("PSNR", decibels), "ssim": ("SSIM", "{:.4f}".format)}
    return [
        (name, " → ".join(text(found[key]) for found in scores.values()))
        for key, (name, text) in names.items()
        if scores and all(key in found for found in scores.values())
    ]
