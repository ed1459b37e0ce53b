"""Folders of images, one file per band, and TIFF files of several pages."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.tiff import check_tiff, tiff_file, unwarned
from kronlearn.io.stored import Key, StoredArray, StoredArrayError, holds_one_array
from kronlearn.io.writers import Target

__all__ = ["ImageBands", "check_replaceable", "open_file", "prepare", "save"]

_TIFF = (".tif", ".tiff")
_ENDINGS = (*_TIFF, ".png", ".bmp", ".jpg", ".jpeg", ".pgm", ".webp")
_MODES = {"1": "b1", "L": "u1", "I": "i4", "F": "f4"}
_MODES |= dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N"), "u2")
# Images that have been read are kept up to this many bytes, because each can only be read whole.
_KEPT_BYTES = 256 << 20


class ImageBands(StoredArray):
    """Images of equal size as (bands, rows, columns).

    Parameters
    ----------
    path : Path
        The folder, or the file with several pages.
    images : list of (Path, int)
        The file and the page of every band.
    """

    format = "image_folder"

    def __init__(self, path: Path, images: list[tuple[Path, int]]) -> None:
        self.images = images
        kinds = [_kind(*image) for image in images]
        for (file, _), kind in zip(images, kinds, strict=True):
            if kind != kinds[0]:
                raise StoredArrayError(
                    f"{file} is an image of {_text(kind)}, but {images[0][0].name} of "
                    f"{_text(kinds[0])}; all images must be equal in size and type."
                )
        shape, dtype = kinds[0]
        super().__init__(
            str(path),
            (len(images), *shape),
            dtype,
            path=path,
            chunks=(1, *shape),
            attributes={"files": [file.name for file, _ in images]},
            band_axis=0,
        )
        kept = _KEPT_BYTES // (shape[0] * shape[1] * self.dtype.itemsize)
        self._band = lru_cache(kept)(lambda i: _pixels(*images[i]))

    def _read(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        values = np.empty([part.stop - part.start for part in key], self.dtype)
        for i in range(bands.start, bands.stop):
            pixels = self._band(i)
            if pixels.shape != self.shape[1:]:
                raise self.error(f"has changed: {self.images[i][0].name} is {pixels.shape} now")
            values[i - bands.start] = pixels[rows, columns]
        return values


def open_file(path: Path, dataset: str | None) -> ImageBands:
    """The images of a folder, in the order of their names, or the pages of a TIFF file."""
    holds_one_array(path, dataset)
    if path.is_file():
        with tiff_file(path) as file:
            count = len(file.pages)
        return ImageBands(path, [(path, page) for page in range(count)])
    files = _images(path)
    if not files:
        raise StoredArrayError(
            f"{path} is a folder without images ({', '.join(_ENDINGS)}); give a file, a Zarr "
            "store or a folder with one image per band."
        )
    return ImageBands(path, [(file, 0) for file in files])


def check_replaceable(folder: Path) -> None:
    """Raise if a folder that is to be replaced holds anything but images."""
    others = sorted({p.name for p in folder.iterdir()} - {p.name for p in _images(folder)})
    if others:
        raise FileExistsError(
            f"{folder} holds other things than images ({others[0]}); give another name."
        )


def prepare(target: Target) -> tuple[np.dtype[Any], bytes]:
    """The dtype in which rows are collected, and what stands before them."""
    return target.out_dtype, b""


def save(target: Target, values: np.memmap[Any, Any], place: Path) -> None:
    """Write a folder with one image per band, named as those of the source."""
    count, names = target.cube.shape[2], target.source.attributes.get("files", [])
    if len(names) != count or len(set(names)) < len(names):
        names = [f"band_{i + 1:0{len(str(count))}d}.tif" for i in range(count)]
    place.mkdir()
    for name, band in zip(names, target.bands_first(values), strict=True):
        _write(place / _lossless(name, values.dtype), np.array(band))


def _images(folder: Path) -> list[Path]:
    files = [p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in _ENDINGS]
    return sorted((p for p in files if not p.name.startswith(".")), key=_by_number)


def _by_number(file: Path) -> list[tuple[int, str]]:
    """A key by which band2 comes in front of band10."""
    parts = re.split(r"([0-9]+)", file.name.lower())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part]


def _kind(file: Path, page: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The size and dtype of an image, from its header."""
    if page == 0 and file.suffix.lower() in _TIFF:
        check_tiff(file)
    with _opened(file) as image:
        if file.suffix.lower() in _TIFF:
            shape, dtype = image.pages[page].shape, image.pages[page].dtype
        else:
            shape, dtype = image.size[::-1], np.dtype(_MODES.get(image.mode, "O"))
    if dtype is None or dtype.kind not in "fiub" or len(shape) != 2:
        raise StoredArrayError(f"{file} is not a gray image; one gray image per band is needed.")
    return tuple(shape), np.dtype(dtype).newbyteorder("=")


def _pixels(file: Path, page: int) -> NDArray[Any]:
    with _opened(file) as image:
        if file.suffix.lower() in _TIFF:
            return np.asarray(image.pages[page].asarray())
        return np.asarray(image)


@contextmanager
def _opened(file: Path) -> Any:
    """An open image file; whatever is wrong with it is told with its name."""
    try:
        if file.suffix.lower() in _TIFF:
            with tiff_file(file) as image:
                yield image
            return
        from PIL import Image

        with unwarned():
            image = Image.open(file)
        with image:
            yield image
    except (StoredArrayError, MemoryError):
        raise
    except Exception as problem:
        raise StoredArrayError(f"{file} cannot be read as an image: {problem}.") from problem


def _lossless(name: str, dtype: np.dtype[Any]) -> str:
    """The name with an ending of a format that keeps all numbers of a dtype."""
    ending = Path(name).suffix.lower()
    is_png = ending == ".png" and dtype in (np.uint8, np.uint16)
    return name if is_png or ending in _TIFF else str(Path(name).with_suffix(".tif"))


def _write(file: Path, pixels: NDArray[Any]) -> None:
    if file.suffix.lower() == ".png":
        from PIL import Image

        Image.fromarray(pixels).save(file)
        return
    import tifffile

    tifffile.imwrite(file, pixels, compression="zlib", photometric="minisblack", metadata=None)


def _text(kind: tuple[tuple[int, ...], np.dtype[Any]]) -> str:
    return f"{' × '.join(map(str, kind[0]))} {kind[1].name} pixels"
