"""Sums over samples that are streamed to the GPU, chunk by chunk."""

from __future__ import annotations

import numpy as np

from kronlearn.cuda.device import Gpu
from kronlearn.cuda.structs import CHUNK_SUMS, new_struct, set_fields
from kronlearn.cuda.updates import THREADS, DeviceUpdate, partial_sums

__all__ = ["PARTS", "ChunkSums"]

#: A total in double precision is passed to an update as this many rows of single precision.
PARTS = 3


class ChunkSums:
    """Adds up the sums of one chunk after the other, for an update that has ``PARTS`` rows.

    Parameters
    ----------
    gpu : Gpu
    update : DeviceUpdate
        The update that is given the total.
    rows : int
        The most blocks that leave sums of a chunk.

    Attributes
    ----------
    partial, partial_counts : arrays on the GPU
        The sums and counts that these blocks leave.
    """

    def __init__(self, gpu: Gpu, update: DeviceUpdate, rows: int) -> None:
        self.gpu, self.update, xp = gpu, update, gpu.xp
        numbers = update.partial.shape[1]
        self.partial, self.partial_counts = partial_sums(gpu, rows, numbers)
        self._totals, self._total_counts = xp.zeros(numbers), xp.zeros(4)
        self._arrived = xp.zeros(1, np.int32)
        self._task = new_struct(
            gpu,
            CHUNK_SUMS,
            numbers=numbers,
            partial=self.partial,
            totals=self._totals,
            total_counts=self._total_counts,
            sums=update.partial,
            counts=update.partial_counts,
            arrived=self._arrived,
            stopped=update.stopped,
        )

    def add(self, rows: int, begins: bool, ends: bool, of_coding: bool) -> None:
        """Enqueue the addition of a chunk's sums, which ``rows`` blocks have left.

        The first chunk ``begins`` the total and the last one ``ends`` it. Only a pass ``of_coding``
        leaves counts.
        """
        task = self._task.copy()
        counts = self.partial_counts if of_coding else None
        values = {"rows": rows, "begins": begins, "ends": ends, "partial_counts": counts}
        set_fields(self.gpu, task, **values)
        self.gpu.launch_blocks("chunk_sums.cu", "add_chunk", self.update.blocks, THREADS, task)
