"""Sums over blocks of coded samples on the GPU, added up as a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from kronlearn.core.engine import Task
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.tables import SHAPE, shape_of
from kronlearn.cuda.tasks import struct

__all__ = ["BlockSums"]

_KINDS = {"none": 0, "xy": 1, "full": 2, "mode-xy": 3, "mode": 4}
_OF_CODES = ("value", "residual2", "index", "nonzeros")
_POINTERS = ("samples", *_OF_CODES, "factors", "sums", "scratch", "rows")
# A team sums so many samples of a block, or more: adding its sums to those of others takes about as
# long as to sum a sample for every 128 of their numbers.
_FEWEST_OF_PART, _NUMBERS_OF_SAMPLE = 256, 128
# The most bytes of parts' sums that are held at a time, and the largest share of what is free.
_MOST_BYTES, _SHARE = 1 << 30, 1 / 8

#: The struct BlockTask of the kernel.
_TASK = np.dtype(
    [
        ("shape", SHAPE),
        *((name, np.int32) for name in ("kind", "mode", "width", "has_residuals")),
        *((name, np.int64) for name in ("count", "block_size", "part_size", "numbers")),
        *((name, np.uint64) for name in _POINTERS),
    ],
    align=True,
)


class BlockSums:
    """Sums blocks of coded samples on the GPU and adds them to a tree.

    A block is summed in parts, one team each. Its sums rest on its samples and codes alone, in
    their order, and blocks are added as the tree says: the total has the same bits wherever which
    blocks were summed, on GPUs of one kind.

    Parameters
    ----------
    gpu : Gpu
    task : Task
    tree : SumTree
        What :meth:`Task.tree` makes.
    block_size : int
    given : bool
        Whether codes are given; their residuals are unknown then.
    """

    def __init__(self, gpu: Gpu, task: Task, tree: Any, block_size: int, given: bool) -> None:
        self.gpu, self.tree, self.block_size = gpu, tree, block_size
        exact = [np.asarray(factor, np.float64).ravel() for factor in task.factors]
        self.factors = gpu.upload(np.concatenate(exact))
        patch_shape, n_atoms = task.dictionary.patch_shape, task.dictionary.n_atoms
        #: How many numbers a block's sums are.
        self.numbers = int(tree.nodes()[2].shape[1])
        self.part_size = min(block_size, max(_FEWEST_OF_PART, self.numbers // _NUMBERS_OF_SAMPLE))
        self.n_parts = -(-block_size // self.part_size)
        self.rows = self.scratch = 0
        if task.mode >= 0:
            self.rows = n_atoms[task.mode]
            self.scratch = self.rows * task.dictionary.n_features // patch_shape[task.mode]
        self.work = {
            "shape": shape_of(task.factors),
            "has_residuals": not given,
            "kind": _KINDS[task.sums],
            "mode": task.mode,
            "block_size": block_size,
            "part_size": self.part_size,
            "numbers": self.numbers,
            "factors": gpu.address(self.factors),
        }
        bytes_of_block = 8 * self.n_parts * self.numbers
        memory = min(_MOST_BYTES, int(_SHARE * gpu.free_memory()))
        self.most_blocks = max(1, memory // bytes_of_block)

    def add(self, samples: Any, codes: GpuCodes, first_block: int) -> None:
        """Add consecutive samples and their codes, from the beginning of a block on."""
        step = self.most_blocks * self.block_size
        for start in range(0, len(samples), step):
            rows = slice(start, start + step)
            block = first_block + start // self.block_size
            self._into_tree(self._sums(samples[rows], codes[rows]), block)

    def _sums(self, samples: Any, codes: GpuCodes) -> Any:
        """The sums of every block, (blocks, numbers)."""
        xp, address = self.gpu.xp, self.gpu.address
        n_blocks, n_parts = -(-len(samples) // self.block_size), self.n_parts
        teams = min(self.gpu.n_teams, n_blocks * n_parts)
        sums = xp.zeros((n_blocks, n_parts, self.numbers))
        scratch, rows = xp.empty(teams * self.scratch), xp.empty(teams * self.rows, np.int32)
        places = {"samples": samples, "sums": sums, "scratch": scratch, "rows": rows}
        places |= {name: getattr(codes, name) for name in _OF_CODES}
        own = {"width": codes.index.shape[1], "count": len(samples)}
        own |= {name: address(array) for name, array in places.items()}
        work = struct(_TASK, **self.work, **own)
        self.gpu.launch("block_sums.cu", f"block_sums_{samples.dtype.name}", teams, work)
        while n_parts > 1:
            half = n_parts // 2
            sums[:, :half] += sums[:, n_parts - half : n_parts]
            n_parts -= half
        return sums[:, 0]

    def _into_tree(self, sums: Any, first: int) -> None:
        """Add up pairs of nodes on the GPU; those without a partner here go to the tree."""
        level = 0
        while len(sums):
            if first % 2:
                self._node(level, first, sums[0])
                sums, first = sums[1:], first + 1
            if len(sums) % 2:
                self._node(level, first + len(sums) - 1, sums[-1])
                sums = sums[:-1]
            sums = sums[0::2] + sums[1::2]
            level, first = level + 1, first // 2

    def _node(self, level: int, index: int, sums: Any) -> None:
        self.tree.add(level, index, self.gpu.download(sums))
