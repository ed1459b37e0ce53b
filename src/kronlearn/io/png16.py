"""PNG files with 16 bits per channel in colour, which Pillow would cut to 8."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import putchunk

__all__ = ["read_png16", "write_png16"]

# What Pillow calls the layouts of such files.
_LAYOUTS = ("LA;16B", "RGB;16B", "RGBA;16B")


def read_png16(path: Path) -> NDArray[np.uint16] | None:
    """The pixels, shape (rows, columns, 2 to 4); None if a file is not of this kind.

    Pillow keeps the high byte of every value; told that the bytes are the other way round, it
    keeps the low one. Both together are the value. Gray and alpha are four bytes, as RGBA has.
    """
    with Image.open(path) as picture:
        layout = str(picture.tile[0].args) if picture.tile else ""
        if picture.format != "PNG" or layout not in _LAYOUTS:
            return None
    if layout == "LA;16B":
        return _raw(path, "RGBA").view(">u2").astype(np.uint16)
    values = _raw(path, layout).astype(np.uint16)
    values <<= 8
    values |= _raw(path, layout[:-1] + "L")
    return values


def _raw(path: Path, layout: str) -> NDArray[np.uint8]:
    """The pixels of a file as Pillow reads them if told that its bytes have this layout."""
    with Image.open(path) as picture:
        picture.tile = [tile._replace(args=layout) for tile in picture.tile]
        return np.array(picture)


def write_png16(path: Path, pixels: NDArray[np.uint16], icc: bytes | None = None) -> None:
    """Write pixels (rows, columns, 2 to 4), with a colour profile if there is one."""
    rows, columns, channels = pixels.shape
    # The format's numbers for gray and alpha, RGB, RGBA.
    colour = {2: 4, 3: 2, 4: 6}[channels]
    # Filter 2: each row as what it adds to the one above.
    lines = np.ascontiguousarray(pixels, ">u2").reshape(rows, -1).view(np.uint8)
    filtered = np.empty((rows, 1 + lines.shape[1]), np.uint8)
    filtered[:, 0] = 2
    filtered[:, 1:] = lines
    filtered[1:, 1:] -= lines[:-1]
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        putchunk(file, b"IHDR", struct.pack(">IIBBBBB", columns, rows, 16, colour, 0, 0, 0))
        if icc:
            putchunk(file, b"iCCP", b"ICC profile\0\0", zlib.compress(icc))
        putchunk(file, b"IDAT", zlib.compress(filtered.tobytes(), 6))
        putchunk(file, b"IEND")
