"""Moments: the small sums over coded samples that are all a dictionary update needs.

They add up over samples, blocks, threads and machines, so data never has to be in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary

__all__ = ["ModeMoments", "Moments", "side_by_side"]

Stacks = Sequence[NDArray[np.float64]]


@dataclass
class Moments:
    """Full moments ``S_xx = Σ x xᵀ`` and ``S_xy = Σ x yᵀ`` of codes x and samples y.

    They serve every factor and every structure. ``xx`` holds the lower triangle, row by row;
    ``energy`` is ``Σ‖y‖²`` and, where there is no ``xx``, ``code_energy`` ``Σ‖x‖²``. ``scales``
    holds, per mode, what the codes have been multiplied by since they were summed; it is applied
    where sums are used.

    Examples
    --------
    >>> from kronlearn.core.moments import Moments
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
    _known: tuple[Dictionary, float] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.scales:
            self.scales = [np.ones(n) for n in self.n_atoms]

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: not what can be found again."""
        return {**self.__dict__, "_symmetric": None, "_known": None}

    @classmethod
    def zeros(
        cls, patch_shape: tuple[int, ...], n_atoms: tuple[int, ...], with_xx: bool = True
    ) -> Moments:
        """Moments of no samples. Procrustes updates need no ``xx``."""
        n, m = math.prod(n_atoms), math.prod(patch_shape)
        xx = np.zeros(n * (n + 1) // 2 if with_xx else 0)
        return cls(patch_shape, n_atoms, 0, 0.0, 0.0, xx, np.zeros((n, m)))

    @staticmethod
    def numbers(
        patch_shape: tuple[int, ...], n_atoms: tuple[int, ...], with_xx: bool = True
    ) -> int:
        """How many numbers full moments hold."""
        n = math.prod(n_atoms)
        return (n * (n + 1) // 2 if with_xx else 0) + n * math.prod(patch_shape)

    @property
    def index(self) -> int:
        """The mode that these sums belong to: none."""
        return -1

    @property
    def kind(self) -> str:
        """What the native code is to sum: "full" or, without ``xx``, "xy"."""
        return "full" if self.xx.size else "xy"

    def add(self, sums: NDArray[np.float64], n_samples: int, energy: float, codes: float) -> None:
        """Add the sums of samples, as the native code lays them out, and what goes with them."""
        self._apply_scales()
        self.xx += sums[: self.xx.size]
        self.xy += sums[self.xx.size :].reshape(self.xy.shape)
        self.n_samples += n_samples
        self.energy += energy
        self.code_energy += codes

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
        on_codes = self._on_codes()
        return self._unpacked() * np.outer(on_codes, on_codes)

    def full_xy(self) -> NDArray[np.float64]:
        """``S_xy`` as a matrix (n_codes, n_features)."""
        return self.xy * self._on_codes()[:, None]

    def mode(self, stacks: Stacks, mode: int) -> ModeMoments:
        """The sums of one mode with the other modes' factors ``(R, m_j, n_j)`` fixed."""
        others = _kron_terms(
            [stacks[j] * self.scales[j] for j in range(len(stacks)) if j != mode], len(stacks[0])
        )
        terms, m_others, n_others = others.shape
        n, m = self.n_atoms[mode], self.patch_shape[mode]
        own = np.concatenate([self.scales[mode]] * terms)
        xy = _apart(self.xy, self.n_atoms, self.patch_shape, mode).reshape(-1, n_others * m_others)
        c = others.transpose(0, 2, 1).reshape(terms, -1) @ xy.T
        c = c.reshape(-1, m) * own[:, None]
        if not self.xx.size:
            p = _of_trace(self.code_energy, n)
        else:
            wide = side_by_side(others)
            gram = (wide.T @ wide).reshape(terms, n_others, terms, n_others).transpose(0, 2, 1, 3)
            xx = _apart(self._unpacked(), self.n_atoms, self.n_atoms, mode)
            p = gram.reshape(terms * terms, -1) @ xx.reshape(n * n, -1).T
            p = p.reshape(terms, terms, n, n).transpose(0, 2, 1, 3).reshape(terms * n, -1)
            p = p * own * own[:, None]
        return ModeMoments(mode, self.n_samples, self.energy, p, c)

    def used(self) -> NDArray[np.bool_]:
        """Which atoms ``(n_1, …, n_d)`` any code uses."""
        diagonal = np.cumsum(np.arange(1, math.prod(self.n_atoms) + 1)) - 1
        return (self.xx[diagonal] > 0).reshape(self.n_atoms)

    def rescale(self, mode: int, scale: NDArray[np.float64]) -> None:
        """Replace every code x by itself times ``scale`` of its atom's index in one mode."""
        self.scales[mode] = self.scales[mode] * scale
        self._known = None

    def rescale_codes(self, scale: NDArray[np.float64]) -> None:
        """Replace every code x by itself times ``scale``, one number per atom."""
        self._known = None
        on_codes = self._on_codes() * scale
        self.xy *= on_codes[:, None]
        if self.xx.size:
            self.xx *= on_codes[_rows(len(on_codes))] * on_codes[_columns(len(on_codes))]
        self.scales = [np.ones(n) for n in self.n_atoms]
        self._symmetric = None

    def _on_codes(self) -> NDArray[np.float64]:
        return reduce(lambda left, right: np.multiply.outer(left, right).ravel(), self.scales)

    def _unpacked(self) -> NDArray[np.float64]:
        if self._symmetric is None:
            self._symmetric = self.xx[_places(math.prod(self.n_atoms))]
        return self._symmetric

    def _apply_scales(self) -> None:
        self._symmetric = None
        if any(np.any(scale != 1.0) for scale in self.scales):
            self.rescale_codes(np.ones(math.prod(self.n_atoms)))

    def know_error(self, dictionary: Dictionary, squared_error: float) -> None:
        """Remember the error of a dictionary that an update came by on its way."""
        self._known = dictionary, squared_error

    def squared_error(self, dictionary: Dictionary) -> float:
        """``Σ‖y − D x‖²``."""
        if self._known is not None and self._known[0] is dictionary:
            return self._known[1]
        if dictionary.n_terms == 1:
            stacks = [factor[None] for factor in dictionary.coding_factors]
            return self.mode(stacks, len(stacks) - 1).squared_error(stacks[-1])
        D = dictionary.coding_factors[0]
        fitted = 2.0 * np.sum(self.full_xy() * D.T) - np.sum(self.full_xx() * (D.T @ D))
        return float(self.energy - fitted)


@dataclass
class ModeMoments:
    """The sums of one mode i: ``P = Σ X_(i) (⊗ G_j) X_(i)ᵀ`` and ``C = Σ Y_(i) (⊗ D_j) X_(i)ᵀ``.

    With the other factors fixed the best factor solves ``D_i P = C``. ``c`` is ``Cᵀ``. The paper's
    (P, R) and (M, N) are these sums for the two modes of an image. With R terms there are R × R
    blocks of P and R blocks of Cᵀ, one above the other. Procrustes updates need no P: without it
    ``p`` is a matrix that has its trace.
    """

    index: int
    n_samples: float
    energy: float
    p: NDArray[np.float64]
    c: NDArray[np.float64]
    with_p: bool = True

    @classmethod
    def zeros(cls, mode: int, stack: NDArray[np.float64], with_p: bool = True) -> ModeMoments:
        """Sums of no samples for factors ``(1, m, n)``."""
        _, m, n = stack.shape
        return cls(mode, 0, 0.0, np.zeros((n, n)), np.zeros((n, m)), with_p)

    @property
    def kind(self) -> str:
        """What the native code is to sum."""
        return "mode" if self.with_p else "mode-xy"

    def add(self, sums: NDArray[np.float64], n_samples: int, energy: float, codes: float) -> None:
        """Add the sums of samples, as the native code lays them out, and what goes with them."""
        c = sums[-self.c.size :]
        if self.with_p:
            half = sums[: self.p.size].reshape(self.p.shape)
            self.p += half + half.T
        else:
            self.p += _of_trace(codes, len(self.p))
        self.c += c.reshape(self.c.shape)
        self.n_samples += n_samples
        self.energy += energy

    def rescale(self, scale: NDArray[np.float64]) -> None:
        """Replace every code x by itself times ``scale`` of its atom's index in this mode."""
        self.p *= np.outer(scale, scale)
        self.c *= scale[:, None]

    def unused(self) -> NDArray[np.intp]:
        """The atoms of this mode that no code uses."""
        return np.flatnonzero(np.diagonal(self.p) == 0)

    def squared_error(self, stack: NDArray[np.float64]) -> float:
        """``Σ‖y − D x‖²`` with these factors ``(R, m, n)`` in this mode."""
        wide = side_by_side(stack)
        fitted = 2.0 * np.sum(wide.T * self.c) - np.sum(self.p * (wide.T @ wide))
        return float(self.energy - fitted)


def side_by_side(stack: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors ``(R, m, n)`` as one matrix ``(m, R n)``."""
    return stack.transpose(1, 0, 2).reshape(stack.shape[1], -1)


def _of_trace(code_energy: float, n: int) -> NDArray[np.float64]:
    """A P for orthonormal factors, where only its trace counts, and that is Σ‖x‖²."""
    return np.eye(n) * (code_energy / n)


def _apart(
    sums: NDArray[np.float64], rows: tuple[int, ...], columns: tuple[int, ...], mode: int
) -> NDArray[np.float64]:
    """Sums ``(∏ rows, ∏ columns)`` with one mode's two axes first, the others' behind them."""
    d = len(rows)
    axes = [mode, d + mode]
    axes += [axis for axis in range(2 * d) if axis not in axes]
    return sums.reshape(rows + columns).transpose(axes)


def _kron_terms(stacks: Stacks, terms: int) -> NDArray[np.float64]:
    """For each term the Kronecker product of its factors, ``(R, ∏ m_j, ∏ n_j)``."""
    product = stacks[0] if stacks else np.ones((terms, 1, 1))
    for stack in stacks[1:]:
        m, n = product.shape[1] * stack.shape[1], product.shape[2] * stack.shape[2]
        product = product[:, :, None, :, None] * stack[:, None, :, None, :]
        product = product.reshape(terms, m, n)
    return product


@lru_cache(maxsize=4)
def _places(n: int) -> NDArray[np.intp]:
    """Where the packed lower triangle holds each entry of a symmetric matrix."""
    row, column = np.indices((n, n))
    larger, smaller = np.maximum(row, column), np.minimum(row, column)
    return larger * (larger + 1) // 2 + smaller


@lru_cache(maxsize=4)
def _rows(n: int) -> NDArray[np.intp]:
    return np.tril_indices(n)[0]


@lru_cache(maxsize=4)
def _columns(n: int) -> NDArray[np.intp]:
    return np.tril_indices(n)[1]
