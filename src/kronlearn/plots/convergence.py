"""Pictures of how learning went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.plots.figures import figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ConvergenceDisplay"]

_LABELS = {"rmse": "RMSE", "mean_nonzeros": "nonzeros per sample"}


class ConvergenceDisplay:
    """RMSE, or nonzeros per sample, against iterations and against seconds.

    Parameters
    ----------
    history : mapping with "rmse" and "seconds"
        One number for the start and one per iteration each, as in
        ``KroneckerDictionaryLearning.history_``. With "iteration" too, the iterations that the
        numbers belong to; otherwise 0, 1, 2 and so on.
    name : str, optional
        For the legend.
    quantity : {"rmse", "mean_nonzeros"}
        What to draw. With an error target the RMSE stays near it, and the nonzeros decrease.

    Attributes
    ----------
    axes_ : list of two matplotlib axes
        Against iterations and against seconds.
    figure_ : matplotlib figure

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from kronlearn.plots import ConvergenceDisplay
    >>> history = {"rmse": [3.0, 2.0, 1.8], "seconds": [0.1, 0.2, 0.3]}
    >>> display = ConvergenceDisplay.from_history(history, name="general")
    >>> more = ConvergenceDisplay.from_history(history, name="again", axes=display.axes_)
    """

    def __init__(
        self,
        history: Mapping[str, Sequence[float]],
        name: str | None = None,
        quantity: str = "rmse",
    ) -> None:
        if quantity not in _LABELS:
            raise ValueError(
                f"quantity={quantity!r} cannot be drawn; pass one of {', '.join(_LABELS)}."
            )
        missing = [key for key in (quantity, "seconds") if key not in history]
        if missing:
            raise ValueError(
                f"history has no {missing[0]!r}; pass the history_ of a fitted estimator."
            )
        n_values, n_seconds = len(history[quantity]), len(history["seconds"])
        if not n_values:
            raise ValueError("history has no iterations; there is nothing to draw.")
        if n_values != n_seconds:
            raise ValueError(
                f"history has {n_values} values of {quantity!r} and {n_seconds} of 'seconds'; they "
                "must be as many."
            )
        self.history = history
        self.name = name
        self.quantity = quantity

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        name: str | None = None,
        quantity: str = "rmse",
        axes: Sequence[Axes] | None = None,
    ) -> ConvergenceDisplay:
        """The display of a fitted estimator's ``history_``, drawn.

        Parameters
        ----------
        estimator : fitted KroneckerDictionaryLearning
        name : str, optional
            For the legend.
        quantity : {"rmse", "mean_nonzeros"}
            What to draw.
        axes : two matplotlib axes, optional
            Where to draw, say another display's ``axes_``; by default in a new figure.
        """
        history = getattr(estimator, "history_", None)
        if history is None:
            raise ValueError(
                f"This {type(estimator).__name__} has no history_; call fit before drawing it."
            )
        return cls.from_history(history, name=name, quantity=quantity, axes=axes)

    @classmethod
    def from_history(
        cls,
        history: Mapping[str, Sequence[float]],
        *,
        name: str | None = None,
        quantity: str = "rmse",
        axes: Sequence[Axes] | None = None,
    ) -> ConvergenceDisplay:
        """The display of a history, drawn; the parameters are as in :meth:`from_estimator`."""
        return cls(history, name, quantity).plot(axes=axes)

    def plot(self, *, axes: Sequence[Axes] | None = None) -> ConvergenceDisplay:
        """Draw; the parameters are those of :meth:`from_estimator`."""
        if axes is None:
            from matplotlib import pyplot

            _, drawn = pyplot.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
            axes = list(drawn)
        if len(axes) != 2:
            raise ValueError(f"axes has {len(axes)} entries; pass two, for iterations and seconds.")
        values = np.asarray(self.history[self.quantity], dtype=np.float64)
        iterations = self.history.get("iteration", np.arange(len(values)))
        seconds = np.asarray(self.history["seconds"], dtype=np.float64)
        self._draw(axes[0], iterations, values, "iterations")
        self._draw(axes[1], seconds, values, "seconds")
        axes[0].set_ylabel(_LABELS[self.quantity])
        axes[0].locator_params(axis="x", integer=True)
        if self.name is not None:
            axes[1].legend(frameon=False)
        self.axes_ = list(axes)
        self.figure_ = figure_of(axes[0])
        return self

    def _draw(self, ax: Axes, x: ArrayLike, values: NDArray[Any], label: str) -> None:
        # A line through one point would not be seen.
        ax.plot(x, values, lw=1.8, marker="o" if len(values) == 1 else None, ms=4, label=self.name)
        ax.set_xlabel(label)
        ax.grid(alpha=0.25, lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
