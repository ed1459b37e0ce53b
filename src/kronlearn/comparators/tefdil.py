"""TeFDiL: the least-squares dictionary, then the nearest sum of Kronecker products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from kronlearn.comparators.cp import cp_terms
from kronlearn.comparators.learners import Comparator, check_nonnegative
from kronlearn.comparators.shrinkage import VANISHED, has_no_zeros
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.init import starting_dictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged
from kronlearn.core.moments import Moments
from kronlearn.core.replacement import unused_by_mode
from kronlearn.core.source import Source
from kronlearn.core.structures import Structure
from kronlearn.parameters import check_count

__all__ = ["TeFDiL"]

# A ridge below this is left out, and directions with less than this share of S_xx stay zero.
_RANK_TOLERANCE = 1e-10


@dataclass(eq=False, repr=False)
class TeFDiL(Comparator):
    """TeFDiL (Ghassemi, Shakeri, Sarwate and Bajwa, 2020): sums of Kronecker products.

    An update finds the unstructured least-squares dictionary with a ridge,
    ``D = Y Xᵀ (X Xᵀ + ε‖X Xᵀ‖_F I)⁻¹``, and replaces it by the nearest sum of R Kronecker products,
    which is a CP decomposition of the rearranged D. All entries of D weigh the same there, although
    some atoms are used much more than others, so the update may raise the error. The columns are
    then scaled to norm 1 and the codes stay as they are, as published: the norms that the ridge has
    shrunk say little. (With codes that take up the norms the RMSE of 16 × 16 atoms for 8 × 8 image
    patches is recorded as 10, and falls to 4.8 as soon as they are coded again.) It needs the full
    moments, ``n_codes²`` numbers.

    A column of D that no code uses is 0, and the terms that fit the other columns fill it. If they
    leave a column of a sum at zero (1e-8 of the largest), the unused columns of D are set to the
    present ones and the nearest sum is found again; if it has a column of zero even then, the
    dictionary stays what it was for that iteration.

    Parameters and attributes that are not listed here are described in
    :class:`~kronlearn.comparators.learners.Comparator`.

    Parameters
    ----------
    n_terms : int
        R: how many Kronecker products are summed.
    ridge : float
        ε.
    init : {"dct", "data", "random"}, dictionary or list of factors
        It may have fewer terms than R.

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

    n_terms: int = 1
    ridge: float = 0.01

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_count("n_terms", self.n_terms, 1)
        check_nonnegative(self, "ridge")

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        rng = check_random_state(self.random_state)
        start = starting_dictionary(self.init, source, n_atoms, rng, n_terms=self.n_terms)
        # A sum even of one term: its factors keep the norms that the next decomposition needs.
        return KroneckerSumDictionary(start.terms)

    def _structure(self, dictionary: Dictionary) -> Structure:
        return NearestSum(float(self.ridge))


class NearestSum(Structure):
    """Sums of Kronecker products near to a least-squares dictionary."""

    name = "tefdil"

    def __init__(self, ridge: float) -> None:
        self.ridge = ridge

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """The nearest sum to the least-squares dictionary; atoms that no code uses stay.

        If columns of that are zero, the sum nearest to a matrix with the present ones in their
        place; if columns of that are, too, the present sum.
        """
        assert isinstance(dictionary, KroneckerSumDictionary)
        D = least_squares_dictionary(moments, self.ridge)
        used = moments.used()
        stacks = _nearest(D, dictionary.stacks, unused_by_mode(used))
        if not has_no_zeros(stacks):
            norms = np.linalg.norm(D, axis=0)
            fitted = used.ravel() & (norms > VANISHED * norms.max())
            D = np.where(fitted, D, dictionary.to_dense() * dictionary.column_norms)
            stacks = _nearest(D, dictionary.stacks, [np.arange(0)] * used.ndim)
        updated = dictionary.with_stacks(stacks) if has_no_zeros(stacks) else dictionary
        return updated, np.ones(dictionary.n_codes)

    def result(self, dictionary: Dictionary) -> Dictionary:
        """The sum; a single term as the separable dictionary that it is."""
        if dictionary.n_terms > 1:
            return dictionary
        return KroneckerDictionary(dictionary.coding_factors)


def _nearest(
    D: NDArray[np.float64],
    present: Sequence[NDArray[np.float64]],
    kept: Sequence[NDArray[np.intp]],
) -> list[NDArray[np.float64]]:
    """The factors ``(R, m_i, n_i)`` of the sum nearest to D, but for the atoms of a mode kept."""
    sizes = [stack.shape[1:] for stack in present]
    patch_shape, n_atoms = zip(*sizes, strict=True)
    tensor = rearranged(D, patch_shape, n_atoms)
    found = cp_terms(tensor, [stack.reshape(len(stack), -1).T for stack in present])
    stacks = []
    for columns, stack, atoms in zip(found, present, kept, strict=True):
        new = columns.T.reshape(stack.shape)
        new[:, :, atoms] = stack[:, :, atoms]
        stacks.append(new)
    return stacks


def least_squares_dictionary(moments: Moments, ridge: float) -> NDArray[np.float64]:
    """``S_xyᵀ (S_xx + ridge·‖S_xx‖_F I)⁻¹``, (n_features, n_codes)."""
    assert moments.xx is not None
    xx, xy = moments.xx, moments.xy
    # Squares of the sums may be too large or too small for a number. Codes of no samples are zero.
    size = np.abs(xx).max() or 1.0
    xx, xy = xx / size, xy / size
    if ridge < _RANK_TOLERANCE:
        return (np.linalg.pinv(xx, rcond=_RANK_TOLERANCE, hermitian=True) @ xy).T
    xx[np.diag_indices_from(xx)] += ridge * np.linalg.norm(xx) or 1.0
    return np.asarray(np.linalg.solve(xx, xy).T, np.float64)
