"""Products of samples and codes with matrices, mode by mode and block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from kronlearn.core.numbers import check_real, real_array

__all__ = ["as_floats", "checked_sparse_codes", "mode_products", "row_blocks", "unfold"]

# A dense block holds about this many numbers (8 MiB in float64), however many samples there are.
_BLOCK_NUMBERS = 1 << 20


def mode_products(block: NDArray[Any], matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """``block ×_1 A_1ᵀ … ×_d A_dᵀ`` for matrices A_i (in, out); block (N, in_1, …, in_d) or flat.

    Each step multiplies the last mode, as one large product, and moves it to the front of the
    modes; after d steps the modes are back in order.
    """
    block = block.reshape(-1, *(matrix.shape[0] for matrix in matrices))
    for matrix in reversed(matrices):
        block = np.moveaxis(block @ matrix, -1, 1)
    return block


def row_blocks(n_samples: int, numbers_per_sample: int) -> Iterator[slice]:
    """Slices of samples that fit into a dense block."""
    step = max(1, _BLOCK_NUMBERS // numbers_per_sample)
    for start in range(0, n_samples, step):
        yield slice(start, min(start + step, n_samples))


def as_floats(values: ArrayLike, name: str) -> NDArray[Any]:
    """Convert values to float64 unless they are float32; arrays on a GPU stay there."""
    if hasattr(values, "__cuda_array_interface__") and hasattr(values, "__array_function__"):
        array: NDArray[Any] = values  # type: ignore[assignment]
        check_real(array.dtype, name)
    else:
        array = real_array(values, name)
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def unfold(array: NDArray[Any], name: str, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Reshape rows ``(N, prod(shape))`` to ``(N, *shape)``; ``kind`` is for error messages."""
    if array.shape[1:] == shape and array.ndim == len(shape) + 1:
        return array
    if array.ndim == 2 and array.shape[1] == math.prod(shape):
        return array.reshape(-1, *shape)
    needed = f"(N, {', '.join(map(str, shape))})"
    if len(shape) > 1:
        needed += f" or (N, {math.prod(shape)})"
    hint = f" For one of them pass {name}[None]." if array.shape == shape else ""
    raise ValueError(
        f"{name} has shape {array.shape}; this dictionary needs {kind} of shape {needed}.{hint}"
    )


def checked_sparse_codes(codes: Any, n_atoms: tuple[int, ...]) -> Any:
    """Convert sparse codes to CSR after checking their shape, dtype and indices."""
    n_codes = math.prod(n_atoms)
    if codes.ndim != 2 or codes.shape[1] != n_codes:
        raise ValueError(
            f"codes has shape {codes.shape}; this dictionary needs (N, {n_codes}), one column per "
            f"atom ({' × '.join(map(str, n_atoms))})."
        )
    check_real(codes.dtype, "codes")
    rows = codes.tocsr()
    # SciPy and CuPy do not check the indices that users pass, and write out of bounds.
    if sparse.issparse(rows):
        rows.check_format(full_check=True)
    elif rows.nnz and not (rows.indices.min() >= 0 and rows.indices.max() < n_codes):
        raise ValueError(f"codes has column indices that are not in 0 to {n_codes - 1}.")
    return rows
