"""Sums over blocks of coded samples on the GPU, added up as a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from kronlearn.core.engine import Task
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.structs import BLOCK_TASK, new_struct, set_fields
from kronlearn.cuda.tables import shape_of

__all__ = ["BlockSums"]

#: The enum Kind of the kernel.
_KINDS = {"none": 0, "xy": 1, "full": 2, "mode-xy": 3, "mode": 4}
# A team sums at least this many samples of a block. Adding up the sums of two teams takes about as
# long as summing one sample for every 128 numbers of these sums.
_FEWEST_PER_PART, _NUMBERS_PER_SAMPLE = 256, 128
# The sums of parts take at most this many bytes, and at most this share of the free memory.
_MOST_BYTES, _SHARE = 1 << 30, 1 / 8


class BlockSums:
    """Sums blocks of coded samples on the GPU and adds them to a tree.

    A block is summed in parts, each by one team. The sums of a block depend only on its samples and
    codes, in their order, and the tree fixes the order in which blocks are added: on GPUs of the
    same model, the total has the same bits wherever each block was summed.

    Parameters
    ----------
    gpu : Gpu
    task : Task
    tree : SumTree
        From :meth:`Task.tree`.
    block_size : int
    has_residuals : bool
        Whether the residuals of the codes are known.
    """

    def __init__(
        self, gpu: Gpu, task: Task, tree: Any, block_size: int, has_residuals: bool
    ) -> None:
        self.gpu, self.tree, self.block_size = gpu, tree, block_size
        factors = [np.asarray(factor, np.float64).ravel() for factor in task.factors]
        self._factors = gpu.upload(np.concatenate(factors))
        #: The length of a block's sums.
        self.numbers = int(tree.nodes()[2].shape[1])
        part_size = min(block_size, max(_FEWEST_PER_PART, self.numbers // _NUMBERS_PER_SAMPLE))
        self._n_parts = -(-block_size // part_size)
        # Numbers of scratch per team.
        self._rows = self._scratch = 0
        if task.mode >= 0:
            dictionary = task.dictionary
            self._rows = dictionary.n_atoms[task.mode]
            other_entries = dictionary.n_features // dictionary.patch_shape[task.mode]
            self._scratch = self._rows * other_entries
        self._task = new_struct(
            gpu,
            BLOCK_TASK,
            shape=shape_of(task.factors),
            has_residuals=has_residuals,
            kind=_KINDS[task.sums],
            mode=task.mode,
            block_size=block_size,
            part_size=part_size,
            numbers=self.numbers,
            factors=self._factors,
        )
        memory = min(_MOST_BYTES, int(_SHARE * gpu.free_memory()))
        self._most_blocks = max(1, memory // (8 * self._n_parts * self.numbers))

    def add(self, samples: Any, codes: GpuCodes, first_block: int) -> None:
        """Add consecutive samples and their codes, which begin with a block of this number."""
        step = self._most_blocks * self.block_size
        for start in range(0, len(samples), step):
            rows = slice(start, start + step)
            sums = self._sums_of_blocks(samples[rows], codes[rows])
            self._add_to_tree(sums, first_block + start // self.block_size)

    def _sums_of_blocks(self, samples: Any, codes: GpuCodes) -> Any:
        """The sums of each block, (blocks, numbers)."""
        xp = self.gpu.xp
        n_blocks, n_parts = -(-len(samples) // self.block_size), self._n_parts
        teams = min(self.gpu.n_teams, n_blocks * n_parts)
        sums = xp.zeros((n_blocks, n_parts, self.numbers))
        scratch, rows = xp.empty(teams * self._scratch), xp.empty(teams * self._rows, np.int32)
        task, width = self._task.copy(), codes.index.shape[1]
        set_fields(self.gpu, task, count=len(samples), width=width, samples=samples)
        set_fields(self.gpu, task, sums=sums, scratch=scratch, rows=rows, **codes.arrays)
        self.gpu.launch("block_sums.cu", f"block_sums_{samples.dtype.name}", teams, task)
        while n_parts > 1:
            half = n_parts // 2
            sums[:, :half] += sums[:, n_parts - half : n_parts]
            n_parts -= half
        return sums[:, 0]

    def _add_to_tree(self, sums: Any, first: int) -> None:
        """Add pairs of nodes on the GPU, and to the tree the nodes without a partner here."""
        level = 0
        while len(sums):
            if first % 2:
                self._add_node(level, first, sums[0])
                sums, first = sums[1:], first + 1
            if len(sums) % 2:
                self._add_node(level, first + len(sums) - 1, sums[-1])
                sums = sums[:-1]
            sums = sums[0::2] + sums[1::2]
            level, first = level + 1, first // 2

    def _add_node(self, level: int, index: int, sums: Any) -> None:
        self.tree.add(level, index, self.gpu.download(sums))
