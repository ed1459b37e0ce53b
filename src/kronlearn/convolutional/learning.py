"""Learning convolutional dictionaries from images."""

from __future__ import annotations

import numbers
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from kronlearn.convolutional.checkpoints import checksum, load_state, save_state
from kronlearn.convolutional.coded import CodedImage, CodedImages
from kronlearn.convolutional.coding import TOLERANCE, convolutional_code
from kronlearn.convolutional.filters import STRUCTURES, ConvolutionalDictionary
from kronlearn.convolutional.loop import Entry, Plan, Progress, State, learn, next_state
from kronlearn.convolutional.maps import reconstruct
from kronlearn.convolutional.padded import (
    Images,
    number_of_axes,
    number_of_channels,
    padded_images,
    scale_of,
)
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
from kronlearn.progress import checkpoint_is_due, followed, history_columns, progress_bar

__all__ = ["SeparableConvolutionalLearning"]


@dataclass(eq=False, repr=False)
class SeparableConvolutionalLearning(BaseEstimator):
    """Learn the filters of a convolutional dictionary from images.

    An image is a sum of sparse maps convolved with small filters, ``y ≈ Σ_m d_m ∗ x_m``. Filters
    and maps minimise ``½ Σ (y − Σ_m d_m ∗ x_m)² + penalty · Σ |x_m|`` over all known pixels of all
    images, with filters of norm one. Subtract the smooth part of the images first, with
    :func:`lowpass`: sparse maps represent it poorly.

    Parameters
    ----------
    n_atoms : int or tuple of int, default (8, 8)
        For "kronecker", the number of short filters of each axis, all of whose products are
        filters; for images with channels, the first number is that of the channels. For "separable"
        and "dense", the number of filters; a tuple stands for the product of its entries.
    filter_shape : int or tuple of int, default (11, 11)
        The size of a filter along each spatial axis; images must have as many axes. A single number
        applies to every spatial axis of the images.
    structure : {"kronecker", "separable", "dense"}, default "kronecker"
        Whether filters are all outer products of one short filter per axis, outer products that
        share no short filters, or free. 64 filters of 11 × 11 then consist of 176, 1,408 or 7,744
        numbers.
    penalty : float, default 0.05
        The weight of the ℓ1 norm, in the units of the images.
    channel_axis : int, optional
        The axis of the channels, for images that have them; each filter spans all channels.
    max_iter : int, default 50
        The most iterations; each codes the images, then improves the filters. A final pass of
        coding measures the last improvement.
    min_improvement : float, default 1e-4
        Stop when an iteration lowers the objective by less than this fraction.
    init : ConvolutionalDictionary, optional
        The filters to start from, for example to continue an earlier run; by default cosines for
        "kronecker", and patches of the images for the others.
    random_state : int, RandomState or None, default None
        Determines the noise in the filters to start from, and the positions of the patches they
        are taken from.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    verbose : int, default 0
        1 shows a progress bar.
    engine : {"auto", "threads", "dask"}, default "auto"
        What runs ``fit``: threads of this process, or the workers of the active
        ``dask.distributed.Client``, with a task of ``n_jobs`` threads for each image. "auto" means
        Dask in a joblib context with the backend "dask", otherwise threads. The result has the same
        bits.
    checkpoint : path, optional
        The file that the run is saved to; if it exists, ``fit`` resumes from it.
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
        Entry t describes the filters after t iterations, entry 0 those to start from: the
        "objective", the "rmse" of the known pixels and the number of "nonzeros", for the codes at
        that time, which are close to optimal, and the "seconds" since the beginning.
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

    n_atoms: int | tuple[int, ...] = field(default=(8, 8), metadata={"check": positive_integers})
    filter_shape: int | tuple[int, ...] = field(
        default=(11, 11), metadata={"check": positive_integers}
    )
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
    callback: Callable[[Progress], bool | None] | None = None

    def fit(self, X: Images, y: None = None, *, mask: Images | None = None) -> Self:
        """Learn filters from an image, or from several.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several of any shapes.
        y : None
            Ignored; masks are refused, which belong in ``mask``.
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
        _refuse_masks(y)
        images, plan = self._prepared(X, mask, self.init)
        self._n_seen = plan.n_known
        self._learn(self._start(images), images, plan)
        return self

    def fit_transform(self, X: Images, y: None = None, *, mask: Images | None = None) -> Any:
        """Learn filters from images, and return the sparse maps of the images.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several of any shapes.
        y : None
            Ignored; masks are refused, which belong in ``mask``.
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
        return self.fit(X, y, mask=mask).transform(X, mask=mask)

    def partial_fit(self, X: Images, y: None = None, *, mask: Images | None = None) -> Self:
        """Improve the filters with further images, which are coded once.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several.
        y : None
            Ignored; masks are refused, which belong in ``mask``.
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
        _refuse_masks(y)
        learned: ConvolutionalDictionary | None = getattr(self, "dictionary_", None)
        images, plan = self._prepared(X, mask, learned or self.init)
        if learned is None:
            self._n_seen, self.n_iter_ = 0, 0
            self.history_ = history_columns(Entry._fields, [])
        state = State(learned or self._start(images), CodedImages(images))
        self._n_seen += plan.n_known
        seconds_before = self.history_["seconds"][-1] if self.n_iter_ else 0.0
        begin = time.perf_counter() - seconds_before
        after = next_state(state, plan, begin, step_scale=plan.n_known / self._n_seen)
        for name, value in after.history[-1]._asdict().items():
            self.history_[name].append(value)
        self.dictionary_, self.stop_reason_ = after.dictionary, "partial_fit"
        self.n_iter_ += 1
        return self

    def transform(self, X: Images, *, mask: Images | None = None) -> Any:
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
        """Reconstruct images from their sparse maps, as :func:`reconstruct` does.

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
        if isinstance(maps, (list, tuple)):
            return [self.inverse_transform(each) for each in maps]
        return reconstruct(
            maps, self.dictionary_, channel_axis=self.channel_axis, n_jobs=self.n_jobs
        )

    def score(self, X: Images, y: None = None, *, mask: Images | None = None) -> float:
        """Return minus the objective per known pixel of images coded with the filters.

        Use it to compare filters for the same penalty: a search over penalties would choose the
        smallest.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several.
        y : None
            Ignored; masks are refused, which belong in ``mask``.
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
        _refuse_masks(y)
        images, plan = self._prepared(X, mask, self.dictionary_)
        coder = plan.coder(self.dictionary_, TOLERANCE)
        sums = CodedImages(images).mapped(CodedImage.coded, coder).total(CodedImage.sums)
        objective, _ = plan.objective_and_rmse(sums)
        return -objective / plan.n_known

    @property
    def filters_(self) -> NDArray[np.float64]:
        """All filters, ``(M, p_1, …, p_d)``."""
        check_is_fitted(self, "dictionary_")
        return self.dictionary_.filters

    def _check_parameters(self) -> None:
        check_declared(self)
        if self.init is not None and not isinstance(self.init, ConvolutionalDictionary):
            raise TypeError(f"init={self.init!r} is not a ConvolutionalDictionary.")
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback={self.callback!r} is not a function.")

    def _prepared(
        self, X: Any, mask: Any, dictionary: ConvolutionalDictionary | None
    ) -> tuple[list[CodedImage], Plan]:
        """Images without codes, in units of a power of two, and how to learn from them.

        ``dictionary`` holds the filters to start from or to score, if there are any yet.
        """
        has_channels = self.channel_axis is not None
        if dictionary is not None:
            spatial = dictionary.filter_shape[int(dictionary.has_channels) :]
            shape = self._spatial_shape(len(spatial))
            if (dictionary.structure, spatial) != (self.structure, shape):
                raise ValueError(
                    f"structure={self.structure!r} and filter_shape={shape}, but the filters are "
                    f"{dictionary.structure} and have shape {spatial}."
                )
            shape, has_channels = dictionary.filter_shape, dictionary.has_channels
        else:
            shape = self._spatial_shape(number_of_axes(X) - has_channels)
            if self.channel_axis is not None:
                shape = (number_of_channels(X, self.channel_axis, shape), *shape)
        padded = padded_images(X, mask, shape, self.channel_axis, has_channels)
        scale = scale_of(padded)
        plan = Plan(
            self.penalty,
            scale,
            sum(image.n_known for image in padded),
            resolve_n_jobs(self.n_jobs),
            self.max_iter,
            self.min_improvement,
        )
        return [CodedImage.uncoded(image.in_units(scale)) for image in padded], plan

    def _start(self, images: Sequence[CodedImage]) -> ConvolutionalDictionary:
        """The filters to start from."""
        if self.init is not None:
            return self.init
        has_channels = self.channel_axis is not None
        return starting_filters(
            self.n_atoms,
            self._spatial_shape(images[0].image.pixels.ndim - has_channels),
            self.structure,
            [image.image for image in images],
            has_channels,
            random_numbers(self.random_state),
        )

    def _spatial_shape(self, n_axes: int) -> tuple[int, ...]:
        """The size of a filter along each spatial axis, for images with ``n_axes`` of them."""
        shape = positive_integers("filter_shape", self.filter_shape)
        return shape * max(n_axes, 1) if np.ndim(self.filter_shape) == 0 else shape

    def _learn(
        self, start: ConvolutionalDictionary, images: Sequence[CodedImage], plan: Plan
    ) -> None:
        """Learn, from the checkpoint if there is one; an interrupt keeps the passes that ended."""
        state = State(start, CodedImages(images))
        problem = self._problem(start, images) if self.checkpoint is not None else {}
        if self.checkpoint is not None and os.path.exists(self.checkpoint):
            state = load_state(self.checkpoint, images, problem)
        client = dask_client(self.engine)
        if client is not None:
            from kronlearn.convolutional.dask import DaskImages

            state = state._replace(images=DaskImages.scattered(state.images, client))
        reason = "interrupted"
        try:
            with progress_bar(self.verbose, plan.max_iter, state.n_iterations) as advance:
                save = partial(self._save, problem)
                for latest in followed(learn(state, plan), advance, self._stops, save):
                    state = latest
            reason = state.stop_reason or "max_iter"
        finally:
            if state.history:
                self._adopt(state)
                self.stop_reason_ = reason
        if state.history[-1].nonzeros == 0:
            warnings.warn(
                f"All coefficients are zero with penalty={self.penalty:g}, so nothing was learned; "
                "pass a penalty below largest_penalty(…).",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _stops(self, state: State) -> bool:
        """Call the callback, if any; return whether it asks to stop."""
        if self.callback is None:
            return False
        assert state.passed is not None
        entry = state.history[-1]._asdict()
        return bool(self.callback(Progress(state.n_iterations, **entry, dictionary=state.passed)))

    def _save(self, problem: dict[str, Any], state: State) -> None:
        """Write the checkpoint if there is one and it is due."""
        if self.checkpoint is not None and checkpoint_is_due(state, self.checkpoint_every):
            save_state(self.checkpoint, state, problem)

    def _problem(
        self, start: ConvolutionalDictionary, images: Sequence[CodedImage]
    ) -> dict[str, Any]:
        """The images and settings that a checkpoint must have been made with."""
        seeded = isinstance(self.random_state, numbers.Integral)
        arrays = [array for each in images for array in (each.image.pixels, each.image.weights)]
        return {
            "images": checksum(arrays),
            "factor_shapes": [list(factor.shape) for factor in start.factors],
            "structure": start.structure,
            "penalty": float(self.penalty),
            "init": None if self.init is None else checksum(start.factors),
            "seed": int(self.random_state) if seeded else None,
        }

    def _adopt(self, state: State) -> None:
        """Make the filters of the last pass the fitted ones, and the run's history the model's."""
        assert state.passed is not None
        self.dictionary_ = state.passed
        self.history_ = history_columns(Entry._fields, state.history)
        self.n_iter_ = state.n_iterations


def _refuse_masks(y: Any) -> None:
    """Raise if ``y``, which is ignored, holds masks."""
    arrays = y if isinstance(y, (list, tuple)) else [y]
    if any(isinstance(array, np.ndarray) and array.dtype == bool for array in arrays):
        raise TypeError("y holds booleans, but y is ignored; pass masks by name, as mask=….")
