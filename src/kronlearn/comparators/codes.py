"""Comparators whose update needs the codes of all samples."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.comparators.learners import Comparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, worst_first
from kronlearn.core.iteration import Iteration
from kronlearn.core.loop import Plan
from kronlearn.core.replacement import MOST_REPLACED, replace_unused, unused_by_mode
from kronlearn.core.source import Source

__all__ = ["CodesComparator", "positions_by_atom", "residuals"]


class CodesComparator(Comparator):
    """A method whose update needs the codes of all samples, a CSR array in memory."""

    @abstractmethod
    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """Return a better dictionary; set the values of ``codes`` to match, keep the support."""

    def _iterate(self, engine: Engine, dictionary: Dictionary, plan: Plan) -> Iteration:
        source = engine.source
        codes = engine.codes(dictionary, plan.coder)
        E = residuals(source, dictionary, codes)
        squares = np.einsum("ij,ij->i", E, E)
        used = np.bincount(codes.indices, minlength=codes.shape[1]) > 0
        unused = unused_by_mode(used.reshape(dictionary.n_atoms))
        updated = self._update(source, dictionary, codes)
        worst = np.flatnonzero(squares)
        _, worst = worst_first(squares[worst], worst, MOST_REPLACED)
        updated, replaced = replace_unused(updated, unused, worst, source, plan.coder)
        return Iteration(updated, float(squares.sum()), codes.nnz, replaced)


def residuals(
    source: Source, dictionary: Dictionary, codes: sparse.csr_array
) -> NDArray[np.float64]:
    """Return the residuals of all samples, (N, m_1·…·m_d)."""
    atoms = dictionary.to_dense().T.astype(np.float64)
    E: NDArray[np.float64] = source.read(0, len(source)) - codes @ atoms
    return E


def positions_by_atom(codes: sparse.csr_array) -> sparse.csc_array:
    """Return the positions of each atom's coefficients in ``codes.data``.

    The result has the shape of ``codes``, with positions in place of coefficients.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from kronlearn.comparators.codes import positions_by_atom
    >>> codes = sparse.csr_array(np.array([[0.0, 5.0, 6.0], [0.0, 0.0, 7.0]]))
    >>> positions = positions_by_atom(codes)
    >>> of_atom_2 = slice(*positions.indptr[2:4])
    >>> codes.data[positions.data[of_atom_2]].tolist(), positions.indices[of_atom_2].tolist()
    ([6.0, 7.0], [0, 1])
    """
    positions = np.arange(codes.nnz)
    return sparse.csr_array((positions, codes.indices, codes.indptr), shape=codes.shape).tocsc()
