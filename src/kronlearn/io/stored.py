"""Arrays that are stored somewhere, in files mostly, and read a part at a time."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["StoredArray", "StoredArrayError", "StoredArrayNotFoundError", "open_array"]

PathLike = str | os.PathLike[str]
Key = tuple[slice, ...]

# Which module of ``formats`` opens what, by the ending of its name.
_ENDINGS = {
    ".npy": "npy",
    ".zarr": "zarr_store",
    ".zip": "zarr_store",
    **dict.fromkeys((".h5", ".hdf5", ".he5", ".hdf"), "hdf5"),
    **dict.fromkeys((".nc", ".nc4", ".cdf"), "netcdf"),
    ".mat": "mat",
    ".hdr": "envi",
    **dict.fromkeys((".tif", ".tiff"), "geotiff"),
}
# What the first bytes of a file say, whatever its name.
_CONTENTS = (
    (b"\x93NUMPY", "npy", "a NumPy array (.npy)"),
    (b"\x89HDF\r\n\x1a\n", "hdf5", "an HDF5 file (.h5)"),
    (b"CDF\x01", "netcdf", "a NetCDF file (.nc)"),
    (b"CDF\x02", "netcdf", "a NetCDF file (.nc)"),
    (b"CDF\x05", "netcdf", "a NetCDF file (.nc)"),
    (b"MATLAB ", "mat", "a MATLAB file (.mat)"),
    (b"II*\x00", "geotiff", "a TIFF image (.tif)"),
    (b"MM\x00*", "geotiff", "a TIFF image (.tif)"),
    (b"II+\x00", "geotiff", "a TIFF image (.tif)"),
    (b"MM\x00+", "geotiff", "a TIFF image (.tif)"),
    (b"PK\x03\x04", "zarr_store", "a zip archive (.zip)"),
    (b"ENVI", "envi", "an ENVI header (.hdr)"),
)
# Formats whose files may look like one another inside.
_ALSO = {"netcdf": {"hdf5"}, "mat": {"hdf5"}}
KNOWN = (
    ".npy, .zarr (folder or .zip), .h5, .hdf5, .he5, .nc, .nc4, .mat, ENVI (.hdr and the file "
    "beside it), GeoTIFF (.tif, .tiff) and folders of images"
)


class StoredArrayError(ValueError):
    """An array that cannot be read: its file is damaged, cut off, of another kind, ambiguous."""


class StoredArrayNotFoundError(FileNotFoundError, StoredArrayError):
    """A file or folder that does not exist."""


class StoredArray(ABC):
    """An array of real numbers that is read a part at a time, whatever it is stored in.

    Made by :func:`open_array`. It can be sent to other processes, where it opens its file again,
    and read by several threads at once.

    Attributes
    ----------
    name : str
        The path, or the type of an object, for messages.
    shape : tuple of int
    dtype : dtype
        Of what ``read`` returns, in native byte order.
    path : Path or None
        Of the file or folder, absolute.
    dataset : str or None
        The name of the array inside its file.
    chunks : tuple of int or None
        The shape of the parts in which it is stored.
    nodata : float, int or None
        The value that says that there is none.
    attributes : dict
        What the file says about the array, in plain types.
    axes : tuple of str or None
        Names of the dimensions.
    wavelengths : array of shape (bands,) or None
    coordinates : dict of 1-D arrays
        By the names of the axes that they belong to.
    band_axis : int or None
        The axis of the bands where the format has one by definition.
    """

    #: The name of the format, and of the module that reads and writes it.
    format = "array"

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        path: Path | None = None,
        dataset: str | None = None,
        chunks: tuple[int, ...] | None = None,
        nodata: float | int | None = None,
        attributes: Mapping[str, Any] | None = None,
        axes: tuple[str, ...] | None = None,
        wavelengths: NDArray[np.float64] | None = None,
        coordinates: Mapping[str, NDArray[Any]] | None = None,
        band_axis: int | None = None,
    ) -> None:
        self.name = name
        self.shape = tuple(int(length) for length in shape)
        self.dtype = np.dtype(dtype).newbyteorder("=")
        self.path = path
        self.dataset = dataset
        self.chunks = None if chunks is None else tuple(int(length) for length in chunks)
        is_whole = self.dtype.kind in "iu" and nodata is not None and float(nodata).is_integer()
        self.nodata = int(nodata) if is_whole and nodata is not None else nodata
        self.attributes = dict(attributes or {})
        self.axes = axes
        self.wavelengths = wavelengths
        self.coordinates = dict(coordinates or {})
        self.band_axis = band_axis
        if self.dtype.kind not in "fiub":
            raise self.error(f"holds {self.dtype} values; real numbers are needed")
        if min(self.shape, default=0) < 1:
            raise self.error(f"has shape {self.shape}; an array that is not empty is needed")

    @property
    def files(self) -> list[Path]:
        """The files, or folders, that it is read from; none where it is in memory."""
        return [] if self.path is None else [self.path]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def read(self, key: Key) -> NDArray[Any]:
        """The numbers of a part, as an array of their own or a view that must not be written to.

        Parameters
        ----------
        key : tuple of slice
            One per dimension, of step one and within the array; ``slice(None)`` is all.

        Raises
        ------
        StoredArrayError
            If the numbers are not there: the file was cut off, is damaged or cannot be read.
        """
        if len(key) != self.ndim:
            raise ValueError(f"{self.name}: {len(key)} slices given for {self.ndim} dimensions.")
        key = tuple(self._whole(part, n) for part, n in zip(key, self.shape, strict=True))
        expected = tuple(part.stop - part.start for part in key)
        if 0 in expected:
            return np.empty(expected, self.dtype)
        try:
            values = np.asarray(self._read(key))
        except StoredArrayError:
            raise
        except Exception as problem:
            raise self.error(f"cannot be read at {_place(key)}: {_reason(problem)}") from problem
        if values.shape != expected:
            raise self.error(
                f"gave numbers of shape {values.shape} at {_place(key)}, not {expected}"
            )
        return values.astype(self.dtype, copy=False)

    def error(self, problem: str) -> StoredArrayError:
        """An error that names the array."""
        inside = "" if self.dataset is None or self.path is None else f" ({self.dataset})"
        return StoredArrayError(f"{self.name}{inside} {problem.rstrip('.')}.")

    @abstractmethod
    def _read(self, key: Key) -> NDArray[Any]:
        """The numbers of a part that is not empty, given by its bounds."""

    def _whole(self, part: slice, length: int) -> slice:
        start = 0 if part.start is None else int(part.start)
        stop = length if part.stop is None else int(part.stop)
        if part.step not in (None, 1) or not 0 <= start <= stop <= length:
            raise ValueError(
                f"{self.name}: {part} is not a part of an axis of length {length}; give a slice "
                "of step one within it."
            )
        return slice(start, stop)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            return super().__reduce__()  # type: ignore[return-value]
        return _reopened, (str(self.path), self.dataset, self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.shape} {self.dtype.name}>"


def open_array(thing: Any, dataset: str | None = None) -> StoredArray:
    """The array in a file, or behind an object, to be read a part at a time.

    Parameters
    ----------
    thing : str, path or object
        A file: .npy, .zarr, .h5, .nc, .mat, ENVI, GeoTIFF; a folder of images, one per band; or
        an array of NumPy, Dask, Zarr, h5py or xarray, or anything with ``shape``, ``dtype`` and
        ``__getitem__``.
    dataset : str, optional
        The name of the array in a file that holds several. By default the only array of numbers
        with two dimensions or more, or the only one with the most dimensions.

    Returns
    -------
    StoredArray

    Raises
    ------
    StoredArrayError
        If there is no such file, if it is damaged, or if it is not clear which array is meant. A
        kind of ``ValueError``.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from kronlearn.io.stored import open_array
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "cube.npy")
    ...     np.save(path, np.arange(24, dtype=">i2").reshape(2, 3, 4))
    ...     array = open_array(path)
    ...     part = array.read((slice(0, 1), slice(1, 3), slice(None)))
    >>> array.shape, part.tolist()
    ((2, 3, 4), [[[4, 5, 6, 7], [8, 9, 10, 11]]])
    """
    if isinstance(thing, StoredArray):
        return thing
    if isinstance(thing, str | os.PathLike):
        return _open_path(Path(os.path.abspath(os.fspath(thing))), dataset)
    from kronlearn.io.formats.memory import wrap

    return wrap(thing, dataset)


def need(library: str, what: str) -> Any:
    """An optional library, or an error that says how to get it."""
    try:
        return importlib.import_module(library)
    except ImportError as problem:
        raise ImportError(
            f"{what} needs the package {library}, which is not installed: "
            "pip install 'kronlearn[io]'."
        ) from problem


def format_by_content(path: Path) -> tuple[str, str] | None:
    """The format that a file has inside and its description; None if it is not known."""
    with open(path, "rb") as file:
        start = file.read(16)
    for magic, module, text in _CONTENTS:
        if start.startswith(magic):
            return module, text
    return None


def format_by_ending(path: Path) -> str | None:
    """The format that a name stands for; None if it is not known."""
    return _ENDINGS.get(path.suffix.lower())


def _open_path(path: Path, dataset: str | None) -> StoredArray:
    if not path.exists():
        raise StoredArrayNotFoundError(f"{path} does not exist.")
    try:
        module = _module_for(path)
    except OSError as problem:
        raise StoredArrayError(f"{path} cannot be read: {_reason(problem)}.") from problem
    try:
        return module.open_file(path, dataset)
    except (StoredArrayError, ImportError):
        raise
    except Exception as problem:
        # Libraries have all kinds of errors for damaged files: KeyError, zlib.error, OSError, …
        raise StoredArrayError(
            f"{path} cannot be read as {module.DESCRIPTION}; it is damaged, cut off or something "
            f"else: {_reason(problem)}."
        ) from problem


def _module_for(path: Path) -> Any:
    """The module that opens a file or folder."""
    formats = "kronlearn.io.formats."
    if path.is_dir():
        is_zarr = any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))
        folder = "zarr_store" if is_zarr or path.suffix.lower() == ".zarr" else "image_folder"
        return importlib.import_module(formats + folder)
    if not path.is_file():
        raise StoredArrayError(f"{path} is not a regular file.")
    if path.stat().st_size == 0:
        raise StoredArrayError(f"{path} is empty: it has 0 bytes.")
    named, inside = format_by_ending(path), format_by_content(path)
    if named is None:
        from kronlearn.io.formats.envi import header_of

        if header_of(path) is not None:
            named = "envi"
        elif inside is None:
            raise StoredArrayError(f"{path} is of no known format; these can be read: {KNOWN}.")
        else:
            named = inside[0]
    elif inside is not None and inside[0] not in {named, *_ALSO.get(named, ())}:
        raise StoredArrayError(
            f"{path} is named {path.suffix}, but its content is {inside[1]}; rename it."
        )
    return importlib.import_module(formats + named)


def _reopened(
    path: str, dataset: str | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> StoredArray:
    array = open_array(path, dataset)
    if (array.shape, array.dtype) != (shape, dtype):
        raise array.error(
            f"has shape {array.shape} and dtype {array.dtype} now, but had {shape} and {dtype} "
            "when it was first opened: the file was changed"
        )
    return array


def _reason(problem: Exception) -> str:
    """What an error says; rasterio's speak of the one that they were raised from."""
    text = str(problem.__cause__ or problem).strip().rstrip(".")
    return text or type(problem).__name__


def _place(key: Key) -> str:
    return "[" + ", ".join(f"{part.start}:{part.stop}" for part in key) + "]"
