"""OSubDil: a separable dictionary learned online, a batch of samples at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.comparators.learners import CustomUpdate, MomentsComparator
from kronlearn.comparators.stateful import StatefulDictionary
from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Task
from kronlearn.core.iteration import Iteration, learn_batch
from kronlearn.core.loop import Plan, State
from kronlearn.core.moments import Moments
from kronlearn.core.replacement import MOST_REPLACED, replace_unused
from kronlearn.core.source import Source
from kronlearn.core.structures import Structure
from kronlearn.io.arrays import ArraySource
from kronlearn.parameters import count, number, random_numbers

__all__ = ["OSubDil"]


@dataclass(eq=False, repr=False)
class OSubDil(MomentsComparator):
    """Online separable dictionary learning (Ghassemi, Shakeri, Sarwate and Bajwa, 2020).

    Every batch is coded with the current factors. Then, mode by mode, its sums
    ``α = Σ X_(i) (⊗ G_j) X_(i)ᵀ`` and ``β = Σ Y_(i) (⊗ D_j) X_(i)ᵀ`` are added to those of earlier
    batches, and each atom of the mode in turn is moved to the minimum of
    ``tr(D α Dᵀ) − 2 tr(Dᵀ β)`` on the sphere: ``d_c ∝ β_c − D α_c + α_cc d_c``. These steps are
    exact; the published method takes gradient steps of a fixed length, which suits only one scale
    of the data.

    ``fit`` goes through all samples ``max_iter`` times, each time in a new random order; an atom
    that a pass leaves unused is replaced by the direction of a badly represented sample. One more
    pass judges the last dictionary. ``partial_fit`` takes one batch.

    Parameters
    ----------
    batch_size : int, default 256
        Samples per batch of ``fit``; the publication uses 1.
    n_sweeps : int, default 5
        Sweeps over the atoms of a mode per batch.
    forgetting : float, default 20
        Before batch t is added, the sums are multiplied by ``(1 − 1/t)`` to this power (Mairal et
        al., 2010): after t batches, batch i has the weight ``(i/t)^forgetting``. With 0, as
        published, nothing is forgotten, and codes of early batches hold the dictionary back. On
        image patches, values from 5 to 50 reached the RMSE of learning from all samples at once; 0
        ended 6 to 8 % above.
    max_iter : int, default 100
        Passes over the samples.

    Attributes
    ----------
    history_ : dict of lists
        "rmse", "seconds", "atoms_replaced" and "mean_nonzeros" of the start and of every
        iteration. ``partial_fit`` adds an entry with the RMSE of its batch before the update.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import OSubDil
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = OSubDil((6, 5), n_nonzero_coefs=3, max_iter=2, random_state=0).fit(Y[:200])
    >>> model.partial_fit(Y[200:]).transform(Y).shape
    (300, 30)
    >>> model.n_iter_
    3
    """

    batch_size: int = count(256)
    n_sweeps: int = count(5)
    forgetting: float = number(20.0, "[0, inf)")

    def partial_fit(self, X: ArrayLike, y: Any = None) -> OSubDil:
        """Improve the dictionary with one batch of samples of any size.

        No atoms are replaced. After ``fit``, learning continues from the best dictionary.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
            The batch.
        y : None
            Ignored.

        Returns
        -------
        OSubDil
            The estimator itself.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.comparators import OSubDil
        >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
        >>> model = OSubDil((6, 5), n_nonzero_coefs=3, random_state=0)
        >>> for batch in np.split(Y, 3):
        ...     model = model.partial_fit(batch)
        >>> len(model.history_["rmse"])
        3
        """
        self._check_parameters()
        fitted = hasattr(self, "dictionary_")
        source, n_atoms = self._source(X, reset=not fitted)
        current: Dictionary = self._best if fitted else self._start(source, n_atoms)
        self._best: Dictionary = self._fit_batch(source, current, self._plan(current)).dictionary
        return self

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        start = super()._start(source, n_atoms)
        modes = [
            ModeSums(np.zeros((n, n)), np.zeros((n, m)), np.zeros(n, bool))
            for m, n in zip(start.patch_shape, start.n_atoms, strict=True)
        ]
        return StatefulDictionary(start, BatchSums(modes, 0, random_numbers(self.random_state)))

    def _structure(self) -> Structure:
        return CustomUpdate(self._update, replaces_unused=False)

    def _update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """Add the sums of a batch and update the factors, mode by mode."""
        assert isinstance(dictionary, StatefulDictionary)
        before = dictionary.method_state
        weight = (1.0 - 1.0 / (before.n_batches + 1)) ** float(self.forgetting)
        stacks, modes = list(dictionary.stacks), []
        for mode, (stack, earlier) in enumerate(zip(stacks, before.modes, strict=True)):
            p, c = moments.mode(stacks, mode)
            assert p is not None
            alpha, beta = weight * earlier.alpha + p, weight * earlier.beta + c
            modes.append(ModeSums(alpha, beta, earlier.used | (np.diagonal(p) > 0)))
            stacks[mode] = coordinate_steps(stack[0], alpha, beta, self.n_sweeps)[None]
        sums = BatchSums(modes, before.n_batches + 1, before.rng)
        return StatefulDictionary(dictionary.dictionary.with_stacks(stacks), sums)

    def _iterate(self, engine: Engine, dictionary: Dictionary, plan: Plan) -> Iteration:
        """Run a pass that judges the dictionary, then learn from one batch after the other."""
        assert isinstance(dictionary, StatefulDictionary)
        source, size = engine.source, int(self.batch_size)
        n_worst = min(sum(dictionary.n_atoms), MOST_REPLACED)
        judged = engine.run(Task(dictionary, plan.coder, n_worst=n_worst))
        order = dictionary.method_state.rng.permutation(len(source))
        updated: Dictionary = dictionary
        for first in range(0, len(source), size):
            # Ascending rows are read faster, and the order within a batch does not matter.
            rows = np.sort(order[first : first + size])
            batch = self._engine(ArraySource(source.take(rows), source.patch_shape), None)
            updated = learn_batch(batch, updated, plan.coder, plan.structure).dictionary
        updated, replaced = _replace_unused(updated, judged.worst, source, plan.coder)
        return Iteration(updated, judged.residual, judged.nonzeros, replaced)

    def _record(self, state: State, plan: Plan, source: Source) -> None:
        super()._record(state, plan, source)
        self._best = state.best


class ModeSums(NamedTuple):
    """The sums α (n, n) and βᵀ (n, m) of a mode, and which atoms this pass has used so far."""

    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]
    used: NDArray[np.bool_]


@dataclass(frozen=True)
class BatchSums:
    """The sums over all batches so far; ``rng`` draws the order of the samples of each pass."""

    modes: list[ModeSums]
    n_batches: int
    rng: np.random.RandomState


def _replace_unused(
    dictionary: Dictionary, worst: NDArray[np.int64], source: Source, coder: Coder
) -> tuple[Dictionary, int]:
    """Replace the atoms that no batch of the pass has used; return how many were replaced.

    Their sums, which stem from codes of earlier passes, become zero. The next pass begins with all
    atoms unused.
    """
    assert isinstance(dictionary, StatefulDictionary)
    sums = dictionary.method_state
    unused = [np.flatnonzero(~mode.used) for mode in sums.modes]
    updated, replaced = replace_unused(dictionary.dictionary, unused, worst, source, coder)
    modes = [
        ModeSums(alpha * np.outer(used, used), beta * used[:, None], np.zeros_like(used))
        for alpha, beta, used in sums.modes
    ]
    return StatefulDictionary(updated, replace(sums, modes=modes)), replaced


def coordinate_steps(
    factor: NDArray[np.float64],
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    n_sweeps: int,
) -> NDArray[np.float64]:
    """Move each atom of a factor (m, n) in turn to the minimum on its sphere; return the factor.

    The minimum is that of ``tr(D α Dᵀ) − 2 tr(Dᵀ β)``; ``beta`` is ``βᵀ``. Atoms that no code has
    used stay.
    """
    atoms = factor.T.copy()
    others = alpha - np.diag(np.diagonal(alpha))
    used = np.flatnonzero(np.diagonal(alpha) > 0)
    for _ in range(n_sweeps):
        for c in used:
            target = beta[c] - others[c] @ atoms
            largest = np.abs(target).max()
            if largest > 0:
                # The target grows with the square of the samples' scale, its squared norm with the
                # fourth power, which might overflow.
                target /= largest
                atoms[c] = target / math.sqrt(target @ target)
    return np.ascontiguousarray(atoms.T)
