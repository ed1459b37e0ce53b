"""What learning is to do, and what the rest of a run depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Coder, KeptCodes
from kronlearn.core.init import joined
from kronlearn.core.moments import Moments
from kronlearn.core.structures import FromMoments, General, ModeByMode, Orthonormal, Structure

__all__ = [
    "FULL_MOMENTS_UP_TO",
    "STATISTICS",
    "LearningState",
    "Outcome",
    "Plan",
    "Progress",
    "uses_full_moments",
]

STATISTICS = ("auto", "full", "per-mode", "recode")

# Full moments need n² numbers. They are faster than per-mode sums unless these are many and few
# samples are behind each; for 48 × 48 atoms they would be many megabytes in every thread.
FULL_MOMENTS_UP_TO = 1024
_FEW_NUMBERS = 1 << 18
_NUMBERS_PER_SAMPLE = 16


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
        """Whether an iteration is one coding and one update of a dictionary of one term."""
        return (
            isinstance(self.structure, General | Orthonormal)
            and self.coder.tol is None
            and self.statistics in ("auto", "full")
            and not (self.n_refits or self.further)
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
        if plan.structure.needs_xx and dictionary.n_codes > FULL_MOMENTS_UP_TO:
            return False
        sizes = dictionary.patch_shape, dictionary.n_atoms
        numbers = Moments.numbers(*sizes, with_xx=plan.structure.needs_xx)
        return numbers <= max(_FEW_NUMBERS, _NUMBERS_PER_SAMPLE * n_samples)
    return plan.statistics == "full"


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
