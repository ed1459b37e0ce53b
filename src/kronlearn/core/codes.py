"""Codes of fixed width, which passes write, and CSR arrays, which users get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn import _native

__all__ = ["Codes", "csr_codes"]

# NumPy asks the system for large pages for arrays of at least this many bytes.
_LARGE_PAGES_FROM = 1 << 22


@dataclass(frozen=True)
class Codes:
    """Codes of fixed width: the first ``nonzeros[k]`` entries of row k, with ascending indices.

    ``index`` and ``value`` are (N, width), ``nonzeros`` is (N,).
    """

    index: NDArray[np.int32]
    value: NDArray[Any]
    nonzeros: NDArray[np.int32]

    @classmethod
    def empty(cls, n_samples: int, width: int, dtype: Any) -> Codes:
        """Uninitialised codes of N samples."""
        shape, count = (n_samples, width), n_samples * width
        nonzeros = np.empty(n_samples, np.int32)
        index_size = -(-4 * count // np.dtype(dtype).itemsize)
        if (count + index_size) * np.dtype(dtype).itemsize < _LARGE_PAGES_FROM:
            return cls(np.empty(shape, np.int32), np.empty(shape, dtype), nonzeros)
        # Values and indices share one array, for which NumPy asks for large pages: getting small
        # ones from the system can take a fifth as long as the coding. The array has the dtype of
        # the values because SciPy copies views that have few entries for the size of their base.
        memory = np.empty(count + index_size, dtype)
        index = memory[count:].view(np.int32)[:count]
        return cls(index.reshape(shape), memory[:count].reshape(shape), nonzeros)

    def packed(self, n_threads: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[Any]]:
        """The number of nonzeros of each row, and all their indices and values, row by row."""
        total = int(self.nonzeros.sum(dtype=np.int64))
        if total == self.index.size:
            return self.nonzeros, self.index.reshape(-1), self.value.reshape(-1)
        indices, values = np.empty(total, np.int32), np.empty(total, self.value.dtype)
        starts = _row_starts(self.nonzeros)
        _native.compress(self.index, self.value, self.nonzeros, starts, indices, values, n_threads)
        return self.nonzeros, indices, values


def csr_codes(parts: Sequence[tuple[NDArray[Any], ...]], n_codes: int) -> sparse.csr_array:
    """Make one CSR array ``(N, n_codes)`` of packed codes of consecutive samples.

    Parameters
    ----------
    parts : sequence of (nonzeros, indices, values)
        The results of :meth:`Codes.packed`.
    """
    nonzeros, indices, values = (_concatenated(arrays) for arrays in zip(*parts, strict=True))
    starts = _row_starts(nonzeros)
    kind = np.int32 if starts[-1] < 2**31 else np.int64
    arrays = values, indices.astype(kind, copy=False), starts.astype(kind, copy=False)
    X = sparse.csr_array(arrays, shape=(len(nonzeros), n_codes))
    X.has_sorted_indices = True
    X.has_canonical_format = True
    return X


def _row_starts(nonzeros: NDArray[Any]) -> NDArray[np.int64]:
    starts = np.zeros(len(nonzeros) + 1, np.int64)
    np.cumsum(nonzeros, out=starts[1:])
    return starts


def _concatenated(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    # A single array is not copied.
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
