"""Pictures of the filters of a convolutional dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional import ConvolutionalDictionary
from kronlearn.plots.dictionary import draw_mosaic, scaled_to_one, tiled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FiltersDisplay"]


class FiltersDisplay:
    """A mosaic of two-dimensional filters, each scaled to its own largest magnitude.

    Kronecker filters are laid out by their factors: all filters of a row share their vertical
    factor, all of a column the horizontal one. Of filters with channels the first channel is drawn.

    Parameters
    ----------
    dictionary : ConvolutionalDictionary
        The filters, of two spatial axes.

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
        if len(dictionary.filter_shape) - dictionary.has_channels != 2:
            raise ValueError(
                f"Filters of {dictionary.filter_shape} are not two-dimensional; draw their factors."
            )
        self.dictionary = dictionary

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Axes | None = None, cmap: str = "gray"
    ) -> FiltersDisplay:
        """Draw the filters of a fitted estimator.

        Parameters
        ----------
        estimator : SeparableConvolutionalLearning
            A fitted estimator.
        ax : matplotlib axes, optional
            Where to draw; by default in a new figure.
        cmap : str, default "gray"
            A colormap; its middle stands for zero.

        Returns
        -------
        FiltersDisplay
            The display, already drawn.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> learner = kl.convolutional.SeparableConvolutionalLearning
        >>> model = learner((2, 2), (5, 5), max_iter=2, random_state=0).fit(np.eye(20))
        >>> kl.plots.FiltersDisplay.from_estimator(model).ax_.get_title()
        '4 kronecker filters of 5 × 5'
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator, "dictionary_")
        return cls(estimator.dictionary_).plot(ax=ax, cmap=cmap)

    def plot(self, *, ax: Axes | None = None, cmap: str = "gray") -> FiltersDisplay:
        """Draw the mosaic.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; by default in a new figure.
        cmap : str, default "gray"
            A colormap; its middle stands for zero.

        Returns
        -------
        FiltersDisplay
            The display itself.

        Examples
        --------
        See :class:`FiltersDisplay`.
        """
        d = self.dictionary
        shape = " × ".join(map(str, d.filter_shape))
        title = f"{d.n_filters} {d.structure} filters of {shape}"
        self.ax_ = draw_mosaic(self.mosaic(), title, ax, cmap)
        self.figure_ = self.ax_.figure
        return self

    def mosaic(self) -> NDArray[Any]:
        """Return the picture as an array.

        Returns
        -------
        array of shape (height, width)
            Values in [-1, 1], one pixel for each entry, NaN in the gaps.

        Examples
        --------
        See :class:`FiltersDisplay`.
        """
        d = self.dictionary
        filters = d.filters[:, 0] if d.has_channels else d.filters
        columns = (
            d.factors[-1].shape[1] if d.structure == "kronecker" else round(len(filters) ** 0.5)
        )
        missing = -len(filters) % columns
        filters = scaled_to_one(np.moveaxis(filters, 0, -1), axis=(0, 1))
        filters = np.pad(filters, [(0, 0), (0, 0), (0, missing)], constant_values=np.nan)
        grid = tiled(filters.reshape(*filters.shape[:2], -1, columns))
        return np.pad(grid, ((1, 0), (1, 0)), constant_values=np.nan)
