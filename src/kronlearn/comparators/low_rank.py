"""Sums of outer products, shrinkage of singular values, least squares with a ridge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import khatri_rao

__all__ = ["cp_terms", "has_no_zeros", "ridge_parts", "singular_pairs", "svt"]

Columns = Sequence[NDArray[np.float64]]

# Eigenvalues below this fraction of the largest count as zero.
_RANK_TOLERANCE = 1e-10
# Columns whose norm is at most this fraction of the largest count as zero.
_VANISHED = 1e-8
# Alternating least squares stops after this many sweeps, or when a sweep lowers the squared error
# by at most this fraction of the squared norm.
_SWEEPS, _SWEEP_TOL = 50, 1e-8


def cp_terms(tensor: NDArray[np.float64], start: Columns) -> list[NDArray[np.float64]]:
    """Approximate a tensor by a sum of r outer products of columns.

    For two modes these are the leading singular pairs; for more, the start is improved by
    alternating least squares: at most 50 sweeps, until one lowers the squared error by less than
    1e-8 of the tensor's squared norm.

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
    >>> columns = cp_terms(tensor, [rng.standard_normal(t.shape) for t in truth])
    >>> bool(np.allclose(np.einsum("ar,br,cr->abc", *columns), tensor, atol=1e-3))
    True
    """
    r = start[0].shape[1]
    if tensor.ndim == 2:
        return singular_pairs(tensor, r)
    columns = _alternating(tensor, list(start))
    norms = np.stack([np.linalg.norm(of_mode, axis=0) for of_mode in columns])
    common = np.prod(norms, axis=0) ** (1 / len(columns))
    return [
        of_mode * np.divide(common, norm, out=np.zeros(r), where=norm > 0)
        for of_mode, norm in zip(columns, norms, strict=True)
    ]


def singular_pairs(matrix: NDArray[np.float64], r: int) -> list[NDArray[np.float64]]:
    """Return the r leading left and right singular vectors, times the roots of the values.

    Where the matrix has fewer than r singular values, the remaining pairs are zero.
    """
    u, values, vt = np.linalg.svd(matrix, full_matrices=False)
    missing = max(0, r - len(values))
    columns = (u * np.sqrt(values), vt.T * np.sqrt(values))
    return [np.pad(of_side, ((0, 0), (0, missing)))[:, :r] for of_side in columns]


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
    """Lower every singular value of a matrix by a threshold, at most to 0.

    This is the minimiser of ``½‖W − matrix‖² + threshold·‖W‖_*``.

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
    """Return the two parts of the minimiser of ``½‖Y − D X‖² + ridge/2·‖D − P‖²``, for any P.

    ``xx`` (n, n) is ``X Xᵀ`` and ``xy`` (n, m) is ``X Yᵀ``. The parts ``fitted`` (m, n) and
    ``kept`` (n, n) give ``D = fitted + P @ kept``. In directions that the codes do not determine, D
    equals P, however small the ridge.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.low_rank import ridge_parts
    >>> fitted, kept = ridge_parts(np.diag([3.0, 0.0]), np.array([[6.0], [0.0]]), 1.0)
    >>> (fitted + np.array([[4.0, 5.0]]) @ kept).tolist()
    [[2.5, 5.0]]
    """
    # Scaled, since sums of very large or very small samples would over- or underflow.
    size = float(np.trace(xx)) + ridge or 1.0
    xx, xy, ridge = xx / size, xy / size, ridge / size
    values, vectors = np.linalg.eigh(xx)
    determined = values > _RANK_TOLERANCE * values[-1]
    basis = vectors[:, determined]
    fitted = (basis / (values[determined] + ridge)) @ (basis.T @ xy)
    weights_of_p = np.ones(len(values))
    weights_of_p[determined] = ridge / (values[determined] + ridge)
    return fitted.T, (vectors * weights_of_p) @ vectors.T


def has_no_zeros(stacks: Sequence[NDArray[np.float64]]) -> bool:
    """Return whether all columns of a sum of Kronecker products differ from zero.

    Columns of at most 1e-8 of the largest norm count as zero.
    """
    total = sum(reduce(np.kron, term) for term in zip(*stacks, strict=True))
    norms = np.linalg.norm(total, axis=0)
    return bool(norms.min() > _VANISHED * norms.max())
