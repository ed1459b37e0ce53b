"""The learning loop: code the images, judge the filters, move them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional.coded import Coded, CodedImages, MapCoder
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.convolutional.updates import updated

__all__ = ["Entry", "Plan", "State", "judged", "learn", "next_state"]

# Rounds of coding in the first pass, which begins without codes, and in later ones.
_FIRST_ROUNDS, _ROUNDS = 8, 2
# How far from optimal coding goes in a pass: the filters change anyway.
_TOLERANCE = 0.1
# Steps of the filters in an iteration.
_STEPS = 2


@dataclass(frozen=True)
class Plan:
    """How to learn from images in units of ``scale`` with ``n_known`` known pixels."""

    penalty: float
    scale: float
    n_known: int
    n_threads: int
    max_iter: int = 1
    min_improvement: float = 0.0


class Entry(NamedTuple):
    """What is recorded of a dictionary when the images have been coded with it.

    ``seconds`` have passed since the start.
    """

    objective: float
    rmse: float
    nonzeros: int
    seconds: float


class State(NamedTuple):
    """A run between two passes, and all that the rest of it depends on.

    The next pass is run with ``dictionary``, from the codes that ``images`` have; ``history`` has
    an entry for every dictionary before it, of which ``passed`` is the last.
    """

    dictionary: ConvolutionalDictionary
    images: CodedImages
    passed: ConvolutionalDictionary | None = None
    history: tuple[Entry, ...] = ()
    stop_reason: str | None = None

    @property
    def n_iterations(self) -> int:
        """How many updates led to the last dictionary with an entry."""
        return max(len(self.history) - 1, 0)


def learn(state: State, plan: Plan) -> Iterator[State]:
    """The states after each pass, from a state on; the last one has a reason to stop.

    T iterations make T + 1 entries: the first pass judges the start, the last the last update.
    """
    begin = time.perf_counter() - (state.history[-1].seconds if state.history else 0.0)
    while state.stop_reason is None and len(state.history) <= plan.max_iter:
        state = next_state(state, plan, begin)
        yield state


def next_state(state: State, plan: Plan, begin: float, share: float = 1.0) -> State:
    """The state after a pass and an update, whose steps are shortened to a share."""
    rounds = _ROUNDS if state.history else _FIRST_ROUNDS
    coder = MapCoder(state.dictionary, plan.penalty / plan.scale, _TOLERANCE, plan.n_threads)
    images = state.images.mapped(Coded.coded_by, coder, rounds)
    sums = images.total(Coded.sums)
    dictionary = updated(state.dictionary, images, _STEPS, plan.n_threads, share)
    objective, rmse = judged(sums, plan)
    entry = Entry(objective, rmse, int(sums[2]), time.perf_counter() - begin)
    after = State(dictionary, images, state.dictionary, (*state.history, entry))
    return after._replace(stop_reason=_stop_reason(after, plan))


def judged(sums: NDArray[np.float64], plan: Plan) -> tuple[float, float]:
    """The objective and the RMSE that the sums of all images mean, in the units of the images."""
    error, magnitudes = plan.scale**2 * float(sums[0]), plan.scale * float(sums[1])
    return error / 2 + plan.penalty * magnitudes, float(np.sqrt(error / plan.n_known))


def _stop_reason(state: State, plan: Plan) -> str | None:
    # Without nonzeros there is nothing to learn from, now or later.
    if state.history[-1].nonzeros == 0:
        return "converged"
    # The first passes have codes that are still far from optimal.
    if plan.min_improvement > 0 and len(state.history) > 3:
        before, now = (entry.objective for entry in state.history[-2:])
        if now > (1 - plan.min_improvement) * before:
            return "converged"
    return "max_iter" if len(state.history) > plan.max_iter else None
