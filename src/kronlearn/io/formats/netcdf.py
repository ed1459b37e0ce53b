"""NetCDF: version 4 is HDF5 inside, the classic one is read where it lies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, declared, plain, wavelengths_among
from kronlearn.io.formats.plain import FileArray, Layout, write_plain
from kronlearn.io.stored import StoredArray, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["check", "open_file", "save"]

# A variable that may be wavelengths or coordinates has so many numbers at most.
_SHORT = 1 << 16


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


def check(writer: CubeWriter) -> None:
    """Raise if a library is missing."""
    if not _stays_classic(writer):
        hdf5.check(writer)


def save(writer: CubeWriter, values: NDArray[Any], place: Path) -> None:
    """Write a copy of the source with these values if that is classic, and NetCDF 4 otherwise."""
    source: Any = writer.source
    if not _stays_classic(writer):
        hdf5.save(writer, values, place, is_netcdf=True)
        return
    shutil.copyfile(str(source.path), place)
    values, row_axis, layout = values.reshape(source.shape), writer.cube.space[0], source.layout
    write_plain(place, layout, values, row_axis, lambda v: writer.packed(v, layout.dtype))


def _stays_classic(writer: CubeWriter) -> bool:
    is_classic = isinstance(writer.source, FileArray) and writer.source.format == "netcdf"
    return is_classic and writer.keeps_dtype


def _open_classic(path: Path, dataset: str | None) -> FileArray:
    from scipy.io import netcdf_file

    # The variables are views into the map; where they lie is all that is kept of it.
    with netcdf_file(path, "r", mmap=True) as file:
        layouts = {name: _layout(v.data, file._mm_buf) for name, v in file.variables.items()}
        details = {
            name: (plain(v._attributes), tuple(v.dimensions)) for name, v in file.variables.items()
        }
        vectors = {
            name: np.array(v.data)
            for name, v in file.variables.items()
            if v.data.ndim == 1 and v.data.size <= _SHORT
        }
    name = choose(str(path), layouts, dataset)
    attributes, axes = details[name]
    return FileArray(
        path,
        layouts[name],
        "netcdf",
        dataset=name,
        attributes=attributes,
        axes=axes,
        coordinates={n: vectors[n] for n in axes if n in vectors},
        wavelengths=wavelengths_among({n: v for n, v in vectors.items() if n != name}),
        **declared(f"{path} ({name})", attributes, layouts[name].dtype),
    )


def _layout(data: NDArray[Any], buffer: NDArray[Any]) -> Layout:
    """Where a variable lies in its file."""
    first, start = (int(array.__array_interface__["data"][0]) for array in (data, buffer))
    return Layout(data.shape, data.dtype, first - start, data.strides)
