"""The base class of all learners: a scikit-learn transformer around the learning loop."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kronlearn.blas import single_threaded_blas
from kronlearn.core.coder import Coder, check_method, check_targets
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, Task, full_moment_numbers
from kronlearn.core.iteration import Iteration, iterate, learn_batch, uses_full_moments
from kronlearn.core.loop import Entry, Plan, State, learn
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source, check_shape, rmse_of
from kronlearn.cuda.arrays import gpu_of
from kronlearn.engines.lazy import dense_codes, has_unknown_length, lazy_codes, lazy_samples
from kronlearn.engines.samples import Samples, array_in_memory, source_of, weighted
from kronlearn.engines.threads import Threads, default_block_size, resolve_n_jobs
from kronlearn.io.arrays import dask_array
from kronlearn.parameters import check_declared, mode_sizes
from kronlearn.progress import followed, history_columns, progress_bar

__all__ = ["DictionaryLearner", "Progress"]

LEARNING_METHODS = ("ols", "omp", "exchange")


@dataclass(frozen=True)
class Progress:
    """The argument of a callback, which ``fit`` calls after each pass over the samples.

    ``dictionary`` is the dictionary of the pass, and ``iteration`` the number of updates that led
    to it: 0 for the start. ``rmse`` and ``seconds`` are its entry in the history.
    """

    iteration: int
    rmse: float
    seconds: float
    dictionary: Dictionary


class DictionaryLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of the learners, which are dataclasses of their parameters.

    A learner implements ``_start``, the initial dictionary, and ``_plan``, which names the
    structure of its dictionaries. It overrides ``_iterate`` if an iteration is more than a pass and
    the update of that structure.
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
    sparse_output: bool

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
            The samples: an array in memory or a data frame.
        y : None
            Ignored.

        Returns
        -------
        DictionaryLearner
            The estimator itself.

        Raises
        ------
        KeyboardInterrupt
            If you interrupt it; the model is then fitted with the best dictionary so far.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> Y = np.random.default_rng(0).standard_normal((200, 6, 6))
        >>> model = kl.KroneckerDictionaryLearning((8, 8), max_iter=3, random_state=0)
        >>> model.fit(Y).dictionary_
        KroneckerDictionary(patch_shape=(6, 6), n_atoms=(8, 8), dtype=float64)
        """
        return self._fit(X)

    def _fit(self, X: Any, sample_weight: ArrayLike | None = None) -> Any:
        self._check_parameters()
        with gpu_of(X):
            source, n_atoms = self._source(X, reset=True)
            source = weighted(source, sample_weight)
            start, plan = self._begin(source, n_atoms)
            block_size = self._learning_block_size(source, plan, start)
            with closing(self._engine(source, block_size)) as engine:
                self._learn(engine, State(start, start), plan)
        return self

    def transform(self, X: Any) -> Any:
        """Code samples with the sparsity and error target that the dictionary was learned for.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
            The samples, in any form that ``fit`` accepts.

        Returns
        -------
        csr_array of shape (N, n_codes)
            The codes; a dense array with ``sparse_output=False``, or the container that
            ``set_output`` asks for. For a Dask array, a lazy array with such chunks.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> Y = np.random.default_rng(0).standard_normal((200, 6, 6))
        >>> model = kl.KroneckerDictionaryLearning((8, 8), max_iter=3, random_state=0)
        >>> model.fit(Y).transform(Y).shape
        (200, 64)
        """
        check_is_fitted(self, "dictionary_")
        codes = self._codes(X)
        return codes if self.sparse_output else dense_codes(codes)

    def _codes(self, X: Any) -> Any:
        """The sparse codes of samples; lazy if the samples are a Dask array."""
        device = getattr(self, "device", "cpu")
        if has_unknown_length(X):
            check_shape(X.shape, self.patch_shape_, "X")
            return lazy_codes(X, self.dictionary_, self._coder(self.dictionary_), device)
        with gpu_of(X):
            source, coder = self._source_and_coder(X)
            samples = dask_array(source)
            if samples is not None:
                return lazy_codes(samples, self.dictionary_, coder, device)
            with closing(self._engine(source, None)) as engine:
                return engine.codes(self.dictionary_, coder)

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """Compute samples from their codes.

        Parameters
        ----------
        X : sparse or dense array of shape (N, n_codes), or Dask array of such arrays
            The codes; a CuPy array if they are on a GPU.

        Returns
        -------
        array of shape (N, m_1, …, m_d)
            The samples, as rows (N, m_1·…·m_d) if the model was fitted on rows; lazy for a Dask
            array, and on the GPU if the codes are there.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> Y = np.random.default_rng(0).standard_normal((200, 6, 6))
        >>> model = kl.KroneckerDictionaryLearning((8, 8), max_iter=3, random_state=0)
        >>> model.inverse_transform(model.fit_transform(Y)).shape
        (200, 6, 6)
        """
        check_is_fitted(self, "dictionary_")
        n_features = math.prod(self.patch_shape_)
        sample_shape = (n_features,) if self._fitted_on_rows else self.patch_shape_
        if type(X).__module__.startswith("dask"):
            return lazy_samples(X, self.dictionary_, sample_shape)
        with gpu_of(X.data if hasattr(X, "tocsr") else X):
            return self.dictionary_.reconstruct(X).reshape(-1, *sample_shape)

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the RMSE of the samples after coding and reconstruction.

        Parameters
        ----------
        X : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
            The samples, in any form that ``fit`` accepts.
        y : None
            Ignored.

        Returns
        -------
        float
            The score; higher is better.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> Y = np.random.default_rng(0).standard_normal((200, 6, 6))
        >>> model = kl.KroneckerDictionaryLearning((8, 8), max_iter=3, random_state=0)
        >>> bool(np.isclose(-model.fit(Y).score(Y), min(model.history_["rmse"])))
        True
        """
        return self._score(X)

    def _score(self, X: Any, sample_weight: ArrayLike | None = None) -> float:
        with gpu_of(X):
            source, coder = self._source_and_coder(X)
            source = weighted(source, sample_weight)
            with closing(self._engine(source, None)) as engine:
                sums = engine.run(Task(self.dictionary_, coder.for_source(source)))
        return -rmse_of(source, sums.residual)

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

    @property
    def components_(self) -> NDArray[Any]:
        """The atoms as rows of a dense array (n_codes, n_features), computed on access."""
        check_is_fitted(self, "dictionary_")
        return np.ascontiguousarray(self.dictionary_.to_dense().T)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.three_d_array = True
        return tags

    def _check_parameters(self) -> None:
        """Raise for the first invalid parameter."""
        check_declared(self)
        if str(self.method) not in LEARNING_METHODS:
            raise ValueError(
                f"method={self.method!r} cannot be used for learning; choose one of "
                f"{', '.join(LEARNING_METHODS)}. Samples are always coded by thresholding with "
                "orthonormal factors."
            )
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback={self.callback!r} is not a function.")
        if self.tol is not None and np.ndim(self.tol) > 0:
            raise ValueError(
                f"tol has shape {np.shape(self.tol)}; pass a single number for all samples."
            )
        if not isinstance(self.sparse_output, bool | np.bool_):
            raise TypeError(f"sparse_output={self.sparse_output!r} is neither True nor False.")

    @abstractmethod
    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        """The initial dictionary, in float64."""

    @abstractmethod
    def _plan(self, dictionary: Dictionary) -> Plan:
        """How to learn, starting from a dictionary."""

    def _begin(self, source: Source, n_atoms: tuple[int, ...]) -> tuple[Dictionary, Plan]:
        """The initial dictionary, and how to learn from a source."""
        start = self._start(source, n_atoms)
        plan = self._plan(start)
        return start, replace(plan, coder=plan.coder.for_source(source))

    def _iterate(self, engine: Engine, dictionary: Dictionary, plan: Plan) -> Iteration:
        """Run one iteration of the method."""
        return iterate(engine, dictionary, plan.coder, plan.structure)

    def _public_dictionary(self, dictionary: Dictionary) -> Dictionary:
        """Convert the dictionary of the method to the one that users get."""
        return dictionary

    def _sizes(self, sample_shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """``(m_1, …, m_d)`` and the number of atoms per mode."""
        return mode_sizes(sample_shape, self.patch_shape, self.n_atoms)

    def _coding_method(self) -> str:
        return self.method

    def _coder(self, dictionary: Dictionary) -> Coder:
        limit = self.n_nonzero_coefs
        if isinstance(limit, int | np.integer) and not isinstance(limit, bool):
            # Unlike sparse_code, learners accept more nonzeros than there are atoms.
            limit = min(int(limit), dictionary.n_codes)
        width = check_targets(dictionary, limit, self.tol)
        check_method(self._coding_method(), dictionary)
        return Coder(self._coding_method(), width, self.tol)

    @property
    def _n_features_out(self) -> int:
        return self.dictionary_.n_codes

    def _samples(self, X: Any) -> Samples:
        """Open samples; learners that can read blocks override this."""
        return array_in_memory(X, "X")

    def _source(self, X: Any, reset: bool) -> tuple[Source, tuple[int, ...]]:
        """Open and check samples; return their source and the number of atoms per mode.

        With ``reset`` the sizes come from the samples and parameters, else from the fitted model.
        """
        samples = self._samples(X)
        if isinstance(samples, Source):
            shape: tuple[int, ...] = (len(samples), *samples.patch_shape)
        else:
            shape = samples.shape
        # For a single sample without its first axis, the message of source_of is clearer than that
        # of scikit-learn, which would count the features of rows.
        is_single = not reset and shape == self.patch_shape_
        if len(shape) == 2 and isinstance(samples, np.ndarray) and not is_single:
            validate_data(self, X, reset=reset, skip_check_array=True)
        if not reset:
            return source_of(samples, self.patch_shape_, "X"), self.dictionary_.n_atoms
        if len(shape) > 2 and hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        patch_shape, n_atoms = self._sizes(shape[1:])
        return source_of(samples, patch_shape, "X"), n_atoms

    def _source_and_coder(self, X: Any) -> tuple[Source, Coder]:
        check_is_fitted(self, "dictionary_")
        source, _ = self._source(X, reset=False)
        return source, self._coder(self.dictionary_)

    def _learning_block_size(self, source: Source, plan: Plan, dictionary: Dictionary) -> int:
        """The number of samples in a summed block while learning."""
        numbers = 0
        if plan.extra_terms or uses_full_moments(plan.structure, dictionary, len(source)):
            numbers = full_moment_numbers(dictionary.patch_shape, dictionary.n_atoms)
        return default_block_size(source, numbers)

    def _engine(self, source: Source, block_size: int | None) -> Engine:
        return Threads(source, resolve_n_jobs(self.n_jobs), block_size)

    def _learn(
        self,
        engine: Engine,
        state: State,
        plan: Plan,
        save: Callable[[State], None] | None = None,
    ) -> State:
        """Run the learning loop; adopt the best dictionary so far, whatever ends the loop."""
        reason = "interrupted"
        try:
            with (
                single_threaded_blas(),
                progress_bar(self.verbose, plan.max_iter, state.n_iterations) as advance,
            ):
                states = learn(engine, state, plan, self._iterate)
                stops = partial(self._stops, plan, engine.source)
                for latest in followed(states, advance, stops, save):
                    state = latest
            reason = state.stop_reason or "max_iter"
        finally:
            if state.history:
                self._record(state, plan, engine.source)
                self.stop_reason_ = reason
        return state

    def _stops(self, plan: Plan, source: Source, state: State) -> bool:
        """Call the callback, if any; return whether it asks to stop."""
        if self.callback is None:
            return False
        entry = state.history[-1]
        assert state.last is not None
        dictionary = self._public_dictionary(plan.with_all_terms(state.last)).astype(source.dtype)
        progress = Progress(state.n_iterations, entry.rmse, entry.seconds, dictionary)
        return bool(self.callback(progress))

    def _record(self, state: State, plan: Plan, source: Source) -> None:
        """Adopt the best dictionary of a run as the fitted model, with the run's history."""
        self._adopt(plan.with_all_terms(state.best), source)
        self.history_ = history_columns(Entry._fields, state.history)
        self.n_iter_ = state.n_iterations

    def _adopt(self, dictionary: Dictionary, source: Source) -> None:
        """Adopt a dictionary learned from a source as the fitted model."""
        self.dictionary_ = self._public_dictionary(dictionary).astype(source.dtype)
        self._fitted_on_rows = source.is_rows
        self.patch_shape_ = source.patch_shape
        self.n_features_in_ = source.n_features

    def _fit_batch(
        self,
        source: Source,
        dictionary: Dictionary,
        plan: Plan,
        earlier: Moments | None = None,
        forgetting: float = 1.0,
    ) -> Iteration:
        """Run one step of online learning; adopt its dictionary and add an entry to the history."""
        begin = time.perf_counter()
        numbers = full_moment_numbers(dictionary.patch_shape, dictionary.n_atoms)
        block_size = default_block_size(source, numbers)
        with closing(self._engine(source, block_size)) as engine, single_threaded_blas():
            iteration = learn_batch(
                engine, dictionary, plan.coder, plan.structure, earlier, forgetting
            )
        if hasattr(self, "dictionary_"):
            updated = self._public_dictionary(iteration.dictionary)
            self.dictionary_ = updated.astype(source.dtype)
        else:
            self._adopt(iteration.dictionary, source)
            self.history_, self.n_iter_ = history_columns(Entry._fields, []), 0
        before = self.history_["seconds"][-1] if self.n_iter_ else 0.0
        entry = Entry(
            rmse_of(source, iteration.residual),
            before + time.perf_counter() - begin,
            iteration.atoms_replaced,
            iteration.nonzeros / len(source),
        )
        for name, value in entry._asdict().items():
            self.history_[name].append(value)
        self.n_iter_, self.stop_reason_ = self.n_iter_ + 1, "partial_fit"
        return iteration
