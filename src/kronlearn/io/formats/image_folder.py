"""Folders with one image per band, and TIFF files with one page per band."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.conversion import bands_last
from kronlearn.io.formats.tiff import tiff_file
from kronlearn.io.images import READABLE, Picture, read_picture, save_picture
from kronlearn.io.stored import Key, Opened, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["check_replaceable", "open_file", "save"]

# An image can only be read whole, so the last ones are cached, up to this many bytes.
_CACHE_BYTES = 256 << 20


class _Images:
    """Images of equal size, in several files or in the pages of one, as (bands, rows, columns).

    The first image gives the size and dtype; the others are compared with it when they are read.
    """

    def __init__(self, images: Sequence[tuple[Path, int | None]]) -> None:
        self.images = images
        first = _pixels(*images[0])
        self.shape, self.dtype = (len(images), *first.shape), first.dtype
        self.chunks = (1, *first.shape)
        self._band = lru_cache(_CACHE_BYTES // first.nbytes)(self._read_band)

    def __getitem__(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        return np.stack([self._band(i)[rows, columns] for i in range(bands.start, bands.stop)])

    def _read_band(self, band: int) -> NDArray[Any]:
        """Read an image, and check that it has the size and dtype of the first."""
        file, page = self.images[band]
        pixels = _pixels(file, page)
        if (pixels.shape, pixels.dtype) != (self.shape[1:], self.dtype):
            first = np.broadcast_to(self.dtype.type(0), self.shape[1:])
            raise StoredArrayError(
                f"{file} is {Picture(pixels)}, but {self.images[0][0].name} is {Picture(first)}; "
                "all images must have the same size and type."
            )
        return pixels


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the images in a folder, in the order of their names, or the pages of a TIFF file."""
    if path.is_file():
        with tiff_file(path) as file:
            pages = range(len(file.pages))
            images: list[tuple[Path, int | None]] = [(path, page) for page in pages]
    else:
        images = [(file, None) for file in _image_files(path)]
    if not images:
        raise StoredArrayError(
            f"{path} is a folder without images ({', '.join(READABLE)}); give a file, a Zarr "
            "store or a folder with one image per band."
        )
    names = {"files": [file.name for file, _ in images]}
    # "format" replaces that of a TIFF file.
    return _Images(images), {"format": "image_folder", "attributes": names, "band_axis": 0}


def check_replaceable(folder: Path) -> None:
    """Raise if a folder holds anything but images."""
    others = sorted({p.name for p in folder.iterdir()} - {p.name for p in _image_files(folder)})
    if others:
        raise FileExistsError(
            f"{folder} contains files other than images ({others[0]}); give another name."
        )


def save(writer: CubeWriter, folder: Path) -> None:
    """Write a folder with one image per band, with the names of the source's images."""
    count = writer.shape[2]
    names = [_target_name(name, writer.dtype) for name in writer.source.attributes.get("files", [])]
    if len(names) != count or len(set(names)) < count:
        names = [f"band_{i + 1:0{len(str(count))}d}.tif" for i in range(count)]
    folder.mkdir()
    for band, name in enumerate(names):
        key = [slice(0, length) for length in writer.source.shape]
        if writer.cube.band_axis is not None:
            key[writer.cube.band_axis] = slice(band, band + 1)
        pixels = bands_last(writer.rows[tuple(key)], writer.cube.axes)[..., 0]
        save_picture(folder / name, Picture(pixels))


def _target_name(name: str, dtype: np.dtype[Any]) -> str:
    """The name of an image, which becomes a TIFF where its format might change the numbers."""
    ending = Path(name).suffix.lower()
    is_exact_png = ending == ".png" and dtype in (np.uint8, np.uint16)
    return name if is_exact_png or ending in (".tif", ".tiff") else f"{Path(name).stem}.tif"


def _image_files(folder: Path) -> list[Path]:
    """The images in a folder, in natural order: band2 before band10."""
    from tifffile import natural_sorted

    files = [p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in READABLE]
    names = natural_sorted(p.name for p in files if not p.name.startswith("."))
    return [folder / name for name in names]


def _pixels(file: Path, page: int | None) -> NDArray[Any]:
    """The pixels of a grey image, or of a page of a TIFF file."""
    if page is not None:
        with tiff_file(file, page) as tiff:
            picture = Picture(tiff.pages[page].asarray())
    else:
        picture = read_picture(file)
    if picture.has_channels or len(picture.shape) != 2:
        raise StoredArrayError(f"{file} is not a grey image; one grey image per band is needed.")
    return picture.pixels
