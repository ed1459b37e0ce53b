"""The learning loop: one iteration after the other, until it is time to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine
from kronlearn.core.init import joined
from kronlearn.core.iteration import Iteration
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source, rmse_of
from kronlearn.core.structures import General, Orthonormal, Structure

__all__ = ["Entry", "Iterate", "Plan", "State", "learn"]

# So many iterations are done at once at most where an engine can: callbacks come that much later.
_MOST_AT_ONCE = 16


@dataclass(frozen=True)
class Plan:
    """How to learn, and when to stop.

    Before iteration ``join_at``, or when nothing more is gained without them, the ``further``
    terms, factors ``(R − 1, m_i, n_i)``, join the dictionary.
    """

    coder: Coder
    structure: Structure
    max_iter: int = 100
    min_improvement: float = 0.0
    time_budget: float | None = None
    further: Sequence[NDArray[np.float64]] = ()
    join_at: int = 0

    def waiting(self, dictionary: Dictionary) -> bool:
        """Whether further terms have not joined this dictionary yet."""
        return bool(self.further) and dictionary.n_terms == 1

    def complete(self, dictionary: Dictionary) -> Dictionary:
        """The dictionary with the further terms that have not joined it yet."""
        return joined(dictionary, self.further) if self.waiting(dictionary) else dictionary

    @property
    def is_simple(self) -> bool:
        """Whether an iteration is one coding and one update of a dictionary of one term."""
        return isinstance(self.structure, General | Orthonormal) and not self.further


#: Runs one iteration, that of a method, with a dictionary.
Iterate = Callable[[Engine, Dictionary, Plan], Iteration]


class Entry(NamedTuple):
    """What is recorded of a dictionary D_t when the pass with it has ended.

    ``seconds`` have passed since the start; ``atoms_replaced`` were new in it.
    """

    rmse: float
    seconds: float
    atoms_replaced: int
    mean_nonzeros: float


class State(NamedTuple):
    """A run between two passes, and all that the rest of it depends on.

    ``dictionary`` (float64) is what the next pass is run with, in which ``atoms_replaced`` atoms
    are new; ``history`` has an entry for every dictionary before it, of which ``passed`` is the
    last, ``best`` the best, with entry number ``best_at``, and ``moments`` the full moments of the
    best one's pass, if there were any. Further terms have joined after ``joined_at`` entries.
    ``stop_reason`` is None while there is more to do.
    """

    dictionary: Dictionary
    best: Dictionary
    passed: Dictionary | None = None
    history: tuple[Entry, ...] = ()
    atoms_replaced: int = 0
    best_at: int = 0
    joined_at: int = 0
    moments: Moments | None = None
    stop_reason: str | None = None

    @property
    def n_iterations(self) -> int:
        """How many updates led to the last dictionary with an entry."""
        return max(len(self.history) - 1, 0)


def learn(engine: Engine, state: State, plan: Plan, iterate: Iterate) -> Iterator[State]:
    """The states after each pass, from a state on; the last one has a reason to stop.

    T iterations make T + 1 entries: the first pass is run with the dictionary to start from, the
    last judges the last update.
    """
    begin = time.perf_counter() - (state.history[-1].seconds if state.history else 0.0)
    at_once = 1
    while state.stop_reason is None and len(state.history) <= plan.max_iter:
        state = _with_further_terms(state, plan)
        for found, finished in _next_iterations(engine, state, plan, iterate, at_once):
            state = _advanced(state, plan, engine.source, found, finished - begin)
            yield state
            if state.stop_reason is not None:
                return
        at_once = min(2 * at_once, _MOST_AT_ONCE)


def _with_further_terms(state: State, plan: Plan) -> State:
    """The state with all terms, if it is time for them to join."""
    if not plan.waiting(state.dictionary):
        return state
    if len(state.history) < plan.join_at and not _stalled(state, plan):
        return state
    return state._replace(dictionary=plan.complete(state.dictionary), joined_at=len(state.history))


def _next_iterations(
    engine: Engine, state: State, plan: Plan, iterate: Iterate, at_once: int
) -> Iterator[tuple[Iteration, float]]:
    """One iteration or, where the engine has a faster way, several, and when each ended."""
    if plan.is_simple:
        orthonormal = isinstance(plan.structure, Orthonormal)
        count = min(at_once, plan.max_iter + 1 - len(state.history), _within_budget(state, plan))
        done = engine.iterations(state.dictionary, plan.coder, orthonormal, count)
        if done:
            for one in done:
                yield Iteration(one.dictionary, one.residual, one.nonzeros), one.finished
            return
    yield iterate(engine, state.dictionary, plan), time.perf_counter()


def _within_budget(state: State, plan: Plan) -> int:
    """So many iterations there seems to be time for, and one more: the budget is to be reached."""
    if plan.time_budget is None or len(state.history) < 2:
        return _MOST_AT_ONCE
    earlier, now = (entry.seconds for entry in state.history[-2:])
    left = (plan.time_budget - now) / max(now - earlier, 1e-9)
    return 1 + int(min(max(left, 0.0), _MOST_AT_ONCE))


def _advanced(state: State, plan: Plan, source: Source, found: Iteration, seconds: float) -> State:
    """The state after a pass with its dictionary."""
    entry = Entry(
        rmse_of(source, found.residual),
        seconds,
        state.atoms_replaced,
        found.nonzeros / len(source),
    )
    history = (*state.history, entry)
    is_best = _goal(entry, plan) <= _goal(history[state.best_at], plan)
    after = State(
        dictionary=found.dictionary,
        best=state.dictionary if is_best else state.best,
        passed=state.dictionary,
        history=history,
        atoms_replaced=found.atoms_replaced,
        best_at=len(state.history) if is_best else state.best_at,
        joined_at=state.joined_at,
        moments=found.moments if is_best else state.moments,
    )
    return after._replace(stop_reason=_stop_reason(after, plan))


def _stop_reason(state: State, plan: Plan) -> str | None:
    entry = state.history[-1]
    # An update that leaves the dictionary as it is will leave it so again.
    if entry.rmse == 0.0 or state.dictionary is state.passed:
        return "converged"
    if _stalled(state, plan) and not plan.waiting(state.dictionary):
        return "converged"
    if plan.time_budget is not None and entry.seconds >= plan.time_budget:
        return "time_budget"
    if len(state.history) > plan.max_iter:
        return "max_iter"
    return None


def _goal(entry: Entry, plan: Plan) -> float:
    """What learning lowers: the error or, to an error target, the number of nonzeros."""
    return entry.rmse if plan.coder.tol is None else entry.mean_nonzeros


def _stalled(state: State, plan: Plan) -> bool:
    """Whether an iteration lowered its goal by less than the smallest fraction wanted."""
    entries = state.history[state.joined_at :][-2:]
    if plan.min_improvement == 0 or len(entries) < 2:
        return False
    before, now = (_goal(entry, plan) for entry in entries)
    return before - now < plan.min_improvement * before
