"""Georeferences, converted between GDAL, ENVI headers and the CF conventions.

The attributes of a cube hold them as ``crs``, a text that GDAL understands, and ``transform``, the
six numbers a b c d e f of ``x = a column + b row + c`` and ``y = d column + e row + f``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.formats import import_library
from kronlearn.io.formats.tiff import without_logs, without_warnings
from kronlearn.io.stored import Coordinate

__all__ = ["ATTRIBUTES", "axis_coordinates", "from_envi", "from_grid_mapping", "from_rasterio"]
__all__ += ["to_envi", "to_grid_mapping", "to_rasterio"]

_ENVI_FIELDS = ("map info", "projection info", "coordinate system string")
#: Attributes that hold the georeference in one format or another.
ATTRIBUTES = frozenset({"crs", "transform", *_ENVI_FIELDS})

# Names of the coordinates along each axis.
_AXES = {"X": ("x", "lon", "longitude", "easting"), "Y": ("y", "lat", "latitude", "northing")}
# CF names of geographic (True) and of projected coordinates.
_STANDARD_NAMES = {
    True: {"X": "longitude", "Y": "latitude"},
    False: {"X": "projection_x_coordinate", "Y": "projection_y_coordinate"},
}
# How far coordinates may deviate from even spacing, in pixels: in single precision they all do.
_UNEVEN = 0.05


def from_rasterio(file: Any) -> dict[str, Any]:
    """The attributes ``crs`` and ``transform`` of a file opened by rasterio, if it has them."""
    if file.crs is None:
        return {}
    # Adding zero turns −0 into 0.
    return {"crs": file.crs.to_string(), "transform": [x + 0.0 for x in file.transform[:6]]}


def to_rasterio(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The georeference as rasterio's arguments for a new file; empty unless it is complete."""
    crs, numbers = attributes.get("crs"), attributes.get("transform")
    if not isinstance(crs, str) or not isinstance(numbers, Sequence) or len(numbers) < 6:
        return {}
    affine = import_library("rasterio", "Georeferencing").Affine
    return {"crs": crs, "transform": affine(*map(float, numbers[:6]))}


def from_envi(path: Path) -> dict[str, Any]:
    """The attributes of an ENVI file, as GDAL reads them; none without rasterio."""
    try:
        import rasterio

        with without_logs(), without_warnings(), rasterio.open(path, driver="ENVI") as file:
            return from_rasterio(file)
    except (ImportError, OSError):
        return {}


def to_envi(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The georeference as fields of an ENVI header, as GDAL writes them.

    Empty if GDAL reads another transform from these fields, since ENVI cannot hold a shear.
    """
    arguments = to_rasterio(attributes)
    if not arguments:
        return {}
    import rasterio

    transform = arguments["transform"]
    profile = {"driver": "ENVI", "width": 1, "height": 1, "count": 1, "dtype": "uint8"} | arguments
    with tempfile.TemporaryDirectory() as folder, without_logs(), without_warnings():
        path = Path(folder) / "pixel.img"
        rasterio.open(path, "w", **profile).close()
        with rasterio.open(path) as file:
            pixel_size = abs(transform.determinant) ** 0.5
            if not np.allclose(file.transform, transform, rtol=1e-12, atol=1e-6 * pixel_size):
                return {}
        lines = path.with_suffix(".hdr").read_text("utf-8").splitlines()
    fields = (line.partition(" = ") for line in lines)
    return {name: value for name, _, value in fields if name in _ENVI_FIELDS}


def from_grid_mapping(
    mapping: Mapping[str, Any], coordinates: Mapping[str, Coordinate]
) -> dict[str, Any]:
    """The attributes that a CF grid mapping variable and the coordinates of the axes describe.

    The coordinates give the transform. GeoTransform, an attribute of GDAL and rioxarray, is more
    precise but may be that of a larger image, or of one with its rows in reverse order; it is used
    where it agrees with the coordinates, or where there are none.
    """
    crs = mapping.get("crs_wkt") or mapping.get("spatial_ref")
    if not isinstance(crs, str):
        return {}
    text = mapping.get("GeoTransform", "")
    try:
        c, a, b, f, d, e = map(float, text.split() if isinstance(text, str) else text)
        transform = [a, b, c, d, e, f]
    except ValueError:
        transform = []
    x, y = (_start_and_step(coordinates, axis) for axis in _AXES)
    if transform and (transform[1] or transform[3]):
        rows_are_reversed = y is not None and y[1] * transform[4] < 0
        transform = [] if rows_are_reversed else transform
    elif x and y:
        even = [x[1], 0.0, x[0], 0.0, y[1], y[0]]
        tolerance = _UNEVEN * min(abs(x[1]), abs(y[1]))
        agrees = transform and np.allclose(transform, even, rtol=0, atol=tolerance)
        transform = transform if agrees else even
    return {"crs": _short(crs), "transform": transform} if transform else {}


def to_grid_mapping(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of a CF grid mapping variable, as rioxarray and GDAL write and read them."""
    arguments = to_rasterio(attributes)
    if not arguments:
        return {}
    wkt = _crs(arguments["crs"]).to_wkt()
    numbers = " ".join(map(repr, arguments["transform"].to_gdal()))
    return {"crs_wkt": wkt, "spatial_ref": wkt, "GeoTransform": numbers}


def axis_coordinates(
    attributes: Mapping[str, Any], rows: tuple[str, int], columns: tuple[str, int]
) -> dict[str, Coordinate]:
    """CF coordinates of the pixel centres along the rows and columns, given as (name, length).

    Empty without a georeference, or if the image is rotated or sheared.
    """
    arguments = to_rasterio(attributes)
    if not arguments or arguments["transform"].b or arguments["transform"].d:
        return {}
    a, _, c, _, e, f = arguments["transform"][:6]
    crs = _crs(arguments["crs"])
    standard_names = _STANDARD_NAMES[crs.is_geographic]
    coordinates = {}
    for axis, (name, length), start, step in (("Y", rows, f, e), ("X", columns, c, a)):
        its_attributes = {"axis": axis, "standard_name": standard_names[axis]}
        if crs.is_geographic:
            its_attributes["units"] = {"X": "degrees_east", "Y": "degrees_north"}[axis]
        elif crs.linear_units.lower() in ("metre", "meter"):
            its_attributes["units"] = "m"
        coordinates[name] = start + step * (np.arange(length) + 0.5), its_attributes
    return coordinates


def _crs(text: str) -> Any:
    return import_library("rasterio.crs", "Georeferencing").CRS.from_string(text)


def _short(wkt: str) -> str:
    """The code of a coordinate system, such as EPSG:32633; its WKT if it has none."""
    try:
        return str(_crs(wkt).to_string())
    except (ImportError, ValueError):
        return wkt


def _start_and_step(coordinates: Mapping[str, Coordinate], axis: str) -> tuple[float, float] | None:
    """The outer edge of the first pixel along an axis and the pixel size, if it is constant."""
    for name, (values, attributes) in coordinates.items():
        if attributes.get("axis") != axis and name.lower() not in _AXES[axis]:
            continue
        n = len(values)
        if n > 1 and values[0] != values[-1]:
            step = (float(values[-1]) - float(values[0])) / (n - 1)
            even = values[0] + step * np.arange(n)
            if np.abs(values - even).max() <= _UNEVEN * abs(step):
                return float(values[0]) - step / 2, step
    return None
