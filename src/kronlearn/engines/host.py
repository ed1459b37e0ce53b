"""What a Dask worker does for the engine of many workers: it holds spans and answers requests."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from distributed import Status, Worker
from distributed.diagnostics.plugin import WorkerPlugin
from numpy.typing import NDArray
from tornado.ioloop import PeriodicCallback

from kronlearn.core.engine import Task
from kronlearn.core.instruction_sets import instruction_sets, use_instruction_set
from kronlearn.core.source import Source
from kronlearn.cuda.device import card
from kronlearn.cuda.shares import CardShare
from kronlearn.engines.messages import (
    Answer,
    Export,
    Problem,
    Request,
    Room,
    Setup,
    State,
    Step,
    Sums,
    Used,
    Worst,
)
from kronlearn.engines.packing import packed, unpacked
from kronlearn.engines.shares import Part, Share, ThreadShare
from kronlearn.engines.sharing import Span
from kronlearn.engines.wires import WireServer
from kronlearn.io.arrays import ArraySource

__all__ = ["Host", "Run"]

# A run that nobody has asked about for so many seconds is forgotten: its driver is gone.
_FORGET_AFTER = 600.0
_ALIVE = (Status.init, Status.running, Status.paused)
# Its samples are let go of sooner: they may be large, and if the driver lives Dask has them still.
_LET_GO_AFTER = 60.0


class Host(WorkerPlugin):
    """Answers the requests of drivers on a worker, one at a time."""

    name = "kronlearn"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Begin to answer."""
        self.worker = worker
        self.runs: dict[str, Run] = {}
        self.working = threading.Lock()
        self.served = threading.local()
        self.server = WireServer(worker.address, self.answer_now, self.hung_up)
        self.cleaner = PeriodicCallback(self._forget_abandoned, 60_000)
        self.cleaner.start()
        worker.handlers["kronlearn"] = self.answer
        worker.handlers["kronlearn_wire"] = self.wire
        worker.handlers["kronlearn_ping"] = self.ping
        worker.handlers["kronlearn_forget"] = self.forget

    def teardown(self, worker: Worker) -> None:
        """Stop to answer."""
        self.cleaner.stop()
        self.runs.clear()
        self.server.close()

    def ping(self) -> list[str]:
        """The instruction sets of this machine."""
        return list(instruction_sets())

    def forget(self, run: str) -> None:
        """Let go of a run."""
        self.runs.pop(run, None)

    def wire(self) -> list[Any] | None:
        """Where drivers can connect to, and the token that they need; None if nowhere."""
        return self.server.place if self.server.listener is not None else None

    async def answer(self, request: bytes) -> bytes:
        """The answer to a request that came through Dask."""
        return b"".join(await asyncio.to_thread(self.answer_now, request))

    def answer_now(self, request: bytes | bytearray) -> list[bytes | memoryview]:
        """The packed Answer, Problem or exception to a packed Request."""
        try:
            reply = self._answer(unpacked(request))
        except Exception as error:
            if sys.is_finalizing() or self.worker.status not in _ALIVE:
                # Not an error of the work: the driver is to give the worker up.
                raise ConnectionError("the worker is closing") from error
            reply = error
        try:
            return packed(reply)
        except Exception:
            return packed(RuntimeError(f"{type(reply).__name__}: {reply}"))

    def hung_up(self) -> None:
        """The driver that this thread answered has closed its wire, or is gone."""
        run = self.runs.get(getattr(self.served, "run", ""))
        if run is not None:
            run.is_left = True

    def _answer(self, request: Request) -> Any:
        self.served.run = request.run
        if request.setup is not None and request.run not in self.runs:
            threads = request.setup.n_threads or self.worker.state.nthreads
            try:
                self.runs[request.run] = Run(request.setup, threads)
            except (ImportError, RuntimeError) as problem:
                raise type(problem)(f"Worker {self.worker.address}: {problem}") from problem
        run = self.runs.get(request.run)
        if run is None:
            return Problem("unknown run")
        run.asked += 1
        run.is_left = False
        try:
            # One request at a time: each uses all threads of the worker.
            with self.working:
                missing = self._fetch(run, request)
                if missing:
                    return Problem("no data", missing)
                return run.answer(request, {span: held[1] for span, held in run.data.items()})
        finally:
            run.asked -= 1
            run.last_asked = time.monotonic()

    def _fetch(self, run: Run, request: Request) -> list[Span]:
        """Have a run hold the samples of its spans; returns the spans whose samples Dask lacks."""
        run.data = {s: held for s, held in run.data.items() if request.keys.get(s) == held[0]}
        new = {span: key for span, key in request.keys.items() if span not in run.data}
        if new:
            # Only the event loop may touch what Dask holds.
            loop = self.worker.loop.asyncio_loop  # type: ignore[attr-defined]
            held = asyncio.run_coroutine_threadsafe(self._held(new), loop).result()
            # Arrays lie in messages where it happens, and would be copied in every pass.
            moved = {span: (key, _aligned(array)) for span, (key, array) in held.items()}
            asyncio.run_coroutine_threadsafe(self._replace(moved), loop).result()
            run.data |= moved
        return [span for span in request.keys if span not in run.data]

    async def _held(self, keys: dict[Span, str]) -> dict[Span, tuple[str, Any]]:
        data = self.worker.data
        return {span: (key, data[key]) for span, key in keys.items() if key in data}

    async def _replace(self, moved: dict[Span, tuple[str, Any]]) -> None:
        """Have Dask hold these instead: nothing is held twice."""
        data = self.worker.data
        for key, array in moved.values():
            if key in data and data[key] is not array:
                data[key] = array

    def _forget_abandoned(self) -> None:
        now = time.monotonic()
        for name, run in list(self.runs.items()):
            idle = 0.0 if run.asked else now - run.last_asked
            if idle > _LET_GO_AFTER:
                run.data = {}
            if idle > (_LET_GO_AFTER if run.is_left else _FORGET_AFTER):
                del self.runs[name]


class _NoSamplesError(Exception):
    """A pass over a span whose samples did not come with the request."""


class Held:
    """The codes of a span, by the slots of their rooms, and the version they are at."""

    def __init__(self, version: int, codes: dict[int, Any] | None = None) -> None:
        self.version = version
        self.codes = codes or {}


class Run:
    """A worker's share of a run.

    Parameters
    ----------
    setup : Setup
    n_threads : int
    """

    def __init__(self, setup: Setup, n_threads: int) -> None:
        self.source = setup.source
        self.setup = setup
        self.share = _share(setup, n_threads)
        self.n_blocks = -(-setup.n_samples // setup.block_size)
        self.held: dict[Span, Held] = {}
        # Samples that Dask holds, with the keys that it has them under.
        self.data: dict[Span, tuple[str, Any]] = {}
        self.asked = 0
        self.is_left = False
        self.last_asked = time.monotonic()

    def answer(self, request: Request, data: dict[Span, Any]) -> Answer | Problem:
        """Answer a request; ``data`` are the samples of spans that have no source."""
        with use_instruction_set(self.setup.instruction_set):
            self._hold(request)
            behind = [span for span in request.spans if self.held[span].version < request.base]
            if behind:
                return Problem("behind", behind)
            try:
                replayed = sum(
                    self._bring_up(span, request.steps, request.question.version, data)
                    for span in request.spans
                )
                return Answer(self._found(request, data), replayed)
            except _NoSamplesError:
                return Problem("no data", [span for span in request.spans if span not in data])

    def _hold(self, request: Request) -> None:
        """Keep exactly the spans wanted: those at hand, parts of those at hand, or new ones."""
        held = {}
        for span in request.holds:
            if span in request.states:
                version, codes = request.states[span]
                adopted = {slot: self.share.adopted(part) for slot, part in codes.items()}
                held[span] = Held(version, adopted)
                continue
            new = Held(self.setup.begins_with)
            held[span] = self.held.get(span) or self._cut_out(span) or new
            if held[span].version > request.question.version:
                # An answer was lost on its way: what it rested on has to be made again.
                held[span] = new
        self.held = held
        rows = [self._rows(span) for span in held]
        self.share.keep_only([(part.start, part.stop) for part in rows])

    def _cut_out(self, span: Span) -> Held | None:
        for whole, held in self.held.items():
            if whole[0] <= span[0] and span[1] <= whole[1]:
                rows = self._rows(span)
                offset = self._rows(whole).start
                part = slice(rows.start - offset, rows.stop - offset)
                codes = {slot: c[part].gathered() for slot, c in held.codes.items()}
                return Held(held.version, {s: self.share.adopted(c) for s, c in codes.items()})
        return None

    def _bring_up(self, span: Span, steps: Iterable[Step], version: int, data: Any) -> int:
        """Take the steps that a span's codes lack; returns how many."""
        held = self.held[span]
        taken = 0
        for step in steps:
            if not held.version < step.version <= version:
                continue
            codes = self._codes(span, step.room)
            self._pass(span, step.task, step.task.tree(self.n_blocks), codes, data)
            taken += 1
            held.version = step.version
        held.version = version
        return taken

    def _found(self, request: Request, data: dict[Span, Any]) -> Any:
        question = request.question
        if isinstance(question, Sums):
            return self._sums(request.spans, question, data)
        if isinstance(question, Used):
            used = [self._codes(s, question.room).used(question.n_atoms) for s in request.spans]
            return np.logical_or.reduce(used)
        if isinstance(question, Worst):
            return self._worst(request.spans, question)
        assert isinstance(question, Export)
        return {span: self._state(span) for span in request.spans}

    def _sums(self, spans: list[Span], question: Sums, data: dict[Span, Any]) -> Any:
        tree = question.task.tree(self.n_blocks)
        for span in sorted(spans):
            codes = self._codes(span, question.room) if question.room is not None else None
            self._pass(span, question.task, tree, codes, data)
        if question.changes:
            for span in spans:
                self.held[span].version = question.version + 1
        return tree.nodes()

    def _worst(self, spans: list[Span], question: Worst) -> tuple[NDArray[Any], NDArray[Any]]:
        """Residuals and numbers of the samples with the largest residuals."""
        residuals, rows = [], []
        for span in spans:
            codes = self._codes(span, question.room).gathered()
            worst = codes.worst(question.count)
            assert codes.residual2 is not None
            residuals.append(codes.residual2[worst])
            rows.append(worst + self._rows(span).start)
        return np.concatenate(residuals), np.concatenate(rows)

    def _state(self, span: Span) -> State:
        held = self.held[span]
        return held.version, {slot: codes.gathered() for slot, codes in held.codes.items()}

    def _pass(self, span: Span, task: Task, tree: Any, codes: Any, data: Any) -> None:
        rows = self._rows(span)
        source: Source | None = self.source
        first = 0
        if source is None:
            if span not in data:
                raise _NoSamplesError
            source = ArraySource(data[span], self.setup.patch_shape)
            first = rows.start
        part = Part(source, rows.start - first, rows.stop - first, rows.start)
        self.share.add(part, task, tree, codes)

    def _codes(self, span: Span, room: Room) -> Any:
        codes = self.held[span].codes
        if room.slot not in codes:
            rows = self._rows(span)
            codes[room.slot] = self.share.room(
                rows.stop - rows.start,
                room.width,
                supports=room.supports,
                values=room.values,
                residuals=room.residuals,
            )
        return codes[room.slot]

    def _rows(self, span: Span) -> slice:
        size = self.setup.block_size
        return slice(span[0] * size, min(span[1] * size, self.setup.n_samples))


def _aligned(array: Any) -> Any:
    return array if array.flags.aligned else np.array(array)


def _share(setup: Setup, n_threads: int) -> Share:
    """Who does the work here."""
    if setup.device == "cuda":
        return CardShare(card(), setup.block_size, setup.dtype)
    return ThreadShare(n_threads, setup.block_size, setup.dtype)
