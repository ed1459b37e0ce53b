"""Dictionaries in few bytes, as files of coded images hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.init import dct_factor

__all__ = ["KINDS", "StoredDictionary", "stored_size"]

#: Cosines, of which only the order is stored; factors made orthonormal again; any other.
KINDS = ("cosine", "orthonormal", "general")

# What an entry of 1 becomes.
_UNIT = 127


def stored_size(kind: str, patch_shape: Sequence[int], n_atoms: Sequence[int]) -> int:
    """How many bytes a dictionary takes."""
    rows = [1] * len(n_atoms) if kind == "cosine" else patch_shape
    return sum(m * n for m, n in zip(rows, n_atoms, strict=True))


@dataclass(frozen=True)
class StoredDictionary:
    """A dictionary in 8-bit integers, and the dictionary that is made of them again.

    ``entries`` has an array (m_i, n_i) of int8 for every factor, or for cosines the frequencies
    of the columns, (1, n_i).
    """

    kind: str
    patch_shape: tuple[int, ...]
    entries: tuple[NDArray[np.int8], ...]

    @classmethod
    def of(cls, dictionary: KroneckerDictionary) -> StoredDictionary:
        """As near to a dictionary as 8 bits allow."""
        square = dictionary.n_atoms == dictionary.patch_shape
        kind = "orthonormal" if square and dictionary.is_orthonormal else "general"
        entries = tuple(np.rint(factor * _UNIT).astype(np.int8) for factor in dictionary.factors)
        return cls(kind, dictionary.patch_shape, entries)

    @classmethod
    def cosines(cls, patch_shape: tuple[int, ...]) -> StoredDictionary:
        """Cosines for patches of a shape."""
        return cls(
            "cosine", patch_shape, tuple(np.arange(m, dtype=np.int8)[None] for m in patch_shape)
        )

    @classmethod
    def from_bytes(
        cls, content: bytes, kind: str, patch_shape: tuple[int, ...], n_atoms: tuple[int, ...]
    ) -> StoredDictionary:
        """What :meth:`to_bytes` gave for a dictionary of this kind and these sizes."""
        entries, place = [], 0
        for m, n in zip(patch_shape, n_atoms, strict=True):
            rows = 1 if kind == "cosine" else m
            entries.append(np.frombuffer(content, np.int8, rows * n, place).reshape(rows, n))
            place += rows * n
        return cls(kind, patch_shape, tuple(entries))

    def to_bytes(self) -> bytes:
        """The integers, factor after factor."""
        return b"".join(entries.tobytes() for entries in self.entries)

    @property
    def n_atoms(self) -> tuple[int, ...]:
        """Columns of each factor."""
        return tuple(entries.shape[1] for entries in self.entries)

    def in_order(self, orders: Sequence[NDArray[np.intp]]) -> StoredDictionary:
        """The same with the columns of each factor in another order."""
        entries = tuple(e[:, order] for e, order in zip(self.entries, orders, strict=True))
        return StoredDictionary(self.kind, self.patch_shape, entries)

    @cached_property
    def dictionary(self) -> KroneckerDictionary:
        """The dictionary; ValueError if the integers stand for none."""
        factors = []
        for m, entries in zip(self.patch_shape, self.entries, strict=True):
            if self.kind == "cosine":
                if sorted(entries[0]) != list(range(m)):
                    raise ValueError("Cosines need every frequency once.")
                factors.append(dct_factor(m, m)[:, entries[0]])
            elif self.kind == "orthonormal":
                # The nearest orthonormal matrix.
                u, _, vt = np.linalg.svd(entries / _UNIT)
                factors.append(u @ vt)
            else:
                factors.append(entries / _UNIT)
        return KroneckerDictionary.normalized(factors)
