"""ENVI: a text header (.hdr) beside a binary file with the bands, lines or pixels in turn.

Headers are read and written by SPy (``spectral``), the numbers are read where they lie.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import geotiff
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
    waves, ignored = fields.get("wavelength"), fields.get("data ignore value")
    place = geotiff.place_of(binary) if "map info" in fields else {}
    return FileArray(binary, shape, np.dtype(known.dtype), known.offset), {
        "files": [binary, header],
        "nodata": None if ignored is None else float(ignored),
        "attributes": {k: v for k, v in fields.items() if k not in _LAYOUT} | place,
        "wavelengths": None if waves is None else np.array(waves, np.float64),
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
    spy.check_compatibility(fields)
    if fields.get("file compression", "0") != "0":
        raise StoredArrayError(
            f"{header}: compressed ENVI files cannot be read; decompress it first."
        )
    for name, allowed in (("interleave", tuple(_ORDERS)), ("byte order", ("0", "1"))):
        if fields[name].lower() not in allowed:
            raise StoredArrayError(
                f"{header}: {name} = {fields[name]!r} is not one of {', '.join(allowed)}."
            )
    return fields


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
    if cube.wavelengths is not None:
        units = {} if cube.wavelength_units is None else {"wavelength units": cube.wavelength_units}
        fields |= units | {"wavelength": cube.wavelengths.tolist()}
    return fields | geotiff.envi_fields(cube.attributes)


def _binary_of(header: Path) -> Path:
    """The file with the numbers of a header."""
    stem = header.with_suffix("")
    for ending in ("", *BINARY_ENDINGS, *(ending.upper() for ending in BINARY_ENDINGS)):
        candidate = Path(f"{stem}{ending}")
        if candidate.is_file() and candidate != header:
            return candidate
    raise StoredArrayError(
        f"{header} has no data file beside it; looked for {stem.name} without an extension or with "
        f"one of {', '.join(BINARY_ENDINGS)}."
    )
