"""Samples in stored arrays: files and lazy arrays, read a block at a time."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.source import BLOCK_NUMBERS, Source, sample_dtype
from kronlearn.io.arrays import ArraySource, check_shape, real_array
from kronlearn.io.device_arrays import DeviceSource, is_on_gpu
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import StoredArray, open_array

__all__ = ["Samples", "StoredSource", "dask_array", "open_samples", "source_of"]

# Whose arrays are read in blocks instead of being taken into memory.
_LAZY = ("dask", "h5py", "xarray", "zarr")

Samples = NDArray[Any] | StoredArray | Source


class StoredSource(Source):
    """Samples of a stored array ``(N, m_1, …, m_d)`` or ``(N, m_1·…·m_d)``.

    Parameters
    ----------
    stored : StoredArray
    patch_shape : tuple of int
        ``(m_1, …, m_d)``.
    """

    def __init__(self, stored: StoredArray, patch_shape: tuple[int, ...]) -> None:
        check_shape(stored.shape, patch_shape)
        self.stored, self.name = stored, stored.name
        self.patch_shape = patch_shape
        self.dtype = sample_dtype(stored.dtype)
        self.is_rows = stored.ndim == 2

    def __len__(self) -> int:
        return self.stored.shape[0]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples, converted; a view of a mapped file where that is possible."""
        key = (slice(start, stop), *[slice(None)] * (self.stored.ndim - 1))
        block = np.ascontiguousarray(self.stored.read(key), dtype=self.dtype)
        return block.reshape(-1, self.n_features)

    def file(self, start: int) -> tuple[int, int] | None:
        """Descriptor and offset of an uncompressed file with samples of this dtype in C order."""
        if not isinstance(self.stored, FileArray) or self.stored.stored_dtype != self.dtype:
            return None
        return self.stored.place_of(start)

    def step(self, multiple_of: int) -> int:
        """How many samples to read at a time: whole chunks unless they are very large."""
        step = super().step(multiple_of)
        rows = (self.stored.chunks or (1,))[0]
        if step < rows and rows * self.n_features <= 4 * BLOCK_NUMBERS:
            step = -(-rows // multiple_of) * multiple_of
        return step


def open_samples(Y: Any, name: str = "Y") -> Samples:
    """Samples as they can be read: an array in memory, a stored one, or a source.

    Parameters
    ----------
    Y : array, path, lazy array or Source
        Paths, mapped files and arrays of Zarr, h5py, Dask and xarray are read in blocks.
    name : str
        What errors call an array in memory.
    """
    if isinstance(Y, Source) or is_on_gpu(Y):
        return Y
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
        return DeviceSource(samples, patch_shape)
    if isinstance(samples, StoredArray):
        return StoredSource(samples, patch_shape)
    return ArraySource(samples, patch_shape, name)


def dask_array(source: Source) -> Any:
    """The Dask array that a source reads, or None."""
    thing: Any = None
    if isinstance(source, StoredSource):
        thing = getattr(source.stored, "thing", None)
    if type(thing).__module__.startswith("xarray"):
        thing = thing.variable.data if thing.chunks is not None else None
    return thing if type(thing).__module__.startswith("dask") else None
