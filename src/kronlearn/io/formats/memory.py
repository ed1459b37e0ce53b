"""Arrays that are objects already: of NumPy, Dask, Zarr, h5py, xarray, or similar ones."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import format_module
from kronlearn.io.formats.conventions import describe
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import StoredArray, StoredArrayError, open_array

__all__ = ["wrap"]

# Images of SPy in ENVI and similar files.
_SPY_FILES = {f"spectral.{order}File" for order in ("Bsq", "Bil", "Bip")}


def wrap(thing: Any) -> StoredArray:
    """An array-like object as a stored array."""
    package = type(thing).__module__.partition(".")[0]
    kind = f"{package}.{type(thing).__name__}"
    if kind == "xarray.DataArray":
        return _wrap_xarray(thing)
    if kind == "zarr.Array":
        return _wrap_zarr(thing)
    if kind == "h5py.Dataset":
        description = format_module("hdf5").describe_dataset(thing)
        return StoredArray(thing, str(description["path"]), format="hdf5", **description)
    if kind in _SPY_FILES:
        return _wrap_spy(thing, kind)
    array = _array_of(thing, package, kind)
    if isinstance(array, np.memmap):
        array = _unmapped(array)
    if isinstance(array, FileArray):
        return StoredArray(array, str(array.path), path=array.path)
    return StoredArray(array, kind)


def _wrap_xarray(array: Any) -> StoredArray:
    """A DataArray as a stored array, with its dimension names, attributes and coordinates.

    NaN marks missing values, as everywhere in xarray, and so does a value that attributes declare.
    """
    label = "xarray.DataArray" + (f" {array.name}" if array.name else "")
    name = None if array.name is None else str(array.name)
    coordinates = {str(k): v for k, v in array.coords.items() if k != array.name}
    # rioxarray keeps the grid mapping in the encoding, and the band names in long_name.
    attributes = {k: v for k, v in array.encoding.items() if k == "grid_mapping"}
    if isinstance(array.attrs.get("long_name"), tuple):
        attributes["band names"] = list(array.attrs["long_name"])
    dims = list(map(str, array.dims))
    description = describe(name, array, attributes | array.attrs, dims, coordinates, unpack=False)
    if array.dtype.kind == "f" and description["nodata"] is None:
        description["nodata"] = math.nan
    return StoredArray(array, label, **description)


def _wrap_spy(image: Any, kind: str) -> StoredArray:
    """An image of SPy as the array in its file, which SPy reads without nodata and bad bands."""
    if image.scale_factor != 1:
        raise StoredArrayError(
            f"A {kind} was given, whose numbers SPy divides by {image.scale_factor:g}; pass the "
            f"path {image.filename} for the numbers as they are stored, or image.load() for the "
            "quotients."
        )
    if format_module("envi").header_of(Path(image.filename)) is None:
        return StoredArray(image, kind)
    return open_array(image.filename)


def _wrap_zarr(array: Any) -> StoredArray:
    description = format_module("zarr").describe_array(array, {})
    root = getattr(array.store, "root", None)
    # Other processes open an array in a folder again, whatever their working directory is.
    path = Path(os.path.abspath(root)) if isinstance(root, Path) else None
    label = f"zarr.Array {array.store_path}" if path is None else str(path)
    return StoredArray(array, label, format="zarr", path=path, **description)


def _array_of(thing: Any, package: str, kind: str) -> Any:
    """The object, or its content, as an array with shape, dtype and __getitem__."""
    if isinstance(thing, np.ma.MaskedArray):
        if np.ma.is_masked(thing):
            raise StoredArrayError(
                "A masked array was given; pass array.filled(value) and nodata=value instead."
            )
        return thing.data
    if isinstance(thing, list | tuple) or package == "torch":
        return np.asarray(thing)
    if package.startswith("dask") and hasattr(thing, "to_dask_array"):
        raise StoredArrayError(
            f"A {kind} is a table; pass its numbers, frame.to_dask_array(lengths=True)."
        )
    if package == "dask" and any(math.isnan(length) for length in getattr(thing, "shape", ())):
        raise StoredArrayError(
            "The Dask array has axes of unknown length; call its compute_chunk_sizes() first."
        )
    if not all(hasattr(thing, name) for name in ("shape", "dtype", "__getitem__")):
        raise StoredArrayError(
            f"A {kind} is not an array; pass a path, an array or an object with shape, "
            "dtype and __getitem__."
        )
    return thing


def _unmapped(mapped: np.memmap[Any, Any]) -> Any:
    """The part of a file behind a mapped array, which other processes can open again.

    The mapped array itself if it is private, has negative strides or its file was deleted.
    """
    if mapped.filename is None or mapped.mode == "c" or min(mapped.strides, default=0) <= 0:
        return mapped
    whole = mapped
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    start = mapped.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    offset = whole.offset + start
    try:
        return FileArray(Path(mapped.filename), mapped.shape, mapped.dtype, offset, mapped.strides)
    except FileNotFoundError:
        return mapped
