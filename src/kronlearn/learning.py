"""The learning loop: code, add up, update, until it is time to stop."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from kronlearn.dictionary import Dictionary
from kronlearn.engines.engine import Coder, Codes, Engine, Iterated, KeptCodes, Pass
from kronlearn.moments import ModeMoments, Moments
from kronlearn.replacement import replace_unused, unused_by_mode
from kronlearn.sources.arrays import ArraySource
from kronlearn.sources.source import Source
from kronlearn.starts import joined
from kronlearn.structures import (
    FromCodes,
    FromMoments,
    General,
    ModeByMode,
    Orthonormal,
    Structure,
)

__all__ = [
    "STATISTICS",
    "LearningState",
    "Outcome",
    "Plan",
    "Progress",
    "learn",
    "record",
    "uses_full_moments",
]

STATISTICS = ("auto", "full", "per-mode", "recode")

# Full moments need n² numbers. They are faster than per-mode sums unless these are many and few
# samples are behind each; for 48 × 48 atoms they would be many megabytes in every thread.
_FULL_MOMENTS_UP_TO = 1024
_FEW_NUMBERS = 1 << 18
_NUMBERS_PER_SAMPLE = 16

# Iterations in which all samples are coded afresh. On image patches taking turns from then on costs
# 0.3 % of the RMSE after 100 iterations, and saves a quarter of the time.
_ALL_FRESH = 20
# So many iterations are done at once at most where an engine can: callbacks come that much later.
_MOST_AT_ONCE = 16
# With fewer samples the runs that take turns would not make two like halves.
_FEWEST_FOR_TURNS = 2048


@dataclass(frozen=True)
class Plan:
    """How to learn.

    ``statistics`` "full" sums the full moments in one pass; "per-mode" the paper's small sums, one
    pass per mode over codes that are kept; "recode" the same but coding anew before every mode,
    as the paper's Algorithm 1 is printed. ``n_refits`` is how often coefficients are refitted on
    their supports, and the factors updated again, per coding. A monotone run keeps better
    supports from the first iteration that would have raised the error on, or ``guard_at_once``;
    from then on, but not in the first 20 iterations and not with fewer than 2048 samples, every
    other run of 256 samples is coded afresh and the rest refitted, in turns. Before iteration
    ``join_at``, or when nothing more is gained without them, the ``further`` terms, factors
    ``(R − 1, m_i, n_i)``, join the dictionary.
    """

    coder: Coder
    structure: Structure = General()  # noqa: RUF009  (it has no state)
    statistics: str = "auto"
    n_refits: int = 0
    monotone: bool = True
    guard_at_once: bool = True
    max_iter: int = 100
    min_improvement: float = 0.0
    time_budget: float | None = None
    further: Sequence[NDArray[np.float64]] = ()
    join_at: int = 0

    def waiting(self, dictionary: Dictionary) -> bool:
        """Whether further terms have not joined this dictionary yet."""
        return bool(self.further) and dictionary.n_terms == 1

    def handed_out(self, dictionary: Dictionary) -> Dictionary:
        """What a learner hands out of a dictionary that it worked with."""
        if self.waiting(dictionary):
            dictionary = joined(dictionary, self.further)
        return self.structure.result(dictionary)

    @property
    def keeps_supports(self) -> bool:
        """Whether better supports are kept; exact coding leaves nothing better to keep."""
        return self.monotone and not self.structure.exact_coding

    @property
    def takes_turns(self) -> bool:
        """Whether halves of the samples may be coded afresh in turns.

        To an error target all are coded: a refit may miss it. So they are where every mode is.
        """
        return self.coder.tol is None and self.statistics != "recode"

    @property
    def is_simple(self) -> bool:
        """Whether an iteration is one coding and one update, and nothing is kept in between."""
        return (
            isinstance(self.structure, General | Orthonormal)
            and self.coder.tol is None
            and self.statistics in ("auto", "full")
            and not (self.builds_on_supports or self.further)
        )

    @property
    def builds_on_supports(self) -> bool:
        """Whether a later pass needs the supports of an earlier one."""
        return self.keeps_supports or self.n_refits > 0


@dataclass(frozen=True)
class Progress:
    """What a callback is told after each iteration."""

    iteration: int
    rmse: float
    seconds: float
    dictionary: Dictionary


@dataclass
class LearningState:
    """Everything that the rest of a run depends on; what a checkpoint holds.

    ``dictionary`` (float64) is the present one, ``best`` that of the lowest RMSE; ``codes`` the
    supports that monotone learning builds on; ``guarded`` whether it has begun to keep them where
    they are better than new ones; ``moments`` the last full ones, which online learning goes on
    from (a checkpoint leaves them out).
    """

    dictionary: Dictionary
    best: Dictionary
    codes: KeptCodes | None = None
    guarded: bool = False
    moments: Moments | None = None
    history: dict[str, list[float]] = field(
        default_factory=lambda: {
            "rmse": [],
            "coding_rmse": [],
            "seconds": [],
            "atoms_replaced": [],
            "mean_nonzeros": [],
        }
    )
    stop_reason: str | None = None

    @property
    def iteration(self) -> int:
        """Iterations finished."""
        return len(self.history["rmse"])


def uses_full_moments(plan: Plan, dictionary: Dictionary, n_samples: int) -> bool:
    """Whether this plan sums full moments over so many samples."""
    if not isinstance(plan.structure, FromMoments):
        return False
    if dictionary.n_terms > 1 or plan.further or not isinstance(plan.structure, ModeByMode):
        return True
    if plan.statistics == "auto":
        if plan.structure.needs_xx and dictionary.n_codes > _FULL_MOMENTS_UP_TO:
            return False
        sizes = dictionary.patch_shape, dictionary.n_atoms
        numbers = Moments.numbers(*sizes, with_xx=plan.structure.needs_xx)
        return numbers <= max(_FEW_NUMBERS, _NUMBERS_PER_SAMPLE * n_samples)
    return plan.statistics == "full"


def learn(
    source: Source,
    state: LearningState,
    plan: Plan,
    engine: Engine,
    on_iteration: Callable[[LearningState], bool] | None = None,
) -> None:
    """Advance the state until a reason to stop; ``state.stop_reason`` says which.

    ``on_iteration`` is called after every finished iteration and stops the run by returning True.
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
            _loop(source, state, plan, engine, start, on_iteration)
            if not plan.structure.keeps_fit:
                _judge_last(source, state, plan, engine)
    except BaseException:
        state.stop_reason = "interrupted"
        raise
    state.stop_reason = state.stop_reason or "max_iter"


def _loop(
    source: Source,
    state: LearningState,
    plan: Plan,
    engine: Engine,
    start: float,
    on_iteration: Callable[[LearningState], bool] | None,
) -> None:
    # To an error target it is the number of nonzeros that learning lowers, not the error.
    goal = "rmse" if plan.coder.tol is None else "mean_nonzeros"
    strict = plan.monotone and plan.coder.tol is None
    run = _Iteration(source, plan, engine)
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
        elif plan.time_budget is not None and time.perf_counter() - start >= plan.time_budget:
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


@dataclass
class Outcome:
    """What one iteration ends with."""

    dictionary: Dictionary
    codes: KeptCodes | None
    rmse: float
    coding_rmse: float
    atoms_replaced: int
    mean_nonzeros: float
    moments: Moments | None = None
    finished: float | None = None


class _Iteration:
    """One iteration at a time: coding, updates, refits, replacement of unused atoms."""

    def __init__(self, source: Source, plan: Plan, engine: Engine) -> None:
        self.source, self.plan, self.engine = source, plan, engine
        self.dictionary: Dictionary
        self.codes: Any = None
        self.spare: KeptCodes | None = None
        self.full = True
        self.keep_better = False
        self.half: int | None = None
        self.unused: list[NDArray[np.intp]] = []
        self.squared_error = 0.0
        self.moments: Moments | None = None
        # Iterations that the engine has done already, and the dictionary that they go on from.
        self.ahead: deque[Iterated] = deque()
        self.ahead_of: Dictionary | None = None
        self.at_once = 1
        self.may_run_ahead = plan.is_simple

    def iterate(self, state: LearningState) -> Outcome:
        """What the state's dictionary and supports become; the state itself stays as it is.

        Until a monotone run is guarded its supports must survive an iteration that turns out to
        raise the error, so the new ones go to a second set of arrays.
        """
        done = self._done_ahead(state)
        if done is not None:
            return done
        self.dictionary = state.dictionary
        self.full = uses_full_moments(self.plan, state.dictionary, len(self.source))
        self.keep_better = self.plan.keeps_supports and state.guarded and state.codes is not None
        self.half = None
        many = len(self.source) >= _FEWEST_FOR_TURNS
        if many and self.keep_better and self.plan.takes_turns and state.iteration >= _ALL_FRESH:
            self.half = state.iteration % 2
        if state.codes is not None and (state.guarded or not self.plan.keeps_supports):
            self.codes, self.spare = state.codes, None
        else:
            self.codes, self.spare = self.spare or self._room(), state.codes
        if isinstance(self.plan.structure, FromCodes):
            found = self._round_on_codes(self.plan.structure)
        elif self.full:
            found = self._rounds_on_moments()
        else:
            found = self._rounds_by_mode()
        if not self.plan.structure.keeps_fit:
            self.squared_error = found.residual
        replaced = 0
        if not self.plan.structure.exact_coding:
            self.dictionary, replaced = replace_unused(
                self.dictionary, self.unused, self.codes, self.source, self.plan.coder
            )
        numbers = len(self.source) * self.source.n_features
        return Outcome(
            self.dictionary,
            self.codes,
            math.sqrt(max(self.squared_error, 0.0) / numbers),
            math.sqrt(found.residual / numbers),
            replaced,
            found.nonzeros / len(self.source),
            self.moments,
        )

    def _done_ahead(self, state: LearningState) -> Outcome | None:
        """The next of some iterations that the engine did at once, or None."""
        plan = self.plan
        if not self.ahead or self.ahead_of is not state.dictionary:
            if not self.may_run_ahead:
                return None
            count = min(self.at_once, plan.max_iter - state.iteration)
            orthonormal = isinstance(plan.structure, Orthonormal)
            found = self.engine.ahead(self.source, state.dictionary, plan.coder, orthonormal, count)
            self.may_run_ahead = found is not None
            self.ahead = deque(found or ())
            self.at_once = min(2 * self.at_once, _MOST_AT_ONCE)
            if not self.ahead:
                return None
        done = self.ahead.popleft()
        self.ahead_of = done.dictionary
        numbers = len(self.source) * self.source.n_features
        return Outcome(
            done.dictionary,
            state.codes,
            math.sqrt(max(done.squared_error, 0.0) / numbers),
            math.sqrt(done.residual / numbers),
            0,
            done.nonzeros / len(self.source),
            finished=done.finished,
        )

    def _room(self) -> KeptCodes:
        return self.engine.room(
            self.source,
            self.plan.coder.width,
            supports=not self.full or self.plan.builds_on_supports,
            values=not self.full,
            residuals=True,
        )

    def _pass(self, coding: str, moments: Moments | ModeMoments | None = None) -> Pass:
        return self.engine.run(
            self.source,
            self.dictionary,
            self.plan.coder,
            coding=coding,
            keep_better=self.keep_better and coding == "fresh",
            half=self.half if coding == "fresh" else None,
            codes=self.codes,
            moments=moments,
        )

    def _rounds_on_moments(self) -> Pass:
        structure = self.plan.structure
        assert isinstance(structure, FromMoments)
        first = None
        for coding in ["fresh"] + ["refit"] * self.plan.n_refits:
            moments = Moments.zeros(
                self.dictionary.patch_shape, self.dictionary.n_atoms, structure.needs_xx
            )
            found = self._pass(coding, moments)
            first = first or found
            self.dictionary = structure.update(self.dictionary, moments)
        if structure.needs_xx:
            self.unused = unused_by_mode(moments.used())
        self.moments = moments
        self.squared_error = moments.squared_error(self.dictionary)
        assert first is not None
        return first

    def _rounds_by_mode(self) -> Pass:
        structure = self.plan.structure
        assert isinstance(structure, ModeByMode)
        n_atoms = self.dictionary.n_atoms
        first = None
        for round_ in range(1 + self.plan.n_refits):
            for mode, stack in enumerate(self.dictionary.stacks):
                if mode > 0:
                    coding = "fresh" if self.plan.statistics == "recode" else "given"
                else:
                    coding = "fresh" if round_ == 0 else "refit"
                sums = ModeMoments.zeros(mode, stack, structure.needs_xx)
                found = self._pass(coding, sums)
                first = first or found
                self.keep_better = self.plan.keeps_supports
                updated, scale = structure.solve(stack, sums)
                self.dictionary = self.dictionary.with_stack(mode, updated)
                sums.rescale(scale)
                self.codes.rescale(mode, scale, n_atoms)
        self.unused = unused_by_mode(self.codes.used(n_atoms))
        self.squared_error = sums.squared_error(self.dictionary.stacks[-1])
        assert first is not None
        return first

    def _round_on_codes(self, structure: FromCodes) -> Pass:
        assert isinstance(self.source, ArraySource)
        found = self._pass("fresh")
        self.dictionary = structure.update(self.dictionary, self.source, self.codes)
        self.unused = unused_by_mode(self.codes.used(self.dictionary.n_atoms))
        moments: Moments | ModeMoments
        if self.dictionary.n_codes <= _FULL_MOMENTS_UP_TO:
            moments = Moments.zeros(self.dictionary.patch_shape, self.dictionary.n_atoms)
            self._pass("given", moments)
            self.squared_error = moments.squared_error(self.dictionary)
        else:
            last = self.dictionary.stacks[-1]
            moments = ModeMoments.zeros(len(self.dictionary.stacks) - 1, last)
            self._pass("given", moments)
            self.squared_error = moments.squared_error(last)
        return found
