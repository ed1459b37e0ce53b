"""NetCDF: version 4 is HDF5 inside, the classic one is read where it lies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.copies import CopyWriter
from kronlearn.io.formats.mapped import FileArray
from kronlearn.io.formats.naming import choose, plain, wavelengths_among
from kronlearn.io.formats.outputs import ArrayWriter, Plan
from kronlearn.io.formats.packing import Packing, declared_nodata, packing_of
from kronlearn.io.stored import Key, StoredArray, StoredArrayError

__all__ = ["ClassicArray", "create", "open_file"]
DESCRIPTION = "a NetCDF file"


class ClassicArray(FileArray):
    """A variable of a classic NetCDF file (version 3)."""

    format = "netcdf"
    packing: Packing | None = None

    def _read(self, key: Key) -> NDArray[Any]:
        values = super()._read(key)
        return values if self.packing is None else self.packing.unpack(values)


def open_file(path: Path, dataset: str | None) -> StoredArray:
    """The array of a NetCDF file of either kind."""
    with open(path, "rb") as file:
        start = file.read(4)
    if not start.startswith(b"CDF"):
        return hdf5.open_file(path, dataset)
    if start == b"CDF\x05":
        raise StoredArrayError(
            f"{path} is a NetCDF file in the 64-bit data format (CDF-5), which cannot be read; "
            "convert it with nccopy -k nc4."
        )
    return _open_classic(path, dataset)


def create(target: Path, plan: Plan) -> ArrayWriter:
    """A writer of a classic file if the source is one, and of NetCDF 4 otherwise."""
    if isinstance(plan.source, ClassicArray) and plan.dtype is None:
        return _ClassicWriter(target, plan, plan.source)
    return hdf5.Hdf5Writer(target, plan, is_netcdf=True)


class _ClassicWriter(CopyWriter):
    """Writes into a copy of the source, where all else in the file stays."""

    is_copy = True

    def __init__(self, target: Path, plan: Plan, source: ClassicArray) -> None:
        super().__init__(target, plan)
        self.packing, self._source = source.packing, source
        self._descriptor: int | None = None
        try:
            shutil.copyfile(str(source.path), self.temporary)
            self._descriptor = os.open(self.temporary, os.O_WRONLY)
        except BaseException:
            self.remove()
            raise

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Of the variable."""
        return self._source.stored_dtype

    def assign(self, key: tuple[slice | int, ...], values: NDArray[Any]) -> None:
        """Write numbers at their place."""
        assert self._descriptor is not None
        parts = tuple(slice(k, k + 1) if isinstance(k, int) else k for k in key)
        shape = [part.stop - part.start for part in parts]
        self._source.write_part(self._descriptor, parts, values.reshape(shape))

    def release(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_classic(path: Path, dataset: str | None) -> ClassicArray:
    from scipy.io import netcdf_file

    # The variables are views into the map; where they lie is all that is kept of it.
    with netcdf_file(path, "r", mmap=True) as file:
        found = {name: _Variable(v, file._mm_buf) for name, v in file.variables.items()}
    name = choose(str(path), found, dataset)
    variable = found[name]
    attributes = plain(variable.attributes)
    label = f"{path} ({name})"
    packing = packing_of(label, attributes, variable.dtype)
    nodata = declared_nodata(label, attributes, variable.dtype)
    array = ClassicArray(
        path,
        variable.shape,
        variable.dtype,
        variable.offset,
        variable.strides,
        exact=False,
        dataset=name,
        nodata=nodata if packing is None or nodata is None else float("nan"),
        attributes=attributes,
        axes=variable.dimensions,
        coordinates={n: found[n].values for n in variable.dimensions if n in found},
        wavelengths=wavelengths_among({n: v.values for n, v in found.items() if n != name}),
    )
    if packing is not None:
        array.packing, array.dtype = packing, packing.dtype
    return array


class _Variable:
    """Where a variable lies in its file."""

    def __init__(self, variable: Any, buffer: NDArray[Any]) -> None:
        data = variable.data
        self.shape, self.dtype, self.strides = data.shape, data.dtype, data.strides
        start = buffer.__array_interface__["data"][0]
        self.offset = int(data.__array_interface__["data"][0]) - int(start)
        self.dimensions = tuple(variable.dimensions)
        self.attributes = dict(variable._attributes)
        #: Those of a short one; it may be wavelengths.
        is_short = data.ndim == 1 and data.size <= 1 << 16
        self.values = data.astype(data.dtype.newbyteorder("=")) if is_short else np.empty(0)
