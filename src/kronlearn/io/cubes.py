"""Cubes (rows, columns, bands) in memory and files, whatever the order of their axes there."""

from __future__ import annotations

import math
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kronlearn.io.band_axis import cube_axes
from kronlearn.io.conversion import bands_last, converted, fits, float_dtype, in_stored_order
from kronlearn.io.formats.conventions import PER_BAND
from kronlearn.io.stored import PathLike, StoredArray, StoredArrayError, open_array
from kronlearn.io.writers import CubeWriter

__all__ = ["Cube", "CubeWriter", "open_cube"]


class Cube(AbstractContextManager["Cube"]):
    """A cube of shape (rows, columns, bands), whatever the order of its axes in the file.

    Made by :func:`open_cube`. Several threads may read it, and it can be sent to other processes.
    The file is closed by ``close``, at the end of a ``with`` block, or when the cube is
    garbage-collected.

    Parameters
    ----------
    stored : StoredArray
        The array as it is stored; also an attribute.
    axes : tuple of int
        The axes of that array that are the rows, the columns and, if there is one, the bands; also
        an attribute.
    reason : str
        How the axis of the bands was found out; the attribute ``band_axis_reason``.
    nodata : float, int or None
        The value that marks missing data, if it differs from that of the file.

    Attributes
    ----------
    shape : tuple of int
        (rows, columns, bands).
    dtype : dtype
    name : str
        What error messages call the cube: its path, or the type of the object.
    chunks : tuple of int or None
        (rows, columns, bands) of the chunks in which it is stored; whole chunks are read fastest.
    nodata : float, int or None
        The value that marks missing data, which may be NaN.
    attributes : dict
        The attributes of the array in the file, as plain Python types. ``crs`` and ``transform``
        are its georeference.
    wavelengths : array of shape (bands,) or None
    wavelength_units : str or None
        The unit of the wavelengths as the file spells it: ``"nm"``, ``"Micrometers"``.
    bad_bands : bool array of shape (bands,) or None
        The bands that the file marks as bad (ENVI's ``bbl``), which denoising leaves as they are.
        Set it to choose others (one bool per band), or to None for none.
    per_band : dict of array
        Attributes with one entry per band, by their names in ENVI headers: ``"band names"``,
        ``"fwhm"``, ``"bbl"``, ``"data gain values"`` and ``"data offset values"``.
    band_axis : int or None
        The axis of the bands in the stored array; None for one band in two dimensions.

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
        self.shape = self._bands_last(stored.shape)
        self.chunks = None if stored.chunks is None else self._bands_last(stored.chunks)
        self.wavelengths = self._one_per_band("wavelength", stored.wavelengths)
        self.wavelength_units = stored.wavelength_units
        lists = {name: self._one_per_band(name, self.attributes.get(name)) for name in PER_BAND}
        self.per_band = {name: values for name, values in lists.items() if values is not None}
        bad = self.per_band.get("bbl", np.ones(1)) == 0
        self.bad_bands = bad if bad.any() else None

    @property
    def bad_bands(self) -> NDArray[np.bool_] | None:
        """The bands marked as bad, a bool array of shape (bands,) or None."""
        return self._bad_bands

    @bad_bands.setter
    def bad_bands(self, bad_bands: ArrayLike | None) -> None:
        mask = None if bad_bands is None else np.asarray(bad_bands)
        if mask is not None and (mask.dtype != bool or mask.shape != (self.shape[2],)):
            # Numbers could also be those of ENVI's bbl, in which 1 is a good band.
            raise ValueError(
                f"bad_bands must be None or {self.shape[2]} bools, one per band of {self.name}; to "
                f"mark bands by their numbers, use np.isin(np.arange({self.shape[2]}), numbers)."
            )
        self._bad_bands = mask

    @property
    def band_axis_is_guess(self) -> bool:
        """Whether the axis of the bands was guessed from the shape alone."""
        return self.band_axis_reason.startswith("guessed")

    @property
    def may_miss_values(self) -> bool:
        """Whether values can be missing: there is a nodata value or a mask."""
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
            If the file is truncated, damaged or cannot be read.

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
        """Read a part of the cube, and determine which of its values are valid.

        Parameters
        ----------
        rows, columns, bands : slice
            As for :meth:`read`.

        Returns
        -------
        values : array of shape (rows, columns, bands)
            The values; do not write to them.
        valid : bool array of the same shape, or None
            Which of them are valid; None if all are.

        Raises
        ------
        StoredArrayError
            If there is no nodata value and a value is NaN or infinite, unless the mask of the file
            marks it as missing.

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
            self._raise_not_finite(~valid & inside, values, (rows, columns, bands))
        valid &= inside
        if self.nodata is not None and fits(self.nodata, self.dtype):
            # Compared in the precision of the file: −9999.9 is another number in float32.
            valid &= values != self.dtype.type(self.nodata)
        return values, None if valid.all() else valid

    def like(self, values: NDArray[Any], dtype: DTypeLike | None = None) -> Any:
        """Return new values for the whole cube in an array like that of the cube.

        Parameters
        ----------
        values : array of shape (rows, columns, bands)
            The values; for a cube of integers they are rounded and clipped.
        dtype : float32 or float64, optional
            The dtype of the result; by default that of the cube.

        Returns
        -------
        numpy.ndarray, or xarray.DataArray with the coordinates and attributes of the input
            The values, with the axes in the order of the input.

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
        dtype = self.dtype if dtype is None else float_dtype(dtype)
        result = converted(values, dtype, self.nodata, self.name)
        result = np.ascontiguousarray(in_stored_order(result, self.axes)).reshape(self.stored.shape)
        original = self.stored.thing
        is_xarray = type(original).__module__.startswith("xarray")
        return original.copy(data=result) if is_xarray else result

    def create(
        self, path: PathLike, overwrite: bool = True, dtype: DTypeLike | None = None
    ) -> CubeWriter:
        """Create a file for new values of this cube, which are written row by row.

        The ending of the path determines the format. The file has the dtype, the order of axes and
        the metadata of this cube; a warning names metadata that the format cannot hold. (A NetCDF
        file has the bands first if the axes of this cube have no names.) The file appears when the
        ``with`` block ends; after an error everything is as before.

        Parameters
        ----------
        path : str or path
            The file to create.
        overwrite : bool, default True
            Whether an existing file may be replaced.
        dtype : float32 or float64, optional
            The dtype of the file; by default that of the cube. If it differs from that of the
            stored numbers, the other arrays of an HDF5, NetCDF or Zarr file are not copied.

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
        """Close the file of the cube. Calling it again does no harm.

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

    def _bands_last(self, lengths: tuple[int, ...]) -> tuple[int, int, int]:
        """Lengths along the axes of the stored array as (rows, columns, bands)."""
        rows, columns, bands = (*(lengths[axis] for axis in self.axes), 1)[:3]
        return rows, columns, bands

    def _one_per_band(self, name: str, entries: Any) -> NDArray[Any] | None:
        """A list from the file as an array; None, with a warning, if it does not fit the bands."""
        # rioxarray has single numbers under names of lists.
        is_list = isinstance(entries, list | tuple | np.ndarray) or self.shape[2] == 1
        if entries is None or self.band_axis is None or not is_list:
            return None
        try:
            values = np.atleast_1d(np.array(entries, str if name == "band names" else np.float64))
        except (TypeError, ValueError):
            problem = "is not a list of numbers"
        else:
            if values.shape == (self.shape[2],):
                return values
            # Wavelengths, for example, may be those of another array in the file.
            problem = f"has {len(values)} entries for {self.shape[2]} bands"
        warnings.warn(f"{self.name}: {name} {problem}; it is ignored.", stacklevel=4)
        return None

    def _raise_not_finite(
        self, wrong: NDArray[np.bool_], values: NDArray[Any], parts: tuple[slice | None, ...]
    ) -> None:
        """Raise the error for the first wrong value of a part of the cube."""
        index = np.argwhere(wrong)[0]
        starts = [(p or slice(None)).indices(n)[0] for p, n in zip(parts, self.shape, strict=True)]
        row, column, band = (int(i) + start for i, start in zip(index, starts, strict=True))
        kind = "NaN" if math.isnan(values[tuple(index)]) else "infinity"
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
    """Open a cube in a file, or wrap an array, to read it by rows, columns and bands.

    Only a header is read. To close the file, use the cube in a ``with`` block or ``close`` it.

    Parameters
    ----------
    thing : str, path or object
        A file: .npy, .zarr, .h5, .nc, .mat, ENVI, GeoTIFF; a folder of images, one per band; or an
        array of NumPy, Dask, Zarr, h5py or xarray. An array with two dimensions is one band; with
        more than three, axes of length one are left out.
    band_axis : int, optional
        The axis of the bands in the file. The default is that of the format or of the names of its
        dimensions, else the axis with as many entries as there are wavelengths, else a guess from
        the shape.
    dataset : str, optional
        The name of the array in a file that holds several. The default is the numeric array with
        the most dimensions, at least two, if there is only one such array.
    nodata : number, optional
        The value that marks missing data, if the file does not declare it or is wrong.

    Returns
    -------
    Cube
        The cube; its values are read when you ask for them.

    Raises
    ------
    StoredArrayError
        If the file is missing or damaged, or if it holds several arrays that could be meant. A kind
        of ``ValueError``.

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
        return Cube(stored, *cube_axes(stored, band_axis), nodata)
    if band_axis is None and dataset is None and nodata is None:
        return thing
    stored = open_array(thing.stored, dataset)
    nodata = thing.nodata if nodata is None else nodata
    if band_axis is not None:
        return Cube(stored, *cube_axes(stored, band_axis), nodata)
    cube = Cube(stored, thing.axes, thing.band_axis_reason, nodata)
    cube.bad_bands = thing.bad_bands
    return cube
