"""MATLAB files: version 7.3 is HDF5; older ones are read into memory by scipy."""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, describe
from kronlearn.io.stored import Opened, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["check", "open_file", "save"]

# The largest variable of a file of version 5.
_MAX_BYTES = (1 << 31) - (1 << 16)
# Codes in these files: classes of variables (cells, structures and objects; texts and numbers), and
# types of elements, of which one is a variable and one is compressed.
_CELL_CLASSES, _PLAIN_CLASSES = (1, 2, 3), range(4, 16)
_TYPES, _VARIABLE, _COMPRESSED = (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14, 16, 17, 18), 14, 15
# Variables are read in pieces of this size to check them.
_PIECE_BYTES = 1 << 16


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the array in a MATLAB file, with the shape that MATLAB shows."""
    with open(path, "rb") as file:
        start = file.read(128)
    if start.startswith(b"MATLAB 7.3"):
        thing, description = hdf5.open_file(path, dataset, files)
        return hdf5.Reversed(thing), description
    if start[126:128] in (b"IM", b"MI"):
        _check_variables(path, "<" if start[126:128] == b"IM" else ">")
    arrays = {n: v for n, v in _variables(path).items() if isinstance(v, np.ndarray)}
    name = choose(str(path), arrays, dataset)
    return arrays[name], describe(name, arrays[name], {}, None, arrays)


def check(writer: CubeWriter) -> None:
    """Raise if the cube is too large for a file of version 5."""
    if not _is_copied_hdf5(writer) and writer.nbytes > _MAX_BYTES:
        raise ValueError(
            f"{writer.path}: a variable of a MATLAB file can have at most 2 GiB, but "
            f"{writer.dtype} values of shape {writer.shape} need more; write .h5 or .npy instead."
        )


def save(writer: CubeWriter, path: Path) -> None:
    """Write a file with the version and the other variables of the source, or of version 5."""
    from scipy.io import savemat

    source = writer.source
    if _is_copied_hdf5(writer):
        hdf5.save(writer, path)
        return
    name = writer.dataset.rpartition("/")[2]
    variables: dict[str, Any] = {}
    if source.format == "mat" and not isinstance(source.thing, hdf5.Reversed):
        variables = _variables(Path(str(source.path)))
    elif writer.cube.wavelengths is not None:
        variables = {"wavelength": writer.cube.wavelengths.reshape(1, -1)}
    with open(path, "xb") as file:
        values = writer.rows[tuple(slice(0, length) for length in source.shape)]
        savemat(file, variables | {name: values}, do_compression=True)


def _is_copied_hdf5(writer: CubeWriter) -> bool:
    """Whether to copy the source, a file of version 7.3, and replace its values."""
    return isinstance(writer.source.thing, hdf5.Reversed) and writer.keeps_dtype


def _check_variables(path: Path, order: str) -> None:
    """Raise StoredArrayError for variables on which scipy crashes or fills the memory."""
    with open(path, "rb") as file:
        file.seek(128)
        while tag := file.read(8):
            kind, length = struct.unpack(order + "II", tag)
            end, content = file.tell() + length, file
            if kind == _COMPRESSED:
                content = io.BufferedReader(_Decompressed(file, length))
                length = struct.unpack(order + "II", content.read(8))[1]
            _check_variable(path, content, length, order)
            file.seek(end)


def _check_variable(path: Path, content: io.BufferedReader, length: int, order: str) -> None:
    """The same for the next variable of this length, and those that it contains.

    A variable is a sequence of elements, each with a type, a length and a content: flags,
    dimensions, a name, and then numbers or, in cells and structures, further variables.
    """
    variable_class, number, n_bytes = 0, 0, length
    # The last element may end early: scipy says what is missing.
    while length > 0 and len(tag := content.read(8)) == 8:
        kind, size = struct.unpack(order + "II", tag)
        # Elements of up to four bytes have their content in place of its length.
        kind, size = (kind & 0xFFFF, 0) if kind >> 16 else (kind, -(-size // 8) * 8)
        if kind not in _TYPES or (kind == _VARIABLE and variable_class in _PLAIN_CLASSES):
            raise StoredArrayError(f"{path} is damaged: a variable holds elements of type {kind}.")
        length, number = length - 8 - size, number + 1
        if kind == _VARIABLE and size > 0:
            _check_variable(path, content, size, order)
            continue
        start = content.read(8) if number <= 2 and size >= 8 else b""
        if number == 1 and len(start) == 8:
            variable_class = start[0 if order == "<" else 3]
        elif len(start) == 8 and variable_class in _CELL_CLASSES:
            dimensions = struct.unpack(order + "II", start)
            if 8 * math.prod(dimensions) > n_bytes:
                raise StoredArrayError(
                    f"{path} is damaged: it is too short for its {dimensions} cells."
                )
        _skip(content, size - len(start))


def _skip(content: io.BufferedReader, count: int) -> None:
    """Skip bytes, in pieces if they must be read."""
    if content.seekable():
        content.seek(count, os.SEEK_CUR)
        return
    while count > 0 and (piece := content.read(min(count, _PIECE_BYTES))):
        count -= len(piece)


class _Decompressed(io.RawIOBase):
    """The content of the next ``length`` bytes of a file, decompressed piece by piece."""

    def __init__(self, file: io.BufferedReader, length: int) -> None:
        self._file, self._left, self._decompressor = file, length, zlib.decompressobj()

    def readable(self) -> bool:
        """Whether the content can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress as much as there is room for; 0 at the end."""
        while not self._decompressor.eof:
            compressed = self._decompressor.unconsumed_tail
            if not compressed:
                compressed = self._file.read(min(self._left, _PIECE_BYTES))
                self._left -= len(compressed)
            content = self._decompressor.decompress(compressed, len(buffer))
            if content or not compressed:
                buffer[: len(content)] = content
                return len(content)
        return 0


def _variables(path: Path) -> dict[str, Any]:
    """The variables by name, with numbers in the dtype of their MATLAB class."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatlabFunction, MatlabOpaque

    try:
        with warnings.catch_warnings():
            # mat_dtype=True drops imaginary parts: complex numbers keep their stored dtype.
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            variables = loadmat(path, appendmat=False, mat_dtype=True)
    except np.exceptions.ComplexWarning:
        variables = loadmat(path, appendmat=False)
    except MemoryError as problem:
        raise MemoryError(f"{path} does not fit into memory; save it with -v7.3.") from problem
    # scipy cannot write objects and functions of MATLAB.
    skipped = (MatlabFunction, MatlabOpaque)
    return {n: v for n, v in variables.items() if n[:2] != "__" and not isinstance(v, skipped)}
