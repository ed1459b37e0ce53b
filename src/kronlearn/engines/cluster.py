"""The engine of many workers: Dask workers code their own samples, and only small sums travel.

Each worker has a share of the blocks. A pass is one small message to every worker, with the
dictionary in it, and one back, with the sums of the worker's blocks; they are added as the tree
that one process would have built, so the result has the same bits. The steps that codes rest on are
kept, and are small; when a worker is lost, others take over its blocks and repeat those steps.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import uuid
from dataclasses import replace
from typing import Any

from distributed import Client

from kronlearn.core.engine import Codes, Engine, Task, Traffic
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.core.source import Source
from kronlearn.engines import workforce
from kronlearn.engines.host import Host
from kronlearn.engines.messages import (
    Answer,
    Export,
    Problem,
    Question,
    Request,
    Room,
    Setup,
    State,
    Step,
    Sums,
    WorkError,
)
from kronlearn.engines.packing import packed, unpacked
from kronlearn.engines.remote_codes import RemoteCodes
from kronlearn.engines.sharing import Span, shared_out, split, uncovered
from kronlearn.engines.supplies import Supplies
from kronlearn.engines.wires import Wires
from kronlearn.engines.workforce import Workforce

__all__ = ["Cluster"]

logger = logging.getLogger(__name__)

# How often a worker that lacks something is given it and asked again.
_MOST_TRIES = 8
# After so many seconds without an answer it is seen to who still works.
_QUIET = 1.0


class Cluster(Engine):
    """Codes samples and adds up moments on the workers of a Dask client.

    Parameters
    ----------
    client : distributed.Client
    source : Source
        Read by the workers themselves if it can be pickled and is not in the driver's memory.
    block_size : int
    n_threads : int, optional
        Threads in each worker; by default as many as Dask gave it.
    device : {"cpu", "cuda"}
        With "cuda" every worker codes and sums on its graphics card.
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        block_size: int,
        n_threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        if client.asynchronous:
            raise ValueError(
                "An asynchronous Client cannot be used: fit waits for its result. Pass "
                "asynchronous=False."
            )
        self.client, self.source, self.block_size = client, source, block_size
        self.n_threads, self.device = n_threads, device
        self.name = uuid.uuid4().hex
        self.n_blocks = -(-len(source) // block_size)
        self.supplies = Supplies(client, source, block_size)
        self.wires = Wires(client)
        self.traffic: Traffic = Traffic()
        self.shares: dict[str, list[Span]] = {}
        self.workforce = Workforce(client, equal=n_threads is not None or device == "cuda")
        self.informed: set[str] = set()
        self.asked: set[str] = set()
        self.known: dict[tuple[str, Span], int] = {}
        self.states: dict[tuple[str, Span], State] = {}
        self.version = 0
        self.log: list[Step] = []
        self.first_codes: dict[int, Codes] = {}
        self.slots = 0
        self._register()

    def room(self, source: Source, width: int, **parts: bool) -> RemoteCodes:
        """Room for codes on the workers that hold the samples."""
        self.slots += 1
        return RemoteCodes(self, Room(self.slots, width, **parts))

    def adopted(self, codes: Codes) -> RemoteCodes:
        """Codes of this process, sent to the workers when they are first needed."""
        made = self.room(
            self.source,
            1 if codes.index is None else codes.index.shape[1],
            supports=codes.index is not None,
            values=codes.value is not None,
            residuals=codes.residual2 is not None,
        )
        self.first_codes[made.room.slot] = codes
        return made

    def summed(self, source: Source, task: Task, codes: RemoteCodes | None) -> Any:
        """The sums over all blocks, each worker's over its own."""
        assert source is self.source
        room = None if codes is None else codes.room
        changes = room is not None and task.coding != "given"
        tree = task.tree(self.n_blocks)
        for nodes in self.ask(Sums(self.version, task, room, changes)):
            for level, index, sums in zip(*nodes, strict=True):
                tree.add(int(level), int(index), sums)
        if changes:
            assert room is not None
            self._record(room, replace(task, sums="none", mode=-1))
        return tree

    def _record(self, room: Room, task: Task) -> None:
        """Note a change of codes. One that nothing earlier shows in makes earlier ones needless."""
        self.version += 1
        if task.coding == "fresh" and not task.keep_better:
            self.log = [step for step in self.log if step.room.slot != room.slot]
        self.log.append(Step(self.version, room, task))

    def ask(self, question: Question) -> list[Any]:
        """The answers of all workers; together they are about all blocks."""
        self.traffic.questions += 1
        begin = time.monotonic()
        early = self._ask_directly(question)
        if early and all(isinstance(answer, Answer) for answer in early.values()):
            return [
                self._accept(worker, self.shares[worker], question, answer)
                for worker, answer in early.items()
            ]
        return self.client.sync(self._ask, question, early, begin)

    def close(self) -> None:
        """Have the workers forget this run."""
        self.supplies.release()
        self.client.sync(self._forget)

    async def _forget(self) -> None:
        self.wires.close()
        try:
            present = await asyncio.wait_for(self.workforce.present(), 2.0)
        except Exception:
            # Without their scheduler the workers end, too.
            return
        # Workers that were given up may be back, and hold their codes still.
        calls = [
            asyncio.create_task(self.client.rpc(worker).kronlearn_forget(run=self.name))
            for worker in self.asked.intersection(present)
        ]
        if calls:
            # Who does not answer now forgets the run later by itself.
            _, unheard = await asyncio.wait(calls, timeout=2.0)
            for call in unheard:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _register(self) -> None:
        """Have every worker, also those to come, answer our requests."""
        try:
            self.client.register_plugin(Host())
        except Exception as problem:
            raise RuntimeError(
                f"The workers cannot work for kronlearn ({problem}); install the same version of "
                "it, with its dask extra, where they run."
            ) from problem

    # One question: sent to all, repeated to others where workers are lost.

    def _ask_directly(self, question: Question) -> dict[str, Any]:
        """Ask from this thread, if nothing else is to be done; what came at once, others None."""
        # Codes that are to be sent may be large, and take their time.
        if self.workforce.is_due or self.states or not self.wires.lead_to(self.shares):
            return {}
        keys = {w: self.supplies.provided(w, spans) for w, spans in self.shares.items()}
        if None in keys.values():
            return {}
        requests = {w: self._packed(w, s, question, keys[w] or {}) for w, s in self.shares.items()}
        replies = self.wires.call_now(requests, _QUIET)
        return {w: None if reply is None else self._unpacked(reply) for w, reply in replies.items()}

    async def _ask(self, question: Question, early: dict[str, Any], begin: float) -> list[Any]:
        """Ask all workers, or, of those asked before, wait for what is not in ``early`` yet."""
        if self.workforce.is_due and not early:
            await self._rebalance()
        answers: list[Any] = []
        answered: list[Span] = []
        failures: list[tuple[Span, BaseException]] = []
        sent: dict[asyncio.Task[Any], tuple[str, list[Span]]] = {}
        heard = dict.fromkeys(self.shares, begin)

        def send(worker: str, spans: list[Span]) -> None:
            # In a context of its own: to Dask this is not part of the task that a fit may be in,
            # whose data would stay on that task's worker.
            request = self._send(worker, spans, question, early)
            task = asyncio.create_task(request, context=contextvars.Context())
            sent[task] = worker, spans
            if worker not in early:
                heard[worker] = time.monotonic()

        for worker, spans in self.shares.items():
            send(worker, spans)
        try:
            while sent:
                await asyncio.wait(sent, timeout=_QUIET, return_when=asyncio.FIRST_COMPLETED)
                gone = set()
                for task in [task for task in sent if task.done()]:
                    worker, spans = sent.pop(task)
                    try:
                        answers.append(task.result())
                        answered += spans
                    except WorkError as failure:
                        failures.append((min(spans), failure.error))
                        answered += spans
                    except OSError as problem:
                        logger.warning("Worker %s is lost: %r", worker, problem)
                        gone.add(worker)
                gone |= await self.workforce.silent({worker for worker, _ in sent.values()}, heard)
                if gone:
                    for task in [task for task, (worker, _) in sent.items() if worker in gone]:
                        task.cancel()
                        del sent[task]
                    waiting = [span for _, spans in sent.values() for span in spans]
                    for worker, spans in (await self._replace(gone, answered, waiting)).items():
                        send(worker, spans)
        finally:
            for task in sent:
                task.cancel()
        if failures:
            # The first in the data, as in one process, whoever was the first to fail.
            raise min(failures, key=lambda failure: failure[0])[1]
        return answers

    async def _send(
        self, worker: str, spans: list[Span], question: Question, early: dict[str, Any]
    ) -> Any:
        """Ask one worker, unless it has been, and give it what it lacks until it can answer."""
        # Codes that are asked for are there as a rule, and then no samples are needed.
        provides = not isinstance(question, Export)
        for _ in range(_MOST_TRIES):
            if worker in early:
                answer = early.pop(worker)
                if answer is None:
                    answer = self._unpacked(await self.wires.rest(worker))
            else:
                keys = await self.supplies.provide(worker, spans) if provides else {}
                request = self._packed(worker, spans, question, keys)
                answer = self._unpacked(await self.wires.call(worker, request))
            if isinstance(answer, Answer):
                return self._accept(worker, spans, question, answer)
            if not isinstance(answer, Problem):
                raise WorkError(answer)
            if answer.kind == "unknown run":
                self.informed.discard(worker)
                self.known = {key: v for key, v in self.known.items() if key[0] != worker}
            elif answer.kind == "no data":
                provides = True
                self.supplies.withdraw(worker, answer.spans)
            else:
                for span in answer.spans:
                    self.known.pop((worker, span), None)
                    self._begin_with_first_codes(worker, span)
        raise OSError(f"{worker} does not keep what it is given")

    def _accept(self, worker: str, spans: list[Span], question: Question, answer: Answer) -> Any:
        self.informed.add(worker)
        changes = isinstance(question, Sums) and question.changes
        for span in spans:
            self.known[worker, span] = question.version + changes
            self.states.pop((worker, span), None)
        self.traffic.steps_repeated += answer.replayed
        return answer.value

    def _unpacked(self, reply: bytes | bytearray) -> Any:
        self.traffic.bytes_in += len(reply)
        return unpacked(reply)

    def _packed(
        self, worker: str, spans: list[Span], question: Question, keys: dict[Span, str]
    ) -> bytes:
        states = {s: self.states[worker, s] for s in spans if (worker, s) in self.states}
        known = {s: self.known.get((worker, s), 0) for s in spans}
        base = min(states[s][0] if s in states else known[s] for s in spans)
        steps = [step for step in self.log if step.version > base]
        setup = None if worker in self.informed else self._setup()
        request = Request(
            self.name, self.shares[worker], spans, question, base, steps, setup, states, keys
        )
        message = b"".join(packed(request))
        self.asked.add(worker)
        self.traffic.messages += 1
        self.traffic.bytes_out += len(message)
        return message

    def _setup(self) -> Setup:
        return Setup(
            self.supplies.readable,
            len(self.source),
            self.source.patch_shape,
            self.source.dtype,
            self.block_size,
            self.n_threads,
            instruction_set(),
            -1 if self.first_codes else 0,
            self.device,
        )

    def _begin_with_first_codes(self, worker: str, span: Span) -> None:
        if self.first_codes:
            rows = slice(span[0] * self.block_size, span[1] * self.block_size)
            codes = {slot: codes[rows] for slot, codes in self.first_codes.items()}
            self.states[worker, span] = 0, codes

    # Who has which blocks.

    async def _replace(
        self, gone: set[str], answered: list[Span], waiting: list[Span]
    ) -> dict[str, list[Span]]:
        """Give the blocks of lost workers to others; returns what these are still to be asked."""
        for worker in gone:
            self._lose(worker)
        await self.workforce.wait(self.shares)
        shares = shared_out(self.n_blocks, self.workforce.weights, self.shares, cut=False)
        self.shares = {worker: split(spans, answered) for worker, spans in shares.items()}
        to_ask = {}
        for worker, spans in self.shares.items():
            spans = [
                s for s in spans if s not in waiting and uncovered(self.n_blocks, answered, [s])
            ]
            if spans:
                to_ask[worker] = spans
        return to_ask

    def _lose(self, worker: str) -> None:
        self.traffic.workers_lost += 1
        self.workforce.lose(worker)
        self.shares.pop(worker, None)
        self.informed.discard(worker)
        self.supplies.keep_only(worker, [])
        self.wires.cut(worker)
        self.known = {key: v for key, v in self.known.items() if key[0] != worker}
        self.states = {key: v for key, v in self.states.items() if key[0] != worker}

    async def _rebalance(self) -> None:
        """Give new workers their share."""
        await self.workforce.wait(self.shares)
        if set(self.workforce.weights) == set(self.shares):
            return
        before = self.shares
        owned = [span for spans in before.values() for span in spans]
        shares = shared_out(self.n_blocks, self.workforce.weights, before)
        shares = {worker: split(spans, owned) for worker, spans in shares.items()}
        if before and (self.log or self.first_codes):
            await self._export(before, shares)
        self.shares = shares
        for worker, spans in shares.items():
            self.supplies.keep_only(worker, spans)

    async def _export(self, before: dict[str, list[Span]], shares: dict[str, list[Span]]) -> None:
        """Fetch the codes of blocks that go from one worker to another, where that is possible."""
        for owner, had in before.items():
            moves = {
                span: worker
                for worker, spans in shares.items()
                for span in spans
                if worker != owner and not uncovered(self.n_blocks, had, [span])
            }
            if not moves:
                continue
            self.shares = before | {owner: shares.get(owner, []) + list(moves)}
            try:
                codes = await asyncio.wait_for(
                    self._send(owner, list(moves), Export(self.version), {}), workforce.PATIENCE
                )
            except Exception as problem:
                # Whoever takes over the blocks makes their codes again.
                logger.warning("Worker %s does not hand over its codes: %r", owner, problem)
                continue
            self.states |= {(moves[span], span): state for span, state in codes.items()}
