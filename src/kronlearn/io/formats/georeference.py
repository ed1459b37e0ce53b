"""Where on Earth pixels are, as GDAL, ENVI headers and the CF conventions write it.

Attributes have it as ``crs``, a text that GDAL understands, and ``transform``, the six numbers
a b c d e f of ``x = a column + b row + c`` and ``y = d column + e row + f``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats.tiff import quiet, unwarned
from kronlearn.io.stored import Vector, need

__all__ = ["FIELDS", "axis_coordinates", "envi_fields", "gdal_profile", "grid_mapping"]
__all__ += ["of_envi", "of_gdal", "of_grid_mapping"]

#: Attributes that say it, in one format or another.
FIELDS = frozenset({"crs", "transform", "map info", "projection info", "coordinate system string"})

_ENVI_FIELDS = ("map info", "projection info", "coordinate system string")
_AXES = {"X": ("x", "lon", "longitude", "easting"), "Y": ("y", "lat", "latitude", "northing")}
# By whether the coordinates are angles, and by axis.
_STANDARD_NAMES = {True: {"X": "longitude", "Y": "latitude"}}
_STANDARD_NAMES[False] = {"X": "projection_x_coordinate", "Y": "projection_y_coordinate"}
# How far coordinates may be from even spacing, in pixels; those in single precision are not even.
_UNEVEN = 0.05


def of_gdal(file: Any) -> dict[str, Any]:
    """The attributes ``crs`` and ``transform`` of a file of rasterio's, if it has them."""
    if file.crs is None:
        return {}
    # Without the minus of zeros.
    return {"crs": file.crs.to_string(), "transform": [x + 0.0 for x in file.transform[:6]]}


def gdal_profile(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What rasterio is told of a new file, from attributes; nothing if they do not say all."""
    crs, numbers = attributes.get("crs"), attributes.get("transform")
    if not isinstance(crs, str) or not isinstance(numbers, Sequence) or len(numbers) < 6:
        return {}
    affine = need("rasterio", "Georeferencing").Affine
    return {"crs": crs, "transform": affine(*map(float, numbers[:6]))}


def of_envi(path: Path) -> dict[str, Any]:
    """The attributes of an ENVI file, as GDAL reads them; none without rasterio."""
    try:
        import rasterio

        with quiet(), unwarned(), rasterio.open(path, driver="ENVI") as file:
            return of_gdal(file)
    except (ImportError, OSError):
        return {}


def envi_fields(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The fields of an ENVI header for attributes: those that GDAL writes.

    None if GDAL does not read the same transform from them: ENVI has no shear.
    """
    wanted = gdal_profile(attributes)
    if not wanted:
        return {}
    import rasterio

    profile = {"driver": "ENVI", "width": 1, "height": 1, "count": 1, "dtype": "uint8"} | wanted
    with tempfile.TemporaryDirectory() as folder, quiet(), unwarned():
        path = Path(folder) / "pixel.img"
        rasterio.open(path, "w", **profile).close()
        with rasterio.open(path) as file:
            size = abs(wanted["transform"].determinant) ** 0.5
            if not np.allclose(file.transform, wanted["transform"], rtol=1e-12, atol=1e-6 * size):
                return {}
        lines = path.with_suffix(".hdr").read_text("utf-8").splitlines()
    fields = (line.partition(" = ") for line in lines)
    return {name: value for name, _, value in fields if name in _ENVI_FIELDS}


def of_grid_mapping(said: Mapping[str, Any], coordinates: Mapping[str, Vector]) -> dict[str, Any]:
    """The attributes that a CF grid mapping variable and the coordinates of the axes describe.

    Coordinates say where the pixels are; the attribute GeoTransform, of GDAL and rioxarray, does so
    where there are none, and where it is more precise. It may be that of a larger image, or of one
    with its rows in the other order.
    """
    crs = said.get("crs_wkt") or said.get("spatial_ref")
    if not isinstance(crs, str):
        return {}
    text = said.get("GeoTransform", "")
    try:
        c, a, b, f, d, e = map(float, text.split() if isinstance(text, str) else text)
        told = [a, b, c, d, e, f]
    except ValueError:
        told = []
    x, y = (_start_and_step(coordinates, axis) for axis in _AXES)
    if told and (told[1] or told[3]):
        told = [] if y and y[1] * told[4] < 0 else told
    elif x and y:
        found = [x[1], 0.0, x[0], 0.0, y[1], y[0]]
        size = min(abs(x[1]), abs(y[1]))
        told = told if told and np.allclose(told, found, rtol=0, atol=_UNEVEN * size) else found
    return {"crs": _short(crs), "transform": told} if told else {}


def grid_mapping(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of a CF grid mapping variable, as rioxarray and GDAL write and read them."""
    place = gdal_profile(attributes)
    if not place:
        return {}
    wkt = _crs(place["crs"]).to_wkt()
    numbers = " ".join(map(repr, place["transform"].to_gdal()))
    return {"crs_wkt": wkt, "spatial_ref": wkt, "GeoTransform": numbers}


def axis_coordinates(
    attributes: Mapping[str, Any], rows: tuple[str, int], columns: tuple[str, int]
) -> dict[str, Vector]:
    """CF coordinates, and their attributes, of pixel centres along axes of a name and a length."""
    place = gdal_profile(attributes)
    if not place or place["transform"].b or place["transform"].d:
        return {}
    a, _, c, _, e, f = place["transform"][:6]
    crs = _crs(place["crs"])
    names = _STANDARD_NAMES[crs.is_geographic]
    found = {}
    for axis, (name, length), start, step in (("Y", rows, f, e), ("X", columns, c, a)):
        told = {"axis": axis, "standard_name": names[axis]}
        if crs.is_geographic:
            told["units"] = {"X": "degrees_east", "Y": "degrees_north"}[axis]
        elif crs.linear_units.lower() in ("metre", "meter"):
            told["units"] = "m"
        found[name] = (start + step * (np.arange(length) + 0.5), told)
    return found


def _crs(text: str) -> Any:
    return need("rasterio.crs", "Georeferencing").CRS.from_string(text)


def _short(wkt: str) -> str:
    """The code of a coordinate system if it has one and rasterio is there to tell."""
    try:
        return str(_crs(wkt).to_string())
    except (ImportError, ValueError):
        return wkt


def _start_and_step(coordinates: Mapping[str, Vector], axis: str) -> tuple[float, float] | None:
    """The outer edge of the first pixel along an axis, and the size of a pixel, if it is even."""
    for name, (values, told) in coordinates.items():
        if told.get("axis") != axis and name.lower() not in _AXES[axis]:
            continue
        n = len(values)
        if n > 1 and values[0] != values[-1]:
            step = (float(values[-1]) - float(values[0])) / (n - 1)
            even = values[0] + step * np.arange(n)
            if np.abs(values - even).max() <= _UNEVEN * abs(step):
                return float(values[0]) - step / 2, step
    return None
