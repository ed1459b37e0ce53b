"""What engines do: pass over samples, code them, add up moments, keep their codes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.source import Source

__all__ = [
    "MOST_AT_ONCE",
    "Coder",
    "Codes",
    "Course",
    "Engine",
    "Iterated",
    "KeptCodes",
    "Pass",
    "Step",
    "Task",
    "Traffic",
]

# Numbers that every pass sums before all others: Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖², nonzeros.
_COUNTS = 4


@dataclass(frozen=True)
class Coder:
    """How samples are coded.

    ``method`` is "omp", "ols" or "threshold"; ``width`` the most nonzeros of a sample; ``tol`` the
    ℓ2 norm a residual may have, for all samples or one each, or None; ``weights`` an array
    ``(N, m_1, …, m_d)`` or None.
    """

    method: str
    width: int
    tol: float | NDArray[Any] | None = None
    weights: NDArray[Any] | None = None


class KeptCodes(ABC):
    """The codes of all samples, wherever an engine keeps them."""

    @abstractmethod
    def used(self, n_atoms: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which atoms ``(n_1, …, n_d)`` any code uses."""

    @abstractmethod
    def worst(self, count: int) -> NDArray[np.intp]:
        """The samples with the largest residuals, of equal ones the first; none without any."""

    @abstractmethod
    def gathered(self) -> Codes:
        """All of them in this process."""


@dataclass
class Codes(KeptCodes):
    """Codes of fixed width: of row k the first ``nonzeros[k]`` entries count, indices ascending.

    ``index``, ``value`` are (N, width), ``nonzeros`` and ``residual2`` (the squared norms of the
    residuals) are (N,). What is None is not kept.
    """

    index: NDArray[np.int32] | None = None
    nonzeros: NDArray[np.int32] | None = None
    value: NDArray[Any] | None = None
    residual2: NDArray[Any] | None = None

    @classmethod
    def empty(
        cls,
        n_samples: int,
        width: int,
        dtype: Any,
        *,
        supports: bool = True,
        values: bool = True,
        residuals: bool = False,
    ) -> Codes:
        """Room for N samples and for those parts that are wanted."""
        return cls(
            np.zeros((n_samples, width), np.int32) if supports else None,
            np.zeros(n_samples, np.int32) if supports else None,
            np.zeros((n_samples, width), dtype) if values else None,
            np.zeros(n_samples, dtype) if residuals else None,
        )

    def used(self, n_atoms: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which atoms ``(n_1, …, n_d)`` any code uses."""
        assert self.index is not None
        assert self.nonzeros is not None
        used = np.zeros(math.prod(n_atoms), bool)
        places = np.arange(self.index.shape[1])
        for start in range(0, len(self.index), 65536):
            rows = slice(start, start + 65536)
            used[self.index[rows][places < self.nonzeros[rows, None]]] = True
        return used.reshape(n_atoms)

    def worst(self, count: int) -> NDArray[np.intp]:
        """The samples with the largest residuals, of equal ones the first; none without any."""
        assert self.residual2 is not None
        worst = np.argsort(-self.residual2, kind="stable")[:count]
        return worst[self.residual2[worst] > 0]

    def gathered(self) -> Codes:
        """These codes: they are in this process already."""
        return self

    def __getitem__(self, rows: slice) -> Codes:
        arrays = (self.index, self.nonzeros, self.value, self.residual2)
        return Codes(*(None if array is None else array[rows] for array in arrays))


@dataclass(frozen=True)
class Pass:
    """What one pass over the samples found: ``Σ‖y − ŷ‖²`` and the number of nonzeros."""

    residual: float = 0.0
    nonzeros: int = 0


@dataclass(frozen=True)
class Task:
    """What is to be done with every sample in a pass; small, and the same for all of them.

    ``coding`` is "fresh" (code them), "refit" (least squares on the supports in the codes) or
    "given" (take the codes as they are). ``keep_better`` keeps a support in the codes wherever it
    represents its sample at least as well; with ``half`` 0 or 1 only every other run of 256
    samples, from the first or the second on, is coded and the rest refitted. ``sums`` names the
    sums to be added up: "full", "xy", of one ``mode`` "mode" or "mode-xy", or "none". With
    ``scales``, one array ``(n_i,)`` per mode, given codes count times the scales of their atoms.
    """

    dictionary: Dictionary
    coder: Coder
    coding: str = "fresh"
    keep_better: bool = False
    half: int | None = None
    sums: str = "none"
    mode: int = -1
    scales: tuple[NDArray[np.float64], ...] | None = None

    @property
    def looks_back(self) -> bool:
        """Whether codes that are there already matter."""
        return self.coding != "fresh" or self.keep_better or self.half is not None

    @property
    def factors(self) -> tuple[NDArray[Any], ...]:
        """What the work is done with: matrices whose Kronecker product has the scaled atoms."""
        factors = self.dictionary.coding_factors
        if self.scales is None:
            return factors
        return tuple(factor * scale for factor, scale in zip(factors, self.scales, strict=True))

    def tree(self, n_blocks: int) -> Any:
        """Where the sums of all blocks are added up, wherever they come from."""
        patch_shape, n_atoms = self.dictionary.patch_shape, self.dictionary.n_atoms
        size = 0
        if self.mode >= 0:
            n, m = n_atoms[self.mode], patch_shape[self.mode]
            size = n * m + (n * n if self.sums == "mode" else 0)
        elif self.sums != "none":
            size = Moments.numbers(patch_shape, n_atoms, with_xx=self.sums == "full")
        return _native.SumTree(_COUNTS + size, n_blocks)

    def found(self, tree: Any, n_samples: int, moments: Moments | ModeMoments | None) -> Pass:
        """What a finished tree says; its sums are added to the moments."""
        sums = tree.total()
        energy, residual, code_energy, nonzeros = sums[:_COUNTS].tolist()
        if moments is not None:
            moments.add(sums[_COUNTS:], n_samples, energy, code_energy)
        return Pass(residual, int(nonzeros))


@dataclass
class Traffic:
    """What went between a driver and its workers, and what had to be done twice.

    ``bytes_out`` and ``bytes_in`` are the lengths of all requests and answers, as the driver sees
    them; ``questions`` counts rounds with all workers, ``messages`` requests; ``steps_repeated``
    passes over a span that were done again because its codes had been lost.
    """

    questions: int = 0
    messages: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    workers_lost: int = 0
    steps_repeated: int = 0


@dataclass(frozen=True)
class Step:
    """How an iteration codes samples: ``keep_better`` and ``half`` as :class:`Task` has them."""

    keep_better: bool = False
    half: int | None = None


#: So many iterations are done at once at most where an engine can: callbacks come that much later.
MOST_AT_ONCE = 16


@dataclass(frozen=True)
class Course:
    """Iterations that an engine is to do on its own.

    ``steps``, at most :data:`MOST_AT_ONCE`, say how each of them codes; ``orthonormal`` what the
    updates are. ``keeps_codes`` says whether the supports are wanted afterwards, ``codes`` are
    those before the first iteration, if there are any, and every iteration's replace them, or,
    unless ``in_place``, leave alone those of the one before. With ``last_error``, the
    ``Σ‖y − ŷ‖²`` before the first one, an iteration that raises the error is the last.
    """

    steps: tuple[Step, ...]
    orthonormal: bool = False
    keeps_codes: bool = False
    in_place: bool = False
    codes: KeptCodes | None = None
    last_error: float | None = None


@dataclass(frozen=True)
class Iterated:
    """An iteration that an engine did on its own.

    ``squared_error`` is ``Σ‖y − ŷ‖²`` with the new dictionary and the codes of the old one,
    ``residual`` that of the old one; ``finished`` is when, by ``time.perf_counter``. ``codes`` are
    where its codes went; later iterations may have replaced them.
    """

    dictionary: Dictionary
    squared_error: float
    residual: float
    nonzeros: int
    finished: float
    codes: KeptCodes | None = None


class Engine(ABC):
    """Passes over the samples of one source.

    ``block_size`` is the number of samples per summed block: with the same one all engines find the
    same bits. ``traffic`` is what has gone over a network so far, if there is one.
    """

    block_size: int
    traffic: Traffic | None = None

    @abstractmethod
    def room(self, source: Source, width: int, **parts: bool) -> KeptCodes:
        """Room for the codes of a source, for those parts that :meth:`Codes.empty` is told."""

    @abstractmethod
    def adopted(self, codes: Codes) -> KeptCodes:
        """Codes of this process as this engine keeps them."""

    def run(
        self,
        source: Source,
        dictionary: Dictionary,
        coder: Coder,
        *,
        coding: str = "fresh",
        keep_better: bool = False,
        half: int | None = None,
        codes: Any = None,
        moments: Moments | ModeMoments | None = None,
        scales: tuple[NDArray[np.float64], ...] | None = None,
    ) -> Pass:
        """One pass over the samples, as :class:`Task` describes it.

        Codes are written to ``codes``, the engine's own, and sums added to ``moments`` where given.
        """
        sums, mode = ("none", -1) if moments is None else (moments.kind, moments.index)
        task = Task(dictionary, coder, coding, keep_better, half, sums, mode, scales)
        return task.found(self.summed(source, task, codes), len(source), moments)

    @abstractmethod
    def summed(self, source: Source, task: Task, codes: Any) -> Any:
        """The tree of sums over all blocks that a task makes; ``codes`` may be None."""

    def ahead(
        self, source: Source, dictionary: Dictionary, coder: Coder, course: Course
    ) -> list[Iterated] | None:
        """Iterations of one coding and one update of all factors each.

        None if the engine has no faster way than its passes; fewer than asked for, or none, if an
        iteration needs more than that, such as the replacement of an atom, or raised the error.
        """
        return None

    def close(self) -> None:  # noqa: B027  (most engines hold nothing)
        """Let go of whatever the engine holds."""
