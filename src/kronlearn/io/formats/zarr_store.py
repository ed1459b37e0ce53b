"""Zarr, versions 2 and 3, in folders and zip files."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.copies import CopyWriter
from kronlearn.io.formats.naming import choose, plain, wavelengths_among
from kronlearn.io.formats.outputs import Plan, axis_names, beside
from kronlearn.io.formats.packing import NOT_KEPT, declared_nodata, packing_of
from kronlearn.io.stored import Key, StoredArray, StoredArrayError, need

__all__ = ["ZarrArray", "check_replaceable", "create", "open_file", "open_group"]

DESCRIPTION = "a Zarr store"

# The files of an array or group that are not its numbers.
_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
_REMOVALS = 10


class ZarrArray(StoredArray):
    """An array of a Zarr store.

    Parameters
    ----------
    array : zarr.Array
    path : Path, optional
        Of the store, where it was opened by its path.
    siblings : dict of zarr.Array
        Other arrays of the group; one may hold the wavelengths.
    """

    format = "zarr"

    def __init__(
        self, array: Any, path: Path | None = None, siblings: dict[str, Any] | None = None
    ) -> None:
        self.array = array
        attributes = plain(array.attrs.asdict())
        names = attributes.pop("_ARRAY_DIMENSIONS", None)
        if array.metadata.zarr_format == 3:
            names = array.metadata.dimension_names
        elif names is not None and array.fill_value is not None:
            # In version 2 this is where xarray keeps it; elsewhere it says nothing about data.
            attributes.setdefault("_FillValue", array.fill_value.item())
        root = getattr(array.store, "root", None)
        if path is None and isinstance(root, Path):
            # An array of a folder is opened again in other processes, wherever they work.
            path = Path(os.path.abspath(root))
        label = str(path) if path is not None else f"zarr.Array {array.store_path}"
        dtype = np.dtype(array.dtype)
        self.packing = packing_of(label, attributes, dtype)
        nodata = declared_nodata(label, attributes, dtype)
        longest = max(array.shape, default=0)
        vectors = {k: v for k, v in (siblings or {}).items() if v.ndim == 1 and v.size <= longest}
        super().__init__(
            label,
            array.shape,
            dtype if self.packing is None else self.packing.dtype,
            path=path,
            dataset=array.path or None,
            chunks=array.shards or array.chunks,
            nodata=nodata if self.packing is None or nodata is None else float("nan"),
            attributes=attributes,
            axes=None if not names else tuple(str(name or "") for name in names),
            wavelengths=wavelengths_among({k: v[...] for k, v in vectors.items()}),
        )

    def _read(self, key: Key) -> NDArray[Any]:
        values = np.asarray(self.array[key])
        return values if self.packing is None else self.packing.unpack(values)


def open_file(path: Path, dataset: str | None) -> ZarrArray:
    """The array of a Zarr store in a folder or a zip file."""
    zarr = need("zarr", f"To read {path}")
    with warnings.catch_warnings():
        # Zarr warns of other files in the folder, and of types that are not in its standard yet.
        warnings.simplefilter("ignore")
        store: Any = path
        if path.is_file():
            store = zarr.storage.ZipStore(path, mode="r", read_only=True)
        found = zarr.open(store, mode="r")
        if not hasattr(found, "members"):
            if dataset is not None:
                raise StoredArrayError(f"{path} holds one array; leave out dataset={dataset!r}.")
            return ZarrArray(found, path)
        arrays = _arrays(found)
        name = choose(str(path), arrays, dataset)
        return ZarrArray(arrays[name], path, arrays)


def open_group(group: Any, dataset: str | None) -> ZarrArray:
    """The array of a group that is open already."""
    arrays = _arrays(group)
    name = choose(f"The zarr.Group {group.store_path}", arrays, dataset)
    return ZarrArray(arrays[name], siblings=arrays)


def check_replaceable(target: Path) -> None:
    """Raise if a folder that is to be replaced is not a Zarr store."""
    if any(target.iterdir()) and not any((target / name).exists() for name in _METADATA):
        raise FileExistsError(
            f"{target} is a folder that is not a Zarr store; give another name or remove it."
        )


def create(target: Path, plan: Plan) -> _ZarrWriter:
    """A writer of a Zarr store like the source, or of a new one of version 3."""
    return _ZarrWriter(target, plan, need("zarr", f"To write {target}"))


class _ZarrWriter(CopyWriter):
    """Writes into a folder, which becomes a zip file at the end where that is wanted."""

    def __init__(self, target: Path, plan: Plan, zarr: Any) -> None:
        super().__init__(target, plan)
        self._zarr = zarr
        self._is_complete = False
        self._folder = self.temporary
        if target.suffix.lower() == ".zip":
            self._folder = beside(target.with_suffix(".zarr"))
        source = plan.source
        try:
            if isinstance(source, ZarrArray) and source.path is not None:
                self.is_copy = True
                self.array = self._copy(source, plan)
            else:
                self.array = self._new(plan)
        except BaseException:
            self.remove()
            raise
        self.row_step = self.step_of(self.array.shards or self.array.chunks)

    @property
    def places(self) -> list[Path]:
        """The folder also where it becomes a zip file."""
        return [self._folder, self.temporary]

    def release(self) -> None:
        """Nothing is kept open."""

    def remove(self) -> None:
        """Remove the folder, also what Zarr's threads are still writing to it after an error."""
        super().remove()
        for _ in range(0 if self._is_complete else _REMOVALS):
            time.sleep(0.02)
            super().remove()

    def finish(self) -> None:
        """Put the folder into a zip file, if that is what is wanted."""
        self._is_complete = True
        if self._folder == self.temporary:
            return
        # Chunks are compressed already.
        with zipfile.ZipFile(self.temporary, "x", zipfile.ZIP_STORED) as archive:
            for file in sorted(self._folder.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(self._folder).as_posix())

    def _copy(self, source: ZarrArray, plan: Plan) -> Any:
        """A copy of the store without the numbers of the array."""
        inside = source.dataset or ""
        _copy_metadata(Path(str(source.path)), self._folder, inside)
        old = source.array
        if plan.dtype is None:
            self.packing = source.packing
            return self._zarr.open_array(self._folder, path=inside, mode="r+")
        attributes = {k: v for k, v in old.attrs.asdict().items() if k not in NOT_KEPT}
        array = self._create(
            inside,
            plan,
            attributes,
            old.metadata.zarr_format,
            shape=old.shape,
            chunks=old.chunks,
            shards=old.shards,
            compressors=old.compressors or None,
            dimension_names=getattr(old.metadata, "dimension_names", None),
        )
        self._consolidate()
        return array

    def _consolidate(self) -> None:
        """Bring the metadata that a group keeps of its arrays up to date."""
        with warnings.catch_warnings():
            # Zarr warns that version 3 does not have this yet; the source has it all the same.
            warnings.simplefilter("ignore")
            top = self._zarr.open(self._folder, mode="r+")
            if getattr(top.metadata, "consolidated_metadata", None) is not None:
                self._zarr.consolidate_metadata(self._folder)

    def _new(self, plan: Plan) -> Any:
        source = plan.source
        labels = axis_names(plan, self.order)
        coordinates = {n: source.coordinates[n] for n in labels if n in source.coordinates}
        if plan.wavelengths is not None and "band" in self.order:
            coordinates.setdefault(labels[self.order.index("band")], plan.wavelengths)
        name = source.dataset or "cube" if coordinates else ""
        if coordinates:
            group = self._zarr.create_group(self._folder)
            for label, values in coordinates.items():
                array = group.create_array(
                    label, shape=values.shape, dtype=values.dtype, dimension_names=(label,)
                )
                array[:] = values
        attributes = {k: v for k, v in source.attributes.items() if k not in NOT_KEPT}
        shape = tuple(plan.length(axis) for axis in self.order)
        return self._create(name, plan, attributes, 3, shape=shape, dimension_names=labels)

    def _create(
        self, name: str, plan: Plan, attributes: dict[str, Any], version: int, **more: Any
    ) -> Any:
        nodata = plan.nodata
        if nodata is not None and version == 2 and "_ARRAY_DIMENSIONS" in attributes:
            more["fill_value"] = nodata
        elif nodata is not None and self.dtype.kind == "f":
            # xarray's form, in which NaN is possible.
            text = base64.b64encode(struct.pack("<d", nodata))
            attributes = attributes | {"_FillValue": text.decode("ascii")}
        elif nodata is not None:
            attributes = attributes | {"_FillValue": int(nodata)}
        return self._zarr.create_array(
            self._folder,
            name=name or None,
            dtype=self.dtype,
            attributes=attributes,
            zarr_format=version,
            overwrite=True,
            **more,
        )


def _arrays(group: Any) -> dict[str, Any]:
    members = sorted(group.members(max_depth=None), key=lambda member: str(member[0]))
    return {name: member for name, member in members if not hasattr(member, "members")}


def _copy_metadata(store: Path, folder: Path, inside: str) -> None:
    """Copy a store but for the numbers of one array."""

    def is_number(file: str) -> bool:
        within = file.removeprefix(f"{inside}/") if inside else file
        return (not inside or within != file) and within not in _METADATA

    if store.is_dir():
        names = [p.relative_to(store).as_posix() for p in store.rglob("*") if p.is_file()]
        for name in names:
            if not is_number(name):
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(store / name, place)
        return
    with zipfile.ZipFile(store) as archive:
        # Not a name that leads elsewhere: the archive's own method takes care of those.
        archive.extractall(folder, [n for n in archive.namelist() if not is_number(n)])
    os.makedirs(folder, exist_ok=True)
