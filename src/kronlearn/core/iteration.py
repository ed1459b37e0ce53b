"""One iteration of learning: code, add up, update."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import (
    MOST_AT_ONCE,
    Course,
    Engine,
    Iterated,
    KeptCodes,
    Pass,
    Step,
)
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.plan import FULL_MOMENTS_UP_TO, LearningState, Outcome, Plan, uses_full_moments
from kronlearn.core.replacement import replace_unused, unused_by_mode
from kronlearn.core.source import Source
from kronlearn.core.structures import FromCodes, FromMoments, ModeByMode, Orthonormal
from kronlearn.io.arrays import ArraySource

__all__ = ["Iteration"]

# Iterations in which all samples are coded afresh. On image patches taking turns from then on costs
# 0.3 % of the RMSE after 100 iterations, and saves a quarter of the time.
_ALL_FRESH = 20
# With fewer samples the runs that take turns would not make two like halves.
_FEWEST_FOR_TURNS = 2048


class Iteration:
    """One iteration at a time: coding, updates, refits, replacement of unused atoms.

    Every ``looks_every`` iterations the state may be saved, or the run stopped: where codes are
    kept they have to be those of that iteration then.
    """

    def __init__(
        self, source: Source, plan: Plan, engine: Engine, looks_every: int | None = None
    ) -> None:
        self.source, self.plan, self.engine = source, plan, engine
        self.looks_every = looks_every
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
        step = self._step(state, state.iteration, state.codes is not None)
        self.keep_better, self.half = step.keep_better, step.half
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

    def _step(self, state: LearningState, iteration: int, has_codes: bool) -> Step:
        """How an iteration codes."""
        if not (self.plan.keeps_supports and state.guarded and has_codes):
            return Step()
        many = len(self.source) >= _FEWEST_FOR_TURNS
        turns = many and self.plan.takes_turns and iteration >= _ALL_FRESH
        return Step(keep_better=True, half=iteration % 2 if turns else None)

    def _done_ahead(self, state: LearningState) -> Outcome | None:
        """The next of some iterations that the engine did at once, or None."""
        if not self.ahead or self.ahead_of is not state.dictionary:
            if not self.may_run_ahead:
                return None
            found = self.engine.ahead(
                self.source, state.dictionary, self.plan.coder, self._course(state)
            )
            self.may_run_ahead = found is not None
            self.ahead = deque(found or ())
            self.at_once = min(2 * self.at_once, MOST_AT_ONCE)
            if not self.ahead:
                return None
        done = self.ahead.popleft()
        self.ahead_of = done.dictionary
        if done.codes is not None:
            # The engine has its own room for codes.
            self.spare = None
        numbers = len(self.source) * self.source.n_features
        return Outcome(
            done.dictionary,
            done.codes or state.codes,
            math.sqrt(max(done.squared_error, 0.0) / numbers),
            math.sqrt(done.residual / numbers),
            0,
            done.nonzeros / len(self.source),
            finished=done.finished,
        )

    def _course(self, state: LearningState) -> Course:
        """What the engine may do at once."""
        plan, first = self.plan, state.iteration
        count = min(self.at_once, plan.max_iter - first)
        if plan.keeps_supports and self.looks_every is not None:
            count = min(count, self.looks_every - first % self.looks_every)
        if plan.time_budget is not None and len(state.history["seconds"]) > 1:
            earlier, now = state.history["seconds"][-2:]
            # One more than there seems to be time for: the budget is to be reached.
            left = (plan.time_budget - now) / max(now - earlier, 1e-9)
            count = min(count, 1 + int(min(max(left, 0.0), MOST_AT_ONCE)))
        last_error = None
        if plan.monotone and state.history["rmse"]:
            # A little less, for the root was rounded: whether the error rose is decided by that.
            numbers = len(self.source) * self.source.n_features
            last_error = numbers * (state.history["rmse"][-1] * (1 - 1e-12)) ** 2
        has_codes = state.codes is not None
        return Course(
            tuple(self._step(state, first + i, has_codes or i > 0) for i in range(count)),
            orthonormal=isinstance(plan.structure, Orthonormal),
            keeps_codes=plan.keeps_supports,
            in_place=state.guarded,
            codes=state.codes if plan.keeps_supports else None,
            last_error=last_error,
        )

    def _room(self) -> KeptCodes:
        return self.engine.room(
            self.source,
            self.plan.coder.width,
            supports=not self.full or self.plan.builds_on_supports,
            values=not self.full,
            residuals=True,
        )

    def _pass(
        self,
        coding: str,
        moments: Moments | ModeMoments | None = None,
        scales: list[NDArray[np.float64]] | None = None,
    ) -> Pass:
        return self.engine.run(
            self.source,
            self.dictionary,
            self.plan.coder,
            coding=coding,
            keep_better=self.keep_better and coding == "fresh",
            half=self.half if coding == "fresh" else None,
            codes=self.codes,
            moments=moments,
            scales=None if scales is None else tuple(scales),
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
        recodes = self.plan.statistics == "recode"
        self.unused = []
        first = None
        for round_ in range(1 + self.plan.n_refits):
            # Codes keep the values that they have before the factors of other modes get unit norm.
            scales = [np.ones(n) for n in n_atoms]
            for mode, stack in enumerate(self.dictionary.stacks):
                if mode > 0:
                    coding = "fresh" if recodes else "given"
                else:
                    coding = "fresh" if round_ == 0 else "refit"
                sums = ModeMoments.zeros(mode, stack, structure.needs_xx)
                found = self._pass(coding, sums, scales if coding == "given" else None)
                first = first or found
                if round_ == 0 and structure.needs_xx:
                    self.unused.append(sums.unused())
                self.keep_better = self.plan.keeps_supports
                updated, scales[mode] = structure.solve(stack, sums)
                self.dictionary = self.dictionary.with_stack(mode, updated)
                sums.rescale(scales[mode])
        if recodes:
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
        if self.dictionary.n_codes <= FULL_MOMENTS_UP_TO:
            moments = Moments.zeros(self.dictionary.patch_shape, self.dictionary.n_atoms)
            self._pass("given", moments)
            self.squared_error = moments.squared_error(self.dictionary)
        else:
            last = self.dictionary.stacks[-1]
            moments = ModeMoments.zeros(len(self.dictionary.stacks) - 1, last)
            self._pass("given", moments)
            self.squared_error = moments.squared_error(last)
        return found
