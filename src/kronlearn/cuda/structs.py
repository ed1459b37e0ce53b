"""The structs that host code fills for the kernels, field by field as the kernels declare them.

``tests/test_cuda_structs.py`` compares every offset and size with the C++ declarations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu

__all__ = [
    "BLOCK_TASK",
    "CHUNK_SUMS",
    "CODING_TASK",
    "GROUP_TASK",
    "METHODS",
    "MOST_AXES",
    "MOST_MODES",
    "NOISE_TASK",
    "NO_SAMPLE",
    "PATCH_GRID",
    "PIXEL_TASK",
    "SHAPE",
    "TASK",
    "UPDATE",
    "check_method",
    "new_struct",
    "new_task",
    "set_fields",
]

#: Modes of a dictionary and axes of an image for which the structs have room.
MOST_MODES = MOST_AXES = 16
#: The enum Method of the kernels.
METHODS = {"omp": 0, "ols": 1, "threshold": 2}
#: Initial value of ``Task::first_bad``: every sample so far is finite.
NO_SAMPLE = np.iinfo(np.int64).max

_Fields = list[tuple[Any, ...]]


def _struct(*fields: _Fields) -> np.dtype[Any]:
    return np.dtype([field for some in fields for field in some], align=True)


def _ints(names: str) -> _Fields:
    return [(name, np.int32) for name in names.split()]


def _int64s(names: str) -> _Fields:
    return [(name, np.int64) for name in names.split()]


def _doubles(names: str) -> _Fields:
    return [(name, np.float64) for name in names.split()]


def _pointers(names: str) -> _Fields:
    """Fields that :func:`set_fields` gives the addresses of arrays."""
    return [(name, np.uint64) for name in names.split()]


SHAPE = _struct(
    _ints("n_modes m1 n1 m2 n2"), [("m", np.int32, MOST_MODES), ("n", np.int32, MOST_MODES)]
)

TASK = _struct(
    [("shape", SHAPE)],
    _ints("method width"),
    _int64s("first count"),
    _doubles("tol scale"),
    _pointers("samples weights tols norms1 norms2 list list_count doubtful doubtful_count"),
    _pointers("index value nonzeros residual2 first_bad stopped scratch"),
    _int64s("scratch_size"),
)

BLOCK_TASK = _struct(
    [("shape", SHAPE)],
    _ints("kind mode width has_residuals"),
    _int64s("count block_size part_size numbers"),
    _pointers("samples value residual2 index nonzeros factors sums scratch rows"),
)

CHUNK_SUMS = _struct(
    _ints("begins ends numbers rows"),
    _pointers("partial partial_counts totals total_counts sums counts arrived stopped"),
)

UPDATE = _struct(
    _ints("orthonormal kept rows"),
    _doubles("factor"),
    _pointers("partial partial_counts sums counts single_tables double_tables history"),
    _pointers("all_factors iteration arrived stopped unscaled"),
)

PATCH_GRID = _struct(
    _ints("n_axes features"),
    [
        (name, np.int32, MOST_AXES)
        for name in ("size", "patch", "stride", "starts", "last", "window", "feature")
    ],
    _ints("origin band"),
    [("step", np.int64, MOST_AXES)],
)

CODING_TASK = _struct(
    [("shape", SHAPE), ("grid", PATCH_GRID)],
    _ints("method width favour_sparse"),
    _doubles("tol"),
    _int64s("first count"),
    _pointers("values weights"),
    _int64s("pixels"),
    _pointers("image known pixel_offsets numerator denominator average"),
    _pointers("list list_count doubtful doubtful_count scratch"),
    _int64s("scratch_size"),
)

GROUP_TASK = _struct(
    [("grid", PATCH_GRID)],
    _ints("group size planes matched_planes candidates"),
    _int64s("count pixels"),
    [("noise", np.float32), ("room", np.int32), ("weight_scale", np.float32)],
    _pointers("image guide noises matched taper pixel_offsets largest sums weights average"),
)

PIXEL_TASK = _struct(
    _ints("parts"),
    _int64s("count"),
    _doubles("mean scale lowest most"),
    _pointers("pixels plane found"),
)

NOISE_TASK = _struct(
    _pointers("pixels factor uses"),
    _doubles("low high"),
    _ints("step rows columns stride highs"),
    _pointers("structure values kept"),
)


def new_struct(gpu: Gpu, dtype: np.dtype[Any], **values: Any) -> NDArray[Any]:
    """A struct with these fields set and all others zero."""
    struct = np.zeros((), dtype)
    set_fields(gpu, struct, **values)
    return struct


def set_fields(gpu: Gpu, struct: NDArray[Any], **values: Any) -> None:
    """Set fields of a struct; a pointer gets the address of an array on the GPU, or null for None.

    The struct does not keep the arrays alive.
    """
    for name, value in values.items():
        if struct.dtype[name] == np.uint64:
            struct[name] = 0 if value is None else gpu.address(value)
        else:
            struct[name] = value


def new_task(gpu: Gpu, **values: Any) -> NDArray[Any]:
    """A struct Task; unless they are set, it has no error target, and samples are not scaled."""
    return new_struct(gpu, TASK, **({"tol": -1.0, "scale": 1.0} | values))


def check_method(method: str) -> None:
    """Raise ValueError unless kernels exist for a method."""
    if method not in METHODS:
        raise ValueError(
            f'method="{method}" runs on the processor only; pass data in memory and device="cpu", '
            f"or one of the methods {', '.join(METHODS)}."
        )
