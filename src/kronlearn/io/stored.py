"""Arrays in files, or in objects that behave like arrays, read a part at a time."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats import FORMATS, KNOWN, format_by_ending, format_by_start, format_module

if TYPE_CHECKING:
    from kronlearn.io.formats.conventions import Packing

__all__ = ["StoredArray", "StoredArrayError", "StoredArrayNotFoundError", "open_array"]

PathLike = str | os.PathLike[str]
Key = tuple[slice, ...]
#: The values along an axis, and their attributes.
Coordinate = tuple[NDArray[Any], dict[str, Any]]
#: What ``open_file`` of a format returns: the numbers, and attributes of their StoredArray.
Opened = tuple[Any, dict[str, Any]]

_ONE_ARRAY = "is a single array; leave out dataset={!r}"


class StoredArrayError(ValueError):
    """The error for an array that cannot be read: damaged, truncated, unknown or ambiguous."""


class StoredArrayNotFoundError(FileNotFoundError, StoredArrayError):
    """The error for a file or folder that does not exist."""


class StoredArray(AbstractContextManager["StoredArray"]):
    """An array of real numbers, in a file or an object, that is read a part at a time.

    Made by :func:`open_array`. Several threads may read it, and it can be sent to other processes,
    which open its file again. The file is closed by ``close``, at the end of a ``with`` block, or
    when the array is garbage-collected.

    Parameters
    ----------
    thing : object
        The stored numbers: an object with ``shape``, ``dtype``, ``__getitem__`` for a tuple of
        slices and, if it is stored in chunks, ``chunks``.
    name : str
        What error messages call the array: its path, or the type of the object.
    **description
        Values for the attributes below.
    """

    #: The name of the format, or "memory".
    format: str = "memory"
    #: The absolute path of the file or folder.
    path: Path | None = None
    #: The name of the array in the file.
    dataset: str | None = None
    #: All files and folders that the array is read from; none if it is in memory.
    files: list[Path]
    #: The value that marks missing data.
    nodata: float | int | None = None
    #: How the stored numbers become the values that ``read`` returns.
    packing: Packing | None = None
    #: Names of the dimensions.
    axes: tuple[str, ...] | None = None
    #: Values along the dimensions, with their attributes, by the names of the dimensions.
    coordinates: dict[str, Coordinate]
    #: The attributes of the array in the file, as plain Python types.
    attributes: dict[str, Any]
    #: The wavelengths of the bands.
    wavelengths: NDArray[np.float64] | None = None
    #: The unit of the wavelengths as the file spells it: ``"nm"``, ``"Micrometers"``.
    wavelength_units: str | None = None
    #: The axis of the bands, if the format defines one.
    band_axis: int | None = None
    #: Returns which pixels are data, for slices of rows and columns, if the file has a mask.
    mask: Callable[[slice, slice], NDArray[np.bool_]] | None = None
    #: Names of the metadata of this file that no other format can hold.
    format_specific: tuple[str, ...] = ()

    def __init__(self, thing: Any, name: str, **description: Any) -> None:
        self.thing, self.name = thing, name
        self.shape = tuple(int(length) for length in thing.shape)
        vars(self).update({"attributes": {}, "coordinates": {}} | description)
        self.files = description.get("files", [] if self.path is None else [self.path])
        #: The dtype of the values that ``read`` returns, in native byte order.
        self.dtype = np.dtype(thing.dtype).newbyteorder("=")
        if self.packing is not None:
            self.dtype = self.packing.dtype
        elif self.dtype.kind in "iu" and self.nodata is not None:
            is_whole = float(self.nodata).is_integer()
            self.nodata = int(self.nodata) if is_whole else self.nodata
        self._finalizer: weakref.finalize[Any, Any] | None = None
        if self.dtype.kind not in "fiub":
            raise self.error(f"holds {self.dtype} values; real numbers are needed")
        if min(self.shape, default=0) < 1:
            raise self.error(f"has shape {self.shape}; it must not be empty")

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The shape of the largest chunk, if the array is stored in chunks."""
        chunks = getattr(self.thing, "shards", None) or getattr(self.thing, "chunks", None)
        if chunks is None:
            return None
        # Dask lists the lengths of all chunks along an axis.
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
            One slice per dimension, of step one; dimensions after the last slice are read whole.

        Returns
        -------
        array
            The values; do not write to them, they may be a view.

        Raises
        ------
        StoredArrayError
            If the file is truncated, damaged or cannot be read.
        """
        if len(key) > self.ndim:
            raise ValueError(
                f"{self.name} has {self.ndim} dimensions, but {len(key)} slices were given."
            )
        key = (*key, *[slice(None)] * (self.ndim - len(key)))
        ranges = [range(n)[part] for part, n in zip(key, self.shape, strict=True)]
        if any(indices.step != 1 for indices in ranges):
            raise ValueError(f"{self.name}: {key} has a step; give slices of step one.")
        key = tuple(slice(indices.start, indices.stop) for indices in ranges)
        expected = tuple(map(len, ranges))
        if 0 in expected:
            return np.empty(expected, self.dtype)
        if self._finalizer is not None and not self._finalizer.alive:
            raise self.error("is closed; open it again")
        part = ", ".join(f"{axis.start}:{axis.stop}" for axis in key)
        with wrap_errors(f"{self} cannot be read at [{part}]"):
            values = np.asarray(self.thing[key])
        if values.shape != expected:
            raise self.error(f"returned values of shape {values.shape}, not {expected}")
        if values.dtype.kind in "fc" and np.dtype(self.thing.dtype).kind in "iub":
            raise self.error(f"returned {values.dtype} values, not {self.thing.dtype}")
        if self.packing is not None:
            return self.packing.unpack(values)
        return values.astype(self.dtype, copy=False)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read consecutive entries of the first axis."""
        return self.read((rows,))

    def error(self, problem: str) -> StoredArrayError:
        """An error whose message begins with the name of the array."""
        return StoredArrayError(f"{self} {problem.rstrip('.')}.")

    def close(self) -> None:
        """Close the file, after which nothing can be read. Calling it again does no harm."""
        if self._finalizer is not None:
            self._finalizer()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.format == "memory" or self.path is None:
            return open_array, (self.thing,)
        return _reopen, (self.format, self.path, self.dataset, self.shape, self.dtype)

    def __str__(self) -> str:
        is_inside = self.dataset is not None and self.path is not None
        return f"{self.name} ({self.dataset})" if is_inside else self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.shape} {self.dtype.name}>"


def open_array(thing: Any, dataset: str | None = None) -> StoredArray:
    """Open the array in a file, or wrap an array-like object, to read it a part at a time.

    Parameters
    ----------
    thing : str, path or object
        A file: .npy, .zarr, .h5, .nc, .mat, ENVI, GeoTIFF; a folder of images, one per band; or
        an array of NumPy, Dask, Zarr, h5py or xarray, or any object with ``shape``, ``dtype`` and
        ``__getitem__``.
    dataset : str, optional
        The name of the array in a file that holds several. The default is the numeric array with
        the most dimensions, at least two, if there is only one such array.

    Returns
    -------
    StoredArray
        The array; only a header has been read.

    Raises
    ------
    StoredArrayError
        If the file is missing or damaged, or if it holds several arrays that could be meant. A kind
        of ``ValueError``.

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
    array = thing if isinstance(thing, StoredArray) else format_module("memory").wrap(thing)
    if dataset is not None:
        raise array.error(_ONE_ARRAY.format(dataset))
    return array


@contextmanager
def wrap_errors(prefix: str, error: type[ValueError] = StoredArrayError) -> Iterator[None]:
    """Turn any error of the block into one of the given class, with a prefix to its message.

    Libraries raise all kinds of errors for damaged files: KeyError, zlib.error, OSError, …
    """
    try:
        yield
    except (error, ImportError, MemoryError):
        raise
    except Exception as problem:
        # The message of rasterio's errors refers to their cause, which has the details.
        text = str(problem.__cause__ or problem).strip().rstrip(".") or type(problem).__name__
        raise error(f"{prefix}: {text}.") from problem


def _open_path(path: Path, dataset: str | None, format_name: str | None = None) -> StoredArray:
    """Open the array in a file, whose format is detected unless given."""
    if not path.exists():
        raise StoredArrayNotFoundError(f"{path} does not exist.")
    name = format_name or _detect_format(path)
    prefix = (
        f"{path} cannot be read as {FORMATS[name].description}; it is damaged, truncated or not "
        "such a file"
    )
    with wrap_errors(prefix), ExitStack() as files:
        thing, description = format_module(name).open_file(path, dataset, files)
        array = StoredArray(thing, str(path), **{"format": name, "path": path} | description)
        if dataset is not None and array.dataset is None:
            raise array.error(_ONE_ARRAY.format(dataset))
        array._finalizer = weakref.finalize(array, files.pop_all().close)
    return array


def _detect_format(path: Path) -> str:
    """The name of a file's format, from its first bytes or, if these say nothing, its ending."""
    by_ending = format_by_ending(path)
    if path.is_dir():
        is_zarr = by_ending == "zarr" or format_module("zarr").is_store(path)
        return "zarr" if is_zarr else "image_folder"
    if not path.is_file():
        raise StoredArrayError(f"{path} is not a regular file.")
    if path.stat().st_size == 0:
        raise StoredArrayError(f"{path} is empty: it has 0 bytes.")
    if path.suffix.lower() == ".npz":
        raise StoredArrayError(
            f"{path} is a NumPy archive of several arrays (.npz); save the array you need as .npy, "
            "which can be read a part at a time."
        )
    if by_ending is None and format_module("envi").header_of(path) is not None:
        return "envi"
    with wrap_errors(f"{path} cannot be read"):
        name = format_by_start(path) or by_ending
    if name is None:
        raise StoredArrayError(f"{path} is in no known format; kronlearn reads {KNOWN}.")
    return name


def _reopen(
    format_name: str,
    path: Path,
    dataset: str | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> StoredArray:
    """Open the file of a pickled array again, and check that it is still the same array."""
    array = _open_path(path, dataset, format_name)
    if (array.shape, array.dtype) != (shape, dtype):
        raise array.error(
            f"has shape {array.shape} and dtype {array.dtype} now, but had {shape} and {dtype} "
            "when it was first opened: the file has changed"
        )
    return array
