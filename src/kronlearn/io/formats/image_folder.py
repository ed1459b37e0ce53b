"""Folders of images, one file per band, and TIFF files of several pages."""

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

# Images that have been read are kept up to this many bytes, because each can only be read whole.
_KEPT_BYTES = 256 << 20


class _Images:
    """Images of equal size as (bands, rows, columns), given by their files, or the pages of one.

    Only the first is read to begin with; the others are compared with it when they are read.
    """

    def __init__(self, images: Sequence[tuple[Path, int | None]]) -> None:
        self.images = images
        first = _pixels(*images[0])
        self.shape, self.dtype = (len(images), *first.shape), first.dtype
        self.chunks = (1, *first.shape)
        self._band = lru_cache(_KEPT_BYTES // first.nbytes)(self._pixels_of)

    def __getitem__(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        return np.stack([self._band(i)[rows, columns] for i in range(bands.start, bands.stop)])

    def _pixels_of(self, band: int) -> NDArray[Any]:
        """The whole image of a band, once it is known to be like the first."""
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
    """The images of a folder, in the order of their names, or the pages of a TIFF file."""
    if path.is_file():
        with tiff_file(path) as file:
            images: list[tuple[Path, int | None]] = [
                (path, page) for page in range(len(file.pages))
            ]
    else:
        images = [(file, None) for file in _images(path)]
    if not images:
        raise StoredArrayError(
            f"{path} is a folder without images ({', '.join(READABLE)}); give a file, a Zarr "
            "store or a folder with one image per band."
        )
    names = {"files": [file.name for file, _ in images]}
    # Also where it was opened as a GeoTIFF.
    return _Images(images), {"format": "image_folder", "attributes": names, "band_axis": 0}


def check_replaceable(folder: Path) -> None:
    """Raise if a folder that is to be replaced holds anything but images."""
    others = sorted({p.name for p in folder.iterdir()} - {p.name for p in _images(folder)})
    if others:
        raise FileExistsError(
            f"{folder} contains files other than images ({others[0]}); give another name."
        )


def save(writer: CubeWriter, place: Path) -> None:
    """Write a folder with one image per band, named as those of the source."""
    count, names = writer.shape[2], writer.source.attributes.get("files", [])
    if len(names) != count or len(set(names)) < len(names):
        names = [f"band_{i + 1:0{len(str(count))}d}.tif" for i in range(count)]
    place.mkdir()
    for band, name in enumerate(map(Path, names)):
        key = [slice(0, length) for length in writer.source.shape]
        if writer.cube.band_axis is not None:
            key[writer.cube.band_axis] = slice(band, band + 1)
        pixels = bands_last(writer.rows[tuple(key)], writer.cube.axes)[..., 0]
        is_exact_png = name.suffix.lower() == ".png" and pixels.dtype in (np.uint8, np.uint16)
        # All else that is not TIFF would lose some of the numbers.
        if not is_exact_png and name.suffix.lower() not in (".tif", ".tiff"):
            name = name.with_suffix(".tif")
        save_picture(place / name, Picture(pixels))


def _images(folder: Path) -> list[Path]:
    """The images in a folder, band2 in front of band10."""
    from tifffile import natural_sorted

    found = [p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in READABLE]
    names = natural_sorted(p.name for p in found if not p.name.startswith("."))
    return [folder / name for name in names]


def _pixels(file: Path, page: int | None) -> NDArray[Any]:
    """The grey levels of an image."""
    if page is not None:
        with tiff_file(file, page) as tiff:
            picture = Picture(tiff.pages[page].asarray())
    else:
        picture = read_picture(file)
    if picture.has_channels or len(picture.shape) != 2:
        raise StoredArrayError(f"{file} is not a grey image; one grey image per band is needed.")
    return picture.pixels
