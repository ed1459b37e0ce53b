"""The coder: which method, how many nonzeros, which error target; and the checks of these."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn import _native
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.core.numbers import real_array
from kronlearn.core.source import BLOCK_NUMBERS, Source

__all__ = [
    "METHODS",
    "Coder",
    "check_method",
    "check_targets",
    "check_weights",
    "code_few",
    "native_dictionary",
]

METHODS = ("omp", "ols", "exchange", "threshold")


@dataclass(frozen=True)
class Coder:
    """How to code samples."""

    #: One of :data:`METHODS`.
    method: str
    #: The most nonzeros a code may have.
    width: int
    #: The ℓ2 norm a residual may have, for all samples or one each, ``(N,)``.
    tol: float | NDArray[Any] | None = None
    #: Weights of the entries of the samples, ``(N, m_1, …, m_d)``.
    weights: NDArray[Any] | None = None

    def of_rows(self, rows: slice | NDArray[np.intp]) -> Coder:
        """The coder for a subset of the samples."""
        tol, weights = self.tol, self.weights
        if tol is not None and np.ndim(tol) > 0:
            tol = np.asarray(tol)[rows]
        return Coder(self.method, self.width, tol, None if weights is None else weights[rows])

    def for_source(self, source: Source) -> Coder:
        """The coder with its error target scaled as a weighted source scales its samples."""
        if source.sqrt_weights is None or self.tol is None:
            return self
        return replace(self, tol=self.tol * source.sqrt_weights)

    def native_targets(self, dtype: Any) -> dict[str, Any]:
        """Error targets and weights as keyword arguments of the native code."""
        arguments: dict[str, Any] = {}
        if self.tol is not None:
            if np.ndim(self.tol) == 0:
                arguments["tol"] = float(self.tol)
            else:
                arguments["tols"] = np.ascontiguousarray(self.tol, dtype)
        if self.weights is not None:
            arguments["weights"] = np.ascontiguousarray(self.weights, dtype)
        return arguments


def native_dictionary(factors: Sequence[NDArray[Any]], dtype: Any) -> Any:
    """The native dictionary with these factors, for samples of a dtype."""
    kind = _native.DictionaryFloat32 if dtype == np.float32 else _native.DictionaryFloat64
    return kind([np.ascontiguousarray(factor, dtype=np.float64) for factor in factors])


class _OneChunk:
    """Feeds the native code samples in memory, as a single chunk."""

    def __init__(self, samples: NDArray[Any]) -> None:
        self.samples = samples

    def get(self, number: int) -> NDArray[Any]:
        return self.samples

    def done(self, number: int) -> None:
        pass


def code_few(
    samples: NDArray[np.float64], dictionary: Dictionary, coder: Coder
) -> NDArray[np.float64]:
    """Dense codes ``(n, n_codes)`` of a few float64 samples ``(n, n_features)``."""
    n = len(samples)
    index = np.zeros((n, coder.width), np.int32)
    value = np.zeros((n, coder.width))
    nonzeros = np.zeros(n, np.int32)
    native_dictionary(dictionary.coding_factors, np.float64).run(
        _OneChunk(np.ascontiguousarray(samples)),
        n,
        n,
        coder.method,
        coder.width,
        _native.SumTree(4, 1),
        **coder.native_targets(np.float64),
        index=index,
        value=value,
        nonzeros=nonzeros,
        block=n,
        instruction_set=instruction_set(),
    )
    codes = np.zeros((n, dictionary.n_codes))
    for k, count in enumerate(nonzeros):
        codes[k, index[k, :count]] = value[k, :count]
    return codes


def check_targets(
    dictionary: Dictionary,
    n_nonzero_coefs: int | None,
    tol: float | ArrayLike | None,
    n_samples: int | None = None,
) -> int:
    """Check sparsity and error target; return the most nonzeros a code can have."""
    n = dictionary.n_codes
    if n_nonzero_coefs is None and tol is None:
        raise ValueError(
            "Neither n_nonzero_coefs nor tol is given; pass one or both: the most nonzeros that a "
            "sample may have, and the norm that its residual may have."
        )
    if tol is not None:
        _check_tol(tol, n_samples)
    if n_nonzero_coefs is None:
        return min(n, dictionary.n_features)
    if isinstance(n_nonzero_coefs, bool) or not isinstance(n_nonzero_coefs, numbers.Integral):
        raise TypeError(f"n_nonzero_coefs={n_nonzero_coefs!r} is not an integer.")
    if n_nonzero_coefs < 1:
        raise ValueError(f"n_nonzero_coefs={n_nonzero_coefs} is not positive; pass at least 1.")
    if n_nonzero_coefs > n:
        shape = " × ".join(map(str, dictionary.n_atoms))
        atoms = f"{n} atoms of this dictionary" + (
            f" ({shape})" if len(dictionary.n_atoms) > 1 else ""
        )
        raise ValueError(
            f"n_nonzero_coefs={n_nonzero_coefs} exceeds the {atoms}; pass at most {n}."
        )
    return min(int(n_nonzero_coefs), dictionary.n_features)


def _check_tol(tol: float | ArrayLike, n_samples: int | None) -> None:
    if isinstance(tol, str | bool):
        raise TypeError(f"tol={tol!r} is not a number; pass the norm a residual may have.")
    values = real_array(tol, "tol").astype(np.float64)
    if values.ndim and (values.ndim > 1 or n_samples is None or len(values) != n_samples):
        wanted = (
            "a single number" if n_samples is None else f"a single number or shape ({n_samples},)"
        )
        raise ValueError(f"tol has shape {values.shape}; {wanted} is needed.")
    good = np.isfinite(values) & (values >= 0)
    if not good.all():
        bad = float(values[~good][0]) if values.ndim else float(values)
        raise ValueError(f"tol={bad:g} is not a residual norm; pass zero or a positive number.")


def check_method(method: Any, dictionary: Dictionary) -> None:
    """Raise unless the method exists and can code with the dictionary."""
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method={method!r} does not exist; choose one of {', '.join(METHODS)}.")
    if method == "threshold" and not dictionary.is_orthonormal:
        raise ValueError(
            'method="threshold" needs factors with orthonormal columns, and these are not '
            'orthonormal; use method="omp", "ols" or "exchange".'
        )


def check_weights(weights: ArrayLike, source: Source, method: str) -> NDArray[Any]:
    """Check weights; return them in the samples' shape, as a broadcast view where possible."""
    if method == "threshold":
        raise ValueError(
            'method="threshold" cannot use weights, with which atoms are not orthonormal; use '
            'method="omp", "ols" or "exchange".'
        )
    if np.ma.is_masked(weights):
        # Masked entries are missing.
        weights = np.ma.filled(weights, 0)
    array = real_array(weights, "weights")
    shape = (len(source), *source.patch_shape)
    if array.ndim == 2 and array.shape == (shape[0], source.n_features):
        array = array.reshape(shape)
    try:
        array = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(
            f"weights has shape {array.shape}; it must broadcast to the samples' shape {shape}."
        ) from None
    step = max(1, BLOCK_NUMBERS // source.n_features)
    for start in range(0, len(array), step):
        lowest = float(np.min(array[start : start + step]))
        highest = float(np.max(array[start : start + step]))
        if not (lowest >= 0 and math.isfinite(highest)):
            bad = "NaN" if math.isnan(lowest) else f"{lowest if lowest < 0 else highest:g}"
            raise ValueError(f"weights holds {bad}; weights must be finite and not negative.")
    return array
