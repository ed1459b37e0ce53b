"""MATLAB files: version 7.3 is HDF5 inside, older ones are taken into memory by scipy."""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, wavelengths_among
from kronlearn.io.formats.memory import ObjectArray
from kronlearn.io.stored import StoredArray, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["MatArray", "check", "open_file", "save"]

# What a variable of these files can have.
_MAX_BYTES = (1 << 31) - (1 << 16)
# zlib makes no number of bytes smaller than by this factor.
_MAX_RATIO = 1032
# MATLAB's names of the classes of real numbers.
_CLASSES = {"double": "f8", "single": "f4", "logical": "b1"}
_CLASSES |= {f"{sign}int{8 * n}": f"{sign or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)}
# The codes of these classes, of what may follow them, and of an element that is compressed.
_NUMERIC_CLASSES, _TYPES, _COMPRESSED = range(6, 16), (1, 2, 3, 4, 5, 6, 7, 9, 12, 13), 15
# Enough for the names and dimensions of a variable.
_START_BYTES = 1 << 16


class MatArray(ObjectArray):
    """A variable of a MATLAB file up to version 7.2, in memory."""

    format = "mat"


class _Variable:
    """The shape and dtype of a variable, before it is read."""

    def __init__(self, shape: tuple[int, ...], kind: str) -> None:
        self.shape, self.dtype = shape, np.dtype(_CLASSES.get(kind, "O"))


def open_file(path: Path, dataset: str | None) -> StoredArray:
    """The array of a MATLAB file; its shape is the one that MATLAB shows."""
    with open(path, "rb") as file:
        start = file.read(520)
    if start.startswith(b"MATLAB 7.3") or b"\x89HDF\r\n" in start:
        return hdf5.open_file(path, dataset, hdf5.MatlabArray)
    from scipy.io import whosmat

    if start[126:128] in (b"IM", b"MI"):
        _check_types(path, "<" if start[126:128] == b"IM" else ">")
    found = {name: _Variable(*rest) for name, *rest in whosmat(path, appendmat=False)}
    name = choose(str(path), found, dataset)
    longest = max(found[name].shape, default=0)
    short = [n for n, v in found.items() if v.dtype != "O" and math.prod(v.shape) <= longest]
    announced, size = sum(math.prod(found[n].shape) for n in {name, *short}), path.stat().st_size
    if announced > _MAX_RATIO * size:
        raise StoredArrayError(
            f"{path} is damaged: it announces {announced} numbers, which its {size} bytes cannot "
            "hold."
        )
    values = _loaded(path, [name, *short])
    if not isinstance(values[name], np.ndarray) or values[name].dtype.kind not in "fiub":
        raise StoredArrayError(f"{path} ({name}) is no array of real numbers.")
    waves = wavelengths_among({n: values[n] for n in short if n != name})
    return MatArray(values[name], str(path), path=path, dataset=name, wavelengths=waves)


def check(writer: CubeWriter) -> None:
    """Raise if the numbers are too many, or of a type that MATLAB has not."""
    is_old = not isinstance(writer.source, hdf5.MatlabArray)
    if is_old and math.prod(writer.shape) * writer.dtype.itemsize > _MAX_BYTES:
        raise ValueError(
            f"{writer.path}: MATLAB files of this version hold 2 GiB at most, and {writer.shape} "
            f"{writer.dtype} values need more; write .h5 or .npy instead."
        )
    if writer.dtype not in map(np.dtype, _CLASSES.values()):
        raise ValueError(f"{writer.path}: MATLAB files hold no {writer.dtype} numbers.")


def save(writer: CubeWriter, values: NDArray[Any], place: Path) -> None:
    """Write a file of the version of the source with its other variables, or of version 5."""
    from scipy.io import savemat

    source = writer.source
    if isinstance(source, hdf5.MatlabArray):
        hdf5.save(writer, values, place)
        return
    name = (source.dataset or "cube").rpartition("/")[2]
    variables: dict[str, Any] = {name: values}
    if isinstance(source, MatArray):
        variables = _others(Path(str(source.path)), name) | {name: values.reshape(source.shape)}
    elif writer.cube.wavelengths is not None:
        variables["wavelength"] = writer.cube.wavelengths.reshape(1, -1)
    with open(place, "xb") as file:
        savemat(file, variables, do_compression=True)


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
                raise StoredArrayError(f"{path} is damaged: its numbers are of no known type.")
            place += 8 + length


def _loaded(path: Path, names: list[str]) -> dict[str, Any]:
    """Variables as MATLAB has them: numbers in the dtype of their class, not as they are stored."""
    from scipy.io import loadmat

    options = {"appendmat": False, "variable_names": names}
    try:
        with warnings.catch_warnings():
            # It would drop imaginary parts: complex numbers are taken as they are stored.
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            return loadmat(path, mat_dtype=True, **options)
    except np.exceptions.ComplexWarning:
        return loadmat(path, **options)
    except MemoryError as problem:
        raise MemoryError(f"{path} does not fit into memory; save it with -v7.3.") from problem


def _others(path: Path, cube: str) -> dict[str, Any]:
    """The variables of a file in their order, None for the cube."""
    from scipy.io import whosmat
    from scipy.io.matlab import MatlabFunction, MatlabOpaque

    names = [name for name, _, _ in whosmat(path, appendmat=False)]
    loaded = _loaded(path, [name for name in names if name != cube])
    found = {name: loaded.get(name) for name in names}
    lost = [n for n, v in found.items() if isinstance(v, MatlabFunction | MatlabOpaque)]
    if lost:
        warnings.warn(
            f"{path} holds objects or functions of MATLAB that cannot be kept: {', '.join(lost)}.",
            stacklevel=2,
        )
    return {name: values for name, values in found.items() if name not in lost}
