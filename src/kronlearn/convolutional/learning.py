"""Learning convolutional dictionaries from images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from kronlearn.convolutional.canvas import Canvas, canvases_of, no_codes, scale_of
from kronlearn.convolutional.coding import (
    MapCoder,
    check_penalty,
    convolutional_code,
    reconstruct,
)
from kronlearn.convolutional.filters import STRUCTURES, ConvolutionalDictionary
from kronlearn.convolutional.updates import Coded, updated
from kronlearn.core.init import dct_factor
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.parameters import (
    check_declared,
    count,
    number,
    one_of,
    positive_integers,
    random_numbers,
)

__all__ = ["SeparableConvolutionalLearning"]

# Rounds of coding in the first iteration, which begins without codes, and in later ones.
_FIRST_ROUNDS, _ROUNDS = 8, 2
# How far from optimal coding goes in an iteration: the filters change anyway.
_TOLERANCE = 0.1
# Steps of the filters in an iteration.
_STEPS = 2
# Noise in the start, relative to the norm of a column: without it cosines are close to a saddle.
_NOISE = 0.1


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
    max_iter : int, default 50
        Iterations: coding, then steps of the filters.
    min_improvement : float, default 1e-4
        Learning stops where an iteration lowers the objective by less than this share of it.
    init : ConvolutionalDictionary, optional
        The filters to start from, for example to continue an earlier run; by default cosines for
        "kronecker", and patches of the images for the others.
    random_state : int, RandomState or None, default None
        The noise in the start, and the places from which free filters are taken.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    verbose : int, default 0
        Whether to print a line for every iteration.
    callback : callable, optional
        Called after each iteration with the estimator, whose attributes are those so far; learning
        stops if it returns True.

    Attributes
    ----------
    dictionary_ : ConvolutionalDictionary
    filters_ : array of shape (M, p_1, …, p_d)
    history_ : dict
        Lists, an entry for each iteration: "objective", "rmse" of the known pixels, "nonzeros" and
        "seconds", of the codes that the filters had then.
    n_iter_ : int
    stop_reason_ : str
        "converged", "max_iter", "callback", "interrupted" or "partial_fit".

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
    penalty: float = 0.05
    max_iter: int = count(50)
    min_improvement: float = number(1e-4, "[0, 1)")
    init: ConvolutionalDictionary | None = None
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0
    callback: Callable[[Any], bool | None] | None = None

    def fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
        channel_axis: int | None = None,
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
        channel_axis : int, optional
            The axis of the channels.

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
        canvases, scale = self._scaled(X, mask, channel_axis)
        self._begin(canvases, channel_axis is not None)
        self._n_seen = sum(canvas.n_known for canvas in canvases)
        self._learn(canvases, scale)
        return self

    def partial_fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
        channel_axis: int | None = None,
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
        channel_axis : int, optional
            The axis of the channels.

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
        canvases, scale = self._scaled(X, mask, channel_axis, known)
        if known is None:
            self._begin(canvases, channel_axis is not None)
        self.stop_reason_ = "partial_fit"
        n_known = sum(canvas.n_known for canvas in canvases)
        self._n_seen += n_known
        images = [Coded(canvas, no_codes(), canvas.pixels) for canvas in canvases]
        self._iterate(images, scale, _FIRST_ROUNDS, n_known / self._n_seen)
        return self

    def transform(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        *,
        mask: ArrayLike | Sequence[ArrayLike] | None = None,
        channel_axis: int | None = None,
    ) -> Any:
        """Return the sparse maps of images, as :func:`convolutional_code` does.

        Parameters
        ----------
        X : array or list of arrays
            An image, or several.
        mask : array of bool or list of arrays, optional
            True where a pixel is missing.
        channel_axis : int, optional
            The axis of the channels.

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
            channel_axis=channel_axis,
            n_jobs=self.n_jobs,
        )

    def inverse_transform(self, maps: Any, *, channel_axis: int | None = None) -> Any:
        """Return the images that sparse maps stand for, as :func:`reconstruct` does.

        Parameters
        ----------
        maps : SparseMaps or list of SparseMaps
            The maps of one image, or of several.
        channel_axis : int, optional
            Where results have their channels; by default first.

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
            reconstruct(each, self.dictionary_, channel_axis=channel_axis, n_jobs=self.n_jobs)
            for each in several
        ]
        return found if several is maps else found[0]

    @property
    def filters_(self) -> NDArray[np.float64]:
        """All filters, ``(M, p_1, …, p_d)``."""
        check_is_fitted(self, "dictionary_")
        return self.dictionary_.filters

    def _check_parameters(self) -> None:
        check_declared(self)
        check_penalty(self.penalty)
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

    def _scaled(
        self,
        X: Any,
        mask: Any,
        channel_axis: int | None,
        known: ConvolutionalDictionary | None = None,
    ) -> tuple[list[Canvas], float]:
        """Images as canvases, in units of a power of two, for filters that are known or to come."""
        known = known or self.init
        shape = positive_integers("filter_shape", self.filter_shape)
        if known is not None:
            spatial = known.filter_shape[int(known.has_channels) :]
            if spatial != shape:
                raise ValueError(
                    f"filter_shape={shape}, but the filters to go on from are of {spatial}."
                )
            shape, has_channels = known.filter_shape, known.has_channels
        elif has_channels := channel_axis is not None:
            first = X[0] if isinstance(X, (list, tuple)) and len(X) else X
            axes = np.shape(first)
            if len(axes) != len(shape) + 1 or not -len(axes) <= channel_axis < len(axes):
                raise ValueError(
                    f"Filters of {shape} and channels need images of {len(shape) + 1} axes, of "
                    f"which channel_axis={channel_axis} is one; the image has shape {axes}."
                )
            shape = (axes[channel_axis], *shape)
        canvases = canvases_of(X, mask, shape, channel_axis, has_channels)
        scale = scale_of(canvases)
        return [canvas.in_units(scale) for canvas in canvases], scale

    def _begin(self, canvases: list[Canvas], has_channels: bool) -> None:
        """Forget what was learned before."""
        self.dictionary_ = self._start(canvases, has_channels)
        self.history_: dict[str, list[float]] = {
            name: [] for name in ("objective", "rmse", "nonzeros", "seconds")
        }
        self.n_iter_, self.stop_reason_, self._n_seen = 0, "max_iter", 0

    def _start(self, canvases: list[Canvas], has_channels: bool) -> ConvolutionalDictionary:
        """The dictionary to begin with: the one given, cosines with some noise, or patches.

        Filters that are not all products of short ones begin as patches of the images.
        """
        if self.init is not None:
            return self.init
        rng = random_numbers(self.random_state)
        shape = positive_integers("filter_shape", self.filter_shape)
        if has_channels:
            shape = (len(canvases[0].pixels), *shape)
        sizes = positive_integers("n_atoms", self.n_atoms)
        if self.structure == "kronecker":
            sizes = sizes * len(shape) if np.ndim(self.n_atoms) == 0 else sizes
            if len(sizes) != len(shape):
                raise ValueError(
                    f"n_atoms={self.n_atoms} must have a number for each of the {len(shape)} axes "
                    "of a filter" + (", channels first." if has_channels else ".")
                )
            factors = []
            for length, n in zip(shape, sizes, strict=True):
                noise = rng.standard_normal((length, n)) / np.sqrt(length)
                factors.append(dct_factor(length, n) + _NOISE * noise)
            return ConvolutionalDictionary(factors, has_channels=has_channels)
        patches = _patches(canvases, shape, int(np.prod(sizes)), rng)
        if self.structure == "dense":
            return ConvolutionalDictionary([patches], "dense", has_channels)
        return ConvolutionalDictionary(_rank_one(patches), "separable", has_channels)

    def _learn(self, canvases: list[Canvas], scale: float) -> None:
        images = [Coded(canvas, no_codes(), canvas.pixels) for canvas in canvases]
        # Unless it ends otherwise.
        self.stop_reason_ = "interrupted"
        for iteration in range(self.max_iter):
            images = self._iterate(images, scale, _ROUNDS if iteration else _FIRST_ROUNDS, 1.0)
            objectives = self.history_["objective"]
            if self.callback is not None and self.callback(self):
                self.stop_reason_ = "callback"
                return
            # The first two have codes that were still far from optimal.
            if iteration > 2 and objectives[-1] > (1 - self.min_improvement) * objectives[-2]:
                self.stop_reason_ = "converged"
                return
        self.stop_reason_ = "max_iter"

    def _iterate(self, images: list[Coded], scale: float, rounds: int, share: float) -> list[Coded]:
        """Code the images from the codes they have, note how good that is, and move the filters."""
        start, n_threads = time.perf_counter(), resolve_n_jobs(self.n_jobs)
        coder = MapCoder(self.dictionary_, self.penalty / scale, _TOLERANCE, n_threads)
        images = [
            Coded(image.canvas, *coder.code(image.canvas, image.codes, rounds)) for image in images
        ]
        dictionary = updated(self.dictionary_, images, _STEPS, n_threads, share)
        self._note(images, scale, time.perf_counter() - start)
        self.dictionary_ = dictionary
        if self.verbose:
            entry = {name: values[-1] for name, values in self.history_.items()}
            print(
                f"Iteration {self.n_iter_}: objective {entry['objective']:.6g}, RMSE "
                f"{entry['rmse']:.4g}, {entry['nonzeros']} nonzeros, {entry['seconds']:.2f} s"
            )
        return images

    def _note(self, images: list[Coded], scale: float, seconds: float) -> None:
        """Add an iteration to the history."""
        error = scale**2 * sum(image.error for image in images)
        values = [image.codes[2] for image in images]
        norm = scale * sum(float(np.sum(np.abs(v), dtype=np.float64)) for v in values)
        n_known = sum(image.canvas.n_known for image in images)
        self.history_["objective"].append(error / 2 + self.penalty * norm)
        self.history_["rmse"].append(float(np.sqrt(error / n_known)))
        self.history_["nonzeros"].append(sum(map(len, values)))
        self.history_["seconds"].append(seconds)
        self.n_iter_ += 1


def _patches(
    canvases: list[Canvas], shape: tuple[int, ...], count: int, rng: np.random.RandomState
) -> NDArray[np.float64]:
    """Patches (count, *shape) at random places of images, with a little noise."""
    found = rng.standard_normal((count, *shape))
    found *= _NOISE / np.sqrt(np.prod(shape))
    for patch in found:
        pixels = canvases[rng.randint(len(canvases))].pixels
        starts = [
            rng.randint(size - length + 1) for size, length in zip(pixels.shape, shape, strict=True)
        ]
        place = tuple(slice(s, s + m) for s, m in zip(starts, shape, strict=True))
        taken = pixels[place].astype(np.float64)
        patch += taken / max(float(np.linalg.norm(taken)), 1e-12)
    return found


def _rank_one(patches: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Factors (p_i, M) whose products are close to patches: leading vectors along each axis."""
    factors = []
    for axis in range(1, patches.ndim):
        unfolded = np.moveaxis(patches, axis, 1).reshape(len(patches), patches.shape[axis], -1)
        factors.append(np.linalg.svd(unfolded, full_matrices=False)[0][:, :, 0].T)
    return factors
