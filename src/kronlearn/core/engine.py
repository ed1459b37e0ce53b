"""What a pass over samples is, and who runs it.

A pass is a pure function: samples, a dictionary and a coder in, sums out. The sums of blocks of
samples are added as a fixed tree over the blocks, so they have the same bits wherever the blocks
are coded: in threads of one process, or by the workers of a cluster.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.source import Source

__all__ = ["Engine", "Iterated", "PassSums", "Task", "full_moment_numbers", "worst_first"]

# Numbers that every pass sums before all others: Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖², nonzeros.
_COUNTS = 4


@dataclass(frozen=True)
class Task:
    """What a pass does with every sample; small, and the same for all of them.

    ``sums`` names what is added up beside a few numbers: the full moments ("full", or "xy" without
    ``S_xx``), the sums of one ``mode`` ("mode", or "mode-xy" without P), or "none". ``n_worst`` is
    how many samples with the largest residuals are wanted. With ``keeps_codes`` the result holds
    the codes, which a later pass can be given to sum. With ``scales``, one array ``(n_i,)`` per
    mode, given codes count times the scales of their atoms.
    """

    dictionary: Dictionary
    coder: Coder
    sums: str = "none"
    mode: int = -1
    n_worst: int = 0
    keeps_codes: bool = False
    scales: tuple[NDArray[np.float64], ...] | None = None

    @property
    def factors(self) -> tuple[NDArray[Any], ...]:
        """What the work is done with: matrices whose Kronecker product has the scaled atoms."""
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
    """How many numbers a pass adds up for full moments: a triangle of S_xx, and S_xy."""
    n = math.prod(n_atoms)
    return (n * (n + 1) // 2 if with_xx else 0) + n * math.prod(patch_shape)


@dataclass(frozen=True)
class PassSums:
    """What a pass over samples found.

    ``energy`` is ``Σ‖y‖²``, ``residual`` ``Σ‖y − ŷ‖²``, ``code_energy`` ``Σ‖x‖²`` (where S_xx or P
    is not summed), ``sums`` what the task asked for, flat; ``worst`` the samples with the largest
    residuals above zero, by residual and, of equal ones, by number; ``codes`` is a value that the
    engine holds where it works.
    """

    n_samples: int
    energy: float
    residual: float
    code_energy: float
    nonzeros: int
    sums: NDArray[np.float64]
    worst: NDArray[np.int64]
    codes: Any = None

    @classmethod
    def of_tree(
        cls, tree: Any, n_samples: int, worst: NDArray[np.int64], codes: Any = None
    ) -> PassSums:
        """What a tree to which all blocks were added says."""
        total = tree.total()
        energy, residual, code_energy, nonzeros = total[:_COUNTS].tolist()
        return cls(
            n_samples, energy, residual, code_energy, int(nonzeros), total[_COUNTS:], worst, codes
        )


def worst_first(
    residuals: NDArray[np.float64], samples: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The largest residuals and their samples, of equal ones those with lower numbers first."""
    order = np.lexsort((samples, -residuals))[:count]
    return residuals[order], samples[order]


@dataclass(frozen=True)
class Iterated:
    """An iteration that an engine did on its own.

    ``residual`` (``Σ‖y − ŷ‖²``) and ``nonzeros`` belong to the dictionary that it began with;
    ``dictionary`` is the next one; ``finished`` is when, by ``time.perf_counter``.
    """

    dictionary: Dictionary
    residual: float
    nonzeros: int
    finished: float


class Engine(ABC):
    """Runs passes over the samples of one source.

    ``block_size`` is the number of samples per summed block: with the same one all engines that
    work on processors find the same bits.
    """

    source: Source
    block_size: int

    @abstractmethod
    def run(self, task: Task, codes: Any = None) -> PassSums:
        """One pass over all samples; with codes these are summed and nothing is coded."""

    @abstractmethod
    def codes(self, dictionary: Dictionary, coder: Coder) -> Any:
        """The codes ``(N, n_codes)`` of all samples, a CSR array that lies where they do."""

    def iterations(
        self, dictionary: Dictionary, coder: Coder, orthonormal: bool, count: int
    ) -> list[Iterated] | None:
        """Up to ``count`` iterations of one coding and one update of all factors each.

        None if the engine has no faster way than its passes; fewer than asked for, or none, if an
        iteration needs more than that, such as the replacement of an atom.
        """
        return None

    def close(self) -> None:  # noqa: B027  (most engines hold nothing)
        """Let go of whatever the engine holds."""
