"""NetCDF: the classic one, read where it lies; version 4 is HDF5, which is what is written."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
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


class _Variable:
    """Where a variable of scipy's lies in its file, and a copy of its numbers if they are few."""

    def __init__(self, variable: Any, file: Any) -> None:
        numbers = variable.data
        self.shape, self.dtype, self.strides = numbers.shape, numbers.dtype, numbers.strides
        self.offset = _address(numbers) - _address(file._mm_buf)
        self.attrs, self.axes = variable._attributes, variable.dimensions
        self.numbers = np.array(numbers) if numbers.size <= _SHORT else None

    def __getitem__(self, key: Any) -> NDArray[Any]:
        assert self.numbers is not None
        return np.asarray(self.numbers[key])


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array of a classic NetCDF file."""
    from scipy.io import netcdf_file

    # The variables are views into the map; where they lie is all that is kept of it.
    with netcdf_file(path, "r", mmap=True) as file:
        found = {name: _Variable(variable, file) for name, variable in file.variables.items()}
    name = choose(str(path), found, dataset)
    one = found[name]
    short = {n: v for n, v in found.items() if v.numbers is not None and len(v.shape) < 2}
    description = described(name, one, one.attrs, one.axes, short)
    return FileArray(path, one.shape, one.dtype, one.offset, one.strides), description


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
