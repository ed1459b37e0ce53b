"""One iteration of learning: a pass with a dictionary, and the next one from its sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Task, full_moment_numbers
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.replacement import MOST_REPLACED, replace_unused, unused_by_mode
from kronlearn.core.structures import ModeByMode, Structure

__all__ = ["Iteration", "iterate", "learn_batch", "uses_full_moments"]

# Full moments need n² numbers. They are faster than per-mode sums unless these are many and few
# samples are behind each; for 48 × 48 atoms they would be many megabytes in every thread.
_FULL_MOMENTS_UP_TO = 1024
_FEW_NUMBERS = 1 << 18
_NUMBERS_PER_SAMPLE = 16
# Online learning keeps full moments of at most this many numbers (2 GiB as a square).
_MOST_NUMBERS_KEPT = 1 << 27


@dataclass(frozen=True)
class Iteration:
    """What one iteration found.

    ``residual`` (``Σ‖y − ŷ‖²``), ``nonzeros`` and ``moments`` belong to the dictionary that the
    pass was run with; ``dictionary`` is the next one, in which ``atoms_replaced`` atoms are new.
    """

    dictionary: Dictionary
    residual: float
    nonzeros: int
    atoms_replaced: int = 0
    moments: Moments | None = None


def iterate(
    engine: Engine, dictionary: Dictionary, coder: Coder, structure: Structure
) -> Iteration:
    """Run a pass with a dictionary, and make the next one of its sums."""
    if uses_full_moments(structure, dictionary, len(engine.source)):
        return _from_full_moments(engine, dictionary, coder, structure)[0]
    assert isinstance(structure, ModeByMode)
    return _mode_by_mode(engine, dictionary, coder, structure)


def learn_batch(
    engine: Engine,
    dictionary: Dictionary,
    coder: Coder,
    structure: Structure,
    earlier: Moments | None = None,
    forgetting: float = 1.0,
) -> Iteration:
    """A step of online learning: an iteration that adds the moments of earlier batches.

    Its moments are those of all batches, of codes that belong to the next dictionary.
    """
    numbers = full_moment_numbers(dictionary.patch_shape, dictionary.n_atoms)
    if numbers > _MOST_NUMBERS_KEPT:
        raise ValueError(
            f"partial_fit keeps full moments, {numbers:,} numbers for {dictionary.n_atoms} atoms; "
            f"at most {_MOST_NUMBERS_KEPT:,} are allowed. Use fit, or fewer atoms."
        )
    found, scale = _from_full_moments(engine, dictionary, coder, structure, earlier, forgetting)
    assert found.moments is not None
    return replace(found, moments=found.moments.rescaled(scale))


def uses_full_moments(structure: Structure, dictionary: Dictionary, n_samples: int) -> bool:
    """Whether updates come from full moments, not from the sums of one mode after the other."""
    if dictionary.n_terms > 1 or not isinstance(structure, ModeByMode):
        return True
    if structure.needs_xx and dictionary.n_codes > _FULL_MOMENTS_UP_TO:
        return False
    numbers = full_moment_numbers(
        dictionary.patch_shape, dictionary.n_atoms, with_xx=structure.needs_xx
    )
    return numbers <= max(_FEW_NUMBERS, _NUMBERS_PER_SAMPLE * n_samples)


def _n_worst(dictionary: Dictionary, structure: Structure) -> int:
    return min(sum(dictionary.n_atoms), MOST_REPLACED) if structure.replaces_unused else 0


def _from_full_moments(
    engine: Engine,
    dictionary: Dictionary,
    coder: Coder,
    structure: Structure,
    earlier: Moments | None = None,
    forgetting: float = 1.0,
) -> tuple[Iteration, NDArray[np.float64]]:
    """An iteration, and what its codes times make those of the next dictionary, ``(n_codes,)``."""
    sums = "full" if structure.needs_xx else "xy"
    task = Task(dictionary, coder, sums, n_worst=_n_worst(dictionary, structure))
    found = engine.run(task)
    moments = Moments.of_pass(task, found)
    if earlier is not None:
        moments = earlier * forgetting + moments
    updated, scale = structure.update(dictionary, moments)
    unused = unused_by_mode(moments.used()) if structure.replaces_unused else []
    updated, replaced = replace_unused(updated, unused, found.worst, engine.source, coder)
    return Iteration(updated, found.residual, found.nonzeros, replaced, moments), scale


def _mode_by_mode(
    engine: Engine, dictionary: Dictionary, coder: Coder, structure: ModeByMode
) -> Iteration:
    """Code once, then for one mode after the other sum these codes and update its factor.

    The sums are those of codes as they were found: factors that have been updated already are
    taken with the norms that their update gave them.
    """
    n_modes = len(dictionary.stacks)
    sums = "mode" if structure.needs_xx else "mode-xy"
    n_worst = _n_worst(dictionary, structure)
    task = Task(dictionary, coder, sums, 0, n_worst, keeps_codes=n_modes > 1)
    first = found = engine.run(task)
    updated, unused = dictionary, []
    scales = [np.ones(n) for n in dictionary.n_atoms]
    for mode, stack in enumerate(dictionary.stacks):
        if mode > 0:
            task = Task(updated, coder, sums, mode, scales=tuple(scales))
            found = engine.run(task, first.codes)
        mode_sums = ModeMoments.of_pass(task, found)
        if structure.replaces_unused:
            assert mode_sums.p is not None
            unused.append(np.flatnonzero(np.diagonal(mode_sums.p) == 0))
        new, scales[mode] = structure.solve(stack, mode_sums)
        updated = updated.with_stack(mode, new)
    updated, replaced = replace_unused(updated, unused, first.worst, engine.source, coder)
    return Iteration(updated, first.residual, first.nonzeros, replaced)
