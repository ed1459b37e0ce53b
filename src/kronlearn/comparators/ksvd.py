"""K-SVD: one atom after the other by a singular pair, its coefficients along with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from kronlearn.comparators.codes import CodesComparator, by_atom, residuals
from kronlearn.comparators.learners import UnstructuredComparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical

__all__ = ["KSVD"]


@dataclass(eq=False, repr=False)
class KSVD(UnstructuredComparator, CodesComparator):
    """K-SVD (Aharon, Elad and Bruckstein, 2006).

    For each atom in turn, with E the samples that use it minus all other atoms, one per row, the
    atom and its coefficients become the leading singular pair of E, ``E ≈ x dᵀ``: the best there is
    for both together. An update never raises the error; coding may. It keeps the errors of all
    samples in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import KSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = KSVD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """

    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """All atoms updated once, in order, each by a singular pair."""
        atoms = np.array(dictionary.stacks[0][0].T, order="C")
        left = residuals(source, dictionary, codes)
        places = by_atom(codes)
        for atom, column in enumerate(atoms):
            mine = slice(*places.indptr[atom : atom + 2])
            if mine.start == mine.stop:
                continue
            entries, samples = places.data[mine], places.indices[mine]
            without = left.take(samples, axis=0)
            without += np.outer(codes.data[entries].astype(np.float64), column)
            best = _leading_direction(without)[:, None]
            column[:] = canonical(best, column[:, None])[0][:, 0]
            x = without @ column
            left[samples] = without - np.outer(x, column)
            codes.data[entries] = x
        return dictionary.with_stacks([atoms.T[None]])


def _leading_direction(E: NDArray[np.float64]) -> NDArray[np.float64]:
    """A multiple of the leading right singular vector of a matrix, from its smaller Gram matrix.

    Scaled by the largest entry, so that no square over- or underflows.
    """
    largest = np.abs(E).max()
    if largest == 0 or not np.isfinite(largest):
        return np.zeros(E.shape[1])
    E = E / largest
    wide = len(E) < E.shape[1]
    gram = E @ E.T if wide else E.T @ E
    last = len(gram) - 1
    vector = linalg.eigh(gram, subset_by_index=[last, last], check_finite=False)[1][:, 0]
    return np.asarray(vector @ E if wide else vector)
