"""TIFF files opened for all who read them: quietly, and refused where pixels are missing."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kronlearn.io.stored import StoredArrayError

__all__ = ["quiet", "tiff_file", "unwarned"]

# Whose logs are about a file's damage, which is part of an error or of no consequence.
_LOGGERS = ("tifffile", "rasterio._env", "rasterio._err")
_WARNINGS = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """What libraries log as errors about a file while it lasts; the user is shown no logs of it."""
    errors: list[str] = []
    thread = threading.get_ident()

    def is_of_another_thread(record: logging.LogRecord) -> bool:
        if record.thread == thread and record.levelno >= logging.ERROR:
            errors.append(record.getMessage())
        return record.thread != thread

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(is_of_another_thread)
    try:
        yield errors
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(is_of_another_thread)


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Without warnings, of images that are large or have no place on Earth, say; keep it short."""
    # Filters of warnings are everybody's: two threads must not put back each other's.
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def tiff_file(path: Path, page: int | None = None) -> Iterator[Any]:
    """A tifffile.TiffFile, closed in the end, whose pages, or the one that is wanted, are there.

    Readers just stop where the list of pages leads out of a file, and take missing tiles or strips
    for zeros: such files are refused.
    """
    import tifffile

    with quiet() as errors, tifffile.TiffFile(path) as file:
        pages: Any = file.pages if page is None else [file.pages[page]]
        for one in pages:
            found, needed = len(one.dataoffsets), math.prod(one.keyframe.chunked)
            if found < needed:
                raise StoredArrayError(
                    f"{path} is cut off or damaged: its {one.imagelength} × {one.imagewidth} "
                    f"pixels need {needed} tiles or strips, but it has {found}."
                )
        # Other errors are about tags that say nothing about the pixels.
        broken = [error for error in errors if "TiffPages" in error]
        if broken:
            raise StoredArrayError(f"{path} is cut off or damaged: {broken[0]}.")
        yield file
