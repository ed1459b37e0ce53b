"""AK-SVD: one atom after the other by one power iteration, its coefficients along with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from kronlearn import _native
from kronlearn.comparators.codes import CodesComparator
from kronlearn.comparators.learners import UnstructuredComparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.core.source import Source

__all__ = ["AKSVD"]


@dataclass(eq=False, repr=False)
class AKSVD(UnstructuredComparator, CodesComparator):
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

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import AKSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = AKSVD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """

    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """All atoms updated once, in order, each by one power iteration."""
        atoms = np.array(dictionary.stacks[0][0].T, order="C")
        samples = source.read(0, len(source))
        _native.sweep_atoms(
            samples, codes.indptr, codes.indices, codes.data, atoms, instruction_set()
        )
        return dictionary.with_stacks([atoms.T[None]])
