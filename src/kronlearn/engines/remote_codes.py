"""Codes that stay on the workers that made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.engine import Codes, KeptCodes
from kronlearn.engines.messages import Export, Room, Used, Worst

if TYPE_CHECKING:
    from kronlearn.engines.cluster import Cluster

__all__ = ["RemoteCodes"]


class RemoteCodes(KeptCodes):
    """Codes that stay on the workers."""

    def __init__(self, cluster: Cluster, room: Room) -> None:
        self.cluster, self.room = cluster, room

    def used(self, n_atoms: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which atoms ``(n_1, …, n_d)`` any code uses."""
        cluster = self.cluster
        return np.logical_or.reduce(cluster.ask(Used(cluster.version, self.room, n_atoms)))

    def worst(self, count: int) -> NDArray[np.intp]:
        """The samples with the largest residuals, of equal ones the first; none without any."""
        found = self.cluster.ask(Worst(self.cluster.version, self.room, count))
        residuals, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows[np.lexsort((rows, -residuals))][:count]

    def gathered(self) -> Codes:
        """All of them in this process."""
        cluster, room = self.cluster, self.room
        codes = Codes.empty(
            len(cluster.source),
            room.width,
            cluster.source.dtype,
            supports=room.supports,
            values=room.values,
            residuals=room.residuals,
        )
        for states in cluster.ask(Export(cluster.version)):
            for span, (_, parts) in states.items():
                first = span[0] * cluster.block_size
                part = parts[room.slot]
                for name in ("index", "nonzeros", "value", "residual2"):
                    whole, piece = getattr(codes, name), getattr(part, name)
                    if whole is not None and piece is not None:
                        whole[first : first + len(piece)] = piece
        return codes
