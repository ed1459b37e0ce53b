"""``DataArray.kron``: denoise, inpaint and learn from labelled arrays.

Importing this module registers the accessor with xarray.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from kronlearn import hyperspectral
from kronlearn.dimensions import Layout
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.hyperspectral.lazy import denoise_lazily, estimate_noise_lazily
from kronlearn.missing import (
    denoise_cube,
    denoise_image,
    inpaint_image,
    noise_of_cube,
    noise_of_image,
)

__all__ = ["KronAccessor"]

# Parameters that follow from the array and its dimensions.
_NOT_CHOSEN = {"band_axis", "channel_axis", "dataset", "dtype", "full", "mask", "nodata", "out"}
_NOT_CHOSEN |= {"bad_bands"}


@xr.register_dataarray_accessor("kron")
class KronAccessor:
    """The attribute ``kron`` of a :class:`xarray.DataArray`: denoising, inpainting and learning.

    All methods take the names of dimensions. ``dims`` are the two dimensions of an image, or three
    of a volume; by default the two that hold neither bands nor channels nor times. ``band_dim`` is
    the dimension of the bands of a hyperspectral cube, whose pixels are spectra; ``channel_dim``
    that of the channels of an image, such as colours. If neither is given, a dimension with a
    coordinate of wavelengths, or with a name like "band" or "wavelength", holds bands, and one
    named "channel" or "rgb" holds channels. Images and cubes along any other dimension are
    processed one by one.

    Results have the name, coordinates, attributes, encoding, dtype and chunks of the array.
    Missing values are NaN and the value that the attribute ``_FillValue``, ``missing_value`` or
    ``nodata`` declares.

    Parameters
    ----------
    array : xarray.DataArray
        The array, which may be chunked by Dask.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import kronlearn.xarray
    >>> noisy = np.random.default_rng(0).normal(100, 5, (3, 48, 64))
    >>> array = xr.DataArray(noisy, dims=("time", "y", "x"), coords={"time": [2000, 2010, 2020]})
    >>> denoised = array.kron.denoise(dims=("y", "x"))
    >>> bool(denoised.std() < 2), denoised.time.values.tolist()
    (True, [2000, 2010, 2020])
    """

    def __init__(self, array: xr.DataArray) -> None:
        self._array = array

    def denoise(
        self,
        sigma: ArrayLike | None = None,
        *,
        dims: Sequence[Hashable] | None = None,
        band_dim: Hashable | None = None,
        channel_dim: Hashable | None = None,
        **parameters: Any,
    ) -> xr.DataArray:
        """Denoise images with ``images.denoise`` and cubes with ``hyperspectral.denoise``.

        Missing values stay missing, and bands that a coordinate or attribute ``bbl``, or a
        coordinate ``good_wavelengths``, marks as bad stay as they are. A chunked array is not read
        until the result is computed; each image is one task, and a cube is denoised in tiles and
        need not fit into memory.

        Parameters
        ----------
        sigma : float or sequence of float, optional
            The standard deviation of the noise, one number or one per band or channel; by default
            it is estimated for each image or cube.
        dims, band_dim, channel_dim : str or sequence of str, optional
            See the class.
        **parameters
            Other parameters of the function, such as ``artefacts``. For a chunked cube only
            ``quality``: finding artefacts needs the whole cube, and Dask sets the threads.

        Returns
        -------
        xarray.DataArray
            The denoised array.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import kronlearn.xarray
        >>> rng = np.random.default_rng(0)
        >>> clean = np.add.outer(rng.random(12), np.hypot(*np.mgrid[:48, :64] / 10))
        >>> noisy = xr.DataArray(rng.normal(clean, 0.2), dims=("band", "y", "x"))
        >>> bool(np.std(noisy.kron.denoise() - clean) < 0.06)
        True
        """
        layout = Layout.of(self._array, dims, band_dim, channel_dim)
        refused = parameters.keys() & _NOT_CHOSEN
        if refused:
            raise TypeError(f"{min(refused)}= cannot be chosen for a DataArray; leave it out.")
        if layout.is_cube and self._array.chunks is not None:
            refused = parameters.keys() - {"quality"}
            if refused:
                raise TypeError(
                    f"{min(refused)}= cannot be chosen for a chunked (Dask) cube, only sigma= and "
                    "quality= can; leave it out, or load the cube into memory with .load() first."
                )
            lazy = partial(
                denoise_lazily,
                sigma=sigma,
                nodata=layout.nodata,
                bad_bands=layout.bad_bands,
                **parameters,
            )
            return layout.restored(layout.each_cube(lazy))
        if layout.is_cube:
            parameters["bad_bands"] = layout.bad_bands
        denoise = denoise_cube if layout.is_cube else denoise_image
        return layout.restored(layout.each(denoise, sigma=sigma, **parameters))

    def estimate_noise(
        self,
        *,
        dims: Sequence[Hashable] | None = None,
        band_dim: Hashable | None = None,
        channel_dim: Hashable | None = None,
    ) -> xr.DataArray:
        """Estimate the standard deviation of the noise of every image, channel or band.

        It is NaN where all values are missing, and for bands marked as bad. For a chunked cube, it
        is estimated from tiles all over the cube, and NaN for bands without data in these.

        Parameters
        ----------
        dims, band_dim, channel_dim : str or sequence of str, optional
            See the class.

        Returns
        -------
        xarray.DataArray
            The noise along all dimensions but those of an image; lazy for a chunked array.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import kronlearn.xarray
        >>> rng = np.random.default_rng(0)
        >>> noise = rng.normal(0, [[[1]], [[3]]], (2, 64, 64))
        >>> xr.DataArray(noise, dims=("band", "y", "x")).kron.estimate_noise().round().values
        array([1., 3.])
        """
        layout = Layout.of(self._array, dims, band_dim, channel_dim)
        if layout.is_cube and self._array.chunks is not None:
            lazy = partial(estimate_noise_lazily, nodata=layout.nodata, bad_bands=layout.bad_bands)
            sigma = layout.each_cube(lazy)
        else:
            bad_bands = {"bad_bands": layout.bad_bands} if layout.is_cube else {}
            estimate = noise_of_cube if layout.is_cube else noise_of_image
            number = np.dtype(np.float64)
            sigma = layout.each(estimate, output=layout.bands, dtype=number, **bad_bands)
        units = {k: v for k, v in self._array.attrs.items() if k == "units"}
        return sigma.rename("noise").assign_attrs(units)

    def inpaint(
        self,
        *,
        dims: Sequence[Hashable] | None = None,
        band_dim: Hashable | None = None,
        channel_dim: Hashable | None = None,
        **parameters: Any,
    ) -> xr.DataArray:
        """Fill in missing values with :func:`kronlearn.images.inpaint`.

        All other values are unchanged. A chunked array is not read until the result is computed;
        each image, with all its bands, is one task.

        Parameters
        ----------
        dims, band_dim, channel_dim : str or sequence of str, optional
            See the class.
        **parameters
            Other parameters of the function, such as ``stages``.

        Returns
        -------
        xarray.DataArray
            The array without missing values.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import kronlearn.xarray
        >>> array = xr.DataArray(np.add.outer(np.arange(32.0), np.arange(32.0)), dims=("y", "x"))
        >>> filled = array.where(array != 12).kron.inpaint(stages=1)
        >>> bool(abs(filled - array).max() < 1)
        True
        """
        layout = Layout.of(self._array, dims, band_dim, channel_dim)
        return layout.restored(layout.each(inpaint_image, **parameters))

    def learn(
        self,
        patch_shape: Sequence[int] = (8, 8),
        n_atoms: tuple[int, ...] | int | None = None,
        n_nonzero_coefs: int | None = 6,
        *,
        dims: Sequence[Hashable] | None = None,
        band_dim: Hashable | None = None,
        channel_dim: Hashable | None = None,
        **parameters: Any,
    ) -> KroneckerDictionaryLearning:
        """Learn a dictionary from the patches of an image or cube.

        Patches with missing values are left out. A chunked array is read in blocks of rows in
        every iteration, and need not fit into memory.

        Parameters
        ----------
        patch_shape : (int, int) or (int, int, int)
            The size of a patch along ``dims`` and, for three modes, along the bands.
        n_atoms, n_nonzero_coefs : tuple of int or int, optional
            See :func:`kronlearn.hyperspectral.learn`.
        dims, band_dim, channel_dim : str or sequence of str, optional
            See the class.
        **parameters
            Other parameters of :func:`kronlearn.hyperspectral.learn`.

        Returns
        -------
        KroneckerDictionaryLearning
            The fitted model.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import kronlearn.xarray
        >>> array = xr.DataArray(np.random.default_rng(0).random((64, 64)), dims=("y", "x"))
        >>> array.kron.learn((8, 8), max_iter=2, random_state=0).dictionary_
        KroneckerDictionary(patch_shape=(8, 8), n_atoms=(16, 16), dtype=float64)
        """
        layout = Layout.of(self._array, dims, band_dim, channel_dim)
        others = [dim for dim in layout.others if self._array.sizes[dim] > 1]
        if others:
            raise ValueError(
                f"A dictionary is learned from one image or cube; choose one along {others[0]!r} "
                f"with isel, or pass band_dim={others[0]!r} to learn from all of them."
            )
        cube = self._array.isel(dict.fromkeys(layout.others, 0)).transpose(*layout.core)
        band_axis = None if layout.bands is None else 2
        return hyperspectral.learn(
            cube, patch_shape, n_atoms, n_nonzero_coefs, band_axis=band_axis, **parameters
        )
