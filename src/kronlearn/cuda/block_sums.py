"""Sums over blocks of coded samples on the card, added up as a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from kronlearn.core.engine import Task
from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card
from kronlearn.cuda.tables import SHAPE, card_tables

__all__ = ["BlockSums"]

_KINDS = {"none": 0, "xy": 1, "full": 2, "mode-xy": 3, "mode": 4}
_OF_CODES = ("value", "residual2", "index", "nonzeros")
_POINTERS = ("samples", *_OF_CODES, "factors", "sums", "scratch", "rows")

#: The struct BlockTask of the kernel.
_TASK = np.dtype(
    [
        ("shape", SHAPE),
        *((name, np.int32) for name in ("kind", "mode", "width", "has_residuals")),
        *((name, np.int64) for name in ("count", "block_size", "numbers")),
        *((name, np.uint64) for name in _POINTERS),
    ],
    align=True,
)


class BlockSums:
    """Sums blocks of coded samples on the card and adds them to a tree.

    A block's sums rest on its samples and codes alone, in their order, and blocks are added as the
    tree says: the total has the same bits wherever which blocks were summed, on cards of one kind.

    Parameters
    ----------
    card : Card
    task : Task
    tree : SumTree
        What :meth:`Task.tree` makes.
    block_size : int
    """

    def __init__(self, card: Card, task: Task, tree: Any, block_size: int) -> None:
        self.card, self.task, self.tree, self.block_size = card, task, tree, block_size
        #: How many numbers a block's sums are.
        self.numbers = int(tree.nodes()[2].shape[1])
        factors = task.factors
        self.shape = card_tables(card, factors).shape
        exact = [np.asarray(factor, np.float64).ravel() for factor in factors]
        self.factors = card.upload(np.concatenate(exact))
        mode, features = task.mode, task.dictionary.n_features
        self.rows = self.scratch = 0
        if mode >= 0:
            self.rows = task.dictionary.n_atoms[mode]
            self.scratch = self.rows * features // task.dictionary.patch_shape[mode]

    def add(self, samples: Any, codes: CardCodes, first_block: int) -> None:
        """Add consecutive samples and their codes, from the beginning of a block on."""
        xp, address = self.card.xp, self.card.address
        n_blocks = -(-len(samples) // self.block_size)
        teams = min(self.card.n_teams, n_blocks)
        sums = xp.zeros((n_blocks, self.numbers))
        scratch, rows = xp.empty(teams * self.scratch), xp.empty(teams * self.rows, np.int32)
        work = np.zeros((), _TASK)
        work["shape"], work["width"] = self.shape, codes.index.shape[1]
        work["kind"], work["mode"] = _KINDS[self.task.sums], self.task.mode
        work["has_residuals"] = self.task.coding != "given"
        work["count"], work["block_size"] = len(samples), self.block_size
        work["numbers"] = self.numbers
        places = {"samples": samples, "factors": self.factors, "sums": sums}
        places |= {"scratch": scratch, "rows": rows}
        places |= {name: getattr(codes, name) for name in _OF_CODES}
        for name, array in places.items():
            work[name] = address(array)
        self.card.launch("block_sums.cu", f"block_sums_{samples.dtype.name}", teams, work)
        self._into_tree(sums, first_block)

    def _into_tree(self, sums: Any, first: int) -> None:
        """Add up pairs of nodes on the card; those without a partner here go to the tree."""
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
        self.tree.add(level, index, self.card.download(sums))
