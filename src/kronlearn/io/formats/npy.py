"""NumPy's own files, .npy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.plain import FileArray, Layout, write_plain
from kronlearn.io.stored import StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["open_file", "save"]


def open_file(path: Path, dataset: None) -> FileArray:
    """The array in an .npy file, in C or Fortran order."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        readers = {1: np.lib.format.read_array_header_1_0}
        reader = readers.get(version[0], np.lib.format.read_array_header_2_0)
        shape, fortran, dtype = reader(file)
        offset = file.tell()
    if dtype.kind not in "fiub":
        raise StoredArrayError(f"{path} holds {dtype} values; real numbers are needed.")
    return FileArray(path, Layout.in_order(shape, dtype, offset, "F" if fortran else "C"), "npy")


def save(writer: CubeWriter, values: NDArray[Any], place: Path) -> None:
    """Write the values in C order, with the axes of length one that an .npy source has."""
    shape = writer.source.shape if writer.source.format == "npy" else values.shape
    header = {"descr": values.dtype.str, "fortran_order": False, "shape": shape}
    with open(place, "xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        offset = file.tell()
    layout = Layout.in_order(values.shape, values.dtype, offset)
    write_plain(place, layout, values, writer.row_axis)
