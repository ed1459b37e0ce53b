"""Low rank by nuclear norms: singular values shrunk, and least squares with a ridge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["has_no_zeros", "ridge_parts", "svt"]

# Columns whose norm is this fraction of the largest, or less, are taken for zero.
_VANISHED = 1e-8
# Directions that have less than this share of the codes' energy are taken for undetermined.
_RANK_TOLERANCE = 1e-10


def svt(matrix: NDArray[Any], threshold: float) -> NDArray[Any]:
    """The matrix with every singular value lowered by a threshold, to 0 at the least.

    The minimiser of ``½‖W − matrix‖² + threshold·‖W‖_*``.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.shrinkage import svt
    >>> np.diag(svt(np.diag([3.0, 1.0, 0.5]), 0.75)).tolist()
    [2.25, 0.25, 0.0]
    """
    u, values, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u * np.maximum(values - threshold, 0.0)) @ vt


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
