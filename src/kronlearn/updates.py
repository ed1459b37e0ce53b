"""Updates: a factor and the sums of its mode in, a better factor out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kronlearn.moments import ModeMoments, Moments

__all__ = ["canonical", "least_squares", "procrustes", "sweep"]

# Eigenvalues of P below this fraction of the largest are taken for zero.
_RANK_TOLERANCE = 1e-10


def least_squares(
    factor: NDArray[np.float64], sums: ModeMoments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The factor that minimises the squared error for fixed codes, and the norms taken out of it.

    Solves ``D P = C`` as ``D + (C − D P) P⁺``: where P is singular, because atoms are unused or
    always used together, the factor stays what it was in the directions that nothing determines.
    The columns are then normalised; the codes have to be multiplied by the norms.

    Parameters
    ----------
    factor : (m, n)
        The present factor.
    sums : ModeMoments
        Its mode's sums.

    Returns
    -------
    factor : (m, n)
        Unit columns whose largest entry is positive.
    scale : (n,)
        Signed norms of the columns.
    """
    values, vectors = np.linalg.eigh(sums.p)
    kept = values > _RANK_TOLERANCE * max(values[-1], 0.0)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    return canonical(factor + (sums.c.T - factor @ sums.p) @ inverse, factor)


def procrustes(
    factor: NDArray[np.float64], sums: ModeMoments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The orthonormal factor that minimises the squared error for fixed codes: ``U Vᵀ`` of C.

    Same parameters and results as :func:`least_squares`; the scale is one.
    """
    u, _, vt = np.linalg.svd(sums.c.T, full_matrices=False)
    return u @ vt, np.ones(factor.shape[1])


def canonical(
    columns: NDArray[np.float64], fallback: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit columns whose largest entry is positive, and what they have to be multiplied by.

    Columns that are zero or not finite are taken from ``fallback`` with scale one.
    """
    norms = np.linalg.norm(columns, axis=0)
    good = np.isfinite(norms) & (norms > 0)
    columns = np.where(good, columns, fallback)
    norms = np.where(good, norms, 1.0)
    largest = columns[np.abs(columns).argmax(axis=0), np.arange(columns.shape[1])]
    scale = np.where(good & (largest < 0), -norms, norms)
    return columns / scale, scale


def sweep(
    factors: list[NDArray[np.float64]], moments: Moments, structure: str
) -> list[NDArray[np.float64]]:
    """All factors updated once, in order; the moments are rescaled along with the codes."""
    update = procrustes if structure == "orthonormal" else least_squares
    factors = list(factors)
    for mode, factor in enumerate(factors):
        factors[mode], scale = update(factor, moments.mode(factors, mode))
        if structure != "orthonormal":
            moments.rescale(mode, scale)
    return factors
