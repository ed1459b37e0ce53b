"""GeoTIFF, and TIFF without a place on Earth, through rasterio."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.conversion import bands_last
from kronlearn.io.formats import georeference, image_folder
from kronlearn.io.formats.conventions import WAVELENGTH_NAMES
from kronlearn.io.formats.tiff import quiet, tiff_file, unwarned
from kronlearn.io.stored import Key, Opened, need
from kronlearn.io.writers import CubeWriter

__all__ = ["open_file", "save"]

_LOSSY = ("jpeg", "webp", "jxl")
# Where lists for the bands are: in tags of the bands, and in properties of rasterio's.
_TAGS = ("fwhm", "bbl")
_PROPERTIES = {"band names": "descriptions", "data gain values": "scales"}
_PROPERTIES["data offset values"] = "offsets"


class _Bands:
    """The bands of a file that rasterio has opened, (bands, rows, columns)."""

    def __init__(self, file: Any) -> None:
        self.file = file
        # GDAL's files must not be read by two threads at once.
        self._lock = threading.Lock()
        self.shape, self.dtype = (file.count, file.height, file.width), file.dtypes[0]
        is_by_pixel = file.interleaving is not None and file.interleaving.name == "pixel"
        self.chunks = (file.count if is_by_pixel else 1, *file.block_shapes[0])
        flags = {flag.name for flag in file.mask_flag_enums[0]}
        self.has_mask = "per_dataset" in flags and not flags & {"nodata", "alpha"}

    def __getitem__(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        window = ((rows.start, rows.stop), (columns.start, columns.stop))
        with self._lock, quiet():
            return self.file.read(list(range(bands.start + 1, bands.stop + 1)), window=window)

    def mask(self, rows: slice, columns: slice) -> NDArray[np.bool_]:
        """Which pixels are data."""
        _, height, width = self.shape
        window = tuple(part.indices(n)[:2] for part, n in ((rows, height), (columns, width)))
        with self._lock, quiet():
            return np.asarray(self.file.read_masks(1, window=window) > 0)


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
    bands, wavelengths = _Bands(file), _tagged(file, WAVELENGTH_NAMES)
    unique = {"mask of valid pixels": bands.has_mask, "ground control points": bool(file.gcps[0])}
    unique["rational polynomial coefficients"] = file.rpcs is not None
    return bands, {
        "nodata": file.nodata,
        "attributes": {**file.tags(), **georeference.of_gdal(file), **_of_bands(file)},
        "mask": bands.mask if bands.has_mask else None,
        "unique": tuple(name for name, there in unique.items() if there),
        "wavelengths": None if wavelengths is None else np.array(wavelengths),
        "wavelength_units": file.tags(1).get("wavelength_units"),
        "band_axis": 0,
    }


def save(writer: CubeWriter, place: Path) -> None:
    """Write a GeoTIFF like the source, or a tiled one if that is something else."""
    import rasterio

    source = writer.source.thing.file if writer.source.format == "geotiff" else None
    mask = writer.source.mask
    with quiet(), unwarned(), rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        with rasterio.open(place, "w", **_profile(writer, source)) as file:
            if source is not None:
                _copy_metadata(source, file)
            else:
                _describe(writer, file)
            for window, bands in _windows(writer, int(file.block_shapes[0][0])):
                file.write(bands, window=window)
                if mask is not None:
                    file.write_mask(mask(*(slice(*part) for part in window)), window=window)
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
    profile |= {"interleave": "band", **georeference.gdal_profile(writer.source.attributes)}
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


def _of_bands(file: Any) -> dict[str, Any]:
    """What the file lists for every band, by the names of ENVI headers, and their unit."""
    found: dict[str, Any] = {
        name: values for name in _TAGS if (values := _tagged(file, {name})) is not None
    }
    if file.units[0] and len(set(file.units)) == 1:
        found["units"] = file.units[0]
    if any(file.descriptions):
        names = enumerate(file.descriptions, 1)
        found["band names"] = [name or f"Band {band}" for band, name in names]
    if set(file.scales) != {1.0} or set(file.offsets) != {0.0}:
        found |= {"data gain values": list(file.scales), "data offset values": list(file.offsets)}
    return found


def _tagged(file: Any, names: Collection[str]) -> list[float] | None:
    """The numbers in a tag of the bands that has one of these names, if every band has one."""
    found: list[float] = []
    for band in range(1, file.count + 1):
        texts = [text for name, text in file.tags(band).items() if name.lower() in names]
        try:
            found.append(float(texts[0]))
        except (IndexError, ValueError):
            return None
    return found


def _describe(writer: CubeWriter, file: Any) -> None:
    """Write what a source of another format says to a new file."""
    cube, lists = writer.cube, writer.cube.per_band
    notes = writer.notes()
    if isinstance(notes.get("units"), str):
        file.units = [notes.pop("units")] * file.count
    for name, value in notes.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str | int | float):
            file.update_tags(**{name: str(text)})
    tags = {name: lists[name] for name in _TAGS if name in lists}
    if cube.wavelengths is not None:
        tags["wavelength"] = cube.wavelengths
    units = {} if cube.wavelength_units is None else {"wavelength_units": cube.wavelength_units}
    for band in range(file.count):
        numbers = {name: repr(float(values[band])) for name, values in tags.items()}
        file.update_tags(band + 1, **numbers, **(units if "wavelength" in tags else {}))
    for name, values in lists.items():
        if name in _PROPERTIES:
            setattr(file, _PROPERTIES[name], values.tolist())


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
    # A palette does not fit other numbers.
    if "palette" not in {meaning.name for meaning in source.colorinterp}:
        file.colorinterp = source.colorinterp
    file.units = [unit or "" for unit in source.units]
    if source.gcps[0]:
        file.gcps = source.gcps
