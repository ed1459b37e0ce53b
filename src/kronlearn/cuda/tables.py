"""A dictionary as the kernels of GPUs want it: its shape, and tables of its entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu

__all__ = ["SHAPE", "Tables", "gpu_tables", "shape_of"]

_MOST_MODES = 16
# Dictionaries whose tables are kept on the GPU for the next call.
_KEPT = 16

#: The struct Shape of the kernels.
SHAPE = np.dtype(
    [
        ("n_modes", np.int32),
        *((name, np.int32) for name in ("m1", "n1", "m2", "n2")),
        ("m", np.int32, _MOST_MODES),
        ("n", np.int32, _MOST_MODES),
    ],
    align=True,
)


@dataclass(frozen=True)
class Tables:
    """What the kernels look up.

    ``numbers`` are the factors with unit-norm columns, their squares, the Gram matrices of both
    sides and the atoms of both sides, one after the other; ``norms`` the norms that the columns of
    both sides had.
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
    if len(factors) > _MOST_MODES:
        raise ValueError(f"On a GPU there are at most {_MOST_MODES} modes.")
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
    """The tables of a dictionary on a GPU: the struct Shape, numbers by dtype, and norms."""

    shape: NDArray[Any]
    numbers: dict[np.dtype[Any], Any]
    norms: tuple[Any, Any]


def gpu_tables(gpu: Gpu, factors: Sequence[NDArray[Any]]) -> GpuTables:
    """The tables of factors; the same ones for the same shapes and entries."""
    entries = [(f.shape, np.asarray(f, np.float64).tobytes()) for f in factors]
    return _gpu_tables(gpu, *entries)


@lru_cache(_KEPT)
def _gpu_tables(gpu: Gpu, *factors: tuple[tuple[int, int], bytes]) -> GpuTables:
    tables = Tables.of([np.frombuffer(entries).reshape(shape) for shape, entries in factors])
    kinds = map(np.dtype, (np.float32, np.float64))
    numbers = {kind: gpu.upload(tables.numbers.astype(kind)) for kind in kinds}
    left, right = map(gpu.upload, tables.norms)
    # Other threads find them here, and may work on other streams.
    gpu.finish()
    return GpuTables(tables.shape, numbers, (left, right))


def _product(parts: Sequence[NDArray[np.float64]], empty: tuple[int, ...]) -> NDArray[np.float64]:
    """The Kronecker product of matrices or vectors; of none a one."""
    product: Any = np.ones(empty)
    for part in parts:
        product = np.kron(product, part)
    return np.asarray(product)


def _split(n_atoms: Sequence[int]) -> int:
    """How many modes make the left side: its smaller one is as large as possible."""
    sizes = [
        min(math.prod(n_atoms[:split]), math.prod(n_atoms[split:]))
        for split in range(1, len(n_atoms))
    ]
    return 1 + int(np.argmax(sizes)) if sizes else 0
