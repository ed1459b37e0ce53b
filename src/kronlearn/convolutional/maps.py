"""Sparse maps: the codes of an image, and how the image is reconstructed from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from kronlearn.convolutional.filters import ConvolutionalDictionary, check_dictionary
from kronlearn.convolutional.padded import Codes, synthesize
from kronlearn.engines.threads import resolve_n_jobs

__all__ = ["SparseMaps", "maps_of", "reconstruct"]


@dataclass(frozen=True, eq=False)
class SparseMaps:
    """Where, and how strongly, every filter occurs in an image.

    Parameters
    ----------
    matrix : csr_array of shape (M, positions)
        A row for each filter, with the positions in C order.
    map_shape : tuple of int
        The number of positions along each axis: N + p − 1 for N pixels and a filter of length p,
        so that filters may extend beyond both ends. The axis of channels comes first and has one
        position.

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
        """The number of nonzero coefficients."""
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
    """Reconstruct an image from its sparse maps.

    Parameters
    ----------
    maps : SparseMaps
        The maps of one image.
    dictionary : ConvolutionalDictionary
        The filters that the image was coded with.
    channel_axis : int, optional
        The axis of the channels in the result, for filters that have them; by default the first.
    n_jobs : int, optional
        The number of threads; -1 means all processors.

    Returns
    -------
    array
        The image, in single precision, with missing pixels filled in.

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
    image = synthesize(shape, _codes_of(maps), dictionary, resolve_n_jobs(n_jobs))
    inside = [
        slice(length - 1, size - length + 1)
        for size, length in zip(shape, dictionary.filter_shape, strict=True)
    ]
    if dictionary.has_channels:
        inside[0] = slice(None)
    image = image[tuple(inside)]
    if dictionary.has_channels and channel_axis is not None:
        image = np.moveaxis(image, 0, channel_axis)
    return np.ascontiguousarray(image)


def maps_of(codes: Codes, n_filters: int, map_shape: tuple[int, ...], scale: float) -> SparseMaps:
    """Convert codes in units of ``scale`` to sparse maps."""
    positions, filters, values = codes
    entries = values * np.float32(scale), (filters, positions)
    return SparseMaps(csr_array(entries, shape=(n_filters, math.prod(map_shape))), map_shape)


def _codes_of(maps: SparseMaps) -> Codes:
    """Convert sparse maps to codes."""
    entries = maps.matrix.tocoo()
    filters, positions = entries.coords
    return positions.astype(np.int64), filters.astype(np.int32), entries.data.astype(np.float32)
