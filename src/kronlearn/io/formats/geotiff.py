"""GeoTIFF files, and TIFF files without a georeference, through rasterio."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.conversion import bands_last
from kronlearn.io.formats import georeference, image_folder, import_library
from kronlearn.io.formats.conventions import WAVELENGTH_NAMES
from kronlearn.io.formats.tiff import tiff_file, without_logs, without_warnings
from kronlearn.io.stored import Key, Opened
from kronlearn.io.writers import CubeWriter

__all__ = ["open_file", "save"]

# The side of a tile, and what TIFF requires it to be a multiple of.
_TILE, _TILE_STEP = 256, 16
_LOSSY = ("jpeg", "webp", "jxl")
# Attributes with one entry per band that are tags of the bands, and those that rasterio has as
# properties of the file.
_TAGS = ("fwhm", "bbl")
_PROPERTIES = {
    "band names": "descriptions",
    "data gain values": "scales",
    "data offset values": "offsets",
}


class _Bands:
    """The bands of a file opened by rasterio, as an array (bands, rows, columns)."""

    def __init__(self, file: Any) -> None:
        self.file = file
        # Two threads must not read from one of GDAL's files at once.
        self._lock = threading.Lock()
        self.shape, self.dtype = (file.count, file.height, file.width), file.dtypes[0]
        is_by_pixel = file.interleaving is not None and file.interleaving.name == "pixel"
        self.chunks = (file.count if is_by_pixel else 1, *file.block_shapes[0])
        flags = {flag.name for flag in file.mask_flag_enums[0]}
        self.has_mask = "per_dataset" in flags and not flags & {"nodata", "alpha"}

    def __getitem__(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        window = ((rows.start, rows.stop), (columns.start, columns.stop))
        with self._lock, without_logs():
            return self.file.read(list(range(bands.start + 1, bands.stop + 1)), window=window)

    def mask(self, rows: slice, columns: slice) -> NDArray[np.bool_]:
        """Which pixels are data, according to the mask of the file."""
        _, height, width = self.shape
        window = tuple(part.indices(n)[:2] for part, n in ((rows, height), (columns, width)))
        with self._lock, without_logs():
            return np.asarray(self.file.read_masks(1, window=window) > 0)


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the bands of a GeoTIFF; if a TIFF has several pages, these are the bands."""
    rasterio = import_library("rasterio", f"To read {path}")
    with tiff_file(path):
        # This checks that all pages are complete.
        pass
    with without_logs(), without_warnings():
        file = files.enter_context(rasterio.open(path, driver="GTiff"))
    if len(file.subdatasets) > 1:
        return image_folder.open_file(path, dataset, files)
    bands, wavelengths = _Bands(file), _tagged(file, WAVELENGTH_NAMES)
    specific = {
        "mask of valid pixels": bands.has_mask,
        "ground control points": bool(file.gcps[0]),
        "rational polynomial coefficients": file.rpcs is not None,
    }
    return bands, {
        "nodata": file.nodata,
        "attributes": {**file.tags(), **georeference.from_rasterio(file), **_band_attributes(file)},
        "mask": bands.mask if bands.has_mask else None,
        "format_specific": tuple(name for name, is_there in specific.items() if is_there),
        "wavelengths": None if wavelengths is None else np.array(wavelengths),
        "wavelength_units": file.tags(1).get("wavelength_units"),
        "band_axis": 0,
    }


def save(writer: CubeWriter, path: Path) -> None:
    """Write a GeoTIFF with the layout and tags of the source, or a tiled one."""
    import rasterio

    source = writer.source.thing.file if writer.source.format == "geotiff" else None
    mask = writer.source.mask
    with without_logs(), without_warnings(), rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        with rasterio.open(path, "w", **_profile(writer, source)) as file:
            if source is not None:
                _copy_metadata(source, file)
            else:
                _write_attributes(writer, file)
            for window, bands in _windows(writer, int(file.block_shapes[0][0])):
                file.write(bands, window=window)
                if mask is not None:
                    file.write_mask(mask(*(slice(*part) for part in window)), window=window)
        # GDAL writes most of a file when it closes it, and reports no error if that fails.
        with rasterio.open(path) as file:
            for window, bands in _windows(writer):
                if not np.array_equal(file.read(window=window), bands, equal_nan=True):
                    raise OSError("the values could not be read back")


def _windows(writer: CubeWriter, tile_height: int = 1) -> Iterator[tuple[Any, Any]]:
    """Windows of whole rows of tiles, and their values (bands, rows, columns)."""
    axis = writer.cube.axes[0]
    for key, part in writer.blocks(tile_height):
        window = ((key[axis].start, key[axis].stop), (0, writer.shape[1]))
        yield window, np.moveaxis(bands_last(part, writer.cube.axes), 2, 0)


def _profile(writer: CubeWriter, source: Any) -> dict[str, Any]:
    """GDAL's settings for a new file, from the source if that is a GeoTIFF."""
    rows, columns, bands = writer.shape
    # GDAL writes whole tiles: larger ones would make the file larger than its numbers.
    height, width = (min(_TILE, math.ceil(n / _TILE_STEP) * _TILE_STEP) for n in (rows, columns))
    profile: dict[str, Any] = {"tiled": True, "blockxsize": width, "blockysize": height}
    profile |= {"interleave": "band", **georeference.to_rasterio(writer.source.attributes)}
    if source is not None:
        profile = dict(source.profile)
        if profile.get("compress") in _LOSSY:
            profile["compress"] = "deflate"
            profile.pop("photometric", None)
        structure = source.tags(ns="IMAGE_STRUCTURE")
        if "PREDICTOR" in structure:
            profile["predictor"] = structure["PREDICTOR"]
    profile |= {"driver": "GTiff", "dtype": writer.dtype.name, "nodata": writer.nodata}
    profile |= {"height": rows, "width": columns, "count": bands}
    return profile | {"BIGTIFF": "IF_SAFER", "NUM_THREADS": "ALL_CPUS"}


def _band_attributes(file: Any) -> dict[str, Any]:
    """The attributes with one entry per band, by their names in ENVI headers, and the unit."""
    tagged = {name: _tagged(file, {name}) for name in _TAGS}
    attributes: dict[str, Any] = {k: values for k, values in tagged.items() if values is not None}
    if file.units[0] and len(set(file.units)) == 1:
        attributes["units"] = file.units[0]
    if any(file.descriptions):
        names = enumerate(file.descriptions, 1)
        attributes["band names"] = [name or f"Band {band}" for band, name in names]
    if set(file.scales) != {1.0} or set(file.offsets) != {0.0}:
        attributes["data gain values"] = list(file.scales)
        attributes["data offset values"] = list(file.offsets)
    return attributes


def _tagged(file: Any, names: Collection[str]) -> list[float] | None:
    """The numbers in the tags of the bands with one of these names, if every band has one."""
    numbers: list[float] = []
    for band in range(1, file.count + 1):
        texts = [text for name, text in file.tags(band).items() if name.lower() in names]
        try:
            numbers.append(float(texts[0]))
        except (IndexError, ValueError):
            return None
    return numbers


def _write_attributes(writer: CubeWriter, file: Any) -> None:
    """Write the attributes of a source of another format."""
    cube, per_band = writer.cube, writer.cube.per_band
    attributes = writer.portable_attributes()
    if isinstance(attributes.get("units"), str):
        file.units = [attributes.pop("units")] * file.count
    for name, value in attributes.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str | int | float):
            file.update_tags(**{name: str(text)})
    tags = {name: per_band[name] for name in _TAGS if name in per_band}
    if cube.wavelengths is not None:
        tags["wavelength"] = cube.wavelengths
    units = {} if cube.wavelength_units is None else {"wavelength_units": cube.wavelength_units}
    for band in range(file.count):
        numbers = {name: repr(float(values[band])) for name, values in tags.items()}
        file.update_tags(band + 1, **numbers, **(units if "wavelength" in tags else {}))
    for name, property_name in _PROPERTIES.items():
        if name in per_band:
            setattr(file, property_name, per_band[name].tolist())


def _copy_metadata(source: Any, file: Any) -> None:
    """Copy the tags and properties of the file and its bands, and the ground control points."""
    import rasterio

    for band in range(source.count + 1):
        for namespace in source.tag_namespaces(band):
            if namespace not in ("IMAGE_STRUCTURE", "DERIVED_SUBDATASETS"):
                file.update_tags(band, ns=namespace, **source.tags(band, ns=namespace))
        # Statistics are those of the old numbers.
        tags = {k: v for k, v in source.tags(band).items() if not k.startswith("STATISTICS_")}
        file.update_tags(band, **tags)
    for name in ("descriptions", "scales", "offsets"):
        setattr(file, name, getattr(source, name))
    # A palette is not valid for other numbers.
    if "palette" not in {colour.name for colour in source.colorinterp}:
        file.colorinterp = source.colorinterp
    file.units = [unit or "" for unit in source.units]
    points, crs = source.gcps
    if points:
        file.gcps = points, crs or rasterio.CRS()
