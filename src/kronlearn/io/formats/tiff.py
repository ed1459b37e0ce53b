"""Helpers for reading TIFF files: quiet libraries, and an error where pixels are missing."""

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

__all__ = ["tiff_file", "without_logs", "without_warnings"]

# They log damage to files, which becomes an error here or does not matter.
_LOGGERS = ("tifffile", "rasterio._env", "rasterio._err")
_WARNINGS = threading.RLock()


@contextlib.contextmanager
def without_logs() -> Iterator[list[str]]:
    """Hide what the libraries log in this thread; yields the list of the errors among it."""
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
def without_warnings() -> Iterator[None]:
    """Ignore warnings, for example of large images; keep the block short.

    The warning filters belong to the process: two threads must not restore each other's.
    """
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def tiff_file(path: Path, page: int | None = None) -> Iterator[Any]:
    """A tifffile.TiffFile, closed at the end, once all pages, or the given one, are complete.

    Readers take missing tiles or strips for zeros, and stop without an error where the list of
    pages points outside the file; such files raise StoredArrayError here.
    """
    import tifffile

    with without_logs() as errors, tifffile.TiffFile(path) as file:
        pages: Any = file.pages if page is None else [file.pages[page]]
        for checked in pages:
            found, needed = len(checked.dataoffsets), math.prod(checked.keyframe.chunked)
            if found < needed:
                raise StoredArrayError(
                    f"{path} is truncated or damaged: its {checked.imagelength} × "
                    f"{checked.imagewidth} pixels need {needed} tiles or strips; it has {found}."
                )
        # Other errors concern tags that do not affect the pixels.
        broken = [error for error in errors if "TiffPages" in error]
        if broken:
            raise StoredArrayError(f"{path} is truncated or damaged: {broken[0]}.")
        yield file
