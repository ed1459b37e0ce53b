"""AK-SVD: one atom after the other by one power iteration, its coefficients along with it."""

from __future__ import annotations

import numpy as np

from kronlearn import _native
from kronlearn.comparators.atoms import samples_as_rows
from kronlearn.comparators.learners import UnstructuredComparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Codes
from kronlearn.core.structures import FromCodes, Structure
from kronlearn.io.arrays import ArraySource

__all__ = ["AKSVD"]


class AKSVD(UnstructuredComparator):
    """Approximate K-SVD (Rubinstein, Zibulevsky and Elad, 2008).

    For each atom d in turn, with E the samples that use it minus all other atoms, one per row, and
    x its coefficients:

        ``d = Eᵀx / ‖Eᵀx‖``, then ``x = E d``

    which is one power iteration towards the singular pair of :class:`KSVD`. Both steps are exact,
    so an update never raises the error; coding may. E is never formed: with the Gram form
    ``Eᵀx = Yᵀx − D (Xᵀx) + d ‖x‖²`` an update costs about as much as reading each sample twice for
    every nonzero it has. It reads samples in any order, so those that are not C-contiguous float32
    or float64 are copied as such, all of them, for its duration. It runs in one thread; coding
    runs in ``n_jobs``.

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
    >>> from kronlearn.comparators import AKSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = AKSVD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """

    def _structure(self, dictionary: Dictionary) -> Structure:
        return PowerIterations()


class PowerIterations(FromCodes):
    """Any unit columns, each updated by one power iteration."""

    name = "aksvd"

    def update(self, dictionary: Dictionary, source: ArraySource, codes: Codes) -> Dictionary:
        """All atoms updated once, in order."""
        assert codes.index is not None
        assert codes.nonzeros is not None
        assert codes.value is not None
        atoms = np.array(dictionary.stacks[0][0].T, dtype=np.float64, order="C")
        samples = samples_as_rows(source)
        _native.sweep_atoms(samples, codes.index, codes.nonzeros, codes.value, atoms)
        return dictionary.with_stacks([atoms.T[None]])
