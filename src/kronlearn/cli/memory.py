"""How much memory a piece of work needs, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["measured_in_a_process", "peak_above_start"]

# ru_maxrss counts KiB, on macOS bytes.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def measured_in_a_process(module: str, function: str, argument: int) -> dict[str, Any] | None:
    """What a function prints as JSON, called in a new process; None if memory is not measurable."""
    if find_spec("resource") is None:
        return None
    code = f"from {module} import {function}; {function}({argument})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def peak_above_start(work: Callable[[], object]) -> int:
    """Bytes that some work held at most beyond what was held before; right once per process."""
    import resource

    before = _resident_bytes()
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT - before


def _resident_bytes() -> int:
    """What this process holds now; where the system does not tell, the most it held so far."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
    return pages * resource.getpagesize()
