"""Zarr stores, versions 2 and 3, in folders and zip files."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.io.atomic import remove
from kronlearn.io.formats import georeference, import_library
from kronlearn.io.formats.conventions import choose, describe
from kronlearn.io.formats.tiff import without_warnings
from kronlearn.io.stored import Opened, StoredArray
from kronlearn.io.writers import CubeWriter

__all__ = ["check_replaceable", "describe_array", "is_store", "open_file", "save"]


def describe_array(array: Any, siblings: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a StoredArray for an array of a store, given all arrays of the store."""
    attributes = array.attrs.asdict()
    names = attributes.pop("_ARRAY_DIMENSIONS", None)
    if array.metadata.zarr_format == 3:
        names = array.metadata.dimension_names
    elif names is not None and array.fill_value is not None:
        # In xarray's stores of version 2, the fill value marks missing data; in others it does not.
        attributes.setdefault("_FillValue", array.fill_value.item())
    axes = None if not names else [str(name or "") for name in names]
    return describe(array.path or None, array, attributes, axes, siblings)


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the array in a Zarr store, which is a folder or a zip file."""
    zarr = import_library("zarr", f"To read {path}")
    # Zarr warns of other files in the folder, and of types that its standard does not have yet.
    with without_warnings():
        store: Any = path
        if path.is_file():
            store = zarr.storage.ZipStore(path, mode="r", read_only=True)
            files.callback(store.close)
        array = zarr.open(store, mode="r")
        arrays: dict[str, Any] = {}
        if hasattr(array, "members"):
            members = sorted(array.members(max_depth=None), key=lambda member: str(member[0]))
            arrays = {name: member for name, member in members if not hasattr(member, "members")}
            array = arrays[choose(str(path), arrays, dataset)]
        return array, describe_array(array, arrays)


def is_store(folder: Path) -> bool:
    """Whether a folder is a Zarr store."""
    return any((folder / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def check_replaceable(folder: Path) -> None:
    """Raise if a folder holds anything but a Zarr store."""
    if any(folder.iterdir()) and not is_store(folder):
        raise FileExistsError(
            f"{folder} is a folder that is not a Zarr store; give another name or remove it."
        )


def save(writer: CubeWriter, path: Path) -> None:
    """Write a copy of the source with new values in its array, or a new store of version 3."""
    folder = path if writer.is_folder else path.with_suffix(".folder")
    source: Any = writer.source
    is_copy = source.format == "zarr" and source.path is not None and writer.keeps_dtype
    try:
        array = _copied(source, folder) if is_copy else _new(writer, folder)
        chunk_height = (array.shards or array.chunks)[writer.cube.axes[0]]
        for key, part in writer.blocks(chunk_height):
            array[key] = writer.packed(part, np.dtype(array.dtype)) if is_copy else part
        if not writer.is_folder:
            # The archive is named .zip even where the path ends in .ZIP.
            os.rename(shutil.make_archive(str(path.with_suffix("")), "zip", folder), path)
            remove(folder)
    except BaseException:
        # After an error, threads of Zarr may still be writing to the folder.
        for _ in range(5):
            remove(folder)
            time.sleep(0.02)
        raise


def _copied(source: StoredArray, folder: Path) -> Any:
    """The array in a copy of the store of the source."""
    import zarr

    path = Path(str(source.path))
    if path.is_dir():
        shutil.copytree(path, folder)
    else:
        shutil.unpack_archive(path, folder, "zip")
    return zarr.open_array(folder, path=source.dataset or "", mode="r+")


def _new(writer: CubeWriter, folder: Path) -> Any:
    """The array in a new store, with attributes and coordinates."""
    import zarr

    source, coordinates, nodata = writer.source, writer.coordinates(), writer.nodata
    attributes, mapping = writer.attributes(), georeference.to_grid_mapping(source.attributes)
    if coordinates or mapping:
        group = zarr.create_group(folder)
        for name, (values, its_attributes) in coordinates.items():
            group.create_array(
                name, data=values, attributes=its_attributes, dimension_names=(name,)
            )
    if mapping:
        group.create_array("spatial_ref", data=np.array(0), attributes={**mapping})
        attributes["grid_mapping"] = "spatial_ref"
    if nodata is not None and writer.dtype.kind == "f":
        # As xarray encodes floats, since JSON has no NaN.
        attributes["_FillValue"] = base64.b64encode(struct.pack("<d", nodata)).decode("ascii")
    elif nodata is not None:
        attributes["_FillValue"] = int(nodata)
    return zarr.create_array(
        folder,
        name=writer.dataset if coordinates or mapping else None,
        shape=source.shape,
        dtype=writer.dtype,
        attributes=attributes,
        dimension_names=writer.axis_names(),
    )
