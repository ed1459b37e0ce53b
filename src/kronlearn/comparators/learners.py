"""What the comparators share: their parameters, their start, and the plan to learn by moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.docstrings import with_inherited_entries
from kronlearn.comparators.memory import RememberingDictionary
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.init import starting_dictionary
from kronlearn.core.loop import Plan
from kronlearn.core.source import Source, check_finite
from kronlearn.core.structures import General, Structure
from kronlearn.learner import DictionaryLearner, Progress
from kronlearn.parameters import count, number, random_numbers

__all__ = ["Comparator", "finite_samples"]


@dataclass(eq=False, repr=False)
class Comparator(DictionaryLearner):
    """A method that codes all samples afresh, then updates the dictionary, in every iteration.

    The fields of a comparator are the parameters of its estimator. A method whose update needs
    moments only says which structure its dictionaries have. A subclass documents only what it adds
    or changes: its docstring is completed from this one.

    Parameters
    ----------
    n_atoms : tuple of int or int, default (16, 16)
        Columns of each factor; one number means the same for every mode.
    patch_shape : tuple of int, optional
        ``(m_1, …, m_d)`` of samples given as rows.
    n_nonzero_coefs : int or None, default 6
        The most nonzeros a sample may have.
    tol : float, optional
        The ℓ2 norm a sample's residual may have. At least one of the two is needed.
    method : {"omp", "ols", "exchange"}, default "omp"
        The coder.
    max_iter : int, default 100
        The most iterations: passes over the samples, each followed by an update. One more pass
        judges the last update.
    init : {"dct", "data", "random"}, dictionary or list of factors, default "dct"
        Start: perturbed cosines, directions of random samples, noise, or your own.
    random_state : int, RandomState or None
        Seeds the start, and whatever else a method draws.
    n_jobs : int or None
        Threads that code; None means 1 unless a joblib context says otherwise, -1 all processors.
    verbose : int, default 0
        1 shows a progress bar.
    time_budget : float, optional
        Stop after the iteration in which this many seconds have passed.
    callback : callable, optional
        Called after each pass with an object that has ``iteration``, ``rmse``, ``seconds`` and
        ``dictionary``; returning True stops the run.

    Attributes
    ----------
    dictionary_ : KroneckerDictionary or KroneckerSumDictionary
        The best one found.
    factors_ : tuple of arrays (m_i, n_i), for one term
    history_ : dict of lists
        Entry t belongs to the dictionary after t iterations, the first to the start: its "rmse",
        which is what ``score`` says of it, the "seconds" since the beginning, its "atoms_replaced"
        and "mean_nonzeros". ``dictionary_`` is the one with the lowest RMSE or, with ``tol``, the
        fewest nonzeros.
    n_iter_ : int
    stop_reason_ : str
        "max_iter", "converged", "time_budget", "callback" or "interrupted".
    patch_shape_ : tuple of int
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

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        base = next(b for b in cls.__mro__[1:] if issubclass(b, Comparator))
        cls.__doc__ = with_inherited_entries(cls.__doc__, base.__doc__)

    def _structure(self, dictionary: Dictionary) -> Structure:
        """The family of the method's dictionaries, and how one is fitted to moments."""
        return General()

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        if isinstance(self.init, Dictionary) and self.init.n_terms > 1:
            raise ValueError(
                f"init is a sum of {self.init.n_terms} Kronecker products; "
                f"{type(self).__name__} starts from one: pass other factors, or the first term's, "
                "KroneckerDictionary.normalized(init.terms[0])."
            )
        rng = random_numbers(self.random_state)
        return starting_dictionary(self.init, source, n_atoms, rng)

    def _handed_out(self, dictionary: Dictionary) -> Dictionary:
        if isinstance(dictionary, RememberingDictionary):
            return dictionary.dictionary
        return dictionary

    def _plan(self, dictionary: Dictionary) -> Plan:
        return Plan(
            self._coder(dictionary),
            self._structure(dictionary),
            max_iter=self.max_iter,
            time_budget=self.time_budget,
        )


def finite_samples(source: Source) -> NDArray[np.float64]:
    """All samples (N, m_1·…·m_d), once they are known to be finite."""
    samples = source.read(0, len(source)).astype(np.float64)
    if not np.isfinite(samples).all():
        check_finite(samples, 0, source.name)
    return samples
