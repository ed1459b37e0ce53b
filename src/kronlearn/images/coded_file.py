"""The bytes of a coded image: a fixed header, one stream, a checksum."""

from __future__ import annotations

import math
import os
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from kronlearn.images.stored_dictionary import KINDS
from kronlearn.images.transform import Layout
from kronlearn.images.value_range import ValueRange

__all__ = [
    "CodedImageError",
    "Header",
    "pack",
    "read_content",
    "unpack",
]

MAGIC = b"\x89KLI"
VERSION = 1
DTYPES = tuple(
    np.dtype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
)
#: The most axes of an image, pixels of a patch along an axis, and atoms of a mode.
MAX_AXES, MAX_PATCH, MAX_ATOMS = 8, 64, 255
#: The most pixels of a patch, and the most atoms for each of them.
MAX_FEATURES, MAX_REDUNDANCY = 4096, 16

#: The most lanes of the entropy coder, and the most symbols for each of fewer: for speed.
MAX_LANES, MAX_PER_LANE = 4096, 1 << 15
#: The most channels.
MAX_CHANNELS = 1024

_IMPOSSIBLE = "is damaged: its header has impossible entries"
_START = struct.Struct("<4sBQ")
_FIXED = struct.Struct("<BBbBB8s8sd3bdQ")
_CRC = struct.Struct("<I")


class CodedImageError(ValueError):
    """Bytes that are not a coded image, are damaged, or are of an unknown version.

    Parameters
    ----------
    problem : str
        What is wrong, as the end of a sentence.
    source : str
        What it is wrong with.
    """

    def __init__(self, problem: str, source: str = "The coded image") -> None:
        super().__init__(problem, source)

    def of(self, source: str) -> CodedImageError:
        """The same error with another source, the name of a file say."""
        return CodedImageError(self.args[0], source)

    def __str__(self) -> str:
        return f"{self.args[1]} {self.args[0]}."


@dataclass(frozen=True)
class Header:
    """What a file says about its image before the stream; an image of one value has none.

    ``step`` is that of the coefficients when pixels range from 0 to 1, ``offsets`` are those of
    :class:`~kronlearn.images.transform.Quantised`.
    """

    shape: tuple[int, ...]
    channel_axis: int | None
    values: ValueRange
    patch_shape: tuple[int, ...]
    n_atoms: tuple[int, ...]
    kind: str = "cosine"
    lanes: int = 1
    step: float = 1.0
    offsets: tuple[int, ...] = (0, 0, 0)
    psnr: float = math.inf
    nonzeros: int = 0

    @property
    def layout(self) -> Layout:
        """Channels and patches."""
        shape = list(self.shape)
        channels = 1 if self.channel_axis is None else shape.pop(self.channel_axis)
        return Layout(channels, tuple(shape), self.patch_shape)


def pack(header: Header, stream: bytes) -> bytes:
    """The bytes of a file."""
    values = header.values
    limits = [
        np.array(limit, values.dtype.newbyteorder("<")).tobytes()
        for limit in (values.low, values.high)
    ]
    fixed = _FIXED.pack(
        DTYPES.index(values.dtype),
        len(header.shape),
        -1 if header.channel_axis is None else header.channel_axis,
        KINDS.index(header.kind),
        header.lanes.bit_length() - 1,
        *limits,
        header.step,
        *header.offsets,
        header.psnr,
        header.nonzeros,
    )
    sizes = np.array(header.shape, "<u4").tobytes()
    head = fixed + sizes + bytes([*header.patch_shape, *header.n_atoms])
    length = _START.size + len(head) + len(stream) + _CRC.size
    content = _START.pack(MAGIC, VERSION, length) + head + stream
    return content + _CRC.pack(zlib.crc32(content))


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, read only if it starts like a coded image."""
    with open(path, "rb") as file:
        start = file.read(_START.size)
        if start[: len(MAGIC)] != MAGIC:
            raise CodedImageError("is not a coded image of kronlearn")
        return start + file.read()


def unpack(content: bytes) -> tuple[Header, bytes]:
    """Header and stream of a file, once lengths, checksum and header make sense."""
    if content[:4] != MAGIC:
        raise CodedImageError("is not a coded image of kronlearn")
    if len(content) < _START.size:
        raise CodedImageError("was cut off inside its header")
    _, version, length = _START.unpack_from(content)
    if version != VERSION:
        raise CodedImageError(
            f"has file version {version}; this kronlearn reads version {VERSION}, upgrade it"
        )
    if length != len(content):
        raise CodedImageError(
            f"has {len(content)} bytes where its header announces {length}: it was cut off or "
            "changed"
        )
    body, place = content[: -_CRC.size], _START.size + _FIXED.size
    if len(body) < place:
        raise CodedImageError("was cut off inside its header")
    if _CRC.unpack(content[-_CRC.size :])[0] != zlib.crc32(body):
        raise CodedImageError("is damaged: its checksum is wrong")
    code, ndim, channel_axis, kind, lanes, low, high, step, *rest = _FIXED.unpack_from(
        body, _START.size
    )
    known = code < len(DTYPES) and kind < len(KINDS) and lanes <= MAX_LANES.bit_length() - 1
    modes = ndim - (channel_axis >= 0)
    end = place + 4 * ndim + 2 * modes
    fits = 0 < ndim <= MAX_AXES and -1 <= channel_axis < ndim and modes > 0 and end <= len(body)
    if not (known and fits):
        raise CodedImageError(_IMPOSSIBLE)
    dtype = DTYPES[code]
    limits = [np.frombuffer(limit, dtype.newbyteorder("<"), 1)[0].item() for limit in (low, high)]
    header = Header(
        shape=tuple(map(int, np.frombuffer(body, "<u4", ndim, place))),
        channel_axis=None if channel_axis < 0 else channel_axis,
        values=ValueRange(dtype, *limits),
        patch_shape=tuple(body[end - 2 * modes : end - modes]),
        n_atoms=tuple(body[end - modes : end]),
        kind=KINDS[kind],
        lanes=1 << lanes,
        step=step,
        offsets=tuple(rest[:3]),
        psnr=rest[3],
        nonzeros=rest[4],
    )
    _check(header)
    return header, body[end:]


def _check(header: Header) -> None:
    """Raise unless shapes and numbers are such as an encoder writes."""
    values, layout = header.values, header.layout
    features, codes = math.prod(header.patch_shape), math.prod(header.n_atoms)
    fits = (
        min(header.shape) > 0
        and layout.n_channels <= MAX_CHANNELS
        and all(0 < m <= MAX_PATCH for m in header.patch_shape)
        and features <= MAX_FEATURES
        and 0 < codes <= MAX_REDUNDANCY * features
        and (header.kind == "general" or header.n_atoms == header.patch_shape)
    )
    # All is written so that NaN fails.
    ordered = values.low <= values.high and math.isfinite(values.span)
    if not (fits and ordered and header.psnr > -math.inf):
        raise CodedImageError(_IMPOSSIBLE)
    symbols = layout.n_channels * layout.n_patches * codes
    fast = values.span == 0 or header.lanes >= min(MAX_LANES, symbols // MAX_PER_LANE)
    if not (fast and 0 < header.step <= layout.coarsest_step):
        raise CodedImageError(_IMPOSSIBLE)
