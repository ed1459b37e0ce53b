"""Which workers there are, and which of them answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container

from distributed import Client

from kronlearn.core.instruction_sets import instruction_set

__all__ = ["Workforce"]

logger = logging.getLogger(__name__)

# A worker that does not even answer a ping for so many seconds is given up; another takes over.
PATIENCE = 30.0
# Seconds between looks at which workers there are.
_LOOK_EVERY = 2.0


class Workforce:
    """The workers of a client that can be used.

    ``weights`` says how much of the work each can take: its threads, or one where all use the same
    number. Used in the client's event loop.
    """

    def __init__(self, client: Client, equal: bool) -> None:
        self.client, self.equal = client, equal
        self.weights: dict[str, int] = {}
        self.refused: set[str] = set()
        self.retry_at: dict[str, float] = {}
        self.looked = -_LOOK_EVERY

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self.looked >= _LOOK_EVERY

    async def present(self) -> dict[str, int]:
        """The threads of all workers that the scheduler knows."""
        threads: dict[str, int] = await self.client.scheduler.ncores()
        return threads

    async def look(self, in_use: Container[str]) -> None:
        """See which workers there are; those that came or came back must answer a ping first.

        Workers ``in_use`` that the scheduler knows no more are left to fail.
        """
        threads = await self.present()
        self.looked = time.monotonic()
        unknown = [
            worker
            for worker in threads
            if worker not in self.weights
            and worker not in self.refused
            and self.retry_at.get(worker, 0.0) <= self.looked
        ]
        for worker, sets in zip(unknown, await self.pings(unknown, 2.0), strict=True):
            if sets is None:
                self.retry_at[worker] = time.monotonic() + PATIENCE / 3
                continue
            if instruction_set() in sets:
                self.weights[worker] = 1 if self.equal else threads[worker]
            else:
                self.refused.add(worker)
                logger.warning(
                    "Worker %s has no %s instructions and is left out; results would differ.",
                    worker,
                    instruction_set(),
                )
        for worker in [worker for worker in self.weights if worker not in threads]:
            if worker not in in_use:
                del self.weights[worker]

    async def pings(self, workers: list[str], seconds: float) -> list[list[str] | None]:
        """The instruction sets of workers that answer in time, None for others."""

        async def ping(worker: str) -> list[str] | None:
            try:
                call = self.client.rpc(worker).kronlearn_ping()
                return await asyncio.wait_for(call, seconds)
            except Exception:
                return None

        return await asyncio.gather(*map(ping, workers))

    async def silent(self, workers: set[str], heard: dict[str, float]) -> set[str]:
        """The workers that have not answered a ping for too long, or are known to be gone."""
        now = time.monotonic()
        quiet = [worker for worker in workers if now - heard[worker] >= 1.0]
        if not quiet:
            return set()
        present = await self.present()
        replies = await self.pings(quiet, min(5.0, PATIENCE / 3))
        for worker, reply in zip(quiet, replies, strict=True):
            if reply is not None:
                heard[worker] = time.monotonic()
        return {
            worker
            for worker in quiet
            if worker not in present or time.monotonic() - heard[worker] > PATIENCE
        }

    async def wait(self, in_use: Container[str]) -> None:
        """Look, and wait until there is a worker."""
        begin = time.monotonic()
        await self.look(in_use)
        if not self.weights:
            logger.warning("Waiting for a Dask worker that answers.")
        while not self.weights:
            if time.monotonic() - begin > 2 * PATIENCE:
                raise RuntimeError(
                    f"No Dask worker has answered for {2 * PATIENCE:.0f} seconds; start workers "
                    "that can be reached from here and have kronlearn installed."
                )
            await asyncio.sleep(0.2)
            await self.look(in_use)

    def lose(self, worker: str) -> None:
        """Do without a worker for a while; it may come back."""
        self.weights.pop(worker, None)
        self.retry_at[worker] = time.monotonic() + PATIENCE / 3
