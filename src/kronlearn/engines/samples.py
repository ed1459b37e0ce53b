"""Opening of samples: from what users pass to the sources that engines read."""

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

# Packages whose arrays are read in blocks, not loaded into memory.
_LAZY_PACKAGES = ("dask", "h5py", "xarray", "zarr")

Samples = NDArray[Any] | StoredArray | Source


def open_samples(Y: Any, name: str = "Y") -> Samples:
    """Open samples as an array in memory, a stored array, or a source.

    Paths, memory maps, arrays of Zarr, h5py, Dask and xarray, and objects with a method
    ``as_source``, such as the patches of an image, are read in blocks. The samples of a Dask array
    of unknown length are counted, which computes the array once. Error messages call an array in
    memory ``name``.
    """
    if isinstance(Y, Source) or is_on_gpu(Y):
        return Y
    if hasattr(Y, "as_source"):
        return Y.as_source()
    if has_unknown_length(Y):
        # A copy, because compute_chunk_sizes changes the array itself.
        Y = Y.copy().compute_chunk_sizes()
    lazy = type(Y).__module__.split(".")[0] in _LAZY_PACKAGES
    if not lazy and not isinstance(Y, str | os.PathLike | StoredArray | np.memmap):
        return array_in_memory(Y, name)
    stored = open_array(Y)
    if stored.ndim < 2:
        raise stored.error(
            f"has shape {stored.shape}; an array of samples (N, m_1, …, m_d) is needed"
        )
    return stored


def array_in_memory(Y: Any, name: str = "Y") -> NDArray[Any]:
    """Convert samples to an array of real numbers; raise unless it holds at least one sample."""
    array = real_array(Y, name)
    check_size(array.shape, name)
    return array


def source_of(
    samples: Samples | ArrayLike, patch_shape: tuple[int, ...], name: str = "Y"
) -> Source:
    """Make a source of opened samples; raise unless they have the shape ``patch_shape``."""
    if isinstance(samples, Source):
        if samples.patch_shape != patch_shape:
            raise ValueError(
                f"The samples have shape {samples.patch_shape}, but {patch_shape} is needed."
            )
        return samples
    if is_on_gpu(samples):
        return DeviceSource(samples, patch_shape, name)
    return ArraySource(samples, patch_shape, name)


def weighted(source: Source, weights: ArrayLike | None) -> Source:
    """A source of the samples times the square roots of their weights, so that sums are weighted.

    The code of ``√w y`` is ``√w`` times the code of y if the error target is scaled too. Samples in
    memory, and on a GPU with enough memory, are scaled at once; others as they are read.
    """
    if weights is None:
        return source
    roots = np.sqrt(_checked_weights(in_memory(weights), source))
    if isinstance(source, DeviceSource):
        return source.scaled(roots) or _Scaled(source, roots)
    if isinstance(source, ArraySource) and source.in_memory:
        array = source.array
    else:
        array = dask_array(source)
        if array is None:
            return _Scaled(source, roots)
    factors = roots.astype(source.dtype).reshape(-1, *(1,) * (array.ndim - 1))
    scaled = source_of(open_samples(array * factors), source.patch_shape, source.name)
    scaled.sqrt_weights = roots
    return scaled


class _Scaled(Source):
    """The samples of a source, each times a number, scaled as they are read."""

    def __init__(self, source: Source, roots: NDArray[np.float64]) -> None:
        self.source, self.sqrt_weights = source, roots
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
        """The step of the source."""
        return self.source.step(multiple_of)


def _checked_weights(weights: ArrayLike, source: Source) -> NDArray[np.float64]:
    """Check weights, and return one for each sample."""
    array, n_samples = real_array(weights, "sample_weight"), len(source)
    if array.ndim == 0:
        array = np.full(n_samples, array)
    if array.shape != (n_samples,):
        raise ValueError(
            f"sample_weight has shape {array.shape}, but {source.name} has {n_samples} samples; "
            f"pass one weight for each, an array of shape ({n_samples},)."
        )
    if not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError("sample_weight must be finite and not negative.")
    if not array.any():
        raise ValueError(
            "sample_weight is zero for all samples; at least one weight must be positive."
        )
    # Scaled samples are squared in their own dtype, which must therefore hold the weights.
    limits = np.finfo(source.dtype)
    if not limits.tiny <= array.max() <= limits.max:
        raise ValueError(
            f"sample_weight goes up to {array.max():g}, which {source.dtype} cannot hold; rescale "
            "all weights so that the largest is about 1."
        )
    return array.astype(np.float64)
