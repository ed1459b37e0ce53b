"""Structures: families of dictionaries, and how a member is fitted to the codes of samples.

Learning knows nothing else about a dictionary than its structure's update. A dictionary is a sum of
R Kronecker products over d modes: the paper's general method is R = 1, unstructured learning is
R = d = 1, and orthonormal factors are fitted by Procrustes instead of least squares.
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

    ``needs_xx`` says whether updates need ``S_xx``, ``replaces_unused`` whether atoms that no code
    uses are replaced.
    """

    needs_xx: ClassVar[bool] = True
    replaces_unused: bool = True

    @abstractmethod
    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """A better dictionary, and what codes have to be multiplied by, ``(n_codes,)``."""


class ModeByMode(Structure):
    """A structure that fits the factors of one mode after the other, each to its mode's sums.

    With several terms ``D = (Σ_r ⊗_i D_i^(r)) W⁻¹``: the terms see codes divided by the norms W.
    """

    @abstractmethod
    def solve(
        self, stack: NDArray[np.float64], sums: ModeMoments
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Better factors ``(R, m, n)`` of a mode, and what its codes have to be multiplied by."""

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """All modes updated once, in order."""
        if isinstance(dictionary, KroneckerSumDictionary):
            moments = moments.rescaled(1.0 / dictionary.column_norms)
        stacks, scales = [], []
        # What fits the codes as they are: factors that are new with their norms.
        fitted = list(dictionary.stacks)
        for mode, stack in enumerate(dictionary.stacks):
            made, norms = self.solve(stack, moments.mode(fitted, mode))
            fitted[mode] = made * norms
            stacks.append(made)
            scales.append(norms)
        updated = dictionary.with_stacks(stacks)
        scale = reduce(lambda left, right: np.multiply.outer(left, right).ravel(), scales)
        if isinstance(dictionary, KroneckerSumDictionary):
            assert isinstance(updated, KroneckerSumDictionary)
            scale = scale * updated.column_norms / dictionary.column_norms
        return updated, scale


class General(ModeByMode):
    """Sums of R Kronecker products, fitted by least squares."""

    def solve(
        self, stack: NDArray[np.float64], sums: ModeMoments
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least-squares solution."""
        return least_squares(stack, sums)


class Orthonormal(ModeByMode):
    """Kronecker products of orthonormal factors, fitted by Procrustes."""

    needs_xx = False
    replaces_unused = False

    def solve(
        self, stack: NDArray[np.float64], sums: ModeMoments
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The Procrustes solution."""
        return procrustes(stack, sums)
