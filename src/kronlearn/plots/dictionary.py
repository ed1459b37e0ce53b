"""Pictures of a dictionary's atoms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.plots.mosaic import MosaicDisplay, scaled_to_one, tiled, with_gaps

__all__ = ["DictionaryDisplay"]


class DictionaryDisplay(MosaicDisplay):
    """A picture of a dictionary's atoms.

    With two modes: a mosaic of the atoms, each scaled to its own largest magnitude. The tile in
    row i and column j is ``D_1[:, i] D_2[:, j]ᵀ``, with column i of ``D_1`` left of its row and
    column j of ``D_2`` above its column; for a sum of Kronecker products it is the sum of its
    terms, without the factors. With any other number of modes: the factors side by side, a row for
    each term of a sum, each column scaled to a largest magnitude of 1 over all terms.

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

    dictionary: Dictionary

    def __init__(self, dictionary: Dictionary) -> None:
        if not isinstance(dictionary, Dictionary):
            raise TypeError(
                f"DictionaryDisplay cannot draw a {type(dictionary).__name__}; pass a "
                "KroneckerDictionary or KroneckerSumDictionary, or draw a ConvolutionalDictionary "
                "with FiltersDisplay."
            )
        super().__init__(dictionary)

    def _title(self) -> str:
        d = self.dictionary
        patch, atoms = (" × ".join(map(str, sizes)) for sizes in (d.patch_shape, d.n_atoms))
        terms = f", {d.n_terms} terms" if d.n_terms > 1 else ""
        return f"{patch} patches, {atoms} atoms{terms}"

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
        # The bar of a factor is a quarter of a tile wide, with a gap of two pixels to the tiles.
        bars = [slice(1, 1 + max(2, m // 4)) for m in d.patch_shape]
        row, column = (bar.stop + 2 for bar in bars)
        tiles = tiled(np.einsum("ai,bj->abij", left, top))
        canvas = np.pad(tiles, ((row, 0), (column, 0)), constant_values=np.nan)
        canvas[row:, bars[1]] = with_gaps(left.T)[:, None]
        canvas[bars[0], column:] = with_gaps(top.T)
        canvas[bars[0], bars[1]] = 0
        return canvas


def _side_by_side(stacks: list[NDArray[Any]]) -> NDArray[Any]:
    """Stacks (R, m_i, n_i) of factors as one picture, with a row for each of the R terms."""
    height = max(stack.shape[1] for stack in stacks)
    padded = []
    for stack in stacks:
        below = height + 1 - stack.shape[1]
        terms = np.pad(stack, ((0, 0), (0, below), (0, 1)), constant_values=np.nan)
        padded.append(terms.reshape(-1, terms.shape[2]))
    return np.pad(np.hstack(padded), ((1, 0), (1, 0)), constant_values=np.nan)
