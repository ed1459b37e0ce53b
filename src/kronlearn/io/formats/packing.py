"""Numbers that files hold in other units: NetCDF's scale_factor, add_offset and _FillValue."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.outputs import converted
from kronlearn.io.stored import StoredArrayError

__all__ = ["NOT_KEPT", "Packing", "declared_nodata", "packing_of"]

#: Attributes that are not true of other numbers or in another file.
NOT_KEPT = {"scale_factor", "add_offset", "_Unsigned", "_FillValue", "missing_value", "nodata"}
NOT_KEPT |= {"DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST", "CLASS", "NAME"}
NOT_KEPT |= {"_Netcdf4Dimid", "_Netcdf4Coordinates"}

_NODATA_NAMES = ("_FillValue", "missing_value", "nodata", "no_data", "Data_Ignore_Value")


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
        values = numbers.astype(np.float64)
        values *= self.scale
        values += self.offset
        if self.fill is not None and not math.isnan(self.fill):
            values[numbers == self.stored.type(self.fill)] = math.nan
        return values.astype(self.dtype)

    def pack(self, values: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
        """Stored numbers for values, rounded and kept in range; NaN becomes no data.

        Parameters
        ----------
        values : array
        dtype : dtype
            That of the array in the file.
        name : str
            Of the file, for messages.
        """
        numbers = (values.astype(np.float64) - self.offset) / self.scale
        numbers = converted(numbers, self.stored, self.fill, name)
        return numbers.view(dtype.newbyteorder("="))


def packing_of(name: str, attributes: Mapping[str, Any], stored: np.dtype[Any]) -> Packing | None:
    """The packing that attributes describe; None where values are stored as they are."""
    scale = _number(name, attributes, "scale_factor")
    offset = _number(name, attributes, "add_offset")
    if scale is None and offset is None:
        return None
    scale = 1.0 if scale is None else float(scale)
    if scale == 0 or not math.isfinite(scale):
        raise StoredArrayError(f"{name}: scale_factor = {scale} makes no sense.")
    native = stored.newbyteorder("=")
    if str(attributes.get("_Unsigned", "false")).lower() == "true" and native.kind == "i":
        native = np.dtype(f"u{native.itemsize}")
    fill = declared_nodata(name, attributes, native)
    return Packing(scale, float(offset or 0.0), fill, native)


def declared_nodata(
    name: str, attributes: Mapping[str, Any], dtype: np.dtype[Any]
) -> float | int | None:
    """The value that attributes declare to mean no data."""
    for key in _NODATA_NAMES:
        value = _number(name, attributes, key)
        if value is not None:
            wraps = dtype.kind == "u" and value < 0 and value == int(value)
            return int(value) % (1 << 8 * dtype.itemsize) if wraps else value
    return None


def _number(name: str, attributes: Mapping[str, Any], key: str) -> float | int | None:
    value = attributes.get(key)
    if isinstance(value, list | tuple | np.ndarray):
        value = value[0] if len(value) == 1 else None
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
        try:
            # xarray's form for floats in Zarr version 3.
            return float(struct.unpack("<d", base64.b64decode(value, validate=True))[0])
        except (binascii.Error, struct.error):
            raise StoredArrayError(f"{name}: {key} = {value[:40]!r} is not a number.") from None
    return value.item() if isinstance(value, np.generic) else value
