"""Missing pixels: check a mask, and find the parts of an image that have to be processed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import find_objects, label, maximum_filter

from kronlearn.cuda.arrays import in_memory
from kronlearn.images.planes import Mask

__all__ = ["boxes_around", "channel_groups", "missing_pixels"]


def missing_pixels(channels: NDArray[Any], mask: ArrayLike, channel_axis: int | None) -> Mask:
    """Return the mask of an image as one of its channels (C, *spatial).

    Raises ValueError if the mask does not fit the image, hides all of a channel, or does not hide
    all pixels that are not finite.
    """
    given = np.asarray(in_memory(mask))
    if given.dtype.kind not in "biu":
        raise ValueError(f"mask has dtype {given.dtype}; pass booleans, True where missing.")
    missing: Mask = given != 0
    if missing.ndim == channels.ndim and channel_axis is not None:
        missing = np.moveaxis(missing, channel_axis, 0)
    if missing.shape not in (channels.shape, channels.shape[1:]):
        raise ValueError(
            f"mask has shape {given.shape}; it must have the image's spatial shape "
            f"{channels.shape[1:]} or the shape of the image."
        )
    missing = np.broadcast_to(missing, channels.shape)
    for channel, hidden in zip(channels, missing, strict=True):
        if hidden.all():
            raise ValueError("Every pixel of the image, or of a channel, is missing.")
        if not np.isfinite(channel).all(where=~hidden):
            raise ValueError(
                "image contains NaN or infinity where mask says pixels are known; mark them as "
                "missing."
            )
    return missing


def channel_groups(missing: Mask) -> list[list[int]]:
    """Group channels to be filled together: all, or each alone if they miss different pixels."""
    indices = list(range(len(missing)))
    if all(np.array_equal(missing[0], other) for other in missing[1:]):
        return [indices]
    return [[k] for k in indices]


def boxes_around(
    missing: Mask, halo: tuple[int, ...], step: tuple[int, ...]
) -> list[tuple[slice, ...]]:
    """Return disjoint boxes that contain all missing pixels, each with a halo around it.

    Boxes start at multiples of ``step``, so that patches lie where they would in the whole image.
    """
    covered = maximum_filter(missing, [2 * h + 1 for h in halo], mode="constant")
    while True:
        boxes = [
            tuple(slice(a.start // t * t, a.stop) for a, t in zip(box, step, strict=True))
            for box in find_objects(label(covered)[0])
        ]
        grown = np.zeros_like(covered)
        for box in boxes:
            grown[box] = True
        # Boxes that have grown into each other are joined in the next round.
        if np.array_equal(grown, covered):
            return boxes
        covered = grown
