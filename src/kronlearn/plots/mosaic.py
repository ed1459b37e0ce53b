"""Mosaics: the atoms or filters of a dictionary as tiles of one picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kronlearn.plots.axes import prepare_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MosaicDisplay", "scaled_to_one", "tiled", "with_gaps"]

# Differs from every grey, so that white and black tiles keep their edges.
_GAP_COLOR = "#5b8db8"


class MosaicDisplay(ABC):
    """A dictionary drawn as a mosaic."""

    def __init__(self, dictionary: Any) -> None:
        self.dictionary = dictionary

    @abstractmethod
    def _title(self) -> str:
        """The text above the mosaic."""

    @abstractmethod
    def mosaic(self) -> NDArray[Any]:
        """Return the picture, grey or RGB, as an array with values in [-1, 1], NaN in the gaps."""

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Axes | None = None, cmap: str = "gray") -> Self:
        """Draw the ``dictionary_`` of a fitted estimator.

        Parameters
        ----------
        estimator : KroneckerDictionaryLearning, SeparableConvolutionalLearning or comparator
            A fitted estimator.
        ax : matplotlib axes, optional
            Where to draw; by default in a new figure.
        cmap : str, default "gray"
            A colormap; its middle stands for zero. Filters of RGB images are drawn in colour.

        Returns
        -------
        DictionaryDisplay or FiltersDisplay
            The display, already drawn.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> Y = np.random.default_rng(0).standard_normal((100, 4, 4))
        >>> model = kl.KroneckerDictionaryLearning((5, 5), max_iter=2, random_state=0).fit(Y)
        >>> kl.plots.DictionaryDisplay.from_estimator(model).ax_.get_title()
        '4 × 4 patches, 5 × 5 atoms'
        >>> learner = kl.convolutional.SeparableConvolutionalLearning
        >>> model = learner((2, 2), (5, 5), max_iter=2, random_state=0).fit(np.eye(20))
        >>> kl.plots.FiltersDisplay.from_estimator(model).ax_.get_title()
        '4 kronecker filters of 5 × 5'
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator, "dictionary_")
        return cls(estimator.dictionary_).plot(ax=ax, cmap=cmap)

    def plot(self, *, ax: Axes | None = None, cmap: str = "gray") -> Self:
        """Draw the mosaic.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; by default in a new figure.
        cmap : str, default "gray"
            A colormap; its middle stands for zero. Filters of RGB images are drawn in colour.

        Returns
        -------
        DictionaryDisplay or FiltersDisplay
            The display itself.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(4)])
        >>> display = kl.plots.DictionaryDisplay(d).plot(cmap="coolwarm")
        >>> display.figure_ is display.ax_.figure
        True
        """
        from matplotlib import colormaps, colors

        picture = self.mosaic()
        rows, columns = picture.shape[:2]
        # The title needs some room above the picture.
        size = 6.4, float(np.clip(6.4 * rows / columns, 1, 12)) + 0.6
        (self.ax_,) = prepare_axes(None if ax is None else [ax], 1, size)
        self.ax_.set_axis_off()
        if picture.ndim == 3:
            picture = np.where(np.isnan(picture), colors.to_rgb(_GAP_COLOR), (picture + 1) / 2)
        greys = colormaps[cmap].with_extremes(bad=_GAP_COLOR)
        self.ax_.imshow(picture, cmap=greys, vmin=-1, vmax=1)
        self.ax_.set_title(self._title(), fontsize="medium")
        self.figure_ = self.ax_.figure
        return self


def scaled_to_one(values: NDArray[Any], axis: int | tuple[int, ...]) -> NDArray[Any]:
    """The values, scaled to a largest magnitude of 1 along the axes."""
    values = values.astype(np.float64)
    scaled: NDArray[Any] = values / np.abs(values).max(axis=axis)
    return scaled


def tiled(atoms: NDArray[Any]) -> NDArray[Any]:
    """Atoms (m_1, m_2, n_1, n_2) as one picture, with gaps below and right of every tile."""
    columns = with_gaps(atoms.transpose(2, 0, 3, 1))
    return with_gaps(columns.transpose(2, 0, 1)).T


def with_gaps(values: NDArray[Any]) -> NDArray[Any]:
    """The last two axes (n, m) as one (n·(m + 1)), with a gap after each m."""
    widths = [(0, 0)] * (values.ndim - 1) + [(0, 1)]
    return np.pad(values, widths, constant_values=np.nan).reshape(*values.shape[:-2], -1)
