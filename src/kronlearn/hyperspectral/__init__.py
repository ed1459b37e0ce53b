"""Hyperspectral cubes: open them, learn from them, estimate their noise, denoise and compare them.

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
    from kronlearn.io.cubes import Cube, open_cube

_HOMES = {
    "Comparison": "kronlearn.hyperspectral.metrics",
    "Cube": "kronlearn.io.cubes",
    "CubePatches": "kronlearn.hyperspectral.patches",
    "DenoisedCube": "kronlearn.hyperspectral.denoising",
    "compare": "kronlearn.hyperspectral.metrics",
    "denoise": "kronlearn.hyperspectral.denoising",
    "estimate_noise": "kronlearn.hyperspectral.noise",
    "learn": "kronlearn.hyperspectral.learning",
    "open_cube": "kronlearn.io.cubes",
    "psnr_per_band": "kronlearn.hyperspectral.metrics",
    "spectral_angle": "kronlearn.hyperspectral.metrics",
    "spectral_angle_map": "kronlearn.hyperspectral.metrics",
    "ssim_per_band": "kronlearn.hyperspectral.metrics",
}

__all__ = [
    "Comparison",
    "Cube",
    "CubePatches",
    "DenoisedCube",
    "compare",
    "denoise",
    "estimate_noise",
    "learn",
    "open_cube",
    "psnr_per_band",
    "spectral_angle",
    "spectral_angle_map",
    "ssim_per_band",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kronlearn.hyperspectral' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
