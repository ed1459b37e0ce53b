"""Pictures of dictionaries, of learning and of images, drawn with matplotlib when asked for.

The classes follow scikit-learn's displays: ``from_…`` computes and draws, ``plot`` draws again,
fitted names (``ax_``, ``figure_`` …) give access to what was drawn.
"""

from kronlearn.plots.comparison import ComparisonDisplay
from kronlearn.plots.convergence import ConvergenceDisplay
from kronlearn.plots.dictionary import DictionaryDisplay
from kronlearn.plots.filters import FiltersDisplay

__all__ = ["ComparisonDisplay", "ConvergenceDisplay", "DictionaryDisplay", "FiltersDisplay"]
