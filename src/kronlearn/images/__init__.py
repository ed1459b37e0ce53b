"""Images: denoise and inpaint them; their patches.

Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronlearn.images.denoising import Denoised, denoise
    from kronlearn.images.inpainting import Inpainted, inpaint
    from kronlearn.images.noise import estimate_sigma
    from kronlearn.images.patches import Patches, extract_patches, reconstruct_from_patches

_HOMES = {
    "Denoised": "denoising",
    "Inpainted": "inpainting",
    "Patches": "patches",
    "denoise": "denoising",
    "estimate_sigma": "noise",
    "extract_patches": "patches",
    "inpaint": "inpainting",
    "reconstruct_from_patches": "patches",
}

__all__ = [
    "Denoised",
    "Inpainted",
    "Patches",
    "denoise",
    "estimate_sigma",
    "extract_patches",
    "inpaint",
    "reconstruct_from_patches",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kronlearn.images' has no attribute {name!r}")
    value = getattr(import_module(f"kronlearn.images.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
