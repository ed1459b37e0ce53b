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

_INT, _INT64, _FLOAT, _DOUBLE = np.int32, np.int64, np.float32, np.float64
# Fields that :func:`set_fields` gives the addresses of arrays.
_POINTER = np.uint64


def _struct(*fields: tuple[Any, str]) -> np.dtype[Any]:
    """A dtype of fields, from pairs of a type and the names of consecutive fields."""
    return np.dtype([(name, kind) for kind, names in fields for name in names.split()], align=True)


SHAPE = _struct((_INT, "n_modes m1 n1 m2 n2"), ((_INT, MOST_MODES), "m n"))

TASK = _struct(
    (SHAPE, "shape"),
    (_INT, "method width"),
    (_INT64, "first count"),
    (_DOUBLE, "tol scale"),
    (_POINTER, "samples weights tols norms1 norms2 list list_count doubtful doubtful_count"),
    (_POINTER, "index value nonzeros residual2 first_bad stopped scratch"),
    (_INT64, "scratch_size"),
)

BLOCK_TASK = _struct(
    (SHAPE, "shape"),
    (_INT, "kind mode width has_residuals"),
    (_INT64, "count block_size part_size numbers"),
    (_POINTER, "samples value residual2 index nonzeros factors sums scratch rows"),
)

CHUNK_SUMS = _struct(
    (_INT, "begins ends numbers rows"),
    (_POINTER, "partial partial_counts totals total_counts sums counts arrived stopped"),
)

UPDATE = _struct(
    (_INT, "orthonormal kept rows"),
    (_DOUBLE, "factor"),
    (_POINTER, "partial partial_counts sums counts single_tables double_tables history"),
    (_POINTER, "all_factors iteration arrived stopped unscaled"),
)

PATCH_GRID = _struct(
    (_INT, "n_axes features"),
    ((_INT, MOST_AXES), "size patch stride starts last window feature"),
    (_INT, "origin band"),
    ((_INT64, MOST_AXES), "step"),
)

CODING_TASK = _struct(
    (SHAPE, "shape"),
    (PATCH_GRID, "grid"),
    (_INT, "method width favour_sparse"),
    (_DOUBLE, "tol"),
    (_INT64, "first count"),
    (_POINTER, "values weights"),
    (_INT64, "pixels"),
    (_POINTER, "image known pixel_offsets numerator denominator average"),
    (_POINTER, "list list_count doubtful doubtful_count scratch"),
    (_INT64, "scratch_size"),
)

GROUP_TASK = _struct(
    (PATCH_GRID, "grid"),
    (_INT, "group over_pixels matrix square planes matched_planes candidates"),
    (_INT64, "count pixels"),
    (_FLOAT, "noise"),
    (_INT, "room"),
    (_FLOAT, "weight_scale"),
    (_POINTER, "image guide noises matched taper pixel_offsets largest sums weights average"),
)

PIXEL_TASK = _struct(
    (_INT, "parts"),
    (_INT64, "count"),
    (_DOUBLE, "mean scale lowest most"),
    (_POINTER, "pixels plane found"),
)

NOISE_TASK = _struct(
    (_POINTER, "pixels factor uses"),
    (_DOUBLE, "low high"),
    (_INT, "step rows columns stride highs"),
    (_POINTER, "structure values kept"),
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
        if struct.dtype[name] == _POINTER:
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
