"""GeoTIFF, and TIFF without a place on Earth, through rasterio."""

from __future__ import annotations

import contextlib
import errno
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.naming import wavelengths_among
from kronlearn.io.formats.outputs import ArrayWriter, Plan
from kronlearn.io.stored import Key, StoredArray, StoredArrayError, need

__all__ = ["GeoTiffArray", "create", "open_file"]
DESCRIPTION = "a TIFF file"

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
        with self._lock:
            return np.asarray(
                self.file.read(
                    list(range(bands.start + 1, bands.stop + 1)),
                    window=((rows.start, rows.stop), (columns.start, columns.stop)),
                )
            )


def open_file(path: Path, dataset: str | None) -> StoredArray:
    """The array of a GeoTIFF; the pages of a TIFF that has several are its bands."""
    if dataset is not None:
        raise StoredArrayError(f"{path} holds one array; leave out dataset={dataset!r}.")
    rasterio = need("rasterio", f"To read {path}")
    _check_directories(path)
    file = _opened(rasterio, path)
    if len(file.subdatasets) > 1:
        from kronlearn.io.formats.image_folder import open_pages

        file.close()
        return open_pages(path)
    if file.count == 0:
        raise StoredArrayError(f"{path} has no bands.")
    return GeoTiffArray(path, file)


def create(target: Path, plan: Plan) -> _GeoTiffWriter:
    """A writer of a GeoTIFF like the source, or tiled if that is something else."""
    return _GeoTiffWriter(target, plan, need("rasterio", f"To write {target}"))


class _GeoTiffWriter(ArrayWriter):
    def __init__(self, target: Path, plan: Plan, rasterio: Any) -> None:
        super().__init__(target, ("band", "row", "column"))
        self._rasterio = rasterio
        self.dtype = plan.out_dtype
        self._written: list[tuple[Any, int]] = []
        self._file: Any = None
        source = plan.source.file if isinstance(plan.source, GeoTiffArray) else None
        try:
            with _quiet(rasterio):
                self._file = rasterio.open(self.temporary, "w", **_profile(plan, source))
            self.row_step = int(self._file.block_shapes[0][0])
            if source is not None:
                _copy_metadata(source, self._file)
            elif plan.wavelengths is not None:
                for band, wavelength in enumerate(plan.wavelengths, 1):
                    self._file.update_tags(band, wavelength=repr(float(wavelength)))
        except BaseException as problem:
            self.remove()
            is_refusal = isinstance(problem, ValueError | TypeError | rasterio.errors.RasterioError)
            if is_refusal and not isinstance(problem, OSError):
                reason = f"{target} could not be created as a GeoTIFF: {problem}."
                raise ValueError(reason) from problem
            raise

    def write(self, key: Key, values: NDArray[Any]) -> None:
        """Write rows of all bands."""
        window = ((key[1].start, key[1].stop), (0, values.shape[2]))
        self._file.write(values, window=window)
        self._written.append((window, _checksum(values)))

    def finish(self) -> None:
        """Close the file and read it again.

        GDAL writes most when it closes a file, and does not tell when that fails.
        """
        self.release()
        with _opened(self._rasterio, self.temporary) as file:
            for window, checksum in self._written:
                if _checksum(file.read(window=window)) != checksum:
                    raise OSError(errno.EIO, "what was written cannot be read again")

    def release(self) -> None:
        """Close the file, which writes what GDAL still holds."""
        if self._file is not None:
            self._file.close()


def _profile(plan: Plan, source: Any) -> dict[str, Any]:
    """What GDAL is told about a new file: what it says about the source, if that is one."""
    profile: dict[str, Any] = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    profile["interleave"] = "band"
    if source is not None:
        profile = dict(source.profile)
        if profile.get("compress") in _LOSSY:
            profile["compress"] = "deflate"
            profile.pop("photometric", None)
        structure = source.tags(ns="IMAGE_STRUCTURE")
        if "PREDICTOR" in structure and plan.dtype is None:
            profile["predictor"] = structure["PREDICTOR"]
    rows, columns, bands = plan.shape
    profile |= {"driver": "GTiff", "dtype": plan.out_dtype.name, "nodata": plan.nodata}
    profile |= {"height": rows, "width": columns, "count": bands}
    return profile | {"BIGTIFF": "IF_SAFER", "NUM_THREADS": "ALL_CPUS"}


def _check_directories(path: Path) -> None:
    """Raise if the list of the images in a file leads out of it, where readers just stop."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(16).ljust(16, b"\0")
        if start[:2] not in (b"II", b"MM"):
            raise StoredArrayError(f"{path} is not a TIFF file.")
        order = "<" if start[:2] == b"II" else ">"
        is_big = struct.unpack_from(order + "H", start, 2)[0] == 43
        count, entry, link = ("Q", 20, "Q") if is_big else ("H", 12, "I")
        (place,) = struct.unpack_from(order + link, start, 8 if is_big else 4)
        seen: set[int] = set()
        while place != 0 and place not in seen:
            seen.add(place)
            file.seek(place)
            try:
                (entries,) = struct.unpack(order + count, file.read(struct.calcsize(count)))
                file.seek(place + struct.calcsize(count) + entries * entry)
                (place,) = struct.unpack(order + link, file.read(struct.calcsize(link)))
            except (struct.error, OverflowError, OSError):
                raise StoredArrayError(
                    f"{path} is cut off: it has {size} bytes, and a list of contents at byte "
                    f"{place} that is not in it."
                ) from None


def _checksum(values: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).tobytes())


def _opened(rasterio: Any, path: Path) -> Any:
    with _quiet(rasterio):
        return rasterio.open(path, driver="GTiff")


@contextlib.contextmanager
def _quiet(rasterio: Any) -> Iterator[None]:
    """Without the warning that a file has no place on Earth; not every cube has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        yield


def _place(file: Any) -> dict[str, Any]:
    """Where on Earth the pixels are, in plain types."""
    if file.crs is None:
        return {}
    return {"crs": file.crs.to_string(), "transform": list(file.transform)[:6]}


def _wavelengths(file: Any) -> NDArray[np.float64] | None:
    """The wavelengths among the tags of the bands, if every band has one."""
    found: list[float] = []
    for band in range(1, file.count + 1):
        try:
            tags = {name.lower(): np.array([float(v)]) for name, v in _numeric(file.tags(band))}
        except ValueError:
            return None
        wavelength = wavelengths_among(tags)
        if wavelength is None:
            return None
        found.append(float(wavelength[0]))
    return np.array(found)


def _numeric(tags: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, text) for name, text in tags.items() if "wavelength" in name.lower()]


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
