"""The learning loop: one iteration after the other, until it is time to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from threadpoolctl import threadpool_limits

from kronlearn.core.engine import Codes, Engine
from kronlearn.core.init import joined
from kronlearn.core.iteration import Iteration
from kronlearn.core.plan import LearningState, Outcome, Plan
from kronlearn.core.source import Source

__all__ = ["learn", "record"]


def learn(
    source: Source,
    state: LearningState,
    plan: Plan,
    engine: Engine,
    on_iteration: Callable[[LearningState], bool] | None = None,
    looks_every: int | None = 1,
) -> None:
    """Advance the state until a reason to stop; ``state.stop_reason`` says which.

    ``on_iteration`` is called after every finished iteration and stops the run by returning True.
    It does that, or looks at the codes of the state, after every ``looks_every``-th only; None:
    never.
    An exception, KeyboardInterrupt too, leaves the dictionary and history of the last finished
    iteration and is raised again.
    """
    start = time.perf_counter() - (state.history["seconds"] or [0.0])[-1]
    if isinstance(state.codes, Codes):
        state.codes = engine.adopted(state.codes)
    state.stop_reason = None
    try:
        # Threads of linear algebra go on spinning when they have nothing to do, on cores that the
        # passes need; and results are not to depend on their number.
        with threadpool_limits(1, "blas"):
            if plan.time_budget is not None:
                looks_every = 1
            _loop(state, plan, Iteration(source, plan, engine, looks_every), start, on_iteration)
            if not plan.structure.keeps_fit:
                _judge_last(source, state, plan, engine)
    except BaseException:
        state.stop_reason = "interrupted"
        raise
    state.stop_reason = state.stop_reason or "max_iter"


def _loop(
    state: LearningState,
    plan: Plan,
    run: Iteration,
    start: float,
    on_iteration: Callable[[LearningState], bool] | None,
) -> None:
    # To an error target it is the number of nonzeros that learning lowers, not the error.
    goal = "rmse" if plan.coder.tol is None else "mean_nonzeros"
    strict = plan.monotone and plan.coder.tol is None
    state.guarded = state.guarded or plan.guard_at_once
    while state.stop_reason is None and state.iteration < plan.max_iter:
        *earlier, before = state.history[goal] or [math.inf]
        stalled = bool(earlier) and _stalled(earlier[-1], before, plan.min_improvement)
        if plan.waiting(state.dictionary) and (stalled or state.iteration >= plan.join_at):
            state.dictionary = joined(state.dictionary, plan.further)
        outcome = run.iterate(state)
        if strict and outcome.rmse > before and not state.guarded:
            state.guarded = True
            outcome = run.iterate(state)
        if strict and outcome.rmse > before:
            # Only rounding can raise the error of a guarded run: nothing is left to gain.
            if plan.waiting(state.dictionary):
                state.dictionary = joined(state.dictionary, plan.further)
                continue
            state.stop_reason = "converged"
            break
        now = outcome.rmse if plan.coder.tol is None else outcome.mean_nonzeros
        if plan.coder.tol is not None or now <= min(state.history[goal], default=math.inf):
            state.best = outcome.dictionary if plan.structure.keeps_fit else state.dictionary
        record(state, outcome, (outcome.finished or time.perf_counter()) - start)
        if on_iteration is not None and on_iteration(state):
            state.stop_reason = "callback"
        elif outcome.rmse == 0.0 or (
            _stalled(before, now, plan.min_improvement) and not plan.waiting(state.dictionary)
        ):
            state.stop_reason = "converged"
        elif plan.time_budget is not None and state.history["seconds"][-1] >= plan.time_budget:
            state.stop_reason = "time_budget"


def _judge_last(source: Source, state: LearningState, plan: Plan, engine: Engine) -> None:
    """Hand out the last dictionary, which nothing has been coded with yet, if it codes best."""
    found = engine.run(source, state.dictionary, plan.coder)
    rmse = math.sqrt(found.residual / (len(source) * source.n_features))
    if plan.coder.tol is not None or rmse <= min(state.history["rmse"]):
        state.best = state.dictionary


def _stalled(before: float, now: float, min_improvement: float) -> bool:
    """Whether an iteration lowered its goal by less than the smallest fraction wanted."""
    return min_improvement > 0 and before < math.inf and before - now < min_improvement * before


def record(state: LearningState, outcome: Outcome, seconds: float) -> None:
    """Add a finished iteration to the state."""
    state.dictionary, state.codes = outcome.dictionary, outcome.codes
    state.moments = outcome.moments
    state.history["rmse"].append(outcome.rmse)
    state.history["coding_rmse"].append(outcome.coding_rmse)
    state.history["seconds"].append(seconds)
    state.history["atoms_replaced"].append(outcome.atoms_replaced)
    state.history["mean_nonzeros"].append(outcome.mean_nonzeros)
