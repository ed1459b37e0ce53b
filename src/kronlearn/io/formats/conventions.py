"""Conventions for names and attributes in files: which array to read, wavelengths, nodata, packing.

``choose`` finds the array to read in a file that holds several, and ``describe`` turns what the
file says about it into attributes of a StoredArray.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.conversion import converted
from kronlearn.io.formats import georeference
from kronlearn.io.stored import Coordinate, StoredArrayError

__all__ = ["BAND_NAMES", "NOT_COPIED", "PER_BAND", "SPACE_NAMES", "WAVELENGTH_NAMES"]
__all__ += ["Packing", "choose", "describe"]

WAVELENGTH_NAMES = frozenset(
    {"wavelength", "wavelengths", "wavelength_nm", "wavelengths_nm", "wl", "wvl", "lambda"}
    | {"center_wavelength", "central_wavelength", "centre_wavelength"}
)
#: Names of the dimension of the bands, in lower case.
BAND_NAMES = WAVELENGTH_NAMES | frozenset(
    {"band", "bands", "channel", "channels", "spectral", "spectrum", "spectra", "wave"}
    | {"wavenumber", "frequency", "z"}
)
#: Names of the dimensions of an image, in lower case.
SPACE_NAMES = frozenset(
    {"x", "y", "row", "rows", "col", "cols", "column", "columns", "line", "lines", "sample"}
    | {"samples", "lat", "lon", "latitude", "longitude", "easting", "northing", "height", "width"}
    | {"downtrack", "crosstrack"}
)
#: Attributes with one entry per band, by their names in ENVI headers: the names and widths of the
#: bands, which are good (1) or bad (0), and the factors and offsets that turn stored numbers into
#: physical values. The readers of other formats use the same names.
PER_BAND = ("band names", "fwhm", "bbl", "data gain values", "data offset values")
#: Names of arrays that hold such attributes (``good_wavelengths`` is EMIT's).
_PER_BAND_ARRAYS = {"fwhm": "fwhm", "bbl": "bbl", "good_wavelengths": "bbl"}
#: Attributes that would be wrong for other numbers or in another file.
NOT_COPIED = {"scale_factor", "add_offset", "_Unsigned", "_FillValue", "missing_value", "nodata"}
NOT_COPIED |= {"DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST", "CLASS", "NAME"}
NOT_COPIED |= {"_Netcdf4Dimid", "_Netcdf4Coordinates"}

_NODATA_NAMES = ("_FillValue", "missing_value", "nodata", "no_data", "Data_Ignore_Value")


def choose(file: str, arrays: Mapping[str, Any], dataset: str | None) -> str:
    """The name of the array to read, among those of a file.

    That is ``dataset``, or else the only numeric array with the most dimensions.
    """
    numeric = {k: v for k, v in arrays.items() if np.dtype(v.dtype).kind in "fiub"}
    if dataset is not None:
        name = dataset.strip("/")
        in_groups = [key for key in arrays if key.endswith(f"/{name}")]
        candidates, problem = [name] if name in arrays else in_groups, f"has no array {dataset!r}"
    else:
        large = {k: v for k, v in numeric.items() if len(v.shape) >= 2 and math.prod(v.shape) > 0}
        most = max((len(v.shape) for v in large.values()), default=0)
        candidates = [k for k, v in large.items() if len(v.shape) == most]
        problem = "has no numeric array with two dimensions or more"
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        problem = "has several arrays that could be meant"
    listing = ", ".join(f"{k} {tuple(v.shape)}" for k, v in list(numeric.items())[:12])
    listing = listing + (", …" if len(numeric) > 12 else "") or "none"
    raise StoredArrayError(
        f"{file} {problem}; its numeric arrays are: {listing}. Choose one with dataset= (for "
        "samples: kronlearn.io.stored.open_array(path, dataset=...))."
    )


def describe(
    name: str | None,
    array: Any,
    attributes: Mapping[Any, Any],
    axes: Sequence[str] | None,
    others: Mapping[str, Any],
    unpack: bool = True,
) -> dict[str, Any]:
    """Attributes of a StoredArray, from what a file says about an array.

    ``others`` are the arrays of the file by their names; wavelengths and coordinates are looked for
    among those that are no longer than this array. ``unpack`` says whether scale_factor and
    add_offset have their meaning in NetCDF.
    """
    plain = _plain(attributes)
    vectors = _vectors({n: v for n, v in others.items() if n != name}, max(array.shape, default=0))
    coordinates = {n: vector for n, vector in vectors.items() if n in (axes or ())}
    wavelengths, unit = None, None
    for other, (values, its_attributes) in vectors.items():
        last_name = other.rpartition("/")[2].lower()
        if last_name in WAVELENGTH_NAMES and wavelengths is None:
            wavelengths, unit = values.astype(np.float64), its_attributes.get("units")
        if last_name in _PER_BAND_ARRAYS:
            plain.setdefault(_PER_BAND_ARRAYS[last_name], values.tolist())
    mapping = str(plain.pop("grid_mapping", "spatial_ref")).partition(":")[0]
    for other, scalar in others.items():
        if other.rpartition("/")[2] == mapping and math.prod(scalar.shape) == 1:
            plain |= georeference.from_grid_mapping(_plain(scalar.attrs), coordinates)
    unit = plain.get("wavelength units", plain.get("wavelength_units", unit))
    return {
        "dataset": name,
        "attributes": plain,
        "axes": None if axes is None else tuple(axes),
        "wavelengths": wavelengths,
        "wavelength_units": None if unit is None else str(unit),
        "coordinates": coordinates,
        **_nodata_and_packing(plain, np.dtype(array.dtype), unpack),
    }


def _vectors(arrays: Mapping[str, Any], longest: int) -> dict[str, Coordinate]:
    """The numeric vectors among arrays, up to a length, with their attributes.

    A vector may have further axes of length one.
    """
    vectors = {}
    for name, array in arrays.items():
        if 0 < math.prod(array.shape) <= longest and np.dtype(array.dtype).kind in "fiu":
            values = np.asarray(array[...])
            values = values.reshape(-1) if 1 in values.shape else values
            if values.ndim == 1:
                attributes = _plain(getattr(array, "attrs", {})).items()
                vectors[name] = values, {k: v for k, v in attributes if k not in NOT_COPIED}
    return vectors


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as plain Python types, without those that have no such form (references, …)."""
    result = {}
    for name in attributes:
        try:
            value = attributes[name]
        except (OSError, TypeError):
            # h5py cannot read some types.
            continue
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiubUS":
            value = value.item() if value.size == 1 else value.tolist()
        elif isinstance(value, np.ndarray) and all(isinstance(v, str) for v in value.flat):
            # h5py returns lists of texts as arrays of objects.
            value = value.tolist()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str | int | float | bool | list | tuple | dict | None):
            result[str(name)] = value
    return result


@dataclass(frozen=True)
class Packing:
    """The packing of values as ``scale · stored + offset``, with missing values as NaN.

    This follows CF, section 8.1, and xarray.
    """

    scale: float
    offset: float
    #: The stored number that marks missing data.
    fill: float | int | None
    #: The dtype in the file, or its unsigned counterpart if the attribute _Unsigned says so.
    stored: np.dtype[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values: float32 where this represents all stored integers exactly."""
        small = self.stored.kind in "iu" and self.stored.itemsize <= 2
        return np.dtype(np.float32 if small or self.stored == np.float32 else np.float64)

    def unpack(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The values of stored numbers."""
        numbers = numbers.astype(self.stored, copy=False)
        values = self.scale * numbers.astype(np.float64) + self.offset
        if self.fill is not None and not math.isnan(self.fill):
            values[numbers == self.stored.type(self.fill)] = math.nan
        return values.astype(self.dtype)

    def pack(self, values: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
        """The numbers, of a dtype, that store values; errors begin with ``name``."""
        numbers = (values.astype(np.float64) - self.offset) / self.scale
        numbers = converted(numbers, self.stored, self.fill, name)
        return numbers.view(dtype.newbyteorder("="))


def _nodata_and_packing(
    attributes: Mapping[str, Any], dtype: np.dtype[Any], unpack: bool
) -> dict[str, Any]:
    """``nodata`` and ``packing`` of an array of this dtype, from its attributes."""
    scale = _number(attributes, "scale_factor") if unpack else None
    offset = _number(attributes, "add_offset") if unpack else None
    if scale is None and offset is None:
        return {"nodata": _nodata(attributes, dtype)}
    scale = 1.0 if scale is None else float(scale)
    if scale == 0 or not math.isfinite(scale):
        raise ValueError(f"scale_factor is {scale}; it must be finite and not zero")
    stored = dtype.newbyteorder("=")
    if str(attributes.get("_Unsigned", "false")).lower() == "true" and stored.kind == "i":
        stored = np.dtype(f"u{stored.itemsize}")
    fill = _nodata(attributes, stored)
    packing = Packing(scale, float(offset or 0.0), fill, stored)
    # Values that are missing become NaN.
    return {"nodata": None if fill is None else math.nan, "packing": packing}


def _nodata(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> float | int | None:
    """The value that the attributes of an array of this dtype declare to mark missing data."""
    for key in _NODATA_NAMES:
        value = _number(attributes, key)
        if value is not None:
            wraps = dtype.kind == "u" and value < 0 and value == int(value)
            return int(value) % (1 << 8 * dtype.itemsize) if wraps else value
    return None


def _number(attributes: Mapping[str, Any], key: str) -> float | int | None:
    """The number in an attribute, also if it is written as a text."""
    value = attributes.get(key)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
        try:
            # In Zarr version 3, xarray encodes floats in base64.
            return float(struct.unpack("<d", base64.b64decode(value, validate=True))[0])
        except (binascii.Error, struct.error):
            raise ValueError(f"{key} = {value[:40]!r} is not a number") from None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None
