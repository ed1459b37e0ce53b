"""Arrays of other libraries that lie on a card, taken and given without a copy."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["adopted", "is_on_card", "returned_as"]

# What DLPack calls memory of a card, and memory that a card and the processor share.
_CUDA, _CUDA_MANAGED = 2, 13


def is_on_card(array: Any) -> bool:
    """Whether an array of CuPy, PyTorch or another library lies in the memory of a card."""
    try:
        if hasattr(array, "__cuda_array_interface__"):
            return True
    except RuntimeError:
        # PyTorch says so of tensors on a card that require gradients.
        return True
    ask = getattr(array, "__dlpack_device__", None)
    return ask is not None and ask()[0] in (_CUDA, _CUDA_MANAGED)


def adopted(xp: Any, array: Any) -> Any:
    """An array on the card as one of CuPy, ``xp``, that shares its memory."""
    if isinstance(array, xp.ndarray):
        found = array
    else:
        if getattr(array, "requires_grad", False):
            array = array.detach()
        by_interface = hasattr(array, "__cuda_array_interface__")
        found = xp.asarray(array) if by_interface else xp.from_dlpack(array)
    own = getattr(getattr(found, "device", None), "id", None)
    if own is not None and own != xp.cuda.Device().id:
        raise ValueError(
            f"An array lies on graphics card {own}, and the current one is {xp.cuda.Device().id}: "
            f"use cupy.cuda.Device({own}).use() before."
        )
    return found


def returned_as(given: Any, result: Any) -> Any:
    """A result of CuPy as an array of the library of what was given, which lies on the card too."""
    library = sys.modules.get(type(given).__module__.partition(".")[0])
    if isinstance(given, type(result)) or not hasattr(library, "from_dlpack"):
        return result
    return library.from_dlpack(result)  # type: ignore[union-attr]
