"""Arrays that lie uncompressed in a file: .npy, ENVI, classic NetCDF.

They are read and not mapped: a mapped file that someone cuts off ends the whole process, and its
pages count as memory in use.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.layout import Layout
from kronlearn.io.stored import Key, StoredArray

__all__ = ["FileArray"]


class FileArray(StoredArray):
    """An array that lies uncompressed in a file.

    Parameters
    ----------
    path : Path
    layout : Layout
    file : Path, optional
        The file with the numbers where it is not ``path``.
    exact : bool
        Whether the file must end behind the last number. A header with a wrong shape is found so.
    """

    def __init__(
        self, path: Path, layout: Layout, file: Path | None = None, exact: bool = True, **more: Any
    ) -> None:
        super().__init__(str(path), layout.shape, layout.dtype, path=path, **more)
        self.layout, self.binary = layout, file or path
        self._check_size(os.stat(self.binary).st_size, exact)
        self._descriptor = os.open(self.binary, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        resources = ExitStack()
        resources.callback(os.close, self._descriptor)
        self.keep(resources)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in the file, with its byte order."""
        return self.layout.dtype

    def place_of(self, index: int) -> tuple[int, int] | None:
        """Descriptor and offset of an entry of the first axis, if all is in C order."""
        if not self.layout.is_in_c_order:
            return None
        return self._descriptor, self.layout.offset + index * self.layout.strides[0]

    def _check_size(self, size: int, exact: bool) -> None:
        needed, file = self.layout.end, self.binary.name
        announced = f"{needed} that its shape {self.shape} and dtype {self.stored_dtype.name} need"
        if size < needed:
            raise self.error(f"is cut off: {file} has {size} bytes, not the {announced}")
        if exact and size > needed:
            raise self.error(
                f"has a header that does not fit: {file} has {size} bytes, more than the "
                f"{announced}; correct the header"
            )

    def _read(self, key: Key) -> NDArray[Any]:
        try:
            return self.layout.read(self._descriptor, key)
        except EOFError as problem:
            raise self.error(
                f"is cut off: {self.binary.name} ends at byte {problem}, before the numbers that "
                "its header announces; it was changed since it was opened"
            ) from None
