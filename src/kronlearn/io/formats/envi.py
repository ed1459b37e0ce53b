"""ENVI: a text header (.hdr) beside a binary file with the bands, lines or pixels in turn."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from kronlearn.io.formats.mapped import FileArray, RawWriter
from kronlearn.io.formats.outputs import Plan, beside
from kronlearn.io.stored import StoredArrayError

__all__ = ["EnviArray", "create", "header_of", "open_file"]

DESCRIPTION = "an ENVI file"

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
        if any(float(x) for x in _numbers(header, fields, "major frame offsets")):
            raise _error(header, "major frame offsets other than 0 cannot be read")
        waves = _numbers(header, fields, "wavelength")
        ignored = _numbers(header, fields, "data ignore value")
        super().__init__(
            path,
            shape,
            np.dtype("<>"[byte_order] + _DTYPES[code]),
            _integer(header, fields, "header offset", 0),
            file=binary,
            nodata=ignored[0] if ignored else None,
            attributes={k: _plain(v) for k, v in fields.items() if k not in _LAYOUT},
            wavelengths=np.array(waves) if waves else None,
            band_axis=_ORDERS[interleave].index("band"),
        )

    @property
    def binary(self) -> Path:
        """The file with the numbers."""
        return self._file

    @property
    def files(self) -> list[Path]:
        """The file with the numbers and its header."""
        return [self._file, self._header]


def open_file(path: Path, dataset: str | None) -> EnviArray:
    """The array of an ENVI header, or of the binary file beside it."""
    if dataset is not None:
        raise StoredArrayError(f"{path} holds one array; leave out dataset={dataset!r}.")
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


def places(target: Path, plan: Plan) -> list[Path]:
    """The file with the numbers and its header that are written for the name of one of them."""
    if target.suffix.lower() == ".hdr":
        ending = plan.source.binary.suffix if isinstance(plan.source, EnviArray) else ".img"
        return [target.with_suffix(ending if ending in _BINARY_ENDINGS else ".img"), target]
    return [target, header_of(target) or target.with_suffix(".hdr")]


def create(target: Path, plan: Plan) -> _EnviWriter:
    """A writer of a binary file and its header."""
    return _EnviWriter(target, plan)


class _EnviWriter(RawWriter):
    """Writes the numbers, and the header of the source with what has changed in it."""

    def __init__(self, target: Path, plan: Plan) -> None:
        source = plan.source if isinstance(plan.source, EnviArray) else None
        interleave = _interleave(plan)
        stored = plan.out_dtype if plan.dtype is not None or source is None else source.stored_dtype
        codes = {np.dtype(name): code for code, name in _DTYPES.items()}
        code = codes.get(stored.newbyteorder("="))
        if code is None:
            raise ValueError(f"{target}: ENVI files hold no {stored} numbers; pass another dtype.")
        binary, self._header = places(target, plan)
        entries = dict(source.entries) if source is not None else _new_entries(plan)
        changed = {_LENGTHS[axis]: str(plan.length(axis)) for axis in _ORDERS[interleave]}
        changed |= {"header offset": "0", "file type": "ENVI Standard", "data type": str(code)}
        changed |= {"interleave": interleave, "byte order": str(int(stored.str[0] == ">"))}
        if plan.nodata is not None:
            changed["data ignore value"] = _number(plan.nodata)
        self._entries = _updated(entries, changed)
        self._header_temporary = beside(self._header)
        super().__init__(binary, plan, _ORDERS[interleave], stored)

    @property
    def moves(self) -> list[tuple[Path, Path]]:
        """The numbers first: a new header never stands beside old numbers."""
        return [*super().moves, (self._header_temporary, self._header)]

    def finish(self) -> None:
        """Write the header."""
        self.release()
        lines = [f"{key} = {value}\n" for key, value in self._entries.items()]
        with open(self._header_temporary, "w", encoding="utf-8") as file:
            file.write("ENVI\n" + "".join(lines))


def _interleave(plan: Plan) -> str:
    if isinstance(plan.source, EnviArray):
        return str(plan.source.attributes["interleave"]).lower()
    return ("bsq", "bil", "bip")[plan.order.index("band")] if "band" in plan.order else "bsq"


def _new_entries(plan: Plan) -> dict[str, str]:
    """Header fields for a cube from another format."""
    entries = {"description": f"{{{plan.source.name.translate({123: 40, 125: 41})}}}"}
    if plan.wavelengths is not None:
        units = str(plan.source.attributes.get("wavelength_units", "Unknown"))
        entries["wavelength units"] = units
        entries["wavelength"] = f"{{{', '.join(map(_number, plan.wavelengths))}}}"
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
