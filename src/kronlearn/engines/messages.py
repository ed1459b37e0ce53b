"""What the engine of many workers and its workers say to each other.

Workers hold spans of blocks: the codes of their samples, brought up to a version by steps. A step
is a change of codes that can be repeated; the driver keeps those that the present codes rest on, so
the codes of a lost worker can be made again elsewhere, with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kronlearn.core.engine import Codes, Task
from kronlearn.core.source import Source
from kronlearn.engines.sharing import Span

__all__ = [
    "Answer",
    "Export",
    "Problem",
    "Request",
    "Room",
    "Setup",
    "Step",
    "Sums",
    "Used",
    "WorkError",
    "Worst",
]


class WorkError(Exception):
    """An error in a worker's work, which any other would meet too; the worker itself is fine."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


@dataclass(frozen=True)
class Setup:
    """What a worker must know of a run before anything else.

    ``source`` is None where samples come as data that Dask holds. ``n_threads`` None means all
    threads of the worker; with ``device`` "cuda" its graphics card does the work.
    ``begins_with`` is the version of codes that nobody has made yet: −1 where the run goes on from
    codes of an earlier one.
    """

    source: Source | None
    n_samples: int
    patch_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    block_size: int
    n_threads: int | None
    instruction_set: str
    begins_with: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Room:
    """A set of codes: its number, their width, and which parts of :class:`Codes` it has."""

    slot: int
    width: int
    supports: bool = True
    values: bool = True
    residuals: bool = False


@dataclass(frozen=True)
class Step:
    """A pass that changes the codes in a room, which brings them to a version."""

    version: int
    room: Room
    task: Task


@dataclass(frozen=True)
class Sums:
    """Pass over the samples and answer with the sums of the blocks.

    With ``room`` the pass works on its codes; it is a step itself where it changes them.
    """

    version: int
    task: Task
    room: Room | None = None
    changes: bool = False


@dataclass(frozen=True)
class Used:
    """Which atoms the codes use."""

    version: int
    room: Room
    n_atoms: tuple[int, ...]


@dataclass(frozen=True)
class Worst:
    """The samples with the largest residuals."""

    version: int
    room: Room
    count: int


@dataclass(frozen=True)
class Export:
    """The codes of the spans."""

    version: int


Question = Sums | Used | Worst | Export
State = tuple[int, dict[int, Codes]]


@dataclass(frozen=True)
class Request:
    """A question about some spans.

    ``holds`` are all spans that the worker is to keep. ``steps`` bring codes of version ``base`` or
    later to the version of the question; ``states`` are codes to begin with; ``keys`` name the
    samples of spans among the data that Dask holds on the worker.
    """

    run: str
    holds: list[Span]
    spans: list[Span]
    question: Question
    base: int
    steps: list[Step]
    setup: Setup | None = None
    states: dict[Span, State] = field(default_factory=dict)
    keys: dict[Span, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a worker found; ``replayed`` is how many steps it repeated on the way."""

    value: Any
    replayed: int = 0


@dataclass(frozen=True)
class Problem:
    """Why a worker cannot answer yet: "unknown run", "behind" or "no data" of some spans."""

    kind: str
    spans: list[Span] = field(default_factory=list)
