"""NetCDF: version 4 is HDF5 inside, the classic one is read where it lies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, declared, plain, wavelengths_among
from kronlearn.io.formats.mapped import FileArray, Layout
from kronlearn.io.stored import StoredArray, StoredArrayError
from kronlearn.io.writers import Target, blocks

__all__ = ["ClassicArray", "open_file", "prepare", "save"]

# A variable that may be wavelengths or coordinates has so many numbers at most.
_SHORT = 1 << 16


class ClassicArray(FileArray):
    """A variable of a classic NetCDF file (version 3)."""

    format = "netcdf"


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


def prepare(target: Target) -> tuple[np.dtype[Any], bytes]:
    """The dtype in which rows are collected, and what stands before them."""
    is_classic = isinstance(target.source, ClassicArray) and target.dtype is None
    return (target.out_dtype, b"") if is_classic else hdf5.prepare(target)


def save(target: Target, values: np.memmap[Any, Any], place: Path) -> None:
    """Write a copy of the source with these values if that is classic, and NetCDF 4 otherwise."""
    source = target.source
    if not isinstance(source, ClassicArray) or target.dtype is not None:
        hdf5.save(target, values, place, is_netcdf=True)
        return
    shutil.copyfile(str(source.path), place)
    descriptor = os.open(place, os.O_WRONLY)
    try:
        for key, part in blocks(values.reshape(source.shape), target.cube.space[0]):
            numbers = target.packed(part, source.stored_dtype)
            source.layout.write(descriptor, key, numbers)
    finally:
        os.close(descriptor)


def _open_classic(path: Path, dataset: str | None) -> ClassicArray:
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
    return ClassicArray(
        path,
        layouts[name],
        exact=False,
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
