"""Pictures of a dictionary's atoms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.plots.axes import given_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DictionaryDisplay", "draw_mosaic", "scaled_to_one", "tiled"]

# Apart from every grey, so that white and black tiles keep their edges.
_GAP_COLOR = "#5b8db8"


class DictionaryDisplay:
    """A picture of a dictionary's atoms.

    With two modes: a mosaic of the atoms, each scaled to its own largest magnitude. The tile in
    row i and column j is ``D_1[:, i] D_2[:, j]ᵀ``, with column i of ``D_1`` left of its row and
    column j of ``D_2`` above its column; for a sum of Kronecker products it is the sum of its
    terms, without the factors. With any other number of modes: the factors side by side, a row for
    each term of a sum, with the largest magnitude of a column in all terms as 1.

    Parameters
    ----------
    dictionary : KroneckerDictionary or KroneckerSumDictionary
        The dictionary to draw.

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
    >>> from kronlearn.plots import DictionaryDisplay
    >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(4)])
    >>> display = DictionaryDisplay(d).plot()
    >>> display.mosaic().shape
    (77, 25)
    """

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Axes | None = None, cmap: str = "gray"
    ) -> DictionaryDisplay:
        """Draw the ``dictionary_`` of a fitted estimator.

        Parameters
        ----------
        estimator : KroneckerDictionaryLearning or comparator
            A fitted estimator.
        ax : matplotlib axes, optional
            Where to draw; by default in a new figure.
        cmap : str, default "gray"
            A colormap; its middle stands for zero.

        Returns
        -------
        DictionaryDisplay
            The display, already drawn.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> Y = np.random.default_rng(0).standard_normal((100, 4, 4))
        >>> model = kl.KroneckerDictionaryLearning((5, 5), max_iter=2, random_state=0).fit(Y)
        >>> kl.plots.DictionaryDisplay.from_estimator(model).ax_.get_title()
        '4 × 4 patches, 5 × 5 atoms'
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator, "dictionary_")
        return cls(estimator.dictionary_).plot(ax=ax, cmap=cmap)

    def plot(self, *, ax: Axes | None = None, cmap: str = "gray") -> DictionaryDisplay:
        """Draw the mosaic or the factors.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; by default in a new figure.
        cmap : str, default "gray"
            A colormap; its middle stands for zero.

        Returns
        -------
        DictionaryDisplay
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
        d = self.dictionary
        patch, atoms = (" × ".join(map(str, sizes)) for sizes in (d.patch_shape, d.n_atoms))
        terms = f", {d.n_terms} terms" if d.n_terms > 1 else ""
        self.ax_ = draw_mosaic(self.mosaic(), f"{patch} patches, {atoms} atoms{terms}", ax, cmap)
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
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(4), np.eye(3), np.eye(2)])
        >>> kl.plots.DictionaryDisplay(d).mosaic().shape
        (6, 13)
        """
        d = self.dictionary
        factors = [scaled_to_one(factor, axis=0) for factor in d.coding_factors]
        if len(d.n_atoms) == 1:
            return _side_by_side([factors[0][None]])
        if len(d.n_atoms) > 2:
            return _side_by_side([scaled_to_one(stack, axis=(0, 1)) for stack in d.stacks])
        if d.n_terms > 1:
            atoms = factors[0].reshape(*d.patch_shape, *d.n_atoms)
            return np.pad(tiled(atoms), ((1, 0), (1, 0)), constant_values=np.nan)
        left, top = factors
        # A factor's bar is a quarter of a tile wide, and a wider gap away from the tiles.
        bars = [slice(1, 1 + max(2, m // 4)) for m in d.patch_shape]
        row, column = (bar.stop + 2 for bar in bars)
        tiles = tiled(np.einsum("ai,bj->abij", left, top))
        canvas = np.pad(tiles, ((row, 0), (column, 0)), constant_values=np.nan)
        canvas[row:, bars[1]] = _with_gaps(left.T)[:, None]
        canvas[bars[0], column:] = _with_gaps(top.T)
        canvas[bars[0], bars[1]] = 0
        return canvas


def draw_mosaic(canvas: NDArray[Any], title: str, ax: Axes | None, cmap: str) -> Axes:
    """Draw a picture with values in [-1, 1], NaN in gaps, and return its axes."""
    from matplotlib import colormaps

    rows, columns = canvas.shape
    # The title needs some room above the picture.
    size = 6.4, float(np.clip(6.4 * rows / columns, 1, 12)) + 0.6
    (ax,) = given_or_new(None if ax is None else [ax], 1, size)
    ax.set_axis_off()
    ax.imshow(canvas, cmap=colormaps[cmap].with_extremes(bad=_GAP_COLOR), vmin=-1, vmax=1)
    ax.set_title(title, fontsize="medium")
    return ax


def _side_by_side(stacks: list[NDArray[Any]]) -> NDArray[Any]:
    """Stacks (R, m_i, n_i) of factors as one picture, a row for each of the R terms."""
    height = max(stack.shape[1] for stack in stacks)
    padded = []
    for stack in stacks:
        below = height + 1 - stack.shape[1]
        terms = np.pad(stack, ((0, 0), (0, below), (0, 1)), constant_values=np.nan)
        padded.append(terms.reshape(-1, terms.shape[2]))
    return np.pad(np.hstack(padded), ((1, 0), (1, 0)), constant_values=np.nan)


def scaled_to_one(values: NDArray[Any], axis: int | tuple[int, ...]) -> NDArray[Any]:
    """The values with largest magnitude 1 along the axes."""
    values = values.astype(np.float64)
    scaled: NDArray[Any] = values / np.abs(values).max(axis=axis)
    return scaled


def tiled(atoms: NDArray[Any]) -> NDArray[Any]:
    """Atoms (m_1, m_2, n_1, n_2) as one picture, with gaps below and right of every tile."""
    columns = _with_gaps(atoms.transpose(2, 0, 3, 1))
    return _with_gaps(columns.transpose(2, 0, 1)).T


def _with_gaps(values: NDArray[Any]) -> NDArray[Any]:
    """The last two axes (n, m) as one (n·(m + 1)), with a gap after each m."""
    widths = [(0, 0)] * (values.ndim - 1) + [(0, 1)]
    return np.pad(values, widths, constant_values=np.nan).reshape(*values.shape[:-2], -1)
