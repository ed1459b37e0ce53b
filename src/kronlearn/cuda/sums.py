"""Sums over coded samples on the card, in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.engine import Task
from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card

__all__ = ["CardSums"]

# Codes are made dense this many numbers at a time.
_DENSE_NUMBERS = 1 << 25


class CardSums:
    """What a pass sums, as the trees of other engines hold it.

    Parameters
    ----------
    card : Card
    task : Task
    """

    def __init__(self, card: Card, task: Task) -> None:
        self.card, self.task = card, task
        self.counts = card.xp.zeros(4)
        self.sums: dict[str, Any] = {}

    def add(self, samples: Any, codes: CardCodes, energy: Any) -> None:
        """Add consecutive samples; ``energy`` their squared norms, or None if not at hand."""
        xp = self.card.xp
        self.counts[3] += codes.nonzeros.sum()
        if energy is not None:
            self.counts[1] += codes.residual2.sum(dtype=np.float64)
        if self.task.sums == "none":
            if energy is not None:
                self.counts[0] += energy.sum()
            return
        n_codes = self.task.dictionary.n_codes
        step = max(1, _DENSE_NUMBERS // n_codes)
        for start in range(0, len(samples), step):
            rows = slice(start, start + step)
            y = samples[rows].astype(np.float64)
            self.counts[0] += xp.vdot(y, y)
            self._add_dense(y, self._dense(codes[rows], n_codes))

    def total(self) -> NDArray[np.float64]:
        """The four counts, then the sums as the native code lays them out."""
        parts = [self.card.download(self.counts)]
        for name in ("xx", "xy", "p", "c"):
            if name in self.sums:
                found = self.card.download(self.sums[name])
                if name == "xx":
                    found = found[np.tril_indices(len(found))]
                parts.append((0.5 * found if name == "p" else found).ravel())
        return np.concatenate(parts)

    def _dense(self, codes: CardCodes, n_codes: int) -> Any:
        count, width = codes.index.shape
        dense = self.card.xp.zeros((count, n_codes))
        kernel = f"densify_{codes.value.dtype.name}"
        sizes = np.int64(count), np.int32(width), np.int32(n_codes)
        parts = codes.index, codes.value, codes.nonzeros
        teams = min(self.card.n_teams, count)
        self.card.launch("codes.cu", kernel, teams, *parts, *sizes, dense)
        return dense

    def _add_dense(self, y: Any, x: Any) -> None:
        sums, mode = self.task.sums, self.task.mode
        if sums in ("xy", "mode-xy"):
            self.counts[2] += self.card.xp.vdot(x, x)
        if mode < 0:
            if sums == "full":
                self._accumulate("xx", x.T @ x)
            self._accumulate("xy", x.T @ y)
            return
        dictionary = self.task.dictionary
        z, unfolded = self._contracted(x), _unfolded(y, dictionary.patch_shape, mode)
        if sums == "mode":
            self._accumulate("p", z @ z.T)
        self._accumulate("c", z @ unfolded.T)

    def _contracted(self, x: Any) -> Any:
        """``X_(i) (⊗ D_jᵀ)`` of all samples side by side, ``(n_i, N ∏ m_j)``."""
        xp, mode = self.card.xp, self.task.mode
        dictionary = self.task.dictionary
        x = x.reshape(-1, *dictionary.n_atoms)
        for axis, factor in enumerate(self.task.factors):
            if axis != mode:
                d = self.card.upload(np.asarray(factor, np.float64))
                x = xp.moveaxis(xp.tensordot(x, d, axes=(1 + axis, 1)), -1, 1 + axis)
        shape = list(dictionary.patch_shape)
        shape[mode] = dictionary.n_atoms[mode]
        return _unfolded(x.reshape(len(x), -1), tuple(shape), mode)

    def _accumulate(self, name: str, part: Any) -> None:
        self.sums[name] = self.sums[name] + part if name in self.sums else part


def _unfolded(samples: Any, shape: tuple[int, ...], mode: int) -> Any:
    """One mode's entries of samples ``(N, ∏ shape)``, ``(shape[mode], N ∏ others)``."""
    before, after = math.prod(shape[:mode]), math.prod(shape[mode + 1 :])
    apart = samples.reshape(len(samples) * before, shape[mode], after)
    return apart.transpose(1, 0, 2).reshape(shape[mode], -1)
