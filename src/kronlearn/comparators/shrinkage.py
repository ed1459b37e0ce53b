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
from scipy.linalg import cho_factor, cho_solve

from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.factors import frozen
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged, restored

__all__ = [
    "VANISHED",
    "Modes",
    "NormedDictionary",
    "ridge_parts",
    "singular_terms",
    "svt",
    "terms_needed",
    "unit_columns",
]

#: Columns whose norm is this fraction of the largest, or less, are taken for zero.
VANISHED = 1e-8
# A matrix of smaller columns is taken for zero.
_SMALLEST_MATRIX = 1e-30
# From this share of the trace on, a ridge makes any Gram matrix safe to factorise.
_SAFE_RIDGE = 1e-10

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
    size = float(np.abs(matrix).max())
    if threshold >= size * np.sqrt(matrix.size):
        return np.zeros_like(matrix), 0
    # Squares of very large and very small numbers are no numbers any more.
    matrix, threshold = matrix / size, threshold / size
    if threshold > _GRAM_FROM * np.linalg.norm(matrix):
        # Half the time of a decomposition of the matrix itself, less if it is wide.
        squares, vectors = np.linalg.eigh(matrix @ matrix.T)
        kept = squares > threshold**2
        u = vectors[:, kept]
        factors = size * (1.0 - threshold / np.sqrt(squares[kept]))
        return (u * factors) @ (u.T @ matrix), u.shape[1]
    u, values, vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > threshold))
    return (u[:, :rank] * (size * (values[:rank] - threshold))) @ vt[:rank], rank


def ridge_parts(
    xx: NDArray[np.float64], xy: NDArray[np.float64], ridge: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the minimiser of ``½‖Y − D X‖² + ridge/2·‖D − P‖²`` is made of, for any P.

    Parameters
    ----------
    xx : array of shape (n, n)
        ``X Xᵀ``.
    xy : array of shape (n, m)
        ``X Yᵀ``.
    ridge : float
        Positive. However small, P is what D is where the codes say nothing.

    Returns
    -------
    fitted : array of shape (m, n)
    kept : array of shape (n, n)
        ``D = fitted + P @ kept``.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.shrinkage import ridge_parts
    >>> fitted, kept = ridge_parts(np.diag([3.0, 0.0]), np.array([[6.0], [0.0]]), 1.0)
    >>> (fitted + np.array([[4.0, 5.0]]) @ kept).tolist()
    [[2.5, 5.0]]
    """
    size = float(np.trace(xx)) + ridge
    xx, xy, ridge = xx / size, xy / size, ridge / size
    if ridge > _SAFE_RIDGE:
        xx[np.diag_indices_from(xx)] += ridge
        factor = cho_factor(xx, overwrite_a=True)
        return cho_solve(factor, xy).T, ridge * cho_solve(factor, np.eye(len(xx)))
    values, vectors = np.linalg.eigh(xx)
    told = values > _SAFE_RIDGE * values[-1]
    known = vectors[:, told]
    fitted = (known / (values[told] + ridge)) @ (known.T @ xy)
    left = np.where(told, ridge / (np.where(told, values, 0.0) + ridge), 1.0)
    return fitted.T, (vectors * left) @ vectors.T


def unit_columns(
    D: NDArray[np.float64], present: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The columns of a matrix scaled to norm 1, and the norms they had.

    A column that has vanished, of norm :data:`VANISHED` times the largest at most, is the present
    one, and is said to have that norm. If all have, the norms are 0.

    Parameters
    ----------
    D : array of shape (m, n)
    present : array of shape (m, n)
        Unit columns.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.shrinkage import unit_columns
    >>> columns, norms = unit_columns(np.diag([5.0, 0.0]), np.eye(2)[::-1])
    >>> columns.tolist(), norms.tolist()
    ([[1.0, 1.0], [0.0, 0.0]], [5.0, 5e-08])
    """
    norms = np.linalg.norm(D, axis=0)
    if norms.max() < _SMALLEST_MATRIX:
        return present, np.zeros(len(norms))
    smallest = VANISHED * norms.max()
    alive = norms > smallest
    norms = np.where(alive, norms, smallest)
    return np.where(alive, D / norms, present), norms


def terms_needed(values: NDArray[np.float64], tol: float) -> int:
    """How many singular values, in falling order, are the matrix but for a tolerance.

    Parameters
    ----------
    values : array of shape (r,)
    tol : float
        The Frobenius norm that may be left out, as a fraction of the matrix's.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.shrinkage import terms_needed
    >>> terms_needed(np.array([4.0, 3.0, 0.01]), 0.1), terms_needed(np.array([4.0, 3.0]), 0.7)
    (2, 1)
    """
    left_out = np.sqrt(np.cumsum(values[::-1] ** 2))[::-1]
    return max(1, int(np.count_nonzero(left_out > tol * left_out[0])))


def singular_terms(
    u: NDArray[np.float64], values: NDArray[np.float64], vt: NDArray[np.float64], modes: Modes
) -> list[NDArray[np.float64]]:
    """The factors ``(r, m_i, n_i)`` of both modes that a rearranged matrix ``u·values·vt`` has."""
    root = np.sqrt(values)
    columns = (u * root, vt.T * root)
    return [part.T.reshape(-1, m, n) for part, m, n in zip(columns, *modes, strict=True)]


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
            How far a column of the sum may be from the one with its norm here, as a fraction of
            that norm.
        """
        tensor = self.rearranged()
        u, values, vt = np.linalg.svd(tensor, full_matrices=False)
        # Fewer terms leave out more of the matrix than all columns together may lack.
        rank = terms_needed(values, tol)
        missing = tensor - (u[:, :rank] * values[:rank]) @ vt[:rank]
        while rank < len(values) and self._lacks_more(missing, tol):
            missing -= np.outer(u[:, rank] * values[rank], vt[rank])
            rank += 1
        if rank < len(values):
            stacks = singular_terms(u[:, :rank], values[:rank], vt[:rank], self.modes)
        else:
            stacks = self._exact_terms(tensor)
        return KroneckerSumDictionary(zip(*stacks, strict=True))

    def _lacks_more(self, missing: NDArray[np.float64], tol: float) -> bool:
        """Whether some column, of a rearranged matrix, is larger than a fraction of ours."""
        norms = np.linalg.norm(restored(missing, *self.modes), axis=0)
        return bool((norms > tol * self.column_norms).any())

    def _exact_terms(self, tensor: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """As many terms as are ever needed, each a row or a column of the rearranged matrix.

        Other than of singular vectors nothing cancels in their sum, so that of small columns beside
        large ones all digits are kept.
        """
        rows, columns = tensor.shape
        scale = np.sqrt(self.column_norms.max())
        parts = [scale * np.eye(min(rows, columns)), tensor / scale]
        if rows > columns:
            parts = [parts[1].T, parts[0]]
        return [part.reshape(-1, m, n) for part, m, n in zip(parts, *self.modes, strict=True)]

    def __reduce__(self) -> tuple[Any, ...]:
        return NormedDictionary, (self.factors[0], self.modes, self.column_norms)
