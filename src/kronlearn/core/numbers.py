"""Conversion of user input to arrays of real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_real", "real_array"]


def real_array(values: Any, name: str) -> NDArray[Any]:
    """Convert values to an array of real numbers or booleans; ``name`` is for error messages.

    Objects that convert to numbers become float64. Strings are refused, even if they spell numbers,
    and so are masked entries, because NumPy would use the values below the mask.
    """
    if hasattr(values, "toarray"):
        raise TypeError(
            f"{name} is a sparse {type(values).__name__}; pass a dense array, {name}.toarray()."
        )
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} is a masked array; fill in the masked entries with {name}.filled(value)."
        )
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} has parts of different shapes; pass an array.") from None
    if array.dtype == object:
        array = _converted(array, name)
    check_real(array.dtype, name)
    return array


def check_real(dtype: np.dtype[Any], name: str) -> None:
    """Raise unless a dtype holds real numbers or booleans."""
    if dtype.kind in "SU":
        raise ValueError(f"{name} holds strings; convert them to numbers first.")
    if dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {name} has dtype {dtype}; pass real numbers."
        )
    if dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has dtype {dtype}; kronlearn works with real numbers, pass float32 or float64."
        )


def _converted(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert an array of objects to float64."""
    if array.ndim == 0:
        kind = "None" if array.item() is None else f"a {type(array.item()).__name__}"
        raise TypeError(f"{name} is {kind}; pass an array of numbers.")
    if any(isinstance(entry, str | bytes) for entry in array.flat):
        check_real(np.dtype(str), name)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        # Subclasses of these errors may not take a message as their only argument.
        error_class = TypeError if isinstance(error, TypeError) else ValueError
        raise error_class(
            f"{name} has dtype object, which does not convert to numbers ({error}); pass float32 "
            "or float64."
        ) from None
