"""The learning loop: iterate until a reason to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Iteration
from kronlearn.core.init import with_terms
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source, rmse_of
from kronlearn.core.structures import General, Orthonormal, Structure

__all__ = ["Entry", "Iterate", "Plan", "State", "learn"]

# Callbacks come after all iterations that an engine runs at once, so it runs at most this many.
_MOST_AT_ONCE = 16


@dataclass(frozen=True)
class Plan:
    """How to learn, and when to stop.

    A sum of several Kronecker products may begin as a single one. Its ``extra_terms``, one array
    ``(R − 1, m_i, n_i)`` per mode, then join the dictionary after ``join_at`` iterations, or
    earlier if the single term stops improving.
    """

    coder: Coder
    structure: Structure
    max_iter: int = 100
    min_improvement: float = 0.0
    time_budget: float | None = None
    extra_terms: Sequence[NDArray[np.float64]] = ()
    join_at: int = 0

    def lacks_terms(self, dictionary: Dictionary) -> bool:
        """Whether the extra terms have yet to join this dictionary."""
        return bool(self.extra_terms) and dictionary.n_terms == 1

    def with_all_terms(self, dictionary: Dictionary) -> Dictionary:
        """The dictionary with the extra terms, whether or not they had joined it."""
        if self.lacks_terms(dictionary):
            return with_terms(dictionary, self.extra_terms)
        return dictionary

    @property
    def is_simple(self) -> bool:
        """Whether an iteration is one coding and one update of a dictionary of one term."""
        return isinstance(self.structure, General | Orthonormal) and not self.extra_terms


#: Runs one iteration of a learning method from a dictionary.
Iterate = Callable[[Engine, Dictionary, Plan], Iteration]


class Entry(NamedTuple):
    """The record of one dictionary D_t, made when the pass with it has ended.

    ``seconds`` is the time since the start of the run; ``atoms_replaced`` is how many atoms of D_t
    replaced unused atoms of D_{t-1}.
    """

    rmse: float
    seconds: float
    atoms_replaced: int
    mean_nonzeros: float


class State(NamedTuple):
    """A run between two passes: everything that the rest of the run depends on."""

    #: The dictionary of the next pass, in float64.
    dictionary: Dictionary
    #: The best dictionary so far.
    best: Dictionary
    #: The dictionary of the last pass.
    last: Dictionary | None = None
    #: One entry per pass.
    history: tuple[Entry, ...] = ()
    #: How many atoms of ``dictionary`` replace unused ones of ``last``.
    atoms_replaced: int = 0
    #: The index of the best dictionary's entry.
    best_at: int = 0
    #: The number of entries before the extra terms joined.
    joined_at: int = 0
    #: The full moments of the best dictionary's pass, if it summed them.
    moments: Moments | None = None
    #: Why the run has ended; None if it has not.
    stop_reason: str | None = None

    @property
    def n_iterations(self) -> int:
        """The number of updates that led to the dictionary of the last pass."""
        return max(len(self.history) - 1, 0)


def learn(engine: Engine, state: State, plan: Plan, iterate: Iterate) -> Iterator[State]:
    """Yield the state after each pass until one has a reason to stop.

    T iterations make T + 1 entries: the first pass uses the starting dictionary, and the last one
    evaluates the last update.
    """
    begin = time.perf_counter() - (state.history[-1].seconds if state.history else 0.0)
    at_once = 1
    while state.stop_reason is None and len(state.history) <= plan.max_iter:
        state = _with_extra_terms_if_due(state, plan)
        for iteration in _next_iterations(engine, state, plan, iterate, at_once):
            finished = iteration.finished
            seconds = (time.perf_counter() if finished is None else finished) - begin
            state = _after_iteration(state, plan, engine.source, iteration, seconds)
            yield state
            if state.stop_reason is not None:
                return
        at_once = min(2 * at_once, _MOST_AT_ONCE)


def _with_extra_terms_if_due(state: State, plan: Plan) -> State:
    """The state with the extra terms in its dictionary, if it is time for them to join."""
    if not plan.lacks_terms(state.dictionary):
        return state
    if len(state.history) < plan.join_at and not _has_stalled(state, plan):
        return state
    dictionary = plan.with_all_terms(state.dictionary)
    return state._replace(dictionary=dictionary, joined_at=len(state.history))


def _next_iterations(
    engine: Engine, state: State, plan: Plan, iterate: Iterate, at_once: int
) -> list[Iteration]:
    """One iteration, or several if the engine has a faster way to run them at once."""
    if plan.is_simple:
        orthonormal = isinstance(plan.structure, Orthonormal)
        count = min(at_once, plan.max_iter + 1 - len(state.history), _within_budget(state, plan))
        iterations = engine.iterations(state.dictionary, plan.coder, orthonormal, count)
        if iterations:
            return iterations
    return [iterate(engine, state.dictionary, plan)]


def _within_budget(state: State, plan: Plan) -> int:
    """How many iterations the time budget seems to allow, plus the one that exceeds it."""
    if plan.time_budget is None or len(state.history) < 2:
        return _MOST_AT_ONCE
    before, now = (entry.seconds for entry in state.history[-2:])
    left = (plan.time_budget - now) / max(now - before, 1e-9)
    return 1 + int(min(max(left, 0.0), _MOST_AT_ONCE))


def _after_iteration(
    state: State, plan: Plan, source: Source, iteration: Iteration, seconds: float
) -> State:
    """The state after an iteration from its dictionary, with a new entry and new best."""
    entry = Entry(
        rmse_of(source, iteration.residual),
        seconds,
        state.atoms_replaced,
        iteration.nonzeros / len(source),
    )
    history = (*state.history, entry)
    is_best = _objective(entry, plan) <= _objective(history[state.best_at], plan)
    after = State(
        dictionary=iteration.dictionary,
        best=state.dictionary if is_best else state.best,
        last=state.dictionary,
        history=history,
        atoms_replaced=iteration.atoms_replaced,
        best_at=len(state.history) if is_best else state.best_at,
        joined_at=state.joined_at,
        moments=iteration.moments if is_best else state.moments,
    )
    return after._replace(stop_reason=_stop_reason(after, plan))


def _stop_reason(state: State, plan: Plan) -> str | None:
    entry = state.history[-1]
    # An update that returns its dictionary unchanged will do so again.
    if entry.rmse == 0.0 or state.dictionary is state.last:
        return "converged"
    if _has_stalled(state, plan) and not plan.lacks_terms(state.dictionary):
        return "converged"
    if plan.time_budget is not None and entry.seconds >= plan.time_budget:
        return "time_budget"
    if len(state.history) > plan.max_iter:
        return "max_iter"
    return None


def _objective(entry: Entry, plan: Plan) -> float:
    """What learning lowers: the error or, with an error target, the number of nonzeros."""
    return entry.rmse if plan.coder.tol is None else entry.mean_nonzeros


def _has_stalled(state: State, plan: Plan) -> bool:
    """Whether the last iteration lowered the objective by less than ``min_improvement``."""
    entries = state.history[state.joined_at :][-2:]
    if plan.min_improvement == 0 or len(entries) < 2:
        return False
    before, now = (_objective(entry, plan) for entry in entries)
    return before - now < plan.min_improvement * before
