"""Cubes written to files row by row: a complete file in the end, or none."""

from __future__ import annotations

import errno
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.atomic import atomic_write, explaining, remove, temporary_place, write_at
from kronlearn.io.conversion import converted, fits
from kronlearn.io.pages import dont_need
from kronlearn.io.stored import KNOWN, Key, StoredArray, format_by_ending, module_of

if TYPE_CHECKING:
    from kronlearn.io.cubes import Cube

__all__ = ["CubeWriter", "blocks", "places_for"]

# How much is handed to a library at a time.
_BLOCK_BYTES = 1 << 25
_ENVI_ENDINGS = (".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".envi")
# What formats cannot hold of a cube's description.
_LOST = {"npy": ("wavelengths", "crs"), "image_folder": ("wavelengths", "crs"), "mat": ("crs",)}


class CubeWriter:
    """Takes the values of a cube by rows, and leaves a complete file or none.

    Made by :meth:`kronlearn.io.cubes.Cube.create`; use it in a ``with`` block. Rows are collected
    in a file beside the target, from which the module of the format makes the target in the end.

    Attributes
    ----------
    cube : Cube
        Whose metadata are kept.
    source : StoredArray
        What the cube is read from.
    target, path : Path
        As it was given, and what is replaced: where the name is a link, what it leads to.
    shape : tuple of int
        (rows, columns, bands).
    dtype : dtype
        Of the values in the file.
    keeps_dtype : bool
        Whether no dtype was asked for: numbers are then stored as in the source.
    nodata : float, int or None
        The value that means no data in the file, if it can hold one.
    """

    def __init__(self, cube: Cube, target: Path, dtype: Any = None, overwrite: bool = True) -> None:
        self.cube, self.source, self.shape = cube, cube.stored, cube.shape
        self.target, self.path = target, Path(os.path.realpath(target))
        self.keeps_dtype, self._overwrite = dtype is None, overwrite
        self.dtype = cube.dtype if dtype is None else np.dtype(dtype).newbyteorder("=")
        self.nodata = self._held_nodata()
        self._places = places_for(self.path, self.source)
        name = _format_for(self.path, self.source)
        self._module = module_of(name)
        # What cannot be is told before the work.
        self._check_place(name)
        if hasattr(self._module, "check"):
            self._module.check(self)
        self._tell_losses(name)
        self._rows, self._next_row = temporary_place(self.path), 0
        with explaining(self.target):
            if shutil.disk_usage(self.path.parent).free < math.prod(self.shape) * self._itemsize:
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
        if start != self._next_row or values.shape != (stop - start, n_columns, n_bands):
            raise ValueError(
                f"rows {start} to {stop} with values of shape {values.shape} were given to write; "
                f"rows from {self._next_row} on are next, of shape (rows, {n_columns}, {n_bands})."
            )
        if stop > n_rows:
            raise ValueError(f"row {stop - 1} was given to write; there are {n_rows}.")
        values = converted(values, self.dtype, self.nodata, str(self.target))
        with explaining(self.target):
            content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            write_at(self._file, content, start * n_columns * n_bands * self._itemsize)
        self._next_row = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        os.close(self._file)
        try:
            if kind is not None:
                return
            if self._next_row < self.shape[0]:
                raise ValueError(
                    f"{self.target}: {self._next_row} of {self.shape[0]} rows were written; the "
                    "file is not kept."
                )
            values = np.memmap(self._rows, self.dtype, "r", shape=self.shape)
            with explaining(self.target), atomic_write(
                *self._places, overwrite=self._overwrite
            ) as places:
                self._module.save(self, self.cube.in_order(values), *places)
        finally:
            remove(self._rows)

    @property
    def row_axis(self) -> int:
        """The axis of the rows in the order of the source."""
        return self.cube.order.index("row")

    def bands_first(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values in the order of the source as (bands, rows, columns)."""
        order = self.cube.order
        if "band" not in order:
            return values[None]
        return values.transpose([order.index(axis) for axis in ("band", "row", "column")])

    def packed(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Values as numbers for an array like the source's, of this dtype."""
        packing = self.source.packing if self.keeps_dtype else None
        return values if packing is None else packing.pack(values, dtype, str(self.path))

    def axis_names(self) -> list[str]:
        """Names for the axes of a new file: those of the source, or the usual ones."""
        order, axes = self.cube.order, self.source.axes
        if axes is not None and len(axes) == len(order):
            return list(axes)
        band = "band" if self.cube.wavelengths is None else "wavelength"
        return [{"row": "y", "column": "x", "band": band}[axis] for axis in order]

    def coordinates(self) -> dict[str, NDArray[Any]]:
        """Coordinates by the names of the axes of a new file, wavelengths for the bands."""
        names, given = self.axis_names(), self.source.coordinates
        found = {name: given[name] for name in names if name in given}
        if self.cube.wavelengths is not None and "band" in self.cube.order:
            found.setdefault(names[self.cube.order.index("band")], self.cube.wavelengths)
        return found

    @property
    def _itemsize(self) -> int:
        return self.dtype.itemsize

    def _held_nodata(self) -> float | int | None:
        nodata = self.cube.nodata
        if nodata is None or fits(nodata, self.dtype):
            return nodata
        if not self.keeps_dtype and not math.isnan(nodata):
            raise ValueError(
                f"{self.dtype} cannot hold {nodata}, the value that means no data in "
                f"{self.cube.name}; pass another dtype or nodata."
            )
        return None

    def _check_place(self, name: str) -> None:
        """Raise if a file of this format cannot be written there."""
        read = {os.path.realpath(file) for file in self.source.files}
        replaced = read.intersection(map(os.path.realpath, self._places))
        if replaced and replaced != read:
            # The header of an ENVI file, for one, would no longer belong to its numbers.
            raise ValueError(
                f"{self.path} would replace {replaced.pop()}, which the cube is read from, but not "
                "all of its files; give another name."
            )
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"The folder {self.path.parent} does not exist; create it first."
            )
        writes_folder = name == "image_folder" or (name == "zarr" and self.path.suffix != ".zip")
        if self.path.is_dir() and not writes_folder:
            raise IsADirectoryError(f"{self.path} is a folder; give the name of a file.")
        if self.path.is_file() and writes_folder:
            raise NotADirectoryError(f"{self.path} is a file; a folder is to be written there.")
        if self.path.is_dir():
            self._module.check_replaceable(self.path)

    def _tell_losses(self, name: str) -> None:
        """Warn of what the cube's description has and a file of this format has not."""
        described = {"wavelengths": self.cube.wavelengths, "crs": self.cube.attributes.get("crs")}
        lost = [what for what in _LOST.get(name, ()) if described[what] is not None]
        if lost and name != self.source.format:
            words = " and ".join(
                {"wavelengths": "wavelengths", "crs": "georeferencing"}[what] for what in lost
            )
            warnings.warn(
                f"{self.path}: the {words} of {self.cube.name} cannot be kept in this format; "
                "write .tif, .hdr, .nc, .h5 or .zarr to keep them.",
                stacklevel=4,
            )


def blocks(
    values: NDArray[Any], axis: int, multiple_of: int = 1
) -> Iterator[tuple[Key, NDArray[Any]]]:
    """Keys and values of consecutive parts along an axis, whole chunks of so many entries.

    Chunks that are written in parts would be read, decompressed and compressed again.
    """
    length = values.shape[axis]
    step = max(1, _BLOCK_BYTES * length // values.nbytes // multiple_of) * multiple_of
    for start in range(0, length, step):
        part = slice(start, min(start + step, length))
        key = tuple(part if i == axis else slice(0, n) for i, n in enumerate(values.shape))
        yield key, values[key]
        # The pages of the collected rows would count as memory in use.
        dont_need(values)


def places_for(path: Path, source: StoredArray) -> list[Path]:
    """The files or folders that are made or replaced for a name."""
    module = module_of(_format_for(path, source))
    return module.places(path, source) if hasattr(module, "places") else [path]


def _format_for(path: Path, source: StoredArray) -> str:
    """The format that the name of a new file stands for."""
    named, ending = format_by_ending(path), path.suffix.lower()
    if named is not None:
        return named
    if ending in _ENVI_ENDINGS or (source.format == "envi" and not ending):
        return "envi"
    if source.format == "image_folder" and not ending:
        return "image_folder"
    raise ValueError(f"{path} has no ending that names a known format: {KNOWN}.")
