"""Learning convolutional dictionaries from images."""

from __future__ import annotations

import numbers
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from kronlearn.convolutional.canvas import Canvas, canvases_of, scale_of
from kronlearn.convolutional.checkpoints import checksum, load_state, save_state
from kronlearn.convolutional.coded import Coded, CodedImages, MapCoder
from kronlearn.convolutional.coding import TOLERANCE, convolutional_code
from kronlearn.convolutional.filters import STRUCTURES, ConvolutionalDictionary
from kronlearn.convolutional.loop import Entry, Plan, State, judged, learn, next_state
from kronlearn.convolutional.maps import reconstruct
from kronlearn.convolutional.start import starting_filters
from kronlearn.engines.selection import ENGINES, dask_client
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.parameters import (
    check_declared,
    check_output_file,
    count,
    number,
    one_of,
    positive_integers,
    random_numbers,
)
from kronlearn.progress import progress_bar

__all__ = ["ConvolutionalProgress", "SeparableConvolutionalLearning"]


@dataclass(frozen=True)
class ConvolutionalProgress:
    """What a callback is told after each pass: of which dictionary, and how good it is."""

    iteration: int
    objective: float
    rmse: float
    nonzeros: int
    seconds: float
    dictionary: ConvolutionalDictionary


@dataclass(eq=False, repr=False)
class SeparableConvolutionalLearning(BaseEstimator):
    """Learn the filters of a convolutional dictionary from images.

    An image is a sum of sparse maps convolved with small filters, ``y ≈ Σ_m d_m ∗ x_m``. Filters
    and maps minimise ``½ Σ (y − Σ_m d_m ∗ x_m)² + penalty · Σ |x_m|`` over all known pixels of all
    images, with filters of norm one. Subtract the smooth part of images first, with
    :func:`lowpass`: sparse maps are a poor code for it.

    Parameters
    ----------
    n_atoms : int or tuple of int, default (8, 8)
        "kronecker": how many short filters each axis has; all their products are filters. Of images
        with channels, the first number is for the channels. "separable" and "dense": how many
        filters there are; a tuple stands for its product.
    filter_shape : tuple of int, default (11, 11)
        The size of a filter along each spatial axis. It says how many axes images have.
    structure : {"kronecker", "separable", "dense"}, default "kronecker"
        All outer products of a short filter for each axis; outer products of their own; or free
        filters. For 64 filters of 11 × 11 these are 176, 1,408 and 7,744 numbers.
    penalty : float, default 0.05
        The weight of the ℓ1 norm, in the units of the images.
    channel_axis : int, optional
        The axis of the channels of images that have them; each filter spans all channels.
    max_iter : int, default 50
        The most iterations: coding, then steps of the filters. One more pass of coding judges the
        last steps.
    min_improvement : float, default 1e-4
        Stop when an iteration lowers the objective by less than this fraction.
    init : ConvolutionalDictionary, optional
        The filters to start from, for example to continue an earlier run; by default cosines for
        "kronecker", and patches of the images for the others.
    random_state : int, RandomState or None, default None
        The noise in the start, and the places from which free filters are taken.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    verbose : int, default 0
        1 shows a progress bar.
    engine : {"auto", "threads", "dask"}, default "auto"
        What runs ``fit``: threads of this process, or the workers of the active
        ``dask.distributed.Client``, with a task of ``n_jobs`` threads for each image. "auto" means
        Dask in a joblib context with the backend "dask". The result has the same bits.
    checkpoint : path, optional
        File that the run is saved to, and from which ``fit`` resumes if it exists.
    checkpoint_every : int, default 10
        Iterations between saves.
    callback : callable, optional
        Called after each pass with an object that has ``iteration``, ``objective``, ``rmse``,
        ``nonzeros``, ``seconds`` and ``dictionary``; returning True stops the run.

    Attributes
    ----------
    dictionary_ : ConvolutionalDictionary
        The filters after the last iteration.
    filters_ : array of shape (M, p_1, …, p_d)
        The filters as an array.
    history_ : dict of lists
        Entry t belongs to the filters after t iterations, the first to the start: the "objective",
        the "rmse" of the known pixels and the "nonzeros" of the codes at that time, which are not
        optimal to the last digits, and the "seconds" since the beginning.
    n_iter_ : int
        The number of iterations.
    stop_reason_ : str
        "max_iter", "converged", "callback", "interrupted" or "partial_fit".

    Examples
    --------
    >>> import numpy as np
    >>> from skimage.data import camera
    >>> from kronlearn.convolutional import SeparableConvolutionalLearning, lowpass
    >>> image = camera()[:96, 200:296] / 255
    >>> model = SeparableConvolutionalLearning((4, 4), (7, 7), max_iter=5, random_state=0)
    >>> model.fit(image - lowpass(image)).dictionary_
    ConvolutionalDictionary(16 kronecker filters of 7 × 7)
    """

    n_atoms: int | tuple[int, ...] = (8, 8)
    filter_shape: tuple[int, ...] = (11, 11)
    structure: str = one_of("kronecker", STRUCTURES)
    penalty: float = number(0.05, "(0, inf)")
    channel_axis: int | None = None
    max_iter: int = count(50)
    min_improvement: float = number(1e-4, "[0, 1)")
    init: ConvolutionalDictionary | None = None
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0
    _: KW_ONLY
    engine: str = one_of("auto", ENGINES)
    checkpoint: str | os.PathLike[str] | None = field(
        default=None, metadata={"check": check_output_file}
    )
    checkpoint_every: int = count(10)
    callback: Callable[[ConvolutionalProgress], bool | None] | None = None

    def fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> SeparableConvolutionalLearning:
        """Learn filters from an image, or from several.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several of any shapes.
        y : None
            Ignored.
        mask : array of bool or list of arrays, optional
            True where a pixel is missing.

        Returns
        -------
        SeparableConvolutionalLearning
            The estimator itself.

        Raises
        ------
        KeyboardInterrupt
            If you interrupt it; the filters learned so far are kept.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.convolutional import SeparableConvolutionalLearning
        >>> images = [np.eye(20), np.eye(30)[::-1]]
        >>> model = SeparableConvolutionalLearning((2, 2), (5, 5), random_state=0).fit(images)
        >>> model.history_["objective"][-1] < model.history_["objective"][0]
        True
        """
        self._check_parameters()
        canvases, plan = self._planned(X, mask, self.init)
        start = self._start(canvases)
        state = State(start, CodedImages([Coded.fresh(canvas) for canvas in canvases]))
        self._n_seen = plan.n_known
        self._learn(state, plan, canvases)
        return self

    def fit_transform(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> Any:
        """Learn filters from images, and return the sparse maps of these.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several of any shapes.
        y : None
            Ignored.
        mask : array of bool or list of arrays, optional
            True where a pixel is missing.

        Returns
        -------
        SparseMaps or list of SparseMaps
            The maps of the image, or of each image of a list.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.convolutional import SeparableConvolutionalLearning
        >>> model = SeparableConvolutionalLearning((2, 2), (5, 5), random_state=0)
        >>> model.fit_transform(np.eye(20)).map_shape
        (24, 24)
        """
        return self.fit(X, mask=mask).transform(X, mask=mask)

    def partial_fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> SeparableConvolutionalLearning:
        """Go on learning from further images, which are coded once.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several.
        y : None
            Ignored.
        mask : array of bool or list of arrays, optional
            True where a pixel is missing.

        Returns
        -------
        SeparableConvolutionalLearning
            The estimator itself.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.convolutional import SeparableConvolutionalLearning
        >>> model = SeparableConvolutionalLearning((2, 2), (5, 5), random_state=0)
        >>> for size in 20, 30:
        ...     model = model.partial_fit(np.eye(size))
        >>> model.n_iter_
        2
        """
        self._check_parameters()
        known = getattr(self, "dictionary_", None)
        canvases, plan = self._planned(X, mask, known or self.init)
        images = CodedImages([Coded.fresh(canvas) for canvas in canvases])
        state = State(known or self._start(canvases), images)
        self._n_seen = plan.n_known + (self._n_seen if known else 0)
        after = next_state(state, plan, time.perf_counter(), plan.n_known / self._n_seen)
        if known is None:
            self._record(after)
        else:
            (entry,) = after.history
            seconds = self.history_["seconds"][-1] + entry.seconds
            for name, value in entry._replace(seconds=seconds)._asdict().items():
                self.history_[name].append(value)
        self.dictionary_, self.stop_reason_ = after.dictionary, "partial_fit"
        self.n_iter_ += 1
        return self

    def transform(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> Any:
        """Return the sparse maps of images, as :func:`convolutional_code` does.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several.
        mask : array of bool or list of arrays, optional
            True where a pixel is missing.

        Returns
        -------
        SparseMaps or list of SparseMaps
            The maps of the image, or of each image of a list.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.convolutional import SeparableConvolutionalLearning
        >>> model = SeparableConvolutionalLearning((2, 2), (5, 5), random_state=0).fit(np.eye(30))
        >>> model.transform(np.eye(20)).map_shape
        (24, 24)
        """
        check_is_fitted(self, "dictionary_")
        return convolutional_code(
            X,
            self.dictionary_,
            self.penalty,
            mask=mask,
            channel_axis=self.channel_axis,
            n_jobs=self.n_jobs,
        )

    def inverse_transform(self, maps: Any) -> Any:
        """Return the images that sparse maps stand for, as :func:`reconstruct` does.

        Parameters
        ----------
        maps : SparseMaps or list of SparseMaps
            The maps of one image, or of several.

        Returns
        -------
        array or list of arrays
            The image, or one for each entry of a list.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.convolutional import SeparableConvolutionalLearning
        >>> model = SeparableConvolutionalLearning((2, 2), (5, 5), random_state=0).fit(np.eye(30))
        >>> model.inverse_transform(model.transform(np.eye(20))).shape
        (20, 20)
        """
        check_is_fitted(self, "dictionary_")
        several = maps if isinstance(maps, (list, tuple)) else [maps]
        found = [
            reconstruct(each, self.dictionary_, channel_axis=self.channel_axis, n_jobs=self.n_jobs)
            for each in several
        ]
        return found if several is maps else found[0]

    def score(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> float:
        """Return minus the objective per known pixel of images coded with the filters.

        It compares filters on images that they were not learned from, for one penalty: a search
        over penalties would choose the smallest.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several.
        y : None
            Ignored.
        mask : array of bool or list of arrays, optional
            True where a pixel is missing.

        Returns
        -------
        float
            The score; higher is better.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.model_selection import GridSearchCV
        >>> from kronlearn.convolutional import SeparableConvolutionalLearning
        >>> model = SeparableConvolutionalLearning(2, (5, 5), max_iter=2, random_state=0)
        >>> images = [np.eye(20), np.eye(30)]
        >>> GridSearchCV(model, {"n_atoms": [1, 2]}, cv=2).fit(images).best_params_
        {'n_atoms': 2}
        """
        check_is_fitted(self, "dictionary_")
        canvases, plan = self._planned(X, mask, self.dictionary_)
        images = CodedImages([Coded.fresh(canvas) for canvas in canvases])
        coder = MapCoder(self.dictionary_, plan.penalty / plan.scale, TOLERANCE, plan.n_threads)
        objective, _ = judged(images.mapped(Coded.coded_by, coder).total(Coded.sums), plan)
        return -objective / plan.n_known

    @property
    def filters_(self) -> NDArray[np.float64]:
        """All filters, ``(M, p_1, …, p_d)``."""
        check_is_fitted(self, "dictionary_")
        return self.dictionary_.filters

    def _check_parameters(self) -> None:
        check_declared(self)
        positive_integers("filter_shape", self.filter_shape)
        positive_integers("n_atoms", self.n_atoms)
        if self.init is not None:
            if not isinstance(self.init, ConvolutionalDictionary):
                raise TypeError(f"init={self.init!r} is not a ConvolutionalDictionary.")
            if self.init.structure != self.structure:
                raise ValueError(
                    f"init has {self.init.structure} filters, but structure={self.structure!r}."
                )
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback={self.callback!r} is not a function.")

    def _planned(
        self, X: Any, mask: Any, known: ConvolutionalDictionary | None
    ) -> tuple[list[Canvas], Plan]:
        """Images in units of a power of two, for filters that are known or to come; the plan."""
        shape = positive_integers("filter_shape", self.filter_shape)
        has_channels = self.channel_axis is not None
        if known is not None:
            spatial = known.filter_shape[int(known.has_channels) :]
            if spatial != shape:
                raise ValueError(
                    f"filter_shape={shape}, but the filters to go on from are of {spatial}."
                )
            shape, has_channels = known.filter_shape, known.has_channels
        elif self.channel_axis is not None:
            shape = (_n_channels(X, self.channel_axis, shape), *shape)
        canvases = canvases_of(X, mask, shape, self.channel_axis, has_channels)
        scale = scale_of(canvases)
        plan = Plan(
            self.penalty,
            scale,
            sum(canvas.n_known for canvas in canvases),
            resolve_n_jobs(self.n_jobs),
            self.max_iter,
            self.min_improvement,
        )
        return [canvas.in_units(scale) for canvas in canvases], plan

    def _start(self, canvases: list[Canvas]) -> ConvolutionalDictionary:
        if self.init is not None:
            return self.init
        shape = positive_integers("filter_shape", self.filter_shape)
        rng = random_numbers(self.random_state)
        has_channels = self.channel_axis is not None
        return starting_filters(self.n_atoms, shape, self.structure, canvases, has_channels, rng)

    def _learn(self, state: State, plan: Plan, canvases: list[Canvas]) -> None:
        """Learn, from the checkpoint on if there is one; keep what passes have judged."""
        problem = self._problem(state.dictionary, canvases) if self.checkpoint is not None else {}
        if self.checkpoint is not None and os.path.exists(self.checkpoint):
            state = load_state(self.checkpoint, canvases, problem)
        client = dask_client(self.engine)
        if client is not None:
            from kronlearn.convolutional.dask import held_by_workers

            state = state._replace(images=held_by_workers(state.images, client))
        reason = "interrupted"
        try:
            with progress_bar(self.verbose, plan.max_iter, state.n_iterations) as advance:
                states = learn(state, plan)
                for state in states:
                    if state.n_iterations:
                        advance(state.history[-1].rmse)
                    if self._stops(state):
                        state = state._replace(stop_reason="callback")
                    self._save(state, problem)
                    if state.stop_reason is not None:
                        break
            reason = state.stop_reason or "max_iter"
        finally:
            if state.history:
                self._record(state)
                self.stop_reason_ = reason
        if state.history[-1].nonzeros == 0:
            warnings.warn(
                f"All coefficients are zero with penalty={self.penalty:g}, so nothing was learned; "
                "pass less (largest_penalty says how much is too much).",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _stops(self, state: State) -> bool:
        """Whether the callback, told of the filters of the last pass, wants to stop."""
        if self.callback is None:
            return False
        assert state.passed is not None
        entry = state.history[-1]._asdict()
        told = ConvolutionalProgress(state.n_iterations, **entry, dictionary=state.passed)
        return bool(self.callback(told))

    def _save(self, state: State, problem: dict[str, Any]) -> None:
        """Write the checkpoint if it is time to."""
        due = state.n_iterations % self.checkpoint_every == 0
        if self.checkpoint is not None and (due or state.stop_reason is not None):
            save_state(self.checkpoint, state, problem)

    def _problem(self, start: ConvolutionalDictionary, canvases: list[Canvas]) -> dict[str, Any]:
        """What a checkpoint must agree on for its run to be this one."""
        seeded = isinstance(self.random_state, numbers.Integral)
        return {
            "images": checksum([a for c in canvases for a in (c.pixels, c.weights)]),
            "factor_shapes": [list(factor.shape) for factor in start.factors],
            "structure": start.structure,
            "penalty": float(self.penalty),
            "init": None if self.init is None else checksum(start.factors),
            "seed": int(self.random_state) if seeded else None,
        }

    def _record(self, state: State) -> None:
        """Have the filters of the last pass as the fitted model, with the run's history."""
        assert state.passed is not None
        self.dictionary_ = state.passed
        columns = zip(*state.history, strict=True)
        self.history_: dict[str, list[float]] = {
            name: list(column) for name, column in zip(Entry._fields, columns, strict=True)
        }
        self.n_iter_ = state.n_iterations


def _n_channels(X: Any, channel_axis: int, shape: tuple[int, ...]) -> int:
    """How many channels images have, by the first."""
    first = X[0] if isinstance(X, (list, tuple)) and len(X) else X
    axes = np.shape(first)
    if len(axes) != len(shape) + 1 or channel_axis not in range(-len(axes), len(axes)):
        raise ValueError(
            f"Filters of {shape} and channels need images of {len(shape) + 1} axes, of which "
            f"channel_axis={channel_axis} is one; the image has shape {axes}."
        )
    return int(axes[channel_axis])
