"""Base classes of the comparators: common parameters, start, and updates from moments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.docstrings import inherit_entries
from kronlearn.comparators.stateful import StatefulDictionary
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.init import starting_dictionary
from kronlearn.core.loop import Plan
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source, raise_not_finite
from kronlearn.core.structures import General, Structure
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.learner import DictionaryLearner, Progress
from kronlearn.parameters import count, number, random_numbers

__all__ = ["Comparator", "CustomUpdate", "MomentsComparator", "finite_samples"]


@dataclass(eq=False, repr=False)
class Comparator(DictionaryLearner):
    """A method that codes all samples afresh and then updates the dictionary in every iteration.

    The dataclass fields are the parameters of the estimator. Each class documents only what it adds
    or changes: its docstring is completed from that of its base, this one's from that of
    :class:`kronlearn.KroneckerDictionaryLearning`.

    Parameters
    ----------
    method : {"omp", "ols", "exchange"}, default "omp"
        The coder.
    """

    n_atoms: Any = (16, 16)
    patch_shape: tuple[int, ...] | None = None
    n_nonzero_coefs: int | None = 6
    tol: float | None = None
    method: str = "omp"
    max_iter: int = count(100)
    init: Any = "dct"
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0
    time_budget: float | None = number(None, "(0, inf]")
    callback: Callable[[Progress], bool | None] | None = None
    sparse_output: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        base = next(b for b in cls.__mro__[1:] if issubclass(b, Comparator))
        inherit_entries(cls, base)

    def _structure(self) -> Structure:
        """Return the structure that updates dictionaries from moments."""
        return General()

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        return self._start_of_terms(source, n_atoms, n_terms=1)

    def _start_of_terms(self, source: Source, n_atoms: tuple[int, ...], n_terms: int) -> Dictionary:
        """Return the dictionary that ``init`` is or names, with this many terms."""
        rng = random_numbers(self.random_state)
        return starting_dictionary(self.init, source, n_atoms, rng, n_terms=n_terms)

    def _public_dictionary(self, dictionary: Dictionary) -> Dictionary:
        if isinstance(dictionary, StatefulDictionary):
            return dictionary.dictionary
        return dictionary

    def _plan(self, dictionary: Dictionary) -> Plan:
        return Plan(
            self._coder(dictionary),
            self._structure(),
            max_iter=self.max_iter,
            time_budget=self.time_budget,
        )


inherit_entries(Comparator, KroneckerDictionaryLearning)


class MomentsComparator(Comparator):
    """A method whose update needs only the moments of samples and codes."""

    @abstractmethod
    def _update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """Return a better dictionary for samples and codes with these moments."""

    def _structure(self) -> Structure:
        return CustomUpdate(self._update)


class CustomUpdate(Structure):
    """Updates dictionaries by a function of the current dictionary and the moments."""

    def __init__(
        self, function: Callable[[Dictionary, Moments], Dictionary], replaces_unused: bool = True
    ) -> None:
        self.function, self.replaces_unused = function, replaces_unused

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """Return the result of the function, and ones: codes are not rescaled."""
        return self.function(dictionary, moments), np.ones(dictionary.n_codes)


def finite_samples(source: Source) -> NDArray[np.float64]:
    """Return all samples (N, m_1·…·m_d) in float64; raise if one of them is not finite."""
    samples = source.read(0, len(source)).astype(np.float64)
    if not np.isfinite(samples).all():
        raise_not_finite(samples, 0, source.name)
    return samples
