"""Hyperspectral cubes: open, denoise and compare them, estimate their noise, learn from them."""

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
