"""Online learning: the same moments and updates, a batch at a time."""

from __future__ import annotations

import math
import time

from kronlearn.core.engine import Engine
from kronlearn.core.loop import record
from kronlearn.core.moments import Moments
from kronlearn.core.plan import LearningState, Outcome, Plan
from kronlearn.core.replacement import replace_unused, unused_by_mode
from kronlearn.core.source import Source
from kronlearn.core.structures import FromMoments

__all__ = ["learn_online"]

# Full moments of at most this many numbers are kept (1 GiB).
_MOST_NUMBERS = 1 << 27


def learn_online(
    source: Source,
    state: LearningState,
    plan: Plan,
    engine: Engine,
    moments: Moments | None,
    forgetting: float,
) -> Moments:
    """One step of online learning: code a batch, add its moments to the earlier ones, update.

    Returns the moments to pass to the next call.
    """
    start = time.perf_counter()
    structure = plan.structure
    assert isinstance(structure, FromMoments)
    shape, n_atoms = state.dictionary.patch_shape, state.dictionary.n_atoms
    if Moments.numbers(shape, n_atoms) > _MOST_NUMBERS:
        raise ValueError(
            f"partial_fit keeps full moments, {Moments.numbers(shape, n_atoms):,} "
            f"numbers for {n_atoms} atoms; at most {_MOST_NUMBERS:,} are allowed. Use fit, or "
            "fewer atoms."
        )
    batch = Moments.zeros(shape, n_atoms, structure.needs_xx)
    codes = engine.room(source, plan.coder.width, supports=False, values=False, residuals=True)
    found = engine.run(source, state.dictionary, plan.coder, codes=codes, moments=batch)
    moments = batch if moments is None else moments * forgetting + batch
    state.dictionary = structure.update(state.dictionary, moments)
    replaced = 0
    if not structure.exact_coding:
        unused = unused_by_mode(moments.used())
        state.dictionary, replaced = replace_unused(
            state.dictionary, unused, codes, source, plan.coder
        )
    state.best = state.dictionary
    rmse = math.sqrt(found.residual / (len(source) * source.n_features))
    seconds = (state.history["seconds"] or [0.0])[-1] + time.perf_counter() - start
    mean = found.nonzeros / len(source)
    record(state, Outcome(state.dictionary, None, rmse, rmse, replaced, mean), seconds)
    return moments
