"""Arrays that are stored somewhere, in files mostly, and read a part at a time."""

from __future__ import annotations

import importlib
import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kronlearn.io.formats.conventions import Packing

__all__ = ["StoredArray", "StoredArrayError", "StoredArrayNotFoundError", "open_array"]

PathLike = str | os.PathLike[str]
Key = tuple[slice, ...]
#: Numbers along an axis, with their attributes.
Vector = tuple[NDArray[Any], dict[str, Any]]
#: What modules of formats open: what has the numbers, and values for attributes of a StoredArray.
Opened = tuple[Any, dict[str, Any]]

# The formats by their modules in ``formats``: what they are, the endings of their names, and the
# first bytes of their files.
_TIFF = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
_FORMATS: dict[str, tuple[str, tuple[str, ...], tuple[bytes, ...]]] = {
    "npy": ("a NumPy array (.npy)", (".npy",), (b"\x93NUMPY",)),
    "hdf5": ("an HDF5 file (.h5)", (".h5", ".hdf5", ".he5", ".hdf"), (b"\x89HDF\r\n\x1a\n",)),
    "netcdf": ("a NetCDF file (.nc)", (".nc", ".nc4", ".cdf"), (b"CDF\x01", b"CDF\x02")),
    "mat": ("a MATLAB file (.mat)", (".mat",), (b"MATLAB ",)),
    "geotiff": ("a TIFF image (.tif)", (".tif", ".tiff"), _TIFF),
    "zarr": ("a Zarr store (.zarr or .zip)", (".zarr", ".zip"), (b"PK\x03\x04",)),
    "envi": ("an ENVI header (.hdr)", (".hdr",), (b"ENVI",)),
    "image_folder": ("a folder of images", (), ()),
}
KNOWN = ", ".join(what for what, *_ in _FORMATS.values())
_ONE_ARRAY = "is a single array; leave out dataset={!r}"


class StoredArrayError(ValueError):
    """An array that cannot be read: its file is damaged, cut off, of another kind, ambiguous."""


class StoredArrayNotFoundError(FileNotFoundError, StoredArrayError):
    """A file or folder that does not exist."""


class StoredArray(AbstractContextManager["StoredArray"]):
    """An array of real numbers that is read a part at a time, whatever it is stored in.

    Made by :func:`open_array`. It can be sent to other processes, where it opens its file again,
    and read by several threads at once. Its file is closed by ``close``, at the end of a ``with``
    block, or when the array is garbage-collected.

    Parameters
    ----------
    thing : object
        The stored numbers: an object with ``shape``, the ``dtype`` of the file, ``__getitem__`` for
        a tuple of slices and, if it is stored in parts, ``chunks``.
    name : str
        The path, or the type of an object, for messages.
    **description
        Values of the attributes below.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.io.stored import open_array
    >>> array = open_array(np.zeros((100, 8, 8)))
    >>> array.shape, array.read((slice(10, 20),)).shape
    ((100, 8, 8), (10, 8, 8))
    """

    #: The name of the format, or "memory".
    format: str = "memory"
    #: The absolute path of the file or folder.
    path: Path | None = None
    #: The name of the array in the file.
    dataset: str | None = None
    #: All files or folders that it is read from; none if it is in memory.
    files: list[Path]
    #: The value that marks missing data.
    nodata: float | int | None = None
    #: How the numbers in the file become the values that ``read`` returns.
    packing: Packing | None = None
    #: Names of the dimensions.
    axes: tuple[str, ...] | None = None
    #: 1-D arrays with their attributes, by the names of dimensions.
    coordinates: dict[str, Vector]
    #: What the file says about the array, in plain types.
    attributes: dict[str, Any]
    #: The wavelengths of the bands.
    wavelengths: NDArray[np.float64] | None = None
    #: As the file writes them: ``"nm"``, ``"Micrometers"``.
    wavelength_units: str | None = None
    #: The axis of the bands, if the format defines one.
    band_axis: int | None = None
    #: Which pixels are data, for slices of rows and columns, if the file has a mask.
    mask: Callable[[slice, slice], NDArray[np.bool_]] | None = None
    #: What other formats cannot hold of this file, in words.
    unique: tuple[str, ...] = ()

    def __init__(self, thing: Any, name: str, **description: Any) -> None:
        self.thing, self.name = thing, name
        self.shape = tuple(int(length) for length in thing.shape)
        vars(self).update({"attributes": {}, "coordinates": {}} | description)
        self.files = description.get("files", [] if self.path is None else [self.path])
        #: The dtype of what ``read`` returns, in native byte order.
        self.dtype = np.dtype(thing.dtype).newbyteorder("=")
        if self.packing is not None:
            self.dtype = self.packing.dtype
            self.nodata = None if self.nodata is None else math.nan
        elif self.dtype.kind in "iu" and self.nodata is not None:
            is_whole = float(self.nodata).is_integer()
            self.nodata = int(self.nodata) if is_whole else self.nodata
        self._closing: weakref.finalize[Any, Any] | None = None
        if self.dtype.kind not in "fiub":
            raise self.error(f"holds {self.dtype} values; real numbers are needed")
        if min(self.shape, default=0) < 1:
            raise self.error(f"has shape {self.shape}; it must not be empty")

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The shape of the parts in which it is stored, the largest of them where they differ."""
        chunks = getattr(self.thing, "shards", None) or getattr(self.thing, "chunks", None)
        if chunks is None:
            return None
        # Dask has the lengths of all chunks along an axis.
        return tuple(c if isinstance(c, int) else max(c) for c in chunks)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def read(self, key: Key) -> NDArray[Any]:
        """Read a part of the array.

        Parameters
        ----------
        key : tuple of slice
            One slice per dimension, without a step; dimensions after the last slice are read whole.

        Returns
        -------
        array
            The numbers, in memory of their own or as a view, which must not be written to.

        Raises
        ------
        StoredArrayError
            If the numbers are not there: the file was cut off, is damaged or cannot be read.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.io.stored import open_array
        >>> open_array(np.arange(6).reshape(2, 3)).read((slice(0, 1), slice(1, 3)))
        array([[1, 2]])
        """
        key = (*key, *[slice(None)] * (self.ndim - len(key)))
        parts = [range(n)[part] for part, n in zip(key, self.shape, strict=True)]
        if any(part.step != 1 for part in parts):
            raise ValueError(f"{self.name}: {key} has a step; give slices of step one.")
        key = tuple(slice(part.start, part.stop) for part in parts)
        expected = tuple(map(len, parts))
        if 0 in expected:
            return np.empty(expected, self.dtype)
        if self._closing is not None and not self._closing.alive:
            raise self.error("is closed; open it again")
        place = ", ".join(f"{part.start}:{part.stop}" for part in key)
        with told_as(f"{self} cannot be read at [{place}]"):
            values = np.asarray(self.thing[key])
        if values.shape != expected:
            raise self.error(f"returned values of shape {values.shape}, not {expected}")
        if self.packing is not None:
            return self.packing.unpack(values)
        return values.astype(self.dtype, copy=False)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Consecutive entries of the first axis."""
        return self.read((rows,))

    def error(self, problem: str) -> StoredArrayError:
        """An error that names the array."""
        return StoredArrayError(f"{self} {problem.rstrip('.')}.")

    def close(self) -> None:
        """Close the file; nothing can be read after that. It may be called again."""
        if self._closing is not None:
            self._closing()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.format == "memory" or self.path is None:
            return open_array, (self.thing,)
        return _reopened, (self.format, self.path, self.dataset, self.shape, self.dtype)

    def __str__(self) -> str:
        is_inside = self.dataset is not None and self.path is not None
        return f"{self.name} ({self.dataset})" if is_inside else self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.shape} {self.dtype.name}>"


def open_array(thing: Any, dataset: str | None = None) -> StoredArray:
    """Open the array in a file, or any array-like object, to read it a part at a time.

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
        The array; nothing but a header has been read.

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
    ...     with open_array(path) as array:
    ...         part = array.read((slice(0, 1), slice(1, 3), slice(None)))
    >>> array.shape, part.tolist()
    ((2, 3, 4), [[[4, 5, 6, 7], [8, 9, 10, 11]]])
    """
    if isinstance(thing, str | os.PathLike):
        return _open_path(Path(os.path.abspath(thing)), dataset)
    array = thing if isinstance(thing, StoredArray) else module_of("memory").wrap(thing)
    if dataset is not None:
        raise array.error(_ONE_ARRAY.format(dataset))
    return array


def need(library: str, what: str) -> Any:
    """An optional library, or an error that says how to get it."""
    try:
        return importlib.import_module(library)
    except ImportError as problem:
        raise ImportError(
            f"{what} needs the package {library.partition('.')[0]}, which is not installed: "
            "pip install '.[io]' in the checkout of kronlearn."
        ) from problem


def module_of(name: str) -> Any:
    """The module of a format."""
    return importlib.import_module(f"kronlearn.io.formats.{name}")


def format_by_ending(path: Path) -> str | None:
    """The format that a name stands for; None if it is not known."""
    ending = path.suffix.lower()
    return next((name for name, (_, endings, _) in _FORMATS.items() if ending in endings), None)


def format_by_start(path: Path) -> str | None:
    """The format that the first bytes of a file say; None if they say none."""
    with open(path, "rb") as file:
        start = file.read(16)
    return next((name for name, (*_, s) in _FORMATS.items() if start.startswith(s)), None)


def _format_of(path: Path) -> str:
    """The format of a file or folder: what its first bytes say, or else its name."""
    named = format_by_ending(path)
    if path.is_dir():
        is_zarr = named == "zarr" or module_of("zarr").is_store(path)
        return "zarr" if is_zarr else "image_folder"
    if not path.is_file():
        raise StoredArrayError(f"{path} is not a regular file.")
    if path.stat().st_size == 0:
        raise StoredArrayError(f"{path} is empty: it has 0 bytes.")
    if path.suffix.lower() == ".npz":
        raise StoredArrayError(
            f"{path} is a NumPy archive of several arrays (.npz); save the one you need as .npy, "
            "which is read a part at a time."
        )
    if named is None and module_of("envi").header_of(path) is not None:
        return "envi"
    with told_as(f"{path} cannot be read"):
        found = format_by_start(path) or named
    if found is None:
        raise StoredArrayError(f"{path} is in no known format; kronlearn reads {KNOWN}.")
    return found


def _open_path(path: Path, dataset: str | None, known: str | None = None) -> StoredArray:
    """The array of a file, whose format may be known already."""
    if not path.exists():
        raise StoredArrayNotFoundError(f"{path} does not exist.")
    name = known or _format_of(path)
    words = f"cannot be read as {_FORMATS[name][0]}; it is damaged, cut off or not such a file"
    with told_as(f"{path} {words}"), ExitStack() as files:
        thing, description = module_of(name).open_file(path, dataset, files)
        is_in_file = isinstance(thing, module_of("npy").FileArray)
        if is_in_file:
            files.callback(thing.close)
        array = StoredArray(thing, str(path), **{"format": name, "path": path} | description)
        if dataset is not None and array.dataset is None:
            raise array.error(_ONE_ARRAY.format(dataset))
        if is_in_file:
            module_of("npy").check_size(array)
        array._closing = weakref.finalize(array, files.pop_all().close)
    return array


@contextmanager
def told_as(words: str, error: type[ValueError] = StoredArrayError) -> Iterator[None]:
    """Errors of the libraries that read files become errors of this class, behind these words.

    Libraries have all kinds of errors for damaged files: KeyError, zlib.error, OSError, …
    """
    try:
        yield
    except (error, ImportError, MemoryError):
        raise
    except Exception as problem:
        # rasterio's errors speak of the one that they were raised from.
        text = str(problem.__cause__ or problem).strip().rstrip(".") or type(problem).__name__
        raise error(f"{words}: {text}.") from problem


def _reopened(
    name: str, path: Path, dataset: str | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> StoredArray:
    array = _open_path(path, dataset, name)
    if (array.shape, array.dtype) != (shape, dtype):
        raise array.error(
            f"has shape {array.shape} and dtype {array.dtype} now, but had {shape} and {dtype} "
            "when it was first opened: the file has changed"
        )
    return array
