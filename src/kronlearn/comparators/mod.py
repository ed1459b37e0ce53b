"""The method of optimal directions: the whole dictionary by least squares."""

from __future__ import annotations

from kronlearn.comparators.learners import UnstructuredComparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.structures import General, Structure

__all__ = ["MOD"]


class MOD(UnstructuredComparator):
    """Method of optimal directions (Engan, Aase and Husøy, 1999): ``D = Y Xᵀ (X Xᵀ)⁻¹``.

    The least-squares update of one mode, so the general method with a single factor. The update
    never raises the error; coding may.

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
    >>> from kronlearn.comparators import MOD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = MOD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """

    def _structure(self, dictionary: Dictionary) -> Structure:
        return General()
