"""Arrays that are objects already: of NumPy, Dask, Zarr, h5py, xarray, or anything like them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats.conventions import described
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import StoredArray, StoredArrayError, module_of

__all__ = ["wrap"]


def wrap(thing: Any) -> StoredArray:
    """An object as a stored array."""
    package = type(thing).__module__.partition(".")[0]
    kind = f"{package}.{type(thing).__name__}"
    if kind == "xarray.DataArray":
        return _of_xarray(thing)
    if kind == "zarr.Array":
        return _of_zarr(thing)
    if kind == "h5py.Dataset":
        description = module_of("hdf5").known(thing)
        return StoredArray(thing, str(description["path"]), format="hdf5", **description)
    thing = _array_like(thing, package, kind)
    if isinstance(thing, np.memmap):
        thing = _in_its_file(thing)
    if isinstance(thing, FileArray):
        return StoredArray(thing, str(thing.path), path=thing.path)
    return StoredArray(thing, kind)


def _of_xarray(thing: Any) -> StoredArray:
    """A DataArray: the names of its dimensions, its attributes and its coordinates are kept.

    NaN is a missing value, as everywhere in xarray, and so is what the attributes declare.
    """
    label = "xarray.DataArray" + (f" {thing.name}" if thing.name else "")
    name = None if thing.name is None else str(thing.name)
    coordinates = {str(k): v for k, v in thing.coords.items() if k != thing.name}
    # Where rioxarray keeps these.
    elsewhere = {k: v for k, v in thing.encoding.items() if k == "grid_mapping"}
    if isinstance(thing.attrs.get("long_name"), tuple):
        elsewhere["band names"] = list(thing.attrs["long_name"])
    known = elsewhere | thing.attrs, list(map(str, thing.dims)), coordinates
    description = described(name, thing, *known, scaled=False)
    if thing.dtype.kind == "f" and description["nodata"] is None:
        description["nodata"] = math.nan
    return StoredArray(thing, label, **description)


def _of_zarr(array: Any) -> StoredArray:
    root, description = getattr(array.store, "root", None), module_of("zarr").known(array, {})
    # An array of a folder is opened again in other processes, wherever they work.
    path = Path(os.path.abspath(root)) if isinstance(root, Path) else None
    label = f"zarr.Array {array.store_path}" if path is None else str(path)
    return StoredArray(array, label, format="zarr", path=path, **description)


def _array_like(thing: Any, package: str, kind: str) -> Any:
    """The object, or the array in it, with shape, dtype and __getitem__."""
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


def _in_its_file(mapped: np.memmap[Any, Any]) -> Any:
    """The part of a file that a mapped array shows, which other processes can open again.

    That is the mapped array itself where it is no such part.
    """
    if mapped.filename is None or mapped.mode == "c" or min(mapped.strides, default=0) <= 0:
        return mapped
    whole = mapped
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    start = mapped.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    place = whole.offset + start, mapped.strides
    try:
        return FileArray(Path(mapped.filename), mapped.shape, mapped.dtype, *place)
    except FileNotFoundError:
        # The file has lost its name, not its content.
        return mapped
