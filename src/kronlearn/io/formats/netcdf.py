"""NetCDF: classic files, read in place; version 4 is HDF5, and is what gets written."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, describe
from kronlearn.io.formats.npy import FileArray, checked
from kronlearn.io.stored import Opened

__all__ = ["open_file", "save"]

save = hdf5.save

# Variables with at most this many numbers may be wavelengths or coordinates and are read at once.
_MAX_SHORT = 1 << 16


class _Variable:
    """The offset of a scipy variable in its file, and a copy of its numbers if they are few."""

    def __init__(self, variable: Any, file: Any) -> None:
        numbers = variable.data
        self.shape, self.dtype, self.strides = numbers.shape, numbers.dtype, numbers.strides
        self.offset = _address(numbers) - _address(file._mm_buf)
        self.attrs, self.axes = variable._attributes, variable.dimensions
        self.numbers = np.array(numbers) if numbers.size <= _MAX_SHORT else None

    def __getitem__(self, key: Any) -> NDArray[Any]:
        assert self.numbers is not None
        return np.asarray(self.numbers[key])


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the array in a classic NetCDF file."""
    from scipy.io import netcdf_file

    # The variables are views into a memory map, which is closed once their offsets are known.
    with netcdf_file(path, "r", mmap=True) as file:
        variables = {name: _Variable(variable, file) for name, variable in file.variables.items()}
    name = choose(str(path), variables, dataset)
    variable = variables[name]
    short = {n: v for n, v in variables.items() if v.numbers is not None and len(v.shape) < 2}
    description = describe(name, variable, variable.attrs, variable.axes, short)
    array = FileArray(path, variable.shape, variable.dtype, variable.offset, variable.strides)
    return checked(array, files, exact=False), description


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
