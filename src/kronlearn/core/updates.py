"""Updates: the factors of a mode and its sums in, better factors out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from kronlearn.core.moments import ModeMoments, side_by_side

__all__ = ["canonical", "least_squares", "procrustes"]

# Eigenvalues of P below this fraction of the largest are taken for zero.
_RANK_TOLERANCE = 1e-10
# Far above the rank tolerance: pivots bound the condition loosely.
_SAFE_PIVOT = 1e-6


def least_squares(
    stack: NDArray[np.float64], sums: ModeMoments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The factors of a mode that minimise the squared error for fixed codes, and their norms.

    Solves ``D P = C`` as ``D + (C − D P) P⁺``: where P is singular, because atoms are unused or
    always used together, the factor stays what it was in the directions that nothing determines.
    The columns are then normalised; the codes have to be multiplied by the norms.

    Parameters
    ----------
    stack : (R, m, n)
        The present factors of all terms.
    sums : ModeMoments
        Their mode's sums.

    Returns
    -------
    stack : (R, m, n)
        The columns ``(R, :, j)`` of all terms together have norm 1; their largest entry is
        positive.
    scale : (n,)
        Signed norms of the columns.
    """
    terms, m, n = stack.shape
    wide = side_by_side(stack)
    solved = wide + _times_inverse(sums.c.T - wide @ sums.p, sums.p)
    solved = solved.reshape(m, terms, n).transpose(1, 0, 2)
    tall, scale = canonical(solved.reshape(-1, n), stack.reshape(-1, n))
    return tall.reshape(terms, m, n), scale


def _times_inverse(rows: NDArray[np.float64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """``rows P⁺``; where the atoms in use determine all of it, solved for, which is faster."""
    factor, solved, failed = dposv(p, rows.T, lower=1)
    if not failed:
        pivots = np.diagonal(factor) ** 2
        if pivots.min() > _SAFE_PIVOT * pivots.max():
            return np.asarray(solved.T)
    values, vectors = np.linalg.eigh(p)
    kept = values > _RANK_TOLERANCE * max(values[-1], 0.0)
    inverse: NDArray[np.float64] = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    return rows @ inverse


def procrustes(
    stack: NDArray[np.float64], sums: ModeMoments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The orthonormal factor that minimises the squared error for fixed codes: ``U Vᵀ`` of C.

    Same parameters and results as :func:`least_squares`, for one term; the scale is one.
    """
    u, _, vt = np.linalg.svd(sums.c.T, full_matrices=False)
    return (u @ vt)[None], np.ones(stack.shape[2])


def canonical(
    columns: NDArray[np.float64], fallback: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit columns whose largest entry is positive, and what they have to be multiplied by.

    Columns that are zero or not finite are taken from ``fallback`` with scale one.
    """
    places = np.abs(columns).argmax(axis=0)
    largest = columns[places, np.arange(columns.shape[1])]
    good = np.isfinite(largest) & (largest != 0)
    if not good.all():
        columns = np.where(good, columns, fallback)
        largest = np.where(good, largest, 1.0)
    # Dividing by the largest entry first keeps the squares from over- or underflowing.
    columns = columns / largest
    norms = np.where(good, np.sqrt(np.einsum("ij,ij->j", columns, columns)), 1.0)
    return columns / norms, largest * norms
