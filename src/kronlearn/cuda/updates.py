"""New factors of two modes from moments on the card, without a look from the processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Card
from kronlearn.cuda.tables import SHAPE, Tables
from kronlearn.dictionary import KroneckerDictionary
from kronlearn.engines.engine import Pass
from kronlearn.moments import Moments

__all__ = ["DeviceUpdate", "Made"]

_POINTERS = (
    *("xx", "xy", "counts", "factors", "single_tables", "double_tables", "scratch", "history"),
    *("all_factors", "iteration", "doubtful_count", "p", "c", "pending", "unscaled"),
)

_UPDATE = np.dtype(
    [
        ("shape", SHAPE),
        ("orthonormal", np.int32),
        ("kept", np.int32),
        *((name, np.uint64) for name in _POINTERS),
    ],
    align=True,
)


@dataclass(frozen=True)
class Made:
    """What one iteration made: factors, ``Σ‖y − ŷ‖²`` after and before the update, nonzeros.

    ``flag`` is not zero where the update has to be done by the processor.
    """

    factors: list[NDArray[np.float64]]
    squared_error: float
    residual: float
    nonzeros: int
    flag: int


class DeviceUpdate:
    """Updates a dictionary of two modes on the card.

    Parameters
    ----------
    card : Card
    dictionary : KroneckerDictionary
    orthonormal : bool
    kept : int
        How many iterations' results are kept on the card.

    Attributes
    ----------
    xx, xy, counts, doubtful_count : arrays on the card
        What the updates rest on: ``S_xx``, ``S_xy``, the four numbers of a pass, and how many
        samples are missing in them.
    single_tables, double_tables : arrays on the card
        Tables of the present dictionary.
    """

    def __init__(
        self, card: Card, dictionary: KroneckerDictionary, orthonormal: bool, kept: int
    ) -> None:
        self.card, self.kept = card, kept
        self.shapes = [factor.shape for factor in dictionary.factors]
        tables = Tables.of(dictionary.factors)
        n_codes, xp = dictionary.n_codes, card.xp
        n, m = max(dictionary.n_atoms), max(dictionary.patch_shape)
        self.factors = card.upload(np.concatenate([f.ravel() for f in dictionary.factors]))
        self.single_tables = card.upload(tables.numbers.astype(np.float32))
        self.double_tables = card.upload(tables.numbers)
        self.xx = xp.zeros((n_codes, n_codes) if not orthonormal else (1, 1))
        self.xy = xp.zeros((n_codes, int(np.prod(dictionary.patch_shape))))
        self.counts = xp.zeros(4)
        self.scratch = xp.empty(3 * n * n + 3 * n * m + 3 * n + 1)
        self.history = xp.zeros((kept, 4))
        self.all_factors = xp.zeros((kept, self.factors.size))
        self.iteration = xp.zeros(1, np.int32)
        self.doubtful_count = xp.zeros(1, np.int32)
        self.p, self.c = xp.zeros((n, n)), xp.zeros((n, m))
        self.pending, self.unscaled = xp.zeros((n, m)), xp.zeros((m, n), np.float32)
        self.seen = 0
        self.task = np.zeros((), _UPDATE)
        self.task["shape"], self.task["orthonormal"] = tables.shape, orthonormal
        self.task["kept"] = kept
        for name in _POINTERS:
            self.task[name] = card.address(getattr(self, name))

    def begin_with(self, factors: Sequence[NDArray[Any]]) -> None:
        """Go on from these factors; what was made before is forgotten."""
        self.seen = int(self.card.download(self.iteration)[0])
        tables = Tables.of(factors)
        exact = np.concatenate([np.asarray(factor, np.float64).ravel() for factor in factors])
        self.factors[...] = self.card.upload(exact)
        self.single_tables[...] = self.card.upload(tables.numbers.astype(np.float32))
        self.double_tables[...] = self.card.upload(tables.numbers)

    def give(self, moments: Moments, found: Pass) -> None:
        """Take moments that the processor has."""
        if moments.xx.size:
            self.xx[...] = self.card.upload(moments.full_xx())
        self.xy[...] = self.card.upload(moments.xy)
        numbers = [moments.energy, found.residual, moments.code_energy, float(found.nonzeros)]
        self.counts[...] = self.card.upload(np.array(numbers))

    def run(self, kernel: str = "update") -> None:
        """Enqueue an update of both modes, or, from ``p`` and ``c``, of the left or right one."""
        self.card.launch("updates.cu", kernel, 2, self.task)

    def made(self) -> list[Made]:
        """What was made since the last look, at most ``kept`` iterations; waits for it."""
        history = self.card.download(self.history)
        factors = self.card.download(self.all_factors)
        now = int(self.card.download(self.iteration)[0])
        rows = [number % self.kept for number in range(self.seen, now)]
        self.seen = now
        return [self._made(history[row], factors[row]) for row in rows]

    def _made(self, numbers: NDArray[np.float64], entries: NDArray[np.float64]) -> Made:
        first = int(np.prod(self.shapes[0]))
        parts = entries[:first], entries[first:]
        factors = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        error, residual, nonzeros, flag = numbers.tolist()
        return Made(factors, error, residual, int(nonzeros), int(flag))
