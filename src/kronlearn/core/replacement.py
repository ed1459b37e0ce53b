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

#: At most so many atoms are replaced in an iteration, and a pass looks for so many samples.
MOST_REPLACED = 64


def unused_by_mode(used: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """For each mode the atoms that no code uses."""
    modes = range(used.ndim)
    if used.all():
        # The usual case, told five times faster than below.
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
    """A dictionary whose unused atoms are directions of the samples represented worst.

    Returns it and how many atoms were replaced: no more than there are ``worst`` samples. In a sum
    of Kronecker products the first term gets the direction and the others nothing; where that
    leaves columns of zeros nothing is replaced.
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
        # The first term may be zero in another mode, and whole columns of the sum with it.
        return dictionary, 0


def _residuals(
    source: Source, rows: NDArray[np.int64], dictionary: Dictionary, coder: Coder
) -> NDArray[np.float64]:
    """Residuals ``(n, m_1, …, m_d)`` of some samples coded with a dictionary."""
    samples = source.take(rows).astype(np.float64)
    codes = code_few(samples, dictionary, coder.of_rows(rows))
    found: NDArray[np.float64] = dictionary.reconstruct(codes)
    return samples.reshape(-1, *dictionary.patch_shape) - found
