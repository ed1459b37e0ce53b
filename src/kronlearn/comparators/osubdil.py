"""OSubDil: a separable dictionary learned online, a batch of samples at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from kronlearn.blas import single_threaded_blas
from kronlearn.comparators.learners import check_nonnegative
from kronlearn.comparators.loops import Judged, LoopComparator
from kronlearn.comparators.memory import RememberingDictionary
from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Task
from kronlearn.core.loop import Entry, Plan
from kronlearn.core.moments import Moments
from kronlearn.core.online import learn_batch
from kronlearn.core.replacement import MOST_REPLACED, replace_unused
from kronlearn.core.source import Source
from kronlearn.core.structures import Structure
from kronlearn.io.arrays import ArraySource
from kronlearn.parameters import check_count

__all__ = ["OSubDil"]


@dataclass(eq=False, repr=False)
class OSubDil(LoopComparator):
    """Online separable dictionary learning (Ghassemi, Shakeri, Sarwate and Bajwa, 2020).

    Every batch is coded with the present factors. Then, mode after mode, its sums
    ``α = Σ X_(i) (⊗ G_j) X_(i)ᵀ`` and ``β = Σ Y_(i) (⊗ D_j) X_(i)ᵀ`` are added to those of earlier
    batches, and each atom of the mode in turn is put where ``tr(D α Dᵀ) − 2 tr(Dᵀ β)`` is least on
    the sphere: ``d_c ∝ β_c − D α_c + α_cc d_c``. That is exact, where the published method takes
    gradient steps of a fixed length, which depends on the scale of the data.

    ``fit`` goes through all samples ``max_iter`` times, each time in another random order; an
    atom that this leaves unused is replaced by the direction of a badly represented sample. What it
    ends with is judged by one more pass over the samples. ``partial_fit`` takes one batch.

    Parameters and attributes that are not listed here are described in
    :class:`~kronlearn.comparators.learners.Comparator`.

    Parameters
    ----------
    batch_size : int
        Samples per batch of ``fit``; 1 as published.
    n_sweeps : int
        How often per batch the atoms of a mode are gone through.
    forgetting : float
        Before batch t is added, the sums are multiplied by ``(1 − 1/t)`` to this power (Mairal et
        al., 2010): after t batches number i counts ``(i/t)^forgetting``. 0 forgets nothing, as
        published; codes of early batches then hold the dictionary back. On image patches 5 to 50
        ended where learning from all samples at once does, 0 at a 6 to 8 % higher RMSE.
    max_iter : int
        How often to go through the samples.

    Attributes
    ----------
    history_ : dict of lists
        ``partial_fit`` adds an entry with the RMSE that its batch had before the update.

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

    batch_size: int = 256
    n_sweeps: int = 5
    forgetting: float = 20.0

    def partial_fit(self, X: ArrayLike, y: Any = None) -> OSubDil:
        """Improve the dictionary with one batch of samples, however many there are.

        No atoms are replaced. After ``fit`` it goes on from its best dictionary.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored
        """
        self._check_parameters()
        fitted = hasattr(self, "dictionary_")
        source, n_atoms = self._source(X, reset=not fitted)
        present = self._best if fitted else self._start(source, n_atoms)
        plan = self._plan(present)
        with single_threaded_blas():
            updated, entry = self._learn_batch(source, present, plan)
        if not fitted:
            self.history_, self.n_iter_ = {name: [] for name in Entry._fields}, 0
        earlier = (self.history_["seconds"] or [0.0])[-1]
        for name, value in entry._replace(seconds=earlier + entry.seconds)._asdict().items():
            self.history_[name].append(value)
        self._best = updated
        self._adopt(plan.handed_out(updated), source)
        self.n_iter_, self.stop_reason_ = self.n_iter_ + 1, "partial_fit"
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_count("batch_size", self.batch_size, 1)
        check_count("n_sweeps", self.n_sweeps, 1)
        check_nonnegative(self, "forgetting")

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        start = super()._start(source, n_atoms)
        shapes = [stack.shape[1:] for stack in start.stacks]
        alpha = tuple(np.zeros((n, n)) for _, n in shapes)
        beta = tuple(np.zeros((n, m)) for m, n in shapes)
        used = tuple(np.zeros(n, bool) for _, n in shapes)
        return RememberingDictionary(start, Sums(alpha, beta, used, 0))

    def _structure(self, dictionary: Dictionary) -> Structure:
        return Online(int(self.n_sweeps), float(self.forgetting))

    def _dictionaries(self, engine: Engine, start: Dictionary, coder: Coder) -> Iterator[Judged]:
        source, dictionary, replaced = engine.source, start, 0
        rng = check_random_state(self.random_state)
        plan = self._plan(start)
        while True:
            n_worst = min(sum(dictionary.n_atoms), MOST_REPLACED)
            found = engine.run(Task(dictionary, coder, n_worst=n_worst))
            yield Judged(dictionary, found.residual, found.nonzeros, replaced)
            order = rng.permutation(len(source))
            for first in range(0, len(source), int(self.batch_size)):
                # In ascending order they are read faster, and within a batch order means nothing.
                rows = np.sort(order[first : first + int(self.batch_size)])
                batch = ArraySource(source.take(rows), source.patch_shape)
                dictionary, _ = self._learn_batch(batch, dictionary, plan)
            dictionary, replaced = _replaced(dictionary, found.worst, source, coder)

    def _learn_batch(
        self, batch: Source, dictionary: Dictionary, plan: Plan
    ) -> tuple[Dictionary, Entry]:
        """The dictionary after an update, and what is recorded of the batch."""
        engine = self._engine(batch, None)
        updated, _, entry = learn_batch(engine, dictionary, plan.coder, plan.structure, None, 1.0)
        return updated, entry


@dataclass(frozen=True)
class Sums:
    """For each mode the sums α (n, n) and βᵀ (n, m), and which atoms were used; of all batches."""

    alpha: tuple[NDArray[np.float64], ...]
    beta: tuple[NDArray[np.float64], ...]
    used: tuple[NDArray[np.bool_], ...]
    n_batches: int


class Online(Structure):
    """Kronecker products fitted to the sums of all batches so far."""

    name = "osubdil"
    replaces_unused = False

    def __init__(self, n_sweeps: int, forgetting: float) -> None:
        self.n_sweeps, self.forgetting = n_sweeps, forgetting

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """The factors, mode after mode, after the sums of a batch were added."""
        assert isinstance(dictionary, RememberingDictionary)
        before = dictionary.memory
        kept = (1.0 - 1.0 / (before.n_batches + 1)) ** self.forgetting
        stacks = list(dictionary.stacks)
        alpha, beta, used = [], [], []
        for mode, stack in enumerate(stacks):
            sums = moments.mode(stacks, mode)
            alpha.append(kept * before.alpha[mode] + sums.p)
            beta.append(kept * before.beta[mode] + sums.c)
            used.append(before.used[mode] | (np.diagonal(sums.p) > 0))
            stacks[mode] = coordinate_steps(stack[0], alpha[-1], beta[-1], self.n_sweeps)[None]
        memory = Sums(tuple(alpha), tuple(beta), tuple(used), before.n_batches + 1)
        updated = RememberingDictionary(dictionary.dictionary.with_stacks(stacks), memory)
        return updated, np.ones(dictionary.n_codes)

    def result(self, dictionary: Dictionary) -> Dictionary:
        """The dictionary without the sums."""
        assert isinstance(dictionary, RememberingDictionary)
        return dictionary.dictionary


def _replaced(
    dictionary: Dictionary, worst: NDArray[np.int64], source: Source, coder: Coder
) -> tuple[Dictionary, int]:
    """The dictionary with atoms not used since the last call replaced, and how many those are.

    The sums of such an atom, from codes of long ago, are dropped.
    """
    assert isinstance(dictionary, RememberingDictionary)
    sums = dictionary.memory
    unused = [np.flatnonzero(~used) for used in sums.used]
    updated, replaced = replace_unused(dictionary.dictionary, unused, worst, source, coder)
    alpha = tuple(a * np.outer(used, used) for a, used in zip(sums.alpha, sums.used, strict=True))
    beta = tuple(b * used[:, None] for b, used in zip(sums.beta, sums.used, strict=True))
    none = tuple(np.zeros_like(used) for used in sums.used)
    memory = replace(sums, alpha=alpha, beta=beta, used=none)
    return RememberingDictionary(updated, memory), replaced


def coordinate_steps(
    factor: NDArray[np.float64],
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    n_sweeps: int,
) -> NDArray[np.float64]:
    """A factor (m, n) after its atoms were put where they are best, one after the other.

    Best for ``tr(D α Dᵀ) − 2 tr(Dᵀ β)`` on the sphere; ``beta`` is ``βᵀ``. Atoms without sums stay.
    """
    atoms = factor.T.copy()
    others = alpha - np.diag(np.diagonal(alpha))
    known = np.flatnonzero(np.diagonal(alpha) > 0)
    for _ in range(n_sweeps):
        for c in known:
            target = beta[c] - others[c] @ atoms
            largest = np.abs(target).max()
            if largest > 0:
                # The sums are squares of the samples' scale, those of the target its fourth power.
                target /= largest
                atoms[c] = target / math.sqrt(target @ target)
    return np.ascontiguousarray(atoms.T)
