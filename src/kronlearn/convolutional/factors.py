"""Filters as products of factors, and derivatives with respect to the factors."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["column_axes", "combined", "normalised", "pulled_back", "pushed_forward"]


def combined(factors: Sequence[NDArray[Any]], structure: str) -> NDArray[Any]:
    """The filters (M, p_1, …, p_d) that the factors define."""
    if structure == "dense":
        return factors[0]
    operands, result = _subscripts(len(factors), structure)
    product: NDArray[Any] = np.einsum(f"{','.join(operands)}->{result}", *factors)
    return product.reshape(-1, *(len(factor) for factor in factors))


def pulled_back(
    gradient: NDArray[Any], factors: Sequence[NDArray[Any]], structure: str
) -> list[NDArray[Any]]:
    """The gradient with respect to each factor, from that with respect to the filters.

    ``gradient`` is (M, p_1, …, p_d).
    """
    if structure == "dense":
        return [gradient]
    operands, result = _subscripts(len(factors), structure)
    n_atoms = [f.shape[1] for f in factors] if structure == "kronecker" else [factors[0].shape[1]]
    gradient = gradient.reshape(*n_atoms, *(len(factor) for factor in factors))
    parts = []
    for axis, operand in enumerate(operands):
        others = [k for k in range(len(factors)) if k != axis]
        terms = ",".join([result, *(operands[k] for k in others)])
        parts.append(np.einsum(f"{terms}->{operand}", gradient, *(factors[k] for k in others)))
    return parts


def pushed_forward(
    change: Sequence[NDArray[Any]], factors: Sequence[NDArray[Any]], structure: str
) -> NDArray[Any]:
    """The change of the filters, to first order, for a change of each factor."""
    if structure == "dense":
        return change[0]
    total: Any = 0
    for axis, part in enumerate(change):
        total = total + combined([*factors[:axis], part, *factors[axis + 1 :]], structure)
    return np.asarray(total)


def column_axes(array: NDArray[Any], structure: str) -> tuple[int, ...]:
    """The axes of a factor along which a column, or a dense filter, runs."""
    return tuple(range(1, array.ndim)) if structure == "dense" else (0,)


def normalised(array: NDArray[Any], structure: str) -> NDArray[Any]:
    """Scale the columns of a factor, or dense filters, to norm one."""
    axes = column_axes(array, structure)
    norms = np.sqrt(np.sum(array**2, axis=axes, keepdims=True))
    if not (np.isfinite(array).all() and (norms > 0).all()):
        raise ValueError("Filters must be finite and nonzero.")
    # Scaling twice must not change bits.
    is_one = np.abs(norms - 1) < 1e-15 * array.size
    scaled: NDArray[Any] = array / np.where(is_one, 1.0, norms)
    return scaled


def _subscripts(n_axes: int, structure: str) -> tuple[list[str], str]:
    """Einsum subscripts of each factor and of the filters."""
    sizes = string.ascii_lowercase[:n_axes]
    atoms = string.ascii_uppercase[:n_axes] if structure == "kronecker" else "A" * n_axes
    result = "".join(dict.fromkeys(atoms)) + sizes
    return [size + atom for size, atom in zip(sizes, atoms, strict=True)], result
