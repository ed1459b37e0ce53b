"""Dictionaries of small filters: products of short filters along each axis, or free ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count, takewhile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.convolutional.factors import combined, normalised
from kronlearn.core.numbers import real_array
from kronlearn.io.model_files import ModelFileError, read_file, write_file
from kronlearn.io.stored import wrap_errors

__all__ = ["STRUCTURES", "ConvolutionalDictionary", "check_dictionary", "filters_in"]
__all__ += ["load_filters", "tensors_of"]

STRUCTURES = ("kronecker", "separable", "dense")

_KIND = "convolutional dictionary"


class ConvolutionalDictionary:
    """Small filters of norm one; images are sums of shifted copies of them.

    Parameters
    ----------
    factors : sequence of array
        "kronecker": one matrix (p_i, n_i) for each axis, whose columns are short filters; the
        filters are all n_1 · n_2 · … outer products of one column of each matrix, in C order.
        "separable": one matrix (p_i, M) for each axis; filter m is the outer product of their
        columns m. "dense": a single array (M, p_1, …, p_d), the filters themselves. Columns and
        dense filters are scaled to norm one.
    structure : {"kronecker", "separable", "dense"}, default "kronecker"
    has_channels : bool, default False
        Whether the first axis of the filters runs over the channels of an image.

    Attributes
    ----------
    factors : tuple of array
    structure : str
    has_channels : bool

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.convolutional import ConvolutionalDictionary
    >>> d = ConvolutionalDictionary([np.eye(5)[:, :2], np.eye(7)[:, :3]])
    >>> d.n_filters, d.filter_shape, d.n_numbers
    (6, (5, 7), 31)
    """

    def __init__(
        self,
        factors: Sequence[ArrayLike],
        structure: str = "kronecker",
        has_channels: bool = False,
    ) -> None:
        if structure not in STRUCTURES:
            raise ValueError(
                f"structure={structure!r} does not exist; choose one of {', '.join(STRUCTURES)}."
            )
        self.structure, self.has_channels = structure, bool(has_channels)
        arrays = [
            np.array(real_array(factor, f"factors[{k}]"), dtype=np.float64, order="C")
            for k, factor in enumerate(factors)
        ]
        _check_shapes(arrays, structure)
        self.factors = tuple(normalised(array, structure) for array in arrays)
        if has_channels and len(self.filter_shape) < 2:
            raise ValueError("Filters with channels need at least one other axis.")

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """The size of a filter, ``(p_1, …, p_d)``."""
        if self.structure == "dense":
            return self.factors[0].shape[1:]
        return tuple(len(factor) for factor in self.factors)

    @property
    def n_filters(self) -> int:
        """The number of filters."""
        return len(self.filters)

    @property
    def n_numbers(self) -> int:
        """The number of entries of all factors."""
        return sum(factor.size for factor in self.factors)

    @cached_property
    def filters(self) -> NDArray[np.float64]:
        """All filters, ``(M, p_1, …, p_d)``."""
        return combined(self.factors, self.structure)

    @property
    def stages(self) -> list[tuple[int, int, int, bool, NDArray[np.float32]]]:
        """How native code correlates an image with all filters: (axis, groups, outputs, shared, …).

        Stages go from the last axis to the first. What several filters share is computed once.
        """
        if self.structure == "dense":
            return [(-1, 1, self.n_filters, True, self.filters.astype(np.float32))]
        stages: list[tuple[int, int, int, bool, NDArray[np.float32]]] = []
        groups = 1
        for axis in reversed(range(len(self.factors))):
            columns = np.ascontiguousarray(self.factors[axis].T, dtype=np.float32)
            if self.structure == "kronecker" or groups == 1:
                stages.append((axis, groups, len(columns), True, columns))
                groups *= len(columns)
            else:
                stages.append((axis, groups, 1, False, columns))
        return stages

    def save(self, path: str | os.PathLike[str], info: Mapping[str, Any] | None = None) -> None:
        """Write a model file for :func:`load_filters`, replacing an existing file in one step.

        Parameters
        ----------
        path : str or path
            The file to write.
        info : dict, optional
            Anything JSON can hold, stored with the filters: how they were learned, for example.

        Examples
        --------
        >>> import os, tempfile
        >>> import numpy as np
        >>> from kronlearn.convolutional import ConvolutionalDictionary, load_filters
        >>> d = ConvolutionalDictionary([np.eye(5), np.eye(5)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     d.save(os.path.join(folder, "eye.safetensors"))
        ...     load_filters(os.path.join(folder, "eye.safetensors")) == d
        True
        """
        kinds = {"structure": self.structure, "has_channels": self.has_channels}
        write_file(path, _KIND, tensors_of(self, "factors"), {**(info or {}), **kinds})

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConvolutionalDictionary)
            and (self.structure, self.has_channels) == (other.structure, other.has_channels)
            and len(self.factors) == len(other.factors)
            and all(map(np.array_equal, self.factors, other.factors))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.filter_shape))
        return f"ConvolutionalDictionary({self.n_filters} {self.structure} filters of {shape})"


def load_filters(path: str | os.PathLike[str]) -> ConvolutionalDictionary:
    """Load a convolutional dictionary from a model file.

    Parameters
    ----------
    path : str or path
        A file written by :meth:`ConvolutionalDictionary.save` or ``kronlearn learn
        --convolutional``.

    Returns
    -------
    ConvolutionalDictionary
        A dictionary equal to the one that was saved.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or not of this kind. A kind of ``ValueError``.

    Examples
    --------
    See :meth:`ConvolutionalDictionary.save`.
    """
    tensors, info = read_file(path, _KIND)
    with wrap_errors(f"{path} does not hold valid filters", ModelFileError):
        return filters_in(tensors, info, "factors")


def check_dictionary(dictionary: Any) -> None:
    """Raise unless this is a :class:`ConvolutionalDictionary`."""
    if not isinstance(dictionary, ConvolutionalDictionary):
        raise TypeError(
            f"dictionary is {type(dictionary).__name__}; pass a ConvolutionalDictionary."
        )


def tensors_of(dictionary: ConvolutionalDictionary, name: str) -> dict[str, NDArray[Any]]:
    """The factors, named ``name.0``, ``name.1``, … as in a file."""
    return {f"{name}.{k}": factor for k, factor in enumerate(dictionary.factors)}


def filters_in(
    tensors: Mapping[str, NDArray[Any]], info: Mapping[str, Any], name: str
) -> ConvolutionalDictionary:
    """The dictionary whose factors are ``name.0``, ``name.1``, …"""
    names = (f"{name}.{k}" for k in count())
    factors = [tensors[key] for key in takewhile(tensors.__contains__, names)]
    return ConvolutionalDictionary(factors, info["structure"], info["has_channels"])


def _check_shapes(arrays: list[NDArray[Any]], structure: str) -> None:
    """Raise unless arrays of these shapes can be the factors of such a dictionary."""
    shapes = ", ".join(str(array.shape) for array in arrays) or "none"
    if structure == "dense":
        if len(arrays) != 1 or arrays[0].ndim < 2:
            raise ValueError(
                f"Dense filters are a list of one array (M, p_1, …, p_d), not {shapes}."
            )
    elif not arrays or any(array.ndim != 2 for array in arrays):
        raise ValueError(f"Factors are matrices, one for each axis; these have shapes {shapes}.")
    elif structure == "separable" and len({array.shape[1] for array in arrays}) > 1:
        raise ValueError(
            f"Factors of separable filters must all have the same number of columns; got {shapes}."
        )
    if any(array.size == 0 for array in arrays):
        raise ValueError(f"Factors must not be empty; these have shapes {shapes}.")
