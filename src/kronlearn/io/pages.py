"""Pages of mapped files: asked for ahead of use, let go of after it."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["dont_need", "is_mapped", "will_need"]


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array is a view of a mapped file that shares its changes with it."""
    return _pages(array) is not None


def will_need(array: NDArray[Any]) -> None:
    """Have the system read an array's pages in the background, if it is mapped."""
    if hasattr(mmap, "MADV_WILLNEED"):
        _advise(array, mmap.MADV_WILLNEED)


def dont_need(array: NDArray[Any]) -> None:
    """Let go of an array's pages, if it is mapped: they count as this process's until then."""
    if hasattr(mmap, "MADV_DONTNEED"):
        _advise(array, mmap.MADV_DONTNEED)


def _pages(array: NDArray[Any]) -> mmap.mmap | None:
    base: Any = array
    shared = False
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            # Private changes (mode "c") would be lost with their pages.
            shared = base.mode != "c"
        base = base.base
    return base if shared and isinstance(base, mmap.mmap) else None


def _advise(array: NDArray[Any], advice: int) -> None:
    pages = _pages(array)
    if pages is None or array.size == 0 or not array.flags.c_contiguous:
        return
    start_of_file = int(np.frombuffer(pages, np.uint8).__array_interface__["data"][0])
    first = int(array.__array_interface__["data"][0]) - start_of_file
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    pages.madvise(advice, start, first + array.nbytes - start)
