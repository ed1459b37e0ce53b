"""GeoTIFF, and TIFF without a place on Earth, through rasterio."""

from __future__ import annotations

import errno
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import image_folder
from kronlearn.io.formats.conventions import WAVELENGTH_NAMES
from kronlearn.io.formats.tiff import check_tiff, quiet, unwarned
from kronlearn.io.stored import Key, StoredArray, StoredArrayError, holds_one_array, need
from kronlearn.io.writers import Target, blocks

__all__ = ["GeoTiffArray", "open_file", "prepare", "save"]

_LOSSY = ("jpeg", "webp", "jxl")


class GeoTiffArray(StoredArray):
    """The bands of a GeoTIFF, (bands, rows, columns)."""

    format = "geotiff"

    def __init__(self, path: Path, file: Any) -> None:
        self.file = file
        # GDAL's files must not be read by two threads at once.
        self._lock = threading.Lock()
        if len(set(file.dtypes)) > 1:
            raise StoredArrayError(
                f"{path} has bands of several types ({', '.join(sorted(set(file.dtypes)))}); all "
                "must have the same."
            )
        rows, columns = file.block_shapes[0]
        together = file.interleaving is not None and file.interleaving.name == "pixel"
        super().__init__(
            str(path),
            (file.count, file.height, file.width),
            np.dtype(file.dtypes[0]),
            path=path,
            chunks=(file.count if together else 1, rows, columns),
            nodata=file.nodata,
            attributes={**file.tags(), **_place(file)},
            wavelengths=_wavelengths(file),
            band_axis=0,
        )

    def _read(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        with self._lock, quiet():
            return np.asarray(
                self.file.read(
                    list(range(bands.start + 1, bands.stop + 1)),
                    window=((rows.start, rows.stop), (columns.start, columns.stop)),
                )
            )


def open_file(path: Path, dataset: str | None) -> StoredArray:
    """The array of a GeoTIFF; the pages of a TIFF that has several are its bands."""
    holds_one_array(path, dataset)
    rasterio = need("rasterio", f"To read {path}")
    check_tiff(path)
    with ExitStack() as resources:
        with quiet(), unwarned():
            file = resources.enter_context(rasterio.open(path, driver="GTiff"))
        if len(file.subdatasets) > 1:
            return image_folder.open_file(path, None)
        if file.count == 0:
            raise StoredArrayError(f"{path} has no bands.")
        array = GeoTiffArray(path, file)
        array.keep(resources)
        return array


def prepare(target: Target) -> tuple[np.dtype[Any], bytes]:
    """The dtype in which rows are collected, and what stands before them."""
    rasterio = need("rasterio", f"To write {target.path}")
    if not rasterio.dtypes.check_dtype(target.out_dtype.name) or target.out_dtype == np.bool_:
        raise ValueError(f"{target.path}: TIFF files hold no {target.out_dtype} numbers.")
    return target.out_dtype, b""


def save(target: Target, values: np.memmap[Any, Any], place: Path) -> None:
    """Write a GeoTIFF like the source, or a tiled one if that is something else."""
    import rasterio

    source = target.source.file if isinstance(target.source, GeoTiffArray) else None
    bands = target.bands_first(values)
    with quiet(), unwarned():
        with rasterio.open(place, "w", **_profile(target, source)) as file:
            if source is not None:
                _copy_metadata(source, file)
            elif target.cube.wavelengths is not None:
                for band, wavelength in enumerate(target.cube.wavelengths, 1):
                    file.update_tags(band, wavelength=repr(float(wavelength)))
            for (_, *window), part in blocks(bands, 1, int(file.block_shapes[0][0])):
                file.write(part, window=tuple((p.start, p.stop) for p in window))
        # GDAL writes most when it closes a file, and does not tell when that fails.
        with rasterio.open(place) as file:
            for (_, *window), part in blocks(bands, 1):
                found = file.read(window=tuple((p.start, p.stop) for p in window))
                if not np.array_equal(found, part, equal_nan=True):
                    raise OSError(errno.EIO, "what was written cannot be read again")


def _profile(target: Target, source: Any) -> dict[str, Any]:
    """What GDAL is told about a new file: what it says about the source, if that is one."""
    profile: dict[str, Any] = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    profile["interleave"] = "band"
    if source is not None:
        profile = dict(source.profile)
        if profile.get("compress") in _LOSSY:
            profile["compress"] = "deflate"
            profile.pop("photometric", None)
        structure = source.tags(ns="IMAGE_STRUCTURE")
        if "PREDICTOR" in structure and target.dtype is None:
            profile["predictor"] = structure["PREDICTOR"]
    rows, columns, bands = target.cube.shape
    profile |= {"driver": "GTiff", "dtype": target.out_dtype.name, "nodata": target.nodata}
    profile |= {"height": rows, "width": columns, "count": bands}
    return profile | {"BIGTIFF": "IF_SAFER", "NUM_THREADS": "ALL_CPUS"}


def _place(file: Any) -> dict[str, Any]:
    """Where on Earth the pixels are, in plain types."""
    if file.crs is None:
        return {}
    return {"crs": file.crs.to_string(), "transform": list(file.transform)[:6]}


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


def _copy_metadata(source: Any, file: Any) -> None:
    """Tags, descriptions, units, scales and colours of all bands, and ground control points."""
    for band in range(source.count + 1):
        for namespace in source.tag_namespaces(band):
            if namespace not in ("IMAGE_STRUCTURE", "DERIVED_SUBDATASETS"):
                file.update_tags(band, ns=namespace, **source.tags(band, ns=namespace))
        # The numbers are new ones.
        tags = {k: v for k, v in source.tags(band).items() if not k.startswith("STATISTICS_")}
        file.update_tags(band, **tags)
    for band in range(1, source.count + 1):
        if source.descriptions[band - 1]:
            file.set_band_description(band, source.descriptions[band - 1])
        if source.units[band - 1]:
            file.set_band_unit(band, source.units[band - 1])
    file.scales, file.offsets = source.scales, source.offsets
    points, crs = source.gcps
    if points:
        file.gcps = (points, crs)
