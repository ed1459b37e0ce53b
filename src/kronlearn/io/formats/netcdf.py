"""NetCDF: the classic one, read where it lies; version 4 is HDF5, which is what is written."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, described
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import Opened

__all__ = ["open_file", "save"]

save = hdf5.save

# A variable that may be wavelengths or coordinates has so many numbers at most.
_SHORT = 1 << 16


class _Vector:
    """A copy of a short variable, with its attributes."""

    def __init__(self, variable: Any) -> None:
        self.values, self.attrs = np.array(variable.data), variable._attributes
        self.shape, self.dtype = self.values.shape, self.values.dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        return np.asarray(self.values[key])


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array of a classic NetCDF file."""
    from scipy.io import netcdf_file

    # The variables are views into the map; where they lie is all that is kept of it.
    with netcdf_file(path, "r", mmap=True) as file:
        start = _address(file._mm_buf)
        found = {
            name: SimpleNamespace(
                shape=v.data.shape,
                dtype=v.data.dtype,
                strides=v.data.strides,
                offset=_address(v.data) - start,
                attributes=v._attributes,
                axes=v.dimensions,
            )
            for name, v in file.variables.items()
        }
        vectors = {
            name: _Vector(v)
            for name, v in file.variables.items()
            if v.data.ndim <= 1 and v.data.size <= _SHORT
        }
    name = choose(str(path), found, dataset)
    one = found[name]
    description = described(name, one, one.attributes, one.axes, vectors)
    return FileArray(path, one.shape, one.dtype, one.offset, one.strides), description


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
