"""Cubes written to files row by row: a complete file in the end, or none."""

from __future__ import annotations

import errno
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kronlearn.io.atomic import (
    atomic_write,
    check_targets,
    explaining,
    remove,
    temporary_place,
    write_at,
)
from kronlearn.io.conversion import converted, fits, floating, in_stored_order
from kronlearn.io.formats import georeference
from kronlearn.io.formats.conventions import NOT_KEPT, PER_BAND
from kronlearn.io.stored import KNOWN, Key, StoredArray, Vector, format_by_ending, module_of, need

if TYPE_CHECKING:
    from kronlearn.io.cubes import Cube
    from kronlearn.io.formats.npy import FileArray

__all__ = ["CubeWriter", "places_for"]

# How much is handed to a library at a time.
_BLOCK_BYTES = 1 << 23
# The libraries that write formats, and the numbers that these hold where they do not hold all.
_LIBRARIES = {"hdf5": "h5py", "netcdf": "h5py", "zarr": "zarr", "geotiff": "rasterio"}
_LIBRARIES |= {"envi": "spectral.io.envi"}
_WIDE = ("u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
_HELD = {"envi": _WIDE, "geotiff": ("i1", *_WIDE), "mat": ("b1", "i1", *_WIDE)}
# Formats that hold nothing, or only wavelengths, of a cube's description.
_BARE = ("npy", "image_folder", "mat")
# Attributes that say how the numbers lie in an ENVI file, or what is written in another way.
_OF_FORMATS = {"interleave", "file type", "wavelength", "wavelength units", "wavelength_units"}
_OF_FORMATS |= {"data ignore value", "files", "AREA_OR_POINT", *PER_BAND}


class CubeWriter(AbstractContextManager["CubeWriter"]):
    """Takes the values of a cube by rows, and leaves a complete file or none.

    Made by :meth:`kronlearn.io.cubes.Cube.create`; use it in a ``with`` block. Rows are collected
    in a file beside the target, from which the module of the format makes the target in the end,
    with the metadata of the cube.
    """

    #: The collected rows, with the axes in the order of the source.
    rows: FileArray

    def __init__(
        self,
        cube: Cube,
        target: Path,
        overwrite: bool = True,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.cube, self.source, self._overwrite = cube, cube.stored, overwrite
        self.shape, self.dtype = cube.shape, cube.dtype if dtype is None else floating(dtype)
        #: Whether numbers like those of the source are written, packed as they are.
        self.is_alike = dtype is None or np.dtype(self.source.thing.dtype) == self.dtype
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        # As it was given, and what is replaced: where the name is a link, what it leads to.
        self.target, self.path = target, Path(os.path.realpath(target))
        is_held = cube.nodata is not None and fits(cube.nodata, self.dtype)
        self.nodata = cube.nodata if is_held else None
        self.format = _format_for(self.path, self.source)
        self._places = places_for(target, self.source)
        self._module = module_of(self.format)
        # What cannot be is told before the work.
        self._check_place()
        if self.format in _LIBRARIES:
            need(_LIBRARIES[self.format], f"To write {self.path}")
        if self.dtype.str[1:] not in _HELD.get(self.format, self.dtype.str[1:]):
            ending = self.path.suffix
            raise ValueError(f"{self.path}: {ending} files cannot hold {self.dtype} values.")
        if hasattr(self._module, "check"):
            self._module.check(self)
        self._tell_losses()
        self._rows, self._next_row = temporary_place(self.path), 0
        # Room for what the format has before its numbers.
        self._offset = len(self._module.header(self)) if hasattr(self._module, "header") else 0
        with explaining(self.target):
            if shutil.disk_usage(self.path.parent).free < self.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._file = os.open(self._rows, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def write(self, rows: slice, values: NDArray[Any]) -> None:
        """Write the next rows.

        Parameters
        ----------
        rows : slice
            Starts where the last ones ended.
        values : array of shape (rows, columns, bands)
            Rounded and kept in range where the file holds integers; NaN becomes no data.
        """
        n_rows, n_columns, n_bands = self.shape
        start, stop = rows.start or 0, n_rows if rows.stop is None else rows.stop
        is_next = start == self._next_row and stop <= n_rows
        if not is_next or values.shape != (stop - start, n_columns, n_bands):
            raise ValueError(
                f"write was given rows {start} to {stop} and values of shape {values.shape}; the "
                f"next rows start at {self._next_row} and end at {n_rows} at most, with values of "
                f"shape (rows, {n_columns}, {n_bands})."
            )
        values = converted(values, self.dtype, self.nodata, str(self.target))
        lengths, axis = self.source.shape, self.cube.axes[0]
        row_bytes = math.prod(lengths[axis + 1 :]) * self.dtype.itemsize
        values = np.ascontiguousarray(in_stored_order(values, self.cube.axes))
        with explaining(self.target):
            for i, part in enumerate(values.reshape(math.prod(lengths[:axis]), -1)):
                write_at(self._file, part, self._offset + (i * n_rows + start) * row_bytes)
        self._next_row = stop

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        os.close(self._file)
        try:
            if kind is not None:
                return
            if self._next_row < self.shape[0]:
                raise ValueError(
                    f"{self.target}: only {self._next_row} of {self.shape[0]} rows were written; "
                    "the file was not created."
                )
            numbers = module_of("npy").FileArray(
                self._rows, self.source.shape, self.dtype, self._offset
            )
            with (
                closing(numbers) as self.rows,
                atomic_write(*self._places, overwrite=self._overwrite) as places,
            ):
                self._module.save(self, *places)
        finally:
            remove(self._rows)

    def blocks(self, chunks: tuple[int, ...] | None) -> Iterator[tuple[Key, NDArray[Any]]]:
        """Keys and values of consecutive parts of the collected rows: whole chunks of the target.

        Chunks that are written in parts would be read, decompressed and compressed again.
        """
        axis, n_rows = self.cube.axes[0], self.shape[0]
        height = 1 if chunks is None else chunks[axis]
        step = max(1, _BLOCK_BYTES * n_rows // self.nbytes // height) * height
        for start in range(0, n_rows, step):
            part = slice(start, min(start + step, n_rows))
            key = tuple(part if i == axis else slice(0, n) for i, n in enumerate(self.source.shape))
            yield key, self.rows[key]

    def packed(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Values as numbers for an array like the source's, of this dtype."""
        packing = self.source.packing
        return values if packing is None else packing.pack(values, dtype, str(self.path))

    def axis_names(self) -> list[str]:
        """Names for the axes of a new file: those of the source, or the usual ones."""
        if self.source.axes is not None:
            return list(self.source.axes)
        names = [f"axis_{axis}" for axis in range(self.source.ndim)]
        bands = "band" if self.cube.wavelengths is None else "wavelength"
        for axis, name in zip(self.cube.axes, ("y", "x", bands), strict=False):
            names[axis] = name
        return names

    def coordinates(self) -> dict[str, Vector]:
        """Coordinates and their attributes by the names of the axes, wavelengths for the bands."""
        names, given, cube = self.axis_names(), self.source.coordinates, self.cube
        found = {name: given[name] for name in names if name in given}
        rows, columns = ((names[axis], self.source.shape[axis]) for axis in cube.axes[:2])
        for name, pair in georeference.axis_coordinates(cube.attributes, rows, columns).items():
            found.setdefault(name, pair)
        if cube.wavelengths is not None and cube.band_axis is not None:
            units = {} if cube.wavelength_units is None else {"units": cube.wavelength_units}
            found.setdefault(names[cube.band_axis], (cube.wavelengths, units))
        return found

    def attributes(self) -> dict[str, Any]:
        """The attributes for the array in a new file of a format that has such."""
        return self.notes() | {k: v.tolist() for k, v in self.cube.per_band.items()}

    def notes(self) -> dict[str, Any]:
        """The attributes of the cube that are true of a new file of any format as they are."""
        left_out = NOT_KEPT | _OF_FORMATS
        if georeference.gdal_profile(self.cube.attributes):
            left_out |= georeference.FIELDS
        return {k: v for k, v in self.cube.attributes.items() if k not in left_out}

    def _check_place(self) -> None:
        """Raise if a file of this format cannot be written there."""
        read = {os.path.realpath(file) for file in self.source.files}
        replaced = read.intersection(map(os.path.realpath, self._places))
        if replaced and replaced != read:
            # The header of an ENVI file, for one, would no longer belong to its numbers.
            raise ValueError(
                f"Writing {self.path} would replace {replaced.pop()} but not the other files that "
                "the cube is read from; give another name."
            )
        check_targets(self._places, self._overwrite)
        writes_folder = hasattr(self._module, "check_replaceable") and self.path.suffix != ".zip"
        if self.path.is_dir() and not writes_folder:
            raise IsADirectoryError(f"{self.path} is a folder; give the name of a file.")
        if self.path.is_file() and writes_folder:
            raise NotADirectoryError(
                f"{self.path} is a file; this format needs a folder, so give another name."
            )
        if self.path.is_dir():
            self._module.check_replaceable(self.path)

    def _tell_losses(self) -> None:
        """Warn of what is known about the cube that a new file of another format will not say."""
        if _family(self.format) == _family(self.source.format):
            return
        cube, lost = self.cube, list(self.source.unique)
        described = {
            "wavelengths": cube.wavelengths is not None and self.format != "mat",
            "georeferencing": "crs" in cube.attributes,
            # Not one that the user gave, nor NaN, which needs no telling.
            "nodata value": self.nodata is not None and self.nodata == self.source.nodata,
            **dict.fromkeys(cube.per_band, True),
        }
        if self.format in _BARE:
            lost += [what for what, is_there in described.items() if is_there]
        elif self.format == "envi" and not georeference.envi_fields(cube.attributes):
            # It has no shear.
            lost += ["georeferencing"] if described["georeferencing"] else []
        if self.source.packing is None:
            # Such numbers are not unpacked, and readers of the new file would not know that.
            scaling = {"scale_factor": 1, "add_offset": 0}
            lost += [n for n, none in scaling.items() if cube.attributes.get(n, none) != none]
        if lost:
            names = " and ".join(filter(None, [", ".join(lost[:-1]), lost[-1]]))
            cure = "; write .tif, .hdr, .nc, .h5 or .zarr to keep them"
            warnings.warn(
                f"{self.path}: the {names} of {cube.name} cannot be kept in this format"
                f"{cure if self.format in _BARE else ''}.",
                stacklevel=4,
            )


def _family(format_name: str) -> str:
    """The format whose files are copied whole for a new one."""
    return "hdf5" if format_name == "netcdf" else format_name


def places_for(path: Path, source: StoredArray) -> list[Path]:
    """The files or folders that are made or replaced for a name: of ENVI two."""
    path = path.resolve()
    module = module_of(_format_for(path, source))
    return module.places(path, source) if hasattr(module, "places") else [path]


def _format_for(path: Path, source: StoredArray) -> str:
    """The format that the name of a new file stands for."""
    named, ending = format_by_ending(path), path.suffix.lower()
    if named is not None:
        return named
    if ending in module_of("envi").BINARY_ENDINGS:
        return "envi"
    if source.format in ("envi", "image_folder") and not ending:
        return source.format
    raise ValueError(f"{path} does not have the extension of a known format: {KNOWN}.")
