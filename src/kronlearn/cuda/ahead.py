"""Iterations that run on the card without a look from the processor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card
from kronlearn.cuda.settling import Settling
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, WORK, new_task
from kronlearn.cuda.updates import DeviceUpdate
from kronlearn.dictionary import Dictionary, KroneckerDictionary
from kronlearn.engines.engine import Coder, Course, Iterated, Step

__all__ = ["Ahead", "ahead_for"]

_NO_SAMPLE = np.iinfo(np.int64).max

_MOST_NONZEROS = 16
# Samples that a block of the kernels for 8 × 8 atoms takes at a time.
_TILE = 128
# Scaled samples have no entry above this. Entries that are larger before are too large to be
# squared and added up in single precision.
_SCALED = 1024.0
_TOO_LARGE = 1e17
# Scaled further, tiny samples would leave the range of single precision when squared.
_MOST_SCALE = 2.0**60


class Ahead(ABC):
    """Iterations of coding, sums and updates that one kernel after the other does on the card.

    Parameters
    ----------
    card : Card
    samples : array on the card, (N, m_1·m_2), float32
    scale : float
        A power of two; times it, no entry of a sample is above 1024.
    dictionary : KroneckerDictionary
    coder : Coder
    orthonormal : bool
    kept : int
        The most iterations that are done at once.
    """

    #: The file with the kernels, and what it is compiled with.
    file: str
    options: tuple[str, ...]
    update: DeviceUpdate
    #: Whether iterations write codes even if nobody wants them.
    needs_codes = False

    def __init__(
        self,
        card: Card,
        samples: Any,
        scale: float,
        dictionary: KroneckerDictionary,
        coder: Coder,
        orthonormal: bool,
        kept: int,
    ) -> None:
        xp = card.xp
        self.card, self.samples, self.scale, self.width = card, samples, scale, coder.width
        self.orthonormal, self.kept = orthonormal, kept
        self.dictionary: Dictionary = dictionary
        self.prepare(dictionary, coder)
        self.norms = xp.ones(max(dictionary.n_atoms))
        self.bad = xp.full(1, _NO_SAMPLE, np.int64)
        self.doubtful = xp.empty(len(samples), np.int32)
        self.task = new_task(
            shape=Tables.of(dictionary.factors).shape,
            method=METHODS[coder.method],
            width=coder.width,
            count=len(samples),
            scale=scale,
            samples=card.address(samples),
            norms1=card.address(self.norms),
            norms2=card.address(self.norms),
            doubtful=card.address(self.doubtful),
            doubtful_count=card.address(self.update.doubtful_count),
            stopped=card.address(self.update.stopped),
            first_bad=card.address(self.bad),
        )
        self.settling = Settling(card, self.update, self.task)
        # Two sets of codes, of which one survives an iteration that turns out to be worse.
        self.codes: dict[int, CardCodes] = {}
        self.recorded: dict[Any, Any] = {}

    @abstractmethod
    def prepare(self, dictionary: KroneckerDictionary, coder: Coder) -> None:
        """Make the update, and room for what the kernels need."""

    @abstractmethod
    def iterate(self, task: NDArray[Any]) -> None:
        """Enqueue one iteration."""

    def run(self, dictionary: Dictionary, course: Course) -> list[Iterated]:
        """Iterations; fewer if one of them needs the processor or raised the error."""
        if dictionary is not self.dictionary:
            self.update.begin_with(dictionary.coding_factors)
        places = self._places(course)
        works = [
            self._recorded(step, place) for step, place in zip(course.steps, places, strict=True)
        ]
        self.update.begin(course.last_error)
        finished = self.card.replayed(works)
        done = []
        for made, time, place in zip(self.update.made(), finished, places, strict=False):
            if made.failed:
                break
            present = dictionary.with_stacks([factor[None] for factor in made.factors])
            codes = None if place is None else self._codes(place)
            found = made.squared_error, made.residual, made.nonzeros
            done.append(Iterated(present, *found, time, codes))
        self.dictionary = done[-1].dictionary if done else dictionary
        if len(done) < len(works):
            self.update.begin_with(self.dictionary.coding_factors)
        return done

    def launch(self, kernel: str, blocks: int, threads: int, shared: int, *arguments: Any) -> None:
        """Enqueue a kernel of the file."""
        self.card.launch_blocks(
            self.file, kernel, blocks, threads, *arguments, options=self.options, shared=shared
        )

    def _places(self, course: Course) -> list[int | None]:
        """Which set of codes every iteration writes; None where codes are not kept."""
        if not course.keeps_codes:
            return [None] * len(course.steps)
        present = self._adopted(course.codes)
        places: list[int | None] = []
        for _ in course.steps:
            if present is None:
                present = 0
            elif not course.in_place:
                present = 1 - present
            places.append(present)
        return places

    def _adopted(self, codes: Any) -> int | None:
        """The set that these codes are, after a copy if they are none."""
        if codes is None:
            return None
        for place, own in self.codes.items():
            if own is codes:
                return place
        self._codes(0).take(codes)
        return 0

    def _codes(self, place: int) -> CardCodes:
        if place not in self.codes:
            count = len(self.samples)
            self.codes[place] = CardCodes.empty(self.card, count, self.width, np.float32)
        return self.codes[place]

    def _recorded(self, step: Step, place: int | None) -> Any:
        """An iteration to be replayed."""
        key = step, place
        if key not in self.recorded:
            task = self.task.copy()
            task["work"] = WORK["keep better" if step.keep_better else "fresh"]
            task["half"] = -1 if step.half is None else step.half
            if place is not None or self.needs_codes:
                for name, at in self._codes(place or 0).addresses(self.card.address).items():
                    task[name] = at
            # The recording is not to change anything.
            self.update.stop()
            self.recorded[key] = self.card.recorded(partial(self.iterate, task))
        return self.recorded[key]


class FullMoments(Ahead):
    """8 × 8 atoms of 8 × 8 samples, one or two lanes per sample; full moments."""

    @staticmethod
    def suits(dictionary: Dictionary, coder: Coder, orthonormal: bool) -> bool:
        """Whether the kernels are made for this."""
        methods = ("threshold",) if orthonormal else ("omp", "ols")
        return dictionary.patch_shape == dictionary.n_atoms == (8, 8) and coder.method in methods

    def prepare(self, dictionary: KroneckerDictionary, coder: Coder) -> None:
        """Make the update, and room for the blocks' sums."""
        self.options = (f"-DKRONLEARN_WIDTH={coder.width}",)
        self.file = "threshold_fused.cu"
        if not self.orthonormal:
            self.file = "pursuit_pairs.cu"
            self.options += (f"-DKRONLEARN_OLS={int(coder.method == 'ols')}",)
        needs = self.card.xp.zeros(3, np.int32)
        self.launch("fused_needs", 1, 1, 0, needs)
        self.threads, self.shared_bytes, each = self.card.download(needs).tolist()
        tiles = -(-len(self.samples) // _TILE)
        self.blocks = min(tiles, each * self.card.n_multiprocessors)
        self.update = DeviceUpdate(
            self.card, dictionary, self.orthonormal, self.kept, self.blocks, self.scale
        )

    def iterate(self, task: NDArray[Any]) -> None:
        """Code and sum, add up what the blocks found, update."""
        update = self.update
        arguments = task, update.single_tables, update.partial, update.partial_counts
        self.launch("code_and_sum", self.blocks, self.threads, self.shared_bytes, *arguments)
        self.settling.run(task)
        update.run("update_both")


class SumsByMode(Ahead):
    """16 × 16 or 32 × 32 atoms of square samples, several lanes per sample; sums by mode."""

    needs_codes = True

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
        """Make the update, and room for the blocks' sums."""
        m, n = dictionary.patch_shape[0], dictionary.n_atoms[0]
        sizes = {"M": m, "N": n, "WIDTH": coder.width, "OLS": int(coder.method == "ols")}
        self.file = "pursuit_lanes.cu"
        self.options = tuple(f"-DKRONLEARN_{name}={value}" for name, value in sizes.items())
        self.blocks = self.card.n_multiprocessors
        self.update = DeviceUpdate(self.card, dictionary, False, self.kept, self.blocks)
        needs = self.card.xp.zeros(9, np.int32)
        self.launch("lanes_need", 1, 1, 0, needs)
        self.needs = self.card.download(needs).reshape(3, 3).tolist()

    def iterate(self, task: NDArray[Any]) -> None:
        """Code and sum for the left mode, update it, sum for the right mode, update both."""
        update = self.update
        counts = update.partial_counts
        self._sum("code_and_sum_left", 0, task, update.single_tables, update.partial, counts)
        self.settling.run(task)
        update.run("update_left")
        self._sum("sum_right", 2, task, update.unscaled, update.partial)
        update.run("update_right")

    def _sum(self, kernel: str, which: int, *arguments: Any) -> None:
        warps, fixed, each = self.needs[which]
        self.launch(kernel, self.blocks, 32 * warps, fixed + warps * each, *arguments)


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
    for kind in (FullMoments, SumsByMode):
        if kind.suits(dictionary, coder, orthonormal):
            scale = _scale(samples)
            if scale is None:
                return None
            return kind(card, samples, scale, dictionary, coder, orthonormal, kept)
    return None


def _scale(samples: Any) -> float | None:
    """A power of two that makes the largest entry 512 to 1024; None for what is not finite.

    Samples that are not finite, or too large, are for passes to complain about.
    """
    largest = max(abs(float(samples.min())), abs(float(samples.max()))) if samples.size else 0.0
    if not largest < _TOO_LARGE:
        return None
    if largest == 0:
        return 1.0
    return min(_SCALED * 2.0 ** -math.frexp(largest)[1], _MOST_SCALE)
