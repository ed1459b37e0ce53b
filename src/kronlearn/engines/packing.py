"""Objects as messages: long arrays lie behind what is pickled, and are not copied on their way."""

from __future__ import annotations

import pickle
import struct
from typing import Any

__all__ = ["packed", "unpacked"]

# Arrays of fewer bytes are pickled with the rest.
_LEAST_APART = 1 << 16
# Arrays begin at multiples of this.
_ALIGNMENT = 64
_NUMBER = struct.Struct("<Q")


def packed(value: Any) -> list[bytes | memoryview]:
    """The parts of a message, one after the other; arrays among them are those of the value."""
    arrays: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        array = buffer.raw()
        if array.nbytes < _LEAST_APART:
            return True
        arrays.append(array)
        return False

    content = pickle.dumps(value, protocol=5, buffer_callback=stays)
    numbers = [len(arrays), len(content), *(array.nbytes for array in arrays)]
    head = struct.pack(f"<{len(numbers)}Q", *numbers) + content
    parts: list[bytes | memoryview] = [head + _padding(len(head))]
    for array in arrays:
        parts += [array, _padding(array.nbytes)] if array.nbytes % _ALIGNMENT else [array]
    return parts


def unpacked(message: bytes | bytearray) -> Any:
    """What was packed; its long arrays are parts of the message."""
    view = memoryview(message)
    (count,) = _NUMBER.unpack_from(view)
    length, *sizes = struct.unpack_from(f"<{1 + count}Q", view, _NUMBER.size)
    begin = (2 + count) * _NUMBER.size
    end = begin + length
    arrays = []
    place = end + len(_padding(end))
    for size in sizes:
        arrays.append(view[place : place + size])
        place += size + len(_padding(size))
    return pickle.loads(view[begin:end], buffers=arrays)


def _padding(size: int) -> bytes:
    return bytes(-size % _ALIGNMENT)
