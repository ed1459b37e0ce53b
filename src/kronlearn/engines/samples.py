"""Samples in whatever is given for them, opened as engines read them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.numbers import real_array
from kronlearn.core.source import Source, check_size
from kronlearn.cuda.arrays import DeviceSource, in_memory, is_on_gpu
from kronlearn.engines.lazy import has_unknown_length
from kronlearn.io.arrays import ArraySource, dask_array
from kronlearn.io.stored import StoredArray, open_array

__all__ = ["Samples", "array_in_memory", "open_samples", "source_of", "weighted"]

# Whose arrays are read in blocks instead of being taken into memory.
_LAZY = ("dask", "h5py", "xarray", "zarr")

Samples = NDArray[Any] | StoredArray | Source


def open_samples(Y: Any, name: str = "Y") -> Samples:
    """Samples as they can be read: an array in memory, a stored one, or a source.

    Paths, mapped files, arrays of Zarr, h5py, Dask and xarray, and what has a method ``as_source``,
    as the patches of an image do, are read in blocks. The samples of a Dask array that does not
    know how many it has are counted, which computes it once. ``name`` is what errors call an array
    in memory.
    """
    if isinstance(Y, Source) or is_on_gpu(Y):
        return Y
    if hasattr(Y, "as_source"):
        return Y.as_source()
    if has_unknown_length(Y):
        # The caller's array stays as it is.
        Y = Y.copy().compute_chunk_sizes()
    lazy = type(Y).__module__.split(".")[0] in _LAZY
    if not lazy and not isinstance(Y, str | os.PathLike | StoredArray | np.memmap):
        return array_in_memory(Y, name)
    stored = open_array(Y)
    if stored.ndim < 2:
        raise stored.error(
            f"has shape {stored.shape}; an array of samples (N, m_1, …, m_d) is needed"
        )
    return stored


def array_in_memory(Y: Any, name: str = "Y") -> NDArray[Any]:
    """Samples as an array of real numbers with at least two dimensions and one sample."""
    array = real_array(Y, name)
    check_size(array.shape, name)
    return array


def source_of(
    samples: Samples | ArrayLike, patch_shape: tuple[int, ...], name: str = "Y"
) -> Source:
    """The source of opened samples of a shape."""
    if isinstance(samples, Source):
        if samples.patch_shape != patch_shape:
            raise ValueError(
                f"The samples have shape {samples.patch_shape}; {patch_shape} is needed."
            )
        return samples
    if is_on_gpu(samples):
        return DeviceSource(samples, patch_shape, name)
    return ArraySource(samples, patch_shape, name)


def weighted(source: Source, weights: ArrayLike | None) -> Source:
    """The samples times the roots of their weights, so that sums over them are weighted.

    Codes of ``√w y`` are ``√w`` times those of y, once error targets are scaled alike. Samples in
    memory, and those on a GPU that has room, are copied; others are scaled as they are read.
    """
    if weights is None:
        return source
    roots = np.sqrt(_checked_weights(in_memory(weights), source))
    if isinstance(source, DeviceSource):
        return source.scaled(roots) or _Scaled(source, roots)
    array = source.array if isinstance(source, ArraySource) and source.in_memory else None
    array = dask_array(source) if array is None else array
    if array is None:
        return _Scaled(source, roots)
    factors = roots.astype(source.dtype).reshape(-1, *(1,) * (array.ndim - 1))
    scaled = source_of(open_samples(array * factors), source.patch_shape, source.name)
    scaled.roots = roots
    return scaled


class _Scaled(Source):
    """The samples of a source, each times a number."""

    def __init__(self, source: Source, roots: NDArray[np.float64]) -> None:
        self.source, self.roots = source, roots
        self.factors = roots.astype(source.dtype)[:, None]
        self.patch_shape, self.dtype = source.patch_shape, source.dtype
        self.is_rows, self.device = source.is_rows, source.device
        self.name, self.first = source.name, source.first

    def __len__(self) -> int:
        return len(self.source)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples, scaled."""
        return self.source.read(start, stop) * self.factors[start:stop]

    def step(self, multiple_of: int) -> int:
        """As the source has it."""
        return self.source.step(multiple_of)


def _checked_weights(weights: ArrayLike, source: Source) -> NDArray[np.float64]:
    """The weights, one for each sample, once they make sense."""
    array, n_samples = real_array(weights, "sample_weight"), len(source)
    if array.ndim == 0:
        array = np.full(n_samples, array)
    if array.shape != (n_samples,):
        raise ValueError(
            f"sample_weight has shape {array.shape}; {source.name} has {n_samples} samples, pass "
            f"one weight for each of them, an array of shape ({n_samples},)."
        )
    if not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError("sample_weight must be finite and not negative.")
    if not array.any():
        raise ValueError("sample_weight is zero for all samples; give at least one a weight.")
    # Samples are squared in their own dtype: it has to hold the weights, not only their roots.
    limits = np.finfo(source.dtype)
    if not limits.tiny <= array.max() <= limits.max:
        raise ValueError(
            f"sample_weight goes up to {array.max():g}, which {source.dtype} does not hold; "
            "multiply all weights by a number that makes the largest about 1."
        )
    return array.astype(np.float64)
