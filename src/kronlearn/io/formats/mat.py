"""MATLAB files: version 7.3 is HDF5 inside, older ones are taken into memory by scipy."""

from __future__ import annotations

import struct
import warnings
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, described
from kronlearn.io.stored import Opened, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["check", "open_file", "save"]

# What a variable of these files can have.
_MAX_BYTES = (1 << 31) - (1 << 16)
# The codes of the classes of numbers, of the types that numbers are stored in, and of an element
# that is compressed.
_NUMERIC_CLASSES, _TYPES, _COMPRESSED = range(6, 16), (1, 2, 3, 4, 5, 6, 7, 9, 12, 13), 15
# Enough for the name and dimensions of a variable.
_START_BYTES = 1 << 16


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array of a MATLAB file; its shape is the one that MATLAB shows."""
    with open(path, "rb") as file:
        start = file.read(128)
    if start.startswith(b"MATLAB 7.3"):
        thing, description = hdf5.open_file(path, dataset, files)
        return hdf5.Reversed(thing), description
    if start[126:128] in (b"IM", b"MI"):
        _check_types(path, "<" if start[126:128] == b"IM" else ">")
    arrays = {n: v for n, v in _variables(path).items() if isinstance(v, np.ndarray)}
    name = choose(str(path), arrays, dataset)
    return arrays[name], described(name, arrays[name], {}, None, arrays)


def check(writer: CubeWriter) -> None:
    """Raise if there are more numbers than the file can hold."""
    if not _is_copied_hdf5(writer) and writer.nbytes > _MAX_BYTES:
        raise ValueError(
            f"{writer.path}: MATLAB files of this version hold 2 GiB at most, but {writer.dtype} "
            f"values of shape {writer.shape} need more; write .h5 or .npy instead."
        )


def save(writer: CubeWriter, place: Path) -> None:
    """Write a file of the version of the source with its other variables, or of version 5."""
    from scipy.io import savemat

    source = writer.source
    if _is_copied_hdf5(writer):
        hdf5.save(writer, place)
        return
    name = (source.dataset or "cube").rpartition("/")[2]
    variables: dict[str, Any] = {}
    if source.format == "mat" and not isinstance(source.thing, hdf5.Reversed):
        variables = _variables(Path(str(source.path)))
    elif writer.cube.wavelengths is not None:
        variables = {"wavelength": writer.cube.wavelengths.reshape(1, -1)}
    with open(place, "xb") as file:
        values = writer.rows[tuple(slice(0, length) for length in source.shape)]
        savemat(file, variables | {name: values}, do_compression=True)


def _is_copied_hdf5(writer: CubeWriter) -> bool:
    """Whether a copy of the source, of version 7.3, gets the numbers."""
    return isinstance(writer.source.thing, hdf5.Reversed) and writer.is_alike


def _check_types(path: Path, order: str) -> None:
    """Raise for numbers of a type that does not exist: scipy would crash.

    Variables are elements with a type and a length. Inside are flags, dimensions and a name, and
    then the numbers, as elements again.
    """
    with open(path, "rb") as file:
        place, size = 128, path.stat().st_size
        while place < size:
            file.seek(place)
            kind, length = struct.unpack(order + "II", file.read(8))
            content = file.read(min(length, _START_BYTES))
            if kind == _COMPRESSED:
                content = zlib.decompressobj().decompress(content, _START_BYTES)[8:]
            (flags,) = struct.unpack_from(order + "I", content, 8)
            after = 16
            for _ in ("dimensions", "name"):
                tag, count = struct.unpack_from(order + "II", content, after)
                # Up to four bytes stand in the place of their number.
                after += 8 if tag >> 16 else 8 + -(-count // 8) * 8
            (number_type,) = struct.unpack_from(order + "I", content, after)
            if flags & 0xFF in _NUMERIC_CLASSES and number_type & 0xFFFF not in _TYPES:
                raise StoredArrayError(f"{path} is damaged: its numbers have an unknown type.")
            place += 8 + length


def _variables(path: Path) -> dict[str, Any]:
    """Variables as MATLAB has them: numbers in the dtype of their class, not as they are stored."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatlabFunction, MatlabOpaque

    try:
        with warnings.catch_warnings():
            # It would drop imaginary parts: complex numbers are taken as they are stored.
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            found = loadmat(path, appendmat=False, mat_dtype=True)
    except np.exceptions.ComplexWarning:
        found = loadmat(path, appendmat=False)
    except MemoryError as problem:
        raise MemoryError(f"{path} does not fit into memory; save it with -v7.3.") from problem
    # Objects and functions of MATLAB are no values that could be used or written.
    lost = (MatlabFunction, MatlabOpaque)
    return {n: v for n, v in found.items() if n[:2] != "__" and not isinstance(v, lost)}
