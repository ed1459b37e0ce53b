"""Iterations that run on the card without a look from the processor."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.engine import Coder, Course, Iterated, Step
from kronlearn.cuda.chunk_sums import PARTS, ChunkSums
from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card
from kronlearn.cuda.quick import LaneKernels, TileKernels, quick_kernels
from kronlearn.cuda.samples import CardSamples
from kronlearn.cuda.settling import Settling
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, NO_SAMPLE, WORK, new_task
from kronlearn.cuda.updates import DeviceUpdate

__all__ = ["Ahead", "ahead_for"]

# Scaled samples have no entry above this. Entries that are larger before are too large to be
# squared and added up in single precision.
_SCALED = 1024.0
_TOO_LARGE = 1e17
# Scaled further, tiny samples would leave the range of single precision when squared.
_MOST_SCALE = 2.0**60

# How an iteration codes, and which set of codes it writes.
_Planned = tuple[Step, int | None]


class Ahead(ABC):
    """Iterations of coding, sums and updates that one kernel after the other does on the card.

    Samples that are not all on the card are coded and added up as they come, chunk by chunk.

    Parameters
    ----------
    kernels : QuickKernels
    samples : CardSamples
    scale : float
        A power of two; times it, no entry of a sample is above 1024.
    dictionary : KroneckerDictionary
    coder : Coder
    orthonormal : bool
    kept : int
        The most iterations that are done at once.
    """

    #: The updates of an iteration, each of which needs sums over all samples.
    updates: tuple[str, ...]
    #: Whether iterations write codes even if nobody wants them.
    needs_codes = False
    #: Whether sums are those of scaled samples.
    scales_sums = False

    def __init__(
        self,
        kernels: Any,
        samples: CardSamples,
        scale: float,
        dictionary: KroneckerDictionary,
        coder: Coder,
        orthonormal: bool,
        kept: int,
    ) -> None:
        self.kernels, self.samples, self.width = kernels, samples, coder.width
        card = self.card = kernels.card
        xp = card.xp
        self.dictionary: Dictionary = dictionary
        #: The most samples that kernels are given at a time.
        self.at_once = len(samples.source) if samples.array is not None else samples.longest
        sums_scale = scale if self.scales_sums else 1.0
        rows = kernels.blocks(self.at_once)
        self.chunk_sums: ChunkSums | None = None
        if samples.array is not None:
            self.update = DeviceUpdate(card, dictionary, orthonormal, kept, rows, sums_scale)
            self.partial, self.partial_counts = self.update.partial, self.update.partial_counts
        else:
            self.update = DeviceUpdate(card, dictionary, orthonormal, kept, PARTS, sums_scale)
            self.chunk_sums = ChunkSums(card, self.update, rows, sums_scale)
            self.partial = self.chunk_sums.partial
            self.partial_counts = self.chunk_sums.partial_counts
        self.norms = xp.ones(max(dictionary.n_atoms))
        self.bad = xp.full(1, NO_SAMPLE, np.int64)
        self.doubtful = xp.empty(self.at_once, np.int32)
        self.task = new_task(
            shape=Tables.of(dictionary.factors).shape,
            method=METHODS[coder.method],
            width=coder.width,
            scale=scale,
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
    def sum_for(self, update: str, task: NDArray[Any]) -> None:
        """Enqueue the sums that an update needs, over the samples of the task."""

    def run(self, dictionary: Dictionary, course: Course) -> list[Iterated]:
        """Iterations; fewer if one of them needs the processor or raised the error."""
        if dictionary is not self.dictionary:
            self.update.begin_with(dictionary.coding_factors)
        places = self._places(course)
        steps = list(zip(course.steps, places, strict=True))
        if self.chunk_sums is None:
            finished = self._run_resident(steps, course.last_error)
        else:
            # Samples take long to come: there is nothing to gain from more than one.
            steps = steps[:1]
            finished = [self._run_streamed(*steps[0], course.last_error)]
        done = []
        for made, end, place in zip(self.update.made(), finished, places, strict=False):
            if made.failed:
                break
            present = dictionary.with_stacks([factor[None] for factor in made.factors])
            codes = None if place is None else self._codes(place)
            found = made.squared_error, made.residual, made.nonzeros
            done.append(Iterated(present, *found, end, codes))
        self.dictionary = done[-1].dictionary if done else dictionary
        if len(done) < len(steps):
            self.update.begin_with(self.dictionary.coding_factors)
        return done

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
            count = len(self.samples.source)
            self.codes[place] = CardCodes.empty(self.card, count, self.width, np.float32)
        return self.codes[place]

    def _run_resident(self, steps: list[_Planned], last_error: float | None) -> list[float]:
        """All iterations without a look; when each ended."""
        works = [self._recorded(step, place) for step, place in steps]
        self.update.begin(last_error)
        return self.card.replayed(works)

    def _recorded(self, step: Step, place: int | None) -> Any:
        """An iteration to be replayed."""
        key = step, place
        if key not in self.recorded:
            rows = slice(0, len(self.samples.source))
            task = self._task(step, place, rows, self.samples.array)
            # The recording is not to change anything.
            self.update.stop()
            self.recorded[key] = self.card.recorded(partial(self._iterate, task))
        return self.recorded[key]

    def _iterate(self, task: NDArray[Any]) -> None:
        for update in self.updates:
            self.sum_for(update, task)
            self.update.run(update)

    def _run_streamed(self, step: Step, place: int | None, last_error: float | None) -> float:
        """One iteration; when it ended."""
        self.update.begin(last_error)
        for update in self.updates:
            self._sum_chunks(update, step, place)
            self.update.run(update)
        self.card.finish()
        return time.perf_counter()

    def _sum_chunks(self, update: str, step: Step, place: int | None) -> None:
        """Enqueue the sums that an update needs, over all samples as they come."""
        assert self.chunk_sums is not None
        is_first, count = update == self.updates[0], len(self.samples.source)
        for rows, chunk in self.samples.chunks():
            self.sum_for(update, self._task(step, place, rows, chunk))
            blocks = self.kernels.blocks(rows.stop - rows.start)
            self.chunk_sums.add(blocks, rows.start == 0, rows.stop == count, of_coding=is_first)

    def _task(self, step: Step, place: int | None, rows: slice, samples: Any) -> NDArray[Any]:
        """What is done in an iteration with some of the samples."""
        task, address = self.task.copy(), self.card.address
        task["first"], task["count"] = rows.start, rows.stop - rows.start
        task["samples"] = address(samples)
        task["work"] = WORK["keep better" if step.keep_better else "fresh"]
        task["half"] = -1 if step.half is None else step.half
        if place is not None or self.needs_codes:
            for name, at in self._codes(place or 0)[rows].addresses(address).items():
                task[name] = at
        return task


class FullMoments(Ahead):
    """From the full moments of 8 × 8 atoms both factors are updated at once."""

    kernels: TileKernels
    updates = ("update_both",)
    scales_sums = True

    def sum_for(self, update: str, task: NDArray[Any]) -> None:
        """Code and sum."""
        self.kernels.code(task, self.update.single_tables, self.partial, self.partial_counts)
        self.settling.run(task)


class SumsByMode(Ahead):
    """The left factor is updated from its sums, the right one from sums over the same codes."""

    kernels: LaneKernels
    updates = ("update_left", "update_right")
    needs_codes = True

    def sum_for(self, update: str, task: NDArray[Any]) -> None:
        """Code and sum for the left mode, or sum the codes for the right one."""
        if update == "update_right":
            self.kernels.sum_right(task, self.update.unscaled, self.partial)
            return
        self.kernels.code(task, self.update.single_tables, self.partial, self.partial_counts)
        self.settling.run(task)


def ahead_for(
    card: Card,
    samples: CardSamples,
    dictionary: Dictionary,
    coder: Coder,
    orthonormal: bool,
    kept: int,
) -> Ahead | None:
    """What runs iterations of this kind ahead, or None."""
    if not isinstance(dictionary, KroneckerDictionary) or coder.tol is not None:
        return None
    kernels = quick_kernels(card, dictionary.factors, samples.source.dtype, coder)
    if kernels is None or orthonormal != (coder.method == "threshold"):
        return None
    scale = _scale(samples.largest())
    if scale is None:
        return None
    kind = FullMoments if isinstance(kernels, TileKernels) else SumsByMode
    return kind(kernels, samples, scale, dictionary, coder, orthonormal, kept)


def _scale(largest: float) -> float | None:
    """A power of two that makes the largest entry 512 to 1024; None for what is not finite.

    Samples that are not finite, or too large, are for passes to complain about.
    """
    if not largest < _TOO_LARGE:
        return None
    if largest == 0:
        return 1.0
    return min(_SCALED * 2.0 ** -math.frexp(largest)[1], _MOST_SCALE)
