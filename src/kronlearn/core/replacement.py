"""Replacement of atoms that no code uses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Coder, Codes, KeptCodes
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

__all__ = ["replace_unused", "unused_by_mode"]


def unused_by_mode(used: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """For each mode the atoms that no code uses."""
    modes = range(used.ndim)
    return [
        np.flatnonzero(~used.any(axis=tuple(other for other in modes if other != mode)))
        for mode in modes
    ]


def replace_unused(
    dictionary: Dictionary,
    unused: list[NDArray[np.intp]],
    codes: KeptCodes,
    source: Source,
    coder: Coder,
) -> tuple[Dictionary, int]:
    """A dictionary whose unused atoms are directions of the samples represented worst.

    Returns it and how many atoms were replaced. In a sum of Kronecker products the first term gets
    the direction and the others nothing; where that leaves columns of zeros nothing is replaced.
    """
    count = sum(map(len, unused))
    if count == 0:
        return dictionary, 0
    residuals = _residuals(source, codes.worst(count), dictionary, coder)
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
    except ValueError:
        # The first term may be zero in another mode, and whole columns of the sum with it.
        return dictionary, 0


def _residuals(
    source: Source,
    rows: NDArray[np.intp],
    dictionary: Dictionary,
    coder: Coder,
) -> NDArray[np.float64]:
    """Residuals ``(n, m_1, …, m_d)`` of some samples coded with a dictionary."""
    if len(rows) == 0:
        return np.zeros((0, *dictionary.patch_shape))
    samples = source.take(rows).astype(np.float64).reshape(-1, *dictionary.patch_shape)
    part = ArraySource(samples, dictionary.patch_shape)
    tol = coder.tol if coder.tol is None or np.ndim(coder.tol) == 0 else np.asarray(coder.tol)[rows]
    codes = Codes.empty(len(part), coder.width, part.dtype)
    Threads(1).run(part, dictionary, Coder(coder.method, coder.width, tol), codes=codes)
    assert codes.index is not None
    assert codes.value is not None
    assert codes.nonzeros is not None
    dense = np.zeros((len(part), dictionary.n_codes))
    for k, count in enumerate(codes.nonzeros):
        dense[k, codes.index[k, :count]] = codes.value[k, :count]
    return samples - dictionary.reconstruct(dense)
