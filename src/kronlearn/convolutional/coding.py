"""Sparse coding by convolutions: an image as a sum of shifted filters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from kronlearn import _native
from kronlearn.convolutional.canvas import (
    Canvas,
    Codes,
    canvases_of,
    no_codes,
    scale_of,
    synthesised,
)
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.images.stages import part_of

__all__ = ["SparseMaps", "convolutional_code", "largest_penalty", "reconstruct"]

# If this many rounds are not enough, some filters are nearly equal.
_MOST_ROUNDS = 1000


@dataclass(frozen=True, eq=False)
class SparseMaps:
    """Where, and how strongly, every filter occurs in an image.

    Parameters
    ----------
    matrix : csr_array of shape (M, positions)
        A row for each filter; positions in C order.
    map_shape : tuple of int
        How many positions there are along each axis: an image of N pixels and a filter of p have
        N + p − 1, so that filters reach over both ends. The axis of channels comes first and has a
        single one.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.convolutional import ConvolutionalDictionary, convolutional_code
    >>> d = ConvolutionalDictionary([np.ones((3, 1)), np.eye(3)])
    >>> maps = convolutional_code(np.eye(8), d, penalty=0.1)
    >>> maps.map_shape, maps.toarray().shape
    ((10, 10), (3, 10, 10))
    """

    matrix: csr_array
    map_shape: tuple[int, ...]

    @property
    def nnz(self) -> int:
        """The number of coefficients that are not zero."""
        return int(self.matrix.nnz)

    def toarray(self) -> NDArray[np.float32]:
        """Return the maps as a dense array.

        Returns
        -------
        array of shape (M, N_1, …, N_d)
            The maps, in single precision.

        Examples
        --------
        See :class:`SparseMaps`.
        """
        dense: NDArray[np.float32] = self.matrix.toarray()
        return dense.reshape(-1, *self.map_shape)


def convolutional_code(
    images: ArrayLike | Sequence[ArrayLike],
    dictionary: ConvolutionalDictionary,
    penalty: float,
    *,
    mask: ArrayLike | Sequence[ArrayLike] | None = None,
    channel_axis: int | None = None,
    tol: float = 0.03,
    n_jobs: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Any:
    """Code images as sums of shifted filters: ``y ≈ Σ_m d_m ∗ x_m`` with sparse maps ``x_m``.

    The maps minimise ``½ Σ (y − Σ_m d_m ∗ x_m)² + penalty · Σ |x_m|`` over the known pixels. Pixels
    beyond the edges of an image are unknown, like those of the mask, so edges cost nothing. The
    minimum is found by coordinate descent, tile by tile, on the nonzero coefficients; all others
    are screened with separable filters. Memory grows with the image and the number of nonzeros, not
    with the number of filters.

    Parameters
    ----------
    images : array or list of arrays
        An image, or several of any shapes; of as many axes as the filters have.
    dictionary : ConvolutionalDictionary
        The filters.
    penalty : float
        The weight of the ℓ1 norm, in the units of the image: the larger, the fewer nonzeros. All
        are zero from :func:`largest_penalty` on.
    mask : array of bool or list of arrays, optional
        True where a pixel is missing.
    channel_axis : int, optional
        The axis of the channels, for filters that have them.
    tol : float, default 0.03
        How far the gradient of a coefficient may be from optimal, relative to the penalty. The
        objective is then about 0.01 % above its minimum, with 0.3 about 1 %.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    progress : callable, optional
        Called now and then with the fraction of the image that needs no more work; raising an
        exception stops the work.

    Returns
    -------
    SparseMaps or list of SparseMaps
        The maps of the image, or of each image of a list.

    Raises
    ------
    ValueError
        If an image is smaller than a filter or holds NaN where no mask covers it, or if the penalty
        is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.convolutional import ConvolutionalDictionary, convolutional_code, reconstruct
    >>> d = ConvolutionalDictionary([np.hanning(7)[:, None], np.hanning(7)[:, None]])
    >>> image = np.zeros((32, 32))
    >>> image[4:11, 9:16] = d.filters[0]
    >>> maps = convolutional_code(image, d, penalty=0.01)
    >>> maps.nnz, bool(np.abs(reconstruct(maps, d) - image).max() < 0.01)
    (1, True)
    """
    check_dictionary(dictionary)
    check_penalty(penalty)
    if not 0 < float(tol) < 1:
        raise ValueError(f"tol={tol} is not between 0 and 1.")
    n_threads = resolve_n_jobs(n_jobs)
    canvases = canvases_of(
        images, mask, dictionary.filter_shape, channel_axis, dictionary.has_channels
    )
    found = []
    for number, canvas in enumerate(canvases):
        scale = scale_of([canvas])
        coder = MapCoder(dictionary, penalty / scale, tol, n_threads)
        tell = part_of(progress, number, len(canvases))
        codes, _ = coder.code(canvas.in_units(scale), no_codes(), _MOST_ROUNDS, tell)
        map_shape = canvas.map_shape(dictionary.filter_shape)
        found.append(_maps(codes, dictionary.n_filters, map_shape, scale))
    return found if isinstance(images, (list, tuple)) else found[0]


def largest_penalty(
    images: ArrayLike | Sequence[ArrayLike],
    dictionary: ConvolutionalDictionary,
    *,
    mask: ArrayLike | Sequence[ArrayLike] | None = None,
    channel_axis: int | None = None,
) -> float:
    """Return the smallest penalty for which all coefficients are zero.

    Parameters
    ----------
    images : array or list of arrays
        An image, or several.
    dictionary : ConvolutionalDictionary
        The filters.
    mask : array of bool or list of arrays, optional
        True where a pixel is missing.
    channel_axis : int, optional
        The axis of the channels, for filters that have them.

    Returns
    -------
    float
        The largest magnitude in the correlation of any image with any filter.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.convolutional import ConvolutionalDictionary, largest_penalty
    >>> d = ConvolutionalDictionary([np.eye(3), np.eye(3)])
    >>> largest_penalty(np.eye(8), d)
    1.0
    """
    from scipy.signal import correlate

    check_dictionary(dictionary)
    given = images, mask, dictionary.filter_shape, channel_axis, dictionary.has_channels
    return max(
        float(np.abs(correlate(canvas.pixels.astype(np.float64), d, "valid")).max())
        for canvas in canvases_of(*given)
        for d in dictionary.filters
    )


def reconstruct(
    maps: SparseMaps,
    dictionary: ConvolutionalDictionary,
    *,
    channel_axis: int | None = None,
    n_jobs: int | None = None,
) -> NDArray[np.float32]:
    """Return the image that sparse maps stand for.

    Parameters
    ----------
    maps : SparseMaps
        The maps of one image.
    dictionary : ConvolutionalDictionary
        The filters that the maps were made for.
    channel_axis : int, optional
        Where the result has its channels, for filters that have them; by default first.
    n_jobs : int, optional
        The number of threads; -1 means all processors.

    Returns
    -------
    array
        The image, in single precision, missing pixels filled in.

    Examples
    --------
    See :func:`convolutional_code`.
    """
    check_dictionary(dictionary)
    if not isinstance(maps, SparseMaps):
        raise TypeError(f"maps is {type(maps).__name__}; pass what convolutional_code returns.")
    n_axes, n_filters = len(dictionary.filter_shape), dictionary.n_filters
    if len(maps.map_shape) != n_axes or maps.matrix.shape[0] != n_filters:
        raise ValueError(
            f"The maps have {maps.matrix.shape[0]} filters and {len(maps.map_shape)} axes, the "
            f"dictionary {n_filters} and {n_axes}."
        )
    lengths = zip(maps.map_shape, dictionary.filter_shape, strict=True)
    shape = tuple(count + length - 1 for count, length in lengths)
    image = synthesised(shape, _codes(maps), dictionary, resolve_n_jobs(n_jobs))
    first = int(dictionary.has_channels)
    inside = [slice(None)] * first + [
        slice(length - 1, size - length + 1)
        for size, length in list(zip(shape, dictionary.filter_shape, strict=True))[first:]
    ]
    image = image[tuple(inside)]
    if dictionary.has_channels and channel_axis is not None:
        image = np.moveaxis(image, 0, channel_axis)
    return np.ascontiguousarray(image)


@dataclass(frozen=True)
class MapCoder:
    """How canvases are coded: with which filters, penalty, tolerance and threads."""

    dictionary: ConvolutionalDictionary
    penalty: float
    tol: float
    n_threads: int

    def code(
        self,
        canvas: Canvas,
        start: Codes,
        max_rounds: int,
        progress: Callable[[float], None] | None = None,
    ) -> tuple[Codes, NDArray[np.float32]]:
        """The codes that follow from given ones after some rounds, and what they leave."""
        residual = canvas.residual(start, self.dictionary, self.n_threads)
        positions, filters, values, violation = _native.code_convolutional(
            residual,
            canvas.weights,
            self.dictionary.filters.astype(np.float32),
            self.dictionary.stages,
            start,
            self.penalty,
            self.tol,
            max_rounds,
            self.n_threads,
            progress,
            instruction_set(),
        )
        if violation > self.tol and max_rounds >= _MOST_ROUNDS:
            warnings.warn(
                f"Codes are {violation:.2g} times the penalty from optimal after {max_rounds} "
                f"rounds, not tol={self.tol:g}; some filters are nearly equal.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return (positions, filters, values), residual


def check_dictionary(dictionary: Any) -> None:
    """Raise unless it is a dictionary of filters."""
    if not isinstance(dictionary, ConvolutionalDictionary):
        raise TypeError(
            f"dictionary is {type(dictionary).__name__}; pass a ConvolutionalDictionary."
        )


def check_penalty(penalty: Any) -> None:
    """Raise unless a penalty is a positive number."""
    if isinstance(penalty, bool) or not np.isscalar(penalty) or isinstance(penalty, (str, bytes)):
        raise TypeError(f"penalty={penalty!r} is not a number.")
    if not 0 < float(penalty) < math.inf:  # type: ignore[arg-type]
        raise ValueError(f"penalty={penalty} must be positive and finite.")


def _maps(codes: Codes, n_filters: int, map_shape: tuple[int, ...], scale: float) -> SparseMaps:
    """The maps of coefficients in units of ``scale``."""
    positions, filters, values = codes
    entries = values * np.float32(scale), (filters, positions)
    return SparseMaps(csr_array(entries, shape=(n_filters, math.prod(map_shape))), map_shape)


def _codes(maps: SparseMaps) -> Codes:
    """The coefficients as native code takes them."""
    entries = maps.matrix.tocoo()
    filters, positions = entries.coords
    return positions.astype(np.int64), filters.astype(np.int32), entries.data.astype(np.float32)
