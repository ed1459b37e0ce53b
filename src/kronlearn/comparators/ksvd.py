"""K-SVD: one atom after the other by a singular pair, its coefficients along with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from kronlearn.comparators.atoms import AtomCodes
from kronlearn.comparators.learners import UnstructuredComparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Codes
from kronlearn.core.structures import FromCodes, Structure
from kronlearn.core.updates import canonical
from kronlearn.io.arrays import ArraySource

__all__ = ["KSVD"]

# Errors are computed for about this many numbers at a time.
_BLOCK_NUMBERS = 1 << 20


class KSVD(UnstructuredComparator):
    """K-SVD (Aharon, Elad and Bruckstein, 2006).

    For each atom in turn, with E the samples that use it minus all other atoms, one per row, the
    atom and its coefficients become the leading singular pair of E, ``E ≈ x dᵀ``: the best there is
    for both together. An update never raises the error; coding may. It keeps the errors of all
    samples in float64.

    Parameters
    ----------
    n_atoms : int
        Number of atoms.
    patch_shape : tuple of int, optional
        ``(m_1, …, m_d)`` of samples given as rows; only the start depends on it.
    n_nonzero_coefs : int, optional
        The most nonzeros a sample may have.
    tol : float, optional
        The ℓ2 norm a sample's residual may have. At least one of the two is needed.
    method : {"omp", "ols"}
        The coder.
    max_iter : int
        Iterations.
    init : {"dct", "data", "random"}, dictionary or array (n_features, n_atoms)
        Start: perturbed cosines, random samples, noise, or your own.
    random_state, n_jobs, verbose, time_budget, callback
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Attributes
    ----------
    dictionary_ : KroneckerDictionary of one mode
    history_, n_iter_, stop_reason_, patch_shape_
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import KSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = KSVD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """

    def _structure(self, dictionary: Dictionary) -> Structure:
        return SingularPairs()


class SingularPairs(FromCodes):
    """Any unit columns, each updated by a singular pair."""

    name = "ksvd"

    def update(self, dictionary: Dictionary, source: ArraySource, codes: Codes) -> Dictionary:
        """All atoms updated once, in order."""
        atoms = np.array(dictionary.stacks[0][0].T, dtype=np.float64, order="C")
        by_atom = AtomCodes(codes, len(atoms))
        errors = _errors(source, atoms, by_atom)
        for atom, column in enumerate(atoms):
            entries, samples = by_atom.of(atom)
            if len(entries) == 0:
                continue
            without = errors.take(samples, axis=0)
            without += np.outer(by_atom.data[entries], column)
            best = _leading_direction(without)[:, None]
            column[:] = canonical(best, column[:, None])[0][:, 0]
            x = without @ column
            errors[samples] = without - np.outer(x, column)
            by_atom.data[entries] = x
        by_atom.write()
        return dictionary.with_stacks([atoms.T[None]])


def _errors(
    source: ArraySource, atoms: NDArray[np.float64], codes: AtomCodes
) -> NDArray[np.float64]:
    """Samples minus what their codes make of the atoms (n, m), an array (N, m)."""
    errors = np.empty((len(source), source.n_features))
    step = max(1, _BLOCK_NUMBERS // source.n_features)
    for start in range(0, len(source), step):
        rows = slice(start, min(start + step, len(source)))
        errors[rows] = source.array[rows].reshape(-1, source.n_features)
        errors[rows] -= codes.rows[rows] @ atoms
    return errors


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
