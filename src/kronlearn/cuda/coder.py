"""Codes samples on the card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, WORK, new_task
from kronlearn.engines.engine import Coder, Task

__all__ = ["ChunkCoder"]


@dataclass(frozen=True)
class ChunkCoder:
    """Codes chunks of samples for one pass.

    ``tables`` are those of the dictionary, ``dtype`` that of the samples.
    """

    card: Card
    task: Task
    tables: Tables
    dtype: np.dtype[Any]
    #: Sizes of scratch that were asked for before.
    sizes: dict[Any, int]

    def code(self, samples: Any, codes: CardCodes, first: int, bad: Any) -> Any:
        """Code consecutive samples into codes of their own; returns ``‖y‖²`` of each (float64).

        ``first`` is the number of the first sample, ``bad`` an array of one int64 that is lowered
        to the number of the first sample that is not finite.
        """
        xp, count = self.card.xp, len(samples)
        single = self.dtype == np.float32
        energy = xp.empty(count, np.float64)
        tables = {np.dtype(t): self.card.upload(self.tables.numbers.astype(t)) for t in self._types}
        norms = [self.card.upload(norm) for norm in self.tables.norms]
        targets = _targets(self.card, self.task.coder, slice(first, first + count), self.dtype)
        doubtful = xp.empty(count if single else 0, np.int32)
        doubtful_count = xp.zeros(1, np.int32)
        address = self.card.address
        values: dict[str, Any] = {
            "shape": self.tables.shape,
            "method": METHODS[self.task.coder.method],
            "work": WORK["keep better" if self.task.keep_better else self.task.coding],
            "width": self.task.coder.width,
            "half": -1 if self.task.half is None else self.task.half,
            "first": first,
            "count": count,
            "samples": address(samples),
            "norms1": address(norms[0]),
            "norms2": address(norms[1]),
            "energy": address(energy),
            "first_bad": address(bad),
            **codes.addresses(address),
            **{name: part if name == "tol" else address(part) for name, part in targets.items()},
        }
        if not single:
            self._launch("float64", values, tables[np.dtype(np.float64)], count)
            return energy
        places = {"doubtful": address(doubtful), "doubtful_count": address(doubtful_count)}
        self._launch("float32", values | places, tables[np.dtype(np.float32)], count)
        places = {"list": address(doubtful), "list_count": address(doubtful_count)}
        self._launch("recode_float32", values | places, tables[np.dtype(np.float64)], count)
        return energy

    @property
    def _types(self) -> list[Any]:
        # What single precision cannot be trusted with is coded in double.
        return [np.float64] if self.dtype == np.float64 else [np.float32, np.float64]

    def _launch(self, kind: str, values: dict[str, Any], tables: Any, count: int) -> None:
        task = new_task(**values)
        size = self._scratch_size(kind, task)
        teams = min(self.card.n_teams, count)
        scratch = self.card.xp.empty(size * teams, tables.dtype)
        task["scratch"], task["scratch_size"] = self.card.address(scratch), size
        kernel = kind if kind.startswith("recode") else f"code_{kind}"
        self.card.launch("coder.cu", kernel, teams, task, tables)

    def _scratch_size(self, kind: str, task: Any) -> int:
        """Numbers that a team needs for itself, as the kernel counts them."""
        key = kind, bytes(task["shape"].tobytes()), int(task["width"]), bool(task["weights"])
        if key not in self.sizes:
            numbers = self.card.xp.zeros(1, np.int64)
            self.card.launch("coder.cu", f"scratch_{kind}", 1, task, numbers)
            self.sizes[key] = int(numbers[0])
        return self.sizes[key]


def _targets(card: Card, coder: Coder, rows: slice, dtype: np.dtype[Any]) -> dict[str, Any]:
    targets: dict[str, Any] = {}
    if coder.tol is not None:
        if np.ndim(coder.tol) == 0:
            targets["tol"] = float(coder.tol)
        else:
            targets["tols"] = card.upload(np.ascontiguousarray(np.asarray(coder.tol)[rows], dtype))
    if coder.weights is not None:
        targets["weights"] = card.upload(np.ascontiguousarray(coder.weights[rows], dtype))
    return targets
