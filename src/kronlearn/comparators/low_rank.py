"""Low rank: short sums of outer products, singular values shrunk, least squares with a ridge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import khatri_rao

__all__ = ["cp_terms", "has_no_zeros", "ridge_parts", "singular_pairs", "svt"]

Columns = Sequence[NDArray[np.float64]]

# Eigenvalues below this fraction of the largest are taken for zero.
_RANK_TOLERANCE = 1e-10
# Columns whose norm is this fraction of the largest, or less, are taken for zero.
_VANISHED = 1e-8
# Alternating least squares: the most sweeps, and the gain in squared error below which it stops.
_SWEEPS, _SWEEP_TOL = 50, 1e-8


def cp_terms(tensor: NDArray[np.float64], start: Columns) -> list[NDArray[np.float64]]:
    """The columns whose outer products sum up to a tensor, as nearly as r of them can.

    For two modes these are the leading singular pairs. With more modes they are improved by at most
    50 sweeps of alternating least squares; one that gains less than 1e-8 of the squares of the
    tensor is the last.

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
    >>> from kronlearn.comparators.low_rank import cp_terms
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
    columns = _alternating(tensor, list(start))
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
    tensor: NDArray[np.float64], columns: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    modes = range(tensor.ndim)
    unfolded = [np.moveaxis(tensor, mode, 0).reshape(len(columns[mode]), -1) for mode in modes]
    grams = [part.T @ part for part in columns]
    energy = np.sum(tensor**2)
    error = np.inf
    for _ in range(_SWEEPS):
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
        if before - error <= _SWEEP_TOL * energy:
            break
    return columns


def svt(matrix: NDArray[Any], threshold: float) -> NDArray[Any]:
    """The matrix with every singular value lowered by a threshold, to 0 at the least.

    The minimiser of ``½‖W − matrix‖² + threshold·‖W‖_*``.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.low_rank import svt
    >>> np.diag(svt(np.diag([3.0, 1.0, 0.5]), 0.75)).tolist()
    [2.25, 0.25, 0.0]
    """
    u, values, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u * np.maximum(values - threshold, 0.0)) @ vt


def ridge_parts(
    xx: NDArray[np.float64], xy: NDArray[np.float64], ridge: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The two parts of the minimiser of ``½‖Y − D X‖² + ridge/2·‖D − P‖²``, for any P.

    ``xx`` (n, n) is ``X Xᵀ`` and ``xy`` (n, m) ``X Yᵀ``. Returns ``fitted`` (m, n) and ``kept``
    (n, n): ``D = fitted + P @ kept``. Where the codes determine nothing, D is P, however small the
    ridge.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.low_rank import ridge_parts
    >>> fitted, kept = ridge_parts(np.diag([3.0, 0.0]), np.array([[6.0], [0.0]]), 1.0)
    >>> (fitted + np.array([[4.0, 5.0]]) @ kept).tolist()
    [[2.5, 5.0]]
    """
    # Sums of very large and very small samples would over- and underflow.
    size = float(np.trace(xx)) + ridge or 1.0
    xx, xy, ridge = xx / size, xy / size, ridge / size
    values, vectors = np.linalg.eigh(xx)
    told = values > _RANK_TOLERANCE * values[-1]
    known = vectors[:, told]
    fitted = (known / (values[told] + ridge)) @ (known.T @ xy)
    left = np.ones(len(values))
    left[told] = ridge / (values[told] + ridge)
    return fitted.T, (vectors * left) @ vectors.T


def has_no_zeros(stacks: Sequence[NDArray[np.float64]]) -> bool:
    """Whether no column of a sum of Kronecker products vanishes beside the largest."""
    total = sum(reduce(np.kron, term) for term in zip(*stacks, strict=True))
    norms = np.linalg.norm(total, axis=0)
    return bool(norms.min() > _VANISHED * norms.max())
