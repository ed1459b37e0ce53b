"""ENVI: a text header (.hdr) beside a binary file with the bands, lines or pixels in turn."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from kronlearn.io.formats import geotiff
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.stored import StoredArray, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["EnviArray", "check", "header_of", "open_file", "places", "save"]

_DTYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
_ORDERS = {
    "bsq": ("band", "row", "column"),
    "bil": ("row", "band", "column"),
    "bip": ("row", "column", "band"),
}
_LENGTHS = {"row": "lines", "column": "samples", "band": "bands"}
# Fields that say how the numbers lie in the file, and nothing about them.
_LAYOUT = {"lines", "samples", "bands", "data type", "byte order", "header offset", "file type"}
_LAYOUT |= {"file compression"}
_DEFAULTS = {"byte order": "0", "header offset": "0", "file compression": "0"}
_ENTRY = re.compile(r"^\s*([^=\n{};]+?)\s*=[ \t]*(\{[^}]*\}|[^\n]*)", re.MULTILINE)
_BINARY_ENDINGS = ("", ".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".envi", ".sli")
# No header is that long; another kind of file may be.
_MAX_HEADER_BYTES = 64 << 20


class EnviArray(FileArray):
    """The numbers of an ENVI file in the order in which they lie there."""

    def __init__(self, path: Path, header: Path, binary: Path) -> None:
        #: The fields of the header as they are written there.
        self.entries = _entries(header)
        self._header = header
        fields = _DEFAULTS | {" ".join(k.lower().split()): v for k, v in self.entries.items()}
        order = _ORDERS[_one_of(header, fields, "interleave", _ORDERS)]
        shape = tuple(_integer(header, fields, _LENGTHS[axis]) for axis in order)
        code = _one_of(header, fields, "data type", map(str, _DTYPES))
        byte_order = _one_of(header, fields, "byte order", "01")
        if fields["file compression"] != "0":
            raise _error(header, "compressed files cannot be read; decompress it first")
        if any(_numbers(header, fields, "major frame offsets")):
            raise _error(header, "major frame offsets other than 0 cannot be read")
        dtype = np.dtype("<>"[int(byte_order)] + _DTYPES[int(code)])
        offset = _integer(header, fields, "header offset")
        waves = _numbers(header, fields, "wavelength")
        ignored = _numbers(header, fields, "data ignore value")
        attributes = {k: _plain(k, v) for k, v in fields.items() if k not in _LAYOUT}
        super().__init__(
            path,
            shape,
            dtype,
            offset,
            format="envi",
            binary=binary,
            nodata=ignored[0] if ignored else None,
            attributes=attributes | (geotiff.place_of(binary) if "map info" in fields else {}),
            wavelengths=np.array(waves) if waves else None,
            band_axis=order.index("band"),
        )

    @property
    def files(self) -> list[Path]:
        """The file with the numbers and its header."""
        return [self.binary, self._header]


def open_file(path: Path, dataset: None) -> EnviArray:
    """The array of an ENVI header, or of the binary file beside it."""
    if path.suffix.lower() == ".hdr":
        return EnviArray(path, path, _binary_of(path))
    header = header_of(path)
    if header is None:
        raise StoredArrayError(f"{path} has no ENVI header (.hdr) beside it.")
    return EnviArray(path, header, path)


def header_of(binary: Path) -> Path | None:
    """The ENVI header beside a binary file, if there is one."""
    for ending in (".hdr", ".HDR"):
        for candidate in (binary.with_suffix(ending), Path(f"{binary}{ending}")):
            if candidate.is_file():
                with open(candidate, "rb") as file:
                    if file.read(4) == b"ENVI":
                        return candidate
    return None


def places(path: Path, source: StoredArray) -> list[Path]:
    """The file with the numbers and its header that are written for the name of one of them.

    The numbers are moved to their place first: a new header never stands beside old numbers.
    """
    if path.suffix.lower() == ".hdr":
        ending = source.binary.suffix if isinstance(source, EnviArray) else ".img"
        return [path.with_suffix(ending if ending in _BINARY_ENDINGS else ".img"), path]
    return [path, header_of(path) or path.with_suffix(".hdr")]


def check(writer: CubeWriter) -> None:
    """Raise if the numbers are of a type that ENVI has not."""
    if writer.dtype not in map(np.dtype, _DTYPES.values()):
        raise ValueError(
            f"{writer.path}: ENVI files hold no {writer.dtype} numbers; pass another dtype."
        )


def save(writer: CubeWriter, rows: FileArray, binary: Path, header: Path) -> None:
    """Write the header of the source with what has changed; the collected rows are the numbers."""
    os.rename(rows.binary, binary)
    source, order = writer.source, writer.cube.order
    codes = {np.dtype(name): code for code, name in _DTYPES.items()}
    lengths = dict(zip(("row", "column", "band"), writer.shape, strict=True))
    changed = {_LENGTHS[axis]: str(length) for axis, length in lengths.items()}
    changed |= {"header offset": "0", "file type": "ENVI Standard"}
    changed["data type"] = str(codes[writer.dtype])
    changed["interleave"] = ("bsq", "bil", "bip")[order.index("band") if "band" in order else 0]
    changed["byte order"] = str(int(writer.dtype.str[0] == ">"))
    if writer.nodata is not None:
        changed["data ignore value"] = _number(writer.nodata)
    entries = source.entries if isinstance(source, EnviArray) else _new_entries(writer)
    # New values stand under the spelling that their keys have, new keys at the end.
    spelling = {" ".join(key.lower().split()): key for key in entries}
    entries = entries | {spelling.get(key, key): value for key, value in changed.items()}
    lines = [f"{key} = {value}\n" for key, value in entries.items()]
    header.write_text("ENVI\n" + "".join(lines), encoding="utf-8")


def _new_entries(writer: CubeWriter) -> dict[str, str]:
    """Header fields for a cube from another format."""
    entries = {"description": f"{{{writer.source.name.translate({123: 40, 125: 41})}}}"}
    if writer.cube.wavelengths is not None:
        units = str(writer.source.attributes.get("wavelength_units", "Unknown"))
        entries["wavelength units"] = units
        entries["wavelength"] = f"{{{', '.join(map(_number, writer.cube.wavelengths))}}}"
    return entries | geotiff.envi_fields(writer.source.attributes)


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def _entries(path: Path) -> dict[str, str]:
    """The fields of a header as they are written there."""
    if path.stat().st_size > _MAX_HEADER_BYTES:
        raise StoredArrayError(f"{path} is not an ENVI header: it is far too large for one.")
    content = path.read_bytes()
    if not content.startswith(b"ENVI"):
        raise StoredArrayError(f"{path} is not an ENVI header: its first word is not ENVI.")
    text = content[4:].decode("utf-8", "replace").replace("\r\n", "\n")
    if text.count("{") > text.count("}"):
        raise _error(path, "a list is not closed with }: the header is cut off or damaged")
    return {match[1].strip(): match[2].strip() for match in _ENTRY.finditer(text)}


def _binary_of(header: Path) -> Path:
    """The file with the numbers of a header."""
    stem = header.with_suffix("")
    endings = [*_BINARY_ENDINGS, *(ending.upper() for ending in _BINARY_ENDINGS if ending)]
    for ending in endings:
        candidate = Path(f"{stem}{ending}")
        if candidate.is_file() and candidate != header:
            return candidate
    raise StoredArrayError(
        f"{header}: the file with the numbers is not beside it; looked for {stem.name} with no "
        f"ending or one of {', '.join(_BINARY_ENDINGS[1:])}."
    )


def _one_of(path: Path, fields: dict[str, str], name: str, known: Iterable[str]) -> str:
    value, known = fields.get(name, "").strip().lower(), list(known)
    if value not in known:
        raise _error(path, f"{name} = {value[:40]!r} is not one of {', '.join(known)}")
    return value


def _integer(path: Path, fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise _error(path, f"{name} = {text[:40]!r} is not a whole number")
    return int(text)


def _numbers(path: Path, fields: dict[str, str], name: str) -> list[float]:
    texts = fields.get(name, "").strip("{} \n").split(",")
    try:
        return [float(text) for text in texts if text.strip()]
    except ValueError as problem:
        raise _error(path, f"{name} is not a list of numbers: {problem}") from None


def _plain(name: str, text: str) -> str | list[str]:
    """A field as text, or as a list of texts where it is one."""
    inner = text.strip("{}").strip() if text.startswith("{") else text
    is_text = name in ("description", "coordinate system string") or inner == text
    return inner if is_text or "," not in inner else [part.strip() for part in inner.split(",")]


def _error(path: Path, problem: str) -> StoredArrayError:
    return StoredArrayError(f"{path}: {problem}.")
