"""Figures of dictionaries, convergence and restored images.

The classes follow scikit-learn's displays: ``from_…`` computes and draws, ``plot`` draws again, and
fitted names (``ax_``, ``figure_`` …) give access to the result. Only drawing imports matplotlib.
"""

from kronlearn.plots.comparison import ComparisonDisplay
from kronlearn.plots.convergence import ConvergenceDisplay
from kronlearn.plots.dictionary import DictionaryDisplay
from kronlearn.plots.filters import FiltersDisplay

__all__ = ["ComparisonDisplay", "ConvergenceDisplay", "DictionaryDisplay", "FiltersDisplay"]
