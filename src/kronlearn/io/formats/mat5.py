"""The layout of MATLAB files of version 5 to 7.2: elements with a type and a length, one by one.

scipy reads these files too, but damaged ones can crash its reader.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.stored import StoredArrayError

__all__ = ["HEADER_BYTES", "Variable", "byte_order", "variables", "write_variable"]

Order = Literal["<", ">"]

HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
_INT8, _INT32, _UINT32 = 1, 5, 6
# Types of the numbers in the file, and classes of the variables that they belong to.
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
_TYPES |= {12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2"}
_CLASSES |= {12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x0800
# Enough for the names and dimensions of a variable.
_START_BYTES = 1 << 16


@dataclass(frozen=True)
class Variable:
    """A variable, and where it lies."""

    name: str
    shape: tuple[int, ...]
    #: As MATLAB has it; "O" for what is not an array of real numbers.
    dtype: np.dtype[Any]
    #: The bytes of the whole element in the file.
    start: int
    stop: int
    is_compressed: bool
    #: The dtype of the numbers in the file, and their place in the element's content.
    stored: np.dtype[Any]
    place: int

    def values(self, path: Path) -> NDArray[Any]:
        """The numbers of a compressed variable."""
        count = math.prod(self.shape) * self.stored.itemsize
        with open(path, "rb") as file:
            file.seek(self.start + 8)
            content = file.read(self.stop - self.start - 8)
        stream = zlib.decompressobj()
        content = stream.decompress(content, self.place + count)
        # The padding and the checksum, which is compared at the end of the stream.
        stream.decompress(stream.unconsumed_tail, 64)
        if len(content) < self.place + count or not stream.eof:
            raise StoredArrayError(f"{path} ({self.name}) is damaged: numbers are missing.")
        numbers = np.frombuffer(content, self.stored, math.prod(self.shape), self.place)
        return numbers.reshape(self.shape, order="F").astype(self.dtype, copy=False)


def byte_order(header: bytes) -> Order:
    """``"<"`` or ``">"``, from the header of a file."""
    return ">" if header[126:128] == b"MI" else "<"


def variables(path: Path) -> list[Variable]:
    """The variables of a file, in their order."""
    size = path.stat().st_size
    found = []
    with open(path, "rb") as file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or header[126:128] not in (b"MI", b"IM"):
            raise StoredArrayError(f"{path} is not a MATLAB file, or is cut off in its header.")
        order = byte_order(header)
        place = HEADER_BYTES
        while place < size:
            file.seek(place)
            tag = file.read(8)
            kind, length = struct.unpack(order + "II", tag) if len(tag) == 8 else (0, size)
            stop = place + 8 + length
            if stop > size:
                raise StoredArrayError(
                    f"{path} is cut off: it has {size} bytes, and a variable that reaches up to "
                    f"byte {stop}."
                )
            start = file.read(min(length, _START_BYTES))
            try:
                found.append(_variable(kind, start, order, place, stop))
            except (struct.error, ValueError, IndexError, zlib.error) as problem:
                raise StoredArrayError(
                    f"{path} is damaged: the variable at byte {place} cannot be read ({problem})."
                ) from problem
            place = stop
    return found


def _variable(kind: int, start: bytes, order: str, place: int, stop: int) -> Variable:
    """The variable of an element with these first bytes behind its tag."""
    is_compressed = kind == _COMPRESSED
    if is_compressed:
        start = zlib.decompressobj().decompress(start, _START_BYTES)
        kind, length = struct.unpack_from(order + "II", start)
        end = 8 + length
    else:
        # The same places as in a compressed variable, which has the tag in its content.
        start, end = bytes(8) + start, stop - place
    if kind != _MATRIX:
        return Variable("", (), np.dtype("O"), place, stop, is_compressed, np.dtype("O"), 0)
    _, flags, following = _element(start, 8, order)
    (bits,) = struct.unpack_from(order + "I", flags)
    _, lengths, following = _element(start, following, order)
    shape = tuple(int(n) for n in np.frombuffer(lengths, order + "i4"))
    _, name, following = _element(start, following, order)
    plain = Variable(
        name.decode("latin-1"), shape, np.dtype("O"), place, stop, is_compressed, np.dtype("O"), 0
    )
    if bits & 0xFF not in _CLASSES or bits & _COMPLEX:
        return plain
    numbers, length, first = _tag(start, following, order)
    stored = np.dtype(order + _TYPES[numbers]) if numbers in _TYPES else np.dtype("O")
    if min(shape, default=0) < 0 or stored == "O" or first + length > end:
        raise ValueError("its type or length makes no sense")
    if math.prod(shape) * stored.itemsize != length:
        raise ValueError(f"its shape {shape} does not fit its {length} bytes")
    dtype = np.dtype(_CLASSES[bits & 0xFF])
    return Variable(plain.name, shape, dtype, place, stop, is_compressed, stored, first)


def _tag(content: bytes, place: int, order: str) -> tuple[int, int, int]:
    """The type and length of an element, and where its content begins."""
    kind, length = struct.unpack_from(order + "II", content, place)
    if kind >> 16:
        # The short form: up to four bytes in place of the length.
        return kind & 0xFFFF, kind >> 16, place + 4
    return kind, length, place + 8


def _element(content: bytes, place: int, order: str) -> tuple[int, bytes, int]:
    """The type and content of an element, and where the next one begins."""
    kind, length, first = _tag(content, place, order)
    if first + length > len(content):
        raise ValueError("an element is longer than what is there")
    return kind, content[first : first + length], -(-(first + length) // 8) * 8


def write_variable(
    file: BinaryIO, name: str, values: NDArray[Any], order: Order, compressed: bool
) -> None:
    """Write an array of numbers as a variable."""
    codes = {np.dtype(text): code for code, text in _CLASSES.items()}
    types = {np.dtype(text): code for code, text in _TYPES.items()}
    stored = values.dtype.newbyteorder("=")
    if stored not in codes:
        raise ValueError(f"MATLAB files hold no {stored} numbers; pass another dtype.")
    shape = values.shape if values.ndim > 1 else (*values.shape, 1)
    parts = [
        _packed(_UINT32, struct.pack(order + "II", codes[stored], 0), order),
        _packed(_INT32, np.array(shape, order + "i4").tobytes(), order),
        _packed(_INT8, name.encode("latin-1"), order),
        struct.pack(order + "II", types[stored], values.nbytes),
    ]
    padding = bytes(-values.nbytes % 8)
    length = sum(map(len, parts)) + values.nbytes + len(padding)
    # Column by column, as MATLAB has it.
    numbers = values.astype(values.dtype.newbyteorder(order), copy=False).reshape(-1, order="F")
    pieces: list[Any] = [
        struct.pack(order + "II", _MATRIX, length),
        *parts,
        numbers.data.cast("B"),
        padding,
    ]
    if not compressed:
        for piece in pieces:
            file.write(piece)
        return
    start = file.tell()
    file.write(bytes(8))
    compressor = zlib.compressobj()
    for piece in pieces:
        file.write(compressor.compress(piece))
    file.write(compressor.flush())
    stop = file.tell()
    file.seek(start)
    file.write(struct.pack(order + "II", _COMPRESSED, stop - start - 8))
    file.seek(stop)


def _packed(kind: int, content: bytes, order: str) -> bytes:
    return struct.pack(order + "II", kind, len(content)) + content + bytes(-len(content) % 8)
