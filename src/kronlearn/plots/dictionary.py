"""Pictures of a dictionary's atoms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DictionaryDisplay"]

# A mosaic of more pixels per side shows nothing more on a screen or in print.
_MAX_SIDE = 4096

# Apart from every gray, so that white and black tiles keep their edges.
_GAP_COLOR = "#5b8db8"


class DictionaryDisplay:
    """A picture of a dictionary's atoms.

    With two modes: a mosaic of the atoms, each scaled to its own largest magnitude. The tile in
    row i and column j is ``D_1[:, i] D_2[:, j]ᵀ``, with column i of ``D_1`` left of its row and
    column j of ``D_2`` above its column; for a sum of Kronecker products it is the sum of its
    terms, without the factors. With any other number of modes: the factors side by side, a row for
    each term of a sum.

    Parameters
    ----------
    dictionary : KroneckerDictionary or KroneckerSumDictionary
        The dictionary to draw.

    Attributes
    ----------
    ax_ : matplotlib axes
    figure_ : matplotlib figure
    panels_ : list of matplotlib axes
        One for the mosaic, or one per factor, term after term.

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
        >>> display = kl.plots.DictionaryDisplay.from_estimator(model)
        >>> len(display.panels_)
        1
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator, "dictionary_")
        return cls.from_dictionary(estimator.dictionary_, ax=ax, cmap=cmap)

    @classmethod
    def from_dictionary(
        cls, dictionary: Dictionary, *, ax: Axes | None = None, cmap: str = "gray"
    ) -> DictionaryDisplay:
        """Draw a dictionary.

        Parameters
        ----------
        dictionary : KroneckerDictionary or KroneckerSumDictionary
            The dictionary to draw.
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
        Three modes: one panel per factor.

        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(4), np.eye(2)])
        >>> len(kl.plots.DictionaryDisplay.from_dictionary(d).panels_)
        3
        """
        return cls(dictionary).plot(ax=ax, cmap=cmap)

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
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=self.figure_size, layout="constrained")
        ax.set_axis_off()
        if self.is_mosaic:
            self.panels_ = [self._draw_mosaic(ax, cmap)]
        else:
            self.panels_ = self._draw_factors(ax, cmap)
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    @property
    def is_mosaic(self) -> bool:
        """Whether the picture is a mosaic, as it is for two modes."""
        return len(self.dictionary.n_atoms) == 2

    @property
    def figure_size(self) -> tuple[float, float]:
        """Inches (width, height) that suit the picture."""
        return (6.4, 6.7) if self.is_mosaic else (8.0, 1.4 + 2.2 * len(self._shown_terms()))

    def mosaic(self) -> NDArray[Any]:
        """Return the picture of a two-mode dictionary as an array.

        For a separable dictionary the first row and column of tiles hold the factors. Atoms beyond
        about 4096 pixels per side are left out.

        Returns
        -------
        array of shape (rows, columns)
            Values in [-1, 1], NaN in the gaps between the tiles.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(4)])
        >>> picture = kl.plots.DictionaryDisplay(d).mosaic()
        >>> float(np.nanmin(picture)), float(np.nanmax(picture))
        (0.0, 1.0)
        """
        zoom = self._zoom
        rows, columns = (
            _tiles(zoom * m, n, with_bar=self._is_separable)
            for m, n in zip(self.dictionary.patch_shape, self._n_shown, strict=True)
        )
        canvas = np.full((rows[-1].stop + 1, columns[-1].stop + 1), np.nan)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                canvas[row, column] = _enlarged(_scaled(self._atom(i, j)), zoom)
        if self._is_separable:
            scaled = [_scaled(factor, axis=0) for factor in self.dictionary.coding_factors]
            left, top = (factor.repeat(zoom, axis=0) for factor in scaled)
            row_bar, column_bar = (slice(1, 1 + _bar(len(bars))) for bars in (left, top))
            canvas[row_bar, column_bar] = 0
            for i, row in enumerate(rows):
                canvas[row, column_bar] = left[:, i, None]
            for j, column in enumerate(columns):
                canvas[row_bar, column] = top[None, :, j]
        return canvas

    @property
    def _is_separable(self) -> bool:
        return self.dictionary.n_terms == 1

    @property
    def _zoom(self) -> int:
        """Pixels per entry: several, if patches are small."""
        return max(1, 24 // max(self.dictionary.patch_shape))

    @property
    def _n_shown(self) -> tuple[int, ...]:
        """Atoms of each mode that are shown."""
        d, zoom = self.dictionary, self._zoom
        sizes = zip(d.patch_shape, d.n_atoms, strict=True)
        return tuple(min(n, max(1, _MAX_SIDE // (zoom * m + 1))) for m, n in sizes)

    def _atom(self, i: int, j: int) -> NDArray[Any]:
        """Atom (i, j) of a two-mode dictionary, (m_1, m_2)."""
        if self._is_separable:
            left, top = self.dictionary.coding_factors
            return np.outer(left[:, i], top[:, j])
        (D,) = self.dictionary.coding_factors
        return D[:, i * self.dictionary.n_atoms[1] + j].reshape(self.dictionary.patch_shape)

    def _draw_mosaic(self, ax: Axes, cmap: str) -> Axes:
        from matplotlib import colormaps

        canvas = self.mosaic()
        height, width = canvas.shape
        colors = colormaps[cmap].with_extremes(bad=_GAP_COLOR)
        ax.imshow(canvas, cmap=colors, vmin=-1, vmax=1)
        title = _sizes(self.dictionary)
        if self._n_shown != self.dictionary.n_atoms:
            title += "; the first {} × {}".format(*self._n_shown)
        ax.set_title(title, fontsize="medium", pad=24 if self._is_separable else 8)
        if not self._is_separable:
            return ax
        style: dict[str, Any] = {"xycoords": "data", "textcoords": "offset points"}
        ax.annotate(
            "$D_1$", (0, height / 2), xytext=(-5, 0), ha="right", va="center", rotation=90, **style
        )
        ax.annotate("$D_2$", (width / 2, 0), xytext=(0, 5), ha="center", va="bottom", **style)
        return ax

    def _shown_terms(self) -> list[list[NDArray[Any]]]:
        """Rows of matrices: the factors of each term; one matrix where there is one mode.

        A column has largest magnitude 1 in all terms together.
        """
        d = self.dictionary
        if self._is_separable or len(d.n_atoms) == 1:
            return [[_scaled(factor, axis=0) for factor in d.coding_factors]]
        stacks = [_scaled(stack, axis=(0, 1)) for stack in d.stacks]
        return [[stack[r] for stack in stacks] for r in range(d.n_terms)]

    def _draw_factors(self, ax: Axes, cmap: str) -> list[Axes]:
        terms = self._shown_terms()
        ax.set_title(_sizes(self.dictionary), fontsize="medium", pad=24)
        # Widths follow the numbers of atoms, but no panel becomes a sliver.
        shares = np.sqrt([factor.shape[1] for factor in terms[0]])
        widths = shares / shares.sum() * (1 - 0.1 * (len(shares) - 1))
        lefts = np.concatenate([[0], np.cumsum(widths + 0.1)[:-1]])
        # Titles between the rows have as much room as the axis labels below the last.
        gap = 0.6 / self.figure_size[1]
        height = (1 - gap * (len(terms) - 1)) / len(terms)
        panels = []
        for r, term in enumerate(terms):
            bottom = (len(terms) - 1 - r) * (height + gap)
            for mode, (factor, left, width) in enumerate(zip(term, lefts, widths, strict=True)):
                panel = ax.inset_axes((left, bottom, width, height))
                panel.imshow(factor, cmap=cmap, vmin=-1, vmax=1, aspect="auto")
                number = f"^{{({r + 1})}}" if len(terms) > 1 else ""
                panel.set_title(f"$D_{{{mode + 1}}}{number}$", fontsize="small")
                if r == len(terms) - 1:
                    panel.set_xlabel("atom")
                if mode == 0:
                    panel.set_ylabel("entry")
                panel.locator_params(integer=True, nbins=4)
                panels.append(panel)
        return panels


def _scaled(values: NDArray[Any], axis: int | tuple[int, ...] | None = None) -> NDArray[Any]:
    """The values with largest magnitude 1 along the axes."""
    values = values.astype(np.float64)
    scaled: NDArray[Any] = values / np.abs(values).max(axis=axis)
    return scaled


def _enlarged(tile: NDArray[Any], zoom: int) -> NDArray[Any]:
    """Every entry as zoom × zoom pixels."""
    return tile.repeat(zoom, axis=0).repeat(zoom, axis=1)


def _bar(size: int) -> int:
    """How wide a factor's bar is beside tiles of a size."""
    return max(2, size // 4)


def _tiles(size: int, n_atoms: int, *, with_bar: bool) -> list[slice]:
    """Pixels along one side of a tile per atom: behind the factor's bar, a wider gap apart."""
    first = 1 + _bar(size) + 3 if with_bar else 1
    return [slice(first + k * (size + 1), first + k * (size + 1) + size) for k in range(n_atoms)]


def _sizes(dictionary: Dictionary) -> str:
    patch, atoms = (" × ".join(map(str, s)) for s in (dictionary.patch_shape, dictionary.n_atoms))
    terms = f", {dictionary.n_terms} terms" if dictionary.n_terms > 1 else ""
    return f"{patch} patches, {atoms} atoms{terms}"
