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

__all__ = ["check_tiff", "quiet", "tiff_file", "unwarned"]

# Whose logs are about a file's damage, which is part of an error or of no consequence.
_LOGGERS = ("tifffile", "rasterio._env", "rasterio._err")
_WARNINGS = threading.RLock()


class _Heard(logging.Filter):
    """Keeps what this thread logs from the user, and the errors among it."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        self.errors: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is of another thread."""
        if record.thread != self.thread:
            return True
        if record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())
        return False


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """What libraries log as errors about a file while it lasts; the user is shown no logs of it."""
    heard = _Heard()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(heard)
    try:
        yield heard.errors
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(heard)


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Without warnings, of images that are large or have no place on Earth, say; keep it short."""
    # Filters of warnings are everybody's: two threads must not put back each other's.
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def tiff_file(path: Path) -> Iterator[Any]:
    """A tifffile.TiffFile, closed in the end."""
    import tifffile

    with quiet(), tifffile.TiffFile(path) as file:
        yield file


def check_tiff(path: Path) -> None:
    """Raise if the list of pages leads out of a file, or a page has too few tiles or strips.

    Readers just stop at such a page, and take missing tiles for zeros.
    """
    with quiet() as errors:
        try:
            with tiff_file(path) as file:
                for page in file.pages:
                    found, needed = len(page.dataoffsets), math.prod(page.keyframe.chunked)
                    if found < needed:
                        raise StoredArrayError(
                            f"{path} is cut off or damaged: it has {found} tiles or strips where "
                            f"its {page.imagelength} × {page.imagewidth} pixels need {needed}."
                        )
        except (StoredArrayError, MemoryError):
            raise
        except Exception as problem:
            errors.append(f"TiffPages: {problem}")
    # Other errors are about tags that say nothing about the pixels.
    broken = [error for error in errors if "TiffPages" in error]
    if broken:
        raise StoredArrayError(f"{path} is cut off or damaged: {broken[0]}.")
