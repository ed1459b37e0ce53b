"""Sparse maps, and the images that they stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from kronlearn.convolutional.canvas import Codes, synthesised
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.engines.threads import resolve_n_jobs

__all__ = ["SparseMaps", "check_dictionary", "maps_of", "reconstruct"]


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


def check_dictionary(dictionary: Any) -> None:
    """Raise unless it is a dictionary of filters."""
    if not isinstance(dictionary, ConvolutionalDictionary):
        raise TypeError(
            f"dictionary is {type(dictionary).__name__}; pass a ConvolutionalDictionary."
        )


def maps_of(codes: Codes, n_filters: int, map_shape: tuple[int, ...], scale: float) -> SparseMaps:
    """The maps of coefficients in units of ``scale``."""
    positions, filters, values = codes
    entries = values * np.float32(scale), (filters, positions)
    return SparseMaps(csr_array(entries, shape=(n_filters, math.prod(map_shape))), map_shape)


def _codes(maps: SparseMaps) -> Codes:
    """The coefficients as native code takes them."""
    entries = maps.matrix.tocoo()
    filters, positions = entries.coords
    return positions.astype(np.int64), filters.astype(np.int32), entries.data.astype(np.float32)
