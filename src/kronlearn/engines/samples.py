"""Samples in whatever is given for them, opened as engines read them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.source import Source
from kronlearn.cuda.arrays import DeviceSource, is_on_gpu
from kronlearn.engines.lazy import has_unknown_length
from kronlearn.io.arrays import ArraySource, real_array
from kronlearn.io.stored import StoredArray, open_array

__all__ = ["Samples", "open_samples", "source_of"]

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
        return real_array(Y, name)
    stored = open_array(Y)
    if stored.ndim < 2:
        raise stored.error(
            f"has shape {stored.shape}; an array of samples (N, m_1, …, m_d) is needed"
        )
    return stored


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
