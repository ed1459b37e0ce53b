"""Iterations that run on the card without a look from the processor."""

from __future__ import annotations

from typing import Any

import numpy as np

from kronlearn.cuda.device import Card
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, new_task
from kronlearn.cuda.updates import DeviceUpdate
from kronlearn.dictionary import Dictionary, KroneckerDictionary
from kronlearn.engines.engine import Coder, Iterated

__all__ = ["Ahead"]

_NO_SAMPLE = np.iinfo(np.int64).max

# What the fused kernels are made for.
_SHAPE = (8, 8)
_MOST_NONZEROS = 16
_THREADS, _SAMPLES_PER_TILE = 128, 128
# Blocks that add up one kind of partial sums, 64 numbers each.
_NUMBERS = 4096


class Ahead:
    """Coding with 8 × 8 atoms of 8 × 8 samples in single precision, fused with sums and updates.

    Parameters
    ----------
    card : Card
    samples : array on the card, (N, 64), float32
    dictionary : KroneckerDictionary
    coder : Coder
    orthonormal : bool
    kept : int
        The most iterations that are done at once.
    """

    def __init__(
        self,
        card: Card,
        samples: Any,
        dictionary: KroneckerDictionary,
        coder: Coder,
        orthonormal: bool,
        kept: int,
    ) -> None:
        xp = card.xp
        self.card, self.samples, self.orthonormal = card, samples, orthonormal
        self.file = "threshold_fused.cu" if orthonormal else "pursuit_fused.cu"
        self.options = (f"-DKRONLEARN_WIDTH={coder.width}",)
        self.update = DeviceUpdate(card, dictionary, orthonormal, kept)
        self.dictionary: Dictionary = dictionary
        tiles = -(-len(samples) // _SAMPLES_PER_TILE)
        self.blocks = min(tiles, 2 * card.n_multiprocessors)
        kinds = 1 if orthonormal else 2
        self.partial = xp.zeros((self.blocks, kinds * _NUMBERS), np.float32)
        self.partial_counts = xp.zeros((self.blocks, 4))
        self.norms = xp.ones(_SHAPE[0])
        self.bad = xp.full(1, _NO_SAMPLE, np.int64)
        self.doubtful = xp.empty(len(samples), np.int32)
        self.task = new_task(
            shape=Tables.of(dictionary.factors).shape,
            method=METHODS[coder.method],
            width=coder.width,
            count=len(samples),
            samples=card.address(samples),
            norms1=card.address(self.norms),
            norms2=card.address(self.norms),
            doubtful=card.address(self.doubtful),
            doubtful_count=card.address(self.update.doubtful_count),
            first_bad=card.address(self.bad),
        )
        needs = xp.zeros(1, np.int32)
        self._launch("fused_needs", 1, 1, 0, needs)
        self.shared_bytes = int(needs[0])
        self.repeated = card.repeated(self._iterate)

    @staticmethod
    def suits(dictionary: Dictionary, coder: Coder, orthonormal: bool, dtype: Any) -> bool:
        """Whether there are fused kernels for this."""
        return (
            isinstance(dictionary, KroneckerDictionary)
            and dictionary.patch_shape == dictionary.n_atoms == _SHAPE
            and coder.method == ("threshold" if orthonormal else "omp")
            and coder.width <= _MOST_NONZEROS
            and coder.tol is None
            and coder.weights is None
            and dtype == np.float32
        )

    def run(self, dictionary: Dictionary, count: int) -> list[Iterated]:
        """Up to so many iterations; fewer if one of them needs the processor."""
        if dictionary is not self.dictionary:
            self.update.begin_with(dictionary.coding_factors)
        finished = self.repeated(count)
        done = []
        for made, time in zip(self.update.made(), finished, strict=True):
            if made.flag:
                # What follows went on from factors that were not updated.
                break
            present = dictionary.with_stacks([factor[None] for factor in made.factors])
            done.append(Iterated(present, made.squared_error, made.residual, made.nonzeros, time))
        self.dictionary = done[-1].dictionary if done else dictionary
        if len(done) < count:
            self.update.begin_with(self.dictionary.coding_factors)
        return done

    def _iterate(self) -> None:
        """Enqueue one iteration."""
        update = self.update
        for array in (update.counts, update.xy, update.xx, update.doubtful_count):
            array.fill(0)
        parts = (self.partial, self.partial_counts)
        self._launch(
            "code_and_sum",
            self.blocks,
            _THREADS,
            self.shared_bytes,
            self.task,
            update.single_tables,
            *parts,
        )
        sums = (update.xy,) if self.orthonormal else (update.xx, update.xy)
        self._launch(
            "reduce_partials",
            len(sums) * 64,
            256,
            0,
            *parts,
            np.int32(self.blocks),
            self.norms,
            self.norms,
            *sums,
            update.counts,
        )
        update.run()

    def _launch(self, kernel: str, blocks: int, threads: int, shared: int, *arguments: Any) -> None:
        self.card.launch_blocks(
            self.file, kernel, blocks, threads, *arguments, options=self.options, shared=shared
        )
