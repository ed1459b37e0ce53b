"""kronlearn: learns separable (Kronecker) dictionaries, and codes with them, fast.

Names are loaded when first used, so that ``import kronlearn`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronlearn import comparators, convolutional, cuda, hyperspectral, images, plots
    from kronlearn.coding import sparse_code
    from kronlearn.core.dictionary import KroneckerDictionary
    from kronlearn.core.instruction_sets import (
        instruction_set,
        instruction_sets,
        use_instruction_set,
    )
    from kronlearn.core.kronecker_sum import KroneckerSumDictionary
    from kronlearn.estimators import KroneckerDictionaryLearning
    from kronlearn.io.model_files import load_dictionary

__version__ = "0.2.0"

_HOMES = {
    "KroneckerDictionary": "core.dictionary",
    "KroneckerDictionaryLearning": "estimators",
    "KroneckerSumDictionary": "core.kronecker_sum",
    "instruction_set": "core.instruction_sets",
    "instruction_sets": "core.instruction_sets",
    "load_dictionary": "io.model_files",
    "sparse_code": "coding",
    "use_instruction_set": "core.instruction_sets",
}

__all__ = [
    "KroneckerDictionary",
    "KroneckerDictionaryLearning",
    "KroneckerSumDictionary",
    "comparators",
    "convolutional",
    "cuda",
    "hyperspectral",
    "images",
    "instruction_set",
    "instruction_sets",
    "load_dictionary",
    "plots",
    "sparse_code",
    "use_instruction_set",
]


def __getattr__(name: str) -> Any:
    if name in ("comparators", "convolutional", "cuda", "hyperspectral", "images", "plots"):
        return import_module(f"kronlearn.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'kronlearn' has no attribute {name!r}")
    module = import_module(f"kronlearn.{_HOMES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
