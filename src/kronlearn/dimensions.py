"""The roles of the dimensions of a labelled array: space, bands or channels, and others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from kronlearn.io.formats.conventions import BAND_NAMES, WAVELENGTH_NAMES
from kronlearn.io.stored import open_array

__all__ = ["Layout"]

_CHANNEL_NAMES = {"channel", "channels", "color", "colour", "rgb", "rgba", "c"}
# "z" is as often the third dimension of a volume.
_BAND_NAMES = BAND_NAMES - _CHANNEL_NAMES - {"z"}


@dataclass(frozen=True)
class Layout:
    """The roles of the dimensions of an array.

    ``spatial`` are those of an image; ``bands`` is that of the bands of a cube, or of the channels
    of an image, or None. Images and cubes along any other dimension are independent. ``bad_bands``
    marks the bands that the array declares as bad; it is None if there are none.
    """

    array: xr.DataArray
    spatial: tuple[Hashable, ...]
    bands: Hashable | None
    is_cube: bool
    nodata: float | int | None
    bad_bands: NDArray[np.bool_] | None

    @classmethod
    def of(
        cls,
        array: xr.DataArray,
        dims: Sequence[Hashable] | None,
        band_dim: Hashable | None,
        channel_dim: Hashable | None,
    ) -> Layout:
        """Take the roles from the arguments, and guess those that are None."""
        names = ", ".join(map(repr, array.dims)) or "(none)"
        named = [*([] if dims is None else dims), band_dim, channel_dim]
        unknown = [dim for dim in named if dim is not None and dim not in array.dims]
        if unknown:
            raise ValueError(f"The array has no dimension {unknown[0]!r}; it has {names}.")
        if band_dim is not None and channel_dim is not None:
            raise ValueError("Pass band_dim for a cube or channel_dim for an image, not both.")
        if band_dim is None and channel_dim is None:
            band_dim, channel_dim = _guessed(array, dims or ())
        bands = channel_dim if band_dim is None else band_dim
        spatial = tuple(dims or _spatial(array, bands, names))
        is_cube = band_dim is not None
        if bands in spatial or len(set(spatial)) < len(spatial) or (is_cube and len(spatial) != 2):
            raise ValueError(
                f"dims={spatial} are not the dimensions of an image with bands or channels along "
                f"{bands!r}; pass two that differ from it and from each other."
            )
        stored = open_array(array)
        bad = np.array(stored.attributes.get("bbl", ())) == 0 if is_cube else np.zeros(0, bool)
        # Of an array cut from another one, the attribute has too many entries.
        bad_bands = bad if bad.shape == (array.sizes.get(bands),) and bad.any() else None
        return cls(array, spatial, bands, is_cube, stored.nodata, bad_bands)

    @property
    def core(self) -> tuple[Hashable, ...]:
        """The dimensions of one image or cube, that of bands or channels last."""
        return self.spatial if self.bands is None else (*self.spatial, self.bands)

    @property
    def others(self) -> tuple[Hashable, ...]:
        """The dimensions along which images or cubes are independent."""
        return tuple(dim for dim in self.array.dims if dim not in self.core)

    def each(
        self,
        function: Callable[..., NDArray[Any]],
        *,
        output: Hashable | None = None,
        dtype: np.dtype[Any] | None = None,
        **parameters: Any,
    ) -> xr.DataArray:
        """Apply a function to every image or cube.

        It returns an image or cube of the same shape or, if ``dtype`` is given, numbers of that
        dtype: one along each entry of the dimension ``output``, or a single one if that is None.
        """
        result_dims = self.core
        if dtype is not None:
            result_dims = () if output is None else (output,)
        channel_axis = None if self.bands is None else -1
        return xr.apply_ufunc(
            partial(function, channel_axis=channel_axis, nodata=self.nodata, **parameters),
            self.array,
            input_core_dims=[self.core],
            output_core_dims=[result_dims],
            vectorize=True,
            dask="parallelized",
            output_dtypes=[dtype or self.array.dtype],
            dask_gufunc_kwargs={"allow_rechunk": True},
        )

    def each_cube(self, function: Callable[[Any], Any]) -> xr.DataArray:
        """Apply a function of Dask arrays (rows, columns, bands) to every cube."""
        from dask.array import stack

        data = self.array.transpose(*self.others, *self.core).data
        lengths = data.shape[: len(self.others)]
        results = [function(data[index]) for index in np.ndindex(lengths)]
        shape = (*lengths, *results[0].shape)
        dims = (*self.others, *self.core[-results[0].ndim :])
        coords = {k: v for k, v in self.array.coords.items() if set(v.dims) <= set(dims)}
        return xr.DataArray(stack(results).reshape(shape), dims=dims, coords=coords)

    def restored(self, result: xr.DataArray) -> xr.DataArray:
        """The array with the values of a result, whose dimensions may be in another order."""
        data = result.transpose(*self.array.dims).data
        if self.array.chunks is not None:
            data = data.rechunk(self.array.chunks)
        return self.array.copy(data=data)


def _guessed(
    array: xr.DataArray, dims: Sequence[Hashable]
) -> tuple[Hashable | None, Hashable | None]:
    """The dimension of the bands and that of the channels; at least one is None."""
    candidates = [dim for dim in array.dims if dim not in dims and array.sizes[dim] > 1]
    waves = {
        coordinate.dims[0]
        for name, coordinate in array.coords.items()
        if str(name).lower() in WAVELENGTH_NAMES and coordinate.ndim == 1
    }
    bands = [dim for dim in candidates if dim in waves or str(dim).lower() in _BAND_NAMES]
    if len(bands) > 1:
        raise ValueError(
            f"The bands could lie along {' or '.join(map(repr, bands))}; pass band_dim="
            f"{bands[0]!r}, for example."
        )
    if bands:
        return bands[0], None
    channels = [dim for dim in candidates if str(dim).lower() in _CHANNEL_NAMES]
    return None, channels[0] if len(channels) == 1 else None


def _spatial(array: xr.DataArray, bands: Hashable | None, names: str) -> list[Hashable]:
    """The dimensions that are neither bands nor times nor of length one, if these are two."""
    rest = [dim for dim in array.dims if dim != bands]
    if len(rest) > 2:
        rest = [dim for dim in rest if str(dim).lower() != "time" and array[dim].dtype.kind != "M"]
    if len(rest) != 2:
        rest = [dim for dim in rest if array.sizes[dim] > 1]
    if len(rest) != 2:
        example = f"{rest[-2]!r}, {rest[-1]!r}" if len(rest) > 2 else "'y', 'x'"
        raise ValueError(
            f"It is not clear which of the dimensions {names} are those of an image; pass "
            f"dims=({example}), for example, and band_dim or channel_dim if there is one."
        )
    return rest
