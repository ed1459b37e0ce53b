"""Low rank by nuclear norms: singular values shrunk, and matrices as sums of Kronecker products.

SuKro and STARK fit a matrix D whose rearrangement has few singular values, and code with its
columns scaled to norm 1. Scaled columns are no short sum of Kronecker products any more, so the
norms are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged

__all__ = [
    "VANISHED",
    "Modes",
    "exact_sum",
    "has_no_zeros",
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

    ``xx`` (n, n) is ``X Xᵀ`` and ``xy`` (n, m) ``X Yᵀ``. Returns ``fitted`` (m, n) and ``kept``
    (n, n): ``D = fitted + P @ kept``. However small the ridge, P is what D is where the codes say
    nothing.

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
    """The columns of a matrix (m, n) scaled to norm 1, and the norms they had.

    A column that has vanished, of norm :data:`VANISHED` times the largest at most, is the present
    one, and is said to have that norm. If all have, the norms are 0.
    """
    norms = np.linalg.norm(D, axis=0)
    if norms.max() < _SMALLEST_MATRIX:
        return present, np.zeros(len(norms))
    smallest = VANISHED * norms.max()
    alive = norms > smallest
    norms = np.where(alive, norms, smallest)
    return np.where(alive, D / norms, present), norms


def terms_needed(values: NDArray[np.float64], tol: float) -> int:
    """How many singular values, in falling order, are the matrix but for a fraction of its norm.

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


def exact_sum(D: NDArray[np.float64], modes: Modes) -> KroneckerSumDictionary:
    """A matrix (m_1·m_2, n_1·n_2) as a sum of min(m_1 n_1, m_2 n_2) Kronecker products.

    Every term is a row or a column of the rearranged matrix. Other than of singular vectors nothing
    cancels in their sum, so that of small columns beside large ones all digits are kept. No column
    may be zero.
    """
    tensor = rearranged(D, *modes)
    rows, columns = tensor.shape
    scale = np.sqrt(np.abs(D).max())
    parts = [scale * np.eye(min(rows, columns)), tensor / scale]
    if rows > columns:
        parts = [parts[1].T, parts[0]]
    stacks = [part.reshape(-1, m, n) for part, m, n in zip(parts, *modes, strict=True)]
    return KroneckerSumDictionary(zip(*stacks, strict=True))


def has_no_zeros(stacks: Sequence[NDArray[np.float64]]) -> bool:
    """Whether no column of a sum of Kronecker products vanishes beside the largest."""
    total = sum(reduce(np.kron, term) for term in zip(*stacks, strict=True))
    norms = np.linalg.norm(total, axis=0)
    return bool(norms.min() > VANISHED * norms.max())
