"""Image files: read as they are, and written with the same dtype, alpha channel and profile."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.PngImagePlugin import putchunk

from kronlearn.io.atomic import atomic_write
from kronlearn.io.formats import format_by_start
from kronlearn.io.formats.tiff import tiff_file, without_warnings
from kronlearn.io.stored import wrap_errors

__all__ = ["READABLE", "Picture", "check_writable", "gray_levels", "luminance", "read_picture"]
__all__ += ["save_picture", "write_picture"]

#: Endings of the files that count as images in a folder.
READABLE: tuple[str, ...] = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm")
READABLE += (".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")

# TIFF tags for the georeference, and for the value that marks missing data.
_GEOREFERENCE = (33550, 33922, 34264, 34735, 34736, 34737, 42113)
_GDAL_NODATA = 42113

# Pillow's names for PNG files with 16 bits per channel that have colours or alpha.
_PNG16_LAYOUTS = ("LA;16B", "RGB;16B", "RGBA;16B")


@dataclass(frozen=True)
class Picture:
    """The pixels of an image file, and the metadata that a new file of this kind needs."""

    #: (rows, columns), or (pages, rows, columns) of a stack; channels, if any, come last.
    pixels: NDArray[Any]
    has_channels: bool = False
    #: Opacity, with the dtype of the pixels and one value per pixel.
    alpha: NDArray[Any] | None = None
    #: The ICC colour profile.
    icc: bytes | None = None
    #: Messages for the user about how the file was read.
    notes: tuple[str, ...] = ()
    #: The tags of a georeferenced TIFF, in the form in which tifffile writes them.
    georeference: tuple[tuple[Any, ...], ...] = ()
    #: The value that marks missing data in a TIFF.
    nodata: float | None = None

    @property
    def channel_axis(self) -> int | None:
        """The axis of the channels as an argument for scikit-image."""
        return -1 if self.has_channels else None

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns) or (pages, rows, columns)."""
        return self.pixels.shape[:-1] if self.has_channels else self.pixels.shape

    @property
    def n_channels(self) -> int:
        """1 for grey, 3 for RGB; alpha does not count."""
        return int(self.pixels.shape[-1]) if self.has_channels else 1

    def shown(self, array: NDArray[Any]) -> NDArray[Any]:
        """The part of an array like the pixels to display: the middle page, in grey or RGB."""
        if len(self.shape) == 3:
            array = array[self.shape[0] // 2]
        if self.has_channels and self.n_channels != 3:
            array = array[..., :3] if self.n_channels > 3 else array[..., 0]
        return array

    def __str__(self) -> str:
        colour = {1: "grey", 3: "RGB"}.get(self.n_channels, f"{self.n_channels} channels")
        alpha = "" if self.alpha is None else " with alpha"
        return f"{' × '.join(map(str, self.shape))} {colour}{alpha} {self.pixels.dtype.name}"


def read_picture(path: Path) -> Picture:
    """Read an image file: grey, RGB or a stack, with the values of the file.

    Palettes become grey or RGB, photographs are rotated as their camera marked them, and alpha is
    separated. TIFF pages of equal size form a stack. Arrays (.npy) of shape (rows, columns, 3) are
    RGB; other arrays are grey images or stacks.
    """
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder; give the names of its images, for example {path}/*.png."
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file.")
    with wrap_errors(f"{path} cannot be read as an image"):
        # The content counts, not the name of the file.
        readers = {"npy": _read_array, "geotiff": _read_tiff}
        picture = readers.get(str(format_by_start(path)), _read_with_pillow)(path)
    if picture.pixels.dtype.kind not in "fiub":
        raise ValueError(f"{path} has dtype {picture.pixels.dtype}; give real numbers.")
    if len(picture.shape) not in (2, 3) or not picture.pixels.size:
        raise ValueError(
            f"{path} holds an array of shape {picture.pixels.shape}, not an image or a stack."
        )
    native = picture.pixels.dtype.newbyteorder("=")
    return replace(picture, pixels=picture.pixels.astype(native, copy=False))


def gray_levels(picture: Picture) -> Picture:
    """The picture; if it is black and white, with the values 0 and 255."""
    if picture.pixels.dtype != np.bool_:
        return picture
    return replace(picture, pixels=255 * picture.pixels.astype(np.uint8))


def luminance(picture: Picture) -> NDArray[np.float32]:
    """Grey levels (without a channel axis): the luminance of RGB, else the mean of the channels."""
    pixels = picture.pixels.astype(np.float32)
    if picture.n_channels == 3:
        # Importing this takes half a second.
        from skimage.color import rgb2gray

        return rgb2gray(pixels)
    return pixels.mean(axis=-1) if picture.has_channels else pixels


def _read_array(path: Path) -> Picture:
    pixels = np.load(path, allow_pickle=False)
    return Picture(pixels, has_channels=pixels.ndim >= 3 and pixels.shape[-1] == 3)


def _read_tiff(path: Path) -> Picture:
    """Read a TIFF with tifffile, which keeps every dtype, or else with Pillow."""
    with tiff_file(path) as file:
        series, page = file.series[0], file.series[0].keyframe
        try:
            pixels = series.asarray()
        except ValueError:
            # tifffile lacks some compressions. Pillow has them, for 8 bits and one page.
            has_many_bits = page.dtype is not None and page.dtype.itemsize > 1
            if has_many_bits or len(file.pages) > 1:
                raise
            return _read_with_pillow(path)
        picture = _tiff_picture(pixels, series.axes, page)
        if len(file.series) > 1:
            note = f"{path} holds {len(file.series)} images of different sizes: the first is used."
            picture = replace(picture, notes=(*picture.notes, note))
    return picture


def _tiff_picture(pixels: NDArray[Any], axes: str, page: Any) -> Picture:
    photometric = page.photometric.name
    if photometric in ("SEPARATED", "CIELAB", "ICCLAB", "ITULAB"):
        raise ValueError(f"its colours are {photometric}, not RGB; convert it first")
    if "S" not in axes:
        axes = axes.replace("C", "S")
    if photometric == "PALETTE":
        colours = (page.colormap >> 8).astype(np.uint8)
        return _without_palette(Picture(np.moveaxis(colours[:, pixels], 0, -1), True))
    if photometric == "MINISWHITE" and pixels.dtype.kind in "bu":
        pixels = ~pixels
    pixels = np.moveaxis(pixels, axes.index("S"), -1) if "S" in axes else pixels[..., None]
    last = page.extrasamples[-1].name if page.extrasamples else ""
    profile = page.tags.get("InterColorProfile")
    picture = _split(
        pixels, last in ("ASSOCALPHA", "UNASSALPHA"), None if profile is None else profile.value
    )
    is_stack = len(picture.shape) == 3
    notes = (f"{picture.shape[0]} pages, read as one stack.",) if is_stack else ()
    return replace(picture, notes=notes, **_georeference(page))


def _georeference(page: Any) -> dict[str, Any]:
    """The fields ``georeference`` and ``nodata`` of a picture, from the tags of a TIFF page."""
    tags = [page.tags[code] for code in _GEOREFERENCE if code in page.tags]
    copies = tuple((tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags)
    try:
        nodata = float(page.tags[_GDAL_NODATA].value) if _GDAL_NODATA in page.tags else None
    except ValueError:
        nodata = None
    return {"georeference": copies, "nodata": nodata}


def _read_with_pillow(path: Path) -> Picture:
    # Pillow warns of large images, which are welcome here.
    with without_warnings():
        opened = Image.open(path)
    with opened as image:
        layout = str(image.tile[0].args) if image.format == "PNG" and image.tile else ""
        if layout in _PNG16_LAYOUTS:
            has_alpha = layout != "RGB;16B"
            return _split(_read_png16(path, layout), has_alpha, image.info.get("icc_profile"))
        n_frames = getattr(image, "n_frames", 1)
        if n_frames > 1 and image.format != "MPO":
            raise ValueError(f"it has {n_frames} frames; give a single image, or a stack as TIFF")
        return _from_pillow(ImageOps.exif_transpose(image))


def _read_png16(path: Path, layout: str) -> NDArray[np.uint16]:
    """The pixels (rows, columns, 2 to 4) of a PNG file with 16 bits per channel.

    Pillow keeps only the high byte of each value. It is asked for the low bytes as well, by
    declaring the values little-endian, and the two are combined. Pixels with grey and alpha have
    four bytes, and are read as 8-bit RGBA.
    """
    if layout == "LA;16B":
        return _raw(path, "RGBA").view(">u2").astype(np.uint16)
    values = _raw(path, layout).astype(np.uint16)
    values <<= 8
    values |= _raw(path, layout[:-1] + "L")
    return values


def _raw(path: Path, layout: str) -> NDArray[np.uint8]:
    """The pixels of a file, with its bytes interpreted by Pillow as having another layout."""
    with without_warnings(), Image.open(path) as picture:
        picture.tile = [tile._replace(args=layout) for tile in picture.tile]
        return np.array(picture)


def _from_pillow(image: Image.Image) -> Picture:
    mode, icc = image.mode, image.info.get("icc_profile")
    if mode.startswith("I"):
        pixels = np.array(image)
        fits = pixels.min() >= 0 and pixels.max() <= 65535
        return Picture(pixels.astype(np.uint16) if fits else pixels, icc=icc)
    if image.has_transparency_data:
        image = image.convert("LA" if mode in ("L", "LA") else "RGBA")
    elif mode not in ("1", "L", "RGB", "F"):
        image = image.convert("RGB")
    pixels = np.array(image).reshape(image.height, image.width, -1)
    picture = _split(pixels, pixels.shape[-1] in (2, 4), icc)
    if mode in ("P", "PA"):
        return _without_palette(picture)
    if mode in ("1", "L", "LA", "RGB", "RGBA", "F"):
        return picture
    return replace(picture, icc=None, notes=(f"{mode} colours are converted to RGB.",))


def _split(pixels: NDArray[Any], has_alpha: bool, icc: bytes | None) -> Picture:
    """A picture from pixels with channels along the last axis, the last of which may be alpha."""
    alpha = pixels[..., -1] if has_alpha else None
    colours = pixels[..., :-1] if has_alpha else pixels
    if colours.shape[-1] > 1:
        return Picture(colours, True, alpha, icc)
    return Picture(colours[..., 0], False, alpha, icc)


def _without_palette(picture: Picture) -> Picture:
    """The RGB picture as a grey one, if all its colours are grey."""
    red, green, blue = (picture.pixels[..., channel] for channel in range(3))
    if np.array_equal(red, green) and np.array_equal(red, blue):
        return replace(picture, pixels=red, has_channels=False, icc=None)
    return picture


class _ImageFormat(NamedTuple):
    """What files of a format can hold, and the options with which Pillow writes them."""

    name: str
    #: Dtypes of pixels; None for all.
    dtypes: tuple[str, ...] | None
    alpha: bool = True
    stacks: bool = False
    options: Mapping[str, Any] = {}


_TIFF = _ImageFormat("TIFF", None, stacks=True)
_JPEG = _ImageFormat("JPEG", ("uint8",), alpha=False, options={"quality": 95, "subsampling": 0})
# exact: keep the colours of transparent pixels.
_WEBP = _ImageFormat("WebP", ("uint8",), options={"lossless": True, "exact": True})
_FORMATS = {
    ".png": _ImageFormat("PNG", ("bool", "uint8", "uint16")),
    ".tif": _TIFF,
    ".tiff": _TIFF,
    ".npy": _ImageFormat("NumPy", None, alpha=False, stacks=True),
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".webp": _WEBP,
    ".bmp": _ImageFormat("BMP", ("bool", "uint8"), alpha=False),
}


def check_writable(path: Path, picture: Picture) -> list[str]:
    """Raise if the format of a file cannot hold the pixels; returns notes on what will be lost."""
    form = _FORMATS.get(path.suffix.lower())
    if form is None:
        raise ValueError(
            f"OUT {path} does not have an extension that kronlearn can write: "
            f"{', '.join(_FORMATS)}."
        )
    if not _can_hold(form, picture):
        usable = next(ending for ending, other in _FORMATS.items() if _can_hold(other, picture))
        pixels = replace(picture, alpha=None)
        raise ValueError(f"OUT {path}: {form.name} cannot hold {pixels}; use {usable}.")
    notes = []
    if picture.alpha is not None and not form.alpha:
        notes.append(f"{form.name} cannot hold the alpha channel; {path} will have none.")
    if picture.georeference and form.name != "TIFF":
        notes.append(f"{form.name} cannot hold the georeference; {path} will have none.")
    return notes


def _can_hold(form: _ImageFormat, picture: Picture) -> bool:
    has_dtype = form.dtypes is None or picture.pixels.dtype.name in form.dtypes
    has_shape = form.stacks or (len(picture.shape) == 2 and picture.n_channels in (1, 3))
    return has_dtype and has_shape


def write_picture(path: Path, picture: Picture, overwrite: bool) -> None:
    """Write an image file atomically, in the format that its ending determines."""
    with atomic_write(path, overwrite=overwrite) as (temporary,):
        save_picture(temporary, picture)


def save_picture(path: Path, picture: Picture) -> None:
    """Write a new image file directly, in the format that its ending determines."""
    form = _FORMATS[path.suffix.lower()]
    pixels = picture.pixels
    if picture.alpha is not None and form.alpha:
        colours = pixels if picture.has_channels else pixels[..., None]
        pixels = np.concatenate([colours, picture.alpha[..., None]], axis=-1)
    else:
        picture = replace(picture, alpha=None)
    if form.name == "NumPy":
        np.save(path, pixels)
    elif form.name == "TIFF":
        _write_tiff(path, pixels, picture)
    elif pixels.dtype == np.uint16 and pixels.ndim == 3:
        _write_png16(path, pixels, picture.icc)
    else:
        Image.fromarray(pixels).save(path, **form.options, icc_profile=picture.icc)


def _write_tiff(path: Path, pixels: NDArray[Any], picture: Picture) -> None:
    import tifffile

    n_unspecified = 0 if picture.n_channels == 3 else picture.n_channels - 1
    extra_samples = [*["unspecified"] * n_unspecified, "unassalpha"]
    tifffile.imwrite(
        path,
        pixels,
        photometric="rgb" if picture.n_channels == 3 else "minisblack",
        planarconfig="contig" if pixels.ndim > len(picture.shape) else None,
        extrasamples=None if picture.alpha is None else extra_samples,
        compression=None if pixels.dtype == np.bool_ else "zlib",
        iccprofile=picture.icc,
        extratags=picture.georeference,
        metadata=None,
    )


def _write_png16(path: Path, pixels: NDArray[np.uint16], icc: bytes | None) -> None:
    """Write pixels (rows, columns, 2 to 4) of 16 bits, which Pillow cannot write."""
    rows, columns, channels = pixels.shape
    # PNG's numbers for grey with alpha, RGB and RGBA.
    colour = {2: 4, 3: 2, 4: 6}[channels]
    # Filter 2: each row minus the row above.
    lines = np.ascontiguousarray(pixels, ">u2").reshape(rows, -1).view(np.uint8)
    filtered = np.empty((rows, 1 + lines.shape[1]), np.uint8)
    filtered[:, 0] = 2
    filtered[:, 1:] = lines
    filtered[1:, 1:] -= lines[:-1]
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        putchunk(file, b"IHDR", struct.pack(">IIBBBBB", columns, rows, 16, colour, 0, 0, 0))
        if icc:
            putchunk(file, b"iCCP", b"ICC profile\0\0", zlib.compress(icc))
        putchunk(file, b"IDAT", zlib.compress(filtered.tobytes(), 6))
        putchunk(file, b"IEND")
