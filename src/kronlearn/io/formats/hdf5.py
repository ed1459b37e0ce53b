"""HDF5, and what is HDF5 inside: NetCDF 4 and MATLAB 7.3."""

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
from kronlearn.io.formats import georeference
from kronlearn.io.formats.conventions import choose, described
from kronlearn.io.stored import Key, Opened, format_by_ending, need
from kronlearn.io.writers import CubeWriter

__all__ = ["Reversed", "known", "open_file", "save"]

# HDF5 has 64 KiB for an attribute, but for texts, which it keeps elsewhere.
_LONGEST_LIST = 4000
_NETCDF_DIMENSION = "This is a netCDF dimension but not a netCDF variable."


class Reversed:
    """A dataset of a MATLAB 7.3 file: its axes are in the reverse order in the file."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.dtype, self.shape = dataset, dataset.dtype, dataset.shape[::-1]
        self.chunks = None if dataset.chunks is None else dataset.chunks[::-1]

    def __getitem__(self, key: Key) -> NDArray[Any]:
        return np.asarray(self.dataset[key[::-1]]).T

    def __setitem__(self, key: Key, values: NDArray[Any]) -> None:
        self.dataset[key[::-1]] = values.T


def known(dataset: Any) -> dict[str, Any]:
    """What an HDF5 file says about a dataset of h5py, and where it is."""
    path = Path(os.path.abspath(dataset.file.filename))
    is_netcdf = "_NCProperties" in dataset.file.attrs or format_by_ending(path) == "netcdf"
    arrays = {n: d for n, d in _datasets(dataset.file).items() if not _is_bare_dimension(d)}
    said = _attributes(dataset), _axes(dataset), arrays, is_netcdf
    return {"path": path, **described(dataset.name.strip("/"), dataset, *said)}


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array of an HDF5 file."""
    file = files.enter_context(need("h5py", f"To read {path}").File(path, "r"))
    # MATLAB keeps the parts of cells and structures under names with "#".
    found = {name: d for name, d in _datasets(file).items() if not name.startswith("#")}
    one = found[choose(str(path), found, dataset)]
    return one, known(one)


def save(writer: CubeWriter, place: Path) -> None:
    """Write a copy of the source with these values, where all else stays, or a new file."""
    import h5py

    source = writer.source
    is_hdf5 = source.format == "hdf5" or isinstance(source.thing, Reversed)
    is_copy = is_hdf5 and writer.is_alike and _is_at_rest(source.thing)
    if is_copy:
        shutil.copyfile(str(source.path), place)
    order = tuple(range(source.ndim)) if is_copy else _order(writer)
    with _PatientFile(place) as content:
        with h5py.File(content, "r+" if is_copy else "w", track_order=True) as file:
            array = file[source.dataset] if is_copy else _new(file, writer, order)
            if is_copy and source.format == "mat":
                array = Reversed(array)
            back = np.argsort(order)
            chunks = None if array.chunks is None else tuple(array.chunks[axis] for axis in back)
            for key, part in writer.blocks(chunks):
                numbers = writer.packed(part, array.dtype) if is_copy else part
                array[tuple(key[axis] for axis in order)] = numbers.transpose(order)
                content.check()
        content.check()


def _is_at_rest(thing: Any) -> bool:
    """Whether the numbers lie in the file, and not in others, and nobody is writing to it."""
    dataset = getattr(thing, "dataset", thing)
    return dataset.file.mode == "r" and not dataset.is_virtual and not dataset.external


def _order(writer: CubeWriter) -> tuple[int, ...]:
    """The axes of the source in the order that they get in a new file.

    GDAL takes the last two of NetCDF for rows and columns; only names that are given are kept in
    their order.
    """
    ndim, axes = writer.source.ndim, writer.cube.axes
    if writer.format != "netcdf" or writer.source.axes is not None:
        return tuple(range(ndim))
    others = tuple(axis for axis in range(ndim) if axis not in axes)
    return (*others, *axes[2:], *axes[:2])


def _new(file: Any, writer: CubeWriter, order: tuple[int, ...]) -> Any:
    """The array in a new file, with its attributes and coordinates, as NetCDF 4 has it."""
    source = writer.source
    shape = tuple(source.shape[axis] for axis in order)
    array = file.create_dataset(source.dataset or "cube", shape, writer.dtype, chunks=True)
    for key, value in writer.attributes().items():
        is_short = not isinstance(value, list) or len(value) <= _LONGEST_LIST
        if isinstance(value, str | int | float | list) and is_short:
            array.attrs[key] = value
    mapping = georeference.grid_mapping(source.attributes)
    if mapping:
        file.create_dataset("spatial_ref", data=np.int32(0)).attrs.update(mapping)
        array.attrs["grid_mapping"] = "spatial_ref"
    if writer.nodata is not None:
        array.attrs["_FillValue"] = writer.dtype.type(writer.nodata)
    coordinates = writer.coordinates()
    names = writer.axis_names()
    for axis, label in enumerate(names[of_source] for of_source in order):
        array.dims[axis].label = label
        length = array.shape[axis]
        unnamed = f"{_NETCDF_DIMENSION}{length:10d}"
        values, attributes = coordinates.get(label, (np.zeros(length, "f4"), {}))
        scale = file.create_dataset(label, data=values)
        scale.attrs.update(attributes)
        scale.make_scale(label if label in coordinates else unnamed)
        array.dims[axis].attach_scale(scale)
    return array


class _PatientFile(io.FileIO):
    """A file for the HDF5 library, which does not survive a write that fails.

    The library keeps a file that it cannot close, for want of room on the disk say, and crashes
    later. Here every write succeeds; ``check`` raises the error of the first that did not.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        self._problem: OSError | None = None

    def check(self) -> None:
        """Raise the error of the first write that failed, if one has."""
        if self._problem is not None:
            raise self._problem

    def write(self, content: Any) -> int:
        """Write all bytes, or go on as if they were."""
        place, count = self.tell(), memoryview(content).nbytes
        try:
            self.check()
            write_at(self.fileno(), content, place)
        except OSError as problem:
            self._problem = problem
        self.seek(place + count)
        return count

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, or go on as if it were."""
        try:
            return super().truncate(size)
        except OSError as problem:
            self._problem = self._problem or problem
            return size or 0


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


def _is_bare_dimension(dataset: Any) -> bool:
    """Whether it has no numbers of its own, but stands for a dimension of NetCDF."""
    return dataset.is_scale and _NETCDF_DIMENSION in str(dataset.attrs.get("NAME"))
