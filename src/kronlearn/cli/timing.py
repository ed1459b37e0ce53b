"""Measuring for the benchmarks: interleaved runs, and the facts about the machine they ran on."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import kronlearn as kl
from kronlearn.cli.output import Output

__all__ = ["interleaved", "machine"]


def interleaved(
    runs: Mapping[str, Callable[[], Any]], repetitions: int, output: Output, description: str
) -> dict[str, float]:
    """Median seconds of each run, by name.

    The runs take turns, so that a machine that slows down for a while slows all of them down.
    One round before the measured ones warms up caches, pools and imports.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with output.progress(description, repetitions + 1) as advance:
        for repetition in range(repetitions + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if repetition:
                    seconds[name].append(time.perf_counter() - start)
            advance()
    return {name: statistics.median(values) for name, values in seconds.items()}


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
