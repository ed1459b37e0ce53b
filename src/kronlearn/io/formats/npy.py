"""NumPy's own files, .npy."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats.mapped import FileArray, Layout
from kronlearn.io.stored import StoredArrayError, holds_one_array
from kronlearn.io.writers import Target

__all__ = ["NpyArray", "open_file", "prepare", "save"]


class NpyArray(FileArray):
    """An array in an .npy file, in C or Fortran order."""

    format = "npy"


def open_file(path: Path, dataset: str | None) -> NpyArray:
    """The array in an .npy file."""
    holds_one_array(path, dataset)
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        readers = {1: np.lib.format.read_array_header_1_0}
        reader = readers.get(version[0], np.lib.format.read_array_header_2_0)
        shape, fortran, dtype = reader(file)
        offset = file.tell()
    if dtype.kind not in "fiub":
        raise StoredArrayError(f"{path} holds {dtype} values; real numbers are needed.")
    return NpyArray(path, Layout.in_order(shape, dtype, offset, "F" if fortran else "C"))


def prepare(target: Target) -> tuple[np.dtype[Any], bytes]:
    """The dtype in which rows are collected, and what stands before them."""
    is_npy = target.source.format == "npy"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {
            "descr": target.out_dtype.str,
            "fortran_order": False,
            "shape": target.source.shape if is_npy else target.lengths,
        },
    )
    return target.out_dtype, header.getvalue()


def save(target: Target, values: np.memmap[Any, Any], place: Path) -> None:
    """The file is complete as it was written row by row."""
    os.rename(str(values.filename), place)
