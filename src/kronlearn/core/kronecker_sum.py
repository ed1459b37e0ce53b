"""Dictionaries that are sums of Kronecker products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.factors import checked_factors, frozen

__all__ = ["ColumnNormError", "KroneckerSumDictionary", "rearranged", "restored"]

# The matrix of a sum may hold at most this many numbers (1 GiB): small factors of a file could make
# a matrix too large for memory.
_MOST_NUMBERS = 1 << 27
# Squares of norms outside this range overflow or underflow.
_SMALLEST_NORM, _LARGEST_NORM = 1e-140, 1e140


class ColumnNormError(ValueError):
    """A column of a sum of Kronecker products cannot be scaled to norm 1."""


class KroneckerSumDictionary(Dictionary):
    """An immutable sum of Kronecker products with unit columns.

    ``D = (Σ_r D_1^(r) ⊗ … ⊗ D_d^(r)) W⁻¹``, where the diagonal matrix W holds the norms of the
    columns of the sum. With one term this is the :class:`KroneckerDictionary` of the scaled
    factors. With several, samples are coded with the dense matrix D, (n_features, n_codes).

    Parameters
    ----------
    terms : sequence of R sequences of arrays of shape (m_i, n_i)
        The factors of each term; all terms have the same shapes. Their columns need not have
        norm 1, but no column of the sum may be zero.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> rng = np.random.default_rng(0)
    >>> terms = [[rng.standard_normal((8, 10)), rng.standard_normal((4, 6))] for _ in range(2)]
    >>> d = kl.KroneckerSumDictionary(terms)
    >>> d.n_terms, d.patch_shape, d.n_atoms
    (2, (8, 4), (10, 6))
    >>> X = kl.sparse_code(rng.standard_normal((5, 8, 4)), d, n_nonzero_coefs=3)
    >>> d.reconstruct(X).shape
    (5, 8, 4)
    """

    __slots__ = ("_coding_factors", "_column_norms", "_stacks")

    _stacks: tuple[NDArray[Any], ...]
    _column_norms: NDArray[np.float64]
    _coding_factors: tuple[NDArray[Any], ...]

    def __init__(self, terms: Iterable[Iterable[ArrayLike]]) -> None:
        checked = _checked_terms(terms)
        stacks = [np.stack([term[mode] for term in checked]) for mode in range(len(checked[0]))]
        self._set(stacks)

    def _set(self, stacks: Sequence[NDArray[Any]]) -> None:
        _check_size(stacks)
        factors, norms = _unit_columns(stacks)
        usable = (norms > _SMALLEST_NORM) & (norms < _LARGEST_NORM)
        if not usable.all():
            column = int(np.flatnonzero(~usable)[0])
            raise ColumnNormError(
                f"Column {column} of the sum of Kronecker products has norm {norms[column]:.3g} "
                "and cannot be scaled to norm 1; change the terms."
            )
        dtype = stacks[0].dtype
        factors = [factor.astype(dtype, copy=False) for factor in factors]
        object.__setattr__(self, "_stacks", frozen(list(stacks)))
        object.__setattr__(self, "_column_norms", *frozen([norms]))
        object.__setattr__(self, "_coding_factors", frozen(factors))

    @property
    def stacks(self) -> tuple[NDArray[Any], ...]:
        """The factors of all terms, one read-only array ``(R, m_i, n_i)`` per mode."""
        return self._stacks

    @property
    def column_norms(self) -> NDArray[np.float64]:
        """The diagonal of W, (n_codes,): the norms of the columns before scaling."""
        return self._column_norms

    @property
    def coding_factors(self) -> tuple[NDArray[Any], ...]:
        """The scaled factors of a single term, or the dense matrix of several."""
        return self._coding_factors

    def with_stacks(self, stacks: Sequence[NDArray[Any]]) -> KroneckerSumDictionary:
        """Return a dictionary with other factors.

        Parameters
        ----------
        stacks : sequence of arrays of shape (R, m_i, n_i)
            The factors of all terms, one array of finite numbers per mode.

        Returns
        -------
        KroneckerSumDictionary
            A new dictionary; this one stays as it is.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerSumDictionary([[np.eye(2), np.eye(3)], [np.eye(2), -2 * np.eye(3)]])
        >>> d.with_stacks([stack[:1] for stack in d.stacks]).n_terms
        1
        """
        single = all(stack.dtype == np.float32 for stack in stacks)
        made = object.__new__(KroneckerSumDictionary)
        made._set([np.array(s, np.float32 if single else np.float64, order="C") for s in stacks])
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return KroneckerSumDictionary, (self.terms,)

    def __repr__(self) -> str:
        return (
            f"KroneckerSumDictionary(n_terms={self.n_terms}, patch_shape={self.patch_shape}, "
            f"n_atoms={self.n_atoms}, dtype={self.dtype.name})"
        )


def rearranged(
    D: NDArray[Any], patch_shape: tuple[int, ...], n_atoms: tuple[int, ...]
) -> NDArray[Any]:
    """The tensor ``(m_1 n_1, …, m_d n_d)`` in which a Kronecker product is an outer product.

    Entry ``(i_1 n_1 + j_1, …)`` is the entry of D in row ``(i_1, …, i_d)`` and column
    ``(j_1, …, j_d)``. A sum of R Kronecker products becomes a tensor of rank R, whose components
    are the factors, flattened in C order (Van Loan and Pitsianis, 1993).

    Parameters
    ----------
    D : array of shape (m_1·…·m_d, n_1·…·n_d)

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.core.kronecker_sum import rearranged
    >>> A, B = np.arange(6.0).reshape(2, 3), np.arange(8.0).reshape(4, 2)
    >>> R = rearranged(np.kron(A, B), (2, 4), (3, 2))
    >>> bool(np.allclose(R, np.outer(A, B)))
    True
    """
    d = len(patch_shape)
    order = [axis for mode in range(d) for axis in (mode, d + mode)]
    sizes = [m * n for m, n in zip(patch_shape, n_atoms, strict=True)]
    return D.reshape(*patch_shape, *n_atoms).transpose(order).reshape(sizes)


def restored(
    tensor: NDArray[Any], patch_shape: tuple[int, ...], n_atoms: tuple[int, ...]
) -> NDArray[Any]:
    """The inverse of :func:`rearranged`: the matrix ``(m_1·…·m_d, n_1·…·n_d)`` of a tensor."""
    d = len(patch_shape)
    pairs = [size for pair in zip(patch_shape, n_atoms, strict=True) for size in pair]
    order = [*range(0, 2 * d, 2), *range(1, 2 * d, 2)]
    shape = (int(np.prod(patch_shape)), int(np.prod(n_atoms)))
    return tensor.reshape(pairs).transpose(order).reshape(shape)


def _check_size(stacks: Sequence[NDArray[Any]]) -> None:
    """Raise if the matrix of a sum would be too large."""
    rows, columns = (math.prod(stack.shape[axis] for stack in stacks) for axis in (1, 2))
    if len(stacks[0]) > 1 and rows * columns > _MOST_NUMBERS:
        raise ValueError(
            f"A sum of Kronecker products is used as one matrix, here {rows} × {columns}, which "
            f"may hold at most {_MOST_NUMBERS:,} numbers; use smaller factors or a single term."
        )


def _unit_columns(
    stacks: Sequence[NDArray[Any]],
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """The coding factors of a sum, with unit columns, and the norms its columns had."""
    wide = [stack.astype(np.float64, copy=False) for stack in stacks]
    with np.errstate(all="ignore"):
        if len(wide[0]) == 1:
            norms = [np.linalg.norm(stack[0], axis=0) for stack in wide]
            factors = [stack[0] / norm for stack, norm in zip(wide, norms, strict=True)]
            return factors, reduce(np.kron, norms)
        total = sum(reduce(np.kron, term) for term in zip(*wide, strict=True))
        norms_of_sum = np.linalg.norm(total, axis=0)
        return [total / norms_of_sum], norms_of_sum


def _checked_terms(terms: Iterable[Iterable[ArrayLike]]) -> list[list[NDArray[Any]]]:
    """Copy terms to finite real arrays of one dtype; raise unless all have the same shapes."""
    if isinstance(terms, Dictionary):
        terms = terms.terms
    try:
        items = list(terms)
    except TypeError:
        raise ValueError(
            f"terms is a {type(terms).__name__}; pass a list with one list of factors per term."
        ) from None
    if not items:
        raise ValueError("terms is empty; pass at least one list of factors.")
    checked = []
    for r, term in enumerate(items):
        try:
            checked.append(checked_factors(term))
        except (TypeError, ValueError) as problem:
            raise ValueError(f"terms[{r}]: {problem}") from None
    shapes = [[factor.shape for factor in term] for term in checked]
    for r, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"terms[{r}] has factors of shapes {shape}, terms[0] of {shapes[0]}; all terms "
                "need the same."
            )
    single = all(factor.dtype == np.float32 for term in checked for factor in term)
    dtype = np.float32 if single else np.float64
    return [[factor.astype(dtype, copy=False) for factor in term] for term in checked]
