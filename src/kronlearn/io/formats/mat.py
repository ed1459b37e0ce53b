"""MATLAB files: version 7.3 is HDF5 inside, older ones are taken into memory by scipy."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, wavelengths_among
from kronlearn.io.stored import Key, StoredArray, StoredArrayError
from kronlearn.io.writers import Target

__all__ = ["MatArray", "open_file", "raw", "save"]

# What a variable of these files can have.
_MAX_BYTES = (1 << 31) - (1 << 16)
# zlib makes no number of bytes smaller than by this factor.
_MAX_RATIO = 1032
# MATLAB's classes of numbers.
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

    found = {name: _Variable(shape, kind) for name, shape, kind in whosmat(path, appendmat=False)}
    name = choose(str(path), found, dataset)
    longest = max(found[name].shape, default=0)
    short = [n for n, v in found.items() if v.dtype != "O" and math.prod(v.shape) <= longest]
    _check_size(path, [found[n] for n in {name, *short}])
    values = _loaded(path, [name, *short])
    waves = wavelengths_among({n: values[n] for n in short if n != name})
    return MatArray(path, name, values[name], wavelengths=waves)


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
    variables = {name: values}
    if isinstance(source, MatArray):
        variables = _others(Path(str(source.path)), name) | {name: values.reshape(source.shape)}
    elif target.cube.wavelengths is not None:
        variables["wavelength"] = target.cube.wavelengths.reshape(1, -1)
    with open(place, "xb") as file:
        savemat(file, variables, do_compression=True)


def raw(target: Target) -> tuple[np.dtype[Any], bytes]:
    """The dtype of the numbers and what stands before them, once they are known to fit."""
    is_old = not isinstance(target.source, hdf5.MatlabArray)
    if is_old and math.prod(target.cube.shape) * target.out_dtype.itemsize > _MAX_BYTES:
        raise ValueError(
            f"{target.path}: MATLAB files of this version hold 2 GiB at most, and "
            f"{target.cube.shape} {target.out_dtype} values need more; write .h5 or .npy instead."
        )
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
