"""The method of optimal directions: the whole dictionary by least squares."""

from __future__ import annotations

from dataclasses import dataclass

from kronlearn.comparators.learners import UnstructuredComparator

__all__ = ["MOD"]


@dataclass(eq=False, repr=False)
class MOD(UnstructuredComparator):
    """Method of optimal directions (Engan, Aase and Husøy, 1999): ``D = Y Xᵀ (X Xᵀ)⁻¹``.

    The least-squares update of one mode, so the general method with a single factor. For given
    codes the update never raises the error; coding may.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import MOD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = MOD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """
