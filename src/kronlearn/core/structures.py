"""Structures: families of dictionaries, and how a member is fitted to the codes of samples.

Learning knows nothing else about a dictionary than its structure's update. A dictionary is a sum of
R Kronecker products over d modes: the paper's general method is R = 1, unstructured learning is
R = d = 1, and orthonormal factors are fitted by Procrustes instead of least squares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Codes
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.updates import least_squares, procrustes
from kronlearn.io.arrays import ArraySource

__all__ = ["FromCodes", "FromMoments", "General", "ModeByMode", "Orthonormal", "Structure"]


class Structure(ABC):
    """A family of dictionaries.

    ``exact_coding`` says that coding finds the best codes of all, so that earlier supports cannot
    be better ones; ``keeps_fit`` that codes, changed as the update says, go on to fit the updated
    dictionary. Where they do not, a dictionary is judged by the samples coded with it.
    """

    name: ClassVar[str]
    exact_coding: ClassVar[bool] = False
    keeps_fit: ClassVar[bool] = True

    def result(self, dictionary: Dictionary) -> Dictionary:
        """What a learner hands out of the dictionary that it worked with."""
        return dictionary


class FromMoments(Structure):
    """A structure whose update needs the full moments only, ``S_xx`` included if ``needs_xx``."""

    needs_xx: ClassVar[bool] = True

    @abstractmethod
    def update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """A better dictionary; the moments are rescaled in place to codes that belong to it."""


class FromCodes(Structure):
    """A structure whose update needs the samples and their codes, which it changes, too."""

    @abstractmethod
    def update(self, dictionary: Dictionary, source: ArraySource, codes: Codes) -> Dictionary:
        """A better dictionary; the values of the codes are changed in place to belong to it."""


class ModeByMode(FromMoments):
    """A structure that fits the factors of one mode after the other, each to its mode's sums.

    With several terms ``D = (Σ_r ⊗_i D_i^(r)) W⁻¹``: the terms see codes divided by the norms W.
    """

    @abstractmethod
    def solve(
        self, stack: NDArray[np.float64], sums: ModeMoments
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Better factors ``(R, m, n)`` of a mode, and what its codes have to be multiplied by."""

    def update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """All modes updated once, in order."""
        if isinstance(dictionary, KroneckerSumDictionary):
            moments.rescale_codes(1.0 / dictionary.column_norms)
        stacks = list(dictionary.stacks)
        for mode, stack in enumerate(stacks):
            sums = moments.mode(stacks, mode)
            stacks[mode], scale = self.solve(stack, sums)
            moments.rescale(mode, scale)
        updated = dictionary.with_stacks(stacks)
        if isinstance(updated, KroneckerSumDictionary):
            moments.rescale_codes(updated.column_norms)
        else:
            sums.rescale(scale)
            moments.know_error(updated, sums.squared_error(stacks[-1]))
        return updated


class General(ModeByMode):
    """Sums of R Kronecker products, fitted by least squares."""

    name = "general"

    def solve(
        self, stack: NDArray[np.float64], sums: ModeMoments
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least-squares solution."""
        return least_squares(stack, sums)


class Orthonormal(ModeByMode):
    """Kronecker products of orthonormal factors, fitted by Procrustes."""

    name = "orthonormal"
    needs_xx = False
    exact_coding = True

    def solve(
        self, stack: NDArray[np.float64], sums: ModeMoments
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The Procrustes solution."""
        return procrustes(stack, sums)
