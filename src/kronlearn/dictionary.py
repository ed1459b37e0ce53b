"""Separable dictionaries: small factors whose Kronecker product is never formed in work."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

__all__ = ["NORM_TOLERANCE", "KroneckerDictionary"]

#: How far from 1 the norm of a factor's column may be.
NORM_TOLERANCE = 1e-4

# Dense intermediates hold about this many numbers per block (8 MiB in float64), whatever N is.
_BLOCK_NUMBERS = 1 << 20


class KroneckerDictionary:
    """An immutable separable dictionary ``D = D_1 ⊗ D_2 ⊗ … ⊗ D_d``.

    A sample is ``Y_k ≈ X_k ×_1 D_1 ×_2 D_2 … ×_d D_d`` with a sparse code ``X_k``; for images
    ``Y_k ≈ D_1 X_k D_2ᵀ``. Flattened in C order, the dictionary is
    ``np.kron(D_1, np.kron(D_2, …))``.

    Parameters
    ----------
    factors : sequence of arrays of shape (m_i, n_i)
        One factor per mode, at least one, with unit-norm columns (checked to 1e-4;
        :meth:`normalized` scales them). They are copied, to float32 if every factor is float32
        and to float64 otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(4)])
    >>> d.patch_shape, d.n_atoms, d.n_codes
    ((8, 4), (8, 4), 32)
    >>> d.to_dense().shape
    (32, 32)
    """

    __slots__ = ("_factors",)

    _factors: tuple[NDArray[Any], ...]

    def __init__(self, factors: Iterable[ArrayLike]) -> None:
        arrays = _checked_factors(factors)
        for mode, factor in enumerate(arrays):
            _check_unit_norms(factor, mode)
        object.__setattr__(self, "_factors", _frozen(arrays))

    @classmethod
    def normalized(cls, factors: Iterable[ArrayLike]) -> KroneckerDictionary:
        """A dictionary of these factors with every column scaled to unit norm.

        Parameters
        ----------
        factors : sequence of arrays of shape (m_i, n_i)
            No column may be zero.

        Examples
        --------
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary.normalized([[[3.0, 0.0], [4.0, 2.0]]])
        >>> d.factors[0].tolist()
        [[0.6, 0.0], [0.8, 1.0]]
        """
        scaled = []
        for mode, factor in enumerate(_checked_factors(factors)):
            # Dividing by the largest entry first keeps the squares from over- or underflowing.
            largest = np.abs(factor).max(axis=0)
            if not largest.all():
                column = int(np.flatnonzero(largest == 0)[0])
                raise ValueError(
                    f"Column {column} of factors[{mode}] is zero and cannot be scaled to unit "
                    "norm; remove or replace it."
                )
            columns = factor.astype(np.float64) / largest
            columns /= np.linalg.norm(columns, axis=0)
            scaled.append(columns.astype(factor.dtype))
        return cls(scaled)

    @property
    def factors(self) -> tuple[NDArray[Any], ...]:
        """The read-only, C-contiguous factors, each of shape (m_i, n_i)."""
        return self._factors

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """``(m_1, …, m_d)``: the shape of a sample."""
        return tuple(factor.shape[0] for factor in self._factors)

    @property
    def n_atoms(self) -> tuple[int, ...]:
        """``(n_1, …, n_d)``: the number of columns of each factor."""
        return tuple(factor.shape[1] for factor in self._factors)

    @property
    def n_features(self) -> int:
        """``m_1·…·m_d``: numbers in a sample."""
        return math.prod(self.patch_shape)

    @property
    def n_codes(self) -> int:
        """``n_1·…·n_d``: numbers in a code, that is, atoms of the whole dictionary."""
        return math.prod(self.n_atoms)

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the same for every factor."""
        return self._factors[0].dtype

    @property
    def is_orthonormal(self) -> bool:
        """Whether the columns of every factor are orthonormal, to 1e-4 per inner product."""
        for factor in self._factors:
            if factor.shape[1] > factor.shape[0]:
                return False
            columns = factor.astype(np.float64)
            gram = columns.T @ columns
            if np.abs(gram - np.eye(gram.shape[0])).max() > NORM_TOLERANCE:
                return False
        return True

    def to_dense(self) -> NDArray[Any]:
        """The whole dictionary, ``np.kron(D_1, np.kron(D_2, …))``, of shape (n_features, n_codes).

        For looking and testing: nothing in the library works with it.
        """
        return np.array(reduce(lambda right, left: np.kron(left, right), reversed(self._factors)))

    def correlate(self, Y: ArrayLike) -> NDArray[Any]:
        """Inner products of samples with all atoms, ``Y_k ×_1 D_1ᵀ … ×_d D_dᵀ``.

        Parameters
        ----------
        Y : array of shape (N, m_1, …, m_d) or (N, n_features)

        Returns
        -------
        array of shape (N, n_1, …, n_d)
            float32 for float32 samples, else float64.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(2), np.eye(3)])
        >>> d.correlate(np.ones((5, 2, 3))).shape
        (5, 2, 3)
        """
        samples = _as_floats(Y, "Y")
        samples = _in_modes(samples, "Y", "samples", self.patch_shape)
        matrices = [factor.astype(samples.dtype, copy=False) for factor in self._factors]
        correlations = np.empty((len(samples), *self.n_atoms), samples.dtype)
        for rows in _blocks(len(samples), max(self.n_features, self.n_codes)):
            correlations[rows] = _mode_products(samples[rows], matrices)
        return correlations

    def reconstruct(self, codes: Any) -> NDArray[Any]:
        """Samples synthesised from codes, ``Ŷ_k = X_k ×_1 D_1 … ×_d D_d``.

        Sparse codes are expanded a block of rows at a time, never for the whole data.

        Parameters
        ----------
        codes : sparse array of shape (N, n_codes), or dense of that shape or (N, n_1, …, n_d)

        Returns
        -------
        array of shape (N, m_1, …, m_d)
            float32 for float32 codes, else float64.

        Examples
        --------
        >>> import numpy as np
        >>> from scipy import sparse
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(2), np.eye(3)])
        >>> d.reconstruct(sparse.csr_array(np.array([[0, 0, 0, 0, 0, 7.0]])))
        array([[[0., 0., 0.],
                [0., 0., 7.]]])
        """
        if sparse.issparse(codes):
            codes = self._checked_sparse(codes)
            dtype = codes.dtype if codes.dtype == np.float32 else np.dtype(np.float64)
        else:
            codes = _in_modes(_as_floats(codes, "codes"), "codes", "codes", self.n_atoms)
            dtype = codes.dtype
        matrices = [np.ascontiguousarray(factor.T, dtype=dtype) for factor in self._factors]
        n_samples = codes.shape[0]
        samples = np.empty((n_samples, *self.patch_shape), dtype)
        for rows in _blocks(n_samples, max(self.n_features, self.n_codes)):
            block = codes[rows]
            if sparse.issparse(block):
                block = block.toarray().astype(dtype, copy=False).reshape(-1, *self.n_atoms)
            samples[rows] = _mode_products(block, matrices)
        return samples

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file (safetensors) that :func:`kronlearn.load_dictionary` reads back.

        Parameters
        ----------
        path : str or path
            Replaced in one step if it exists.
        """
        from kronlearn.persistence import save_dictionary

        save_dictionary(self, path)

    def _checked_sparse(self, codes: Any) -> Any:
        """The codes as CSR, once their shape, dtype and indices are known to fit."""
        if codes.ndim != 2 or codes.shape[1] != self.n_codes:
            raise ValueError(
                f"codes has shape {codes.shape}; this dictionary needs (N, {self.n_codes}), one "
                f"column per atom ({_times(self.n_atoms)})."
            )
        _check_real(codes.dtype, "codes")
        rows = codes.tocsr()
        # SciPy checks neither of these when the arrays are given to it, and writes out of bounds.
        rows.check_format(full_check=True)
        return rows

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"KroneckerDictionary is immutable; cannot set {name!r}.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"KroneckerDictionary is immutable; cannot delete {name!r}.")

    def __reduce__(self) -> tuple[Any, ...]:
        return KroneckerDictionary, (self._factors,)

    def __copy__(self) -> KroneckerDictionary:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> KroneckerDictionary:
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KroneckerDictionary):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and len(self._factors) == len(other._factors)
            and all(map(np.array_equal, self._factors, other._factors))
        )

    def __hash__(self) -> int:
        # Adding zero turns -0.0, which equals 0.0, into 0.0.
        contents = tuple((factor.shape, (factor + 0).tobytes()) for factor in self._factors)
        return hash((self.dtype.str, contents))

    def __repr__(self) -> str:
        return (
            f"KroneckerDictionary(patch_shape={self.patch_shape}, n_atoms={self.n_atoms}, "
            f"dtype={self.dtype.name})"
        )


def _checked_factors(factors: Iterable[ArrayLike]) -> list[NDArray[Any]]:
    """Fresh finite real 2-D arrays of one dtype."""
    if isinstance(factors, KroneckerDictionary):
        return [factor.copy() for factor in factors.factors]
    if isinstance(factors, np.ndarray) and factors.ndim == 2:
        raise ValueError(
            f"factors is one array of shape {factors.shape}; pass a list with one array per mode, "
            "[D] for a single mode."
        )
    try:
        given = list(factors)
    except TypeError:
        raise ValueError(
            f"factors is a {type(factors).__name__}; pass a list with one array per mode."
        ) from None
    if not given:
        raise ValueError("factors is empty; pass at least one array of shape (m, n).")
    arrays = [_checked_factor(factor, mode) for mode, factor in enumerate(given)]
    dtype = np.float32 if all(a.dtype == np.float32 for a in arrays) else np.float64
    return [np.array(a, dtype=dtype, order="C") for a in arrays]


def _checked_factor(factor: ArrayLike, mode: int) -> NDArray[Any]:
    name = f"factors[{mode}]"
    try:
        array = np.asarray(factor)
    except ValueError:
        raise ValueError(f"{name} has rows of unequal length; pass an (m, n) array.") from None
    _check_real(array.dtype, name)
    if array.ndim != 2:
        raise ValueError(
            f"{name} has {array.ndim} dimension{'s' * (array.ndim != 1)}; pass an (m, n) array "
            "whose columns are that mode's atoms."
        )
    if array.size == 0:
        raise ValueError(
            f"{name} has shape {array.shape}; every factor needs at least one row and one column."
        )
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"{name} holds {array[row, column]} at row {row}, column {column}; all entries must "
            "be finite."
        )
    return array


def _check_real(dtype: np.dtype[Any], name: str) -> None:
    if dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has dtype {dtype}; kronlearn works with real numbers, pass float32 or float64."
        )


def _check_unit_norms(factor: NDArray[Any], mode: int) -> None:
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(factor.astype(np.float64), axis=0)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= NORM_TOLERANCE))
    if wrong.size:
        column = int(wrong[0])
        raise ValueError(
            f"Column {column} of factors[{mode}] has norm {norms[column]:.6g}; every column needs "
            f"norm 1 (to {NORM_TOLERANCE:g}). KroneckerDictionary.normalized(factors) scales them."
        )


def _frozen(arrays: list[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    for array in arrays:
        array.setflags(write=False)
    return tuple(arrays)


def _as_floats(values: ArrayLike, name: str) -> NDArray[Any]:
    """The values as float32 if they are that, else as float64."""
    array = np.asarray(values)
    _check_real(array.dtype, name)
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def _in_modes(array: NDArray[Any], name: str, what: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array as (N, *shape), from that shape or from (N, prod(shape))."""
    if array.shape[1:] == shape and array.ndim == len(shape) + 1:
        return array
    if array.ndim == 2 and array.shape[1] == math.prod(shape):
        return array.reshape(-1, *shape)
    wanted = f"(N, {', '.join(map(str, shape))})"
    if len(shape) > 1:
        wanted += f" or (N, {math.prod(shape)})"
    hint = f" For one of them pass {name}[None]." if array.shape == shape else ""
    raise ValueError(
        f"{name} has shape {array.shape}; this dictionary needs {what} of shape {wanted}.{hint}"
    )


def _blocks(n_samples: int, numbers_per_sample: int) -> Iterator[slice]:
    step = max(1, _BLOCK_NUMBERS // numbers_per_sample)
    for start in range(0, n_samples, step):
        yield slice(start, min(start + step, n_samples))


def _mode_products(block: NDArray[Any], matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """``block ×_1 A_1ᵀ … ×_d A_dᵀ`` for matrices A_i (in, out); block (N, in_1, …, in_d).

    Each step multiplies the last mode, one large product, and moves it to the front of the modes;
    after d steps the modes are back in order.
    """
    for matrix in reversed(matrices):
        block = np.moveaxis(block @ matrix, -1, 1)
    return block


def _times(numbers: tuple[int, ...]) -> str:
    return " × ".join(map(str, numbers))
