"""NumPy's own files, .npy."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from kronlearn.io.formats.mapped import FileArray, RawWriter
from kronlearn.io.formats.outputs import Plan
from kronlearn.io.stored import StoredArrayError

__all__ = ["NpyArray", "create", "open_file"]
DESCRIPTION = "a NumPy array (.npy)"


class NpyArray(FileArray):
    """An array in an .npy file, in C or Fortran order."""

    format = "npy"


def open_file(path: Path, dataset: str | None) -> NpyArray:
    """The array in an .npy file."""
    if dataset is not None:
        raise StoredArrayError(f"{path} holds one array; leave out dataset={dataset!r}.")
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        readers = {1: np.lib.format.read_array_header_1_0}
        reader = readers.get(version[0], np.lib.format.read_array_header_2_0)
        shape, fortran, dtype = reader(file)
        offset = file.tell()
    if dtype.kind not in "fiub":
        raise StoredArrayError(f"{path} holds {dtype} values; real numbers are needed.")
    strides = None
    if fortran and len(shape) > 1:
        lengths = [dtype.itemsize, *shape[:-1]]
        strides = tuple(int(step) for step in np.cumprod(lengths, dtype=object))
    return NpyArray(path, shape, dtype, offset, strides)


def create(target: Path, plan: Plan) -> RawWriter:
    """A writer of an .npy file, in C order."""
    shape = tuple(plan.length(axis) for axis in plan.order)
    if plan.source.format == "npy":
        shape = plan.source.shape
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": plan.out_dtype.str, "fortran_order": False, "shape": shape}
    )
    return RawWriter(target, plan, plan.order, plan.out_dtype, header.getvalue())
