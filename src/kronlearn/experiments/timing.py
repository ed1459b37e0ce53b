"""Measure time, in turns, and peak memory, in a process of its own."""

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
    "compare_methods",
    "machine",
    "measured_in_a_process",
    "median_seconds",
    "no_progress",
    "peak_above_start",
    "seconds_per_iteration",
    "time_in_turns",
    "timed",
]

#: Shows progress: takes a description and a number of steps, yields a function to call after each
#: step, with a text to show or without.
Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]


@contextmanager
def no_progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Show nothing."""
    yield lambda note="": None


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Call a function; return the seconds that it took, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def time_in_turns(
    functions: Mapping[str, Callable[[], Any]],
    repetitions: int,
    progress: Progress = no_progress,
    description: str = "",
    keep: Callable[[Any], Any] = lambda result: result,
) -> dict[str, tuple[float, list[Any]]]:
    """Return the median seconds and all results of each function, by name.

    The functions take turns, so that a machine that slows down for a while slows all of them down.
    A first round warms up caches, thread pools and imports, and does not count. ``keep`` returns
    the part of a result that is needed later: large results that stay in memory would make the
    next calls wait for new pages from the system.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    results: dict[str, list[Any]] = {name: [] for name in functions}
    with progress(description, repetitions + 1) as advance:
        for _ in range(repetitions + 1):
            for name, function in functions.items():
                took, result = timed(function)
                seconds[name].append(took)
                results[name].append(keep(result))
                del result
            advance()
    return {name: (statistics.median(seconds[name][1:]), results[name][1:]) for name in functions}


def compare_methods(
    task: Mapping[str, Any],
    methods: Mapping[str, Callable[[], Any]],
    scores: Callable[[Any], Mapping[str, Any]],
    repetitions: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Return a record for each method: ``task``, name, scores of its result, median seconds.

    ``ratio`` is the method's time divided by that of the first method.
    """
    title = ", ".join(map(str, task.values()))
    measured = time_in_turns(methods, repetitions, progress, title)
    first, _ = next(iter(measured.values()))
    return [
        {**task, "method": name, **scores(results[-1]), "seconds": took, "ratio": took / first}
        for name, (took, results) in measured.items()
    ]


def median_seconds(function: Callable[[], Any], repetitions: int) -> float:
    """Return the median seconds of a function, called once before to warm up."""
    return time_in_turns({"": function}, repetitions)[""][0]


def seconds_per_iteration(model: Any) -> float:
    """Return the median seconds of an iteration of ``fit``.

    The first tenth of the iterations, which include setting up, is left out.
    """
    steps = np.diff(model.history_["seconds"])
    return float(np.median(steps[-(-len(steps) // 10) :]))


def benchmark(shown: Sequence[str | Table], **record: Any) -> Report:
    """Return the report of a benchmark, with the machine that ran it."""
    facts = machine()
    line = ", ".join(f"{name} {value}" for name, value in facts.items()).replace("_", " ")
    return Report([line, *shown], {"machine": facts, **record})


def machine() -> dict[str, str]:
    """Return the processor, the instruction set in use and versions."""
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
    """Call a function of a module in a new process and return its result."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_above_start(work: Callable[[], object]) -> int | None:
    """Return the peak of this process's memory during a call, less that before it, in bytes.

    None on systems without /proc. The peak is that of the process's whole life, so the result is
    valid only for the first call in a process.
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
