"""What names and attributes in files say: which array is meant, wavelengths, no data, packing."""

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
from kronlearn.io.stored import StoredArrayError, Vector

__all__ = [
    "BAND_NAMES",
    "NOT_KEPT",
    "PER_BAND",
    "SPACE_NAMES",
    "WAVELENGTH_NAMES",
    "Packing",
    "choose",
    "described",
]

WAVELENGTH_NAMES = frozenset(
    {"wavelength", "wavelengths", "wavelength_nm", "wavelengths_nm", "wl", "wvl", "lambda"}
    | {"center_wavelength", "central_wavelength", "centre_wavelength"}
)
#: Names that the dimension of the bands goes by, in lower case.
BAND_NAMES = WAVELENGTH_NAMES | frozenset(
    {"band", "bands", "channel", "channels", "spectral", "spectrum", "spectra", "wave"}
    | {"wavenumber", "frequency", "z"}
)
#: Names that the dimensions of an image go by.
SPACE_NAMES = frozenset(
    {"x", "y", "row", "rows", "col", "cols", "column", "columns", "line", "lines", "sample"}
    | {"samples", "lat", "lon", "latitude", "longitude", "easting", "northing", "height", "width"}
    | {"downtrack", "crosstrack"}
)
#: Attributes that list something for every band, by their names in ENVI headers: names, widths,
#: which bands are good (1) or bad (0), and what stored numbers are times, and plus, as physical
#: values. Readers of other formats use these names, too.
PER_BAND = ("band names", "fwhm", "bbl", "data gain values", "data offset values")
#: Arrays beside the one that is read which are such lists: the names of EMIT, for example.
_LISTS = {"fwhm": "fwhm", "bbl": "bbl", "good_wavelengths": "bbl"}
#: Attributes that are not true of other numbers or in another file.
NOT_KEPT = {"scale_factor", "add_offset", "_Unsigned", "_FillValue", "missing_value", "nodata"}
NOT_KEPT |= {"DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST", "CLASS", "NAME"}
NOT_KEPT |= {"_Netcdf4Dimid", "_Netcdf4Coordinates"}

_NODATA_NAMES = ("_FillValue", "missing_value", "nodata", "no_data", "Data_Ignore_Value")


def choose(name: str, found: Mapping[str, Any], dataset: str | None) -> str:
    """The name of the array that is meant among those of a container, by name with shape and dtype.

    That is ``dataset`` where it is given, or the only one of numbers with the most dimensions.
    """
    numeric = {k: v for k, v in found.items() if np.dtype(v.dtype).kind in "fiub"}
    if dataset is not None:
        inside = dataset.strip("/")
        endings = [key for key in found if key.endswith(f"/{inside}")]
        fitting, problem = [inside] if inside in found else endings, f"has no array {dataset!r}"
    else:
        arrays = {k: v for k, v in numeric.items() if len(v.shape) >= 2 and math.prod(v.shape) > 0}
        most = max((len(v.shape) for v in arrays.values()), default=0)
        fitting = [k for k, v in arrays.items() if len(v.shape) == most]
        problem = "has no numeric array with two dimensions or more"
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        problem = "has several arrays that could be meant"
    listing = ", ".join(f"{k} {tuple(v.shape)}" for k, v in list(numeric.items())[:12])
    listing = listing + (", …" if len(numeric) > 12 else "") or "none"
    raise StoredArrayError(
        f"{name} {problem}; its numeric arrays are: {listing}. Choose one with dataset= (for "
        "samples: kronlearn.io.stored.open_array(path, dataset=...))."
    )


def described(
    name: str | None,
    array: Any,
    attributes: Mapping[Any, Any],
    axes: Sequence[str] | None,
    others: Mapping[str, Any],
    scaled: bool = True,
) -> dict[str, Any]:
    """What a container says about the array of a name: values for attributes of a stored array.

    ``others`` are the arrays of the container by name: those that are no longer than this one may
    be its wavelengths and coordinates. ``scaled`` says whether scale_factor and add_offset have the
    meaning that NetCDF gives them.
    """
    plain = _plain(attributes)
    known = _vectors({n: v for n, v in others.items() if n != name}, max(array.shape, default=0))
    coordinates = {n: pair for n, pair in known.items() if n in (axes or ())}
    waves, told = None, {}
    for other, (values, said) in known.items():
        what = _last(other).lower()
        if what in WAVELENGTH_NAMES and waves is None:
            waves, told = values, said
        if what in _LISTS:
            plain.setdefault(_LISTS[what], values.tolist())
    mapping = str(plain.pop("grid_mapping", "spatial_ref")).partition(":")[0]
    for other, scalar in others.items():
        if _last(other) == mapping and math.prod(scalar.shape) == 1:
            plain |= georeference.of_grid_mapping(_attributes_of(scalar), coordinates)
    units = plain.get("wavelength units", plain.get("wavelength_units", told.get("units")))
    return {
        "dataset": name,
        "attributes": plain,
        "axes": None if axes is None else tuple(axes),
        "wavelengths": None if waves is None else waves.astype(np.float64),
        "wavelength_units": None if units is None else str(units),
        "coordinates": coordinates,
        **_declared(plain, np.dtype(array.dtype), scaled),
    }


def _vectors(arrays: Mapping[str, Any], longest: int) -> dict[str, Vector]:
    """The numeric arrays with one axis of more than one entry that are not too long."""
    found = {}
    for name, array in arrays.items():
        if 0 < math.prod(array.shape) <= longest and np.dtype(array.dtype).kind in "fiu":
            values = np.asarray(array[...])
            values = values.reshape(-1) if 1 in values.shape else values
            if values.ndim == 1:
                said = _attributes_of(array)
                # What is true of a copy, too.
                found[name] = values, {k: v for k, v in said.items() if k not in NOT_KEPT}
    return found


def _last(name: str) -> str:
    """The name of an array without those of its groups."""
    return name.rpartition("/")[2]


def _attributes_of(array: Any) -> dict[str, Any]:
    return _plain(getattr(array, "attrs", {}))


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as Python's own types, leaving out what has no such form (references, …)."""
    result = {}
    for name, value in attributes.items():
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiubUS":
            value = value.item() if value.size == 1 else value.tolist()
        elif isinstance(value, np.ndarray) and all(isinstance(v, str) for v in value.flat):
            # As h5py has lists of texts; other objects are references.
            value = value.tolist()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str | int | float | bool | list | tuple | dict | None):
            result[str(name)] = value
    return result


@dataclass(frozen=True)
class Packing:
    """Values are ``scale · stored + offset``; missing ones are NaN.

    The conventions are those of CF, section 8.1, and of xarray.
    """

    scale: float
    offset: float
    #: The stored number that means no data.
    fill: float | int | None
    #: The dtype in the file, or the unsigned one that the attribute _Unsigned makes of it.
    stored: np.dtype[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values: float32 where it holds all that the stored integers can be."""
        small = self.stored.kind in "iu" and self.stored.itemsize <= 2
        return np.dtype(np.float32 if small or self.stored == np.float32 else np.float64)

    def unpack(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Values of stored numbers."""
        numbers = numbers.astype(self.stored, copy=False)
        values = self.scale * numbers.astype(np.float64) + self.offset
        if self.fill is not None and not math.isnan(self.fill):
            values[numbers == self.stored.type(self.fill)] = math.nan
        return values.astype(self.dtype)

    def pack(self, values: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
        """Numbers to store in an array of this dtype, rounded and in range; NaN as no data."""
        numbers = (values.astype(np.float64) - self.offset) / self.scale
        numbers = converted(numbers, self.stored, self.fill, name)
        return numbers.view(dtype.newbyteorder("="))


def _declared(attributes: Mapping[str, Any], dtype: np.dtype[Any], scaled: bool) -> dict[str, Any]:
    """``nodata`` and ``packing`` that the attributes of an array of this dtype describe."""
    nodata = _nodata(attributes, dtype)
    scale = _number(attributes, "scale_factor") if scaled else None
    offset = _number(attributes, "add_offset") if scaled else None
    if scale is None and offset is None:
        return {"nodata": nodata}
    scale = 1.0 if scale is None else float(scale)
    if scale == 0 or not math.isfinite(scale):
        raise ValueError(f"scale_factor = {scale} is not a finite number other than zero")
    native = dtype.newbyteorder("=")
    if str(attributes.get("_Unsigned", "false")).lower() == "true" and native.kind == "i":
        native = np.dtype(f"u{native.itemsize}")
    fill = _nodata(attributes, native)
    return {"nodata": nodata, "packing": Packing(scale, float(offset or 0.0), fill, native)}


def _nodata(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> float | int | None:
    """The value that attributes declare to mean no data."""
    for key in _NODATA_NAMES:
        value = _number(attributes, key)
        if value is not None:
            wraps = dtype.kind == "u" and value < 0 and value == int(value)
            return int(value) % (1 << 8 * dtype.itemsize) if wraps else value
    return None


def _number(attributes: Mapping[str, Any], key: str) -> float | int | None:
    value = attributes.get(key)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
        try:
            # xarray's form for floats in Zarr version 3.
            return float(struct.unpack("<d", base64.b64decode(value, validate=True))[0])
        except (binascii.Error, struct.error):
            raise ValueError(f"{key} = {value[:40]!r} is not a number") from None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None
