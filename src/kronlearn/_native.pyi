from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class SumTree:
    def __init__(self, size: int, blocks: int) -> None: ...
    def add(self, level: int, index: int, sums: NDArray[np.float64]) -> None: ...
    def nodes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Levels (k,), indices (k,) and sums (k, size)."""

    def total(self) -> NDArray[np.float64]: ...

class _Dictionary:
    def __init__(self, factors: list[NDArray[np.float64]]) -> None: ...
    def run(
        self,
        feed: Any,
        count: int,
        chunk: int,
        method: str,
        width: int,
        tree: SumTree,
        *,
        sums: str = "none",
        mode: int = -1,
        weights: NDArray[Any] | None = None,
        tol: float = -1.0,
        tols: NDArray[Any] | None = None,
        given: bool = False,
        first: int = 0,
        n_worst: int = 0,
        index: NDArray[np.int32] | None = None,
        value: NDArray[Any] | None = None,
        nonzeros: NDArray[np.int32] | None = None,
        threads: int = 1,
        block: int = 4096,
        file: int = -1,
        file_offset: int = 0,
        instruction_set: str = "",
    ) -> tuple[int, NDArray[np.float64], NDArray[np.int64]]:
        """Run one pass over samples and add its sums to the tree.

        Returns the first sample that is not finite, or -1, and the squared residuals (k,) and
        numbers (k,) of the ``n_worst`` samples with the largest residuals above zero, by residual
        descending, then by number ascending. The first sample of the pass has the number ``first``.

        ``feed.get(i)`` returns the i-th chunk of samples, or None to stop; ``feed.done(i)``
        releases it. Neither may raise. If ``file``, a descriptor, is not negative, samples are read
        from there instead. Codes are written to ``index``, ``value`` and ``nonzeros`` if these are
        passed; with ``given=True``, the codes in them are summed as they are. An empty
        ``instruction_set`` means the fastest one, here and below.
        """

class DictionaryFloat32(_Dictionary): ...
class DictionaryFloat64(_Dictionary): ...

def code_image(
    dictionary: DictionaryFloat32,
    image: NDArray[np.float32],
    numerator: NDArray[np.float32],
    denominator: NDArray[np.float32],
    axes: list[tuple[int, int, int, int]],
    method: str,
    width: int,
    tol: float,
    known: NDArray[np.float32] | None = None,
    favour_sparse: bool = True,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
    instruction_set: str = "",
) -> None: ...
def filter_groups(
    image: NDArray[np.float32],
    guide: NDArray[np.float32] | None,
    matched: NDArray[np.float32],
    numerator: NDArray[np.float32],
    denominator: NDArray[np.float32],
    axes: list[tuple[int, int, int, int]],
    group: int,
    taper: NDArray[np.float32],
    noise: NDArray[np.float32],
    over_pixels: bool = False,
    matches: NDArray[np.int32] | None = None,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
    instruction_set: str = "",
) -> None: ...

# (axis, groups, outputs, shared, numbers): see FilterStage in native/convolutional/convolution.hpp.
_Stages = list[tuple[int, int, int, bool, NDArray[np.float32]]]
# Positions, filters and values of the nonzero coefficients.
_Codes = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]

def code_convolutional(
    residual: NDArray[np.float32],
    weights: NDArray[np.float32] | None,
    filters: NDArray[np.float32],
    stages: _Stages,
    codes: _Codes,
    penalty: float,
    tolerance: float,
    max_rounds: int,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
    instruction_set: str = "",
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], float]:
    """Positions, filters and values, and the largest violation relative to the penalty.

    ``residual`` must belong to ``codes``, and is updated to belong to the result.
    """

def synthesize_convolutional(
    image: NDArray[np.float32],
    filters: NDArray[np.float32],
    stages: _Stages,
    codes: _Codes,
    threads: int = 1,
    instruction_set: str = "",
) -> None: ...
def correlate_codes(
    image: NDArray[np.float32],
    filters: NDArray[np.float32],
    stages: _Stages,
    codes: _Codes,
    sums: NDArray[np.float64],
    threads: int = 1,
    instruction_set: str = "",
) -> None: ...
def compress(
    index: NDArray[np.int32],
    value: NDArray[Any],
    nonzeros: NDArray[np.int32],
    starts: NDArray[np.int64],
    indices: NDArray[Any],
    data: NDArray[Any],
    threads: int = 1,
) -> None:
    """Write the used entries of row k of index and value to starts[k] … starts[k + 1] - 1.

    ``indices`` is int32 or int64. Entries of no row stay as they are.
    """

def symmetric(packed: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """The symmetric matrix (n, n) with this lower triangle, packed row after row."""

def mode_sums(
    stacks: Sequence[NDArray[np.float64]],
    mode: int,
    triangle: NDArray[np.float64] | None,
    xy: NDArray[np.float64],
    instruction_set: str = "",
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
    """P (R·n, R·n), or None if ``triangle`` is None, and Cᵀ (R·n, m) of a mode.

    ``stacks`` has the factors (R, m_i, n_i) of every mode; ``triangle`` is that of S_xx.
    """

def scaled_triangle(
    triangle: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The packed triangle of S_xx for the codes scale ∘ x."""

def unit_columns(
    columns: NDArray[np.float64], fallback: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Columns of norm 1, largest entries positive, and the factors that undo the scaling."""

def sweep_atoms(
    samples: NDArray[Any],
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    data: NDArray[Any],
    atoms: NDArray[np.float64],
    instruction_set: str = "",
) -> None:
    """Run one sweep of approximate K-SVD over the rows of ``atoms``; updates them and ``data``."""

def instruction_sets() -> list[str]: ...
def end_passes() -> None: ...
