"""New factors of two like modes from sums on the GPU, without a look from the processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.cuda.device import Gpu, defined
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import struct

__all__ = ["THREADS", "DeviceUpdate", "Made", "partial_sums"]

#: Of a block that adds up sums.
THREADS = 256
# Numbers that a block adds up at a time.
_AT_A_TIME = 32

_POINTERS = (
    *("partial", "partial_counts", "sums", "counts"),
    *("single_tables", "double_tables", "history", "all_factors", "iteration"),
    *("arrived", "stopped", "unscaled"),
)

#: The struct Update of the kernels.
_UPDATE = np.dtype(
    [
        *((name, np.int32) for name in ("orthonormal", "kept", "rows")),
        ("factor", np.float64),
        *((name, np.uint64) for name in _POINTERS),
    ],
    align=True,
)


@dataclass(frozen=True)
class Made:
    """What one iteration made: new factors, and ``Σ‖y − ŷ‖²`` and nonzeros with the old ones.

    ``failed`` says that the iteration has to be done by the processor; nothing was done after it.
    """

    factors: list[NDArray[np.float64]]
    residual: float
    nonzeros: int
    failed: bool


class DeviceUpdate:
    """Updates a dictionary of two modes of the same size on the GPU.

    Of 8 × 8 atoms and 8 × 8 samples both modes are updated from full moments, of orthonormal ones
    from ``S_xy`` alone; of others one mode after the other from its sums ``P`` and ``C``.

    Parameters
    ----------
    gpu : Gpu
    dictionary : KroneckerDictionary
    orthonormal : bool
    kept : int
        How many iterations' results are kept on the GPU: no more may follow each other.
    rows : int
        How many blocks add up sums for it.
    scale : float
        What samples and codes are multiplied by in these sums.

    Attributes
    ----------
    partial, partial_counts : arrays on the GPU
        Where blocks leave their sums (rows, numbers) and the four numbers of a pass (rows, 4).
    stopped : array on the GPU, of one int32
        Whether nothing is to be done any more.
    single_tables, double_tables : arrays on the GPU
        Tables of the present dictionary.
    unscaled : array on the GPU
        Between both modes, the left factor to which the codes belong.
    """

    def __init__(
        self,
        gpu: Gpu,
        dictionary: KroneckerDictionary,
        orthonormal: bool,
        kept: int,
        rows: int,
        scale: float = 1.0,
    ) -> None:
        self.gpu, self.kept = gpu, kept
        (m, n), xp = dictionary.factors[0].shape, gpu.xp
        self.shape = m, n
        self.file = "full_updates.cu" if m == n == 8 else "mode_updates.cu"
        self.options = defined(M=m, N=n)
        numbers = n * (n + m)
        if m == n == 8:
            numbers = (1 if orthonormal else 2) * (n * n) * (m * m)
        self.partial, self.partial_counts = partial_sums(gpu, rows, numbers)
        self.sums, self.counts = xp.zeros(numbers), xp.zeros(4)
        size = Tables.of(dictionary.factors).numbers.size
        self.single_tables, self.double_tables = xp.zeros(size, np.float32), xp.zeros(size)
        self.history = xp.zeros((kept, 3))
        self.all_factors = xp.zeros((kept, 2 * m * n))
        self.iteration = xp.zeros(1, np.int32)
        self.arrived, self.stopped = xp.zeros(1, np.int32), xp.zeros(1, np.int32)
        self.unscaled = xp.zeros((m, n), np.float32)
        self.blocks = 1 + min(numbers // _AT_A_TIME, 2 * gpu.n_multiprocessors)
        values = {"orthonormal": orthonormal, "kept": kept, "rows": rows, "factor": scale**-2.0}
        places = {name: gpu.address(getattr(self, name)) for name in _POINTERS}
        self.task = struct(_UPDATE, **values, **places)
        needs = xp.zeros(1, np.int32)
        gpu.launch_blocks(self.file, "update_needs", 1, 1, needs, options=self.options)
        self.shared_bytes = int(needs[0])

    def begin(self, factors: Sequence[NDArray[Any]]) -> None:
        """Get ready for iterations from these factors on."""
        exact = np.concatenate([np.asarray(factor, np.float64).ravel() for factor in factors])
        self.double_tables[: exact.size] = self.gpu.upload(exact)
        self._launch("tabulate", 1)
        self.iteration.fill(0)
        self.stopped.fill(0)

    def stop(self) -> None:
        """Have all kernels do nothing until :meth:`begin`."""
        self.stopped.fill(1)

    def run(self, kernel: str) -> None:
        """Enqueue ``update_both``, or ``update_left`` or ``update_right``."""
        self._launch(kernel, self.blocks)

    def made(self) -> list[Made]:
        """What was made since :meth:`begin`, at most ``kept`` iterations; waits for it."""
        history = self.gpu.download(self.history)
        factors = self.gpu.download(self.all_factors)
        count = int(self.gpu.download(self.iteration)[0])
        return [self._made(history[row], factors[row]) for row in range(count)]

    def _launch(self, kernel: str, blocks: int) -> None:
        shared, options = self.shared_bytes, self.options
        self.gpu.launch_blocks(
            self.file, kernel, blocks, THREADS, self.task, options=options, shared=shared
        )

    def _made(self, numbers: NDArray[np.float64], entries: NDArray[np.float64]) -> Made:
        factors = list(entries.reshape(2, *self.shape))
        residual, nonzeros, flag = numbers.tolist()
        return Made(factors, residual, int(nonzeros), bool(flag))


def partial_sums(gpu: Gpu, rows: int, numbers: int) -> tuple[Any, Any]:
    """Where so many blocks leave their sums and the four numbers of a pass, zeros at first."""
    return gpu.xp.zeros((rows, numbers), np.float32), gpu.xp.zeros((rows, 4))
