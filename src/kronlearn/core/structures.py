"""Structures: families of dictionaries, and how to update a member from moments.

The structure is all that the learning loop knows about a dictionary. Every dictionary is a sum of R
Kronecker products over d modes: the paper's general method is R = 1, unstructured learning is
R = d = 1, and orthonormal factors are updated by Procrustes instead of least squares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.updates import least_squares, procrustes

__all__ = ["General", "ModeByMode", "Orthonormal", "Structure"]


class Structure(ABC):
    """A family of dictionaries.

    ``needs_xx`` says whether updates need ``S_xx``, ``replaces_unused`` whether to replace atoms
    that no code uses.
    """

    needs_xx: ClassVar[bool] = True
    replaces_unused: bool = True

    @abstractmethod
    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """A better dictionary, and the scale ``(n_codes,)`` that makes the codes fit it."""


class ModeByMode(Structure):
    """A structure whose update fits the factors of one mode after the other."""

    @staticmethod
    @abstractmethod
    def solve(
        stack: NDArray[np.float64], sums: ModeMoments
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Better factors ``(R, m, n)`` of a mode, and the scale ``(n,)`` of its codes."""

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """Update all modes once, in order.

        A sum of terms is ``D = (Σ_r ⊗_i D_i^(r)) W⁻¹``, so its terms multiply codes that have been
        divided by the column norms W.
        """
        if isinstance(dictionary, KroneckerSumDictionary):
            moments = moments.rescaled(1.0 / dictionary.column_norms)
        stacks, scales = [], []
        # Factors that fit the codes as they are: the updated ones keep their norms.
        unscaled = list(dictionary.stacks)
        for mode, stack in enumerate(dictionary.stacks):
            new_stack, norms = self.solve(stack, moments.mode(unscaled, mode))
            unscaled[mode] = new_stack * norms
            stacks.append(new_stack)
            scales.append(norms)
        updated = dictionary.with_stacks(stacks)
        scale = reduce(lambda left, right: np.multiply.outer(left, right).ravel(), scales)
        if isinstance(dictionary, KroneckerSumDictionary):
            assert isinstance(updated, KroneckerSumDictionary)
            scale = scale * updated.column_norms / dictionary.column_norms
        return updated, scale


class General(ModeByMode):
    """Sums of R Kronecker products, fitted by least squares."""

    solve = staticmethod(least_squares)


class Orthonormal(ModeByMode):
    """Kronecker products of orthonormal factors, fitted by Procrustes."""

    needs_xx = False
    replaces_unused = False
    solve = staticmethod(procrustes)
