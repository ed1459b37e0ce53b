"""MATLAB files: version 7.3 is HDF5 inside, older ones are taken into memory by scipy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import hdf5
from kronlearn.io.formats.conventions import choose, described
from kronlearn.io.stored import StoredArray
from kronlearn.io.writers import CubeWriter

__all__ = ["check", "open_file", "save"]

# What a variable of these files can have.
_MAX_BYTES = (1 << 31) - (1 << 16)


def open_file(path: Path, dataset: str | None) -> StoredArray:
    """The array of a MATLAB file; its shape is the one that MATLAB shows."""
    with open(path, "rb") as file:
        if file.read(10) == b"MATLAB 7.3":
            return hdf5.open_file(path, dataset, "mat")
    arrays = {n: v for n, v in _variables(path).items() if isinstance(v, np.ndarray)}
    name = choose(str(path), arrays, dataset)
    description = described(name, arrays[name], {}, None, arrays)
    return StoredArray(arrays[name], str(path), format="mat", path=path, **description)


def check(writer: CubeWriter) -> None:
    """Raise if there are more numbers than the file can hold."""
    if not hdf5.is_hdf5(writer.source) and writer.nbytes > _MAX_BYTES:
        raise ValueError(
            f"{writer.path}: MATLAB files of this version hold 2 GiB at most, and {writer.shape} "
            f"{writer.dtype} values need more; write .h5 or .npy instead."
        )


def save(writer: CubeWriter, place: Path) -> None:
    """Write a file of the version of the source with its other variables, or of version 5."""
    from scipy.io import savemat

    source = writer.source
    if hdf5.is_hdf5(source):
        hdf5.save(writer, place)
        return
    name = (source.dataset or "cube").rpartition("/")[2]
    variables: dict[str, Any] = {}
    if source.format == "mat":
        variables = _variables(Path(str(source.path)))
    elif writer.cube.wavelengths is not None:
        variables = {"wavelength": writer.cube.wavelengths.reshape(1, -1)}
    with open(place, "xb") as file:
        values = writer.rows[tuple(slice(0, length) for length in source.shape)]
        savemat(file, variables | {name: values}, do_compression=True)


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
