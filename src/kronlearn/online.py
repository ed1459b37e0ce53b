"""Online learning: the same moments and updates, a batch at a time."""

from __future__ import annotations

import math
import time

from kronlearn.engines.threads import Codes, Threads
from kronlearn.learning import LearningState, Outcome, Plan, record
from kronlearn.moments import Moments
from kronlearn.replacement import replace_unused, unused_by_mode
from kronlearn.sources.arrays import ArraySource
from kronlearn.updates import sweep

__all__ = ["learn_online"]

# Full moments of at most this many numbers are kept (1 GiB).
_MOST_NUMBERS = 1 << 27


def learn_online(
    source: ArraySource,
    state: LearningState,
    plan: Plan,
    engine: Threads,
    moments: Moments | None,
    forgetting: float,
) -> Moments:
    """One step of online learning: code a batch, add its moments to the earlier ones, update.

    Returns the moments to pass to the next call.
    """
    start = time.perf_counter()
    n_atoms = tuple(factor.shape[1] for factor in state.factors)
    if Moments.numbers(source.patch_shape, n_atoms) > _MOST_NUMBERS:
        raise ValueError(
            f"partial_fit keeps full moments, {Moments.numbers(source.patch_shape, n_atoms):,} "
            f"numbers for {n_atoms} atoms; at most {_MOST_NUMBERS:,} are allowed. Use fit, or "
            "fewer atoms."
        )
    batch = Moments.zeros(source.patch_shape, n_atoms, with_xx=plan.structure == "general")
    codes = Codes.empty(
        len(source), plan.coder.width, source.dtype, supports=False, values=False, residuals=True
    )
    found = engine.run(source, state.factors, plan.coder, codes=codes, moments=batch)
    batch.energy = source.energy
    moments = batch if moments is None else moments * forgetting + batch
    state.factors = sweep(state.factors, moments, plan.structure)
    replaced = 0
    if plan.structure == "general":
        unused = unused_by_mode(moments.used())
        state.factors, replaced = replace_unused(
            state.factors, unused, codes, source, plan.coder, engine
        )
    state.best = state.factors
    rmse = math.sqrt(found.residual / (len(source) * source.n_features))
    seconds = (state.history["seconds"] or [0.0])[-1] + time.perf_counter() - start
    mean = found.nonzeros / len(source)
    record(state, Outcome(state.factors, None, rmse, rmse, replaced, mean), seconds)
    return moments
