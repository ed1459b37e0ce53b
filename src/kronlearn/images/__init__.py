"""Denoise and inpaint images, and take patches out of them."""

from kronlearn.images.denoiser import Denoiser
from kronlearn.images.denoising import Denoised, denoise
from kronlearn.images.inpainting import Inpainted, inpaint
from kronlearn.images.noise import estimate_sigma
from kronlearn.images.patches import Patches, extract_patches, reconstruct_from_patches

__all__ = [
    "Denoised",
    "Denoiser",
    "Inpainted",
    "Patches",
    "denoise",
    "estimate_sigma",
    "extract_patches",
    "inpaint",
    "reconstruct_from_patches",
]
