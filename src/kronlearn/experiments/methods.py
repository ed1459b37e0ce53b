"""The methods of the comparison: their estimators, numbers of atoms, start and line styles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import comparators
from kronlearn.core.init import starting_dictionary
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.experiments.published import TABLE1
from kronlearn.io.arrays import ArraySource

__all__ = ["DEFAULT_METHODS", "METHODS", "QUICK_METHODS", "Method", "methods_named"]

_OURS = KroneckerDictionaryLearning

# The paper's penalty, 2.15, is for grey levels from 0 to 1; the penalty scales with the data.
_SUKRO_PENALTY = 2.15 * 255


@dataclass(frozen=True)
class Method:
    """A learning method, and how figures draw it.

    ``kind`` is "one term" (a Kronecker product), "sum" (a sum of several) or "unstructured" (any
    dictionary). ``atoms`` returns the atoms per mode for patches of m × m and the setting's n; an
    unstructured dictionary has as many atoms as their product.
    """

    name: str
    kind: str
    estimator: type[Any]
    color: str
    marker: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    atoms: Callable[[int, int], tuple[int, int]] = lambda m, n: (n, n)

    @property
    def ours(self) -> bool:
        """Whether the method is a variant of this library's own estimator."""
        return self.estimator is _OURS

    @property
    def line_style(self) -> dict[str, Any]:
        """Line arguments: the default thicker, unstructured methods dashed, ours on top."""
        return {
            "color": self.color,
            "label": self.name,
            "lw": 2.0 if self.name == "default" else 1.4,
            "ls": "--" if self.kind == "unstructured" else "-",
            "zorder": 3 if self.ours else 2,
        }

    def size(self, m: int, n: int) -> str:
        """Describe the number of atoms: ``16x16``, ``2 x 16x16`` or ``128``."""
        first, second = self.atoms(m, n)
        if self.kind == "unstructured":
            return str(first * second)
        terms = self.parameters.get("n_terms", 1)
        return f"{terms} x {first}x{second}" if terms > 1 else f"{first}x{second}"

    def learner(
        self, samples: NDArray[np.float32], n: int, s: int, iterations: int, draw: int
    ) -> Any:
        """Make an estimator for samples (N, m, m).

        In a draw, all methods with the same number of atoms have the same start. It is the first
        term of a sum; an unstructured dictionary starts from its dense matrix.
        """
        sizes = self.atoms(samples.shape[1], n)
        start = starting_dictionary(
            "dct",
            ArraySource(samples, samples.shape[1:]),
            sizes,
            np.random.RandomState(draw),
            orthonormal=self.parameters.get("structure") == "orthonormal",
        )
        return self.estimator(
            start.n_codes if self.kind == "unstructured" else sizes,
            n_nonzero_coefs=s,
            max_iter=iterations,
            init=start,
            random_state=draw,
            n_jobs=1,
            **self.parameters,
        )


_ORTHONORMAL = {"structure": "orthonormal"}


def _at_most_m(m: int, n: int) -> tuple[int, int]:
    return min(n, m), min(n, m)


_TABLE = (
    Method("default", "one term", _OURS, "#c0392b", "o"),
    Method("general", "one term", _OURS, "#1f5fa8", "s", {"method": "omp"}),
    Method("exchange", "one term", _OURS, "#d4508f", "X", {"method": "exchange"}),
    Method("orthonormal", "one term", _OURS, "#5a9e5a", "D", _ORTHONORMAL, _at_most_m),
    Method("sum2", "sum", _OURS, "#e67e22", "^", {"n_terms": 2}),
    Method("sum4", "sum", _OURS, "#f0b429", "v", {"n_terms": 4}),
    Method("PairAK-SVD", "one term", comparators.PairAKSVD, "#8e44ad", "x"),
    Method("SuKro", "sum", comparators.SuKro, "#16a0a0", "P", {"alpha": _SUKRO_PENALTY}),
    Method("TeFDiL", "one term", comparators.TeFDiL, "#b07d2b", "<"),
    Method("AK-SVD", "unstructured", comparators.AKSVD, "#222222", "+", {}, lambda m, n: (n, m)),
    Method("AK-SVD n²", "unstructured", comparators.AKSVD, "#888888", "*"),
    Method("K-SVD", "unstructured", comparators.KSVD, "#5d6d7e", "1"),
    Method("MOD", "unstructured", comparators.MOD, "#34495e", "2"),
    Method("STARK", "sum", comparators.STARK, "#7fb3d5", "p"),
    Method("TKSVD", "one term", comparators.TKSVD, "#d98cb3", "h"),
    Method("SeDiL", "one term", comparators.SeDiL, "#a04000", ">"),
    Method("OSubDil", "one term", comparators.OSubDil, "#7d8c2b", "d"),
)

#: All methods by name, in the order of tables and legends. "general" and "orthonormal" are the two
#: that the paper proposes; the orthonormal one cannot have more than m atoms per mode. "exchange"
#: is the default with the coder of that name.
METHODS: dict[str, Method] = {method.name: method for method in _TABLE}

#: The methods that are run by default: this library's, the paper's, and AK-SVD with as many atoms
#: as the separable dictionaries have.
DEFAULT_METHODS = tuple(
    name for name in METHODS if METHODS[name].ours or name in TABLE1 or name == "AK-SVD n²"
)

#: The methods of a quick run.
QUICK_METHODS = ("default", "general", "orthonormal", "sum2", "PairAK-SVD", "TeFDiL", "AK-SVD")


def methods_named(text: str) -> tuple[str, ...]:
    """Parse names of methods separated by commas, or "all"; return them in the order of METHODS.

    Case does not matter, and ``AK-SVD n2`` means ``AK-SVD n²``.
    """
    known = {name.casefold(): name for name in METHODS}
    wanted = [name.strip().casefold().replace("n2", "n²") for name in text.split(",")]
    for name in wanted:
        if name not in known and name != "all":
            raise ValueError(
                f"There is no method {name!r}; choose from {', '.join(METHODS)}, or all."
            )
    return tuple(METHODS) if "all" in wanted else tuple(known[n] for n in known if n in wanted)
