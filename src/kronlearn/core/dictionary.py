"""The base class of dictionaries, and the separable dictionary."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.factors import NORM_TOLERANCE, check_unit_norms, checked_factors, frozen
from kronlearn.core.mode_products import (
    as_floats,
    checked_sparse_codes,
    mode_products,
    row_blocks,
    unfold,
)

__all__ = ["Dictionary", "KroneckerDictionary"]


class Dictionary(ABC):
    """An immutable dictionary for samples of shape ``(m_1, …, m_d)`` with unit-norm atoms.

    Every dictionary is a sum of R Kronecker products, ``Σ_r D_1^(r) ⊗ … ⊗ D_d^(r)``, with its
    columns scaled to norm 1. R = 1 is a :class:`KroneckerDictionary`, or an ordinary, unstructured
    dictionary if it has only one mode; R > 1 is a :class:`KroneckerSumDictionary`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def stacks(self) -> tuple[NDArray[Any], ...]:
        """The factors of all terms, one read-only array ``(R, m_i, n_i)`` per mode."""

    @property
    @abstractmethod
    def coding_factors(self) -> tuple[NDArray[Any], ...]:
        """The matrices that coders use: their Kronecker product is the dictionary."""

    @abstractmethod
    def with_stacks(self, stacks: Sequence[NDArray[Any]]) -> Dictionary:
        """Return a dictionary of the same kind and shape with other factors."""

    def with_stack(self, mode: int, stack: NDArray[Any]) -> Dictionary:
        """Return a dictionary with other factors in one mode.

        Parameters
        ----------
        mode : int
            The mode, counted from 0.
        stack : array of shape (R, m_i, n_i)
            The factors of all terms in that mode.

        Returns
        -------
        KroneckerDictionary or KroneckerSumDictionary
            A new dictionary; this one stays as it is.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(2), np.eye(3)])
        >>> d.with_stack(1, np.eye(3)[None, :, :2]).n_atoms
        (2, 2)
        """
        return self.with_stacks([*self.stacks[:mode], stack, *self.stacks[mode + 1 :]])

    @property
    def n_terms(self) -> int:
        """R: the number of Kronecker products in the sum."""
        return int(self.stacks[0].shape[0])

    @property
    def terms(self) -> tuple[tuple[NDArray[Any], ...], ...]:
        """The factors of each of the R terms, of shapes (m_i, n_i)."""
        return tuple(tuple(stack[r] for stack in self.stacks) for r in range(self.n_terms))

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """``(m_1, …, m_d)``: the shape of a sample."""
        return tuple(stack.shape[1] for stack in self.stacks)

    @property
    def n_atoms(self) -> tuple[int, ...]:
        """``(n_1, …, n_d)``: the number of columns of each factor."""
        return tuple(stack.shape[2] for stack in self.stacks)

    @property
    def n_features(self) -> int:
        """``m_1·…·m_d``: the number of entries of a sample."""
        return math.prod(self.patch_shape)

    @property
    def n_codes(self) -> int:
        """``n_1·…·n_d``: the number of entries of a code, and of atoms of the whole dictionary."""
        return math.prod(self.n_atoms)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every factor, float32 or float64."""
        return self.stacks[0].dtype

    @property
    def is_orthonormal(self) -> bool:
        """Whether the atoms are orthonormal, to 1e-4 in every inner product of factor columns."""
        for factor in self.coding_factors:
            if factor.shape[1] > factor.shape[0]:
                return False
            columns = factor.astype(np.float64)
            gram = columns.T @ columns
            if np.abs(gram - np.eye(gram.shape[0])).max() > NORM_TOLERANCE:
                return False
        return True

    def astype(self, dtype: Any) -> Dictionary:
        """Convert the factors to float32 or float64.

        Parameters
        ----------
        dtype : dtype
            ``np.float32`` or ``np.float64``.

        Returns
        -------
        KroneckerDictionary or KroneckerSumDictionary
            The converted dictionary, or this one if its factors have that dtype already.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> kl.KroneckerDictionary([np.eye(2)]).astype(np.float32).dtype
        dtype('float32')
        """
        if self.dtype == dtype:
            return self
        return self.with_stacks([stack.astype(dtype) for stack in self.stacks])

    def to_dense(self) -> NDArray[Any]:
        """Return the whole dictionary as a matrix with one atom per column.

        For a separable dictionary this is ``np.kron(D_1, np.kron(D_2, …))``. Neither learning nor
        coding with a separable dictionary forms it.

        Returns
        -------
        array of shape (n_features, n_codes)
            The atoms, flattened in C order.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(2), np.eye(3)])
        >>> np.array_equal(d.to_dense(), np.eye(6))
        True
        """
        factors = reversed(self.coding_factors)
        return np.array(reduce(lambda right, left: np.kron(left, right), factors))

    def correlate(self, Y: ArrayLike) -> NDArray[Any]:
        """Compute the inner products of samples with all atoms, ``Y_k ×_1 D_1ᵀ … ×_d D_dᵀ``.

        Parameters
        ----------
        Y : array of shape (N, m_1, …, m_d) or (N, n_features)
            The samples.

        Returns
        -------
        array of shape (N, n_1, …, n_d)
            The inner products, float32 for float32 samples and float64 for all others.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(2), np.eye(3)])
        >>> d.correlate(np.ones((5, 2, 3))).shape
        (5, 2, 3)
        """
        samples = unfold(as_floats(Y, "Y"), "Y", "samples", self.patch_shape)
        matrices = [np.asarray(f, samples.dtype, like=samples) for f in self.coding_factors]
        correlations = np.empty_like(samples, shape=(len(samples), *self.n_atoms))
        for rows in row_blocks(len(samples), max(self.n_features, self.n_codes)):
            products = mode_products(samples[rows], matrices)
            correlations[rows] = products.reshape(-1, *self.n_atoms)
        return correlations

    def reconstruct(self, codes: Any) -> NDArray[Any]:
        """Compute samples from their codes, ``Ŷ_k = X_k ×_1 D_1 … ×_d D_d``.

        Sparse codes are expanded a block of rows at a time, never for the whole data.

        Parameters
        ----------
        codes : sparse array of shape (N, n_codes), or dense of that shape or (N, n_1, …, n_d)
            The codes, for example from :func:`kronlearn.sparse_code`: arrays of NumPy or SciPy, or
            of CuPy on the current GPU.

        Returns
        -------
        array of shape (N, m_1, …, m_d)
            The samples, on the device of the codes: float32 for float32 codes, float64 for others.

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
        is_sparse = hasattr(codes, "tocsr")
        if is_sparse:
            codes = checked_sparse_codes(codes, self.n_atoms)
            values = codes.data
            dtype = codes.dtype if codes.dtype == np.float32 else np.dtype(np.float64)
        else:
            codes = unfold(as_floats(codes, "codes"), "codes", "codes", self.n_atoms)
            values, dtype = codes, codes.dtype
        transposed = [np.ascontiguousarray(f.T, dtype=dtype) for f in self.coding_factors]
        matrices = [np.asarray(matrix, like=values) for matrix in transposed]
        n_samples = codes.shape[0]
        samples = np.empty_like(values, dtype, shape=(n_samples, *self.patch_shape))
        for rows in row_blocks(n_samples, max(self.n_features, self.n_codes)):
            block = codes[rows]
            if is_sparse:
                block = block.toarray().astype(dtype, copy=False)
            samples[rows] = mode_products(block, matrices).reshape(-1, *self.patch_shape)
        return samples

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file (safetensors) that :func:`kronlearn.load_dictionary` reads back.

        Parameters
        ----------
        path : str or path
            The file to write. An existing one is replaced in one step.

        Examples
        --------
        >>> import os, tempfile
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(4)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     d.save(os.path.join(folder, "eye.safetensors"))
        ...     os.listdir(folder)
        ['eye.safetensors']
        """
        from kronlearn.io.model_files import save_dictionary

        save_dictionary(self, path)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name!r}.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot delete {name!r}.")

    def __copy__(self) -> Dictionary:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Dictionary:
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dictionary):
            return NotImplemented
        return (
            type(self) is type(other)
            and self.dtype == other.dtype
            and len(self.stacks) == len(other.stacks)
            and all(map(np.array_equal, self.stacks, other.stacks))
        )

    def __hash__(self) -> int:
        # Adding zero turns -0.0 into 0.0: equal dictionaries must have equal hashes.
        contents = tuple((stack.shape, (stack + 0).tobytes()) for stack in self.stacks)
        return hash((type(self).__name__, self.dtype.str, contents))


class KroneckerDictionary(Dictionary):
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

    __slots__ = ("_stacks",)

    _stacks: tuple[NDArray[Any], ...]

    def __init__(self, factors: Iterable[ArrayLike]) -> None:
        arrays = checked_factors(factors)
        for mode, factor in enumerate(arrays):
            check_unit_norms(factor, mode)
        object.__setattr__(self, "_stacks", frozen([array[None] for array in arrays]))

    @classmethod
    def normalized(cls, factors: Iterable[ArrayLike]) -> KroneckerDictionary:
        """Make a dictionary of factors after scaling their columns to norm 1.

        Parameters
        ----------
        factors : sequence of arrays of shape (m_i, n_i)
            The factors; no column may be zero.

        Returns
        -------
        KroneckerDictionary
            The dictionary of the scaled factors.

        Examples
        --------
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary.normalized([[[3.0, 0.0], [4.0, 2.0]]])
        >>> d.factors[0].tolist()
        [[0.6, 0.0], [0.8, 1.0]]
        """
        scaled = []
        for mode, factor in enumerate(checked_factors(factors)):
            # Dividing by the largest entry first prevents overflow and underflow of the squares.
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
        return tuple(stack[0] for stack in self._stacks)

    @property
    def stacks(self) -> tuple[NDArray[Any], ...]:
        """The factors as arrays ``(1, m_i, n_i)``."""
        return self._stacks

    @property
    def coding_factors(self) -> tuple[NDArray[Any], ...]:
        """The factors."""
        return self.factors

    def with_stacks(self, stacks: Sequence[NDArray[Any]]) -> KroneckerDictionary:
        """Return a dictionary with other factors.

        Parameters
        ----------
        stacks : sequence of arrays of shape (1, m_i, n_i)
            One factor per mode. The norms of their columns are not checked.

        Returns
        -------
        KroneckerDictionary
            A new dictionary; this one stays as it is.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> d = kl.KroneckerDictionary([np.eye(2), np.eye(3)])
        >>> d.with_stacks([stack[:, :, :1] for stack in d.stacks]).n_atoms
        (1, 1)
        """
        made = object.__new__(KroneckerDictionary)
        object.__setattr__(made, "_stacks", frozen([np.array(s, order="C") for s in stacks]))
        return made

    def __getstate__(self) -> tuple[NDArray[Any], ...]:
        return self._stacks

    def __setstate__(self, stacks: tuple[NDArray[Any], ...]) -> None:
        object.__setattr__(self, "_stacks", frozen(list(stacks)))

    def __repr__(self) -> str:
        return (
            f"KroneckerDictionary(patch_shape={self.patch_shape}, n_atoms={self.n_atoms}, "
            f"dtype={self.dtype.name})"
        )
