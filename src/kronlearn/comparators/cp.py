"""CP decompositions: a tensor as a short sum of outer products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import khatri_rao

__all__ = ["cp_terms", "singular_pairs"]

Columns = Sequence[NDArray[np.float64]]

# Eigenvalues of a Gram matrix below this fraction of the largest are taken for zero.
_RANK_TOLERANCE = 1e-10


def cp_terms(
    tensor: NDArray[np.float64], start: Columns, n_sweeps: int = 50, tol: float = 1e-8
) -> list[NDArray[np.float64]]:
    """The columns whose outer products sum up to a tensor, as nearly as r of them can.

    Of two modes these are the leading singular pairs. With more modes they are improved by
    alternating least squares until a sweep lowers the squared error by no more than ``tol`` of the
    tensor's, or ``n_sweeps`` times.

    Parameters
    ----------
    tensor : array of shape (p_1, …, p_d)
    start : sequence of d arrays of shape (p_i, r)

    Returns
    -------
    list of d arrays of shape (p_i, r)
        ``tensor ≈ Σ_j a_1j ∘ … ∘ a_dj``; the columns of one j have the same norm.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.cp import cp_terms
    >>> rng = np.random.default_rng(0)
    >>> truth = [rng.standard_normal((p, 2)) for p in (4, 5, 6)]
    >>> tensor = np.einsum("ar,br,cr->abc", *truth)
    >>> found = cp_terms(tensor, [rng.standard_normal(t.shape) for t in truth])
    >>> bool(np.allclose(np.einsum("ar,br,cr->abc", *found), tensor, atol=1e-3))
    True
    """
    r = start[0].shape[1]
    if tensor.ndim == 2:
        return singular_pairs(tensor, r)
    columns = _alternating(tensor, list(start), n_sweeps, tol)
    norms = np.stack([np.linalg.norm(part, axis=0) for part in columns])
    size = np.prod(norms, axis=0) ** (1 / len(columns))
    return [
        part * np.divide(size, norm, out=np.zeros(r), where=norm > 0)
        for part, norm in zip(columns, norms, strict=True)
    ]


def singular_pairs(matrix: NDArray[np.float64], r: int) -> list[NDArray[np.float64]]:
    """The leading r singular vectors of both sides, times the roots of the singular values.

    Pairs that the matrix is too small for are zero.
    """
    u, values, vt = np.linalg.svd(matrix, full_matrices=False)
    missing = max(0, r - len(values))
    columns = (u * np.sqrt(values), vt.T * np.sqrt(values))
    return [np.pad(part, ((0, 0), (0, missing)))[:, :r] for part in columns]


def _alternating(
    tensor: NDArray[np.float64], columns: list[NDArray[np.float64]], n_sweeps: int, tol: float
) -> list[NDArray[np.float64]]:
    modes = range(tensor.ndim)
    unfolded = [np.moveaxis(tensor, mode, 0).reshape(len(columns[mode]), -1) for mode in modes]
    grams = [part.T @ part for part in columns]
    energy = np.sum(tensor**2)
    error = np.inf
    for _ in range(n_sweeps):
        for mode in modes:
            others = [other for other in modes if other != mode]
            gram = np.prod([np.ones_like(grams[mode]), *(grams[other] for other in others)], axis=0)
            outer = reduce(
                khatri_rao, [columns[other] for other in others], np.ones((1, len(gram)))
            )
            products = unfolded[mode] @ outer
            inverse = np.linalg.pinv(gram, rcond=_RANK_TOLERANCE, hermitian=True)
            columns[mode] = columns[mode] + (products - columns[mode] @ gram) @ inverse
            grams[mode] = columns[mode].T @ columns[mode]
        before = error
        error = energy - 2 * np.sum(products * columns[-1]) + np.sum(gram * grams[-1])
        if before - error <= tol * energy:
            break
    return columns
