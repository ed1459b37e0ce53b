"""What every learner of dictionaries is: a scikit-learn transformer around the learning loop."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kronlearn.coding import check_method, check_targets, code_source
from kronlearn.dictionary import Dictionary
from kronlearn.engines.threads import Coder, Threads, default_block_size, resolve_n_jobs
from kronlearn.learning import LearningState, Plan, Progress, learn, uses_full_moments
from kronlearn.moments import Moments
from kronlearn.parameters import mode_sizes
from kronlearn.progress import progress_bar
from kronlearn.sources.arrays import ArraySource, real_array

__all__ = ["DictionaryLearner"]


class DictionaryLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the learners: parameters in, parts out.

    A learner says how to check its parameters, where to start, and how to learn (a
    :class:`~kronlearn.learning.Plan`, which names the structure of its dictionaries).
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

    def fit(self, X: ArrayLike, y: Any = None) -> Any:
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

    def transform(self, X: ArrayLike) -> sparse.csr_array:
        """Sparse codes of samples, by the sparsity and error target the dictionary was learned for.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)

        Returns
        -------
        csr_array of shape (N, n_codes)
        """
        source, coder, engine = self._coding(X)
        return code_source(source, self.dictionary_, coder, engine)

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """Samples from codes.

        Parameters
        ----------
        X : sparse or dense codes of shape (N, n_codes)

        Returns
        -------
        array of shape (N, m_1, …, m_d), or (N, m_1·…·m_d) if the model was fitted on rows
        """
        check_is_fitted(self, "dictionary_")
        Y = self.dictionary_.reconstruct(X)
        return Y.reshape(len(Y), -1) if self._rows else Y.reshape(len(Y), *self.patch_shape_)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Minus the RMSE of the samples, coded and reconstructed: higher is better.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        y : ignored
        """
        source, coder, engine = self._coding(X)
        found = engine.run(source, self.dictionary_, coder)
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
    def _start(self, source: ArraySource, n_atoms: tuple[int, ...]) -> Dictionary:
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

    def _source(self, X: ArrayLike, reset: bool) -> tuple[ArraySource, tuple[int, ...]]:
        """The samples, and the number of atoms per mode."""
        array = real_array(X)
        if array.ndim == 2:
            validate_data(self, X, reset=reset, skip_check_array=True)
        if not reset:
            return ArraySource(array, self.patch_shape_), self.dictionary_.n_atoms
        patch_shape, n_atoms = self._sizes(array.shape[1:])
        return ArraySource(array, patch_shape), n_atoms

    def _coding(self, X: ArrayLike) -> tuple[ArraySource, Coder, Threads]:
        check_is_fitted(self, "dictionary_")
        source, _ = self._source(X, reset=False)
        block = self.block_size or default_block_size(len(source), 0)
        return source, self._coder(self.dictionary_), Threads(resolve_n_jobs(self.n_jobs), block)

    def _engine(
        self, source: ArraySource, plan: Plan, dictionary: Dictionary, online: bool = False
    ) -> Threads:
        numbers = 0
        if online or uses_full_moments(plan, dictionary):
            numbers = Moments.numbers(dictionary.patch_shape, dictionary.n_atoms)
        block = self.block_size or default_block_size(len(source), numbers)
        return Threads(resolve_n_jobs(self.n_jobs), int(block))

    def _learn(
        self,
        source: ArraySource,
        state: LearningState,
        plan: Plan,
        engine: Threads,
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

        try:
            with progress_bar(self.verbose, self.max_iter, state.iteration) as advance:
                learn(source, state, plan, engine, after)
        finally:
            if state.iteration:
                self._adopt(state, source, plan, fresh=True)

    def _adopt(self, state: LearningState, source: ArraySource, plan: Plan, fresh: bool) -> None:
        self.dictionary_ = plan.handed_out(state.best).astype(source.dtype)
        if fresh:
            self._rows = source.array.ndim == 2
            self.patch_shape_ = source.patch_shape
            self.n_features_in_ = source.n_features
        self.history_ = state.history
        self.n_iter_ = state.iteration
        self.stop_reason_ = state.stop_reason
