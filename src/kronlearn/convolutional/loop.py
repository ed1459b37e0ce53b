"""The learning loop: code the images, record how good the filters are, improve the filters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional.coded import CodedImage, CodedImages, MapCoder
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.convolutional.updates import update_filters

__all__ = ["Entry", "Plan", "Progress", "State", "learn", "next_state"]

# Rounds of coding in the first pass, which begins without codes, and in later ones.
_FIRST_ROUNDS, _ROUNDS = 8, 2
# Passes code to this tolerance only: the filters will change anyway.
_TOLERANCE = 0.1
# Steps of the filters in an iteration.
_STEPS = 2


@dataclass(frozen=True)
class Plan:
    """How to learn from images in units of ``scale`` that have ``n_known`` known pixels in all.

    ``penalty`` is in the original units of the images.
    """

    penalty: float
    scale: float
    n_known: int
    n_threads: int
    max_iter: int
    min_improvement: float

    def coder(self, dictionary: ConvolutionalDictionary, tol: float) -> MapCoder:
        """How the images are coded with a dictionary to a tolerance."""
        return MapCoder(dictionary, self.penalty / self.scale, tol, self.n_threads)

    def objective_and_rmse(self, sums: NDArray[np.float64]) -> tuple[float, float]:
        """Both in the original units, from the total of :meth:`CodedImage.sums`."""
        error, magnitudes = self.scale**2 * float(sums[0]), self.scale * float(sums[1])
        return error / 2 + self.penalty * magnitudes, float(np.sqrt(error / self.n_known))


class Entry(NamedTuple):
    """What a pass records about the dictionary that it codes with.

    ``seconds`` is the time since learning began.
    """

    objective: float
    rmse: float
    nonzeros: int
    seconds: float


@dataclass(frozen=True)
class Progress:
    """The argument of a callback: ``dictionary``, after ``iteration`` updates, and its entry."""

    iteration: int
    objective: float
    rmse: float
    nonzeros: int
    seconds: float
    dictionary: ConvolutionalDictionary


class State(NamedTuple):
    """A run between two passes: everything that the rest of the run depends on.

    The next pass codes ``images`` with ``dictionary``, beginning with the codes they have.
    ``history`` has an entry for every earlier dictionary; ``passed`` is the last of these.
    ``stop_reason`` is None until the run has ended.
    """

    dictionary: ConvolutionalDictionary
    images: CodedImages
    passed: ConvolutionalDictionary | None = None
    history: tuple[Entry, ...] = ()
    stop_reason: str | None = None

    @property
    def n_iterations(self) -> int:
        """The number of updates that led to the dictionary of the last entry."""
        return max(len(self.history) - 1, 0)


def learn(state: State, plan: Plan) -> Iterator[State]:
    """Continue a run, and yield the state after each pass; the last one has a stop reason.

    T iterations make T + 1 entries: the first pass measures the filters to start from, the last
    one the last update.
    """
    begin = time.perf_counter() - (state.history[-1].seconds if state.history else 0.0)
    while state.stop_reason is None and len(state.history) <= plan.max_iter:
        state = next_state(state, plan, begin)
        yield state


def next_state(state: State, plan: Plan, begin: float, step_scale: float = 1.0) -> State:
    """The state after a pass and an update, whose steps are multiplied by ``step_scale``.

    ``begin`` is the time at which learning began.
    """
    rounds = _ROUNDS if state.history else _FIRST_ROUNDS
    coder = plan.coder(state.dictionary, _TOLERANCE)
    images = state.images.mapped(CodedImage.coded, coder, rounds)
    sums = images.total(CodedImage.sums)
    dictionary = update_filters(state.dictionary, images, _STEPS, plan.n_threads, step_scale)
    objective, rmse = plan.objective_and_rmse(sums)
    entry = Entry(objective, rmse, int(sums[2]), time.perf_counter() - begin)
    after = State(dictionary, images, state.dictionary, (*state.history, entry))
    return after._replace(stop_reason=_stop_reason(after, plan))


def _stop_reason(state: State, plan: Plan) -> str | None:
    # Without nonzeros there is nothing to learn from, now or later.
    if state.history[-1].nonzeros == 0:
        return "converged"
    # Before the fourth entry, codes are still far from optimal.
    if plan.min_improvement > 0 and len(state.history) > 3:
        before, now = (entry.objective for entry in state.history[-2:])
        if now > (1 - plan.min_improvement) * before:
            return "converged"
    return "max_iter" if len(state.history) > plan.max_iter else None
