"""The objective of SeDiL and its gradient, summed over blocks of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.spheres import tangent

__all__ = ["Objective"]

# A block's codes hold about this many numbers: with what is derived from them they fit into cache.
_BLOCK_NUMBERS = 1 << 16

Factors = Sequence[NDArray[np.float64]]
Result = TypeVar("Result")


class Objective:
    """``(1/N) Σ‖y − D x‖² + (λ/N)(m/n) Σ ln(1 + μ|x|) − Σ_i κ_i Σ_{a≠b} ln(1 − (d_aᵀ d_b)²)``.

    Samples and codes are kept in blocks ``(K, m, B)`` and ``(K, n, B)``, the samples last: a
    product with a factor is then a product of a small matrix with a wide one, for any mode. The
    last block is filled up with zeros, which add nothing and stay zero. Blocks are added up in
    their order whatever the number of threads.

    With ``balance`` b the codes and samples here are those above times ``b/√N``. The objective is
    the same, but its second derivatives by codes no longer shrink with N beside those by factors.

    Parameters
    ----------
    samples : array of shape (N, m_1·…·m_d)
        With norm 1.
    patch_shape, n_atoms : (m_1, …, m_d) and (n_1, …, n_d)
    sparsity, coherence, sharpness : float
        λ, κ and μ.
    balance : float, optional
    n_threads : int

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.sedil_objective import Objective
    >>> samples = np.full((5, 4), 0.5)
    >>> objective = Objective(samples, (2, 2), (2, 2), sparsity=0, coherence=0, sharpness=1)
    >>> factors = [np.eye(2), np.eye(2)]
    >>> X = objective.correlations(factors)
    >>> objective.value(factors, X, X, step=0.0), objective.value(factors, X, X, step=1.0)
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
        n_threads: int = 1,
    ) -> None:
        self.n_threads = n_threads
        self.n_codes = math.prod(n_atoms)
        # Of each mode, how many numbers there are in the modes before it, once multiplied.
        self.outer = [math.prod(patch_shape[:mode]) for mode in range(len(n_atoms))]
        n_samples, n_features = samples.shape
        scale = 1.0 if balance is None else balance / math.sqrt(n_samples)
        self.samples = _blocks(samples, self.n_codes)
        self.samples *= self._dtype.type(scale)
        self.fidelity = 1.0 / (n_samples * scale**2)
        self.sparsity = sparsity / n_samples * n_features / self.n_codes
        self.sharpness = sharpness / scale
        # In a mode of size 1 all atoms are the same: there is nothing to keep apart.
        self.coherence = [
            2 * coherence / (n * n - n) if n > 1 and m > 1 else 0.0
            for m, n in zip(patch_shape, n_atoms, strict=True)
        ]

    def check_distinct(self, factors: Factors) -> None:
        """Raise if two atoms of a mode are the same and the penalty on that infinite."""
        for mode, (factor, weight) in enumerate(zip(factors, self.coherence, strict=True)):
            products = np.abs(_inner_products(factor))
            if weight > 0 and products.max() > 1.0 - 1e-9:
                first, second = np.unravel_index(products.argmax(), products.shape)
                raise ValueError(
                    f"Atoms {first} and {second} of factor {mode} at the start are the same but "
                    "for their sign, which costs an infinite penalty; pass another init, or "
                    "coherence=0."
                )

    def correlations(self, factors: Factors) -> NDArray[Any]:
        """Inner products of the samples with all atoms, as codes ``(K, n, B)``."""
        codes = np.empty((len(self.samples), self.n_codes, self.samples.shape[2]), self._dtype)
        matrices = self._matrices(factors)

        def correlate(k: int) -> None:
            block = self.samples[k]
            for matrix, outer in zip(reversed(matrices), reversed(self.outer), strict=True):
                block = _multiplied(matrix.T, block, outer)
            codes[k] = block

        self._each_block(correlate)
        return codes

    def value(
        self, factors: Factors, codes: NDArray[Any], direction: NDArray[Any], step: float
    ) -> float:
        """The objective at these factors and the codes ``codes + step·direction``."""
        matrices = self._matrices(factors)

        def block_value(k: int) -> tuple[float, float]:
            x = codes[k] + codes.dtype.type(step) * direction[k]
            residual = self._partial_products(x, matrices)[-1] - self.samples[k]
            grown = self._grown(x)
            return float(np.vdot(residual, residual)), float(np.log(grown, out=grown).sum())

        squares, logarithms = np.sum(self._each_block(block_value), axis=0)
        value = self.fidelity * squares + self.sparsity * logarithms
        for factor, weight in zip(factors, self.coherence, strict=True):
            if weight > 0:
                with np.errstate(divide="ignore", invalid="ignore"):
                    value -= weight * np.log1p(-(_inner_products(factor) ** 2)).sum()
        return float(value)

    def renew_gradient(
        self,
        factors: Factors,
        codes: NDArray[Any],
        direction: NDArray[Any],
        gradient: NDArray[Any],
    ) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """The gradient: of the factors as a result, of the codes in place of the earlier one.

        Returns also, for the codes, the inner products ⟨new, new⟩, ⟨new, earlier⟩,
        ⟨new, direction⟩ and ⟨earlier, direction⟩ of gradients. The gradients of the factors are
        tangent; ``|x|`` has slope 0 at 0.
        """
        matrices = self._matrices(factors)

        def block_gradient(k: int) -> tuple[list[NDArray[Any]], NDArray[np.float64]]:
            *products, synthesis = self._partial_products(codes[k], matrices)
            back = synthesis - self.samples[k]
            of_factors = []
            for matrix, outer in zip(reversed(matrices), reversed(self.outer), strict=True):
                of_factors.append(_contracted(back, products.pop(), outer, matrix.shape))
                back = _multiplied(matrix.T, back, outer)
            new = back * self._dtype.type(2.0 * self.fidelity)
            new += self._sparsity_slope(codes[k])
            old, way = gradient[k], direction[k]
            pairs = ((new, new), (new, old), (new, way), (old, way))
            inner = np.array([float(np.vdot(a, b)) for a, b in pairs])
            gradient[k] = new
            return of_factors[::-1], inner

        found = self._each_block(block_gradient)
        of_factors = []
        for mode, (factor, weight) in enumerate(zip(factors, self.coherence, strict=True)):
            euclidean = 2.0 * self.fidelity * np.sum([part[0][mode] for part in found], axis=0)
            if weight > 0:
                gram = _inner_products(factor)
                euclidean += 4.0 * weight * factor @ (gram / (1.0 - gram**2))
            of_factors.append(tangent(factor, euclidean))
        return of_factors, np.sum([part[1] for part in found], axis=0)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self.samples.dtype

    def _matrices(self, factors: Factors) -> list[NDArray[Any]]:
        return [factor.astype(self._dtype, copy=False) for factor in factors]

    def _each_block(self, function: Callable[[int], Result]) -> list[Result]:
        blocks = range(len(self.samples))
        if self.n_threads == 1:
            return [function(k) for k in blocks]
        with ThreadPoolExecutor(self.n_threads) as pool:
            return list(pool.map(function, blocks))

    def _grown(self, x: NDArray[Any]) -> NDArray[Any]:
        """``1 + μ|x|``."""
        grown = np.abs(x)
        grown *= self.sharpness
        grown += 1.0
        return grown

    def _sparsity_slope(self, x: NDArray[Any]) -> NDArray[Any]:
        slope = np.sign(x)
        slope *= self.sparsity * self.sharpness
        slope /= self._grown(x)
        return slope

    def _partial_products(
        self, x: NDArray[Any], matrices: list[NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """A block's codes times the first 0, 1, …, d factors."""
        products = [x]
        for matrix, outer in zip(matrices, self.outer, strict=True):
            products.append(_multiplied(matrix, products[-1], outer))
        return products


def _multiplied(matrix: NDArray[Any], block: NDArray[Any], outer: int) -> NDArray[Any]:
    """A matrix times a block (rows, B) along the mode before which there are ``outer`` rows."""
    wide = block.reshape(outer, matrix.shape[1], -1)
    return np.matmul(matrix, wide).reshape(-1, block.shape[1])


def _contracted(
    left: NDArray[Any], right: NDArray[Any], outer: int, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Inner products ``(m_i, n_i)`` of two blocks over all modes but one."""
    m, n = shape
    tall = right.reshape(outer, n, -1).transpose(0, 2, 1)
    return np.matmul(left.reshape(outer, m, -1), tall).sum(axis=0, dtype=np.float64)


def _inner_products(factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Those of different atoms; 0 on the diagonal."""
    gram = factor.T @ factor
    np.fill_diagonal(gram, 0.0)
    return gram


def _blocks(samples: NDArray[Any], n_codes: int) -> NDArray[Any]:
    """Samples (N, m) in blocks ``(K, m, B)``."""
    B = max(16, min(_BLOCK_NUMBERS // n_codes, len(samples)))
    blocks = np.zeros((-(-len(samples) // B), samples.shape[1], B), samples.dtype)
    for k, block in enumerate(blocks):
        part = samples[k * B : (k + 1) * B]
        block[:, : len(part)] = part.T
    return blocks
