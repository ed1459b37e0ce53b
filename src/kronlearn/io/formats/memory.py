"""Arrays that are objects already: of NumPy, Dask, Zarr, h5py, xarray, or anything like them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.stored import Key, StoredArray, StoredArrayError

__all__ = ["ObjectArray", "XarrayArray", "wrap"]


class ObjectArray(StoredArray):
    """An object with ``shape``, ``dtype`` and ``__getitem__``; it is sent to others as it is."""

    def __init__(self, thing: Any, name: str | None = None, **more: Any) -> None:
        self.thing = thing
        chunks = getattr(thing, "chunks", None)
        if chunks is not None:
            # Dask has the lengths of all chunks along an axis.
            chunks = tuple(c if isinstance(c, int) else max(c) for c in chunks)
        name = name or f"{type(thing).__module__.partition('.')[0]}.{type(thing).__name__}"
        super().__init__(name, thing.shape, thing.dtype, chunks=chunks, **more)

    def _read(self, key: Key) -> NDArray[Any]:
        return np.asarray(self.thing[key])

    def __reduce__(self) -> tuple[Any, ...]:
        mapped = _mapped_part(self.thing)
        if mapped is not None:
            return _map_again, (type(self), mapped, self.name)
        return object.__reduce__(self)  # type: ignore[return-value]


class XarrayArray(ObjectArray):
    """A DataArray: the names of its dimensions, its attributes and its coordinates are kept.

    NaN is a missing value, as everywhere in xarray.
    """

    format = "xarray"

    def __init__(self, thing: Any) -> None:
        from kronlearn.io.formats.naming import plain, wavelengths_among

        nodata = math.nan if thing.dtype.kind == "f" else None
        for name in ("_FillValue", "missing_value", "nodata"):
            if name in thing.attrs and nodata is None:
                nodata = thing.attrs[name]
        coordinates = {str(k): v.values for k, v in thing.coords.items() if v.ndim == 1}
        name = "xarray.DataArray" + (f" {thing.name}" if thing.name else "")
        super().__init__(
            thing,
            name,
            nodata=nodata,
            attributes=plain(thing.attrs),
            axes=tuple(map(str, thing.dims)),
            wavelengths=wavelengths_among(coordinates),
            coordinates={k: v for k, v in coordinates.items() if v.dtype.kind in "fiu"},
        )
        self.dataset = None if thing.name is None else str(thing.name)

    def _read(self, key: Key) -> NDArray[Any]:
        return np.asarray(self.thing[key].values)


def wrap(thing: Any, dataset: str | None) -> StoredArray:
    """An object as a stored array; ``dataset`` names an array in a container."""
    package = type(thing).__module__.partition(".")[0]
    kind = type(thing).__name__
    if package == "xarray" and kind == "Dataset":
        from kronlearn.io.formats.naming import choose

        found = {str(name): variable for name, variable in thing.data_vars.items()}
        return XarrayArray(thing[choose("The xarray.Dataset", found, dataset)])
    if package == "zarr" and kind == "Group":
        from kronlearn.io.formats import zarr_store

        return zarr_store.open_group(thing, dataset)
    if package == "h5py" and kind in ("File", "Group"):
        from kronlearn.io.formats import hdf5

        return hdf5.open_group(thing, dataset)
    if dataset is not None:
        raise StoredArrayError(
            f"dataset={dataset!r} was given with a {package}.{kind}, which is one array; leave "
            "it out."
        )
    return _wrap_one(thing, package, kind)


def _wrap_one(thing: Any, package: str, kind: str) -> StoredArray:
    if package == "xarray" and kind == "DataArray":
        return XarrayArray(thing)
    if package == "zarr" and kind == "Array":
        from kronlearn.io.formats.zarr_store import ZarrArray

        return ZarrArray(thing)
    if package == "h5py" and kind == "Dataset":
        from kronlearn.io.formats.hdf5 import Hdf5Array

        return Hdf5Array.of(thing)
    if isinstance(thing, np.ma.MaskedArray):
        if np.ma.is_masked(thing):
            raise StoredArrayError(
                "A masked array was given; pass array.filled(value) and nodata=value instead."
            )
        thing = thing.data
    if isinstance(thing, list | tuple) or package == "torch":
        thing = np.asarray(thing)
    if package == "dask" and any(math.isnan(length) for length in getattr(thing, "shape", ())):
        raise StoredArrayError(
            "The dask array does not know how long its axes are; call its compute_chunk_sizes()."
        )
    if not all(hasattr(thing, name) for name in ("shape", "dtype", "__getitem__")):
        raise StoredArrayError(
            f"A {package}.{kind} is not an array; pass a path, or an object with shape, dtype and "
            "__getitem__."
        )
    return ObjectArray(thing)


def _mapped_part(thing: Any) -> tuple[Any, ...] | None:
    """Where in a file the numbers of a memory-mapped array are; None for all other arrays."""
    base = thing
    while isinstance(base, np.ndarray) and isinstance(base.base, np.ndarray):
        base = base.base
    if not (isinstance(base, np.memmap) and isinstance(thing, np.ndarray)):
        return None
    # The changes to a copy-on-write map are in no file.
    if base.filename is None or base.mode == "c":
        return None
    start = thing.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    extent = base.offset + base.nbytes
    place = base.offset + start
    return str(base.filename), extent, place, thing.shape, thing.strides, thing.dtype


def _map_again(kind: type[ObjectArray], mapped: tuple[Any, ...], name: str) -> ObjectArray:
    filename, extent, place, shape, strides, dtype = mapped
    try:
        whole = np.memmap(filename, np.uint8, "r", shape=(extent,))
    except (OSError, ValueError) as problem:
        raise StoredArrayError(f"{filename} cannot be mapped again: {problem}.") from problem
    return kind(np.ndarray(shape, dtype, whole, place, strides), name)
