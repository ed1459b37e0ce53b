"""Writing cubes to files, row by row: the result is a complete file, or none."""

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

from kronlearn.io import atomic, formats
from kronlearn.io.conversion import converted, fits, float_dtype, in_stored_order
from kronlearn.io.formats import georeference
from kronlearn.io.formats.conventions import NOT_COPIED, PER_BAND
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import Coordinate, Key, StoredArray, StoredArrayError

if TYPE_CHECKING:
    from kronlearn.io.cubes import Cube

__all__ = ["CubeWriter", "target_files"]

# Collected rows are passed on to the module of the format in blocks of about this size.
_BLOCK_BYTES = 1 << 23
# Attributes for the layout of ENVI and TIFF files, and those that are written in another way.
_NOT_PORTABLE = {"interleave", "file type", "wavelength", "wavelength units", "wavelength_units"}
_NOT_PORTABLE |= {"data ignore value", "files", "AREA_OR_POINT", *NOT_COPIED, *PER_BAND}
# CF's names of other arrays of the file.
_NOT_PORTABLE |= {"coordinates", "ancillary_variables"}


class CubeWriter(AbstractContextManager["CubeWriter"]):
    """A context manager that takes the values of a cube row by row, and writes them to a file.

    Made by :meth:`kronlearn.io.cubes.Cube.create`. Rows are collected in a temporary file beside
    the target. At the end of the ``with`` block, the module of the format makes the target from
    them, with the metadata of the cube; after an error, nothing is left behind.
    """

    #: The collected rows, with the axes in the order of the source.
    rows: FileArray

    def __init__(
        self, cube: Cube, target: Path, overwrite: bool = True, dtype: DTypeLike | None = None
    ) -> None:
        self.cube, self.source, self._overwrite = cube, cube.stored, overwrite
        self.shape, self.dtype = cube.shape, cube.dtype if dtype is None else float_dtype(dtype)
        #: Whether the stored numbers keep their dtype: then a copy of the source can hold them.
        self.keeps_dtype = dtype is None or np.dtype(self.source.thing.dtype) == self.dtype
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        # Error messages show ``target``; if it is a link, ``path`` is the file that it leads to.
        self.target, self.path = target, Path(os.path.realpath(target))
        is_held = cube.nodata is not None and fits(cube.nodata, self.dtype)
        self.nodata = cube.nodata if is_held else None
        #: The name of the array, in files that have names.
        self.dataset = self.source.dataset or "cube"
        self.format = _target_format(self.path, self.source)
        self._module = formats.format_module(self.format)
        self._files = target_files(target, self.source)
        is_zip = self.path.suffix.lower() == ".zip"
        #: Whether a folder is written rather than files.
        self.is_folder = hasattr(self._module, "check_replaceable") and not is_zip
        self._check()
        self._warn_of_losses()
        self._rows_path, self._next_row = atomic.temporary_path(self.path), 0
        # Room for the header that the format has in front of the numbers.
        self._offset = len(self._module.header(self)) if hasattr(self._module, "header") else 0
        with atomic.explain_write_errors(self.target):
            if shutil.disk_usage(self.path.parent).free < self.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._descriptor = os.open(self._rows_path, flags, 0o666)

    def write(self, rows: slice, values: NDArray[Any]) -> None:
        """Write the next rows.

        Parameters
        ----------
        rows : slice
            The next rows: it starts where the previous slice ended.
        values : array of shape (rows, columns, bands)
            Their values. For a file of integers they are rounded and clipped, and NaN becomes the
            nodata value.
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
        with atomic.explain_write_errors(self.target):
            for i, part in enumerate(values.reshape(math.prod(lengths[:axis]), -1)):
                atomic.write_at(
                    self._descriptor, part, self._offset + (i * n_rows + start) * row_bytes
                )
        self._next_row = stop

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        os.close(self._descriptor)
        try:
            if kind is not None:
                return
            if self._next_row < self.shape[0]:
                raise ValueError(
                    f"{self.target}: only {self._next_row} of {self.shape[0]} rows were written; "
                    "the file was not created."
                )
            rows = FileArray(self._rows_path, self.source.shape, self.dtype, self._offset)
            with (
                closing(rows) as self.rows,
                atomic.atomic_write(
                    *self._files, overwrite=self._overwrite, folders=self.is_folder
                ) as paths,
            ):
                self._save(paths)
        finally:
            atomic.remove(self._rows_path)

    def _save(self, paths: tuple[Path, ...]) -> None:
        """Let the module of the format write the files; its errors name the target."""
        try:
            self._module.save(self, *paths)
        except (OSError, MemoryError):
            raise
        except Exception as problem:
            # Libraries raise all kinds of errors for a damaged source, which they copy.
            if str(self.path) in str(problem):
                raise
            raise StoredArrayError(f"{self.target} could not be written: {problem}.") from problem

    def blocks(self, chunk_height: int = 1) -> Iterator[tuple[Key, NDArray[Any]]]:
        """Keys and values of consecutive blocks of rows, each of whole chunks with this many rows.

        A chunk written in parts would be read, decompressed and compressed again for each part.
        """
        axis, n_rows = self.cube.axes[0], self.shape[0]
        step = max(1, _BLOCK_BYTES * n_rows // self.nbytes // chunk_height) * chunk_height
        for start in range(0, n_rows, step):
            part = slice(start, min(start + step, n_rows))
            key = tuple(part if i == axis else slice(0, n) for i, n in enumerate(self.source.shape))
            yield key, self.rows[key]

    def packed(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The numbers, of a dtype, that store values in an array packed like the source."""
        packing = self.source.packing
        return values if packing is None else packing.pack(values, dtype, str(self.path))

    def axis_names(self) -> list[str]:
        """The names of the axes: those of the source, or the usual ones.

        They differ from each other and from the name of the array: coordinates have these names.
        """
        usual = ("y", "x", "band" if self.cube.wavelengths is None else "wavelength")
        wanted = dict(zip(self.cube.axes, usual, strict=False))
        if self.source.axes is not None:
            wanted = dict(enumerate(self.source.axes))
        names: list[str] = []
        for axis in range(self.source.ndim):
            name = wanted.get(axis, "")
            is_free = name not in ("", self.dataset, *names)
            names.append(name if is_free else f"axis_{axis}")
        return names

    def coordinates(self) -> dict[str, Coordinate]:
        """The coordinates of the axes by name, with the wavelengths as those of the bands."""
        names, known, cube = self.axis_names(), self.source.coordinates, self.cube
        coordinates = {name: known[name] for name in names if name in known}
        rows, columns = ((names[axis], self.source.shape[axis]) for axis in cube.axes[:2])
        pixel_centres = georeference.axis_coordinates(cube.attributes, rows, columns)
        for name, coordinate in pixel_centres.items():
            coordinates.setdefault(name, coordinate)
        if cube.wavelengths is not None and cube.band_axis is not None:
            units = {} if cube.wavelength_units is None else {"units": cube.wavelength_units}
            coordinates.setdefault(names[cube.band_axis], (cube.wavelengths, units))
        return coordinates

    def attributes(self) -> dict[str, Any]:
        """The attributes of the array in a new file whose format allows lists as attributes."""
        per_band = {name: values.tolist() for name, values in self.cube.per_band.items()}
        return self.portable_attributes() | per_band

    def portable_attributes(self) -> dict[str, Any]:
        """The attributes of the cube that a new file of any format can have as they are."""
        left_out = _NOT_PORTABLE
        if georeference.to_rasterio(self.cube.attributes):
            left_out = left_out | georeference.ATTRIBUTES
        return {k: v for k, v in self.cube.attributes.items() if k not in left_out}

    def _check(self) -> None:
        """Raise, before any work is done, if the target cannot be written."""
        self._check_target()
        form = formats.FORMATS[self.format]
        if form.library is not None:
            formats.import_library(form.library, f"To write {self.path}")
        if form.dtypes is not None and self.dtype.str[1:] not in form.dtypes:
            ending = self.path.suffix
            raise ValueError(f"{self.path}: {ending} files cannot hold {self.dtype} values.")
        if hasattr(self._module, "check"):
            self._module.check(self)

    def _check_target(self) -> None:
        """Raise if the target must not be created or replaced."""
        read = {os.path.realpath(file) for file in self.source.files}
        replaced = read.intersection(map(os.path.realpath, self._files))
        if replaced and replaced != read:
            # For example the binary file of ENVI, whose header would no longer describe it.
            raise ValueError(
                f"Writing {self.path} would replace {replaced.pop()} but not the other files that "
                "the cube is read from; give another name."
            )
        atomic.check_targets(self._files, self._overwrite, self.is_folder)
        if self.path.is_dir():
            self._module.check_replaceable(self.path)

    def _warn_of_losses(self) -> None:
        """Warn of the metadata of the cube that a file of another format cannot hold."""
        names = {self.format, self.source.format}
        if len(names) == 1 or names == {"hdf5", "netcdf"}:
            return
        cube, lost = self.cube, list(self.source.format_specific)
        metadata = formats.FORMATS[self.format].metadata
        if metadata != "all":
            present = {
                "wavelengths": cube.wavelengths is not None and metadata == "none",
                "georeferencing": "crs" in cube.attributes,
                # Only that of the source: callers know the one that they passed to open_cube.
                "nodata value": self.nodata is not None and self.nodata == self.source.nodata,
                **dict.fromkeys(cube.per_band, True),
            }
            lost += [name for name, is_present in present.items() if is_present]
        elif self.format == "envi" and "crs" in cube.attributes:
            lost += [] if georeference.to_envi(cube.attributes) else ["georeferencing"]
        elif self.format in ("envi", "geotiff") and "crs" not in cube.attributes:
            lost += ["coordinates without a coordinate system"] if self._is_placed() else []
        if self.source.packing is None:
            # The numbers are copied as they are, and readers of the new file will not scale them.
            scaling = {"scale_factor": 1, "add_offset": 0}
            lost += [n for n, none in scaling.items() if cube.attributes.get(n, none) != none]
        if lost:
            listing = " and ".join(filter(None, [", ".join(lost[:-1]), lost[-1]]))
            hint = "" if metadata == "all" else "; write .tif, .hdr, .nc, .h5 or .zarr to keep them"
            warnings.warn(
                f"{self.path}: the {listing} of {cube.name} cannot be kept in this format{hint}.",
                stacklevel=4,
            )

    def _is_placed(self) -> bool:
        """Whether rows or columns have coordinates other than their numbers."""
        names, known = self.axis_names(), self.source.coordinates
        values = [known[names[a]][0] for a in self.cube.axes[:2] if names[a] in known]
        return any(not np.array_equal(v, np.arange(len(v))) for v in values)


def target_files(path: Path, source: StoredArray) -> list[Path]:
    """The files or folders that writing to a path creates or replaces; ENVI has two."""
    path = path.resolve()
    module = formats.format_module(_target_format(path, source))
    return module.targets(path, source) if hasattr(module, "targets") else [path]


def _target_format(path: Path, source: StoredArray) -> str:
    """The name of the format that the name of a new file stands for."""
    by_ending, ending = formats.format_by_ending(path), path.suffix.lower()
    if by_ending is not None:
        return by_ending
    if ending in formats.format_module("envi").BINARY_ENDINGS:
        return "envi"
    if source.format in ("envi", "image_folder") and not ending:
        return source.format
    raise ValueError(f"{path} does not have the extension of a known format: {formats.KNOWN}.")
