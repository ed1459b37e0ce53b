"""Images: denoise, inpaint, code and decode them; their patches.

Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronlearn.images.denoising import Denoised, denoise
    from kronlearn.images.inpainting import Inpainted, inpaint
    from kronlearn.images.noise import estimate_sigma

_HOMES = {
    "Denoised": "denoising",
    "Inpainted": "inpainting",
    "denoise": "denoising",
    "estimate_sigma": "noise",
    "inpaint": "inpainting",
}

__all__ = ["Denoised", "Inpainted", "denoise", "estimate_sigma", "inpaint"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kronlearn.images' has no attribute {name!r}")
    value = getattr(import_module(f"kronlearn.images.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
