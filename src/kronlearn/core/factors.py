"""Checks of factors, the matrices that make up dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.numbers import real_array

__all__ = ["NORM_TOLERANCE", "check_unit_norms", "checked_factors", "frozen"]

#: How far from 1 the norm of a factor's column may be.
NORM_TOLERANCE = 1e-4


def checked_factors(factors: Iterable[ArrayLike]) -> list[NDArray[Any]]:
    """Copy factors to finite real 2-D arrays of one dtype."""
    if hasattr(factors, "factors"):
        factors = factors.factors
    if isinstance(factors, str | PathLike):
        raise ValueError(f"factors is a path; pass load_dictionary({str(factors)!r}).")
    if isinstance(factors, np.ndarray) and factors.ndim == 2:
        raise ValueError(
            f"factors is one array of shape {factors.shape}; pass a list with one array per mode, "
            "[D] for a single mode."
        )
    try:
        items = list(factors)
    except TypeError:
        is_estimator = hasattr(factors, "fit")
        wanted = "its dictionary_" if is_estimator else "a list with one array per mode"
        raise ValueError(f"factors is a {type(factors).__name__}; pass {wanted}.") from None
    if not items:
        raise ValueError("factors is empty; pass at least one array of shape (m, n).")
    arrays = [_checked_factor(factor, mode) for mode, factor in enumerate(items)]
    dtype = np.float32 if all(a.dtype == np.float32 for a in arrays) else np.float64
    return [np.array(a, dtype=dtype, order="C") for a in arrays]


def _checked_factor(factor: ArrayLike, mode: int) -> NDArray[Any]:
    name = f"factors[{mode}]"
    array = real_array(factor, name)
    if array.ndim != 2:
        raise ValueError(
            f"{name} has {array.ndim} dimension{'s' * (array.ndim != 1)}; pass an (m, n) array "
            "whose columns are that mode's atoms."
        )
    if array.size == 0:
        raise ValueError(
            f"{name} has shape {array.shape}; every factor needs at least one row and one column."
        )
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"{name} holds {array[row, column]} at row {row}, column {column}; all entries must "
            "be finite."
        )
    return array


def check_unit_norms(factor: NDArray[Any], mode: int) -> None:
    """Raise unless all columns have norm 1."""
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(factor.astype(np.float64), axis=0)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= NORM_TOLERANCE))
    if wrong.size:
        column = int(wrong[0])
        raise ValueError(
            f"Column {column} of factors[{mode}] has norm {norms[column]:.6g}; every column needs "
            f"norm 1 (to {NORM_TOLERANCE:g}). KroneckerDictionary.normalized(factors) scales them."
        )


def frozen(arrays: list[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Make arrays read-only; return them as a tuple."""
    for array in arrays:
        array.setflags(write=False)
    return tuple(arrays)
