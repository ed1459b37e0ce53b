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
    a CP decomposition of the rearranged D. There, all entries of D have the same weight, although
    some atoms are used much more than others, so an update may raise the error. The columns are
    then scaled to norm 1 and the codes stay as they are, as published: the norms, which the ridge
    has shrunk, mean little. (If the codes took up the norms, the RMSE recorded for 16 × 16 atoms
    and 8 × 8 image patches would be 10, and would fall to 4.8 once the patches are coded again.)
    Updates need the full moments, ``n_codes²`` numbers.

    A column of D that no code uses is zero, and is filled by the terms that fit the other columns.
    If a column of the nearest sum is zero (1e-8 of the largest), learning ends with the current
    dictionary.

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
        start = self._start_of_terms(source, n_atoms, int(self.n_terms))
        # A sum even for one term: its factors keep the norms that the next decomposition needs.
        return KroneckerSumDictionary(start.terms)

    def _public_dictionary(self, dictionary: Dictionary) -> Dictionary:
        if dictionary.n_terms > 1:
            return dictionary
        return KroneckerDictionary(dictionary.coding_factors)

    def _update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """Return the sum nearest to the least-squares dictionary; atoms that no code uses stay.

        If the sum has columns of zeros, return the current dictionary.
        """
        assert moments.xx is not None
        # Scaled, since squares of the sums could over- or underflow.
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
