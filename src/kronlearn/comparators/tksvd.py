"""TKSVD: update one tuple of atoms, one per factor, at a time by a rank-1 fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.comparators.codes import CodesComparator, positions_by_atom
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.replacement import unused_by_mode
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical

__all__ = ["TKSVD"]

# Sweeps of a rank-1 fit.
_SWEEPS = 10


@dataclass(eq=False, repr=False)
class TKSVD(CodesComparator):
    """TKSVD (Fu, Gao, Sun and Hong, 2014): the atoms of a tuple and their coefficients together.

    For each tuple ``(i, j, …)`` of atoms that a code uses, in C order, the samples that use it,
    minus all other tuples, form a tensor ``(samples, m_1, …, m_d)``. The atoms ``d_1i, d_2j, …``
    and the tuple's coefficients become the rank-1 fit of this tensor, by ten sweeps of alternating
    least squares from their current values. The atoms also belong to other tuples, whose
    coefficients stay: **an update can raise the error**. Every tuple is a pattern of its own; the
    original method searches the codes for frequent patterns.

    The dense dictionary is kept in memory, a matrix ``(m_1·…·m_d, n_1·…·n_d)``.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import TKSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = TKSVD((6, 5), n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((6, 5), (300, 30))
    """

    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """Update all tuples in use once, in C order; then make the atoms canonical."""
        n_atoms = dictionary.n_atoms
        factors = [np.array(stack[0]) for stack in dictionary.stacks]
        dense = _dense_rows(factors)
        X, positions = codes.astype(np.float64), positions_by_atom(codes)
        used = np.diff(positions.indptr) > 0
        for column in np.flatnonzero(used).tolist():
            tuple_of_atoms = [int(i) for i in np.unravel_index(column, n_atoms)]
            of_tuple = slice(*positions.indptr[column : column + 2])
            entries, samples = positions.data[of_tuple], positions.indices[of_tuple]
            x = X.data[entries]
            E = source.take(samples).astype(np.float64)
            E -= X[samples] @ dense
            E += np.outer(x, dense[column])
            atoms = [factor[:, i] for factor, i in zip(factors, tuple_of_atoms, strict=True)]
            atoms, X.data[entries] = _rank_one(E, atoms, x)
            for mode, i in enumerate(tuple_of_atoms):
                factors[mode][:, i] = atoms[mode]
            dense = _dense_rows(factors)
        stacks, scales = [], []
        for factor, unused in zip(factors, unused_by_mode(used.reshape(n_atoms)), strict=True):
            columns, scale = canonical(factor, factor)
            columns[:, unused] = factor[:, unused]
            stacks.append(columns[None])
            scales.append(scale)
        codes.data[:] = X.data * _outer(scales)[X.indices]
        return dictionary.with_stacks(stacks)


def _dense_rows(factors: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the dense dictionary with an atom per row, (n_1·…·n_d, m_1·…·m_d)."""
    return np.ascontiguousarray(KroneckerDictionary(factors).to_dense().T)


def _rank_one(
    E: NDArray[np.float64], atoms: Sequence[NDArray[np.float64]], x: NDArray[np.float64]
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Improve a rank-1 fit of E (samples, m_1·…·m_d): unit atoms, one per mode, and x."""
    atoms = list(atoms)
    for _ in range(_SWEEPS):
        mean = (x @ E).reshape([len(atom) for atom in atoms])
        for mode in range(len(atoms)):
            direction = _contracted(mean, atoms, mode)
            largest = np.abs(direction).max()
            if largest > 0 and np.isfinite(largest):
                direction = direction / largest
                atoms[mode] = direction / np.linalg.norm(direction)
        x = E @ _outer(atoms)
    return atoms, x


def _outer(vectors: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the outer product of vectors, flattened in C order."""
    return np.ravel(reduce(np.multiply.outer, vectors))


def _contracted(
    tensor: NDArray[np.float64], atoms: Sequence[NDArray[np.float64]], mode: int
) -> NDArray[np.float64]:
    """Multiply a tensor (m_1, …, m_d) by the atoms of all modes but one; return (m_mode,)."""
    for atom in reversed(atoms[mode + 1 :]):
        tensor = tensor @ atom
    for atom in atoms[:mode]:
        tensor = atom @ tensor.reshape(len(atom), -1)
    return tensor.reshape(-1)
