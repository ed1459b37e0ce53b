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

__all__ = ["check_tiff", "quiet", "tiff_file"]

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
    """What libraries log as errors about a file while it lasts; no log or warning is shown."""
    heard = _Heard()
    # Filters of warnings are everybody's: two threads must not put back each other's.
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(heard)
        try:
            yield heard.errors
        finally:
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(heard)


@contextlib.contextmanager
def tiff_file(path: Path) -> Iterator[Any]:
    """A tifffile.TiffFile, closed in the end."""
    import tifffile

    with quiet(), tifffile.TiffFile(path) as file:
        yield file


def check_tiff(path: Path) -> None:
    """Raise if the pages of a file lead out of it or have fewer tiles than they need.

    Readers just stop at such a page, and take missing tiles for zeros.
    """
    with quiet() as errors:
        try:
            with tiff_file(path) as file:
                for page in file.pages:
                    _check_tiles(path, page)
        except (StoredArrayError, MemoryError):
            raise
        except Exception as problem:
            errors.append(str(problem))
    if errors:
        raise StoredArrayError(f"{path} is cut off or damaged: {errors[0]}.")


def _check_tiles(path: Path, page: Any) -> None:
    if page.is_tiled:
        tiles = zip(
            page.shaped[1:4], (page.tiledepth, page.tilelength, page.tilewidth), strict=True
        )
        needed = math.prod(-(-length // max(tile, 1)) for length, tile in tiles)
        planes = page.samplesperpixel if page.planarconfig == 2 else 1
        if len(page.dataoffsets) < needed * planes:
            raise StoredArrayError(
                f"{path} is cut off or damaged: it has {len(page.dataoffsets)} tiles where its "
                f"{page.imagelength} × {page.imagewidth} pixels need {needed * planes}."
            )
