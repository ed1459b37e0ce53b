"""HDF5 files, which NetCDF 4 and MATLAB 7.3 files are, too."""

from __future__ import annotations

import io
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.atomic import write_at
from kronlearn.io.formats import format_by_ending, georeference, import_library
from kronlearn.io.formats.conventions import choose, describe
from kronlearn.io.stored import Key, Opened
from kronlearn.io.writers import CubeWriter

__all__ = ["Reversed", "describe_dataset", "open_file", "save"]

# An attribute of HDF5 can have 64 KiB, except for texts, which are stored elsewhere.
_LONGEST_LIST = 4000
_NETCDF_DIMENSION = "This is a netCDF dimension but not a netCDF variable."


class Reversed:
    """A dataset of a MATLAB 7.3 file, whose axes the file has in reverse order."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.dtype, self.shape = dataset, dataset.dtype, dataset.shape[::-1]
        self.chunks = None if dataset.chunks is None else dataset.chunks[::-1]

    def __getitem__(self, key: Key) -> NDArray[Any]:
        return np.asarray(self.dataset[key[::-1]]).T

    def __setitem__(self, key: Key, values: NDArray[Any]) -> None:
        self.dataset[key[::-1]] = values.T


def describe_dataset(dataset: Any) -> dict[str, Any]:
    """Attributes of a StoredArray for a dataset of h5py, including the path of its file."""
    path = Path(os.path.abspath(dataset.file.filename))
    is_netcdf = "_NCProperties" in dataset.file.attrs or format_by_ending(path) == "netcdf"
    arrays = {n: d for n, d in _datasets(dataset.file).items() if not _is_bare_dimension(d)}
    name, attributes, axes = dataset.name.strip("/"), dataset.attrs, _axes(dataset)
    return {"path": path, **describe(name, dataset, attributes, axes, arrays, unpack=is_netcdf)}


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the array in an HDF5 file."""
    file = files.enter_context(import_library("h5py", f"To read {path}").File(path, "r"))
    # MATLAB keeps the parts of cells and structures under names with "#".
    arrays = {name: array for name, array in _datasets(file).items() if not name.startswith("#")}
    array = arrays[choose(str(path), arrays, dataset)]
    return array, describe_dataset(array)


def save(writer: CubeWriter, path: Path) -> None:
    """Write a copy of the source file with new values in its array, or a new file."""
    import h5py

    source = writer.source
    is_hdf5 = source.format == "hdf5" or isinstance(source.thing, Reversed)
    is_copy = is_hdf5 and writer.keeps_dtype and _can_be_copied(source.thing)
    if is_copy:
        shutil.copyfile(str(source.path), path)
    order = tuple(range(source.ndim)) if is_copy else _order(writer)
    with _NeverFailingFile(path, "r+" if is_copy else "w+") as content:
        with h5py.File(content, "r+" if is_copy else "w", track_order=True) as file:
            array = file[source.dataset] if is_copy else _new(file, writer, order)
            if is_copy and source.format == "mat":
                array = Reversed(array)
            row_axis = order.index(writer.cube.axes[0])
            for key, part in writer.blocks(array.chunks[row_axis] if array.chunks else 1):
                numbers = writer.packed(part, array.dtype) if is_copy else part
                array[tuple(key[axis] for axis in order)] = numbers.transpose(order)
                content.check()
        content.check()


def _can_be_copied(array: Any) -> bool:
    """Whether the file alone holds the numbers, and is not open for writing."""
    dataset = getattr(array, "dataset", array)
    return dataset.file.mode == "r" and not dataset.is_virtual and not dataset.external


def _order(writer: CubeWriter) -> tuple[int, ...]:
    """The axes of the source in the order of a new file.

    GDAL takes the last two axes of a NetCDF file for rows and columns, so these come last, unless
    the axes of the source have names, whose order is kept.
    """
    ndim, axes = writer.source.ndim, writer.cube.axes
    if writer.format != "netcdf" or writer.source.axes is not None:
        return tuple(range(ndim))
    others = tuple(axis for axis in range(ndim) if axis not in axes)
    return (*others, *axes[2:], *axes[:2])


def _new(file: Any, writer: CubeWriter, order: tuple[int, ...]) -> Any:
    """The array in a new file, with attributes and coordinates in the form of NetCDF 4."""
    source = writer.source
    shape = tuple(source.shape[axis] for axis in order)
    array = file.create_dataset(writer.dataset, shape, writer.dtype, chunks=True)
    for key, value in writer.attributes().items():
        is_short = not isinstance(value, list) or len(value) <= _LONGEST_LIST
        if isinstance(value, str | int | float | list) and is_short:
            array.attrs[key] = value
    mapping = georeference.to_grid_mapping(source.attributes)
    if mapping:
        file.create_dataset("spatial_ref", data=np.int32(0)).attrs.update(mapping)
        array.attrs["grid_mapping"] = "spatial_ref"
    if writer.nodata is not None:
        array.attrs["_FillValue"] = writer.dtype.type(writer.nodata)
    coordinates, names = writer.coordinates(), writer.axis_names()
    for axis, source_axis in enumerate(order):
        name = array.dims[axis].label = names[source_axis]
        length = array.shape[axis]
        values, attributes = coordinates.get(name, (np.zeros(length, "f4"), {}))
        scale = file.create_dataset(name, data=values)
        scale.attrs.update(attributes)
        scale.make_scale(name if name in coordinates else f"{_NETCDF_DIMENSION}{length:10d}")
        array.dims[axis].attach_scale(scale)
    return array


class _NeverFailingFile(io.FileIO):
    """A file for the HDF5 library in which writes seem to succeed even if the disk is full.

    After a failed write the library cannot close its file, and crashes when the process ends.
    ``check`` raises the error of the first write that failed.
    """

    _problem: OSError | None = None

    def check(self) -> None:
        """Raise the error of the first write that failed, if any."""
        if self._problem is not None:
            raise self._problem

    def write(self, content: Any) -> int:
        """Write all bytes, or pretend to."""
        offset, count = self.tell(), memoryview(content).nbytes
        try:
            self.check()
            write_at(self.fileno(), content, offset)
        except OSError as problem:
            self._problem = problem
        self.seek(offset + count)
        return count

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, or pretend to."""
        try:
            return super().truncate(size)
        except OSError as problem:
            self._problem = self._problem or problem
            return size or 0


def _datasets(group: Any) -> dict[str, Any]:
    """All datasets in a group and its subgroups, by their names."""
    datasets: dict[str, Any] = {}

    def visit(name: str, member: Any) -> None:
        if hasattr(member, "dims") and member.shape is not None:
            datasets[name] = member

    group.visititems(visit)
    return datasets


def _axes(dataset: Any) -> tuple[str, ...] | None:
    """The names of the dimensions, if any has one."""
    names = []
    for dim in dataset.dims:
        scale = dim[0].name.rpartition("/")[2] if len(dim) else ""
        names.append(dim.label or scale)
    return tuple(names) if any(names) else None


def _is_bare_dimension(dataset: Any) -> bool:
    """Whether a dataset only stands for a dimension of NetCDF, without coordinates."""
    # Not by is_scale, which crashes on some damaged files.
    try:
        return _NETCDF_DIMENSION in str(dataset.attrs.get("NAME"))
    except (OSError, TypeError):
        # h5py cannot read some types.
        return False
