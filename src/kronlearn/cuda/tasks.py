"""What is passed to kernels, to those that code samples above all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.tables import SHAPE

__all__ = ["METHODS", "NO_SAMPLE", "TASK", "check_method", "new_task", "struct"]

METHODS = {"omp": 0, "ols": 1, "threshold": 2}
#: The number of the first sample that is not finite, before one is found.
NO_SAMPLE = np.iinfo(np.int64).max

_POINTERS = (
    *("samples", "weights", "tols", "norms1", "norms2", "list", "list_count"),
    *("doubtful", "doubtful_count", "index", "value", "nonzeros", "residual2"),
    *("first_bad", "stopped", "scratch"),
)

#: The struct Task of the kernels; pointers are integers.
TASK = np.dtype(
    [
        ("shape", SHAPE),
        *((name, np.int32) for name in ("method", "width")),
        ("first", np.int64),
        ("count", np.int64),
        ("tol", np.float64),
        ("scale", np.float64),
        *((name, np.uint64) for name in _POINTERS),
        ("scratch_size", np.int64),
    ],
    align=True,
)


def new_task(**values: Any) -> NDArray[Any]:
    """A task with these values; what is not given is zero, or no error target."""
    return struct(TASK, **({"tol": -1.0, "scale": 1.0} | values))


def struct(dtype: np.dtype[Any], **values: Any) -> NDArray[Any]:
    """A struct of the kernels with these values; what is not given is zero."""
    made = np.zeros((), dtype)
    for name, value in values.items():
        made[name] = value
    return made


def check_method(method: str) -> None:
    """Raise unless a GPU has kernels for a method."""
    if method not in METHODS:
        raise ValueError(
            f'method="{method}" runs on the processor only; pass data in memory and device="cpu", '
            f"or one of the methods {', '.join(METHODS)}."
        )
