"""Pictures of an image before and after processing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.plots.axes import prepare_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ComparisonDisplay", "difference_limit", "scaled", "shown_range"]

# The grey scale covers this percentage of the differences, lest a few large ones hide the others.
_COVERED = 99.5


class ComparisonDisplay:
    """An image before and after, and the difference, side by side.

    Pixels that did not change are mid-grey in the difference.

    Parameters
    ----------
    before, after : arrays of shape (rows, columns) or (rows, columns, 3)
        Shown on one scale: 0 to 255 for uint8, the range of ``after`` for other types.
    reference : array of the same shape, optional
        The true image, shown in a fourth panel.
    names : two str, default ("before", "after")
        Titles of the first two panels.
    against : {"before", "reference"}, default "before"
        The image to subtract from ``after``: "before" shows the change, "reference" the error.

    Attributes
    ----------
    axes_ : list of matplotlib axes
        Before, after, difference and, if there is one, reference.
    figure_ : matplotlib figure
    limit_ : float
        The difference shown as white; its negative is shown as black.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> from kronlearn.plots import ComparisonDisplay
    >>> before = np.zeros((32, 32), np.uint8)
    >>> after = before.copy()
    >>> after[8:24, 8:24] = 100
    >>> display = ComparisonDisplay(before, after, names=("nothing", "a square")).plot()
    >>> [ax.get_title() for ax in display.axes_]
    ['nothing', 'a square', 'difference, −100 to 100']
    """

    def __init__(
        self,
        before: ArrayLike,
        after: ArrayLike,
        reference: ArrayLike | None = None,
        names: Sequence[str] = ("before", "after"),
        against: str = "before",
    ) -> None:
        self.before, self.after = np.asarray(before), np.asarray(after)
        self.reference = None if reference is None else np.asarray(reference)
        self.names, self.against = names, against
        shape = self.after.shape
        if not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)):
            raise ValueError(
                f"after has shape {shape}; pass images (rows, columns) or (rows, columns, 3)."
            )
        for name, image in (("before", self.before), ("reference", self.reference)):
            if image is not None and image.shape != shape:
                raise ValueError(
                    f"{name} has shape {image.shape} and after {shape}; they must be the same."
                )
        if against != "before" and (against != "reference" or reference is None):
            raise ValueError(
                f"against={against!r} is not an image to subtract; pass 'before', or 'reference' "
                "with a reference."
            )

    def plot(self, *, axes: Sequence[Axes] | None = None) -> ComparisonDisplay:
        """Draw the panels.

        Parameters
        ----------
        axes : matplotlib axes, optional
            Three, or four with a reference; by default in a new figure.

        Returns
        -------
        ComparisonDisplay
            The display itself.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.plots import ComparisonDisplay
        >>> display = ComparisonDisplay(np.zeros((8, 8)), np.ones((8, 8))).plot()
        >>> display.limit_
        1.0
        """
        n_panels = 3 if self.reference is None else 4
        rows, columns = self.after.shape[:2]
        # Titles need some room above the images.
        size = 4 * n_panels, float(np.clip(4 * rows / columns, 1, 12)) + 0.4
        axes = prepare_axes(axes, n_panels, size)
        low, high = shown_range(self.after)
        name, subtracted = "difference", self.before
        if self.against == "reference":
            name, subtracted = "error", np.asarray(self.reference)
        change = self.after.astype(np.float64) - subtracted.astype(np.float64)
        self.limit_ = limit = difference_limit(change)
        panels = [
            (self.names[0], self.before, low, high),
            (self.names[1], self.after, low, high),
            (f"{name}, −{limit:.3g} to {limit:.3g}", change, -limit, limit),
        ]
        if self.reference is not None:
            panels.append(("reference", self.reference, low, high))
        for ax, (title, image, black, white) in zip(axes, panels, strict=True):
            ax.imshow(scaled(image, black, white), cmap="gray", vmin=0, vmax=1)
            ax.set_title(title, fontsize="medium")
            ax.set_axis_off()
        self.axes_ = axes
        self.figure_ = axes[0].figure
        return self


def shown_range(image: NDArray[Any]) -> tuple[float, float]:
    """The values to show as black and as white."""
    if image.dtype == np.uint8:
        return 0, 255
    finite = image[np.isfinite(image)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low, low + 1)


def scaled(image: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """The image with low … high mapped to 0 … 1 and clipped; NaN becomes 0."""
    values = np.nan_to_num((image.astype(np.float64) - low) / (high - low), nan=0.0)
    return np.clip(values, 0, 1)


def difference_limit(difference: NDArray[Any]) -> float:
    """A magnitude that nearly all differences stay below; 1 if all are zero."""
    magnitudes = np.abs(difference[np.isfinite(difference)])
    for percentage in (_COVERED, 100):
        largest = float(np.percentile(magnitudes, percentage)) if magnitudes.size else 0.0
        if largest > 0:
            return largest
    return 1.0
