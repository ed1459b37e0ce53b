"""What names say: which array of a file is meant, which is the axis of the bands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.stored import StoredArrayError

__all__ = ["BAND_NAMES", "SPACE_NAMES", "choose", "plain", "wavelengths_among"]

WAVELENGTH_NAMES = frozenset(
    {"wavelength", "wavelengths", "wavelength_nm", "wavelengths_nm", "wl", "wvl", "lambda"}
    | {"center_wavelength", "central_wavelength", "centre_wavelength"}
)
#: Names that the dimension of the bands goes by, in lower case.
BAND_NAMES = WAVELENGTH_NAMES | frozenset(
    {"band", "bands", "channel", "channels", "spectral", "spectrum", "spectra", "wave"}
    | {"wavenumber", "frequency", "z"}
)
#: Names that the dimensions of an image go by.
SPACE_NAMES = frozenset(
    {"x", "y", "row", "rows", "col", "cols", "column", "columns", "line", "lines", "sample"}
    | {"samples", "lat", "lon", "latitude", "longitude", "easting", "northing", "height", "width"}
    | {"downtrack", "crosstrack"}
)


def choose(name: str, found: Mapping[str, Any], dataset: str | None) -> str:
    """The name of the array that is meant among those of a container.

    Parameters
    ----------
    name : str
        Of the container, for messages.
    found : dict of objects with shape and dtype
    dataset : str or None
        The name that was asked for.
    """
    numeric = {k: v for k, v in found.items() if np.dtype(v.dtype).kind in "fiub"}
    listing = ", ".join(f"{k} {tuple(v.shape)}" for k, v in list(numeric.items())[:12])
    listing += ", …" if len(numeric) > 12 else ""
    if dataset is not None:
        name_inside = dataset.strip("/")
        if name_inside in found:
            return name_inside
        endings = [key for key in found if key.endswith(f"/{name_inside}")]
        if len(endings) == 1:
            return endings[0]
        raise StoredArrayError(
            f"{name} has no array {dataset!r}; its arrays of numbers are: {listing or 'none'}."
        )
    arrays = {k: v for k, v in numeric.items() if len(v.shape) >= 2 and math.prod(v.shape) > 0}
    if not arrays:
        raise StoredArrayError(
            f"{name} holds no array of numbers with two dimensions or more; its arrays of numbers "
            f"are: {listing or 'none'}."
        )
    most = max(len(v.shape) for v in arrays.values())
    deepest = [k for k, v in arrays.items() if len(v.shape) == most]
    if len(deepest) > 1:
        raise StoredArrayError(
            f"{name} holds several arrays that could be meant ({listing}); name one with dataset= "
            "(for samples: kronlearn.io.stored.open_array(path, dataset=...))."
        )
    return deepest[0]


def wavelengths_among(arrays: Mapping[str, Any]) -> NDArray[np.float64] | None:
    """The 1-D array of numbers whose name says that it holds wavelengths."""
    for name, values in arrays.items():
        if name.lower() in WAVELENGTH_NAMES or name.rpartition("/")[2].lower() in WAVELENGTH_NAMES:
            numbers = np.asarray(values)
            numbers = numbers.reshape(-1) if 1 in numbers.shape else numbers
            if numbers.ndim == 1 and numbers.dtype.kind in "fiu":
                return numbers.astype(np.float64)
    return None


def plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as Python's own types, leaving out what has no such form (references, …)."""
    result = {}
    for name, value in attributes.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiubUS":
            value = value.reshape(-1)[0] if value.size == 1 else value.tolist()
        if isinstance(value, np.generic) and value.dtype.kind in "fiubUS":
            value = value.item()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str | int | float | bool | list | tuple | dict | None):
            result[str(name)] = value
    return result
