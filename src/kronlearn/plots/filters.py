"""Pictures of the filters of a convolutional dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional import ConvolutionalDictionary
from kronlearn.plots.mosaic import MosaicDisplay, scaled_to_one, tiled

__all__ = ["FiltersDisplay"]


class FiltersDisplay(MosaicDisplay):
    """A mosaic of two-dimensional filters, each scaled to its own largest magnitude.

    Kronecker filters are arranged by their factors: the filters in a row share their vertical
    factor, those in a column their horizontal one. Filters with three channels are drawn in
    colour, with grey for zero; of any other number of channels, the first is drawn.

    Parameters
    ----------
    dictionary : ConvolutionalDictionary
        The filters, with two spatial axes.

    Attributes
    ----------
    ax_ : matplotlib axes
    figure_ : matplotlib figure

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> d = kl.convolutional.ConvolutionalDictionary([np.eye(5)[:, :3], np.eye(5)[:, :2]])
    >>> kl.plots.FiltersDisplay(d).plot().mosaic().shape
    (19, 13)
    """

    def __init__(self, dictionary: ConvolutionalDictionary) -> None:
        if not isinstance(dictionary, ConvolutionalDictionary):
            raise TypeError(
                f"FiltersDisplay cannot draw a {type(dictionary).__name__}; pass a "
                "ConvolutionalDictionary, or draw a KroneckerDictionary or KroneckerSumDictionary "
                "with DictionaryDisplay."
            )
        if len(dictionary.filter_shape) - dictionary.has_channels != 2:
            raise ValueError(
                f"Filters of {dictionary.filter_shape} are not two-dimensional; draw their factors."
            )
        super().__init__(dictionary)

    def _title(self) -> str:
        d = self.dictionary
        return f"{d.n_filters} {d.structure} filters of {' × '.join(map(str, d.filter_shape))}"

    def mosaic(self) -> NDArray[Any]:
        """Return the picture as an array.

        Returns
        -------
        array of shape (height, width), or (height, width, 3) in colour
            Values in [-1, 1], one pixel for each entry, NaN in the gaps.

        Examples
        --------
        See :class:`FiltersDisplay`.
        """
        d = self.dictionary
        filters = d.filters if d.has_channels else d.filters[:, None]
        if len(filters[0]) != 3:
            filters = filters[:, :1]
        columns = (
            d.factors[-1].shape[1] if d.structure == "kronecker" else round(len(filters) ** 0.5)
        )
        missing = -len(filters) % columns
        filters = scaled_to_one(np.moveaxis(filters, 0, -1), axis=(0, 1, 2))
        filters = np.pad(filters, [(0, 0)] * 3 + [(0, missing)], constant_values=np.nan)
        channels = [
            tiled(channel.reshape(*d.filter_shape[-2:], -1, columns)) for channel in filters
        ]
        grid = np.pad(np.stack(channels, -1), [(1, 0), (1, 0), (0, 0)], constant_values=np.nan)
        return grid if len(channels) == 3 else grid[..., 0]
