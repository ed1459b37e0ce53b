"""Replacement of atoms that no code uses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder, code_few
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.kronecker_sum import ColumnNormError
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical

__all__ = ["MOST_REPLACED", "replace_unused", "unused_by_mode"]

#: The most atoms replaced in one iteration, and so the most samples that a pass must report.
MOST_REPLACED = 64


def unused_by_mode(used: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """For each mode, the columns of its factor that no code uses.

    Parameters
    ----------
    used : array of shape (n_1, …, n_d)
        Which atoms of the dictionary are used.
    """
    modes = range(used.ndim)
    if used.all():
        # The usual case; this test takes a fifth of the time of the general path.
        return [np.empty(0, np.intp) for _ in modes]
    return [
        np.flatnonzero(~used.any(axis=tuple(other for other in modes if other != mode)))
        for mode in modes
    ]


def replace_unused(
    dictionary: Dictionary,
    unused: list[NDArray[np.intp]],
    worst: NDArray[np.int64],
    source: Source,
    coder: Coder,
) -> tuple[Dictionary, int]:
    """Replace unused atoms by directions of the samples with the largest residuals.

    Returns the new dictionary and the number of replaced atoms, which is at most the number of
    ``worst`` samples. In a sum of Kronecker products, the first term gets the direction and the
    other terms get zeros; if a column of the sum would become zero, nothing is replaced.
    """
    count = min(sum(map(len, unused)), len(worst))
    if count == 0:
        return dictionary, 0
    residuals = _residuals(source, worst[:count], dictionary, coder)
    replaced = 0
    stacks = [stack.copy() for stack in dictionary.stacks]
    for mode, atoms in enumerate(unused):
        for atom, residual in zip(atoms, residuals[replaced:], strict=False):
            unfolded = np.moveaxis(residual, mode, 0).reshape(residual.shape[mode], -1)
            direction = np.linalg.svd(unfolded, full_matrices=False)[0][:, :1]
            stacks[mode][1:, :, atom] = 0.0
            stacks[mode][0, :, atom] = canonical(direction, direction)[0][:, 0]
            replaced += 1
    try:
        return dictionary.with_stacks(stacks), replaced
    except ColumnNormError:
        # If the first term is zero in another mode, whole columns of the sum are zero now.
        return dictionary, 0


def _residuals(
    source: Source, rows: NDArray[np.int64], dictionary: Dictionary, coder: Coder
) -> NDArray[np.float64]:
    """Code the given samples, and return their residuals ``(n, m_1, …, m_d)``."""
    samples = source.take(rows).astype(np.float64)
    codes = code_few(samples, dictionary, coder.of_rows(rows))
    reconstructed: NDArray[np.float64] = dictionary.reconstruct(codes)
    return samples.reshape(-1, *dictionary.patch_shape) - reconstructed
