"""The tables of a dictionary that kernels read: its sizes, entries, Gram matrices and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu
from kronlearn.cuda.structs import MOST_MODES, SHAPE

__all__ = ["GpuTables", "Tables", "gpu_tables", "shape_of"]

# Dictionaries whose tables stay on the GPU for the next call.
_CACHED_DICTIONARIES = 16


@dataclass(frozen=True)
class Tables:
    """The tables of a dictionary in the memory of the processor.

    ``numbers`` concatenates the factors with unit-norm columns, their squared entries, the Gram
    matrices of the left and the right side, and the atoms of both sides as rows. ``norms`` holds
    the original norms of the columns of both sides.
    """

    shape: NDArray[Any]
    numbers: NDArray[np.float64]
    norms: tuple[NDArray[np.float64], NDArray[np.float64]]

    @classmethod
    def of(cls, factors: Sequence[NDArray[Any]]) -> Tables:
        """The tables of a Kronecker product of factors ``(m_i, n_i)``."""
        exact = [np.asarray(factor, np.float64) for factor in factors]
        lengths = [np.linalg.norm(factor, axis=0) for factor in exact]
        unit = [f / np.where(n > 0, n, 1.0) for f, n in zip(exact, lengths, strict=True)]
        split = _split([factor.shape[1] for factor in factors])
        sides = [_product(part, (1, 1)) for part in (unit[:split], unit[split:])]
        norms = [_product(part, (1,)) for part in (lengths[:split], lengths[split:])]
        parts = [*unit, *(f * f for f in unit), *(s.T @ s for s in sides), *(s.T for s in sides)]
        numbers = np.concatenate([part.ravel() for part in parts])
        return cls(shape_of(factors), numbers, (norms[0], norms[1]))


def shape_of(factors: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The struct Shape of factors ``(m_i, n_i)``: their sizes, and those of both sides."""
    if len(factors) > MOST_MODES:
        raise ValueError(f"On a GPU there are at most {MOST_MODES} modes.")
    shape = np.zeros((), SHAPE)
    shape["n_modes"] = len(factors)
    split = _split([factor.shape[1] for factor in factors])
    for axis, name in enumerate("mn"):
        sizes = [factor.shape[axis] for factor in factors]
        shape[name][: len(factors)] = sizes
        shape[f"{name}1"], shape[f"{name}2"] = math.prod(sizes[:split]), math.prod(sizes[split:])
    return shape


@dataclass(frozen=True)
class GpuTables:
    """The tables of a dictionary on a GPU, with the numbers in both precisions."""

    shape: NDArray[Any]
    numbers: dict[np.dtype[Any], Any]
    norms: tuple[Any, Any]


def gpu_tables(gpu: Gpu, factors: Sequence[NDArray[Any]]) -> GpuTables:
    """The tables of factors on a GPU, cached by their shapes and entries."""
    entries = [(f.shape, np.asarray(f, np.float64).tobytes()) for f in factors]
    return _gpu_tables(gpu, *entries)


@lru_cache(_CACHED_DICTIONARIES)
def _gpu_tables(gpu: Gpu, *factors: tuple[tuple[int, int], bytes]) -> GpuTables:
    tables = Tables.of([np.frombuffer(entries).reshape(shape) for shape, entries in factors])
    dtypes = map(np.dtype, (np.float32, np.float64))
    numbers = {dtype: gpu.upload(tables.numbers.astype(dtype)) for dtype in dtypes}
    left, right = map(gpu.upload, tables.norms)
    # Other threads, on other streams, may take the tables from the cache at once.
    gpu.finish()
    return GpuTables(tables.shape, numbers, (left, right))


def _product(parts: Sequence[NDArray[np.float64]], empty: tuple[int, ...]) -> NDArray[np.float64]:
    """The Kronecker product of matrices or vectors, or a one of shape ``empty`` for none."""
    product: Any = np.ones(empty)
    for part in parts:
        product = np.kron(product, part)
    return np.asarray(product)


def _split(n_atoms: Sequence[int]) -> int:
    """The number of modes on the left side that makes the smaller side as large as possible."""
    sizes = [
        min(math.prod(n_atoms[:split]), math.prod(n_atoms[split:]))
        for split in range(1, len(n_atoms))
    ]
    return 1 + int(np.argmax(sizes)) if sizes else 0
