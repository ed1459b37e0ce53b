"""Zarr, versions 2 and 3, in folders and zip files."""

from __future__ import annotations

import base64
import shutil
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.atomic import remove
from kronlearn.io.formats import georeference
from kronlearn.io.formats.conventions import choose, described
from kronlearn.io.formats.tiff import unwarned
from kronlearn.io.stored import Opened, StoredArray, need
from kronlearn.io.writers import CubeWriter

__all__ = ["check_replaceable", "is_store", "known", "open_file", "save"]


def known(array: Any, siblings: dict[str, Any]) -> dict[str, Any]:
    """What a store says about an array; one of its siblings may hold the wavelengths."""
    attributes = array.attrs.asdict()
    names = attributes.pop("_ARRAY_DIMENSIONS", None)
    if array.metadata.zarr_format == 3:
        names = array.metadata.dimension_names
    elif names is not None and array.fill_value is not None:
        # In version 2 this is where xarray keeps it; elsewhere it says nothing about data.
        attributes.setdefault("_FillValue", array.fill_value.item())
    axes = None if not names else [str(name or "") for name in names]
    return described(array.path or None, array, attributes, axes, siblings)


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array of a Zarr store in a folder or a zip file."""
    zarr = need("zarr", f"To read {path}")
    # Zarr warns of other files in the folder, and of types that are not in its standard yet.
    with unwarned():
        store: Any = path
        if path.is_file():
            store = zarr.storage.ZipStore(path, mode="r", read_only=True)
            files.callback(store.close)
        found = zarr.open(store, mode="r")
        arrays: dict[str, Any] = {}
        if hasattr(found, "members"):
            members = sorted(found.members(max_depth=None), key=lambda member: str(member[0]))
            arrays = {name: member for name, member in members if not hasattr(member, "members")}
            found = arrays[choose(str(path), arrays, dataset)]
        return found, known(found, arrays)


def is_store(folder: Path) -> bool:
    """Whether a folder is a Zarr store."""
    return any((folder / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def check_replaceable(folder: Path) -> None:
    """Raise if a folder that is to be replaced is not a Zarr store."""
    if any(folder.iterdir()) and not is_store(folder):
        raise FileExistsError(
            f"{folder} is a folder that is not a Zarr store; give another name or remove it."
        )


def save(writer: CubeWriter, place: Path) -> None:
    """Write a store like the source, or a new one of version 3; a zip file where that is named."""
    is_zip = writer.path.suffix.lower() == ".zip"
    folder = place.with_suffix(".folder") if is_zip else place
    source: Any = writer.source
    is_copy = source.format == "zarr" and source.path is not None and writer.is_alike
    try:
        array = _copied(source, folder) if is_copy else _new(writer, folder)
        for key, part in writer.blocks(array.shards or array.chunks):
            array[key] = writer.packed(part, np.dtype(array.dtype)) if is_copy else part
        if is_zip:
            shutil.make_archive(str(place.with_suffix("")), "zip", folder)
            remove(folder)
    except BaseException:
        # Zarr's threads may still be writing to it after an error.
        for _ in range(5):
            remove(folder)
            time.sleep(0.02)
        raise


def _copied(source: StoredArray, folder: Path) -> Any:
    """The array in a copy of its store."""
    import zarr

    path = Path(str(source.path))
    if path.is_dir():
        shutil.copytree(path, folder)
    else:
        shutil.unpack_archive(path, folder, "zip")
    return zarr.open_array(folder, path=source.dataset or "", mode="r+")


def _new(writer: CubeWriter, folder: Path) -> Any:
    """The array in a new store, with its attributes and coordinates."""
    import zarr

    source, coordinates, nodata = writer.source, writer.coordinates(), writer.nodata
    attributes, mapping = writer.attributes(), georeference.grid_mapping(source.attributes)
    if coordinates or mapping:
        group = zarr.create_group(folder)
        for label, (values, notes) in coordinates.items():
            group.create_array(label, data=values, attributes=notes, dimension_names=(label,))
    if mapping:
        group.create_array("spatial_ref", data=np.array(0), attributes={**mapping})
        attributes["grid_mapping"] = "spatial_ref"
    if nodata is not None and writer.dtype.kind == "f":
        # xarray's form, in which NaN is possible.
        attributes["_FillValue"] = base64.b64encode(struct.pack("<d", nodata)).decode("ascii")
    elif nodata is not None:
        attributes["_FillValue"] = int(nodata)
    return zarr.create_array(
        folder,
        name=source.dataset or "cube" if coordinates or mapping else None,
        shape=source.shape,
        dtype=writer.dtype,
        attributes=attributes,
        dimension_names=writer.axis_names(),
    )
