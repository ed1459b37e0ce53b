"""Folders of images, one file per band, and TIFF files of several pages."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.mapped import RawWriter
from kronlearn.io.formats.outputs import ArrayWriter, Plan
from kronlearn.io.stored import Key, StoredArray, StoredArrayError

__all__ = ["ImageBands", "check_replaceable", "create", "open_file", "open_pages"]

DESCRIPTION = "a folder of images"

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
        self._kept: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def _read(self, key: Key) -> NDArray[Any]:
        bands, rows, columns = key
        values = np.empty([part.stop - part.start for part in key], self.dtype)
        for i in range(bands.start, bands.stop):
            values[i - bands.start] = self._band(i)[rows, columns]
        return values

    def _band(self, i: int) -> NDArray[Any]:
        with self._lock:
            kept = self._kept.get(i)
            if kept is not None:
                return kept
        pixels = _pixels(*self.images[i])
        if pixels.shape != self.shape[1:]:
            raise self.error(f"has changed: {self.images[i][0].name} is {pixels.shape} now")
        with self._lock:
            self._kept[i] = pixels
            while len(self._kept) * pixels.nbytes > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return pixels


def open_file(path: Path, dataset: str | None) -> ImageBands:
    """The images of a folder, in the order of their names, numbers in them by value."""
    if dataset is not None:
        raise StoredArrayError(f"{path} holds one array; leave out dataset={dataset!r}.")
    files = _images(path)
    if not files:
        raise StoredArrayError(
            f"{path} is a folder without images ({', '.join(_ENDINGS)}); give a file, a Zarr "
            "store or a folder with one image per band."
        )
    return ImageBands(path, [(file, 0) for file in files])


def open_pages(path: Path) -> ImageBands:
    """The pages of a TIFF file as bands."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        count = len(file.pages)
    return ImageBands(path, [(path, page) for page in range(count)])


def check_replaceable(target: Path) -> None:
    """Raise if a folder that is to be replaced holds anything but images."""
    others = sorted({p.name for p in target.iterdir()} - {p.name for p in _images(target)})
    if others:
        raise FileExistsError(
            f"{target} holds other things than images ({others[0]}); give another name."
        )


def create(target: Path, plan: Plan) -> _FolderWriter:
    """A writer of a folder with one image per band, named as those of the source."""
    return _FolderWriter(target, plan)


class _FolderWriter(ArrayWriter):
    """Collects the rows in a file, as images can only be written whole."""

    def __init__(self, target: Path, plan: Plan) -> None:
        super().__init__(target, ("band", "row", "column"))
        self.dtype = plan.out_dtype
        names = plan.source.attributes.get("files", [])
        if len(names) != plan.shape[2] or len(set(names)) < len(names):
            digits = len(str(plan.shape[2]))
            names = [f"band_{i + 1:0{digits}d}.tif" for i in range(plan.shape[2])]
        self._names = [_lossless(name, self.dtype) for name in names]
        self._shape = (plan.shape[2], *plan.shape[:2])
        self._rows = RawWriter(target.with_suffix(".raw"), plan, self.order, self.dtype)

    @property
    def places(self) -> list[Path]:
        """The folder, and the file with the rows."""
        return [self.temporary, *self._rows.places]

    def write(self, key: Key, values: NDArray[Any]) -> None:
        """Keep rows of all bands."""
        self._rows.write(key, values)

    def finish(self) -> None:
        """Write the images."""
        self._rows.release()
        self.temporary.mkdir()
        bands = np.memmap(self._rows.places[0], self.dtype, "r", shape=self._shape)
        for name, band in zip(self._names, bands, strict=True):
            _write(self.temporary / name, np.array(band))

    def release(self) -> None:
        """Close the file with the rows."""
        self._rows.release()


def _images(folder: Path) -> list[Path]:
    files = [p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in _ENDINGS]
    return sorted((p for p in files if not p.name.startswith(".")), key=_by_number)


def _by_number(file: Path) -> list[tuple[int, str]]:
    """A key by which band2 comes in front of band10."""
    parts = re.split(r"([0-9]+)", file.name.lower())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part]


def _kind(file: Path, page: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The size and dtype of an image, from its header."""
    with _Image(file) as image:
        if file.suffix.lower() in _TIFF:
            shape, dtype = image.pages[page].shape, image.pages[page].dtype
        else:
            shape, dtype = image.size[::-1], np.dtype(_MODES.get(image.mode, "O"))
    if dtype is None or dtype.kind not in "fiub" or len(shape) != 2:
        raise StoredArrayError(f"{file} is not a gray image; one gray image per band is needed.")
    return tuple(shape), np.dtype(dtype).newbyteorder("=")


def _pixels(file: Path, page: int) -> NDArray[Any]:
    with _Image(file) as image:
        if file.suffix.lower() in _TIFF:
            return np.asarray(image.pages[page].asarray())
        return np.asarray(image)


class _Image:
    """An open image file; whatever is wrong with it is told with its name."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Any:
        try:
            self._image = self._open()
        except Exception as problem:
            raise self._error(problem) from problem
        return self._image

    def __exit__(self, kind: Any, problem: BaseException | None, traceback: Any) -> None:
        self._image.close()
        if isinstance(problem, Exception) and not isinstance(problem, StoredArrayError):
            raise self._error(problem) from problem

    def _open(self) -> Any:
        if self._file.suffix.lower() in _TIFF:
            import tifffile

            # What it logs about damaged files is part of the error, or of no consequence.
            logging.getLogger("tifffile").setLevel(logging.CRITICAL)
            return tifffile.TiffFile(self._file)
        from PIL import Image

        with warnings.catch_warnings():
            # Large images are what is expected here.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(self._file)

    def _error(self, problem: Exception) -> StoredArrayError:
        return StoredArrayError(f"{self._file} cannot be read as an image: {problem}.")


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
