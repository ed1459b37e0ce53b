"""TKSVD: one tuple of atoms, one of each factor, after the other by a rank-1 fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.comparators.codes import CodesComparator, by_atom
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

    For each tuple ``(i, j, …)`` of atoms that a code uses, in C order, the samples that use it
    minus all other tuples are a tensor ``(samples, m_1, …, m_d)``, and the atoms ``d_1i, d_2j, …``
    with the tuple's coefficients become its rank-1 fit, by ten sweeps of alternating least squares
    from where they are. The new atoms serve other tuples, too, whose coefficients stay: **the
    error can rise**, also in an update. Every tuple is taken for a pattern of its own; the original
    mines the codes for frequent ones.

    The whole dictionary is kept as a matrix ``(m_1·…·m_d, n_1·…·n_d)``.

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
        """All tuples in use updated once, in C order; then made canonical."""
        n_atoms = dictionary.n_atoms
        factors = [np.array(stack[0]) for stack in dictionary.stacks]
        whole = _whole(factors)
        rows, places = codes.astype(np.float64), by_atom(codes)
        used = np.diff(places.indptr) > 0
        for number in np.flatnonzero(used).tolist():
            atoms_of = [int(i) for i in np.unravel_index(number, n_atoms)]
            mine = slice(*places.indptr[number : number + 2])
            entries, samples = places.data[mine], places.indices[mine]
            x = rows.data[entries]
            without = source.take(samples).astype(np.float64)
            without -= rows[samples] @ whole
            without += np.outer(x, whole[number])
            atoms = [factor[:, i] for factor, i in zip(factors, atoms_of, strict=True)]
            atoms, rows.data[entries] = _rank_one(without, atoms, x)
            for mode, i in enumerate(atoms_of):
                factors[mode][:, i] = atoms[mode]
            whole = _whole(factors)
        stacks, scales = [], []
        for factor, unused in zip(factors, unused_by_mode(used.reshape(n_atoms)), strict=True):
            columns, scale = canonical(factor, factor)
            columns[:, unused] = factor[:, unused]
            stacks.append(columns[None])
            scales.append(scale)
        codes.data[:] = rows.data * _outer(scales)[rows.indices]
        return dictionary.with_stacks(stacks)


def _whole(factors: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The whole dictionary, an atom per row (n_1·…·n_d, m_1·…·m_d)."""
    return np.ascontiguousarray(KroneckerDictionary(factors).to_dense().T)


def _rank_one(
    E: NDArray[np.float64], atoms: Sequence[NDArray[np.float64]], x: NDArray[np.float64]
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Unit atoms, one per mode, and coefficients x whose products fit E (samples, m_1·…·m_d)."""
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
    """The outer product of vectors, flattened in C order."""
    return np.ravel(reduce(np.multiply.outer, vectors))


def _contracted(
    tensor: NDArray[np.float64], atoms: Sequence[NDArray[np.float64]], mode: int
) -> NDArray[np.float64]:
    """A tensor (m_1, …, m_d) times the atoms of all modes but one, (m_mode,)."""
    for atom in reversed(atoms[mode + 1 :]):
        tensor = tensor @ atom
    for atom in atoms[:mode]:
        tensor = atom @ tensor.reshape(len(atom), -1)
    return tensor.reshape(-1)
