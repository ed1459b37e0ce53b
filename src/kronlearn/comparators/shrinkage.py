"""Low rank by nuclear norms: singular values shrunk, and dictionaries that know their norms.

SuKro and STARK fit a matrix D whose rearrangement has few singular values, and code with its
columns scaled to norm 1. Scaled columns are no short sum of Kronecker products any more, so the
norms are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.dictionary import KroneckerDictionary
from kronlearn.factors import frozen
from kronlearn.sums import KroneckerSumDictionary, rearranged

__all__ = ["NormedDictionary", "svt"]

# Singular values above this fraction of the norm are the roots of the Gram matrix's eigenvalues to
# twelve digits.
_GRAM_FROM = 1e-4

# (m_1, …, m_d) and (n_1, …, n_d).
Modes = tuple[tuple[int, ...], tuple[int, ...]]


def svt(matrix: NDArray[Any], threshold: float) -> tuple[NDArray[Any], int]:
    """The matrix with every singular value lowered by a threshold, to 0 at the least; its rank.

    The minimiser of ``½‖W − matrix‖² + threshold·‖W‖_*``.

    Parameters
    ----------
    matrix : array of shape (p, q)
    threshold : float

    Returns
    -------
    shrunk : array of shape (p, q)
    rank : int
        Number of singular values above the threshold.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.shrinkage import svt
    >>> shrunk, rank = svt(np.diag([3.0, 1.0, 0.5]), 0.75)
    >>> np.diag(shrunk).tolist(), rank
    ([2.25, 0.25, 0.0], 2)
    """
    if len(matrix) > matrix.shape[1]:
        shrunk, rank = svt(matrix.T, threshold)
        return shrunk.T, rank
    if threshold > _GRAM_FROM * np.linalg.norm(matrix):
        # Half the time of a decomposition of the matrix itself, less if it is wide.
        squares, vectors = np.linalg.eigh(matrix @ matrix.T)
        kept = squares > threshold**2
        u = vectors[:, kept]
        return (u * (1.0 - threshold / np.sqrt(squares[kept]))) @ (u.T @ matrix), u.shape[1]
    u, values, vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > threshold))
    return (u[:, :rank] * (values[:rank] - threshold)) @ vt[:rank], rank


class NormedDictionary(KroneckerDictionary):
    """One matrix for samples of several modes, with unit columns that know what norm they had.

    Parameters
    ----------
    D : array of shape (m_1·…·m_d, n_1·…·n_d)
        Columns of any norm, none of them zero; of norm 1 if ``column_norms`` are given.
    modes : (m_1, …, m_d), (n_1, …, n_d)
        How the matrix is rearranged.
    column_norms : array of shape (n_1·…·n_d,), optional

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.shrinkage import NormedDictionary
    >>> d = NormedDictionary(np.kron([[3.0], [4.0]], [[1.0], [0.0]]), ((2, 2), (1, 1)))
    >>> d.factors[0].ravel().tolist(), d.column_norms.tolist()
    ([0.6, 0.0, 0.8, 0.0], [5.0])
    >>> d.kronecker_sum(1e-6)
    KroneckerSumDictionary(n_terms=1, patch_shape=(2, 2), n_atoms=(1, 1), dtype=float64)
    """

    __slots__ = ("column_norms", "modes")

    column_norms: NDArray[np.float64]
    modes: Modes

    def __init__(
        self, D: NDArray[Any], modes: Modes, column_norms: NDArray[np.float64] | None = None
    ) -> None:
        norms = np.linalg.norm(D, axis=0) if column_norms is None else np.array(column_norms)
        super().__init__([D / norms if column_norms is None else D])
        object.__setattr__(self, "column_norms", frozen([norms])[0])
        object.__setattr__(self, "modes", modes)

    def with_stacks(self, stacks: Sequence[NDArray[Any]]) -> NormedDictionary:
        """A dictionary of other unit columns, an array ``(1, m, n)``, and the same norms."""
        return NormedDictionary(stacks[0][0], self.modes, self.column_norms)

    def rearranged(self) -> NDArray[Any]:
        """The tensor ``(m_1 n_1, …, m_d n_d)`` of the columns with the norms they had."""
        return rearranged(self.factors[0] * self.column_norms, *self.modes)

    def kronecker_sum(self, tol: float) -> KroneckerSumDictionary:
        """The shortest sum of Kronecker products that is this dictionary, but for a tolerance.

        Of two modes only.

        Parameters
        ----------
        tol : float
            With the columns' norms, ``‖sum − D‖_F ≤ tol·‖D‖_F``.
        """
        u, values, vt = np.linalg.svd(self.rearranged(), full_matrices=False)
        # What is left out if the first r values are kept, for every r from 0 on.
        left_out = np.append(np.sqrt(np.cumsum(values[::-1] ** 2))[::-1], 0.0)
        rank = max(1, int(np.argmax(left_out <= tol * left_out[0])))
        root = np.sqrt(values[:rank])
        columns = (u[:, :rank] * root, vt[:rank].T * root)
        stacks = [
            part.T.reshape(rank, m, n) for part, m, n in zip(columns, *self.modes, strict=True)
        ]
        return KroneckerSumDictionary(zip(*stacks, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return NormedDictionary, (self.factors[0], self.modes, self.column_norms)
