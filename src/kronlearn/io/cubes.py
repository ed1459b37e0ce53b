"""Cubes of (rows, columns, bands), in memory or in files of any order, read and written by rows."""

from __future__ import annotations

import math
import operator
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kronlearn.io.conversion import bands_last, converted, fits, floating, in_stored_order
from kronlearn.io.formats.conventions import BAND_NAMES, PER_BAND, SPACE_NAMES
from kronlearn.io.stored import PathLike, StoredArray, StoredArrayError, open_array
from kronlearn.io.writers import CubeWriter

__all__ = ["Cube", "CubeWriter", "open_cube"]


class Cube(AbstractContextManager["Cube"]):
    """A cube of shape (rows, columns, bands), whatever the order of the axes where it is stored.

    Made by :func:`open_cube`. It can be sent to other processes and read by several threads. Its
    file is closed by ``close``, at the end of a ``with`` block, or when it is garbage-collected.

    Parameters
    ----------
    stored : StoredArray
        The array as it is stored; also an attribute.
    axes : tuple of int
        Its axes that are the rows, the columns and, if there is one, the bands; also an attribute.
    reason : str
        How the axis of the bands was found; the attribute ``band_axis_reason``.
    nodata : float, int or None
        The value that marks missing data, if it is not that of the file.

    Attributes
    ----------
    shape : tuple of int
        (rows, columns, bands).
    dtype : dtype
    name : str
        The path, or the type of an object, for messages.
    chunks : tuple of int or None
        (rows, columns, bands) of the parts in which it is stored; whole parts are read fastest.
    nodata : float, int or None
        The value that marks missing data, which may be NaN.
    attributes : dict
        What the file says about the array, in plain types. ``crs`` and ``transform`` say where on
        Earth the pixels are.
    wavelengths : array of shape (bands,) or None
    wavelength_units : str or None
        As the file writes them: ``"nm"``, ``"Micrometers"``.
    bad_bands : bool array of shape (bands,) or None
        Which bands the file marks as bad (ENVI's ``bbl``). Denoising leaves them as they are; set
        it to change which these are, or to None for none.
    per_band : dict of array
        What else the file lists for every band, by ENVI's names: ``"band names"``, ``"fwhm"``,
        ``"bbl"``, ``"data gain values"`` and ``"data offset values"``.
    band_axis : int or None
        The axis of the bands where it is stored; None for one band in two dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> cube = kl.hyperspectral.open_cube(np.zeros((5, 20, 30), np.int16), band_axis=0)
    >>> cube.shape, cube.axes
    ((20, 30, 5), (1, 2, 0))
    """

    def __init__(
        self,
        stored: StoredArray,
        axes: tuple[int, ...],
        reason: str,
        nodata: float | int | None = None,
    ) -> None:
        self.stored, self.axes, self.band_axis_reason = stored, axes, reason
        self.band_axis = axes[2] if len(axes) == 3 else None
        self.dtype, self.name, self.attributes = stored.dtype, stored.name, stored.attributes
        self.nodata = stored.nodata if nodata is None else nodata
        self.shape = self._turned(stored.shape)
        self.chunks = None if stored.chunks is None else self._turned(stored.chunks)
        self.wavelengths = self._listed("wavelength", stored.wavelengths)
        self.wavelength_units = stored.wavelength_units
        lists = {field: self._listed(field, self.attributes.get(field)) for field in PER_BAND}
        self.per_band = {field: found for field, found in lists.items() if found is not None}
        bad = self.per_band.get("bbl", np.ones(1)) == 0
        self.bad_bands: NDArray[np.bool_] | None = bad if bad.any() else None

    @property
    def band_axis_is_guess(self) -> bool:
        """Whether the axis of the bands was guessed from the shape alone."""
        return self.band_axis_reason.startswith("guessed")

    @property
    def may_miss_values(self) -> bool:
        """Whether anything says which values are missing."""
        return self.nodata is not None or self.stored.mask is not None

    def read(
        self, rows: slice, columns: slice | None = None, bands: slice | None = None
    ) -> NDArray[Any]:
        """Read a part of the cube.

        Parameters
        ----------
        rows, columns, bands : slice
            Of step one and within the cube; None means all.

        Returns
        -------
        array of shape (rows, columns, bands)
            The values; do not write to them.

        Raises
        ------
        StoredArrayError
            If the values are not there: the file was cut off, is damaged or cannot be read.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> cube = kl.hyperspectral.open_cube(np.zeros((5, 20, 30)), band_axis=0)
        >>> cube.read(slice(0, 8), bands=slice(0, 2)).shape
        (8, 30, 2)
        """
        parts = [part or slice(None) for part in (rows, columns, bands)]
        key = [slice(None)] * self.stored.ndim
        for axis, part in zip(self.axes, parts, strict=False):
            key[axis] = part
        values = bands_last(self.stored.read(tuple(key)), self.axes)
        return values if self.band_axis is not None else values[..., parts[2]]

    def read_checked(
        self, rows: slice, columns: slice | None = None, bands: slice | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Read a part of the cube, and find out which of its values are data.

        Parameters
        ----------
        rows, columns, bands : slice
            As for :meth:`read`.

        Returns
        -------
        values : array of shape (rows, columns, bands)
            The values; do not write to them.
        valid : bool array of the same shape, or None
            Which of them are data; None if all are.

        Raises
        ------
        StoredArrayError
            If a value that the mask of the file, if any, does not leave out is NaN or infinite, and
            no value is declared to mean no data.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> cube = kl.hyperspectral.open_cube(np.zeros((5, 20, 30)), band_axis=0)
        >>> values, valid = cube.read_checked(slice(0, 8))
        >>> valid is None
        True
        """
        values = self.read(rows, columns, bands)
        if self.dtype.kind != "f" and not self.may_miss_values:
            return values, None
        valid = np.isfinite(values) if self.dtype.kind == "f" else np.ones(values.shape, bool)
        inside = np.array(True)
        if self.stored.mask is not None:
            inside = self.stored.mask(rows, columns or slice(None))[..., None]
        if self.nodata is None and not valid.all(where=inside):
            self._refuse(~valid & inside, values, (rows, columns, bands))
        valid &= inside
        if self.nodata is not None and fits(self.nodata, self.dtype):
            # The file's value in the file's precision: −9999.9 is another number in float32.
            valid &= values != self.dtype.type(self.nodata)
        return values, None if valid.all() else valid

    def like(self, values: NDArray[Any], dtype: DTypeLike | None = None) -> Any:
        """Return new values for the whole cube as the kind of object that this one was made from.

        Parameters
        ----------
        values : array of shape (rows, columns, bands)
            The values; for a cube of integers they are rounded and kept in range.
        dtype : float32 or float64, optional
            The dtype of the result; by default that of the cube.

        Returns
        -------
        numpy.ndarray, or xarray.DataArray with the coordinates and attributes of the input
            The values with the order of axes of the input.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> cube = kl.hyperspectral.open_cube(np.zeros((5, 20, 30)), band_axis=0)
        >>> cube.like(np.ones((20, 30, 5))).shape
        (5, 20, 30)
        """
        if values.shape != self.shape:
            raise ValueError(f"values have shape {values.shape}; the cube has {self.shape}.")
        wanted = self.dtype if dtype is None else floating(dtype)
        result = converted(values, wanted, self.nodata, self.name)
        result = np.ascontiguousarray(in_stored_order(result, self.axes)).reshape(self.stored.shape)
        thing = self.stored.thing
        is_labelled = type(thing).__module__.startswith("xarray")
        return thing.copy(data=result) if is_labelled else result

    def create(
        self, path: PathLike, overwrite: bool = True, dtype: DTypeLike | None = None
    ) -> CubeWriter:
        """Create a file for new values of this cube, to be written row by row.

        The file has the format that its name says, the dtype and order of axes of this cube (a
        NetCDF file has the bands first where the axes of this cube have no names) and, as far as
        the format can hold them, its metadata; a warning names what it cannot hold. It appears when
        the ``with`` block ends; after an error everything is as before.

        Parameters
        ----------
        path : str or path
            The file to create.
        overwrite : bool, default True
            Whether a file that exists may be replaced.
        dtype : float32 or float64, optional
            The dtype of the numbers in the file; by default that of the cube. If it is another one,
            the other arrays of an HDF5, NetCDF or Zarr file are not copied.

        Returns
        -------
        CubeWriter
            A context manager whose ``write`` takes rows.

        Examples
        --------
        >>> import os, tempfile
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import open_cube
        >>> cube = open_cube(np.arange(24, dtype=np.int16).reshape(2, 3, 4), band_axis=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "twice.npy")
        ...     with cube.create(path) as out:
        ...         for row in range(3):
        ...             rows = slice(row, row + 1)
        ...             out.write(rows, 2.0 * cube.read(rows))
        ...     np.load(path)[1].tolist()
        [[24, 26, 28, 30], [32, 34, 36, 38], [40, 42, 44, 46]]
        """
        return CubeWriter(self, Path(path), overwrite, dtype)

    def close(self) -> None:
        """Close the file that the cube is read from. It may be called more than once.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> cube = kl.hyperspectral.open_cube(np.zeros((5, 20, 30)), band_axis=0)
        >>> cube.close()
        """
        self.stored.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _turned(self, lengths: tuple[int, ...]) -> tuple[int, int, int]:
        """Lengths in the array as (rows, columns, bands)."""
        rows, columns, bands = (*(lengths[axis] for axis in self.axes), 1)[:3]
        return rows, columns, bands

    def _listed(self, field: str, entries: Any) -> NDArray[Any] | None:
        """Entries as an array, one for each band; None, with a warning, if they are not that."""
        # The wavelengths of a file with several arrays may belong to another one, and rioxarray has
        # single numbers of these names.
        is_list = isinstance(entries, list | tuple | np.ndarray) or self.shape[2] == 1
        if entries is None or self.band_axis is None or not is_list:
            return None
        try:
            found = np.atleast_1d(np.array(entries, str if field == "band names" else np.float64))
            problem = f"has {len(found)} entries for {self.shape[2]} bands"
            is_wrong = found.shape != (self.shape[2],)
        except (TypeError, ValueError):
            problem, is_wrong = "is not a list of numbers", True
        if is_wrong:
            warnings.warn(f"{self.name}: {field} {problem}; it is ignored.", stacklevel=4)
        return None if is_wrong else found

    def _refuse(
        self, wrong: NDArray[np.bool_], values: NDArray[Any], parts: tuple[slice | None, ...]
    ) -> None:
        place = np.argwhere(wrong)[0]
        starts = [0 if part is None else part.start or 0 for part in parts]
        row, column, band = (int(i) + start for i, start in zip(place, starts, strict=True))
        kind = "NaN" if math.isnan(values[tuple(place)]) else "infinity"
        raise StoredArrayError(
            f"{self.name} contains {kind} at row {row}, column {column}, band {band}, but declares "
            "no nodata value; if NaN and infinity mark missing data, pass nodata=float('nan')."
        )

    def __repr__(self) -> str:
        return f"<Cube {self.name} {self.shape} {self.dtype.name}>"


def open_cube(
    thing: Any,
    band_axis: int | None = None,
    dataset: str | None = None,
    nodata: float | int | None = None,
) -> Cube:
    """Open a cube in a file, or behind an array, to be read by rows, columns and bands.

    Nothing but a header is read. Use it in a ``with`` block, or ``close`` it, to close its file.

    Parameters
    ----------
    thing : str, path or object
        A file: .npy, .zarr, .h5, .nc, .mat, ENVI, GeoTIFF; a folder of images, one per band; or an
        array of NumPy, Dask, Zarr, h5py or xarray. With two dimensions it is one band; axes of
        length one beyond three are left out.
    band_axis : int, optional
        The axis of the bands in the file. By default what the format or the names of its
        dimensions say, then the axis with as many entries as there are wavelengths; then a guess
        from the shape.
    dataset : str, optional
        The name of the array in a file that holds several. By default the only array of numbers
        with two dimensions or more, or the only one with the most dimensions.
    nodata : number, optional
        The value that means no data, where the file does not say it or says it wrongly.

    Returns
    -------
    Cube
        The cube; its values are read when you ask for them.

    Raises
    ------
    StoredArrayError
        If there is no such file, if it is damaged, or if it is not clear which array is meant. A
        kind of ``ValueError``.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> with kl.hyperspectral.open_cube(np.zeros((200, 145, 145), np.uint16)) as cube:
    ...     part = cube.read(slice(0, 8), slice(8, 16))
    >>> cube.shape, cube.band_axis, cube.band_axis_is_guess
    ((145, 145, 200), 0, True)
    >>> cube.band_axis_reason
    'guessed: the other two axes are equally long'
    >>> part.shape
    (8, 8, 200)
    """
    if not isinstance(thing, Cube):
        stored = open_array(thing, dataset)
        return Cube(stored, *_find_axes(stored, band_axis), nodata)
    if band_axis is None and dataset is None and nodata is None:
        return thing
    stored = open_array(thing.stored, dataset)
    # What is not given is as it was when the cube was opened.
    known = thing.axes, thing.band_axis_reason
    found = known if band_axis is None else _find_axes(stored, band_axis)
    again = Cube(stored, *found, thing.nodata if nodata is None else nodata)
    if band_axis is None:
        again.bad_bands = thing.bad_bands
    return again


def _find_axes(stored: StoredArray, given: int | None) -> tuple[tuple[int, ...], str]:
    """The axes of rows, columns and, if there is one, bands, and what speaks for that of the bands.

    Of more than three axes those of length one do not count.
    """
    shape, ndim = stored.shape, stored.ndim
    if given is not None and not -ndim <= operator.index(given) < ndim:
        raise stored.error(
            f"has shape {shape}: band_axis={given} does not exist; give a number from 0 to "
            f"{ndim - 1}"
        )
    bands = None if given is None else given % ndim
    axes = list(range(ndim))
    for axis in range(ndim):
        if len(axes) > 3 and shape[axis] == 1 and axis != bands:
            axes.remove(axis)
    if len(axes) not in (2, 3):
        raise stored.error(
            f"has shape {shape}; a cube has two or three dimensions, and any others have length one"
        )
    if len(axes) == 2:
        if given is not None:
            raise stored.error(
                f"has two dimensions, so it is one band; leave out band_axis={given}"
            )
        return tuple(axes), "one band: there are two dimensions"
    reason = "given"
    if bands is None:
        bands, reason = _found(stored, axes)
    elif stored.band_axis not in (None, bands):
        raise stored.error(
            f"has its bands along axis {stored.band_axis}, as its format says; leave out "
            f"band_axis={given}"
        )
    return (*(axis for axis in axes if axis != bands), bands), reason


def _found(stored: StoredArray, axes: list[int]) -> tuple[int, str]:
    if stored.band_axis is not None:
        order = str(stored.attributes.get("interleave", stored.format.replace("_", " ")))
        return stored.band_axis, f"the file says so ({order.lower()})"
    if stored.axes is not None:
        names = {axis: stored.axes[axis] for axis in axes}
        bands = [axis for axis, name in names.items() if name.lower() in BAND_NAMES]
        others = [axis for axis, name in names.items() if name.lower() not in SPACE_NAMES]
        if len(bands) == 1:
            return bands[0], f"named {names[bands[0]]!r}"
        if len(others) == 1:
            space = " and ".join(repr(names[axis]) for axis in axes if axis != others[0])
            return others[0], f"the other axes are named {space}"
    if stored.wavelengths is not None:
        count = len(stored.wavelengths)
        fitting = [axis for axis in axes if stored.shape[axis] == count]
        if len(fitting) == 1:
            return fitting[0], f"as long as the list of {count} wavelengths"
    return _guessed({axis: stored.shape[axis] for axis in axes})


def _guessed(lengths: dict[int, int]) -> tuple[int, str]:
    """The axis that the shape alone suggests."""
    for axis in lengths:
        one, other = (n for a, n in lengths.items() if a != axis)
        if one == other != lengths[axis]:
            return axis, "guessed: the other two axes are equally long"
    for axis in lengths:
        if 2 * lengths[axis] <= min(n for a, n in lengths.items() if a != axis):
            return axis, "guessed: the axis is by far the shortest"
    return max(lengths), "guessed: the last axis, because nothing suggests another"
