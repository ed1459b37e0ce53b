"""OSubDil: a separable dictionary learned online, a batch of samples at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from kronlearn.comparators.loops import LoopLearner, Step
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Coder, Codes
from kronlearn.core.moments import ModeMoments
from kronlearn.core.plan import LearningState, Progress
from kronlearn.core.replacement import replace_unused
from kronlearn.engines.threads import Threads, default_block_size, resolve_n_jobs
from kronlearn.io.arrays import ArraySource
from kronlearn.parameters import check_count, check_number

__all__ = ["OSubDil"]


class OSubDil(LoopLearner):
    """Online separable dictionary learning (Ghassemi, Shakeri, Sarwate and Bajwa, 2020).

    Every batch is coded with the present factors. Then, mode after mode, its sums
    ``α = Σ X_(i) (⊗ G_j) X_(i)ᵀ`` and ``β = Σ Y_(i) (⊗ D_j) X_(i)ᵀ`` are added to those of earlier
    batches, and each atom of the mode in turn is put where ``tr(D α Dᵀ) − 2 tr(Dᵀ β)`` is least on
    the sphere: ``d_c ∝ β_c − D α_c + α_cc d_c``. That is exact, where the published method takes
    gradient steps of a fixed length, which depends on the scale of the data.

    ``fit`` goes through all samples ``max_iter`` times, each time in another random order; an
    atom that a whole pass leaves unused is replaced by the direction of a badly represented sample.
    ``partial_fit`` takes one batch.

    Parameters
    ----------
    n_atoms : tuple of int or int
        Columns of each factor; one number means the same for every mode.
    patch_shape : tuple of int, optional
        ``(m_1, …, m_d)`` of samples given as rows.
    n_nonzero_coefs : int, optional
        The most nonzeros a sample may have.
    tol : float, optional
        The ℓ2 norm a sample's residual may have. At least one of the two is needed.
    batch_size : int
        Samples per batch of ``fit``; 1 as published.
    n_sweeps : int
        How often per batch the atoms of a mode are gone through.
    forgetting : float
        Before batch t is added, the sums are multiplied by ``(1 − 1/t)`` to this power (Mairal et
        al., 2010): after t batches number i counts ``(i/t)^forgetting``. 0 forgets nothing, as
        published; codes of early batches then hold the dictionary back. On image patches 5 to 50
        ended where learning from all samples at once does, 0 at a 6 to 8 % higher RMSE.
    method : {"omp", "ols"}
        The coder.
    max_iter : int
        Passes through the samples.
    init : {"dct", "data", "random"}, KroneckerDictionary or list of factors
        Start: a perturbed overcomplete DCT, directions of random samples, noise, or your own.
    random_state : int, RandomState or None
        Seeds the start and the order of the samples.
    n_jobs, verbose, time_budget, callback
        As for :class:`kronlearn.KroneckerDictionaryLearning`. Batches below 1024 samples are coded
        by one thread.

    Attributes
    ----------
    dictionary_ : KroneckerDictionary
        The last one.
    history_ : dict of lists, one entry per pass or call of ``partial_fit``
        "rmse": every batch with its own codes, after the update that it led to; "coding_rmse":
        before that update; "seconds", "atoms_replaced", "mean_nonzeros".
    n_iter_, stop_reason_, patch_shape_
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

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

    _memory: Online

    def __init__(
        self,
        n_atoms: tuple[int, ...] | int = (16, 16),
        patch_shape: tuple[int, ...] | None = None,
        n_nonzero_coefs: int | None = 6,
        tol: float | None = None,
        batch_size: int = 256,
        n_sweeps: int = 5,
        forgetting: float = 20.0,
        method: str = "omp",
        max_iter: int = 100,
        init: Any = "dct",
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        time_budget: float | None = None,
        callback: Callable[[Progress], bool | None] | None = None,
    ) -> None:
        self.n_atoms = n_atoms
        self.patch_shape = patch_shape
        self.n_nonzero_coefs = n_nonzero_coefs
        self.tol = tol
        self.batch_size = batch_size
        self.n_sweeps = n_sweeps
        self.forgetting = forgetting
        self.method = method
        self.max_iter = max_iter
        self.init = init
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.time_budget = time_budget
        self.callback = callback

    def partial_fit(self, X: ArrayLike, y: Any = None) -> OSubDil:
        """Improve the dictionary with one batch of samples, however many there are.

        No atoms are replaced. After ``fit`` it goes on from there.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored
        """
        begin = time.perf_counter()
        self._check_parameters()
        fitted = hasattr(self, "dictionary_")
        source, n_atoms = self._source(X, reset=not fitted)
        source.energy  # noqa: B018  (raises for a sample that is not finite)
        online = self._memory.copy() if fitted else Online(self._start(source, n_atoms))
        plan = self._plan(online.dictionary)
        codes = Codes.empty(len(source), plan.coder.width, source.dtype)
        counts = self._add(online, source, plan.coder, codes)
        state = LearningState(online.dictionary, online.dictionary, stop_reason="partial_fit")
        if fitted:
            state.history = self.history_
        seconds = (state.history["seconds"] or [0.0])[-1] + time.perf_counter() - begin
        for name, value in {**counts.entries(), "seconds": seconds}.items():
            state.history[name].append(value)
        self._adopt(state, source, plan, fresh=not fitted)
        self._memory = online
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_count("batch_size", self.batch_size, 1)
        check_count("n_sweeps", self.n_sweeps, 1)
        check_number("forgetting", self.forgetting)
        if not 0 <= float(self.forgetting) < math.inf:
            raise ValueError(
                f"forgetting={self.forgetting} is not a nonnegative number; 0 forgets nothing."
            )

    def _steps(self, source: ArraySource, start: Dictionary, coder: Coder) -> Iterator[Step]:
        rng = check_random_state(self.random_state)
        online = Online(start)
        batch_size = min(int(self.batch_size), len(source))
        room = Codes.empty(batch_size, coder.width, source.dtype, residuals=True)
        residual2 = np.zeros(len(source), source.dtype)
        while True:
            counts = Counts(source.n_features)
            order = rng.permutation(len(source))
            for first in range(0, len(source), batch_size):
                # In ascending order they are read faster, and within a batch order means nothing.
                rows = np.sort(order[first : first + batch_size])
                batch = ArraySource(source.array[rows], source.patch_shape)
                codes = room[: len(rows)]
                counts.add(self._add(online, batch, coder, codes))
                residual2[rows] = codes.residual2
            counts.replaced = online.replace(Codes(residual2=residual2), source, coder)
            yield Step(online.dictionary, counts.entries(), online.copy())

    def _add(self, online: Online, batch: ArraySource, coder: Coder, codes: Codes) -> Counts:
        threads = resolve_n_jobs(self.n_jobs)
        engine = Threads(threads, default_block_size(batch))
        return online.add(batch, coder, engine, codes, int(self.n_sweeps), float(self.forgetting))


@dataclass
class Counts:
    """What was found about some samples; residuals are sums of squares."""

    n_features: int
    n_samples: int = 0
    nonzeros: int = 0
    coding_residual: float = 0.0
    residual: float = 0.0
    replaced: int = 0

    def add(self, batch: Counts) -> None:
        """Add what was found about other samples."""
        self.n_samples += batch.n_samples
        self.nonzeros += batch.nonzeros
        self.coding_residual += batch.coding_residual
        self.residual += batch.residual

    def entries(self) -> dict[str, float]:
        """Entries of the history."""
        size = self.n_samples * self.n_features
        return {
            "rmse": math.sqrt(max(self.residual, 0.0) / size),
            "coding_rmse": math.sqrt(self.coding_residual / size),
            "atoms_replaced": self.replaced,
            "mean_nonzeros": self.nonzeros / self.n_samples,
        }


class Online:
    """A dictionary, for each mode the sums α (n, n) and βᵀ (n, m), and which atoms were used."""

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary
        shapes = [stack.shape[1:] for stack in dictionary.stacks]
        self.alpha = [np.zeros((n, n)) for _, n in shapes]
        self.beta = [np.zeros((n, m)) for m, n in shapes]
        self.used = [np.zeros(n, bool) for _, n in shapes]
        self.n_batches = 0

    def copy(self) -> Online:
        """What further batches to this one do not change."""
        other = Online(self.dictionary)
        other.alpha = [alpha.copy() for alpha in self.alpha]
        other.beta = [beta.copy() for beta in self.beta]
        other.used = [used.copy() for used in self.used]
        other.n_batches = self.n_batches
        return other

    def add(
        self,
        batch: ArraySource,
        coder: Coder,
        engine: Threads,
        codes: Codes,
        n_sweeps: int,
        forgetting: float,
    ) -> Counts:
        """Code a batch, add its sums, and update the factors, mode after mode."""
        self.n_batches += 1
        kept = (1.0 - 1.0 / self.n_batches) ** forgetting
        coding = "fresh"
        for mode, stack in enumerate(self.dictionary.stacks):
            sums = ModeMoments.zeros(mode, stack)
            found = engine.run(
                batch, self.dictionary, coder, coding=coding, codes=codes, moments=sums
            )
            if mode == 0:
                first, coding = found, "given"
            self.alpha[mode] = kept * self.alpha[mode] + sums.p
            self.beta[mode] = kept * self.beta[mode] + sums.c
            self.used[mode] |= np.diagonal(sums.p) > 0
            factor = coordinate_steps(stack[0], self.alpha[mode], self.beta[mode], n_sweeps)
            self.dictionary = self.dictionary.with_stack(mode, factor[None])
        return Counts(
            batch.n_features,
            len(batch),
            first.nonzeros,
            first.residual,
            sums.squared_error(self.dictionary.stacks[-1]),
        )

    def replace(self, codes: Codes, source: ArraySource, coder: Coder) -> int:
        """Replace the atoms not used since this was called last; returns how many.

        The sums of such an atom, from codes of long ago, are dropped.
        """
        unused = [np.flatnonzero(~used) for used in self.used]
        self.dictionary, replaced = replace_unused(self.dictionary, unused, codes, source, coder)
        for mode, atoms in enumerate(unused):
            self.alpha[mode][atoms] = 0.0
            self.alpha[mode][:, atoms] = 0.0
            self.beta[mode][atoms] = 0.0
            self.used[mode][:] = False
        return replaced


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
