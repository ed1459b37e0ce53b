"""MATLAB files: version 7.3 is HDF5 inside, 5 to 7.2 are read where they are not compressed."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5, mat5
from kronlearn.io.formats.mapped import FileArray
from kronlearn.io.formats.naming import choose, wavelengths_among
from kronlearn.io.formats.outputs import ArrayWriter, Plan
from kronlearn.io.stored import Key, StoredArray

__all__ = ["MatArray", "MatFileArray", "create", "open_file"]

DESCRIPTION = "a MATLAB file"

# What a variable of these files can have.
_MAX_BYTES = (1 << 31) - (1 << 16)
_COPIED_BYTES = 1 << 20
_TEXT = b"MATLAB 5.0 MAT-file, written by kronlearn"


class MatArray(StoredArray):
    """A compressed variable of a MATLAB file, which has to be in memory."""

    format = "mat"

    def __init__(self, path: Path, name: str, values: NDArray[Any], **more: Any) -> None:
        self._values = values
        super().__init__(str(path), values.shape, values.dtype, path=path, dataset=name, **more)

    def _read(self, key: Key) -> NDArray[Any]:
        return self._values[key]


class MatFileArray(FileArray):
    """A variable of a MATLAB file that is not compressed."""

    format = "mat"


def open_file(path: Path, dataset: str | None) -> StoredArray:
    """The array of a MATLAB file; its shape is the one that MATLAB shows."""
    with open(path, "rb") as file:
        start = file.read(520)
    if start.startswith(b"MATLAB 7.3") or b"\x89HDF\r\n" in start:
        return hdf5.open_file(path, dataset, is_matlab=True)
    if 0 in start[:4]:
        return _open_version4(path, dataset)
    found = {v.name: v for v in mat5.variables(path) if v.name}
    variable = found[choose(str(path), found, dataset)]
    longest = max(variable.shape, default=0)
    short = {k: v for k, v in found.items() if v.dtype != "O" and math.prod(v.shape) <= longest}
    waves = wavelengths_among({k: _all_of(path, v) for k, v in short.items() if v != variable})
    if variable.is_compressed:
        return MatArray(path, variable.name, variable.values(path), wavelengths=waves)
    return _in_file(path, variable, wavelengths=waves)


def create(target: Path, plan: Plan) -> ArrayWriter:
    """A writer of a MATLAB file of the version of the source, 5 if that is something else."""
    if isinstance(plan.source, hdf5.Hdf5Array) and plan.source.is_matlab:
        return hdf5.create(target, plan)
    return _MatWriter(target, plan)


class _MatWriter(ArrayWriter):
    """Keeps all values, and writes them between the other variables of the source at the end."""

    def __init__(self, target: Path, plan: Plan) -> None:
        super().__init__(target, plan.order)
        self.dtype = plan.out_dtype
        shape = tuple(plan.length(axis) for axis in self.order)
        if math.prod(shape) * self.dtype.itemsize > _MAX_BYTES:
            raise ValueError(
                f"{target}: MATLAB files of this version hold 2 GiB at most, and "
                f"{shape} {self.dtype} values need more; write .h5 or .npy instead."
            )
        self._plan = plan
        self._values: NDArray[Any] = np.empty(shape, self.dtype, order="F")

    def write(self, key: Key, values: NDArray[Any]) -> None:
        """Keep rows of all bands."""
        self._values[key] = values

    def finish(self) -> None:
        """Write the file."""
        source = self._plan.source
        name = (source.dataset or "cube").rpartition("/")[2]
        with open(self.temporary, "xb") as file:
            if source.format == "mat":
                _write_like(file, Path(str(source.path)), name, self._values.reshape(source.shape))
                return
            header = _TEXT.ljust(124) + struct.pack("<H", 0x0100) + b"IM"
            file.write(header[:116] + bytes(8) + header[124:])
            mat5.write_variable(file, name, self._values, "<", compressed=False)
            if self._plan.wavelengths is not None:
                waves = self._plan.wavelengths.reshape(1, -1)
                mat5.write_variable(file, "wavelength", waves, "<", compressed=False)

    def release(self) -> None:
        """Let the values go."""
        self._values = np.empty(0)


def _write_like(file: BinaryIO, source: Path, name: str, values: NDArray[Any]) -> None:
    """Write a file with the variables of another, byte for byte, but for one."""
    with open(source, "rb") as old:
        header = old.read(mat5.HEADER_BYTES)
        order = mat5.byte_order(header)
        # Where MATLAB keeps what belongs to its objects, if there are any.
        (subsystem,) = struct.unpack_from(order + "Q", header, 116)
        file.write(header)
        for variable in mat5.variables(source):
            if variable.start == subsystem:
                header = header[:116] + struct.pack(order + "Q", file.tell()) + header[124:]
            if variable.name == name:
                mat5.write_variable(file, name, values, order, variable.is_compressed)
                continue
            old.seek(variable.start)
            _copy(old, file, variable.stop - variable.start)
        file.seek(0)
        file.write(header)


def _copy(old: BinaryIO, new: BinaryIO, count: int) -> None:
    while count > 0:
        content = old.read(min(count, _COPIED_BYTES))
        if not content:
            raise OSError(f"{old.name} has been cut off")
        new.write(content)
        count -= len(content)


def _in_file(path: Path, variable: mat5.Variable, **more: Any) -> MatFileArray:
    steps = np.cumprod([variable.stored.itemsize, *variable.shape[:-1]], dtype=object)
    array = MatFileArray(
        path,
        variable.shape,
        variable.stored,
        variable.start + variable.place,
        tuple(int(step) for step in steps),
        exact=False,
        dataset=variable.name,
        **more,
    )
    # MATLAB stores whole numbers in smaller types than those that they are.
    array.dtype = variable.dtype
    return array


def _all_of(path: Path, variable: mat5.Variable) -> NDArray[Any]:
    if variable.is_compressed or 0 in variable.shape:
        return variable.values(path)
    return _in_file(path, variable).read((slice(None),) * len(variable.shape))


def _open_version4(path: Path, dataset: str | None) -> StoredArray:
    """A matrix of the oldest version, which has no arrays of more dimensions."""
    from scipy.io import loadmat

    found = {name: np.asarray(v) for name, v in loadmat(path, appendmat=False).items()}
    found = {name: v for name, v in found.items() if not name.startswith("__")}
    name = choose(str(path), found, dataset)
    array = MatArray(path, name, found[name])
    array.format = "mat4"
    return array
