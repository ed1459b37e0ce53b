"""Which coefficients belong to an atom, for methods that update one atom after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.core.engine import Codes
from kronlearn.io.arrays import ArraySource

__all__ = ["AtomCodes", "samples_as_rows"]


class AtomCodes:
    """Codes in float64, by sample and by atom.

    ``rows`` are the codes as a CSR array (N, n_codes); ``data``, its coefficients, may be changed.

    Parameters
    ----------
    codes : Codes
        With supports and values.
    n_codes : int
        Atoms of the whole dictionary.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.atoms import AtomCodes
    >>> from kronlearn.engines.threads import Codes
    >>> index = np.array([[0, 2], [2, 0]], np.int32)
    >>> codes = Codes(index, np.array([2, 1], np.int32), np.array([[5.0, 6.0], [7.0, 0.0]]))
    >>> by_atom = AtomCodes(codes, 3)
    >>> entries, samples = by_atom.of(2)
    >>> by_atom.data[entries].tolist(), samples.tolist()
    ([6.0, 7.0], [0, 1])
    """

    def __init__(self, codes: Codes, n_codes: int) -> None:
        assert codes.index is not None
        assert codes.nonzeros is not None
        assert codes.value is not None
        self._counted = np.arange(codes.index.shape[1]) < codes.nonzeros[:, None]
        self._values = codes.value
        index = codes.index[self._counted]
        starts = np.append(0, np.cumsum(codes.nonzeros, dtype=np.int64))
        self.data: NDArray[np.float64] = codes.value[self._counted].astype(np.float64)
        self.rows = sparse.csr_array(
            (self.data, index, starts), shape=(len(codes.nonzeros), n_codes), copy=False
        )
        self._samples = np.repeat(np.arange(len(codes.nonzeros)), codes.nonzeros)
        # NumPy sorts 16-bit integers by radix, more than ten times as fast.
        key = index.astype(np.int16) if n_codes < 1 << 15 else index
        self._order = np.argsort(key, kind="stable")
        self._bounds = np.append(0, np.cumsum(np.bincount(index, minlength=n_codes)))

    def of(self, atom: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """An atom's coefficients, as places in ``data``, and their samples, which ascend."""
        entries = self._order[self._bounds[atom] : self._bounds[atom + 1]]
        return entries, self._samples[entries]

    def used(self) -> NDArray[np.bool_]:
        """Which atoms (n_codes,) have coefficients."""
        return np.diff(self._bounds) > 0

    def write(self) -> None:
        """Put the coefficients back into the codes."""
        self._values[self._counted] = self.data


def samples_as_rows(source: ArraySource) -> NDArray[Any]:
    """All samples (N, m_1·…·m_d) for access in any order, C-contiguous float32 or float64.

    A view where the source needs no conversion; otherwise a copy, as large as its floats.
    """
    if source.is_direct:
        return source.array.reshape(-1, source.n_features)
    samples = np.empty((len(source), source.n_features), source.dtype)
    for rows, block in source.blocks(1):
        samples[rows] = block
    return samples
