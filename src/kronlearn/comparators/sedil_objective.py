"""The objective of SeDiL and its gradient, summed over blocks of samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.spheres import tangent

__all__ = ["Objective"]

# Numbers in a block of codes; together with the arrays derived from it, the block fits into cache.
_BLOCK_NUMBERS = 1 << 16

Factors = Sequence[NDArray[np.float64]]


class Objective:
    """``(1/N) Σ‖y − D x‖² + (λ/N)(m/n) Σ ln(1 + μ|x|) − Σ_i κ_i Σ_{a≠b} ln(1 − (d_aᵀ d_b)²)``.

    Samples and codes are lists of blocks ``(m, B)`` and ``(n, B)`` with a sample per column, so
    that multiplying by a factor is a product of a small matrix with a wide one, for any mode.

    With ``balance`` b, codes and samples are multiplied by ``b/√N``. The objective stays the same,
    but its second derivatives by codes no longer shrink with N relative to those by factors.

    Parameters
    ----------
    samples : array of shape (N, m_1·…·m_d)
        Samples of norm 1.
    patch_shape, n_atoms : (m_1, …, m_d) and (n_1, …, n_d)
    sparsity, coherence, sharpness : float
        λ, κ and μ.
    balance : float, optional

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.sedil_objective import Objective
    >>> samples = np.full((5, 4), 0.5)
    >>> objective = Objective(samples, (2, 2), (2, 2), sparsity=0, coherence=0, sharpness=1)
    >>> factors = [np.eye(2), np.eye(2)]
    >>> X = objective.correlations(factors)
    >>> objective.value(factors, X), objective.value(factors, [2 * x for x in X])
    (0.0, 1.0)
    """

    def __init__(
        self,
        samples: NDArray[Any],
        patch_shape: tuple[int, ...],
        n_atoms: tuple[int, ...],
        sparsity: float,
        coherence: float,
        sharpness: float,
        balance: float | None = None,
    ) -> None:
        n_codes = math.prod(n_atoms)
        # For each mode, the product of the sizes of the earlier modes of a patch.
        self.outer = [math.prod(patch_shape[:mode]) for mode in range(len(n_atoms))]
        n_samples, n_features = samples.shape
        scale = 1.0 if balance is None else balance / math.sqrt(n_samples)
        size = max(16, _BLOCK_NUMBERS // n_codes)
        starts = range(0, n_samples, size)
        self.samples = [scale * np.ascontiguousarray(samples[i : i + size].T) for i in starts]
        self.fidelity = 1.0 / (n_samples * scale**2)
        self.sparsity = sparsity / n_samples * n_features / n_codes
        self.sharpness = sharpness / scale
        # In a mode of size 1 all atoms are the same and cannot be kept apart.
        self.coherence = [
            2 * coherence / (n * n - n) if n > 1 and m > 1 else 0.0
            for m, n in zip(patch_shape, n_atoms, strict=True)
        ]

    def check_distinct(self, factors: Factors) -> None:
        """Raise if two atoms of a mode are equal, which makes the coherence penalty infinite."""
        for mode, (factor, weight) in enumerate(zip(factors, self.coherence, strict=True)):
            products = np.abs(_inner_products(factor))
            if weight > 0 and products.max() > 1.0 - 1e-9:
                first, second = np.unravel_index(products.argmax(), products.shape)
                raise ValueError(
                    f"Learning starts with equal atoms, {first} and {second} of factor {mode} "
                    "(up to their sign), for which the coherence penalty is infinite; pass another "
                    "init, or coherence=0."
                )

    def correlations(self, factors: Factors) -> list[NDArray[Any]]:
        """Return the inner products of the samples with all atoms, in blocks like codes."""
        codes = []
        for block in self.samples:
            for matrix, outer in reversed(self._matrices(factors)):
                block = _multiplied(matrix.T, block, outer)
            codes.append(block)
        return codes

    def value(self, factors: Factors, codes: Iterable[NDArray[Any]]) -> float:
        """Return the objective at these factors and codes."""
        value = 0.0
        for block, x in zip(self.samples, codes, strict=True):
            residual = self._partial_products(x, factors)[-1] - block
            logarithms = np.log(self._log_argument(x)).sum()
            value += self.fidelity * float(np.vdot(residual, residual))
            value += self.sparsity * float(logarithms)
        for factor, weight in zip(factors, self.coherence, strict=True):
            if weight > 0:
                with np.errstate(divide="ignore", invalid="ignore"):
                    value -= weight * np.log1p(-(_inner_products(factor) ** 2)).sum()
        return float(value)

    def gradient(self, factors: Factors, codes: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the gradients for the factors, tangent to them, and for the blocks of codes.

        ``|x|`` is given slope 0 at 0.
        """
        matrices = self._matrices(factors)
        of_factors, of_codes = [np.zeros(factor.shape) for factor in factors], []
        for block, x in zip(self.samples, codes, strict=True):
            *products, approximation = self._partial_products(x, factors)
            # Backpropagation, from the last mode to the first.
            g = approximation - block
            for mode, (matrix, outer) in reversed(list(enumerate(matrices))):
                of_factors[mode] += _contracted(g, products[mode], outer, matrix.shape)
                g = _multiplied(matrix.T, g, outer)
            g *= 2.0 * self.fidelity
            g += self.sparsity * self.sharpness * np.sign(x) / self._log_argument(x)
            of_codes.append(g)
        for mode, (factor, weight) in enumerate(zip(factors, self.coherence, strict=True)):
            euclidean = 2.0 * self.fidelity * of_factors[mode]
            if weight > 0:
                gram = _inner_products(factor)
                euclidean += 4.0 * weight * factor @ (gram / (1.0 - gram**2))
            of_factors[mode] = tangent(factor, euclidean)
        return [*of_factors, *of_codes]

    def _matrices(self, factors: Factors) -> list[tuple[NDArray[Any], int]]:
        """Return the factors in the samples' dtype, each with its entry of ``outer``."""
        dtype = self.samples[0].dtype
        matrices = [factor.astype(dtype, copy=False) for factor in factors]
        return list(zip(matrices, self.outer, strict=True))

    def _log_argument(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return ``1 + μ|x|``, in a single new array."""
        argument = np.abs(x)
        argument *= self.sharpness
        argument += 1.0
        return argument

    def _partial_products(self, x: NDArray[Any], factors: Factors) -> list[NDArray[Any]]:
        """Multiply a block of codes by the first 0, 1, …, d factors; return all products."""
        products = [x]
        for matrix, outer in self._matrices(factors):
            products.append(_multiplied(matrix, products[-1], outer))
        return products


def _multiplied(matrix: NDArray[Any], block: NDArray[Any], outer: int) -> NDArray[Any]:
    """Multiply a block (rows, B) by a matrix along the mode that ``outer`` belongs to."""
    wide = block.reshape(outer, matrix.shape[1], -1)
    return np.matmul(matrix, wide).reshape(-1, block.shape[1])


def _contracted(
    left: NDArray[Any], right: NDArray[Any], outer: int, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Contract two blocks over all modes but one; return ``(m_i, n_i)``."""
    m, n = shape
    tall = right.reshape(outer, n, -1).transpose(0, 2, 1)
    return np.matmul(left.reshape(outer, m, -1), tall).sum(axis=0, dtype=np.float64)


def _inner_products(factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inner products of different atoms, with 0 on the diagonal."""
    gram = factor.T @ factor
    np.fill_diagonal(gram, 0.0)
    return gram
