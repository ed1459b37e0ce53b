"""Learners whose iterations are not those of the learning loop, but that begin and end like it."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kronlearn.comparators.learners import Comparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Coder
from kronlearn.core.plan import LearningState, Progress
from kronlearn.core.structures import General, Structure
from kronlearn.io.arrays import ArraySource
from kronlearn.progress import progress_bar

__all__ = ["LoopLearner", "Step"]


@dataclass(frozen=True)
class Step:
    """What an iteration ends with: a dictionary, and the history's entries, "rmse" among them.

    ``memory`` is what else learning can go on from, never changed later.
    """

    dictionary: Dictionary
    entries: dict[str, float]
    memory: Any = None


@dataclass
class LoopState(LearningState):
    """The state of a run, with the memory of the last finished iteration."""

    memory: Any = None


class LoopLearner(Comparator):
    """A method with iterations of its own; the dictionary it hands out is the last one."""

    _memory: Any

    @abstractmethod
    def _steps(self, source: ArraySource, start: Dictionary, coder: Coder) -> Iterator[Step]:
        """The iterations, endless, or until nothing is left to gain."""

    def _structure(self, dictionary: Dictionary) -> Structure:
        return General()

    def fit(self, X: ArrayLike, y: Any = None) -> Any:
        """Learn the dictionary from samples.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored

        Raises
        ------
        KeyboardInterrupt
            Again, if one came, with the last finished iteration as the fitted model.
        """
        self._check_parameters()
        source, n_atoms = self._source(X, reset=True)
        check_squares(source)
        start = self._start(source, n_atoms)
        plan = self._plan(start)
        state = LoopState(start, start, history={"rmse": [], "seconds": []})
        try:
            with progress_bar(self.verbose, self.max_iter) as advance:
                self._advance(state, self._steps(source, start, plan.coder), source, advance)
        except BaseException:
            state.stop_reason = "interrupted"
            raise
        finally:
            if state.iteration:
                self._adopt(state, source, plan, fresh=True)
                self._memory = state.memory
        return self

    def _advance(
        self,
        state: LoopState,
        steps: Iterator[Step],
        source: ArraySource,
        advance: Callable[[float], None],
    ) -> None:
        """Take steps until a reason to stop, and leave it in the state."""
        begin = time.perf_counter()
        for step in islice(steps, self.max_iter):
            seconds, rmse = time.perf_counter() - begin, step.entries["rmse"]
            state.dictionary = state.best = step.dictionary
            state.memory = step.memory
            for name, value in {**step.entries, "seconds": seconds}.items():
                state.history.setdefault(name, []).append(value)
            advance(rmse)
            if self.callback is not None:
                dictionary = step.dictionary.astype(source.dtype)
                if self.callback(Progress(state.iteration, rmse, seconds, dictionary)):
                    state.stop_reason = "callback"
                    return
            if rmse == 0.0:
                state.stop_reason = "converged"
                return
            if self.time_budget is not None and seconds >= self.time_budget:
                state.stop_reason = "time_budget"
                return
        state.stop_reason = "max_iter" if state.iteration == self.max_iter else "converged"


def check_squares(source: ArraySource) -> None:
    """Raise for samples that are not finite, or so large or so small that squares are lost."""
    smallest = len(source) * float(np.finfo(source.dtype).tiny)
    if source.energy < smallest and source.array.any():
        remedy = " or pass float64" if source.dtype == np.float32 else ""
        raise ValueError(
            f"Y holds values too small to be squared in {source.dtype.name}; scale the data "
            f"up{remedy}."
        )
