"""Copies of samples that do not fit on the GPU, each chunk made while the previous one is used."""

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

__all__ = ["SLOTS", "stream_chunks"]

#: Chunks that are read, copied or used at the same time.
SLOTS = 3
# Threads that read samples into page-locked memory.
_READERS = min(8, os.cpu_count() or 1)

#: Sources that were streamed before, with their samples as a page-locked array, or None.
_page_locked: weakref.WeakKeyDictionary[Source, NDArray[Any] | None] = weakref.WeakKeyDictionary()


@dataclass
class _Slot:
    """Memory for one chunk, and events that tell when it may be used again.

    ``staging`` is page-locked memory of the processor, None if the GPU reads the samples directly;
    ``copied`` and ``used`` are events after the copy to ``on_gpu`` and after its use.
    """

    staging: NDArray[Any] | None
    on_gpu: Any
    copied: Any
    used: Any
    reads: Sequence[Future[None]] = ()


def stream_chunks(xp: Any, source: Source, pieces: Iterable[slice]) -> Iterator[tuple[slice, Any]]:
    """Yield ``(rows, chunk on the GPU)``; each chunk is valid until the next one.

    Parameters
    ----------
    xp : module
        CuPy.
    source : Source
    pieces : iterable of slices
        The rows of the chunks, none longer than the first; possibly endless. The following chunks
        are read and copied while one is used.
    """
    remaining = iter(pieces)
    first = next(remaining, None)
    if first is None:
        return
    remaining = chain([first], remaining)
    copying = xp.cuda.Stream(non_blocking=True)
    direct = _page_locked_samples(xp, source)
    with ThreadPoolExecutor(_READERS) as readers:
        slots = [_slot(xp, source, first.stop - first.start, direct is None) for _ in range(SLOTS)]
        turns = cycle(slots)
        reading: deque[tuple[_Slot, slice]] = deque()
        copied: deque[tuple[_Slot, slice]] = deque()

        def read_next() -> None:
            rows = next(remaining, None)
            if rows is None:
                return
            slot = next(turns)
            if direct is None:
                slot.copied.synchronize()
                slot.reads = _read(readers, source, rows, slot)
            reading.append((slot, rows))

        def copy_next() -> None:
            if not reading:
                return
            slot, rows = reading.popleft()
            for part in slot.reads:
                part.result()
            count = rows.stop - rows.start
            chunk = direct[rows] if direct is not None else slot.staging[:count]  # type: ignore[index]
            copying.wait_event(slot.used)
            slot.on_gpu[:count].set(chunk, stream=copying)
            slot.copied.record(copying)
            copied.append((slot, rows))

        for _ in range(SLOTS - 1):
            read_next()
        try:
            copy_next()
            while copied:
                slot, rows = copied.popleft()
                read_next()
                # Before the yield: the next chunk is copied even while the caller waits for the
                # results of this one.
                copy_next()
                working = xp.cuda.get_current_stream()
                working.wait_event(slot.copied)
                yield rows, slot.on_gpu[: rows.stop - rows.start]
                slot.used.record(working)
        finally:
            # The memory on both sides must outlive the copies.
            copying.synchronize()


def _slot(xp: Any, source: Source, length: int, staged: bool) -> _Slot:
    shape, dtype = (length, source.n_features), source.dtype
    staging = None
    if staged:
        size = length * source.n_features * dtype.itemsize
        memory = xp.cuda.alloc_pinned_memory(size)
        staging = np.frombuffer(memory, dtype, length * source.n_features).reshape(shape)
    slot = _Slot(
        staging,
        xp.empty(shape, dtype),
        *(xp.cuda.Event(disable_timing=True) for _ in range(2)),
    )
    # Work in the current stream may still use the memory that CuPy's pool has just given out again.
    slot.used.record(xp.cuda.get_current_stream())
    return slot


def _read(
    readers: ThreadPoolExecutor, source: Source, rows: slice, slot: _Slot
) -> list[Future[None]]:
    """Start reading a chunk into the staging memory of a slot, in several threads."""

    def read(start: int, stop: int) -> None:
        assert slot.staging is not None
        slot.staging[start - rows.start : stop - rows.start] = source.read(start, stop)

    step = -(-(rows.stop - rows.start) // _READERS)
    starts = range(rows.start, rows.stop, step)
    return [readers.submit(read, start, min(start + step, rows.stop)) for start in starts]


def _page_locked_samples(xp: Any, source: Source) -> NDArray[Any] | None:
    """All samples as an array that the GPU can read directly, or None.

    Page-locking an array takes longer than copying it once. It is therefore done when a source is
    streamed for the second time, and lasts as long as the source.
    """
    if source not in _page_locked:
        _page_locked[source] = None
        return None
    if _page_locked[source] is None and isinstance(source, ArraySource):
        whole, runtime = source.whole(0, len(source)), xp.cuda.runtime
        if whole is not None:
            try:
                runtime.hostRegister(whole.ctypes.data, whole.nbytes, 0)
            except runtime.CUDARuntimeError:
                # Read-only pages, or more than may be page-locked: these samples are staged.
                return None
            # At the end of the process, the driver unlocks all pages itself.
            weakref.finalize(source, _unlock, runtime, whole).atexit = False
            _page_locked[source] = whole
    return _page_locked[source]


def _unlock(runtime: Any, whole: NDArray[Any]) -> None:
    runtime.hostUnregister(whole.ctypes.data)
