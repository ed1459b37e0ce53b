"""How long work takes and how much memory: in turns, or in a process of its own."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import kronlearn as kl
from kronlearn.experiments.report import Report, Table

__all__ = [
    "Progress",
    "benchmark",
    "compared",
    "in_turns",
    "machine",
    "measured_in_a_process",
    "median_seconds",
    "no_progress",
    "peak_above_start",
    "seconds_per_iteration",
    "timed",
]

#: From a description and a number of steps, a function to call after each step, with a note or not.
Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]


@contextmanager
def no_progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Progress that is not shown."""
    yield lambda note="": None


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds that some work takes, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def in_turns(
    runs: Mapping[str, Callable[[], Any]],
    repetitions: int,
    progress: Progress = no_progress,
    description: str = "",
) -> dict[str, tuple[float, list[Any]]]:
    """Median seconds of each run and all its results, by name.

    The runs take turns, so that a machine that slows down for a while slows all of them down.
    One round before the measured ones warms up caches, pools and imports; it does not count.
    """
    rounds: dict[str, list[tuple[float, Any]]] = {name: [] for name in runs}
    with progress(description, repetitions + 1) as advance:
        for _ in range(repetitions + 1):
            for name, run in runs.items():
                rounds[name].append(timed(run))
            advance()
    found = {}
    for name, (_, *counted) in rounds.items():
        seconds, results = zip(*counted, strict=True)
        found[name] = statistics.median(seconds), list(results)
    return found


def compared(
    at: Mapping[str, Any],
    runs: Mapping[str, Callable[[], Any]],
    scores: Callable[[Any], Mapping[str, Any]],
    repetitions: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """A row for each run of a task: ``at``, its name, median seconds and the scores of its result.

    ``ratio`` is how many times the seconds of the first run it takes.
    """
    title = ", ".join(map(str, at.values()))
    found = in_turns(runs, repetitions, progress, title)
    first, _ = next(iter(found.values()))
    return [
        {**at, "method": name, **scores(results[-1]), "seconds": took, "ratio": took / first}
        for name, (took, results) in found.items()
    ]


def median_seconds(run: Callable[[], Any], repetitions: int) -> float:
    """The median seconds of a run after a first one, which warms up."""
    return in_turns({"": run}, repetitions)[""][0]


def seconds_per_iteration(model: Any) -> float:
    """The median iteration of a fitted model, the first tenth of them, which set up, left out."""
    steps = np.diff(model.history_["seconds"])
    return float(np.median(steps[-(-len(steps) // 10) :]))


def benchmark(shown: Sequence[str | Table], **record: Any) -> Report:
    """The report of a benchmark, with the machine it ran on."""
    facts = machine()
    line = ", ".join(f"{name} {value}" for name, value in facts.items()).replace("_", " ")
    return Report([line, *shown], {"machine": facts, **record})


def machine() -> dict[str, str]:
    """Processor, instruction set and versions, to be printed with the numbers."""
    return {
        "processor": _processor(),
        "instruction_set": kl.instruction_set(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kronlearn": kl.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def measured_in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function of a module, called in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_above_start(work: Callable[[], object]) -> int | None:
    """The most bytes that some work held beyond what was held before; valid once per process.

    None where the system does not tell.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        work()
        return None
    before = _kilobytes(status, "VmRSS")
    work()
    return 1024 * (_kilobytes(status, "VmHWM") - before)


def _kilobytes(status: Path, name: str) -> int:
    entries = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(entries[name].split()[0])
