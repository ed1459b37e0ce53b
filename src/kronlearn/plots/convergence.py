"""Curves of the error over the iterations of learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kronlearn.plots.axes import prepare_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ConvergenceDisplay", "convergence_figure"]

_LABELS = {"rmse": "RMSE", "mean_nonzeros": "nonzeros per sample"}


class ConvergenceDisplay:
    """RMSE, or nonzeros per sample, against iterations and against seconds.

    Parameters
    ----------
    history : mapping with "rmse" and "seconds"
        One value for the initial dictionary and one per iteration, as in
        ``KroneckerDictionaryLearning.history_``. An optional entry "iteration" gives the
        iterations that the values belong to; otherwise they are numbered from 0.
    name : str, optional
        Label in the legend.
    quantity : {"rmse", "mean_nonzeros"}, default "rmse"
        What to draw. With an error target, the RMSE stays near it and the nonzeros decrease.

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
    >>> display = ConvergenceDisplay(history, name="general").plot()
    >>> more = ConvergenceDisplay(history, name="again").plot(axes=display.axes_)
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
        n_values, n_seconds = (len(history.get(key, ())) for key in (quantity, "seconds"))
        if not n_values == n_seconds > 0:
            raise ValueError(
                f"history has {n_values} values of {quantity!r} and {n_seconds} of 'seconds', and "
                "needs as many of both. Pass the history_ of a fitted estimator."
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
        """Draw the ``history_`` of a fitted estimator.

        Parameters
        ----------
        estimator : KroneckerDictionaryLearning or comparator
            A fitted estimator.
        name : str, optional
            Label in the legend.
        quantity : {"rmse", "mean_nonzeros"}, default "rmse"
            What to draw.
        axes : two matplotlib axes, optional
            Where to draw, for example another display's ``axes_``; by default in a new figure.

        Returns
        -------
        ConvergenceDisplay
            The display, already drawn.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> Y = np.random.default_rng(0).standard_normal((100, 4, 4))
        >>> model = kl.KroneckerDictionaryLearning((5, 5), max_iter=2, random_state=0).fit(Y)
        >>> display = kl.plots.ConvergenceDisplay.from_estimator(model)
        >>> display.axes_[0].get_ylabel()
        'RMSE'
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator, "history_")
        return cls(estimator.history_, name, quantity).plot(axes=axes)

    def plot(self, *, axes: Sequence[Axes] | None = None) -> ConvergenceDisplay:
        """Draw the curves.

        Parameters
        ----------
        axes : two matplotlib axes, optional
            Where to draw; by default in a new figure.

        Returns
        -------
        ConvergenceDisplay
            The display itself.

        Examples
        --------
        >>> from kronlearn.plots import ConvergenceDisplay
        >>> display = ConvergenceDisplay({"rmse": [3.0, 2.0], "seconds": [0.1, 0.2]}).plot()
        >>> len(display.axes_)
        2
        """
        axes = prepare_axes(axes, 2, (8, 3.4), sharey=True)
        values = self.history[self.quantity]
        iterations = self.history.get("iteration", range(len(values)))
        # A line through a single point is invisible.
        style: dict[str, Any] = {"lw": 1.8, "ms": 4, "marker": "o" if len(values) == 1 else None}
        panels = (("iterations", iterations), ("seconds", self.history["seconds"]))
        for ax, (label, x) in zip(axes, panels, strict=True):
            ax.plot(x, values, label=self.name, **style)
            ax.set_xlabel(label)
            ax.grid(alpha=0.25, lw=0.6)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel(_LABELS[self.quantity])
        axes[0].locator_params(axis="x", integer=True)
        if self.name is not None:
            axes[1].legend(frameon=False)
        self.axes_ = axes
        self.figure_ = axes[0].figure
        return self


def convergence_figure(histories: Mapping[Any, Any]) -> Any:
    """Draw the RMSE of several runs and, if they vary, their nonzeros per sample."""
    from matplotlib import pyplot

    nonzeros = [number for h in histories.values() for number in h["mean_nonzeros"]]
    varied = max(nonzeros) > 1.01 * min(nonzeros)
    quantities = ["rmse", "mean_nonzeros"] if varied else ["rmse"]
    figure = pyplot.figure(figsize=(8, 3.4 * len(quantities)), layout="constrained")
    rows = figure.subplots(len(quantities), 2, sharey="row", squeeze=False)
    for quantity, axes in zip(quantities, rows, strict=True):
        for name, history in histories.items():
            ConvergenceDisplay(history, name, quantity).plot(axes=axes)
    return figure
