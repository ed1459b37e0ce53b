"""One iteration of learning: a pass with a dictionary, and the next dictionary from its sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Iteration, Task, full_moment_numbers
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.replacement import MOST_REPLACED, replace_unused, unused_by_mode
from kronlearn.core.structures import ModeByMode, Structure

__all__ = ["Iteration", "iterate", "learn_batch", "uses_full_moments"]

# Full moments hold about n²/2 numbers, in every thread. Summing them is faster than summing one
# mode after the other unless there are many of them for few samples.
_MOST_FULL_MOMENT_ATOMS = 1024
_FEW_NUMBERS = 1 << 18
_NUMBERS_PER_SAMPLE = 16
# Online learning keeps full moments of at most this many numbers (2 GiB as a square).
_MOST_NUMBERS_KEPT = 1 << 27


def iterate(
    engine: Engine, dictionary: Dictionary, coder: Coder, structure: Structure
) -> Iteration:
    """Run one iteration: a pass with a dictionary, and the structure's update from its sums."""
    if uses_full_moments(structure, dictionary, len(engine.source)):
        return _iterate_with_full_moments(engine, dictionary, coder, structure)[0]
    assert isinstance(structure, ModeByMode)
    return _iterate_mode_by_mode(engine, dictionary, coder, structure)


def learn_batch(
    engine: Engine,
    dictionary: Dictionary,
    coder: Coder,
    structure: Structure,
    earlier: Moments | None = None,
    forgetting: float = 1.0,
) -> Iteration:
    """Run one step of online learning: an iteration that adds the moments of earlier batches.

    The moments it returns are those of all batches, rescaled to fit the next dictionary.
    """
    numbers = full_moment_numbers(dictionary.patch_shape, dictionary.n_atoms)
    if numbers > _MOST_NUMBERS_KEPT:
        raise ValueError(
            f"partial_fit keeps full moments, {numbers:,} numbers for {dictionary.n_atoms} atoms; "
            f"at most {_MOST_NUMBERS_KEPT:,} are allowed. Use fit, or fewer atoms."
        )
    iteration, scale = _iterate_with_full_moments(
        engine, dictionary, coder, structure, earlier, forgetting
    )
    assert iteration.moments is not None
    return replace(iteration, moments=iteration.moments.rescaled(scale))


def uses_full_moments(structure: Structure, dictionary: Dictionary, n_samples: int) -> bool:
    """Whether to update from full moments rather than from the sums of one mode after the other."""
    if dictionary.n_terms > 1 or not isinstance(structure, ModeByMode):
        return True
    if structure.needs_xx and dictionary.n_codes > _MOST_FULL_MOMENT_ATOMS:
        return False
    numbers = full_moment_numbers(
        dictionary.patch_shape, dictionary.n_atoms, with_xx=structure.needs_xx
    )
    return numbers <= max(_FEW_NUMBERS, _NUMBERS_PER_SAMPLE * n_samples)


def _n_worst(dictionary: Dictionary, structure: Structure) -> int:
    """How many of the worst samples may be needed to replace unused atoms."""
    return min(sum(dictionary.n_atoms), MOST_REPLACED) if structure.replaces_unused else 0


def _iterate_with_full_moments(
    engine: Engine,
    dictionary: Dictionary,
    coder: Coder,
    structure: Structure,
    earlier: Moments | None = None,
    forgetting: float = 1.0,
) -> tuple[Iteration, NDArray[np.float64]]:
    """Sum full moments in one pass, and update all factors from them.

    Also returns the scale ``(n_codes,)`` that makes the codes fit the next dictionary.
    """
    sums = "full" if structure.needs_xx else "xy"
    task = Task(dictionary, coder, sums, n_worst=_n_worst(dictionary, structure))
    result = engine.run(task)
    moments = Moments.of_pass(task, result)
    if earlier is not None:
        moments = earlier * forgetting + moments
    updated, scale = structure.update(dictionary, moments)
    unused = unused_by_mode(moments.used()) if structure.replaces_unused else []
    updated, replaced = replace_unused(updated, unused, result.worst, engine.source, coder)
    return Iteration(updated, result.residual, result.nonzeros, replaced, moments), scale


def _iterate_mode_by_mode(
    engine: Engine, dictionary: Dictionary, coder: Coder, structure: ModeByMode
) -> Iteration:
    """Code once; then, for each mode in turn, sum the codes for that mode and update its factor.

    The codes themselves stay as the coder found them. Factors that have been updated already
    therefore enter the sums with the scales that their updates returned.
    """
    n_modes = len(dictionary.stacks)
    sums = "mode" if structure.needs_xx else "mode-xy"
    n_worst = _n_worst(dictionary, structure)
    task = Task(dictionary, coder, sums, 0, n_worst, keeps_codes=n_modes > 1)
    coding = result = engine.run(task)
    updated, unused = dictionary, []
    scales = [np.ones(n) for n in dictionary.n_atoms]
    for mode, stack in enumerate(dictionary.stacks):
        if mode > 0:
            task = Task(updated, coder, sums, mode, scales=tuple(scales))
            result = engine.run(task, coding.codes)
        mode_sums = ModeMoments.of_pass(task, result)
        if structure.replaces_unused:
            assert mode_sums.p is not None
            unused.append(np.flatnonzero(np.diagonal(mode_sums.p) == 0))
        new_stack, scales[mode] = structure.solve(stack, mode_sums)
        updated = updated.with_stack(mode, new_stack)
    updated, replaced = replace_unused(updated, unused, coding.worst, engine.source, coder)
    return Iteration(updated, coding.residual, coding.nonzeros, replaced)
