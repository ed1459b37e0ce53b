"""Iterations that run on the card without a look from the processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, new_task
from kronlearn.cuda.updates import DeviceUpdate
from kronlearn.dictionary import Dictionary, KroneckerDictionary
from kronlearn.engines.engine import Coder, Iterated

__all__ = ["Ahead", "ahead_for"]

_NO_SAMPLE = np.iinfo(np.int64).max
_NULL = np.uint64(0)

_MOST_NONZEROS = 16
# Of one thread per sample: the samples, and threads, of a block; numbers of a kind of sums.
_TILE, _NUMBERS = 128, 4096


class Ahead(ABC):
    """Iterations of coding, sums and updates that one kernel after the other does on the card.

    Parameters
    ----------
    card : Card
    samples : array on the card, (N, m_1·m_2), float32
    dictionary : KroneckerDictionary
    coder : Coder
    orthonormal : bool
    kept : int
        The most iterations that are done at once.
    """

    #: The file with the kernels, and what it is compiled with.
    file: str
    options: tuple[str, ...]

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
        self.card, self.samples = card, samples
        self.update = DeviceUpdate(card, dictionary, orthonormal, kept)
        self.dictionary: Dictionary = dictionary
        self.norms = xp.ones(max(dictionary.n_atoms))
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
        self.prepare(dictionary, coder)
        self.repeated = card.repeated(self.iterate)
        # Whatever the recording did is forgotten.
        self.update.begin_with(dictionary.factors)

    @abstractmethod
    def prepare(self, dictionary: KroneckerDictionary, coder: Coder) -> None:
        """Make room for what the kernels need."""

    @abstractmethod
    def iterate(self) -> None:
        """Enqueue one iteration."""

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

    def launch(self, kernel: str, blocks: int, threads: int, shared: int, *arguments: Any) -> None:
        """Enqueue a kernel of the file."""
        self.card.launch_blocks(
            self.file, kernel, blocks, threads, *arguments, options=self.options, shared=shared
        )


class OneThreadEach(Ahead):
    """8 × 8 atoms of 8 × 8 samples, a thread per sample; full moments."""

    @staticmethod
    def suits(dictionary: Dictionary, coder: Coder, orthonormal: bool) -> bool:
        """Whether the kernels are made for this."""
        method = "threshold" if orthonormal else "omp"
        return dictionary.patch_shape == dictionary.n_atoms == (8, 8) and coder.method == method

    def prepare(self, dictionary: KroneckerDictionary, coder: Coder) -> None:
        """Make room for the blocks' sums."""
        xp, orthonormal = self.card.xp, coder.method == "threshold"
        self.file = "threshold_fused.cu" if orthonormal else "pursuit_fused.cu"
        self.options = (f"-DKRONLEARN_WIDTH={coder.width}",)
        tiles = -(-len(self.samples) // _TILE)
        self.blocks = min(tiles, 2 * self.card.n_multiprocessors)
        self.sums = [self.update.xy] if orthonormal else [self.update.xx, self.update.xy]
        self.partial = xp.zeros((self.blocks, len(self.sums) * _NUMBERS), np.float32)
        self.partial_counts = xp.zeros((self.blocks, 4))
        needs = xp.zeros(1, np.int32)
        self.launch("fused_needs", 1, 1, 0, needs)
        self.shared_bytes = int(needs[0])

    def iterate(self) -> None:
        """Code and sum, add up what the blocks found, update."""
        update, parts = self.update, (self.partial, self.partial_counts)
        for array in (*self.sums, update.counts, update.doubtful_count):
            array.fill(0)
        first = self.task, update.single_tables, *parts
        self.launch("code_and_sum", self.blocks, _TILE, self.shared_bytes, *first)
        blocks, sums = np.int32(self.blocks), (*self.sums, update.counts)
        norms = self.norms, self.norms
        self.launch("reduce_partials", 64 * len(self.sums), 256, 0, *parts, blocks, *norms, *sums)
        update.run()


class SeveralLanesEach(Ahead):
    """16 × 16 or 32 × 32 atoms of square samples, several lanes per sample; sums by mode."""

    @staticmethod
    def suits(dictionary: Dictionary, coder: Coder, orthonormal: bool) -> bool:
        """Whether the kernels are made for this."""
        m, n = set(dictionary.patch_shape), set(dictionary.n_atoms)
        return (
            coder.method in ("omp", "ols")
            and len(dictionary.n_atoms) == 2
            and (m <= {8} or m <= {16} or m <= {32})
            and (n <= {16} or n <= {32})
        )

    def prepare(self, dictionary: KroneckerDictionary, coder: Coder) -> None:
        """Make room for the codes, which are needed twice, and the blocks' sums."""
        m, n = dictionary.patch_shape[0], dictionary.n_atoms[0]
        sizes = {"M": m, "N": n, "WIDTH": coder.width, "OLS": int(coder.method == "ols")}
        self.file = "pursuit_lanes.cu"
        self.options = tuple(f"-DKRONLEARN_{name}={value}" for name, value in sizes.items())
        self.n, self.blocks, xp = n, self.card.n_multiprocessors, self.card.xp
        self.codes = CardCodes.empty(self.card, len(self.samples), coder.width, np.float32)
        for name, place in self.codes.addresses(self.card.address).items():
            self.task[name] = place
        self.partial = xp.zeros((self.blocks, n * (n + m)), np.float32)
        self.partial_counts = xp.zeros((self.blocks, 4))
        needs = xp.zeros(9, np.int32)
        self.launch("lanes_need", 1, 1, 0, needs)
        self.needs = self.card.download(needs).reshape(3, 3).tolist()

    def iterate(self) -> None:
        """Code and sum for the left mode, update it, sum for the right mode, update both."""
        update = self.update
        for array in (update.counts, update.doubtful_count):
            array.fill(0)
        self._sum("code_and_sum_left", 0, update.single_tables, self.partial_counts)
        self._reduce(self.partial_counts, self.norms)
        update.run("update_left")
        self._sum("sum_right", 2, update.unscaled, _NULL)
        self._reduce(_NULL, _NULL)
        update.run("update_right")

    def _sum(self, kernel: str, which: int, factor: Any, counts: Any) -> None:
        warps, fixed, each = self.needs[which]
        arguments = self.task, factor, self.partial, counts
        self.launch(kernel, self.blocks, 32 * warps, fixed + warps * each, *arguments)

    def _reduce(self, counts: Any, norms: Any) -> None:
        update = self.update
        for array in (update.p, update.c):
            array.fill(0)
        parts = self.partial, counts, np.int32(self.blocks), norms
        self.launch("reduce_partials", self.n, 256, 0, *parts, update.p, update.c, update.counts)


def ahead_for(
    card: Card,
    samples: Any,
    dictionary: Dictionary,
    coder: Coder,
    orthonormal: bool,
    kept: int,
) -> Ahead | None:
    """What runs iterations of this kind ahead, or None."""
    if not isinstance(dictionary, KroneckerDictionary) or samples.dtype != np.float32:
        return None
    if coder.width > _MOST_NONZEROS or coder.tol is not None or coder.weights is not None:
        return None
    for kind in (OneThreadEach, SeveralLanesEach):
        if kind.suits(dictionary, coder, orthonormal):
            return kind(card, samples, dictionary, coder, orthonormal, kept)
    return None
