"""ENVI files: a text header (.hdr) and a binary file, by bands (bsq), lines (bil) or pixels (bip).

SPy (``spectral``) reads and writes the headers; the numbers are read in place.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import georeference, import_library
from kronlearn.io.formats.npy import FileArray, checked
from kronlearn.io.formats.tiff import without_warnings
from kronlearn.io.stored import Opened, StoredArray, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["BINARY_ENDINGS", "header_of", "open_file", "save", "targets"]

_ORDERS = {
    "bsq": ("bands", "lines", "samples"),
    "bil": ("lines", "bands", "samples"),
    "bip": ("lines", "samples", "bands"),
}
# Fields for the layout of the binary file, which are no attributes of the array.
_LAYOUT = {"lines", "samples", "bands", "data type", "byte order", "header offset"}
#: Endings of the binary file, which may also have none.
BINARY_ENDINGS = (".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".envi", ".sli")
_SYSTEM = "coordinate system string"
_FIELD_TEXT = re.compile(r"[^{}\n]+")


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the array of an ENVI header or binary file, in the axis order of the file."""
    header = path if path.suffix.lower() == ".hdr" else header_of(path)
    if header is None:
        raise StoredArrayError(f"{path} has no ENVI header (.hdr) beside it.")
    binary = _binary_of(header) if header == path else path
    spy = import_library("spectral.io.envi", f"To read {path}")
    fields = _fields(spy, header)
    layout, order = spy.gen_params(fields), _ORDERS[fields["interleave"].lower()]
    shape = tuple(int(fields[axis]) for axis in order)
    wavelengths = _numbers(header, fields, "wavelength")
    ignored = _numbers(header, fields, "data ignore value")
    attributes = {name: value for name, value in fields.items() if name not in _LAYOUT}
    if "map info" in fields:
        attributes |= georeference.from_envi(binary)
    array = FileArray(binary, shape, np.dtype(layout.dtype), layout.offset)
    return checked(array, files), {
        "files": [binary, header],
        "nodata": ignored[0] if ignored else None,
        "attributes": attributes,
        "wavelengths": np.array(wavelengths) if wavelengths else None,
        "wavelength_units": fields.get("wavelength units"),
        "band_axis": order.index("bands"),
    }


def _fields(spy: Any, header: Path) -> dict[str, Any]:
    """The fields of a header, if it describes numbers that can be read."""
    with without_warnings():
        fields = {"byte order": "0"} | spy.read_envi_header(header)
    if _SYSTEM in fields:
        # SPy reads this text as a list, and would write it as one.
        fields[_SYSTEM] = f"{{{','.join(fields[_SYSTEM])}}}"
    _check_layout(spy, header, fields)
    spy.check_compatibility(fields)
    if fields.get("file compression", "0") != "0":
        raise StoredArrayError(
            f"{header}: compressed ENVI files cannot be read; decompress the file first."
        )
    return fields


def _check_layout(spy: Any, header: Path, fields: dict[str, Any]) -> None:
    """Raise StoredArrayError unless the fields define the layout of real numbers."""
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
                f"{header}: {name} = {fields[name]} is not supported; supported are "
                f"{', '.join(names[:-1])} and {names[-1]}."
            )


def _numbers(header: Path, fields: dict[str, Any], name: str) -> list[float]:
    """The numbers in a field; none if the header does not have it."""
    texts, numbers = fields.get(name, []), []
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            numbers.append(float(text))
        except ValueError:
            raise StoredArrayError(
                f"{header}: {name} holds {text!r}, which is not a number."
            ) from None
    return numbers


def header_of(binary: Path) -> Path | None:
    """The ENVI header that belongs to a binary file, if there is one."""
    for ending in (".hdr", ".HDR"):
        for candidate in (binary.with_suffix(ending), Path(f"{binary}{ending}")):
            if candidate.is_file():
                with open(candidate, "rb") as file:
                    if file.read(4) == b"ENVI":
                        return candidate
    return None


def targets(path: Path, source: StoredArray) -> list[Path]:
    """The binary file and the header to write, given the name of one of them.

    The binary file comes first and is replaced first: a new header never describes old numbers.
    """
    if path.suffix.lower() == ".hdr":
        ending = source.files[0].suffix if source.format == "envi" else ".img"
        return [path.with_suffix(ending if ending in ("", *BINARY_ENDINGS) else ".img"), path]
    return [path, header_of(path) or path.with_suffix(".hdr")]


def save(writer: CubeWriter, binary: Path, header: Path) -> None:
    """Move the collected rows to the binary file, and write a header with the source's fields."""
    import spectral.io.envi

    os.rename(writer.rows.path, binary)
    source, cube = writer.source, writer.cube
    if source.format == "envi":
        fields = {k: v for k, v in source.attributes.items() if k not in ("crs", "transform")}
    else:
        fields = _new_fields(writer)
    fields |= dict(zip(("lines", "samples", "bands"), writer.shape, strict=True))
    bands = -1 if cube.band_axis is None else cube.band_axis
    fields["interleave"] = ("bsq", "bil", "bip")[sum(axis < bands for axis in cube.axes)]
    codes = {np.dtype(c): code for code, c in spectral.io.envi.envi_to_dtype.items()}
    fields |= {"header offset": 0, "byte order": 0, "data type": codes[writer.dtype]}
    # A copied header has the value already, in its own notation.
    if writer.nodata is not None and (source.format != "envi" or writer.nodata != source.nodata):
        fields["data ignore value"] = writer.nodata
    spectral.io.envi.write_envi_header(header, fields)


def _new_fields(writer: CubeWriter) -> dict[str, Any]:
    """Header fields for a cube from another format."""
    cube, source = writer.cube, writer.source
    fields = {"description": source.name if source.path is None else source.path.name}
    for name, value in writer.portable_attributes().items():
        # A header has one line per field, with lists in braces.
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
    return fields | georeference.to_envi(cube.attributes)


def _binary_of(header: Path) -> Path:
    """The binary file that belongs to a header."""
    stem = header.with_suffix("")
    for ending in ("", *BINARY_ENDINGS, *(ending.upper() for ending in BINARY_ENDINGS)):
        candidate = Path(f"{stem}{ending}")
        if candidate.is_file() and candidate != header:
            return candidate
    raise StoredArrayError(
        f"{header} has no data file beside it: there is no {stem.name}, with or without one of "
        f"the endings {', '.join(BINARY_ENDINGS)}."
    )
