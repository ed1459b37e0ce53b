"""Samples in arrays, files and lazy arrays, read a block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.numbers import real_array
from kronlearn.core.source import BLOCK_NUMBERS, Source, check_shape, sample_dtype
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import StoredArray

__all__ = ["ArraySource", "dask_array"]


class ArraySource(Source):
    """The samples of an array ``(N, m_1, …, m_d)``, read in blocks of C-contiguous floats.

    Blocks are views if the array is in memory and C-contiguous float32 or float64. Anything else
    (stored arrays, integers, other byte or memory orders) is read and converted block by block:
    float32 stays float32, everything else becomes float64.

    Parameters
    ----------
    Y : array or StoredArray of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
    patch_shape : tuple of int
        ``(m_1, …, m_d)``.
    name : str
        What error messages call an array in memory.
    """

    def __init__(
        self, Y: ArrayLike | StoredArray, patch_shape: tuple[int, ...], name: str = "Y"
    ) -> None:
        self.array = Y if isinstance(Y, StoredArray) else real_array(Y, name)
        self.patch_shape, self.name = patch_shape, Y.name if isinstance(Y, StoredArray) else name
        check_shape(self.array.shape, patch_shape, name)
        self.dtype = sample_dtype(self.array.dtype)
        self.is_rows = self.array.ndim == 2

    def __len__(self) -> int:
        return self.array.shape[0]

    @property
    def in_memory(self) -> bool:
        """Whether the array is in memory rather than stored."""
        return isinstance(self.array, np.ndarray)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples; a view if they need no conversion."""
        return self._converted(self.array[start:stop])

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Samples ``(len(rows), m_1·…·m_d)`` of the given rows, in any order."""
        if isinstance(self.array, StoredArray):
            return super().take(rows)
        return self._converted(self.array[rows])

    def whole(self, start: int, stop: int) -> NDArray[Any] | None:
        """Consecutive samples as a view; None if they must be read or converted."""
        array = self.array
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype:
            return None
        return self.read(start, stop) if array.flags.c_contiguous and array.flags.aligned else None

    def file(self, start: int) -> tuple[int, int] | None:
        """Descriptor and offset of a sample in an uncompressed file of this dtype in C order."""
        thing: Any = getattr(self.array, "thing", None)
        is_in_file = isinstance(thing, FileArray) and thing.dtype == self.dtype
        return thing.location(start) if is_in_file else None

    def step(self, multiple_of: int) -> int:
        """The number of samples to read at a time: whole chunks unless they are very large."""
        step = super().step(multiple_of)
        rows = (getattr(self.array, "chunks", None) or (1,))[0]
        if step < rows and rows * self.n_features <= 4 * BLOCK_NUMBERS:
            step = -(-rows // multiple_of) * multiple_of
        return step

    def _converted(self, samples: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(samples, dtype=self.dtype).reshape(-1, self.n_features)


def dask_array(source: Source) -> Any:
    """The Dask array that a source reads, or None."""
    thing: Any = getattr(getattr(source, "array", None), "thing", None)
    if type(thing).__module__.startswith("xarray"):
        thing = thing.variable.data if thing.chunks is not None else None
    return thing if type(thing).__module__.startswith("dask") else None
