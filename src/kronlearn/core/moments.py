"""Moments: the small sums over coded samples that a dictionary update needs.

Moments of parts of the data add up to those of the whole, so that threads and machines can each sum
their own part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import PassSums, Task
from kronlearn.core.instruction_sets import instruction_set

__all__ = ["ModeMoments", "Moments"]

Stacks = Sequence[NDArray[np.float64]]


@dataclass(frozen=True)
class Moments:
    """Full moments ``S_xx = Σ x xᵀ`` and ``S_xy = Σ x yᵀ`` of codes x and samples y.

    All factors of any structure can be updated from them. ``triangle`` is the lower triangle of
    S_xx, row after row, or None if it was not summed; ``xy`` is S_xy, (n_codes, n_features);
    ``energy`` is ``Σ‖y‖²``.
    """

    patch_shape: tuple[int, ...]
    n_atoms: tuple[int, ...]
    energy: float
    triangle: NDArray[np.float64] | None
    xy: NDArray[np.float64]

    @classmethod
    def of_pass(cls, task: Task, result: PassSums) -> Moments:
        """The full moments in the result of a pass."""
        dictionary = task.dictionary
        n = dictionary.n_codes
        triangle, xy = None, result.sums
        if task.sums == "full":
            size = n * (n + 1) // 2
            triangle, xy = xy[:size], xy[size:]
        sizes = dictionary.patch_shape, dictionary.n_atoms
        return cls(*sizes, result.energy, triangle, xy.reshape(n, -1))

    @cached_property
    def xx(self) -> NDArray[np.float64] | None:
        """The square matrix S_xx, (n_codes, n_codes), computed on first use."""
        if self.triangle is None:
            return None
        return _native.symmetric(self.triangle, len(self.xy))

    def __add__(self, other: Moments) -> Moments:
        if (self.patch_shape, self.n_atoms) != (other.patch_shape, other.n_atoms):
            raise ValueError(
                f"Moments of {self.n_atoms} atoms on {self.patch_shape} samples cannot be added to "
                f"those of {other.n_atoms} atoms on {other.patch_shape}."
            )
        if (self.triangle is None) != (other.triangle is None):
            raise ValueError(
                "Moments of orthonormal and general factors cannot be added; call fit after "
                "changing structure."
            )
        triangle = None
        if self.triangle is not None and other.triangle is not None:
            triangle = self.triangle + other.triangle
        energy, xy = self.energy + other.energy, self.xy + other.xy
        return replace(self, energy=energy, triangle=triangle, xy=xy)

    def __mul__(self, factor: float) -> Moments:
        """All sums times a factor, which gives old samples less weight."""
        triangle = None if self.triangle is None else self.triangle * factor
        return replace(self, energy=self.energy * factor, triangle=triangle, xy=self.xy * factor)

    def rescaled(self, scale: NDArray[np.float64]) -> Moments:
        """The moments of the codes ``scale * x``, with one scale per atom."""
        triangle = None if self.triangle is None else _native.scaled_triangle(self.triangle, scale)
        return replace(self, triangle=triangle, xy=self.xy * scale[:, None])

    def mode(self, stacks: Stacks, mode: int) -> ModeMoments:
        """The sums of one mode with the other modes' factors ``(R, m_j, n_j)`` fixed.

        The columns of these factors need not have norm 1.
        """
        sums = _native.mode_sums(stacks, mode, self.triangle, self.xy, instruction_set())
        return ModeMoments(*sums)

    def used(self) -> NDArray[np.bool_]:
        """Which atoms at least one code uses, ``(n_1, …, n_d)``."""
        assert self.triangle is not None
        diagonal = np.arange(1, len(self.xy) + 1).cumsum() - 1
        is_used: NDArray[np.bool_] = self.triangle[diagonal] > 0
        return is_used.reshape(self.n_atoms)

    def squared_error(self, dictionary: Dictionary) -> float:
        """``Σ‖y − D x‖²`` of the summed samples and codes with any dictionary of these sizes."""
        D = dictionary.coding_factors[-1]
        if dictionary.n_terms == 1:
            stacks = [factor[None] for factor in dictionary.coding_factors]
            p, c = self.mode(stacks, len(stacks) - 1)
        else:
            p, c = self.xx, self.xy
        assert p is not None
        fitted = 2.0 * np.sum(D.T * c) - np.sum(p * (D.T @ D))
        return float(self.energy - fitted)


class ModeMoments(NamedTuple):
    """The sums of one mode i: ``P = Σ X_(i) (⊗ G_j) X_(i)ᵀ`` and ``C = Σ Y_(i) (⊗ D_j) X_(i)ᵀ``.

    With the other factors fixed, the best factor solves ``D_i P = C``. ``c`` is ``Cᵀ``; ``p`` is
    None if it was not summed, since Procrustes updates do not need P. The paper's (P, R) and (M, N)
    are these sums for the two modes of an image. With R terms, P has R × R blocks, and Cᵀ has R
    blocks, one above the other.
    """

    p: NDArray[np.float64] | None
    c: NDArray[np.float64]

    @classmethod
    def of_pass(cls, task: Task, result: PassSums) -> ModeMoments:
        """The sums of the task's mode in the result of a pass."""
        n = task.dictionary.n_atoms[task.mode]
        if task.sums == "mode":
            half = result.sums[: n * n].reshape(n, n)
            return cls(half + half.T, result.sums[n * n :].reshape(n, -1))
        return cls(None, result.sums.reshape(n, -1))
