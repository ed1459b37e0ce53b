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
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def peak_above_start(work: Callable[[], object]) -> int:
    """Bytes that some work held at most beyond what was held before; right once per process."""
    before = _status("VmRSS") or _most_so_far()
    work()
    return (_status("VmHWM") or _most_so_far()) - before


def _status(name: str) -> int | None:
    """What Linux tells about this process alone; elsewhere nothing."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return kib[0] * 1024 if kib else None


def _most_so_far() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
