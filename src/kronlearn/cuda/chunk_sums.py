"""Sums over samples that come to the GPU chunk by chunk."""

from __future__ import annotations

import numpy as np

from kronlearn.cuda.device import Gpu
from kronlearn.cuda.tasks import struct
from kronlearn.cuda.updates import THREADS, DeviceUpdate, partial_sums

__all__ = ["PARTS", "ChunkSums"]

#: A sum in double precision is given to an update as so many rows of single precision.
PARTS = 3

_POINTERS = (
    *("partial", "partial_counts", "totals", "total_counts"),
    *("sums", "counts", "arrived", "stopped"),
)

#: The struct ChunkSums of the kernels.
_CHUNK_SUMS = np.dtype(
    [
        *((name, np.int32) for name in ("begins", "ends", "numbers", "rows")),
        *((name, np.uint64) for name in _POINTERS),
    ],
    align=True,
)


class ChunkSums:
    """Adds up the sums of chunks, one after the other, for an update of ``PARTS`` rows.

    Parameters
    ----------
    gpu : Gpu
    update : DeviceUpdate
        Which gets the sums.
    rows : int
        How many blocks leave sums of a chunk at most.

    Attributes
    ----------
    partial, partial_counts : arrays on the GPU
        Where these blocks leave them.
    """

    def __init__(self, gpu: Gpu, update: DeviceUpdate, rows: int) -> None:
        self.gpu, self.update, xp = gpu, update, gpu.xp
        numbers = update.partial.shape[1]
        self.partial, self.partial_counts = partial_sums(gpu, rows, numbers)
        self.totals, self.total_counts = xp.zeros(numbers), xp.zeros(4)
        self.arrived, self.stopped = xp.zeros(1, np.int32), update.stopped
        self.sums, self.counts = update.partial, update.partial_counts
        places = {name: gpu.address(getattr(self, name)) for name in _POINTERS}
        self.task = struct(_CHUNK_SUMS, numbers=numbers, **places)

    def add(self, rows: int, begins: bool, ends: bool, of_coding: bool) -> None:
        """Enqueue it for a chunk of which so many blocks have left sums.

        The first chunk ``begins``, the last one ``ends``. A pass ``of_coding`` has counts.
        """
        task = self.task.copy()
        task["rows"], task["begins"], task["ends"] = rows, begins, ends
        if not of_coding:
            task["partial_counts"] = 0
        self.gpu.launch_blocks("chunk_sums.cu", "add_chunk", self.update.blocks, THREADS, task)
