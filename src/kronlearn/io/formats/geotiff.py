"""GeoTIFF, and TIFF without a place on Earth, through rasterio."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.conversion import bands_last
from kronlearn.io.formats import image_folder
from kronlearn.io.formats.conventions import WAVELENGTH_NAMES
from kronlearn.io.formats.tiff import quiet, tiff_file, unwarned
from kronlearn.io.stored import Key, Opened, need
from kronlearn.io.writers import CubeWriter

__all__ = ["envi_fields", "open_file", "place_of", "save"]

_LOSSY = ("jpeg", "webp", "jxl")


class _Bands:
    """The bands of a file that rasterio has opened, (bands, rows, columns)."""

    def __init__(self, file: Any) -> None:
        self.file = file
        # GDAL's files must not be read by two threads at once.
        self._lock = threading.Lock()
        self.shape, self.dtype = (file.count, file.height, file.width), file.dtypes[0]
        is_by_pixel = file.interleaving is not None and file.interleaving.name == "pixel"
        self.chunks = (file.count if is_by_pixel else 1, *file.block_shapes[0])

    def __getitem__(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        window = ((rows.start, rows.stop), (columns.start, columns.stop))
        with self._lock, quiet():
            return self.file.read(list(range(bands.start + 1, bands.stop + 1)), window=window)


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array of a GeoTIFF; the pages of a TIFF that has several are its bands."""
    rasterio = need("rasterio", f"To read {path}")
    with tiff_file(path):
        # Its pages are all there.
        pass
    with quiet(), unwarned():
        file = files.enter_context(rasterio.open(path, driver="GTiff"))
    if len(file.subdatasets) > 1:
        return image_folder.open_file(path, dataset, files)
    return _Bands(file), {
        "nodata": file.nodata,
        "attributes": {**file.tags(), **_place(file)},
        "wavelengths": _wavelengths(file),
        "wavelength_units": file.tags(1).get("wavelength_units"),
        "band_axis": 0,
    }


def place_of(path: Path) -> dict[str, Any]:
    """Where on Earth the pixels of an ENVI file are, as GDAL reads it; nothing without rasterio."""
    try:
        import rasterio

        with quiet(), unwarned(), rasterio.open(path, driver="ENVI") as file:
            return _place(file)
    except (ImportError, OSError):
        return {}


def envi_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an ENVI header for the place on Earth that attributes name, if they do."""
    place = _placing(attributes)
    if not place or place["transform"].b or place["transform"].d:
        return {}
    a, _, c, _, e, f = place["transform"][:6]
    system = need("rasterio.crs", "Georeferencing").CRS.from_string(place["crs"])
    return {
        "map info": ["Arbitrary", 1, 1, c, f, a, -e],
        "coordinate system string": f"{{{system.to_wkt(version='WKT1_ESRI')}}}",
    }


def save(writer: CubeWriter, place: Path) -> None:
    """Write a GeoTIFF like the source, or a tiled one if that is something else."""
    import rasterio

    source = writer.source.thing.file if writer.source.format == "geotiff" else None
    with quiet(), unwarned():
        with rasterio.open(place, "w", **_profile(writer, source)) as file:
            if source is not None:
                _copy_metadata(source, file)
            elif writer.cube.wavelengths is not None:
                _write_wavelengths(writer, file)
            for window, bands in _windows(writer, int(file.block_shapes[0][0])):
                file.write(bands, window=window)
        # GDAL writes most when it closes a file, and does not tell when that fails.
        with rasterio.open(place) as file:
            for window, bands in _windows(writer):
                if not np.array_equal(file.read(window=window), bands, equal_nan=True):
                    raise OSError("the values could not be read back")


def _windows(writer: CubeWriter, height: int = 1) -> Iterator[tuple[Any, Any]]:
    """Windows of whole rows, a multiple of so many of them, and what is in them, bands first."""
    axis = writer.cube.axes[0]
    for key, part in writer.blocks((height,) * writer.source.ndim):
        window = ((key[axis].start, key[axis].stop), (0, writer.shape[1]))
        yield window, np.moveaxis(bands_last(part, writer.cube.axes), 2, 0)


def _profile(writer: CubeWriter, source: Any) -> dict[str, Any]:
    """What GDAL is told about a new file: what it says about the source, if that is one."""
    profile: dict[str, Any] = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    profile |= {"interleave": "band", **_placing(writer.source.attributes)}
    if source is not None:
        profile = dict(source.profile)
        if profile.get("compress") in _LOSSY:
            profile["compress"] = "deflate"
            profile.pop("photometric", None)
        structure = source.tags(ns="IMAGE_STRUCTURE")
        if "PREDICTOR" in structure:
            profile["predictor"] = structure["PREDICTOR"]
    rows, columns, bands = writer.shape
    profile |= {"driver": "GTiff", "dtype": writer.dtype.name, "nodata": writer.nodata}
    profile |= {"height": rows, "width": columns, "count": bands}
    return profile | {"BIGTIFF": "IF_SAFER", "NUM_THREADS": "ALL_CPUS"}


def _place(file: Any) -> dict[str, Any]:
    """Where on Earth the pixels are, in plain types."""
    if file.crs is None:
        return {}
    return {"crs": file.crs.to_string(), "transform": list(file.transform)[:6]}


def _placing(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What GDAL is told of the place that attributes name."""
    if not isinstance(attributes.get("crs"), str) or len(attributes.get("transform", ())) < 6:
        return {}
    from rasterio import Affine

    return {"crs": attributes["crs"], "transform": Affine(*attributes["transform"][:6])}


def _wavelengths(file: Any) -> NDArray[np.float64] | None:
    """The wavelengths among the tags of the bands, if every band has one."""
    found: list[float] = []
    for band in range(1, file.count + 1):
        texts = [v for name, v in file.tags(band).items() if name.lower() in WAVELENGTH_NAMES]
        try:
            found.append(float(texts[0]))
        except (IndexError, ValueError):
            return None
    return np.array(found)


def _write_wavelengths(writer: CubeWriter, file: Any) -> None:
    units = writer.cube.wavelength_units
    tags = {} if units is None else {"wavelength_units": units}
    for band, wavelength in enumerate(writer.cube.wavelengths, 1):  # type: ignore[arg-type]
        file.update_tags(band, wavelength=repr(float(wavelength)), **tags)


def _copy_metadata(source: Any, file: Any) -> None:
    """Tags, descriptions, units, scales and colours of all bands, and ground control points."""
    for band in range(source.count + 1):
        for namespace in source.tag_namespaces(band):
            if namespace not in ("IMAGE_STRUCTURE", "DERIVED_SUBDATASETS"):
                file.update_tags(band, ns=namespace, **source.tags(band, ns=namespace))
        # The numbers are new ones.
        tags = {k: v for k, v in source.tags(band).items() if not k.startswith("STATISTICS_")}
        file.update_tags(band, **tags)
    for name in ("descriptions", "scales", "offsets"):
        setattr(file, name, getattr(source, name))
    file.units = [unit or "" for unit in source.units]
    if source.gcps[0]:
        file.gcps = source.gcps
