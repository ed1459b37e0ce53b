"""Online learning: the same moments and updates, a batch at a time."""

from __future__ import annotations

import time

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, full_moment_numbers
from kronlearn.core.iteration import moments_task
from kronlearn.core.loop import Entry
from kronlearn.core.moments import Moments
from kronlearn.core.replacement import replace_unused, unused_by_mode
from kronlearn.core.source import rmse_of
from kronlearn.core.structures import Structure

__all__ = ["learn_batch"]

# Full moments of at most this many numbers are kept (2 GiB as a square).
_MOST_NUMBERS = 1 << 27


def learn_batch(
    engine: Engine,
    dictionary: Dictionary,
    coder: Coder,
    structure: Structure,
    earlier: Moments | None,
    forgetting: float,
) -> tuple[Dictionary, Moments, Entry]:
    """One step of online learning: code a batch, add its moments to the earlier ones, update.

    Returns the new dictionary, the moments of all batches with codes that belong to it, and what
    is recorded of the batch: its RMSE with the dictionary before.
    """
    start = time.perf_counter()
    numbers = full_moment_numbers(dictionary.patch_shape, dictionary.n_atoms)
    if numbers > _MOST_NUMBERS:
        raise ValueError(
            f"partial_fit keeps full moments, {numbers:,} numbers for {dictionary.n_atoms} atoms; "
            f"at most {_MOST_NUMBERS:,} are allowed. Use fit, or fewer atoms."
        )
    source = engine.source
    task = moments_task(dictionary, coder, structure)
    found = engine.run(task)
    moments = Moments.of_pass(task, found)
    if earlier is not None:
        moments = earlier * forgetting + moments
    updated, scale = structure.update(dictionary, moments)
    replaced = 0
    if structure.replaces_unused:
        unused = unused_by_mode(moments.used())
        updated, replaced = replace_unused(updated, unused, found.worst, source, coder)
    rmse = rmse_of(source, found.residual)
    seconds = time.perf_counter() - start
    entry = Entry(rmse, seconds, replaced, found.nonzeros / len(source))
    return updated, moments.rescaled(scale), entry
