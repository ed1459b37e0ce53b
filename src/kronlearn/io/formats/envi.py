"""ENVI: a text header (.hdr) beside a binary file with the bands, lines or pixels in turn.

Headers are read and written by SPy (``spectral``), the numbers are read where they lie.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import georeference
from kronlearn.io.formats.npy import FileArray
from kronlearn.io.formats.tiff import unwarned
from kronlearn.io.stored import Opened, StoredArray, StoredArrayError, need
from kronlearn.io.writers import CubeWriter

__all__ = ["BINARY_ENDINGS", "header_of", "open_file", "places", "save"]

_ORDERS = {
    "bsq": ("bands", "lines", "samples"),
    "bil": ("lines", "bands", "samples"),
    "bip": ("lines", "samples", "bands"),
}
# Fields that say how the numbers lie in the file, and nothing about them.
_LAYOUT = {"lines", "samples", "bands", "data type", "byte order", "header offset"}
#: Endings of the file with the numbers, which may also have none.
BINARY_ENDINGS = (".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".envi", ".sli")
_SYSTEM = "coordinate system string"
_FIELD_TEXT = re.compile(r"[^{}\n]+")


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array of an ENVI header, or of the binary file beside it, in the order of the file."""
    header = path if path.suffix.lower() == ".hdr" else header_of(path)
    if header is None:
        raise StoredArrayError(f"{path} has no ENVI header (.hdr) beside it.")
    binary = _binary_of(header) if header == path else path
    spy = need("spectral.io.envi", f"To read {path}")
    fields = _fields(spy, header)
    known, order = spy.gen_params(fields), _ORDERS[fields["interleave"].lower()]
    shape = tuple(int(fields[axis]) for axis in order)
    waves, ignored = (_numbers(header, fields, n) for n in ("wavelength", "data ignore value"))
    place = georeference.of_envi(binary) if "map info" in fields else {}
    return FileArray(binary, shape, np.dtype(known.dtype), known.offset), {
        "files": [binary, header],
        "nodata": ignored[0] if ignored else None,
        "attributes": {k: v for k, v in fields.items() if k not in _LAYOUT} | place,
        "wavelengths": np.array(waves) if waves else None,
        "wavelength_units": fields.get("wavelength units"),
        "band_axis": order.index("bands"),
    }


def _fields(spy: Any, header: Path) -> dict[str, Any]:
    """The fields of a header that describes numbers as they can be read."""
    with unwarned():
        fields = {"byte order": "0"} | spy.read_envi_header(header)
    if _SYSTEM in fields:
        # SPy takes it for a list, and would write it as one.
        fields[_SYSTEM] = f"{{{','.join(fields[_SYSTEM])}}}"
    _check_layout(spy, header, fields)
    spy.check_compatibility(fields)
    if fields.get("file compression", "0") != "0":
        raise StoredArrayError(
            f"{header}: compressed ENVI files cannot be read; decompress it first."
        )
    return fields


def _check_layout(spy: Any, header: Path, fields: dict[str, Any]) -> None:
    """Raise unless the fields say how real numbers lie in the file."""
    types = {code: str(np.dtype(char)) for code, char in spy.envi_to_dtype.items()}
    allowed: dict[str, dict[str, str]] = {
        "data type": {code: name for code, name in types.items() if "complex" not in name},
        "interleave": {name: ", ".join(order) for name, order in _ORDERS.items()},
        "byte order": {"0": "little-endian", "1": "big-endian"},
    }
    for name in (*_ORDERS["bsq"], *allowed):
        if name not in fields:
            raise StoredArrayError(f"{header} has no field {name!r}; every ENVI header needs one.")
    for name in (*_ORDERS["bsq"], "header offset"):
        if not str(fields.get(name, "0")).isdecimal():
            raise StoredArrayError(f"{header}: {name} = {fields[name]} is not a whole number.")
    for name, choices in allowed.items():
        if str(fields[name]).lower() not in choices:
            names = [f"{choice} ({meaning})" for choice, meaning in choices.items()]
            raise StoredArrayError(
                f"{header}: {name} = {fields[name]} is not supported; possible are "
                f"{', '.join(names[:-1])} and {names[-1]}."
            )


def _numbers(header: Path, fields: dict[str, Any], name: str) -> list[float]:
    """The numbers in a field, none if the header does not have it."""
    texts, found = fields.get(name, []), []
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            found.append(float(text))
        except ValueError:
            raise StoredArrayError(
                f"{header}: {name} holds {text!r}, which is not a number."
            ) from None
    return found


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
        ending = source.files[0].suffix if source.format == "envi" else ".img"
        return [path.with_suffix(ending if ending in ("", *BINARY_ENDINGS) else ".img"), path]
    return [path, header_of(path) or path.with_suffix(".hdr")]


def save(writer: CubeWriter, binary: Path, header: Path) -> None:
    """Write the header of the source with what has changed; the collected rows are the numbers."""
    import spectral.io.envi

    os.rename(writer.rows.path, binary)
    source, cube = writer.source, writer.cube
    fields = {k: v for k, v in source.attributes.items() if k not in ("crs", "transform")}
    if source.format != "envi":
        fields = _new_fields(writer)
    fields |= dict(zip(("lines", "samples", "bands"), writer.shape, strict=True))
    bands = -1 if cube.band_axis is None else cube.band_axis
    fields["interleave"] = ("bsq", "bil", "bip")[sum(axis < bands for axis in cube.axes)]
    codes = {np.dtype(c): code for code, c in spectral.io.envi.envi_to_dtype.items()}
    fields |= {"header offset": 0, "byte order": 0, "data type": codes[writer.dtype]}
    # A header that is copied has the value already, in its own words.
    if writer.nodata is not None and (source.format != "envi" or writer.nodata != source.nodata):
        fields["data ignore value"] = writer.nodata
    spectral.io.envi.write_envi_header(header, fields)


def _new_fields(writer: CubeWriter) -> dict[str, Any]:
    """Header fields for a cube from another format."""
    cube, fields = writer.cube, {"description": writer.source.name}
    for name, value in writer.notes().items():
        # A header has a line for each, where braces enclose lists.
        texts = map(str, value if isinstance(value, list) else [value])
        is_plain = isinstance(value, str | int | float | list) and "=" not in name
        if is_plain and all(map(_FIELD_TEXT.fullmatch, texts)):
            fields[name] = value
    for name, values in cube.per_band.items():
        is_whole = values.dtype.kind == "f" and bool((values % 1 == 0).all())
        fields[name] = values.astype(int).tolist() if is_whole else values.tolist()
    if cube.wavelengths is not None:
        units = {} if cube.wavelength_units is None else {"wavelength units": cube.wavelength_units}
        fields |= units | {"wavelength": cube.wavelengths.tolist()}
    return fields | georeference.envi_fields(cube.attributes)


def _binary_of(header: Path) -> Path:
    """The file with the numbers of a header."""
    stem = header.with_suffix("")
    for ending in ("", *BINARY_ENDINGS, *(ending.upper() for ending in BINARY_ENDINGS)):
        candidate = Path(f"{stem}{ending}")
        if candidate.is_file() and candidate != header:
            return candidate
    raise StoredArrayError(
        f"{header} has no data file beside it: there is no {stem.name}, and none that ends in "
        f"{', '.join(BINARY_ENDINGS[:-1])} or {BINARY_ENDINGS[-1]}."
    )
