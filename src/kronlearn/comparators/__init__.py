"""The methods that the paper measures against, as learners on the same loop and coders.

Each has the interface of :class:`kronlearn.KroneckerDictionaryLearning`: ``fit``, ``transform``,
``inverse_transform``, ``score``; ``dictionary_``, ``history_``, ``n_iter_``, ``stop_reason_``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronlearn.comparators.aksvd import AKSVD
    from kronlearn.comparators.ksvd import KSVD
    from kronlearn.comparators.mod import MOD
    from kronlearn.comparators.osubdil import OSubDil
    from kronlearn.comparators.pair_aksvd import PairAKSVD
    from kronlearn.comparators.sedil import SeDiL
    from kronlearn.comparators.stark import STARK
    from kronlearn.comparators.sukro import SuKro
    from kronlearn.comparators.tefdil import TeFDiL
    from kronlearn.comparators.tksvd import TKSVD

_HOMES = {
    "AKSVD": "aksvd",
    "KSVD": "ksvd",
    "MOD": "mod",
    "OSubDil": "osubdil",
    "PairAKSVD": "pair_aksvd",
    "STARK": "stark",
    "SeDiL": "sedil",
    "SuKro": "sukro",
    "TKSVD": "tksvd",
    "TeFDiL": "tefdil",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kronlearn.comparators' has no attribute {name!r}")
    value = getattr(import_module(f"kronlearn.comparators.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
