"""Arrays that are objects already: of NumPy, Dask, Zarr, h5py, xarray, or anything like them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.conventions import choose, declared, plain, wavelengths_among
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import Key, StoredArray, StoredArrayError, module_of

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


class XarrayArray(ObjectArray):
    """A DataArray: the names of its dimensions, its attributes and its coordinates are kept.

    NaN is a missing value, as everywhere in xarray.
    """

    def __init__(self, thing: Any) -> None:
        name = "xarray.DataArray" + (f" {thing.name}" if thing.name else "")
        attributes = plain(thing.attrs)
        said = declared(name, attributes, thing.dtype, scaled=False)
        coordinates = {str(k): v.values for k, v in thing.coords.items() if v.ndim == 1}
        super().__init__(
            thing,
            name,
            dataset=None if thing.name is None else str(thing.name),
            nodata=math.nan if thing.dtype.kind == "f" else said["nodata"],
            attributes=attributes,
            axes=tuple(map(str, thing.dims)),
            wavelengths=wavelengths_among(coordinates),
            coordinates={k: v for k, v in coordinates.items() if v.dtype.kind in "fiu"},
        )

    def like(self, values: NDArray[Any]) -> Any:
        """A DataArray of the same coordinates and attributes."""
        return self.thing.copy(data=values)

    def _read(self, key: Key) -> NDArray[Any]:
        return np.asarray(self.thing[key].values)


def wrap(thing: Any, dataset: str | None) -> StoredArray:
    """An object as a stored array; ``dataset`` names an array in a container."""
    package = type(thing).__module__.partition(".")[0]
    kind = f"{package}.{type(thing).__name__}"
    if kind == "xarray.Dataset":
        found = {str(name): variable for name, variable in thing.data_vars.items()}
        return XarrayArray(thing[choose("The xarray.Dataset", found, dataset)])
    if kind in ("h5py.File", "h5py.Group", "zarr.Group"):
        module = module_of("zarr" if package == "zarr" else "hdf5")
        return module.open_group(thing, dataset)
    if dataset is not None:
        raise StoredArrayError(
            f"dataset={dataset!r} was given with a {kind}, which is one array; leave it out."
        )
    if kind == "xarray.DataArray":
        return XarrayArray(thing)
    if kind == "zarr.Array":
        return module_of("zarr").ZarrArray(thing)
    if kind == "h5py.Dataset":
        return module_of("hdf5").Hdf5Array(thing)
    thing = _array_like(thing, package, kind)
    return _mapped(thing) or ObjectArray(thing)


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
            "The dask array does not know how long its axes are; call its compute_chunk_sizes()."
        )
    if not all(hasattr(thing, name) for name in ("shape", "dtype", "__getitem__")):
        raise StoredArrayError(
            f"A {kind} is not an array; pass a path, or an object with shape, dtype and "
            "__getitem__."
        )
    return thing


def _mapped(thing: Any) -> FileArray | None:
    """The part of a file that a memory-mapped array shows, which other processes open again."""
    if not isinstance(thing, np.memmap) or not thing.filename or thing.mode == "c":
        return None
    whole = thing
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if min(thing.strides, default=0) <= 0:
        return None
    start = thing.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    known = thing.shape, thing.dtype, whole.offset + start, thing.strides
    try:
        return FileArray(Path(thing.filename), *known)
    except FileNotFoundError:
        # The file has lost its name, not its content.
        return None
