"""How samples get to the workers that code them."""

from __future__ import annotations

import asyncio

import numpy as np
from distributed import Client, Future, wait

from kronlearn.core.source import Source
from kronlearn.engines.messages import WorkError
from kronlearn.engines.sharing import Span
from kronlearn.io.arrays import ArraySource
from kronlearn.io.samples import dask_array

__all__ = ["Supplies"]


class Supplies:
    """Hands workers the samples of their spans.

    Files, and any other source that can be pickled, the workers read themselves. Samples in the
    driver's memory are sent once to the worker that codes them; chunks of a Dask array are put
    together there. Both are then held by Dask.
    """

    def __init__(self, client: Client, source: Source, block_size: int) -> None:
        self.client, self.source, self.block_size = client, source, block_size
        self.lazy = dask_array(source)
        in_memory = isinstance(source, ArraySource)
        self.readable = None if in_memory or self.lazy is not None else source
        self.futures: dict[tuple[str, Span], Future] = {}

    async def provide(self, worker: str, spans: list[Span]) -> dict[Span, str]:
        """The keys of the samples of some spans, once the worker has them."""
        if self.readable is not None:
            return {}
        for span in spans:
            if (worker, span) not in self.futures:
                self.futures[worker, span] = await self._placed(worker, span)
        placed = [self.futures[worker, span] for span in spans]
        if any(future.status == "pending" for future in placed):
            await wait(placed)
        for span, future in zip(spans, placed, strict=True):
            if future.status == "error":
                raise WorkError(await future.exception())
            if future.status != "finished":
                del self.futures[worker, span]
                raise OSError(f"{worker} lost its samples before they were used")
        return {span: str(future.key) for span, future in zip(spans, placed, strict=True)}

    def provided(self, worker: str, spans: list[Span]) -> dict[Span, str] | None:
        """The keys of the samples of some spans, if the worker has them already."""
        if self.readable is not None:
            return {}
        placed = {span: self.futures.get((worker, span)) for span in spans}
        keys = {span: str(f.key) for span, f in placed.items() if f and f.status == "finished"}
        return keys if len(keys) == len(spans) else None

    def keep_only(self, worker: str, spans: list[Span]) -> None:
        """Let go of what a worker has of other spans."""
        self.futures = {
            place: future
            for place, future in self.futures.items()
            if place[0] != worker or place[1] in spans
        }

    def withdraw(self, worker: str, spans: list[Span]) -> None:
        """Forget what a worker turned out not to have."""
        for span in spans:
            self.futures.pop((worker, span), None)

    def release(self) -> None:
        """Let go of everything."""
        self.futures.clear()

    async def _placed(self, worker: str, span: Span) -> Future:
        rows = slice(span[0] * self.block_size, span[1] * self.block_size)
        if self.lazy is not None:
            # Only the last task is bound to the worker. Those before it may be needed for other
            # parts too, and could not be done again elsewhere once their worker is lost.
            whole_samples = self.lazy[rows].rechunk(dict.fromkeys(range(1, self.lazy.ndim), -1))
            chunks = self.client.compute(whole_samples.to_delayed().ravel().tolist())
            return self.client.submit(
                np.concatenate, chunks, workers=[worker], allow_other_workers=False, pure=False
            )
        assert isinstance(self.source, ArraySource)
        part = self.source.array[rows]
        # Straight to the worker: by way of the scheduler all samples would pass through it. Never
        # given up halfway: Dask would not know of what the worker then holds.
        sending = asyncio.ensure_future(
            self.client.scatter(part, workers=[worker], hash=False, direct=True, timeout=30)
        )
        sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
        try:
            return await asyncio.shield(sending)
        except Exception as problem:
            raise OSError(f"{worker} did not get its samples: {problem!r}") from problem
