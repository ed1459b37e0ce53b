"""The scikit-learn estimator: parameters in, parts out."""

from __future__ import annotations

import math
import numbers
import os
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kronlearn.checkpoints import load_state, save_state
from kronlearn.coding import check_method, check_targets, sparse_code
from kronlearn.dictionary import KroneckerDictionary
from kronlearn.engines.threads import Coder, Threads, default_block_size, resolve_n_jobs
from kronlearn.learning import (
    LearningState,
    Plan,
    Progress,
    learn,
    uses_full_moments,
)
from kronlearn.moments import Moments
from kronlearn.online import learn_online
from kronlearn.parameters import check_parameters, mode_sizes
from kronlearn.progress import progress_bar
from kronlearn.sources.arrays import ArraySource, real_array
from kronlearn.starts import starting_factors

__all__ = ["KroneckerDictionaryLearning"]


class KroneckerDictionaryLearning(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Learns factors D_1 … D_d such that ``Y_k ≈ X_k ×_1 D_1 … ×_d D_d`` with sparse ``X_k``.

    Parameters
    ----------
    n_atoms : tuple of int or int
        Columns of each factor; one number means the same for every mode.
    patch_shape : tuple of int, optional
        ``(m_1, …, m_d)`` of samples given as rows. Without it n-D input says it itself; rows are
        cut as squarely as their length allows into as many modes as ``n_atoms`` has.
    n_nonzero_coefs : int, optional
        The most nonzeros a sample may have.
    tol : float, optional
        The ℓ2 norm a sample's residual may have. At least one of the two is needed.
    structure : {"general", "orthonormal"}
        "orthonormal" factors are coded by thresholding, several times faster.
    method : {"ols", "omp"}
        The coder of general factors (see :func:`kronlearn.sparse_code`).
    max_iter : int
        The most iterations.
    init : {"dct", "data", "random"}, KroneckerDictionary or list of factors
        Start: a perturbed overcomplete DCT, directions of random samples, noise, or your own.
    monotone : bool
        Keep a sample's previous support wherever it is better than the new one, so that the
        recorded RMSE never increases. Costs ``4·(s+1)`` bytes per sample. With ``tol`` a support
        is better if it meets the target with fewer nonzeros; the RMSE then stays near the target.
    random_state : int, RandomState or None
        Seeds the start. Same seed, same bits, for any ``n_jobs``.
    n_jobs : int or None
        Threads; None means 1 unless a joblib context says otherwise, -1 all processors.
    device : {"cpu"}
        Where the work is done.
    verbose : int
        1 shows a progress bar.
    n_refits : int
        How often per coding the coefficients are refitted on their supports and the factors
        updated again.
    statistics : {"auto", "full", "per-mode", "recode"}
        The sums behind an update: full moments; the paper's per-mode sums, smaller for many atoms;
        or those with coding anew before every factor (Algorithm 1 of the paper as printed).
    min_improvement : float
        Stop when an iteration lowers the RMSE (with ``tol``: the mean number of nonzeros) by less
        than this fraction.
    time_budget : float, optional
        Stop after the iteration in which this many seconds have passed.
    forgetting : float
        What ``partial_fit`` multiplies its moments by before adding a batch's.
    block_size : int, optional
        Samples per summed block. The default depends on the data's size alone; another value
        changes results by rounding of the sums only.
    checkpoint : path, optional
        File that the run is saved to, and from which ``fit`` goes on if it exists.
    checkpoint_every : int
        Iterations between saves.
    callback : callable, optional
        Called after each iteration with an object that has ``iteration``, ``rmse``, ``seconds``
        and ``dictionary``; returning True stops the run.

    Attributes
    ----------
    dictionary_ : KroneckerDictionary
        The best one found.
    factors_ : tuple of arrays (m_i, n_i)
    history_ : dict of lists, one entry per iteration
        "rmse" at the end of the iteration, "coding_rmse" after its coding, "seconds" since the
        start, "atoms_replaced", "mean_nonzeros".
    n_iter_ : int
    stop_reason_ : str
        "max_iter", "converged", "time_budget", "callback", "interrupted" or "partial_fit".
    patch_shape_ : tuple of int

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> Y = np.random.default_rng(0).standard_normal((500, 6, 6))
    >>> m = kl.KroneckerDictionaryLearning((8, 8), n_nonzero_coefs=4, max_iter=5, random_state=0)
    >>> X = m.fit(Y).transform(Y)
    >>> X.shape, m.dictionary_.patch_shape, m.stop_reason_
    ((500, 64), (6, 6), 'max_iter')
    """

    def __init__(
        self,
        n_atoms: tuple[int, ...] | int = (16, 16),
        patch_shape: tuple[int, ...] | None = None,
        n_nonzero_coefs: int | None = 6,
        tol: float | None = None,
        structure: str = "general",
        method: str = "ols",
        max_iter: int = 100,
        init: Any = "dct",
        monotone: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        device: str = "cpu",
        verbose: int = 0,
        n_refits: int = 1,
        statistics: str = "auto",
        min_improvement: float = 0.0,
        time_budget: float | None = None,
        forgetting: float = 1.0,
        block_size: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 10,
        callback: Callable[[Progress], bool | None] | None = None,
    ) -> None:
        self.n_atoms = n_atoms
        self.patch_shape = patch_shape
        self.n_nonzero_coefs = n_nonzero_coefs
        self.tol = tol
        self.structure = structure
        self.method = method
        self.max_iter = max_iter
        self.init = init
        self.monotone = monotone
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device
        self.verbose = verbose
        self.n_refits = n_refits
        self.statistics = statistics
        self.min_improvement = min_improvement
        self.time_budget = time_budget
        self.forgetting = forgetting
        self.block_size = block_size
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callback = callback

    patch_shape_: tuple[int, ...]

    def fit(self, X: ArrayLike, y: Any = None) -> KroneckerDictionaryLearning:
        """Learn the dictionary from samples.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored

        Raises
        ------
        KeyboardInterrupt
            Again, if one came, with the last finished iteration as the fitted model.
        """
        check_parameters(self)
        source, n_atoms = self._source(X, reset=True)
        state, plan = self._start(source, n_atoms)
        engine = self._engine(source, plan, state.factors)
        problem = self._problem(source, plan, engine, state.factors)
        if self.checkpoint is not None and os.path.exists(self.checkpoint):
            state = load_state(self.checkpoint, problem)
        try:
            with progress_bar(self.verbose, self.max_iter, state.iteration) as advance:
                learn(
                    source, state, plan, engine, lambda s: self._after(s, source, problem, advance)
                )
        finally:
            if state.iteration:
                self._adopt(state, source, fresh=True)
                self._online_moments: Moments | None = state.moments
        if self.checkpoint is not None and state.stop_reason in ("callback", "time_budget"):
            save_state(self.checkpoint, state, problem)
        if state.stop_reason == "max_iter" and self.min_improvement > 0:
            warnings.warn(
                f"max_iter={self.max_iter} was reached before an iteration improved the RMSE by "
                f"less than min_improvement={self.min_improvement:g}; raise one of them.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X: ArrayLike, y: Any = None) -> KroneckerDictionaryLearning:
        """Improve the dictionary with a batch of samples, adding to the moments of earlier ones.

        After ``fit`` with full moments it goes on from those of the last iteration.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored
        """
        check_parameters(self)
        fitted = hasattr(self, "dictionary_")
        source, n_atoms = self._source(X, reset=not fitted)
        moments = None
        if fitted:
            factors = [factor.astype(np.float64) for factor in self.dictionary_.factors]
            state, plan = LearningState(factors, factors), self._plan(self.dictionary_)
            moments, state.history = self._online_moments, self.history_
        else:
            state, plan = self._start(source, n_atoms)
        self._online_moments = learn_online(
            source,
            state,
            plan,
            self._engine(source, plan, state.factors, online=True),
            moments,
            self.forgetting,
        )
        state.stop_reason = "partial_fit"
        self._adopt(state, source, fresh=not fitted)
        return self

    def transform(self, X: ArrayLike) -> sparse.csr_array:
        """Sparse codes of samples, by the sparsity and error target the dictionary was learned for.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)

        Returns
        -------
        csr_array of shape (N, n_1·…·n_d)
        """
        check_is_fitted(self, "dictionary_")
        source, _ = self._source(X, reset=False)
        return sparse_code(
            source.array,
            self.dictionary_,
            self.n_nonzero_coefs,
            self.tol,
            self._method(),
            n_jobs=self.n_jobs,
            block_size=self.block_size,
        )

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """Samples from codes.

        Parameters
        ----------
        X : sparse or dense codes of shape (N, n_1·…·n_d)

        Returns
        -------
        array of shape (N, m_1, …, m_d), or (N, m_1·…·m_d) if the model was fitted on rows
        """
        check_is_fitted(self, "dictionary_")
        Y = self.dictionary_.reconstruct(X)
        return Y.reshape(len(Y), -1) if self._rows else Y

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Minus the RMSE of the samples, coded and reconstructed: higher is better.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored
        """
        check_is_fitted(self, "dictionary_")
        source, _ = self._source(X, reset=False)
        plan = self._plan(self.dictionary_)
        factors = [factor.astype(np.float64) for factor in self.dictionary_.factors]
        found = self._engine(source, plan, factors).run(source, factors, plan.coder)
        return -math.sqrt(found.residual / (len(source) * source.n_features))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.three_d_array = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.dictionary_.n_codes

    def _source(self, X: ArrayLike, reset: bool) -> tuple[ArraySource, tuple[int, ...]]:
        """The samples, and the number of atoms per mode."""
        array = real_array(X)
        if array.ndim == 2:
            validate_data(self, X, reset=reset, skip_check_array=True)
        if not reset:
            return ArraySource(array, self.patch_shape_), self.dictionary_.n_atoms
        patch_shape, n_atoms = mode_sizes(array.shape[1:], self.patch_shape, self.n_atoms)
        return ArraySource(array, patch_shape), n_atoms

    def _start(self, source: ArraySource, n_atoms: tuple[int, ...]) -> tuple[LearningState, Plan]:
        if self.structure == "orthonormal":
            for m, n in zip(source.patch_shape, n_atoms, strict=True):
                if n > m:
                    raise ValueError(
                        f'structure="orthonormal" allows at most as many atoms in a mode as a '
                        f"sample has entries; n_atoms={n_atoms} exceeds the samples' shape, pass "
                        f"n_atoms={source.patch_shape}."
                    )
        rng = check_random_state(self.random_state)
        factors = starting_factors(self.init, source, n_atoms, self.structure, rng)
        return LearningState(factors, factors), self._plan(KroneckerDictionary.normalized(factors))

    def _plan(self, dictionary: KroneckerDictionary) -> Plan:
        width = check_targets(dictionary, self.n_nonzero_coefs, self.tol)
        check_method(self._method(), dictionary)
        orthonormal = self.structure == "orthonormal"
        sizes = zip(dictionary.patch_shape, dictionary.n_atoms, strict=True)
        overcomplete = any(n > m for m, n in sizes)
        return Plan(
            Coder(self._method(), width, self.tol),
            structure=self.structure,
            statistics=self.statistics,
            n_refits=0 if orthonormal else self.n_refits,
            monotone=self.monotone,
            guard_at_once=self.tol is not None or not overcomplete,
            max_iter=self.max_iter,
            min_improvement=self.min_improvement,
            time_budget=self.time_budget,
        )

    def _method(self) -> str:
        return "threshold" if self.structure == "orthonormal" else self.method

    def _engine(
        self,
        source: ArraySource,
        plan: Plan,
        factors: list[NDArray[np.float64]],
        online: bool = False,
    ) -> Threads:
        n_atoms = tuple(factor.shape[1] for factor in factors)
        numbers_summed = 0
        if online or uses_full_moments(plan, math.prod(n_atoms)):
            numbers_summed = Moments.numbers(source.patch_shape, n_atoms)
        block = self.block_size or default_block_size(len(source), numbers_summed)
        return Threads(resolve_n_jobs(self.n_jobs), int(block))

    def _problem(
        self,
        source: ArraySource,
        plan: Plan,
        engine: Threads,
        start: list[NDArray[np.float64]],
    ) -> dict[str, Any]:
        """What a checkpoint must agree on for its run to be this one."""
        seeded = isinstance(self.random_state, numbers.Integral)
        given = f"factors {zlib.crc32(b''.join(factor.tobytes() for factor in start)):08x}"
        return {
            "n_samples": len(source),
            "patch_shape": list(source.patch_shape),
            "n_atoms": [factor.shape[1] for factor in start],
            "dtype": source.dtype.name,
            "samples": source.checksum(),
            "init": self.init if isinstance(self.init, str) else given,
            "seed": int(self.random_state) if seeded else None,
            "width": plan.coder.width,
            "method": plan.coder.method,
            "tol": None if self.tol is None else float(self.tol),
            "structure": plan.structure,
            "statistics": plan.statistics,
            "n_refits": plan.n_refits,
            "monotone": bool(plan.monotone),
            "block_size": engine.block_size,
        }

    def _after(
        self,
        state: LearningState,
        source: ArraySource,
        problem: dict[str, Any],
        advance: Callable[[float], None],
    ) -> bool:
        """What happens after each iteration; True stops the run."""
        rmse = state.history["rmse"][-1]
        advance(rmse)
        done = state.iteration == self.max_iter
        if self.checkpoint is not None and (state.iteration % self.checkpoint_every == 0 or done):
            save_state(self.checkpoint, state, problem)
        if self.callback is None:
            return False
        dictionary = KroneckerDictionary([f.astype(source.dtype) for f in state.factors])
        seconds = state.history["seconds"][-1]
        return bool(self.callback(Progress(state.iteration, rmse, seconds, dictionary)))

    def _adopt(self, state: LearningState, source: ArraySource, fresh: bool) -> None:
        self.dictionary_ = KroneckerDictionary([f.astype(source.dtype) for f in state.best])
        self.factors_ = self.dictionary_.factors
        if fresh:
            self._rows = source.array.ndim == 2
            self.patch_shape_ = source.patch_shape
            self.n_features_in_ = source.n_features
        self.history_ = state.history
        self.n_iter_ = state.iteration
        self.stop_reason_ = state.stop_reason
