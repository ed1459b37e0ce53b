"""What a pass over samples is, and the interface of the engines that run passes.

A pass is a pure function: samples, a dictionary and a coder in, sums out. Every block of samples is
summed on its own, and the sums of the blocks are added along a fixed binary tree. The total
therefore has the same bits wherever the blocks are coded: in threads of one process, or by the
workers of a cluster.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.source import Source

if TYPE_CHECKING:
    from kronlearn.core.moments import Moments

__all__ = ["Engine", "Iteration", "PassSums", "Task", "full_moment_numbers", "worst_first"]

# Every pass sums these four numbers first: Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖², number of nonzeros.
_COUNTS = 4


@dataclass(frozen=True)
class Task:
    """What a pass computes; small, and the same for all samples."""

    dictionary: Dictionary
    coder: Coder
    #: What to sum besides the four numbers of every pass: "full" moments, "xy" (those without
    #: S_xx), the sums of one "mode", "mode-xy" (those without P), or "none".
    sums: str = "none"
    #: The mode to sum for, or -1.
    mode: int = -1
    #: How many of the samples with the largest residuals to report.
    n_worst: int = 0
    #: Whether the result holds the codes, so that a later pass can sum them again.
    keeps_codes: bool = False
    #: Multiply codes of an earlier pass by these scales of their atoms, ``(n_i,)`` per mode.
    scales: tuple[NDArray[np.float64], ...] | None = None

    @property
    def factors(self) -> tuple[NDArray[Any], ...]:
        """Matrices whose Kronecker product is the dictionary with scaled atoms."""
        factors = self.dictionary.coding_factors
        if self.scales is None:
            return factors
        return tuple(factor * scale for factor, scale in zip(factors, self.scales, strict=True))

    def tree(self, n_blocks: int) -> Any:
        """An empty tree for the sums of all blocks."""
        patch_shape, n_atoms = self.dictionary.patch_shape, self.dictionary.n_atoms
        size = 0
        if self.mode >= 0:
            n, m = n_atoms[self.mode], patch_shape[self.mode]
            size = n * m + (n * n if self.sums == "mode" else 0)
        elif self.sums != "none":
            size = full_moment_numbers(patch_shape, n_atoms, with_xx=self.sums == "full")
        return _native.SumTree(_COUNTS + size, n_blocks)


def full_moment_numbers(
    patch_shape: tuple[int, ...], n_atoms: tuple[int, ...], with_xx: bool = True
) -> int:
    """The size of full moments: the lower triangle of S_xx, if wanted, and S_xy."""
    n = math.prod(n_atoms)
    return (n * (n + 1) // 2 if with_xx else 0) + n * math.prod(patch_shape)


@dataclass(frozen=True)
class PassSums:
    """The result of a pass."""

    #: ``Σ‖y‖²``.
    energy: float
    #: ``Σ‖y − ŷ‖²``.
    residual: float
    #: ``Σ‖x‖²``, only where neither S_xx nor P is summed.
    code_energy: float
    #: The number of nonzeros in all codes.
    nonzeros: int
    #: The sums that the task asked for, flat.
    sums: NDArray[np.float64]
    #: The samples with the largest residuals above zero, largest first; ties by sample number.
    worst: NDArray[np.int64]
    #: The codes, if the task keeps them, in whatever form and place suits the engine.
    codes: Any = None

    @classmethod
    def of_tree(cls, tree: Any, worst: NDArray[np.int64], codes: Any = None) -> PassSums:
        """The result of a pass whose blocks have all been added to a tree."""
        total = tree.total()
        energy, residual, code_energy, nonzeros = total[:_COUNTS].tolist()
        return cls(energy, residual, code_energy, int(nonzeros), total[_COUNTS:], worst, codes)


def worst_first(
    residuals: NDArray[np.float64], samples: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The largest residuals and their samples, largest first; ties by sample number."""
    order = np.lexsort((samples, -residuals))[:count]
    return residuals[order], samples[order]


@dataclass(frozen=True)
class Iteration:
    """The result of one iteration: a pass with a dictionary, and the next dictionary."""

    #: The next dictionary.
    dictionary: Dictionary
    #: ``Σ‖y − ŷ‖²`` with the dictionary of the pass.
    residual: float
    #: The number of nonzeros in the codes of the pass.
    nonzeros: int
    #: How many atoms of the next dictionary replace unused ones.
    atoms_replaced: int = 0
    #: The full moments of the pass, if it summed them.
    moments: Moments | None = None
    #: When the iteration ended, by ``time.perf_counter``, if an engine ran several in one call.
    finished: float | None = None


class Engine(ABC):
    """Runs passes over the samples of one source.

    Engines that work on processors find the same bits if they have the same ``block_size``, the
    number of samples in a summed block.
    """

    source: Source
    block_size: int

    @abstractmethod
    def run(self, task: Task, codes: Any = None) -> PassSums:
        """Run a pass over all samples; if ``codes`` are given, sum those instead of coding."""

    @abstractmethod
    def codes(self, dictionary: Dictionary, coder: Coder) -> Any:
        """The codes of all samples, a CSR array ``(N, n_codes)`` on the device of the samples."""

    def iterations(
        self, dictionary: Dictionary, coder: Coder, orthonormal: bool, count: int
    ) -> list[Iteration] | None:
        """Run up to ``count`` iterations at once, each one coding and one update of all factors.

        None if the engine has no faster way than single passes. The list is shorter than ``count``,
        or empty, if an iteration needs more than coding and an update, such as the replacement of
        an atom.
        """
        return None

    def close(self) -> None:  # noqa: B027  (most engines hold nothing)
        """Release the engine's resources."""
