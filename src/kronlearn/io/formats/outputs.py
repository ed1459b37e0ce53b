"""Cubes written to files: beside their place first, and moved there when they are complete."""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.planes import in_range
from kronlearn.io.stored import KNOWN, Key, StoredArray, format_by_ending

__all__ = ["ArrayWriter", "CubeWriter", "Plan", "converted", "writer_for"]

_ENVI_ENDINGS = (".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".envi")


@dataclass(frozen=True)
class Plan:
    """What a new file is to hold."""

    #: What the cube was read from: its metadata are kept.
    source: StoredArray
    #: (rows, columns, bands).
    shape: tuple[int, int, int]
    #: The axes of rows and columns in the source, and that of the bands, if there is one.
    space: tuple[int, int]
    band_axis: int | None
    #: None: as in the source.
    dtype: np.dtype[Any] | None
    nodata: float | int | None
    wavelengths: NDArray[np.float64] | None

    def __post_init__(self) -> None:
        if self.nodata is None or fits(self.nodata, self.out_dtype):
            return
        if self.dtype is not None and not math.isnan(self.nodata):
            raise ValueError(
                f"{self.dtype} cannot hold {self.nodata}, the value that means no data in "
                f"{self.source.name}; pass another dtype or nodata."
            )
        object.__setattr__(self, "nodata", None)

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """Of the values that are written."""
        return self.source.dtype if self.dtype is None else self.dtype.newbyteorder("=")

    @property
    def order(self) -> tuple[str, ...]:
        """The axes "row", "column" and "band", if there is one, in the order of the source."""
        axes: dict[int | None, str] = {self.space[0]: "row", self.space[1]: "column"}
        axes[self.band_axis] = "band"
        return tuple(axes[axis] for axis in sorted(axis for axis in axes if axis is not None))

    def stored_key(self, key: Key) -> tuple[slice | int, ...]:
        """The part of the source that a key, in the order of the source, stands for."""
        axes = sorted(axis for axis in (*self.space, self.band_axis) if axis is not None)
        whole: list[slice | int] = [0] * self.source.ndim
        for axis, part in zip(axes, key, strict=True):
            whole[axis] = part
        return tuple(whole)

    def length(self, axis: str) -> int:
        """The length of the axis "row", "column" or "band"."""
        return self.shape[("row", "column", "band").index(axis)]


class ArrayWriter(ABC):
    """Writes one file or folder at a temporary place beside its target.

    Parameters
    ----------
    target : Path
    order : tuple of str
        The axes "row", "column" and "band" as the values are wanted; without "band", for one.
    """

    #: Whole multiples of so many rows are written fastest.
    row_step = 1
    #: The dtype that values are to be converted to; set by the writer.
    dtype: np.dtype[Any]

    def __init__(self, target: Path, order: tuple[str, ...]) -> None:
        self.target, self.temporary = target, beside(target)
        self.order = order

    @property
    def moves(self) -> list[tuple[Path, Path]]:
        """What has been written, and where it belongs, in the order of moving."""
        return [(self.temporary, self.target)]

    @abstractmethod
    def write(self, key: Key, values: NDArray[Any]) -> None:
        """Write values, with the axes of ``order``, at their place."""

    @property
    def places(self) -> list[Path]:
        """All that may be left at temporary places."""
        return [temporary for temporary, _ in self.moves]

    def finish(self) -> None:
        """Complete what is at the temporary place, once all values are written."""
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Close what is open, complete or not. May be called several times."""

    def remove(self) -> None:
        """Close and remove all that is left at temporary places."""
        # What could not be closed is removed all the same; the error that led here is on its way.
        with contextlib.suppress(Exception):
            self.release()
        for place in self.places:
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)


class CubeWriter:
    """Takes the values of a cube by rows, and leaves a complete file or none.

    Made by :meth:`kronlearn.io.cubes.Cube.create`; use it in a ``with`` block.
    """

    def __init__(self, target: Path, plan: Plan, writer: ArrayWriter) -> None:
        self.target = target
        self.shape = plan.shape
        self._plan, self._writer = plan, writer
        self._next_row = 0
        self._waiting: list[NDArray[Any]] = []

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values in the file."""
        return self._writer.dtype

    def write(self, rows: slice, values: NDArray[Any]) -> None:
        """Write the next rows.

        Parameters
        ----------
        rows : slice
            Starts where the last ones ended.
        values : array of shape (rows, columns, bands)
            Rounded and kept in range where the file holds integers; NaN becomes no data.
        """
        start, stop = rows.start or 0, self.shape[0] if rows.stop is None else rows.stop
        if start != self._received or values.shape != (stop - start, *self.shape[1:]):
            raise ValueError(
                f"rows {start} to {stop} with values of shape {values.shape} were given to write; "
                f"rows from {self._received} on are next, of shape "
                f"(rows, {self.shape[1]}, {self.shape[2]})."
            )
        if stop > self.shape[0]:
            raise ValueError(f"row {stop - 1} was given to write; there are {self.shape[0]}.")
        block = converted(values, self.dtype, self._plan.nodata, str(self.target))
        self._waiting.append(block)
        # Chunks that are written in parts would be read, decompressed and compressed again.
        step = self._writer.row_step
        ready = self._received if stop == self.shape[0] else self._received // step * step
        if ready > self._next_row:
            self._flush(ready)
        elif np.may_share_memory(block, values):
            # The caller may use its array for the next rows.
            self._waiting[-1] = block.copy()

    @property
    def _received(self) -> int:
        return self._next_row + sum(map(len, self._waiting))

    def _flush(self, stop: int) -> None:
        block = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        count = stop - self._next_row
        self._waiting = [block[count:].copy()] if count < len(block) else []
        block = block[:count]
        order = self._writer.order
        parts = {"row": slice(self._next_row, stop)}
        key = tuple(parts.get(a, slice(0, self._plan.length(a))) for a in order)
        if "band" not in order:
            block = block[..., 0]
        axes = [("row", "column", "band").index(axis) for axis in order]
        try:
            self._writer.write(key, block.transpose(axes))
        except OSError as problem:
            raise _explained(problem, self.target) from problem
        self._next_row = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._next_row < self.shape[0]:
                raise ValueError(
                    f"{self.target}: {self._next_row} of {self.shape[0]} rows were written; the "
                    "file is not kept."
                )
            if kind is None:
                self._commit()
        finally:
            self._writer.remove()

    def _commit(self) -> None:
        try:
            self._writer.finish()
            for temporary, _ in self._writer.moves:
                _to_disk(temporary)
                if temporary.is_dir():
                    # File by file would take long for the many of a Zarr store.
                    os.sync()
            for temporary, target in self._writer.moves:
                _replace(temporary, target)
                _to_disk(target.parent)
        except OSError as problem:
            raise _explained(problem, self.target) from problem


def places_for(path: Path, plan: Plan) -> list[Path]:
    """The files or folders that a writer for a path makes or replaces."""
    target = Path(os.path.realpath(path))
    module = _module(_format_for(target, plan.source))
    return module.places(target, plan) if hasattr(module, "places") else [target]


def _module(name: str) -> Any:
    return importlib.import_module(f"kronlearn.io.formats.{name}")


def writer_for(path: Path, plan: Plan) -> CubeWriter:
    """A writer for a path, in the format that its name says."""
    target = Path(os.path.realpath(path))
    name = _format_for(target, plan.source)
    module = _module(name)
    read = {os.path.realpath(file) for file in plan.source.files}
    replaced = read.intersection(map(os.path.realpath, places_for(path, plan)))
    if replaced and replaced != read:
        # The header of an ENVI file, for one, would no longer belong to its numbers.
        raise ValueError(
            f"{path} would replace {replaced.pop()}, which the cube is read from, but not all of "
            "its files; give another name."
        )
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} does not exist; create it first.")
    writes_folder = name == "image_folder" or (name == "zarr_store" and target.suffix != ".zip")
    if target.is_dir() and not writes_folder:
        raise IsADirectoryError(f"{target} is a folder; give the name of a file.")
    if target.is_file() and writes_folder:
        raise NotADirectoryError(f"{target} is a file; a folder is to be written there.")
    if target.is_dir() and writes_folder:
        module.check_replaceable(target)
    try:
        return CubeWriter(path, plan, module.create(target, plan))
    except OSError as problem:
        raise _explained(problem, path) from problem


def beside(target: Path) -> Path:
    """A name for a temporary file or folder beside a target, with the same ending."""
    return target.parent / f".kronlearn-{secrets.token_hex(8)}{target.suffix}"


def axis_names(plan: Plan, order: tuple[str, ...]) -> list[str]:
    """Names for the axes of a new file: those of the source, or the usual ones."""
    if plan.source.axes is not None and len(plan.source.axes) == len(order):
        return list(plan.source.axes)
    names = {"row": "y", "column": "x", "band": "band"}
    if plan.wavelengths is not None:
        names["band"] = "wavelength"
    return [names[axis] for axis in order]


def fits(number: float | int, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype can hold a number."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return math.isnan(number) or math.isfinite(dtype.type(number))
    if dtype.kind == "b" or not math.isfinite(number) or number != int(number):
        return False
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


def converted(
    values: NDArray[Any], dtype: np.dtype[Any], nodata: float | int | None, name: str
) -> NDArray[Any]:
    """Values in a dtype: for integers rounded and kept in range, NaN as the value for no data."""
    values = np.asarray(values)
    dtype = np.dtype(dtype)
    if dtype.kind == "f" or values.dtype == dtype:
        return values.astype(dtype, copy=False)
    if values.dtype.kind == "b":
        return values.astype(dtype)
    if values.dtype.kind in "iu" and dtype.kind in "iu":
        kept, given = np.iinfo(dtype), np.iinfo(values.dtype)
        lowest, highest = max(kept.min, given.min), min(kept.max, given.max)
        return np.clip(values, lowest, highest).astype(dtype)
    values = np.array(values, np.float32 if values.itemsize < 4 else values.dtype)
    missing = np.isnan(values)
    if missing.any():
        if nodata is None or math.isnan(nodata):
            raise ValueError(
                f"{name}: the values contain NaN, which {dtype} cannot hold, and no value is "
                "declared to mean no data; pass nodata= to open_cube, or write floats."
            )
        values[missing] = 0
    result = in_range(values, dtype)
    if missing.any():
        result[missing] = nodata
    return result


def _format_for(target: Path, source: StoredArray) -> str:
    named = format_by_ending(target)
    if named is not None:
        return named
    if target.suffix.lower() in _ENVI_ENDINGS or (source.format == "envi" and not target.suffix):
        return "envi"
    if source.format == "image_folder" and not target.suffix:
        return "image_folder"
    raise ValueError(f"{target} has no ending that names a known format: {KNOWN}.")


def _explained(problem: OSError, target: Path) -> OSError:
    """The error with the name of the target, and in plain words for a full disk."""
    text = problem.strerror or str(problem.__cause__ or problem)
    # GDAL says only that it failed.
    room = shutil.disk_usage(Path(target).absolute().parent).free
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT) or room < 1 << 16
    full = full or "No space left" in str(problem)
    if full:
        text = "the disk is full (no space left on the device); make room or choose another disk"
    code = errno.ENOSPC if full else problem.errno or errno.EIO
    if str(target) in text:
        return problem
    return OSError(code, f"{target} could not be written: {text}")


def write_at(descriptor: int, content: Any, place: int) -> None:
    """Write all bytes at a place of a file."""
    view = memoryview(content).cast("B")
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written


def _to_disk(place: Path) -> None:
    """Make sure that a file, or the list of the files of a folder, has reached the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(temporary: Path, target: Path) -> None:
    """Move a file or folder to its place, whatever is there."""
    if not target.is_dir():
        os.replace(temporary, target)
        return
    old = beside(target)
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
