"""HDF5, and what is HDF5 inside: NetCDF 4 and MATLAB 7.3."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.absorbing import AbsorbingFile
from kronlearn.io.formats.copies import CopyWriter
from kronlearn.io.formats.naming import choose, plain, wavelengths_among
from kronlearn.io.formats.outputs import Plan, axis_names
from kronlearn.io.formats.packing import NOT_KEPT, declared_nodata, packing_of
from kronlearn.io.stored import Key, StoredArray, need

__all__ = ["Hdf5Array", "Hdf5Writer", "create", "open_file", "open_group"]

DESCRIPTION = "an HDF5 file"

# HDF5 has 64 KiB for an attribute.
_ATTRIBUTE_LENGTH = 2000
_NETCDF_DIMENSION = "This is a netCDF dimension but not a netCDF variable."


class Hdf5Array(StoredArray):
    """A dataset of an HDF5 file.

    Parameters
    ----------
    path : Path
    dataset : h5py.Dataset
    is_netcdf : bool
        Whether scale_factor and add_offset have the meaning that NetCDF gives them.
    is_matlab : bool
        Whether the axes are in MATLAB's order, which is the reverse.
    is_object : bool
        Whether it came as an object and not from a path.
    """

    format = "hdf5"

    def __init__(
        self,
        path: Path,
        dataset: Any,
        *,
        is_netcdf: bool = False,
        is_matlab: bool = False,
        is_object: bool = False,
    ) -> None:
        self.dataset_object = dataset
        self.is_netcdf, self.is_matlab, self.is_object = is_netcdf, is_matlab, is_object
        attributes = plain(_attributes(dataset))
        label = f"{path} ({dataset.name.strip('/')})"
        self.packing = packing_of(label, attributes, dataset.dtype) if is_netcdf else None
        dtype = dataset.dtype if self.packing is None else self.packing.dtype
        nodata = declared_nodata(label, attributes, dataset.dtype)
        turned = slice(None, None, -1) if is_matlab else slice(None)
        super().__init__(
            str(path),
            dataset.shape[turned],
            dtype,
            path=path,
            dataset=dataset.name.strip("/"),
            chunks=None if dataset.chunks is None else dataset.chunks[turned],
            nodata=nodata if self.packing is None or nodata is None else float("nan"),
            attributes=attributes,
            axes=_axes(dataset),
            wavelengths=wavelengths_among(_vectors(dataset)),
        )

    @classmethod
    def of(cls, dataset: Any) -> Hdf5Array:
        """The array of a dataset that is open already."""
        path = Path(os.path.abspath(dataset.file.filename))
        return cls(path, dataset, is_netcdf=_is_netcdf(dataset.file), is_object=True)

    @property
    def is_at_rest(self) -> bool:
        """Whether a copy of the file is a copy of the numbers.

        It is not while the file is being written to, or where the numbers lie in other files.
        """
        dataset = self.dataset_object
        is_complete = not self.is_object or dataset.file.mode == "r"
        return is_complete and not dataset.is_virtual and not dataset.external

    def _read(self, key: Key) -> NDArray[Any]:
        if self.is_matlab:
            return np.asarray(self.dataset_object[key[::-1]]).T
        values = np.asarray(self.dataset_object[key])
        return values if self.packing is None else self.packing.unpack(values)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_object:
            return _reopened_object, (str(self.path), self.dataset)
        return super().__reduce__()


def open_file(path: Path, dataset: str | None, is_matlab: bool = False) -> Hdf5Array:
    """The array of an HDF5 file."""
    h5py = need("h5py", f"To read {path}")
    file = h5py.File(path, "r")
    found = _datasets(file)
    if is_matlab:
        # MATLAB keeps the parts of cells and structures there.
        found = {name: d for name, d in found.items() if not name.startswith("#")}
    name = choose(str(path), found, dataset)
    return Hdf5Array(path, found[name], is_netcdf=_is_netcdf(file), is_matlab=is_matlab)


def open_group(group: Any, dataset: str | None) -> Hdf5Array:
    """The array of a file or group that is open already."""
    found = _datasets(group)
    return Hdf5Array.of(found[choose(f"{group.file.filename}", found, dataset)])


def create(target: Path, plan: Plan) -> Hdf5Writer:
    """A writer of an HDF5 file: a copy of the source with new values, if that is one."""
    return Hdf5Writer(target, plan, is_netcdf=False)


class Hdf5Writer(CopyWriter):
    """Writes into a copy of the source, where all else in the file stays, or into a new file."""

    def __init__(self, target: Path, plan: Plan, is_netcdf: bool) -> None:
        super().__init__(target, plan)
        self._h5py = need("h5py", f"To write {target}")
        self._file: Any = None
        self._bytes: AbsorbingFile | None = None
        source = plan.source
        self.is_copy = isinstance(source, Hdf5Array) and source.is_at_rest
        self._is_matlab = isinstance(source, Hdf5Array) and source.is_matlab and self.is_copy
        try:
            if isinstance(source, Hdf5Array) and self.is_copy:
                self._copy(source, plan)
            else:
                self._new(plan, is_netcdf)
        except BaseException:
            self.remove()
            raise
        chunks = self.array.chunks
        self.row_step = self.step_of(chunks[::-1] if chunks and self._is_matlab else chunks)

    def assign(self, key: tuple[slice | int, ...], values: NDArray[Any]) -> None:
        """Write numbers at their place, for MATLAB with the axes reversed."""
        if self._is_matlab:
            key, values = key[::-1], values.T
        self.array[key] = values
        if self._bytes is not None:
            self._bytes.check()

    def release(self) -> None:
        """Close the file, which writes what the library still holds."""
        if self._file is not None:
            self._file.close()
        if self._bytes is not None:
            self._bytes.close()
            self._bytes.check()

    def _open(self, mode: str) -> Any:
        self._bytes = AbsorbingFile(self.temporary, is_new=mode == "w")
        return self._h5py.File(self._bytes, mode, track_order=True)

    def _copy(self, source: Hdf5Array, plan: Plan) -> None:
        shutil.copyfile(str(source.path), self.temporary)
        self._file = self._open("r+")
        self.array = self._file[source.dataset]
        if plan.dtype is None:
            self.packing = source.packing
        elif plan.dtype != self.array.dtype or source.packing is not None:
            self.array = _with_dtype(self.array, self.dtype)
            if plan.nodata is not None:
                self.array.attrs["_FillValue"] = self.dtype.type(plan.nodata)

    def _new(self, plan: Plan, is_netcdf: bool) -> None:
        source = plan.source
        self._file = self._open("w")
        name = source.dataset or "cube"
        shape = tuple(plan.length(axis) for axis in self.order)
        self.array = self._file.create_dataset(name, shape, self.dtype, chunks=True)
        for key, value in source.attributes.items():
            is_short = not isinstance(value, str | list) or len(value) <= _ATTRIBUTE_LENGTH
            if isinstance(value, str | int | float | list) and is_short and key not in NOT_KEPT:
                self.array.attrs[key] = value
        if plan.nodata is not None:
            self.array.attrs["_FillValue"] = self.dtype.type(plan.nodata)
        for axis, label in enumerate(axis_names(plan, self.order)):
            values = source.coordinates.get(label)
            if self.order[axis] == "band" and values is None:
                values = plan.wavelengths
            self.array.dims[axis].label = label
            if is_netcdf or values is not None:
                self._attach(axis, label, values)

    def _attach(self, axis: int, label: str, values: NDArray[Any] | None) -> None:
        """Give an axis its name and coordinates, as NetCDF does."""
        length = self.array.shape[axis]
        scale = self._file.create_dataset(
            label, data=np.zeros(length, np.float32) if values is None else values
        )
        scale.make_scale(f"{_NETCDF_DIMENSION}{length:10d}" if values is None else label)
        self.array.dims[axis].attach_scale(scale)


def _with_dtype(dataset: Any, dtype: np.dtype[Any]) -> Any:
    """A dataset with another dtype in the place of one, with its attributes and dimensions."""
    file, name = dataset.file, dataset.name
    scales = [[dim[i] for i in range(len(dim))] for dim in dataset.dims]
    for dim, attached in zip(dataset.dims, scales, strict=True):
        for scale in attached:
            dim.detach_scale(scale)
    # References to other objects cannot be copied; the dimensions are attached again below.
    dropped = NOT_KEPT - {"_Netcdf4Dimid", "_Netcdf4Coordinates"}
    kept = {k: v for k, v in dataset.attrs.items() if k not in dropped}
    options = {k: getattr(dataset, k) for k in ("chunks", "compression", "compression_opts")}
    options |= {k: getattr(dataset, k) for k in ("shuffle", "fletcher32", "maxshape")}
    shape = dataset.shape
    del file[name]
    new = file.create_dataset(name, shape, dtype, **options)
    for key, value in kept.items():
        new.attrs[key] = value
    for dim, attached in zip(new.dims, scales, strict=True):
        for scale in attached:
            dim.attach_scale(scale)
    return new


def _datasets(group: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(name: str, thing: Any) -> None:
        if hasattr(thing, "dims") and thing.shape is not None:
            found[name] = thing

    group.visititems(visit)
    return found


def _attributes(dataset: Any) -> dict[str, Any]:
    """The attributes, leaving out those that cannot be read."""
    found = {}
    for name in dataset.attrs:
        try:
            found[name] = dataset.attrs[name]
        except (OSError, TypeError):
            continue
    return found


def _axes(dataset: Any) -> tuple[str, ...] | None:
    names = []
    for dim in dataset.dims:
        scale = dim[0].name.rpartition("/")[2] if len(dim) else ""
        names.append(dim.label or scale)
    return tuple(names) if any(names) else None


def _vectors(dataset: Any) -> dict[str, Any]:
    """The small arrays of the file, which may be wavelengths."""
    found = _datasets(dataset.file)
    longest = max(dataset.shape, default=0)
    return {name: d for name, d in found.items() if 0 < d.size <= longest and d != dataset}


def _is_netcdf(file: Any) -> bool:
    ending = Path(file.filename).suffix.lower()
    return "_NCProperties" in file.attrs or ending in (".nc", ".nc4", ".cdf")


def _reopened_object(path: str, name: str) -> Hdf5Array:
    h5py = need("h5py", f"To read {path}")
    return Hdf5Array.of(h5py.File(path, "r")[name])
