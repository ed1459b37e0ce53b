"""The methods that the paper compares with, as estimators that use the same coders.

Each has the interface of :class:`kronlearn.KroneckerDictionaryLearning`: ``fit``, ``transform``,
``inverse_transform``, ``score``; ``dictionary_``, ``history_``, ``n_iter_``, ``stop_reason_``.
Their common base is :class:`kronlearn.comparators.learners.Comparator`.
"""

from kronlearn.comparators.osubdil import OSubDil
from kronlearn.comparators.pair_aksvd import PairAKSVD
from kronlearn.comparators.sedil import SeDiL
from kronlearn.comparators.stark import STARK
from kronlearn.comparators.sukro import SuKro
from kronlearn.comparators.tefdil import TeFDiL
from kronlearn.comparators.tksvd import TKSVD
from kronlearn.comparators.unstructured import AKSVD, KSVD, MOD

__all__ = [
    "AKSVD",
    "KSVD",
    "MOD",
    "STARK",
    "TKSVD",
    "OSubDil",
    "PairAKSVD",
    "SeDiL",
    "SuKro",
    "TeFDiL",
]
