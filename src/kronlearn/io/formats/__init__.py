"""File formats of arrays: a table of them, and one module each to open and write their files.

A module in this package defines

- ``open_file(path, dataset, files)``, which returns the numbers (an object with ``shape``,
  ``dtype``, slicing and, if stored in chunks, ``chunks``) and the attributes of their StoredArray
  as a dictionary. What must be closed is entered into ``files``, an ExitStack.
- ``save(writer, *paths)``, which writes the rows that a CubeWriter has collected to new files.

and, where the format needs it,

- ``check(writer)``, which raises if a file of this format cannot hold the cube,
- ``header(writer)``, the bytes in front of the numbers, for which the writer leaves room,
- ``targets(path, source)``, the files to write if there is more than one,
- ``check_replaceable(folder)``, which raises if replacing a folder would lose other files; formats
  that write folders define it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["FORMATS", "KNOWN", "Format", "format_by_ending", "format_by_start", "format_module"]
__all__ += ["import_library"]


@dataclass(frozen=True)
class Format:
    """How files of a format are recognised, and what they can hold."""

    #: What error messages call such a file.
    description: str
    endings: tuple[str, ...] = ()
    #: The bytes that files begin with.
    signatures: tuple[bytes, ...] = ()
    #: The optional library that writes the format.
    library: str | None = None
    #: The dtypes that files can hold; None for all.
    dtypes: tuple[str, ...] | None = None
    #: How much of the description of a cube files can hold.
    metadata: Literal["all", "wavelengths", "none"] = "all"


_COMMON = ("u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
#: The formats by the names of their modules.
FORMATS = {
    "npy": Format("a NumPy array (.npy)", (".npy",), (b"\x93NUMPY",), metadata="none"),
    "hdf5": Format(
        "an HDF5 file (.h5)", (".h5", ".hdf5", ".he5", ".hdf"), (b"\x89HDF\r\n\x1a\n",), "h5py"
    ),
    "netcdf": Format(
        "a NetCDF file (.nc)", (".nc", ".nc4", ".cdf"), (b"CDF\x01", b"CDF\x02"), "h5py"
    ),
    "mat": Format(
        "a MATLAB file (.mat)",
        (".mat",),
        (b"MATLAB ",),
        dtypes=("b1", "i1", *_COMMON),
        metadata="wavelengths",
    ),
    "geotiff": Format(
        "a TIFF image (.tif)",
        (".tif", ".tiff"),
        (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+"),
        "rasterio",
        ("i1", *_COMMON),
    ),
    "zarr": Format(
        "a Zarr store (.zarr or .zip)", (".zarr", ".zip"), (b"PK\x03\x04",), library="zarr"
    ),
    "envi": Format("an ENVI header (.hdr)", (".hdr",), (b"ENVI",), "spectral.io.envi", _COMMON),
    "image_folder": Format("a folder of images", metadata="none"),
}
#: A list of the formats for error messages.
KNOWN = ", ".join(form.description for form in FORMATS.values())


def format_by_ending(path: Path) -> str | None:
    """The name of the format that the ending of a path stands for; None if it is unknown."""
    ending = path.suffix.lower()
    return next((name for name, form in FORMATS.items() if ending in form.endings), None)


def format_by_start(path: Path) -> str | None:
    """The name of the format that the first bytes of a file identify; None if they do not."""
    with open(path, "rb") as file:
        start = file.read(16)
    return next((n for n, form in FORMATS.items() if start.startswith(form.signatures)), None)


def format_module(name: str) -> Any:
    """The module that opens and writes files of a format."""
    return importlib.import_module(f"{__name__}.{name}")


def import_library(library: str, purpose: str) -> Any:
    """Import an optional library, or raise an error that says how to install it."""
    try:
        return importlib.import_module(library)
    except ImportError as problem:
        raise ImportError(
            f"{purpose} needs the package {library.partition('.')[0]}, which is not installed: "
            "pip install '.[io]' in the checkout of kronlearn."
        ) from problem
