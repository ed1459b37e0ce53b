"""Pictures of a dictionary's atoms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.dictionary import KroneckerDictionary
from kronlearn.plots.figures import figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DictionaryDisplay"]

# A mosaic of more pixels per side shows nothing more on a screen or in print.
_MAX_SIDE = 4096

# Apart from every gray, so that white and black tiles keep their edges.
_GAP_COLOR = "#5b8db8"


class DictionaryDisplay:
    """A picture of a dictionary's atoms.

    With two modes: a mosaic whose tile in row i and column j is the atom ``D_1[:, i] D_2[:, j]ᵀ``,
    scaled to its own largest magnitude, with column i of ``D_1`` left of its row and column j of
    ``D_2`` above its column. With any other number of modes: the factors side by side.

    Parameters
    ----------
    dictionary : KroneckerDictionary

    Attributes
    ----------
    ax_ : matplotlib axes
    figure_ : matplotlib figure
    panels_ : list of matplotlib axes
        One for the mosaic, or one per factor.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> from kronlearn.plots import DictionaryDisplay
    >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(4)])
    >>> display = DictionaryDisplay.from_dictionary(d)
    >>> display.mosaic().shape
    (210, 59)
    """

    def __init__(self, dictionary: KroneckerDictionary) -> None:
        self.dictionary = dictionary

    @classmethod
    def from_dictionary(
        cls, dictionary: KroneckerDictionary, *, ax: Axes | None = None, cmap: str = "gray"
    ) -> DictionaryDisplay:
        """The display of a dictionary, drawn.

        Parameters
        ----------
        dictionary : KroneckerDictionary
        ax : matplotlib axes, optional
            Where to draw; by default in a new figure.
        cmap : str, default="gray"
            Zero is its middle.
        """
        return cls(dictionary).plot(ax=ax, cmap=cmap)

    def plot(self, *, ax: Axes | None = None, cmap: str = "gray") -> DictionaryDisplay:
        """Draw; the parameters are those of :meth:`from_dictionary`."""
        if ax is None:
            from matplotlib import pyplot

            size = (6.4, 6.7) if len(self.dictionary.factors) == 2 else (8, 3.6)
            _, ax = pyplot.subplots(figsize=size, layout="constrained")
        ax.set_axis_off()
        if len(self.dictionary.factors) == 2:
            self.panels_ = [self._draw_mosaic(ax, cmap)]
        else:
            self.panels_ = self._draw_factors(ax, cmap)
        self.ax_ = ax
        self.figure_ = figure_of(ax)
        return self

    def mosaic(self) -> NDArray[Any]:
        """The picture of a two-mode dictionary, values in [-1, 1], NaN in the gaps.

        The first row and column of tiles hold the factors, the others the atoms. Atoms beyond
        about 4096 pixels per side are left out.
        """
        left, top = self._shown_columns()
        rows, columns = _tiles(left), _tiles(top)
        canvas = np.full((rows[-1].stop + 1, columns[-1].stop + 1), np.nan)
        canvas[rows[0], columns[0]] = 0
        for i, row in enumerate(rows[1:]):
            canvas[row, columns[0]] = left[:, i, None]
        for j, column in enumerate(columns[1:]):
            canvas[rows[0], column] = top[None, :, j]
            for i, row in enumerate(rows[1:]):
                canvas[row, column] = np.outer(left[:, i], top[:, j])
        return canvas

    def _shown_columns(self) -> list[NDArray[Any]]:
        """The columns that are shown of both factors, with several pixels per entry if short."""
        zoom = max(1, 24 // max(self.dictionary.patch_shape))
        enlarged = [np.repeat(_scaled(f), zoom, axis=0) for f in self.dictionary.factors]
        return [columns[:, : max(1, _MAX_SIDE // (len(columns) + 1))] for columns in enlarged]

    def _draw_mosaic(self, ax: Axes, cmap: str) -> Axes:
        from matplotlib import colormaps

        canvas = self.mosaic()
        height, width = canvas.shape
        colors = colormaps[cmap].with_extremes(bad=_GAP_COLOR)
        ax.imshow(canvas, cmap=colors, vmin=-1, vmax=1)
        style: dict[str, Any] = {"xycoords": "data", "textcoords": "offset points"}
        ax.annotate(
            "$D_1$", (0, height / 2), xytext=(-5, 0), ha="right", va="center", rotation=90, **style
        )
        ax.annotate("$D_2$", (width / 2, 0), xytext=(0, 5), ha="center", va="bottom", **style)
        n_shown = tuple(columns.shape[1] for columns in self._shown_columns())
        title = _sizes(self.dictionary)
        if n_shown != self.dictionary.n_atoms:
            title += f"; the first {n_shown[0]} × {n_shown[1]}"
        ax.set_title(title, fontsize="medium", pad=24)
        return ax

    def _draw_factors(self, ax: Axes, cmap: str) -> list[Axes]:
        factors = self.dictionary.factors
        ax.set_title(_sizes(self.dictionary), fontsize="medium", pad=24)
        # Widths follow the numbers of atoms, but no panel becomes a sliver.
        shares = np.sqrt([factor.shape[1] for factor in factors])
        widths = shares / shares.sum() * (1 - 0.1 * (len(factors) - 1))
        starts = np.concatenate([[0], np.cumsum(widths + 0.1)[:-1]])
        panels = []
        for mode, (factor, start, width) in enumerate(zip(factors, starts, widths, strict=True)):
            panel = ax.inset_axes((start, 0, width, 1))
            panel.imshow(_scaled(factor), cmap=cmap, vmin=-1, vmax=1, aspect="auto")
            panel.set_title(f"$D_{{{mode + 1}}}$", fontsize="small")
            panel.set_xlabel("atom")
            if mode == 0:
                panel.set_ylabel("entry")
            panel.locator_params(integer=True, nbins=4)
            panels.append(panel)
        return panels


def _scaled(factor: NDArray[Any]) -> NDArray[Any]:
    """The columns of a factor, each with largest magnitude 1."""
    columns = factor.astype(np.float64)
    scaled: NDArray[Any] = columns / np.abs(columns).max(axis=0)
    return scaled


def _tiles(columns: NDArray[Any]) -> list[slice]:
    """Pixels along one side: first the factor's bar, then, a wider gap apart, a tile per atom."""
    size, n_atoms = columns.shape
    bar = max(2, size // 4)
    starts = 1 + bar + 3 + (size + 1) * np.arange(n_atoms)
    return [slice(1, 1 + bar), *(slice(int(start), int(start) + size) for start in starts)]


def _sizes(dictionary: KroneckerDictionary) -> str:
    patch, atoms = (" × ".join(map(str, s)) for s in (dictionary.patch_shape, dictionary.n_atoms))
    return f"{patch} patches, {atoms} atoms"
