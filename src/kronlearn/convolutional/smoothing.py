"""The smooth part of an image, which sparse maps of small filters represent poorly."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dctn, idctn

from kronlearn.core.numbers import real_array
from kronlearn.images.planes import warn_of_colours
from kronlearn.parameters import check_number

__all__ = ["lowpass"]


def lowpass(
    image: ArrayLike, strength: float = 10.0, *, channel_axis: int | None = None
) -> NDArray[np.float64]:
    """Compute the smooth part of an image, to be subtracted before learning or coding.

    The smooth part z of an image y minimises ``Σ (z − y)² + strength · Σ ‖∇z‖²`` (Tikhonov), with
    mirrored edges. It contains structures larger than about ``2π √strength`` pixels.

    Parameters
    ----------
    image : array
        An image with any number of axes, without missing pixels.
    strength : float, default 10
        The larger, the smoother the result.
    channel_axis : int, optional
        An axis of channels, which are smoothed separately.

    Returns
    -------
    array
        The smooth part, in the shape of the image.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.convolutional import lowpass
    >>> ramp = np.linspace(0, 1, 64) * np.ones((64, 1))
    >>> bool(np.abs(lowpass(ramp) - ramp).max() < 0.05)
    True
    """
    array = real_array(image, "image")
    if channel_axis is not None and not -array.ndim <= channel_axis < array.ndim:
        raise ValueError(
            f"channel_axis={channel_axis} is not an axis of an image of shape {array.shape}."
        )
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("image must be finite and not empty; fill in missing pixels first.")
    check_number("strength", strength, "[0, inf)")
    if channel_axis is None:
        warn_of_colours(array.shape)
    axes = [a for a in range(array.ndim) if channel_axis is None or a != channel_axis % array.ndim]
    spectrum = dctn(array.astype(np.float64), axes=axes, norm="ortho")
    penalty = np.ones([1] * array.ndim)
    for axis in axes:
        size = array.shape[axis]
        along = 2 - 2 * np.cos(np.pi * np.arange(size) / size)
        penalty = penalty + strength * along.reshape(
            [size if a == axis else 1 for a in range(array.ndim)]
        )
    smooth: NDArray[np.float64] = idctn(spectrum / penalty, axes=axes, norm="ortho")
    return smooth
