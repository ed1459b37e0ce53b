"""ENVI: a text header (.hdr) beside a binary file with the bands, lines or pixels in turn."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats.mapped import FileArray, Layout
from kronlearn.io.stored import StoredArrayError, holds_one_array
from kronlearn.io.writers import Target

__all__ = ["EnviArray", "header_of", "open_file", "places", "prepare", "save"]

_DTYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
_ORDERS = {
    "bsq": ("band", "row", "column"),
    "bil": ("row", "band", "column"),
    "bip": ("row", "column", "band"),
}
_LENGTHS = {"row": "lines", "column": "samples", "band": "bands"}
# Fields that say how the numbers lie in the file, and nothing about them.
_LAYOUT = {"lines", "samples", "bands", "data type", "byte order", "header offset", "file type"}
_ENTRY = re.compile(r"^\s*([^=\n{};]+?)\s*=[ \t]*(\{[^}]*\}|[^\n]*)", re.MULTILINE)
_BINARY_ENDINGS = ("", ".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".envi", ".sli")
# No header is that long; another kind of file may be.
_MAX_HEADER_BYTES = 64 << 20


class EnviArray(FileArray):
    """The numbers of an ENVI file in the order in which they lie there."""

    format = "envi"

    def __init__(self, path: Path, header: Path, binary: Path) -> None:
        #: The fields of the header as they are written there.
        self.entries = _read_header(header)
        self._header = header
        fields = {" ".join(k.lower().split()): v for k, v in self.entries.items()}
        interleave = fields.get("interleave", "").strip().lower()
        if interleave not in _ORDERS:
            raise _error(header, f"interleave = {interleave!r} is not one of bsq, bil, bip")
        shape = tuple(_integer(header, fields, _LENGTHS[axis]) for axis in _ORDERS[interleave])
        code = _integer(header, fields, "data type")
        if code not in _DTYPES:
            raise _error(header, f"data type = {code} is not one of real numbers, {[*_DTYPES]}")
        byte_order = _integer(header, fields, "byte order", 0)
        if byte_order not in (0, 1):
            raise _error(header, f"byte order = {byte_order} is neither 0 nor 1")
        if _integer(header, fields, "file compression", 0) != 0:
            raise _error(header, "compressed files cannot be read; decompress it first")
        if any(_numbers(header, fields, "major frame offsets")):
            raise _error(header, "major frame offsets other than 0 cannot be read")
        dtype = np.dtype("<>"[byte_order] + _DTYPES[code])
        offset = _integer(header, fields, "header offset", 0)
        waves = _numbers(header, fields, "wavelength")
        ignored = _numbers(header, fields, "data ignore value")
        super().__init__(
            path,
            Layout.in_order(shape, dtype, offset),
            file=binary,
            nodata=ignored[0] if ignored else None,
            attributes={k: _plain(v) for k, v in fields.items() if k not in _LAYOUT},
            wavelengths=np.array(waves) if waves else None,
            band_axis=_ORDERS[interleave].index("band"),
        )

    @property
    def files(self) -> list[Path]:
        """The file with the numbers and its header."""
        return [self.binary, self._header]


def open_file(path: Path, dataset: str | None) -> EnviArray:
    """The array of an ENVI header, or of the binary file beside it."""
    holds_one_array(path, dataset)
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


def places(target: Target) -> list[Path]:
    """The file with the numbers and its header that are written for the name of one of them."""
    path, source = target.path, target.source
    if path.suffix.lower() == ".hdr":
        ending = source.binary.suffix if isinstance(source, EnviArray) else ".img"
        return [path.with_suffix(ending if ending in _BINARY_ENDINGS else ".img"), path]
    return [path, header_of(path) or path.with_suffix(".hdr")]


def prepare(target: Target) -> tuple[np.dtype[Any], bytes]:
    """The dtype in which rows are collected, and what stands before them."""
    source = target.source
    is_kept = isinstance(source, EnviArray) and target.dtype is None
    stored = source.stored_dtype if isinstance(source, EnviArray) and is_kept else target.out_dtype
    if stored.newbyteorder("=") not in map(np.dtype, _DTYPES.values()):
        raise ValueError(f"{target.path}: ENVI files hold no {stored} numbers; pass another dtype.")
    return stored, b""


def save(target: Target, values: np.memmap[Any, Any], binary: Path, header: Path) -> None:
    """Write the header of the source with what has changed; the numbers are complete.

    They are moved to their place first: a new header never stands beside old numbers.
    """
    os.rename(str(values.filename), binary)
    source, order = target.source, target.cube.order
    codes = {np.dtype(name): code for code, name in _DTYPES.items()}
    lengths = dict(zip(("row", "column", "band"), target.cube.shape, strict=True))
    changed = {_LENGTHS[axis]: str(length) for axis, length in lengths.items()}
    changed |= {"header offset": "0", "file type": "ENVI Standard"}
    changed["data type"] = str(codes[values.dtype.newbyteorder("=")])
    changed["interleave"] = ("bsq", "bil", "bip")[order.index("band") if "band" in order else 0]
    changed["byte order"] = str(int(values.dtype.str[0] == ">"))
    if target.nodata is not None:
        changed["data ignore value"] = _number(target.nodata)
    entries = source.entries if isinstance(source, EnviArray) else _new_entries(target)
    lines = [f"{key} = {value}\n" for key, value in _updated(entries, changed).items()]
    header.write_text("ENVI\n" + "".join(lines), encoding="utf-8")


def _new_entries(target: Target) -> dict[str, str]:
    """Header fields for a cube from another format."""
    entries = {"description": f"{{{target.source.name.translate({123: 40, 125: 41})}}}"}
    if target.cube.wavelengths is not None:
        units = str(target.source.attributes.get("wavelength_units", "Unknown"))
        entries["wavelength units"] = units
        entries["wavelength"] = f"{{{', '.join(map(_number, target.cube.wavelengths))}}}"
    return entries


def _updated(entries: dict[str, str], changed: dict[str, str]) -> dict[str, str]:
    """Entries with new values under the spelling of their keys, new keys at the end."""
    spelling = {" ".join(key.lower().split()): key for key in entries}
    return entries | {spelling.get(key, key): value for key, value in changed.items()}


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def _read_header(path: Path) -> dict[str, str]:
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


def _integer(path: Path, fields: dict[str, str], name: str, default: int | None = None) -> int:
    text = fields.get(name)
    if text is None:
        if default is None:
            raise _error(path, f"the field {name!r} is missing")
        return default
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise _error(path, f"{name} = {text[:40]!r} is not a whole number")
    return int(text)


def _numbers(path: Path, fields: dict[str, str], name: str) -> list[float]:
    texts = fields.get(name, "").strip("{} \n").split(",")
    try:
        return [float(text) for text in texts if text.strip()]
    except ValueError as problem:
        raise _error(path, f"{name} is not a list of numbers: {problem}") from None


def _plain(text: str) -> str | list[str]:
    """A field as text, or as a list of texts where it is one."""
    if not text.startswith("{"):
        return text
    inner = text.strip("{}").strip()
    return [part.strip() for part in inner.split(",")] if "," in inner else inner


def _error(path: Path, problem: str) -> StoredArrayError:
    return StoredArrayError(f"{path}: {problem}.")
