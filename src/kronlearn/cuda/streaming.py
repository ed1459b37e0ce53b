"""Samples that do not fit on the GPU: sent chunk by chunk, while the one before is worked on."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.source import Source
from kronlearn.io.arrays import ArraySource

__all__ = ["SLOTS", "streamed"]

#: Chunks that are on their way or worked on at the same time.
SLOTS = 3
# Threads that copy samples into memory that GPUs can read.
_READERS = min(8, os.cpu_count() or 1)

#: Of the sources that were streamed: the samples as an array that the GPU can read from, or None.
_streamed: weakref.WeakKeyDictionary[Source, NDArray[Any] | None] = weakref.WeakKeyDictionary()


@dataclass
class _Slot:
    """Room for one chunk on both sides, and how far it has come."""

    pinned: NDArray[Any] | None
    on_gpu: Any
    sent: Any
    used: Any
    readings: Sequence[Future[None]] = ()


def streamed(xp: Any, source: Source, pieces: Iterable[slice]) -> Iterator[tuple[slice, Any]]:
    """Chunks of a source on the GPU, each valid until the next is asked for.

    Parameters
    ----------
    xp : module
        CuPy.
    source : Source
    pieces : iterable of slices
        The rows of the chunks, none longer than the first. There may be no end of them: those that
        come next are on their way while a chunk is worked on.
    """
    coming = iter(pieces)
    first = next(coming, None)
    if first is None:
        return
    coming = chain([first], coming)
    copying = xp.cuda.Stream(non_blocking=True)
    direct = _pinned(xp, source)
    with ThreadPoolExecutor(_READERS) as readers:
        slots = [_slot(xp, source, first.stop - first.start, direct is None) for _ in range(SLOTS)]
        turns = cycle(slots)
        asked: deque[tuple[_Slot, slice]] = deque()
        sent: deque[tuple[_Slot, slice]] = deque()

        def ask() -> None:
            rows = next(coming, None)
            if rows is None:
                return
            slot = next(turns)
            if direct is None:
                slot.sent.synchronize()
                slot.readings = _read(readers, source, rows, slot)
            asked.append((slot, rows))

        def send() -> None:
            if not asked:
                return
            slot, rows = asked.popleft()
            for part in slot.readings:
                part.result()
            count = rows.stop - rows.start
            chunk = direct[rows] if direct is not None else slot.pinned[:count]  # type: ignore[index]
            copying.wait_event(slot.used)
            slot.on_gpu[:count].set(chunk, stream=copying)
            slot.sent.record(copying)
            sent.append((slot, rows))

        for _ in range(SLOTS - 1):
            ask()
        try:
            send()
            while sent:
                slot, rows = sent.popleft()
                ask()
                # The next one travels while this one is worked on, even if the caller waits for
                # that.
                send()
                working = xp.cuda.get_current_stream()
                working.wait_event(slot.sent)
                yield rows, slot.on_gpu[: rows.stop - rows.start]
                slot.used.record(working)
        finally:
            # Neither side of a copy may go away before it has ended.
            copying.synchronize()


def _slot(xp: Any, source: Source, length: int, staged: bool) -> _Slot:
    shape, dtype = (length, source.n_features), source.dtype
    pinned = None
    if staged:
        size = length * source.n_features * dtype.itemsize
        memory = xp.cuda.alloc_pinned_memory(size)
        pinned = np.frombuffer(memory, dtype, length * source.n_features).reshape(shape)
    slot = _Slot(
        pinned,
        xp.empty(shape, dtype),
        *(xp.cuda.Event(disable_timing=True) for _ in range(2)),
    )
    # Work that is still to be done may have had this memory before.
    slot.used.record(xp.cuda.get_current_stream())
    return slot


def _read(
    readers: ThreadPoolExecutor, source: Source, rows: slice, slot: _Slot
) -> list[Future[None]]:
    """Have a chunk copied into a slot, by several threads."""

    def copy(start: int, stop: int) -> None:
        assert slot.pinned is not None
        slot.pinned[start - rows.start : stop - rows.start] = source.read(start, stop)

    step = -(-(rows.stop - rows.start) // _READERS)
    starts = range(rows.start, rows.stop, step)
    return [readers.submit(copy, start, min(start + step, rows.stop)) for start in starts]


def _pinned(xp: Any, source: Source) -> NDArray[Any] | None:
    """All samples as an array that the GPU can read from, if they are in memory as they are.

    That takes longer than to copy them once: it is done when they are sent again, and holds as
    long as the source exists.
    """
    if source not in _streamed:
        _streamed[source] = None
        return None
    if _streamed[source] is None and isinstance(source, ArraySource):
        whole, runtime = source.whole(0, len(source)), xp.cuda.runtime
        if whole is not None:
            try:
                runtime.hostRegister(whole.ctypes.data, whole.nbytes, 0)
            except runtime.CUDARuntimeError:
                # Read-only pages, or more than may be pinned: these go through a copy.
                return None
            # At the end of the process all of this goes away by itself.
            weakref.finalize(source, _unpin, runtime, whole).atexit = False
            _streamed[source] = whole
    return _streamed[source]


def _unpin(runtime: Any, whole: NDArray[Any]) -> None:
    runtime.hostUnregister(whole.ctypes.data)
