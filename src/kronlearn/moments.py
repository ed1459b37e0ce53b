"""Moments: the small sums over coded samples that are all a dictionary update needs.

They add up over samples, blocks, threads and machines, so data never has to be in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ModeMoments", "Moments"]

Factors = Sequence[NDArray[np.float64]]


@dataclass
class Moments:
    """Full moments ``S_xx = Σ x xᵀ`` and ``S_xy = Σ x yᵀ`` of codes x and samples y.

    They serve every factor and every structure. ``xx`` holds the lower triangle, row by row;
    ``energy`` is ``Σ‖y‖²`` and ``code_energy`` ``Σ‖x‖²``. ``scales`` holds, per mode, what the
    codes have been multiplied by since they were summed; it is applied where sums are used.

    Examples
    --------
    >>> from kronlearn.moments import Moments
    >>> m = Moments.zeros((8, 8), (16, 16))
    >>> m.xx.shape, m.xy.shape
    ((32896,), (256, 64))
    """

    patch_shape: tuple[int, ...]
    n_atoms: tuple[int, ...]
    n_samples: float
    energy: float
    code_energy: float
    xx: NDArray[np.float64]
    xy: NDArray[np.float64]
    scales: list[NDArray[np.float64]] = field(default_factory=list)
    _symmetric: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.scales:
            self.scales = [np.ones(n) for n in self.n_atoms]

    @classmethod
    def zeros(
        cls, patch_shape: tuple[int, ...], n_atoms: tuple[int, ...], with_xx: bool = True
    ) -> Moments:
        """Moments of no samples. Procrustes updates need no ``xx``."""
        n, m = math.prod(n_atoms), math.prod(patch_shape)
        xx = np.zeros(n * (n + 1) // 2 if with_xx else 0)
        return cls(patch_shape, n_atoms, 0, 0.0, 0.0, xx, np.zeros((n, m)))

    @staticmethod
    def numbers(patch_shape: tuple[int, ...], n_atoms: tuple[int, ...]) -> int:
        """How many numbers full moments hold."""
        n = math.prod(n_atoms)
        return n * (n + 1) // 2 + n * math.prod(patch_shape)

    def native_arguments(self) -> dict[str, Any]:
        """The arrays that the native code adds to."""
        self._apply_scales()
        return {"xx": self.xx if self.xx.size else None, "xy": self.xy}

    def count(self, n_samples: int, energy: float) -> None:
        """Add the numbers that go with a block's sums."""
        self.n_samples += n_samples
        self.energy += energy

    def __add__(self, other: Moments) -> Moments:
        if (self.patch_shape, self.n_atoms) != (other.patch_shape, other.n_atoms):
            raise ValueError(
                f"Moments of {self.n_atoms} atoms on {self.patch_shape} samples cannot be added to "
                f"those of {other.n_atoms} atoms on {other.patch_shape}."
            )
        if self.xx.size != other.xx.size:
            raise ValueError(
                "Moments of orthonormal and general factors cannot be added; after a change of "
                "structure call fit."
            )
        self._apply_scales()
        other._apply_scales()
        return Moments(
            self.patch_shape,
            self.n_atoms,
            self.n_samples + other.n_samples,
            self.energy + other.energy,
            self.code_energy + other.code_energy,
            self.xx + other.xx,
            self.xy + other.xy,
        )

    def __mul__(self, factor: float) -> Moments:
        """All sums times a factor: how old samples are forgotten."""
        self._apply_scales()
        return Moments(
            self.patch_shape,
            self.n_atoms,
            self.n_samples * factor,
            self.energy * factor,
            self.code_energy * factor,
            self.xx * factor,
            self.xy * factor,
        )

    def full_xx(self) -> NDArray[np.float64]:
        """``S_xx`` as a symmetric matrix (n_codes, n_codes)."""
        on_codes = _kron([scale[None] for scale in self.scales])[0]
        return self._unpacked() * np.outer(on_codes, on_codes)

    def mode(self, factors: Factors, mode: int) -> ModeMoments:
        """The sums of one mode with the other factors fixed."""
        d, n, m = len(factors), list(self.n_atoms), list(self.patch_shape)
        scaled = [factor * scale for factor, scale in zip(factors, self.scales, strict=True)]
        others = _kron([*scaled[:mode], *scaled[mode + 1 :]])
        own = self.scales[mode]
        xy = np.moveaxis(self.xy.reshape(n + m), (mode, d + mode), (0, d))
        xy = xy.reshape(n[mode], others.shape[1], m[mode], others.shape[0])
        c = np.tensordot(xy, others, axes=([1, 3], [1, 0])) * own[:, None]
        # With orthonormal factors only the trace of P counts, and it is Σ‖x‖².
        p = np.eye(n[mode]) * (self.code_energy / n[mode])
        if self.xx.size:
            xx = np.moveaxis(self._unpacked().reshape(n + n), (mode, d + mode), (0, d))
            xx = xx.reshape(n[mode], others.shape[1], n[mode], others.shape[1])
            p = np.tensordot(xx, others.T @ others, axes=([1, 3], [0, 1])) * np.outer(own, own)
        return ModeMoments(mode, self.n_samples, self.energy, p, c)

    def used(self) -> NDArray[np.bool_]:
        """Which atoms ``(n_1, …, n_d)`` any code uses."""
        diagonal = np.cumsum(np.arange(1, math.prod(self.n_atoms) + 1)) - 1
        return (self.xx[diagonal] > 0).reshape(self.n_atoms)

    def rescale(self, mode: int, scale: NDArray[np.float64]) -> None:
        """Replace every code x by itself times ``scale`` of its atom's index in one mode."""
        self.scales[mode] = self.scales[mode] * scale

    def _unpacked(self) -> NDArray[np.float64]:
        if self._symmetric is None:
            n = math.prod(self.n_atoms)
            full = np.zeros((n, n))
            full[_lower(n)] = self.xx
            self._symmetric = full + np.tril(full, -1).T
        return self._symmetric

    def _apply_scales(self) -> None:
        on_codes = _kron([scale[None] for scale in self.scales])[0]
        self._symmetric = None
        if np.all(on_codes == 1.0):
            return
        self.xy *= on_codes[:, None]
        if self.xx.size:
            self.xx *= np.outer(on_codes, on_codes)[_lower(len(on_codes))]
        self.scales = [np.ones(n) for n in self.n_atoms]

    def squared_error(self, factors: Factors) -> float:
        """``Σ‖y − D x‖²``."""
        last = len(factors) - 1
        return self.mode(factors, last).squared_error(factors[last])


@dataclass
class ModeMoments:
    """The sums of one mode i: ``P = Σ X_(i) (⊗ G_j) X_(i)ᵀ`` and ``C = Σ Y_(i) (⊗ D_j) X_(i)ᵀ``.

    With the other factors fixed the best factor solves ``D_i P = C``. ``c`` is ``Cᵀ``. The paper's
    (P, R) and (M, N) are these sums for the two modes of an image.
    """

    index: int
    n_samples: float
    energy: float
    p: NDArray[np.float64]
    c: NDArray[np.float64]
    code_energy: float = 0.0

    @classmethod
    def zeros(cls, mode: int, factor: NDArray[np.float64]) -> ModeMoments:
        """Sums of no samples."""
        m, n = factor.shape
        return cls(mode, 0, 0.0, np.zeros((n, n)), np.zeros((n, m)))

    def native_arguments(self) -> dict[str, Any]:
        """The arrays that the native code adds to."""
        return {"mode": self.index, "p": self.p, "c": self.c}

    def count(self, n_samples: int, energy: float) -> None:
        """Add the numbers that go with a block's sums."""
        self.n_samples += n_samples
        self.energy += energy

    def rescale(self, scale: NDArray[np.float64]) -> None:
        """Replace every code x by itself times ``scale`` of its atom's index in this mode."""
        self.p *= np.outer(scale, scale)
        self.c *= scale[:, None]

    def squared_error(self, factor: NDArray[np.float64]) -> float:
        """``Σ‖y − D x‖²`` with this factor in this mode."""
        fitted = 2.0 * np.sum(factor.T * self.c) - np.sum(self.p * (factor.T @ factor))
        return float(self.energy - fitted)


def _kron(factors: Factors) -> NDArray[np.float64]:
    product = np.ones((1, 1))
    for factor in factors:
        product = np.kron(product, factor).astype(np.float64, copy=False)
    return product


@lru_cache(maxsize=4)
def _lower(n: int) -> NDArray[np.bool_]:
    return np.tri(n, dtype=bool)
