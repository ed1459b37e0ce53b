"""Updates: compute better factors of a mode from its sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from kronlearn import _native
from kronlearn.core.moments import ModeMoments

__all__ = ["canonical", "least_squares", "procrustes"]

# Eigenvalues of P below this fraction of the largest count as zero.
_RANK_TOLERANCE = 1e-10
# Far above the root of the rank tolerance: the pivots of a Cholesky factor bound the condition of P
# only loosely.
_SAFE_PIVOT = 1e-3


def least_squares(
    stack: NDArray[np.float64], sums: ModeMoments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The factors of a mode that minimise the squared error for fixed codes, and their norms.

    Solves ``D P = C``. If P is singular, because some atoms are unused or always used together, the
    solution is ``D + (C − D P) P⁺``, which keeps the present factor in all directions that the sums
    do not determine. The columns are then normalised; the codes have to be multiplied by the norms.

    Parameters
    ----------
    stack : (R, m, n)
        The mode's present factors, of all terms.
    sums : ModeMoments
        The mode's sums.

    Returns
    -------
    stack : (R, m, n)
        The new factors. Column j of all terms together has norm 1, and its largest entry is
        positive.
    scale : (n,)
        Signed norms of the columns.
    """
    terms, m, n = stack.shape
    assert sums.p is not None
    solved = _definite_solution(sums.p, sums.c)
    if solved is None:
        wide = stack.transpose(1, 0, 2).reshape(m, -1)
        inverse = np.linalg.pinv(sums.p, _RANK_TOLERANCE, hermitian=True)
        solved = wide + (sums.c.T - wide @ sums.p) @ inverse
    solved = solved.reshape(m, terms, n).transpose(1, 0, 2)
    tall, scale = canonical(solved.reshape(-1, n), stack.reshape(-1, n))
    return tall.reshape(terms, m, n), scale


def _definite_solution(
    p: NDArray[np.float64], c: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """``C P⁻¹``, or None if P is nearly singular."""
    factor, solved, failed = dposv(p, c, lower=1)
    pivots = factor.diagonal()
    if not failed and pivots.min() > _SAFE_PIVOT * pivots.max():
        return np.asarray(solved.T)
    return None


def procrustes(
    stack: NDArray[np.float64], sums: ModeMoments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The orthonormal factor that minimises the squared error for fixed codes: ``U Vᵀ`` of C.

    Parameters and results are those of :func:`least_squares`, for one term; the scale is one.
    """
    u, _, vt = np.linalg.svd(sums.c.T, full_matrices=False)
    return (u @ vt)[None], np.ones(stack.shape[2])


def canonical(
    columns: NDArray[np.float64], fallback: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scale columns to norm 1 with a positive largest entry; return them and their signed norms.

    Columns that are zero or not finite are replaced by those of ``fallback``, with scale one.
    """
    return _native.unit_columns(columns, fallback)
