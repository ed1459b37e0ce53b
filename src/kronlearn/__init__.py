"""kronlearn: fast learning of separable (Kronecker) dictionaries, and sparse coding with them.

Names are imported on first use, so that ``import kronlearn`` is quick.
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

# The module that defines each name, relative to the package.
_MODULES = {
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
    if name not in __all__:
        raise AttributeError(f"module 'kronlearn' has no attribute {name!r}")
    if name not in _MODULES:
        return import_module(f"kronlearn.{name}")
    module = import_module(f"kronlearn.{_MODULES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
