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
from kronlearn.io.stored import Key, StoredArray, StoredArrayError
from kronlearn.io.writers import Target

__all__ = ["MatArray", "open_file", "prepare", "save"]

# What a variable of these files can have.
_MAX_BYTES = (1 << 31) - (1 << 16)
# zlib makes no number of bytes smaller than by this factor.
_MAX_RATIO = 1032
# The types of numbers and the classes of variables that have them, by their codes.
_TYPES = (1, 2, 3, 4, 5, 6, 7, 9, 12, 13)
_NUMERIC_CLASSES = range(6, 16)
_COMPRESSED, _IS_COMPLEX = 15, 0x0800
# Enough for the names and dimensions of a variable.
_START_BYTES = 1 << 16
# MATLAB's names of these classes.
_CLASSES = {"double": "f8", "single": "f4", "logical": "b1"}
_CLASSES |= {f"{sign}int{8 * n}": f"{sign or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)}


class MatArray(StoredArray):
    """A variable of a MATLAB file up to version 7.2, in memory."""

    format = "mat"

    def __init__(self, path: Path, name: str, values: NDArray[Any], **more: Any) -> None:
        self._values = values
        super().__init__(str(path), values.shape, values.dtype, path=path, dataset=name, **more)

    def _read(self, key: Key) -> NDArray[Any]:
        return self._values[key]


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

    unreal = set()
    if start[126:128] in (b"IM", b"MI"):
        unreal = _check_types(path, "<" if start[126:128] == b"IM" else ">")
    found = {
        name: _Variable(shape, "complex" if name in unreal else kind)
        for name, shape, kind in whosmat(path, appendmat=False)
    }
    name = choose(str(path), found, dataset)
    if found[name].dtype == "O":
        raise StoredArrayError(f"{path} ({name}) is no array of real numbers.")
    longest = max(found[name].shape, default=0)
    short = [n for n, v in found.items() if v.dtype != "O" and math.prod(v.shape) <= longest]
    _check_size(path, [found[n] for n in {name, *short}])
    values = _loaded(path, [name, *short])
    waves = wavelengths_among({n: values[n] for n in short if n != name})
    return MatArray(path, name, values[name], wavelengths=waves)


def _check_types(path: Path, order: str) -> set[str]:
    """The names of complex variables; StoredArrayError for numbers of a type that does not exist.

    scipy crashes on such types, and reads on behind a variable that has become complex by damage.
    Variables are elements with a type and a length. Inside are flags, dimensions and a name, and
    then the numbers, as elements again.
    """
    names = set()
    with open(path, "rb") as file:
        place, size = 128, path.stat().st_size
        while place < size:
            file.seek(place)
            kind, length = struct.unpack(order + "II", file.read(8))
            content = file.read(min(length, _START_BYTES))
            if kind == _COMPRESSED:
                content = zlib.decompressobj().decompress(content, _START_BYTES)[8:]
            (flags,) = struct.unpack_from(order + "I", content, 8)
            start, after = _inner(content, _inner(content, 16, order)[1], order)
            (number_type,) = struct.unpack_from(order + "I", content, after)
            if flags & 0xFF in _NUMERIC_CLASSES and number_type & 0xFFFF not in _TYPES:
                raise StoredArrayError(f"{path} is damaged: its numbers are of no known type.")
            if flags & _IS_COMPLEX:
                names.add(content[start:after].rstrip(b"\0").decode("latin-1"))
            place += 8 + length
    return names


def _inner(content: bytes, place: int, order: str) -> tuple[int, int]:
    """Where the content of an element inside a variable begins, and where the next one does."""
    tag, count = struct.unpack_from(order + "II", content, place)
    if tag >> 16:
        # Up to four bytes stand in the place of their number.
        return place + 4, place + 8
    return place + 8, place + 8 + -(-count // 8) * 8


def _check_size(path: Path, variables: list[_Variable]) -> None:
    """Raise if variables are announced that cannot be in a file of this size."""
    needed = sum(math.prod(v.shape) for v in variables)
    size = path.stat().st_size
    if needed > _MAX_RATIO * size:
        raise StoredArrayError(
            f"{path} is damaged: it announces {needed} numbers, which its {size} bytes cannot hold."
        )


def _loaded(path: Path, names: list[str]) -> dict[str, Any]:
    """Variables as MATLAB has them: numbers in the dtype of their class, not as they are stored."""
    from scipy.io import loadmat

    options = {"appendmat": False, "variable_names": names}
    try:
        stored = loadmat(path, **options)
        with warnings.catch_warnings():
            # It would drop imaginary parts: complex numbers are taken as they are stored.
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            classed = loadmat(path, mat_dtype=True, **options)
    except MemoryError as problem:
        raise MemoryError(f"{path} does not fit into memory; save it with -v7.3.") from problem
    return {n: stored[n] if np.iscomplexobj(stored[n]) else classed[n] for n in names}


def save(target: Target, values: np.memmap[Any, Any], place: Path) -> None:
    """Write a file of the version of the source with its other variables, or of version 5."""
    from scipy.io import savemat

    source = target.source
    if isinstance(source, hdf5.MatlabArray):
        hdf5.save(target, values, place)
        return
    name = (source.dataset or "cube").rpartition("/")[2]
    variables: dict[str, Any] = {name: values}
    if isinstance(source, MatArray):
        variables = _others(Path(str(source.path)), name) | {name: values.reshape(source.shape)}
    elif target.cube.wavelengths is not None:
        variables["wavelength"] = target.cube.wavelengths.reshape(1, -1)
    with open(place, "xb") as file:
        savemat(file, variables, do_compression=True)


def prepare(target: Target) -> tuple[np.dtype[Any], bytes]:
    """The dtype in which rows are collected, and what stands before them."""
    is_old = not isinstance(target.source, hdf5.MatlabArray)
    if is_old and math.prod(target.cube.shape) * target.out_dtype.itemsize > _MAX_BYTES:
        raise ValueError(
            f"{target.path}: MATLAB files of this version hold 2 GiB at most, and "
            f"{target.cube.shape} {target.out_dtype} values need more; write .h5 or .npy instead."
        )
    if target.out_dtype not in map(np.dtype, _CLASSES.values()):
        raise ValueError(f"{target.path}: MATLAB files hold no {target.out_dtype} numbers.")
    return target.out_dtype, b""


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
