"""MATLAB files: version 7.3 is HDF5; older ones are read into memory by scipy."""

from __future__ import annotations

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
# Codes in these files: numeric classes of variables, types of stored numbers, compressed elements.
_NUMERIC_CLASSES, _NUMBER_TYPES, _COMPRESSED = range(6, 16), (1, 2, 3, 4, 5, 6, 7, 9, 12, 13), 15
# The start of a variable with its dimensions and its name is not longer than this.
_START_BYTES = 1 << 16


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the array in a MATLAB file, with the shape that MATLAB shows."""
    with open(path, "rb") as file:
        start = file.read(128)
    if start.startswith(b"MATLAB 7.3"):
        thing, description = hdf5.open_file(path, dataset, files)
        return hdf5.Reversed(thing), description
    if start[126:128] in (b"IM", b"MI"):
        _check_number_types(path, "<" if start[126:128] == b"IM" else ">")
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
    name = (source.dataset or "cube").rpartition("/")[2]
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


def _check_number_types(path: Path, order: str) -> None:
    """Raise StoredArrayError for numbers of a type that does not exist, on which scipy crashes.

    A variable is an element with a type and a length. It contains further elements: flags,
    dimensions, a name and then the numbers.
    """
    with open(path, "rb") as file:
        offset, size = 128, path.stat().st_size
        while offset < size:
            file.seek(offset)
            kind, length = struct.unpack(order + "II", file.read(8))
            content = file.read(min(length, _START_BYTES))
            if kind == _COMPRESSED:
                content = zlib.decompressobj().decompress(content, _START_BYTES)[8:]
            (flags,) = struct.unpack_from(order + "I", content, 8)
            start = 16
            for _ in ("dimensions", "name"):
                tag, count = struct.unpack_from(order + "II", content, start)
                # Elements of up to four bytes have their content in place of its length.
                start += 8 if tag >> 16 else 8 + -(-count // 8) * 8
            (number_type,) = struct.unpack_from(order + "I", content, start)
            if flags & 0xFF in _NUMERIC_CLASSES and number_type & 0xFFFF not in _NUMBER_TYPES:
                raise StoredArrayError(f"{path} is damaged: its numbers have an unknown type.")
            offset += 8 + length


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
