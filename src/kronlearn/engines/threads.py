"""The engine of one machine: native code in threads."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.dictionary import Dictionary
from kronlearn.moments import ModeMoments, Moments
from kronlearn.simd import instruction_set  # noqa: F401  (applies the environment variable)
from kronlearn.sources.arrays import ArraySource, check_finite

__all__ = [
    "Coder",
    "Codes",
    "Pass",
    "Threads",
    "default_block_size",
    "native_dictionary",
    "resolve_n_jobs",
]

# The most samples that are coded side by side.
_LANES = 16

_MOST_THREADS = 4096


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


@dataclass
class Codes:
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

    def rescale(self, mode: int, scale: NDArray[np.float64], n_atoms: tuple[int, ...]) -> None:
        """Multiply every coefficient by the scale of its atom's index in one mode, in blocks."""
        assert self.index is not None
        assert self.value is not None
        inner = math.prod(n_atoms[mode + 1 :])
        table = scale.astype(self.value.dtype)
        for start in range(0, len(self.index), 65536):
            rows = slice(start, start + 65536)
            self.value[rows] *= table[self.index[rows] // inner % n_atoms[mode]]

    def __getitem__(self, rows: slice) -> Codes:
        arrays = (self.index, self.nonzeros, self.value, self.residual2)
        return Codes(*(None if array is None else array[rows] for array in arrays))


@dataclass(frozen=True)
class Pass:
    """What one pass over the samples found: ``Σ‖y − ŷ‖²`` and the number of nonzeros."""

    residual: float = 0.0
    nonzeros: int = 0


@dataclass(frozen=True)
class Threads:
    """Codes samples and adds up moments in threads of this process.

    The samples are cut into blocks of ``block_size``; each block is summed on its own and the sums
    are added in the order of the blocks, so results have the same bits for any number of threads.
    """

    n_threads: int = 1
    block_size: int = 4096

    def run(
        self,
        source: ArraySource,
        dictionary: Dictionary,
        coder: Coder,
        *,
        coding: str = "fresh",
        keep_better: bool = False,
        half: int | None = None,
        codes: Codes | None = None,
        moments: Moments | ModeMoments | None = None,
    ) -> Pass:
        """One pass over the samples.

        ``coding`` is "fresh" (code them), "refit" (least squares on the supports in ``codes``) or
        "given" (take the codes as they are). ``keep_better`` keeps a support in ``codes`` wherever
        it represents its sample at least as well; with ``half`` 0 or 1 only every other run of 256
        samples, from the first or the second on, is coded and the rest refitted. Codes are written
        to ``codes`` and sums added to ``moments`` where given.
        """
        native = native_dictionary(dictionary.coding_factors, source.dtype)
        residual = code_energy = 0.0
        nonzeros = 0
        for rows, samples in source.blocks(self.block_size):
            part = codes[rows] if codes is not None else None
            found = native.run(
                samples,
                coding,
                coder.method,
                coder.width,
                keep_better=keep_better,
                half=-1 if half is None else half,
                first=rows.start,
                **_targets(coder, rows, source),
                **_arrays(part),
                **(moments.native_arguments() if moments is not None else {}),
                threads=self.n_threads,
                block=self.block_size,
                residual_so_far=residual,
                code_energy_so_far=code_energy,
            )
            energy, residual, code_energy, block_nonzeros, not_finite = found
            if not_finite >= 0:
                check_finite(samples[not_finite : not_finite + 1], rows.start + not_finite)
            nonzeros += block_nonzeros
            if moments is not None:
                moments.count(len(samples), energy)
        if moments is not None:
            moments.code_energy += code_energy
        return Pass(residual, nonzeros)


def native_dictionary(factors: Sequence[NDArray[Any]], dtype: Any) -> Any:
    """The factors as the native code wants them, for samples of a dtype."""
    kind = _native.DictionaryFloat32 if dtype == np.float32 else _native.DictionaryFloat64
    return kind([np.ascontiguousarray(factor, dtype=np.float64) for factor in factors])


def _targets(coder: Coder, rows: slice, source: ArraySource) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if coder.tol is not None:
        if np.ndim(coder.tol) == 0:
            arguments["tol"] = float(coder.tol)
        else:
            arguments["tols"] = np.ascontiguousarray(np.asarray(coder.tol)[rows], source.dtype)
    if coder.weights is not None:
        arguments["weights"] = np.ascontiguousarray(coder.weights[rows], source.dtype)
    return arguments


def _arrays(codes: Codes | None) -> dict[str, Any]:
    if codes is None:
        return {}
    return {
        "index": codes.index,
        "nonzeros": codes.nonzeros,
        "value": codes.value,
        "residual2": codes.residual2,
    }


def default_block_size(n_samples: int, moment_numbers: int) -> int:
    """Samples per summed block: a function of the problem alone, never of the threads.

    Adding a block's sums costs about a nanosecond per number, so blocks grow with the moments
    until that cost vanishes, but leave at least four blocks, and multiples of four (or eight), to
    share out evenly.
    """
    smallest = max(1024, moment_numbers // 16)
    n_blocks = n_samples // smallest
    n_blocks = n_blocks // 8 * 8 if n_blocks >= 16 else 4
    return max(1024, -(-n_samples // n_blocks // _LANES) * _LANES)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """The number of threads that ``n_jobs`` means.

    None means 1 unless a ``joblib.parallel_config`` context says otherwise; -1 all processors this
    process may use, -2 all but one, and so on. The environment variable OMP_NUM_THREADS caps
    negative numbers and contexts, not a positive number given here.
    """
    if n_jobs is not None and (
        isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer))
    ):
        raise TypeError(
            f"n_jobs={n_jobs!r} is not an integer; pass a number of threads, -1 or None."
        )
    if n_jobs == 0:
        raise ValueError("n_jobs=0 means no threads at all; pass 1, another number, -1 or None.")
    if n_jobs is not None and n_jobs > 0:
        return min(int(n_jobs), _MOST_THREADS)
    import joblib

    wanted = joblib.effective_n_jobs(n_jobs)
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if limit.isdigit() and int(limit) > 0:
        wanted = min(wanted, int(limit))
    return max(1, wanted)
