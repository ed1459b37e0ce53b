"""Channels as means and coefficients of patches, quantised, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.coding import sparse_code
from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.images.levels import neighbour_sums

__all__ = [
    "Layout",
    "Quantised",
    "analyse",
    "patches_to_code",
    "residual_tolerance",
    "synthesise",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Slope and curvature with which means continue into their neighbours; 1 would be the parabola
# through three means. Measured on photographs: less overshoots less at edges.
_SLOPE, _CURVE = 0.75, 0.5
# From this fraction of a step on a coefficient is rounded up, as smaller levels cost fewer bits;
# from zero only from the second on if all is quiet around it, as it then costs most.
_ROUND_UP, _LEAVE_ZERO = 0.55, 0.95
# How fast that difference vanishes with the mean size of the neighbours, in steps.
_UNREST = 4.0
# The error that may be left before quantisation by a dictionary that is not orthonormal, as the
# root mean square of a patch in steps.
_RESIDUAL = 0.25
# Levels with an offset of their own: 1, 2, and 3 or more. Offsets are in this fraction of a step.
_N_OFFSETS = 3
_OFFSET_UNIT = 1 / 128


@dataclass(frozen=True)
class Layout:
    """Channels of a spatial shape, cut into patches without overlap.

    Channels whose sizes are no multiples of the patch's are continued by their last pixels.
    """

    n_channels: int
    shape: tuple[int, ...]
    patch_shape: tuple[int, ...]

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Patches along each axis."""
        return tuple(-(-n // m) for n, m in zip(self.shape, self.patch_shape, strict=True))

    @property
    def n_patches(self) -> int:
        """Patches of one channel."""
        return math.prod(self.grid)

    @property
    def coarsest_step(self) -> float:
        """A step so coarse that nothing is left of channels with values from 0 to 1."""
        return 2 * math.sqrt(self.n_channels * math.prod(self.patch_shape))

    def mean_step(self, step: float) -> float:
        """The unit of quantised means: a constant patch of that height has norm ``step``."""
        return step / math.sqrt(math.prod(self.patch_shape))

    def split(self, channels: Floats) -> Floats:
        """Patches (C·N, *patch_shape) of channels (C, *shape)."""
        missing = [
            (0, g * m - n) for n, m, g in zip(self.shape, self.patch_shape, self.grid, strict=True)
        ]
        padded = np.pad(channels, [(0, 0), *missing], mode="edge")
        d = len(self.shape)
        cut = padded.reshape(self.n_channels, *self._interleaved())
        order = [0, *range(1, 2 * d, 2), *range(2, 2 * d + 1, 2)]
        return cut.transpose(order).reshape(-1, *self.patch_shape)

    def join(self, patches: Floats) -> Floats:
        """Channels (C, *shape) from their patches (C·N, *patch_shape)."""
        d = len(self.shape)
        cut = patches.reshape(self.n_channels, *self.grid, *self.patch_shape)
        order = [0, *(1 + k // 2 + (k % 2) * d for k in range(2 * d))]
        sizes = [g * m for g, m in zip(self.grid, self.patch_shape, strict=True)]
        padded = cut.transpose(order).reshape(self.n_channels, *sizes)
        return padded[(slice(None), *(slice(n) for n in self.shape))]

    def _interleaved(self) -> list[int]:
        pairs = zip(self.grid, self.patch_shape, strict=True)
        return [number for pair in pairs for number in pair]


@dataclass
class Quantised:
    """Channels in integers: what a file holds.

    ``means`` is (C, *grid), in units of ``Layout.mean_step``; ``levels`` (C·N, n_1·…·n_d) in
    steps; ``offsets`` are what the magnitudes 1, 2 and above lack on average, in 128ths of a step.
    """

    step: float
    means: Integers
    levels: NDArray[np.int32]
    offsets: Integers

    def coefficients(self) -> Floats:
        """The coefficients (C·N, n_1·…·n_d) that the levels stand for."""
        shifts = np.append(0, self.offsets * _OFFSET_UNIT)
        magnitudes = np.abs(self.levels)
        values = (magnitudes + shifts[np.minimum(magnitudes, _N_OFFSETS)]) * self.step
        return np.copysign(values, self.levels)


def analyse(
    channels: Floats,
    layout: Layout,
    dictionary: KroneckerDictionary,
    step: float,
    n_jobs: int,
    device: str = "cpu",
) -> Quantised:
    """Channels (C, *shape) quantised with this step."""
    means, patches = patches_to_code(channels, layout, step)
    if dictionary.is_orthonormal and dictionary.n_codes == dictionary.n_features:
        coefficients = dictionary.correlate(patches).reshape(len(patches), -1)
    else:
        tol = residual_tolerance(layout, step)
        codes = sparse_code(
            patches, dictionary, tol=tol, method="ols", n_jobs=n_jobs, device=device
        )
        coefficients = codes.toarray()
    magnitudes, offsets = _rounded(np.abs(coefficients) / step, layout, dictionary.n_atoms)
    return Quantised(step, means, np.where(coefficients < 0, -magnitudes, magnitudes), offsets)


def _rounded(
    sizes: Floats, layout: Layout, n_atoms: tuple[int, ...]
) -> tuple[NDArray[np.int32], Integers]:
    """Sizes (C·N, n_1·…·n_d) in whole steps, and what their magnitudes lack on average."""
    magnitudes = np.floor(sizes + (1 - _ROUND_UP)).astype(np.int32)
    planes = np.minimum(sizes, 3).reshape(layout.n_channels, *layout.grid, *n_atoms)
    around = neighbour_sums(planes, range(1, planes.ndim)) / (2 * (planes.ndim - 1))
    quiet = (_LEAVE_ZERO - _ROUND_UP) / (1 + _UNREST * around.reshape(sizes.shape))
    magnitudes[(magnitudes == 1) & (sizes < _ROUND_UP + quiet)] = 0
    offsets = np.zeros(_N_OFFSETS, np.int64)
    for k in range(_N_OFFSETS):
        alike = magnitudes == k + 1 if k + 1 < _N_OFFSETS else magnitudes > k
        if alike.any():
            offset = (sizes[alike] - magnitudes[alike]).mean() / _OFFSET_UNIT
            offsets[k] = int(np.clip(np.rint(offset), -127, 127))
    return magnitudes, offsets


def synthesise(quantised: Quantised, layout: Layout, dictionary: KroneckerDictionary) -> Floats:
    """The channels (C, *shape) that quantised numbers stand for."""
    patches = dictionary.reconstruct(quantised.coefficients())
    patches += smooth_surface(quantised.means, layout, quantised.step)
    return layout.join(patches)


def patches_to_code(channels: Floats, layout: Layout, step: float) -> tuple[Integers, Floats]:
    """Quantised means (C, *grid), and what they leave of the patches (C·N, *patch_shape)."""
    patches = layout.split(channels)
    means = patches.reshape(len(patches), -1).mean(axis=1) / layout.mean_step(step)
    whole = np.rint(means).astype(np.int64).reshape(layout.n_channels, *layout.grid)
    return whole, patches - smooth_surface(whole, layout, step)


def residual_tolerance(layout: Layout, step: float) -> float:
    """The norm of what sparse coding may leave of a patch before quantisation with a step."""
    return _RESIDUAL * step * math.sqrt(math.prod(layout.patch_shape))


def smooth_surface(means: Integers, layout: Layout, step: float) -> Floats:
    """Patches (C·N, *patch_shape) with these means that lead smoothly into their neighbours."""
    surface: NDArray[Any] = means * layout.mean_step(step)
    for axis, m in enumerate(layout.patch_shape):
        x = (np.arange(m) + 0.5) / m - 0.5
        slope, curve = _SLOPE * x / 2, _CURVE * (x**2 - np.mean(x**2)) / 2
        values = np.moveaxis(surface, 1 + axis, -1)
        before = np.concatenate([values[..., :1], values[..., :-1]], axis=-1)[..., None]
        after = np.concatenate([values[..., 1:], values[..., -1:]], axis=-1)[..., None]
        here = values[..., None]
        grown = here + (after - before) * slope + (before - 2 * here + after) * curve
        # The patch's new axis goes to the end, behind those of earlier axes.
        surface = np.moveaxis(grown, -2, 1 + axis)
    return surface.reshape(-1, *layout.patch_shape)
