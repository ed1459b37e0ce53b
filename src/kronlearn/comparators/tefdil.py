"""TeFDiL: the least-squares dictionary, then the nearest sum of Kronecker products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kronlearn.comparators.learners import MomentsComparator
from kronlearn.comparators.low_rank import cp_terms, has_no_zeros, ridge_parts
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged
from kronlearn.core.moments import Moments
from kronlearn.core.replacement import unused_by_mode
from kronlearn.core.source import Source
from kronlearn.parameters import count, number

__all__ = ["TeFDiL"]


@dataclass(eq=False, repr=False)
class TeFDiL(MomentsComparator):
    """TeFDiL (Ghassemi, Shakeri, Sarwate and Bajwa, 2020): sums of Kronecker products.

    An update finds the unstructured least-squares dictionary with a ridge,
    ``D = Y Xᵀ (X Xᵀ + ε‖X Xᵀ‖_F I)⁻¹``, and replaces it by the nearest sum of R Kronecker products,
    which is a CP decomposition of the rearranged D. All entries of D weigh the same there, although
    some atoms are used much more than others, so the update may raise the error. The columns are
    then scaled to norm 1 and the codes stay as they are, as published: the norms that the ridge has
    shrunk say little. (With codes that take up the norms the RMSE of 16 × 16 atoms for 8 × 8 image
    patches is recorded as 10, and falls to 4.8 as soon as they are coded again.) It needs the full
    moments, ``n_codes²`` numbers.

    A column of D that no code uses is 0, and the terms that fit the other columns fill it. If a
    column of the nearest sum is zero (1e-8 of the largest), learning ends with the present one.

    Parameters
    ----------
    init : {"dct", "data", "random"}, dictionary or list of factors, default "dct"
        Start: perturbed cosines, directions of random samples, noise, or your own, which may have
        fewer terms than R.
    n_terms : int, default 1
        R: how many Kronecker products are summed.
    ridge : float, default 0.01
        The weight ε of the ridge.

    Attributes
    ----------
    dictionary_ : KroneckerDictionary, or KroneckerSumDictionary for several terms

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import TeFDiL
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = TeFDiL((6, 5), n_nonzero_coefs=3, n_terms=2, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_terms, model.transform(Y).shape
    (2, (300, 30))
    """

    n_terms: int = count(1)
    ridge: float = number(0.01, "[0, inf)")

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        start = self._sum_to_start(source, n_atoms, int(self.n_terms))
        # A sum even of one term: its factors keep the norms that the next decomposition needs.
        return KroneckerSumDictionary(start.terms)

    def _public_dictionary(self, dictionary: Dictionary) -> Dictionary:
        if dictionary.n_terms > 1:
            return dictionary
        return KroneckerDictionary(dictionary.coding_factors)

    def _update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """The nearest sum to the least-squares dictionary; atoms that no code uses stay.

        If columns of it are zero, the present sum.
        """
        assert moments.xx is not None
        # Squares of the sums may be too large or too small for a number.
        size = np.abs(moments.xx).max() or 1.0
        xx, xy = moments.xx / size, moments.xy / size
        D, _ = ridge_parts(xx, xy, float(self.ridge * np.linalg.norm(xx)))
        tensor = rearranged(D, dictionary.patch_shape, dictionary.n_atoms)
        start = [stack.reshape(len(stack), -1).T for stack in dictionary.stacks]
        columns = cp_terms(tensor, start)
        parts = zip(columns, dictionary.stacks, unused_by_mode(moments.used()), strict=True)
        stacks = []
        for column, stack, unused in parts:
            new = column.T.reshape(stack.shape)
            new[:, :, unused] = stack[:, :, unused]
            stacks.append(new)
        return dictionary.with_stacks(stacks) if has_no_zeros(stacks) else dictionary
