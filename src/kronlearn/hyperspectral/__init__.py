"""Hyperspectral cubes: learn from them, estimate their noise, denoise and compare them.

Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronlearn.hyperspectral.denoising import DenoisedCube, denoise
    from kronlearn.hyperspectral.learning import learn
    from kronlearn.hyperspectral.metrics import (
        Comparison,
        compare,
        psnr_per_band,
        spectral_angle,
        spectral_angle_map,
        ssim_per_band,
    )
    from kronlearn.hyperspectral.noise import estimate_noise
    from kronlearn.hyperspectral.patches import CubePatches

_HOMES = {
    "Comparison": "metrics",
    "CubePatches": "patches",
    "DenoisedCube": "denoising",
    "compare": "metrics",
    "denoise": "denoising",
    "estimate_noise": "noise",
    "learn": "learning",
    "psnr_per_band": "metrics",
    "spectral_angle": "metrics",
    "spectral_angle_map": "metrics",
    "ssim_per_band": "metrics",
}

__all__ = [
    "Comparison",
    "CubePatches",
    "DenoisedCube",
    "compare",
    "denoise",
    "estimate_noise",
    "learn",
    "psnr_per_band",
    "spectral_angle",
    "spectral_angle_map",
    "ssim_per_band",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kronlearn.hyperspectral' has no attribute {name!r}")
    value = getattr(import_module(f"kronlearn.hyperspectral.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
