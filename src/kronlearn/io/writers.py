"""Cubes written to files row by row: a complete file in the end, or none."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kronlearn.io import atomic
from kronlearn.io.conversion import converted, fits
from kronlearn.io.formats.mapped import Layout
from kronlearn.io.stored import KNOWN, Key, StoredArray, format_by_ending, module_of

if TYPE_CHECKING:
    from kronlearn.io.cubes import Cube

__all__ = ["AXES", "CubeWriter", "Target", "blocks", "places_for", "writer_for"]

#: The axes of a cube.
AXES = ("row", "column", "band")
# How much is handed to a library at a time.
_BLOCK_BYTES = 1 << 25
_ENVI_ENDINGS = (".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".envi")


@dataclass(frozen=True)
class Target:
    """A file or folder that new values of a cube are to be written to."""

    cube: Cube
    #: As it was given.
    name: Path
    #: None: as in the cube.
    dtype: np.dtype[Any] | None = None

    @cached_property
    def path(self) -> Path:
        """What is replaced: where the name is a link, what it leads to."""
        return Path(os.path.realpath(self.name))

    @property
    def source(self) -> StoredArray:
        """What the cube is read from: its metadata are kept."""
        return self.cube.stored

    @property
    def nodata(self) -> float | int | None:
        """The value that means no data in the file, if it can hold one."""
        nodata = self.cube.nodata
        if nodata is None or fits(nodata, self.out_dtype):
            return nodata
        if self.dtype is not None and not math.isnan(nodata):
            raise ValueError(
                f"{self.dtype} cannot hold {nodata}, the value that means no data in "
                f"{self.cube.name}; pass another dtype or nodata."
            )
        return None

    @property
    def format(self) -> str:
        """The format that its name stands for."""
        named, ending = format_by_ending(self.path), self.path.suffix.lower()
        if named is not None:
            return named
        if ending in _ENVI_ENDINGS or (self.source.format == "envi" and not ending):
            return "envi"
        if self.source.format == "image_folder" and not ending:
            return "image_folder"
        raise ValueError(f"{self.path} has no ending that names a known format: {KNOWN}.")

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """Of the values that are written."""
        return self.source.dtype if self.dtype is None else self.dtype.newbyteorder("=")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the axes of rows, columns and bands in the order of the source."""
        return tuple(self.cube.shape[AXES.index(axis)] for axis in self.cube.order)

    def bands_first(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values in the order of the source as (bands, rows, columns)."""
        order = self.cube.order
        if "band" not in order:
            return values[None]
        return values.transpose([order.index(axis) for axis in ("band", "row", "column")])

    def packed(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Values as numbers for an array like the source's, of this dtype."""
        packing = self.source.packing if self.dtype is None else None
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


class CubeWriter:
    """Takes the values of a cube by rows, and leaves a complete file or none.

    Made by :meth:`kronlearn.io.cubes.Cube.create`; use it in a ``with`` block. Rows are collected
    in a file beside the target, from which the module of the format makes the target in the end.

    Attributes
    ----------
    target : Path
    shape : tuple of int
        (rows, columns, bands).
    dtype : dtype
        Of the values in the file.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.shape, self.dtype = target.name, target.cube.shape, target.out_dtype
        self._target = target
        self._module = module_of(target.format)
        # What cannot be is told before the work.
        dtype, header = self._module.prepare(target)
        self._layout = Layout.in_order(target.lengths, dtype, len(header))
        self._rows = atomic.beside(target.path)
        self._moves = [(atomic.beside(place), place) for place in places_for(target)]
        self._nodata = target.nodata
        self._next_row = 0
        with self._explaining():
            self._descriptor = self._created(header)

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
        values = converted(values, self.dtype, self._nodata, str(self.target))
        key = [slice(0, length) for length in self._target.lengths]
        key[self._target.cube.order.index("row")] = slice(start, stop)
        with self._explaining():
            self._layout.write(self._descriptor, tuple(key), self._target.cube.in_order(values))
        self._next_row = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        os.close(self._descriptor)
        temporaries = [temporary for temporary, _ in self._moves]
        try:
            if kind is not None:
                return
            n_rows = self.shape[0]
            if self._next_row < n_rows:
                raise ValueError(
                    f"{self.target}: {self._next_row} of {n_rows} rows were written; the file "
                    "is not kept."
                )
            with self._explaining():
                layout = self._layout
                values = np.memmap(self._rows, layout.dtype, "r", layout.offset, layout.shape)
                self._module.save(self._target, values, *temporaries)
                atomic.commit(self._moves)
        finally:
            atomic.remove(self._rows, *temporaries)

    def _created(self, header: bytes) -> int:
        """The file for the rows, if there is room for it."""
        if shutil.disk_usage(self._rows.parent).free < self._layout.end:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        descriptor = os.open(self._rows, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            atomic.write_at(descriptor, header, 0)
        except BaseException:
            os.close(descriptor)
            atomic.remove(self._rows)
            raise
        return descriptor

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise atomic.explained(problem, self.target) from problem


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


def places_for(target: Target) -> list[Path]:
    """The files or folders that a writer makes or replaces."""
    module = module_of(target.format)
    return module.places(target) if hasattr(module, "places") else [target.path]


def writer_for(target: Target) -> CubeWriter:
    """A writer in the format that the name of the target says."""
    path, name = target.path, target.format
    read = {os.path.realpath(file) for file in target.source.files}
    replaced = read.intersection(map(os.path.realpath, places_for(target)))
    if replaced and replaced != read:
        # The header of an ENVI file, for one, would no longer belong to its numbers.
        raise ValueError(
            f"{path} would replace {replaced.pop()}, which the cube is read from, but not all of "
            "its files; give another name."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} does not exist; create it first.")
    writes_folder = name == "image_folder" or (name == "zarr" and path.suffix != ".zip")
    if path.is_dir() and not writes_folder:
        raise IsADirectoryError(f"{path} is a folder; give the name of a file.")
    if path.is_file() and writes_folder:
        raise NotADirectoryError(f"{path} is a file; a folder is to be written there.")
    if path.is_dir():
        module_of(name).check_replaceable(path)
    return CubeWriter(target)
