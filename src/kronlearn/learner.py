"""What every learner of dictionaries is: a scikit-learn transformer around the learning loop."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kronlearn.coding import check_method, check_targets, code_source
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Coder, Engine
from kronlearn.core.loop import learn
from kronlearn.core.moments import Moments
from kronlearn.core.plan import LearningState, Plan, Progress, uses_full_moments
from kronlearn.core.source import Source
from kronlearn.engines.selection import engine_of_device
from kronlearn.engines.threads import Threads, default_block_size, resolve_n_jobs
from kronlearn.io.arrays import real_array
from kronlearn.io.samples import Samples, dask_array, source_of
from kronlearn.parameters import mode_sizes
from kronlearn.progress import progress_bar

__all__ = ["DictionaryLearner"]


class DictionaryLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the learners: parameters in, parts out.

    A learner says how to check its parameters, where to start, and how to learn (a
    :class:`~kronlearn.core.plan.Plan`, which names the structure of its dictionaries).
    """

    n_atoms: Any
    patch_shape: tuple[int, ...] | None
    n_nonzero_coefs: int | None
    tol: float | None
    method: str
    max_iter: int
    n_jobs: int | None
    verbose: int
    callback: Callable[[Progress], bool | None] | None
    block_size: int | None = None

    dictionary_: Dictionary
    patch_shape_: tuple[int, ...]
    history_: dict[str, list[float]]
    n_iter_: int
    stop_reason_: str | None

    def fit(self, X: Any, y: Any = None) -> Any:
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
        self._check_parameters()
        source, n_atoms = self._source(X, reset=True)
        start = self._start(source, n_atoms)
        plan = self._plan(start)
        self._learn(source, LearningState(start, start), plan, self._engine(source, plan, start))
        return self

    def transform(self, X: Any) -> Any:
        """Sparse codes of samples, by the sparsity and error target the dictionary was learned for.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)

        Returns
        -------
        csr_array of shape (N, n_codes), or for a Dask array a lazy one whose chunks are such
        """
        source, coder = self._coding(X)
        lazy, device = dask_array(source), getattr(self, "device", "cpu")
        if lazy is not None:
            from kronlearn.engines.lazy import lazy_codes

            return lazy_codes(lazy, self.dictionary_, coder, device)
        block = self._coding_block(source)
        engine = engine_of_device(device, source, block, self.n_jobs)
        return code_source(source, self.dictionary_, coder, engine)

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """Samples from codes.

        Parameters
        ----------
        X : sparse or dense codes of shape (N, n_codes), or a Dask array of them

        Returns
        -------
        array of shape (N, m_1, …, m_d), or (N, m_1·…·m_d) if the model was fitted on rows; a lazy
        one for a Dask array
        """
        check_is_fitted(self, "dictionary_")
        n_features = math.prod(self.patch_shape_)
        sample_shape = (n_features,) if self._rows else self.patch_shape_
        if type(X).__module__.startswith("dask"):
            from kronlearn.engines.lazy import lazy_samples

            return lazy_samples(X, self.dictionary_, sample_shape)
        return self.dictionary_.reconstruct(X).reshape(-1, *sample_shape)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the RMSE of the samples, coded and reconstructed: higher is better.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored
        """
        source, coder = self._coding(X)
        engine = self._engine_of(source, self._coding_block(source))
        try:
            found = engine.run(source, self.dictionary_, coder)
        finally:
            engine.close()
        return -math.sqrt(found.residual / (len(source) * source.n_features))

    @property
    def factors_(self) -> tuple[NDArray[Any], ...]:
        """The factors of a dictionary with one term, each of shape (m_i, n_i)."""
        check_is_fitted(self, "dictionary_")
        if self.dictionary_.n_terms > 1:
            raise AttributeError(
                f"The dictionary is a sum of {self.dictionary_.n_terms} Kronecker products; its "
                "factors are in dictionary_.terms."
            )
        return self.dictionary_.coding_factors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.three_d_array = True
        return tags

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise for the first parameter that makes no sense."""

    @abstractmethod
    def _start(self, source: Any, n_atoms: tuple[int, ...]) -> Dictionary:
        """The dictionary to start from, in float64."""

    @abstractmethod
    def _plan(self, dictionary: Dictionary) -> Plan:
        """How to learn from such a dictionary on."""

    def _sizes(self, sample_shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """``(m_1, …, m_d)`` and the number of atoms per mode."""
        return mode_sizes(sample_shape, self.patch_shape, self.n_atoms)

    def _coding_method(self) -> str:
        return self.method

    def _coder(self, dictionary: Dictionary) -> Coder:
        width = check_targets(dictionary, self.n_nonzero_coefs, self.tol)
        check_method(self._coding_method(), dictionary)
        return Coder(self._coding_method(), width, self.tol)

    @property
    def _n_features_out(self) -> int:
        return self.dictionary_.n_codes

    def _samples(self, X: Any) -> Samples:
        """The samples as this learner can read them: in memory, unless it reads blocks."""
        return real_array(X)

    def _source(self, X: Any, reset: bool) -> tuple[Any, tuple[int, ...]]:
        """The samples, and the number of atoms per mode."""
        samples = self._samples(X)
        if isinstance(samples, Source):
            shape: tuple[int, ...] = (len(samples), *samples.patch_shape)
        else:
            shape = samples.shape
        if len(shape) == 2 and isinstance(samples, np.ndarray):
            validate_data(self, X, reset=reset, skip_check_array=True)
        if not reset:
            return source_of(samples, self.patch_shape_), self.dictionary_.n_atoms
        patch_shape, n_atoms = self._sizes(shape[1:])
        return source_of(samples, patch_shape), n_atoms

    def _coding(self, X: Any) -> tuple[Source, Coder]:
        check_is_fitted(self, "dictionary_")
        source, _ = self._source(X, reset=False)
        return source, self._coder(self.dictionary_)

    def _coding_block(self, source: Source) -> int:
        return int(self.block_size or default_block_size(source))

    def _engine(
        self, source: Source, plan: Plan, dictionary: Dictionary, online: bool = False
    ) -> Engine:
        numbers = 0
        if online or uses_full_moments(plan, dictionary, len(source)):
            numbers = Moments.numbers(dictionary.patch_shape, dictionary.n_atoms)
        block = self.block_size or default_block_size(source, numbers)
        return self._engine_of(source, int(block))

    def _engine_of(self, source: Source, block_size: int) -> Engine:
        return Threads(resolve_n_jobs(self.n_jobs), block_size)

    def _learn(
        self,
        source: Source,
        state: LearningState,
        plan: Plan,
        engine: Engine,
        save: Callable[[LearningState], None] | None = None,
    ) -> None:
        """Learn with a progress bar; whatever ends it, the last finished iteration is kept."""

        def after(state: LearningState) -> bool:
            rmse, seconds = state.history["rmse"][-1], state.history["seconds"][-1]
            advance(rmse)
            if save is not None:
                save(state)
            if self.callback is None:
                return False
            dictionary = plan.structure.result(state.dictionary).astype(source.dtype)
            return bool(self.callback(Progress(state.iteration, rmse, seconds, dictionary)))

        looks_every: int | None = (
            None if save is None else int(getattr(self, "checkpoint_every", 1))
        )
        if self.callback is not None:
            looks_every = 1
        try:
            with progress_bar(self.verbose, self.max_iter, state.iteration) as advance:
                learn(source, state, plan, engine, after, looks_every)
        finally:
            if state.iteration:
                self._adopt(state, source, plan, fresh=True)

    def _adopt(self, state: LearningState, source: Source, plan: Plan, fresh: bool) -> None:
        self.dictionary_ = plan.handed_out(state.best).astype(source.dtype)
        if fresh:
            self._rows = source.is_rows
            self.patch_shape_ = source.patch_shape
            self.n_features_in_ = source.n_features
        self.history_ = state.history
        self.n_iter_ = state.iteration
        self.stop_reason_ = state.stop_reason
