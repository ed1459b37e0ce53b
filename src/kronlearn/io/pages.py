"""Pages of mapped files: asked for ahead of use, let go of after it."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["dont_need", "mapped_from", "will_need"]

# NumPy itself keeps views one or two deep; array classes of other libraries may answer ``base``
# with ever new objects.
_MOST_VIEWS = 32


def mapped_from(array: NDArray[Any]) -> np.memmap[Any, Any] | None:
    """The mapped file that an array is a view of, if it shares its changes with it."""
    base: Any = array
    found = None
    for _ in range(_MOST_VIEWS):
        # Private changes (mode "c") would be lost with their pages, and are in no file.
        if isinstance(base, np.memmap):
            found = base if base.mode != "c" else None
        if not isinstance(base, np.ndarray):
            return found if isinstance(base, mmap.mmap) else None
        base = base.base
    return None


def will_need(array: NDArray[Any]) -> None:
    """Have the system read an array's pages in the background, if it is mapped."""
    # With the gaps of a view all that lies between would be read, too.
    if hasattr(mmap, "MADV_WILLNEED") and array.flags.c_contiguous:
        _advise(array, mmap.MADV_WILLNEED)


def dont_need(array: NDArray[Any]) -> None:
    """Let go of an array's pages, if it is mapped: they count as this process's until then."""
    if hasattr(mmap, "MADV_DONTNEED"):
        _advise(array, mmap.MADV_DONTNEED)


def _advise(array: NDArray[Any], advice: int) -> None:
    mapped = mapped_from(array)
    if mapped is None or array.size == 0:
        return
    pages: Any = mapped._mmap  # type: ignore[attr-defined]
    start_of_file = int(np.frombuffer(pages, np.uint8).__array_interface__["data"][0])
    # Of a view with gaps, all that it is a view of.
    array = array if array.flags.c_contiguous else mapped
    first = int(array.__array_interface__["data"][0]) - start_of_file
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    pages.madvise(advice, start, first + array.nbytes - start)
